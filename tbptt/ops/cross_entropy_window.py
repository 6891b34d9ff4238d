"""Cross entropy of a linear layer, exactly, in row chunks: the logits of a whole window never exist.

Shapes: hidden `(N, H)`, weight `(V, H)`, bias `(V,)`, targets `(N,)` int64; logits of a chunk, transposed, `(V, n)`.

The gradient of a row's loss, softmax minus one-hot, is known as soon as its logits are. So one pass over the rows makes
loss and gradients, chunk by chunk, in one scratch. Logits lie there *transposed*: the products `weight @ hidden.T` and
`softmax @ hidden` are then in the form that bfloat16 units of a CPU do best, and as fast as any in float32. In float32
softmax is not divided by its sums: hidden states and their gradients are, unless they are larger.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from tbptt.errors import check_integer, check_number, refusal
from tbptt.ops.precision import bfloat16_products

# Bytes of a chunk's logits in full precision. On a CPU well under the 32 MiB beyond which glibc's malloc gives memory
# back at each free, so that every window would pay for fresh pages; more is hardly faster, and it is most of what words
# take in passing. Elsewhere fewer and larger products are better.
LOGITS_BYTES = {"cpu": 18 * 2**20}
LOGITS_BYTES_ELSEWHERE = 2**28
# Words whose weight gradient is made in low precision and added to the full one while a core's cache still has it.
BLOCK = 4096
# Words whose logits are reduced side by side: whole vectors, whatever the number of rows.
FOLD = 32
# What a row of softmax adds up to before it is cast. A power of two, so that low precision rounds small probabilities
# alone and the one-hot hardly; not 1, or float16 would round small ones to zero.
NARROW_SUM = 1024.0


def chunk_rows(vocab_size: int, compute_dtype: torch.dtype, device_type: str = "cpu") -> int:
    """Rows of a chunk: as many as fit in its bytes; a multiple of 64 (or 16, or any) as vectors and tiles like it."""
    budget = LOGITS_BYTES.get(device_type, LOGITS_BYTES_ELSEWHERE)
    rows = max(1, budget // (vocab_size * full_dtype(compute_dtype).itemsize))
    step = 64 if rows >= 64 else 16 if rows >= 16 else 1
    return rows // step * step


def scratch_bytes(
    rows: int, vocab_size: int, hidden_size: int, compute_dtype: torch.dtype, device_type: str = "cpu"
) -> int:
    """Bytes that chunks of `rows` rows take, beside inputs and gradients.

    In low precision that is also the cast weight, a cast of the logits and, but on a CPU, a block of the weight's
    gradient.
    """
    total = rows * vocab_size * full_dtype(compute_dtype).itemsize
    if compute_dtype != full_dtype(compute_dtype):
        block = 0 if device_type == "cpu" else min(BLOCK, vocab_size)
        total += (vocab_size * (rows + hidden_size) + block * hidden_size) * compute_dtype.itemsize
    return total


class LinearCrossEntropy:
    """Adds up loss and gradients of one window, which may arrive in several calls.

    Attributes:
        nats: the loss so far, divided by `divisor`, 0-dimensional, float32 (float64 for float64), without a gradient.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        divisor: Tensor | float,
        scale: float = 1.0,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        grad_weight: Tensor | None = None,
        grad_bias: Tensor | None = None,
        fresh: bool = False,
        rows: int | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """Take the layer, and where its gradients go.

        Args:
            weight: of the layer, `(V, H)`; cast to `compute_dtype` once, here.
            bias: of the layer, `(V,)`, or None.
            divisor: what the sum over rows is divided by; for a mean over targets see `linear_cross_entropy.divisor`.
            scale: multiplies gradients, not the loss.
            class_weights: weights `(V,)` of the targets; None: all 1.
            ignore_index: the target of rows that do not count.
            label_smoothing: the share of each target that is spread evenly over all `V`.
            grad_weight: `(V, H)`, to which the weight's gradient is added in place; None: it is not wanted.
            grad_bias: `(V,)`, likewise.
            fresh: whether `grad_weight` holds nothing yet, and is to be written first.
            rows: rows of a chunk; None: `chunk_rows`.
            compute_dtype: of the matrix products; None: the weight's.

        Raises:
            UserError: shapes that do not fit, a smoothing outside [0, 1], or a chunk of less than one row.
        """
        _check_layer(weight, bias=bias, class_weights=class_weights, grad_weight=grad_weight, grad_bias=grad_bias)
        check_number("label_smoothing", label_smoothing, "give 0 for none", below=math.nextafter(1.0, 2.0))
        self.weight, self.cast = weight.detach(), weight.detach().to(compute_dtype or weight.dtype)
        self.rows = chunk_rows(len(weight), self.cast.dtype, weight.device.type) if rows is None else rows
        check_integer("rows", self.rows, 1, "leave it out to have it chosen")
        wide = full_dtype(self.cast.dtype)
        self.narrow = self.cast.dtype != wide
        self.bias = None if bias is None else bias.detach().to(wide)
        self.class_weights = None if class_weights is None else class_weights.detach().to(wide)
        self.grad_weight, self.grad_bias, self._fresh = grad_weight, grad_bias, fresh
        self.scale, self.ignore_index, self.smoothing = scale, ignore_index, label_smoothing
        self.divisor = torch.as_tensor(divisor, device=weight.device).detach().to(wide)
        self.nats = torch.zeros((), device=weight.device, dtype=wide)
        self._uniform = _Uniform.of(self.weight, self.bias, self.class_weights) if label_smoothing else None
        self._clear()

    @torch.no_grad()
    def add(self, hidden: Tensor, targets: Tensor, *, need_hidden: bool = True) -> Tensor | None:
        """Add loss and gradients of the rows `hidden` `(N, H)` with `targets` `(N,)`.

        Returns:
            The gradient of `hidden`, `(N, H)` in its dtype; None if it is not needed.

        Raises:
            UserError: shapes or dtypes that do not fit or, on a CPU, a target that is neither in [0, V) nor ignored. On
                a GPU that is an assertion of the device, as everywhere in torch: to look at it is to wait for it.
        """
        ignored = targets == self.ignore_index
        labels = targets.masked_fill(ignored, 0)
        check_rows(hidden, labels, self.weight)
        share = self.nats.new_full(labels.shape, 1.0 - self.smoothing)
        if self.class_weights is not None:
            share *= self.class_weights[labels]
        share.masked_fill_(ignored, 0.0)
        grad = torch.empty_like(hidden, memory_format=torch.contiguous_format) if need_hidden else None
        with _no_autocast(hidden.device.type):
            # At least once: the mean over no rows is nan, as in torch.
            for begin in range(0, max(1, len(hidden)), self.rows):
                part = slice(begin, begin + self.rows)
                rows = _Rows(hidden[part], labels[part], ignored[part], share[part])
                self._add_rows(rows, None if grad is None else grad[part])
            if self._uniform is not None:
                self._add_even_gradients(self._uniform, hidden, self._even(ignored))
        self._clear()
        return grad

    def _clear(self) -> None:
        """Give the scratch back: whatever comes before the next call may need the memory."""
        self._logits, self._products = self.nats.new_empty(0), self.cast.new_empty(0)

    def _add_rows(self, rows: "_Rows", grad: Tensor | None) -> None:
        logits, peak = self._multiply(rows.hidden)
        at_label = logits.gather(0, rows.labels[None])[0]
        sums = _over_words(torch.sum, logits.exp_())
        log_sum = sums.log()
        loss = rows.share * (log_sum - at_label)
        if self._uniform is not None:
            loss += self.smoothing * self._uniform.loss(rows.hidden, log_sum + peak)
        self.nats += loss.masked_fill_(rows.ignored, 0.0).sum() / self.divisor
        if grad is not None or self.grad_weight is not None or self.grad_bias is not None:
            self._add_gradients(rows, logits, sums, grad)

    def _multiply(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `(V, n)` in full precision, in the scratch, less the greatest of each row; and these, `(n,)`."""
        shape = len(self.weight), len(hidden)
        size = shape[0] * shape[1]
        if len(self._logits) < size:
            self._logits = self._logits.new_empty(size)
            self._products = self._products.new_empty(size) if self.narrow else self._logits
        logits, products = self._logits[:size].view(shape), self._products[:size].view(shape)
        torch.mm(self.cast, hidden.to(self.cast.dtype).T, out=products)
        if self.narrow:
            logits.copy_(products)
        if self.bias is not None:
            logits += self.bias[:, None]
        peak = _over_words(torch.amax, logits)
        return logits.sub_(peak), peak

    def _add_gradients(self, rows: "_Rows", softmax: Tensor, sums: Tensor, grad: Tensor | None) -> None:
        """Turn `softmax` `(V, n)`, with columns that add up to `sums`, into gradients of logits, and multiply."""
        if self.narrow:
            softmax *= NARROW_SUM / sums
            sums = torch.full_like(sums, NARROW_SUM)
        total, one_hot = rows.share, sums
        if self._uniform is not None:
            total = rows.share + self.smoothing * self._uniform.scale
            one_hot = sums * rows.share / total.clamp_min(torch.finfo(total.dtype).tiny)
        labels = rows.labels[None]
        softmax.scatter_(0, labels, softmax.gather(0, labels) - one_hot)
        # Filled at the end: where all rows are ignored the divisor is zero, and the gradient too.
        factor = (total / sums * (self.scale / self.divisor)).masked_fill_(rows.ignored, 0.0)
        if self.grad_bias is not None:
            self.grad_bias += softmax.mv(factor)
        left, outer = softmax, factor[:, None] if len(softmax) >= rows.hidden.shape[1] else None
        if outer is None:
            softmax *= factor
        if self.narrow:
            left = self._products[: softmax.numel()].view(softmax.shape).copy_(softmax)
        if grad is not None:
            product = left.T.mm(self.cast)
            product = product if outer is None else product * outer
            if self._uniform is not None:
                product = product - torch.outer(self._even(rows.ignored), self._uniform.weight)
            grad.copy_(product)
        if self.grad_weight is not None:
            right = rows.hidden if outer is None else rows.hidden * outer
            _add_product(self.grad_weight, softmax, left, right, fresh=self._fresh)
            self._fresh = False

    def _even(self, ignored: Tensor) -> Tensor:
        """What a row's gradients at all words have alike, `(n,)`; to be subtracted, times each word's weight."""
        return (self.smoothing * self.scale / self.divisor).expand(len(ignored)).masked_fill(ignored, 0.0)

    def _add_even_gradients(self, uniform: "_Uniform", hidden: Tensor, even: Tensor) -> None:
        """Subtract from the layer's gradients the even part of smoothed targets: a product of two vectors."""
        if self.grad_weight is not None:
            total = hidden.to(even.dtype).T.mv(even).to(self.grad_weight.dtype)
            self.grad_weight.addr_(uniform.words.to(total.dtype), total, alpha=-1)
        if self.grad_bias is not None:
            self.grad_bias -= uniform.words * even.sum()


class _Rows(NamedTuple):
    """Rows of a chunk: `hidden` `(n, H)`, `labels` `(n,)`, 0 where `ignored`, and what the loss at the label counts."""

    hidden: Tensor
    labels: Tensor
    ignored: Tensor
    share: Tensor


class _Uniform(NamedTuple):
    """The even part of smoothed targets: for each word its class weight divided by `V`, `(V,)`, and `scale`, their sum.

    Logits summed over words are linear in the hidden state, so `weight` `(H,)` and `bias` replace a pass over logits.
    """

    words: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor | float

    @classmethod
    @torch.no_grad()
    def of(cls, weight: Tensor, bias: Tensor | None, class_weights: Tensor | None) -> "_Uniform":
        words = weight.new_ones(len(weight), dtype=full_dtype(weight.dtype)) if class_weights is None else class_weights
        words = words / len(weight)
        with _no_autocast(weight.device.type):
            mean_bias = 0.0 if bias is None else bias.to(words.dtype).dot(words)
            return cls(words, words.sum(), weight.to(words.dtype).T.mv(words), mean_bias)

    def loss(self, hidden: Tensor, log_sum_exp: Tensor) -> Tensor:
        """Class weight times nats, averaged over all words, `(n,)`."""
        return self.scale * log_sum_exp - hidden.to(self.weight.dtype).mv(self.weight) - self.bias


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of log-sum-exp: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _no_autocast(device_type: str) -> AbstractContextManager[None]:
    # To switch off what is off costs as much as a small matrix product.
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def _add_product(out: Tensor, wide: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """Add `left @ right` to `out`, or write it where that is `fresh`; `wide` is `left` before it was cast."""
    if out.device.type == "cpu":
        # The same product, cast on the way: a third of the time, and all of the sum in full precision.
        with bfloat16_products(left.dtype == torch.bfloat16):
            out.addmm_(wide.to(out.dtype), right.to(out.dtype), beta=float(not fresh))
        return
    if fresh:
        out.zero_()
    right = right.to(left.dtype)
    if out.dtype == left.dtype:
        out.addmm_(left, right)
        return
    block = right.new_empty(min(BLOCK, len(out)), out.shape[1])
    for begin in range(0, len(out), BLOCK):
        part = out[begin : begin + BLOCK]
        part += torch.mm(left[begin : begin + BLOCK], right, out=block[: len(part)])


def _over_words(reduce: Callable[[Tensor, int], Tensor], values: Tensor) -> Tensor:
    """`reduce(values, 0)` of `(V, n)`, in two steps: torch reduces columns that do not fill a vector one by one."""
    words, rows = values.shape
    whole = words // FOLD * FOLD
    if rows >= 1024 or whole == 0 or values.device.type != "cpu":
        return reduce(values, 0)
    folded = reduce(values[:whole].view(whole // FOLD, FOLD * rows), 0).view(FOLD, rows)
    return reduce(torch.cat((folded, values[whole:])), 0)


def _check_layer(weight: Tensor, **others: Tensor | None) -> None:
    if weight.dim() != 2 or not weight.is_floating_point():
        raise refusal("weight", "be floats of shape (V, H)", _describe(weight), "is it the layer's matrix?")
    for name, value in others.items():
        shape = weight.shape if name == "grad_weight" else weight.shape[:1]
        if value is not None and (value.shape != shape or not value.is_floating_point()):
            raise refusal(name, f"be floats of shape {tuple(shape)}", _describe(value), "it must fit the weight")


def check_rows(hidden: Tensor, labels: Tensor, weight: Tensor) -> None:
    """Refuse rows that do not fit the layer, or `labels` that are no words of it."""
    words, size = weight.shape
    if hidden.dim() != 2 or hidden.shape[1] != size or not hidden.is_floating_point():
        raise refusal("hidden", f"be floats of shape (N, {size})", _describe(hidden), "it must fit the weight")
    if labels.shape != hidden.shape[:1] or labels.dtype != torch.int64:
        raise refusal("targets", f"be int64 of shape ({len(hidden)},)", _describe(labels), "give one for each row")
    if labels.device.type == "cpu" and len(labels):
        least, greatest = (int(bound) for bound in labels.aminmax())
        if least < 0 or greatest >= words:
            wrong = least if least < 0 else greatest
            raise refusal("targets", f"be in [0, {words}) or ignored", wrong, "is it of another vocabulary?")


def _describe(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
