"""Cross entropy of a linear layer as one differentiable function; logits of all rows never exist.

Shapes: hidden `(..., H)`, weight `(V, H)`, bias `(V,)`, targets `(...)` int64. How: `cross_entropy_window.py`.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tbptt.errors import check_choice, refusal
from tbptt.ops.cross_entropy_window import (
    NARROW_SUM,
    LinearCrossEntropy,
    check_rows,
    chunk_rows,
    full_dtype,
    scratch_bytes,
)

__all__ = ["LinearCrossEntropy", "chunk_rows", "divisor", "linear_cross_entropy", "scratch_bytes"]


def divisor(
    targets: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """What the summed loss of `targets` (any shape) is divided by, 0-dimensional, as in `torch.nn.CrossEntropyLoss`.

    For "mean" the number of targets that are not ignored, or the sum of their class weights; for "sum" 1.

    Raises:
        UserError: another reduction.
    """
    check_choice("reduction", reduction, ("mean", "sum"))
    if reduction == "sum":
        return torch.ones((), device=targets.device)
    if class_weights is None:
        return (targets != ignore_index).sum()
    ignored = targets == ignore_index
    return class_weights.detach()[targets.masked_fill(ignored, 0)].masked_fill(ignored, 0.0).sum()


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    rows: int | None = None,
) -> Tensor:
    """`cross_entropy(linear(hidden, weight, bias), targets, ...)` of torch, without its logits; under autocast too.

    `hidden` is `(..., H)` and `targets` `(...)`; everything else is as in `LinearCrossEntropy`.

    Returns:
        The loss, 0-dimensional, float32 (float64 for float64). One backward pass can be made from it, of first order
        (with no more words than hidden units, and `rows` left out, it is torch's own, and so are its rules).

    Raises:
        UserError: as `LinearCrossEntropy`; without autocast also a hidden state in another dtype than the weight.
    """
    check_choice("reduction", reduction, ("mean", "sum"))
    device, dtype = hidden.device.type, weight.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    elif hidden.dtype != dtype:
        raise refusal("hidden", f"have the weight's dtype, {dtype}", hidden.dtype, "cast it, or use autocast")
    if hidden.shape[:-1] != targets.shape:
        expected = tuple(hidden.shape[:-1])
        raise refusal("targets", f"have shape {expected}", tuple(targets.shape), "give one for each row")
    flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    if rows is None and len(weight) <= weight.shape[-1]:
        # Logits are no larger than hidden states: there is nothing to save, and torch's fewer calls are faster.
        check_rows(flat[0], flat[1].masked_fill(flat[1] == ignore_index, 0), weight)
        return F.cross_entropy(
            F.linear(flat[0], weight, bias).to(full_dtype(dtype)),
            flat[1],
            weight=None if class_weights is None else class_weights.detach().to(full_dtype(dtype)),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )
    graph = torch.is_grad_enabled()
    sums = [
        torch.zeros(value.shape, device=value.device, dtype=full_dtype(dtype))
        if graph and value is not None and value.requires_grad
        else None
        for value in (weight, bias)
    ]
    window = LinearCrossEntropy(
        weight,
        bias,
        divisor=divisor(targets, class_weights=class_weights, ignore_index=ignore_index, reduction=reduction),
        scale=NARROW_SUM if dtype == torch.float16 else 1.0,
        class_weights=class_weights,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        grad_weight=sums[0],
        grad_bias=sums[1],
        rows=rows,
        compute_dtype=dtype,
    )
    need_hidden = graph and hidden.requires_grad
    loss: Tensor = _Function.apply(flat[0], weight, bias, flat[1], window, need_hidden)  # type: ignore[no-untyped-call]
    return loss


class _Function(torch.autograd.Function):
    """A window of one call, whose gradients wait for the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        targets, window, need_hidden = rest
        ctx.gradients = [window.add(hidden, targets, need_hidden=need_hidden), window.grad_weight, window.grad_bias]
        ctx.scale = window.scale
        ctx.dtypes = [None if value is None else value.dtype for value in (hidden, weight, bias)]
        return window.nats  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy makes its gradients in the forward pass: they cannot be differentiated again "
                "(create_graph=True, double backward); use torch.nn.functional.cross_entropy for that."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "linear_cross_entropy gives its gradients once, and this is a second backward pass from the same "
                "loss; compute the loss again, or add losses up and call backward once."
            )
        gradients, ctx.gradients = ctx.gradients, None
        factor = grad_output / ctx.scale
        # Usually 1, which only a CPU can find out without waiting.
        if factor.device.type != "cpu" or factor.item() != 1.0:
            gradients = [None if value is None else value.mul_(factor) for value in gradients]
        cast = [None if value is None else value.to(dtype) for value, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return *cast, None, None, None
