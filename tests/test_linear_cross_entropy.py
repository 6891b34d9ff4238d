"""The chunked cross entropy against torch's own, which makes all logits; every size is different from every other."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tbptt.errors import UserError
from tbptt.ops.linear_cross_entropy import (
    LinearCrossEntropy,
    chunk_rows,
    divisor,
    linear_cross_entropy,
    scratch_bytes,
)

N, V, H = 14, 37, 5
OPTIONS = [
    {"ignore_index": index, "label_smoothing": smoothing, "reduction": reduction, "weighted": weighted}
    for index, smoothing, reduction, weighted in product((-100, 3), (0.0, 0.2), ("mean", "sum"), (False, True))
]


def layer(*, words: int = V, rows: int = N, size: int = H, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden state, weight and bias that want gradients, and targets, some of them ignored."""
    draw = torch.Generator().manual_seed(11)
    shapes = (rows, size), (words, size), (words,)
    values = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(words, (rows,), generator=draw)
    targets[1::4] = -100
    return [*values, targets]


def class_weights(options: dict[str, Any], words: int = V) -> dict[str, Any]:
    """`options` with a tensor for "weighted"; one class weighs nothing."""
    weights = torch.linspace(0, 2, words, dtype=torch.float64) if options["weighted"] else None
    return {name: value for name, value in options.items() if name != "weighted"} | {"class_weights": weights}


def dense(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, **options: Any) -> Tensor:
    options["weight"] = options.pop("class_weights", None)
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), **options)


def results(loss: Callable[..., Tensor], inputs: list[Tensor | None], targets: Tensor, **options: Any) -> list[Tensor]:
    """The loss, times 3 so that its own gradient is not 1, and the gradients of all inputs."""
    value = loss(*inputs, targets, **options)
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    return [value.detach(), *torch.autograd.grad(3.0 * value, wanted)]


def error(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


@pytest.mark.parametrize("rows", [1, 3, N, N + 4])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("size", [H, V + 2])
def test_loss_and_gradients_are_those_of_all_logits(rows: int, biased: bool, size: int) -> None:
    hidden, weight, bias, targets = layer(size=size)
    targets[0] = 3  # ignored under one of the options
    for options in OPTIONS:
        if options["ignore_index"] == 3:
            targets = targets.where(targets >= 0, 7)
        for leading in ((N,), (2, N // 2)):
            inputs = [hidden.detach().view(*leading, size).requires_grad_(), weight, bias if biased else None]
            labels = targets.view(leading)
            expected = results(dense, inputs, labels, **class_weights(options))
            found = results(linear_cross_entropy, inputs, labels, rows=rows, **class_weights(options))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_ignored_rows_have_no_gradient_at_all() -> None:
    hidden, weight, bias, targets = layer()
    for options in OPTIONS[:8]:
        _, grad, *_ = results(linear_cross_entropy, [hidden, weight, bias], targets, rows=3, **class_weights(options))
        assert (grad[targets == -100] == 0).all()
        assert (grad[targets != -100] != 0).any()


@pytest.mark.parametrize("shape", [(700, 3000, 20), (300, 1200, 17), (50, 33, 40), (1100, 90, 12)])
def test_float32_is_as_exact_as_float32_can_be(shape: tuple[int, int, int]) -> None:
    rows, words, size = shape
    *inputs, targets = layer(words=words, rows=rows, size=size)
    true = results(dense, inputs, targets)
    single = [one.detach().float().requires_grad_() for one in inputs]
    for chunk in (None, 64, 130):
        for one, other in zip(results(linear_cross_entropy, single, targets, rows=chunk), true, strict=True):
            assert one.dtype == torch.float32
            assert error(one, other) < 1e-5


def test_a_certain_model_loses_no_digits() -> None:
    # Large logits and a probability of almost 1: what is left of softmax minus one-hot must not be rounding.
    *inputs, targets = layer(words=400, rows=9, size=32)
    inputs[1] = (inputs[1].detach() * 0.1).requires_grad_()
    inputs[0] = (inputs[1].detach()[targets.clamp_min(0)] * 60).requires_grad_()
    true = results(dense, inputs, targets)
    single = [one.detach().float().requires_grad_() for one in inputs]
    ours, torchs = results(linear_cross_entropy, single, targets, rows=4), results(dense, single, targets)
    for one, other, exact in zip(ours, torchs, true, strict=True):
        assert error(one, exact) < 3 * error(other, exact) + 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("whole", [True, False], ids=["bfloat16 weights", "autocast"])
def test_bfloat16_is_no_worse_than_dense_bfloat16(whole: bool, smoothing: float) -> None:
    *inputs, targets = layer(words=5000, rows=300, size=48)
    inputs[1] = (inputs[1].detach() * 0.3).requires_grad_()
    low = [one.detach().to(torch.bfloat16 if whole else torch.float32).requires_grad_() for one in inputs]
    # The same numbers, so that what is measured is the arithmetic.
    true = results(dense, [one.detach().double().requires_grad_() for one in low], targets, label_smoothing=smoothing)
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        ours = results(linear_cross_entropy, low, targets, label_smoothing=smoothing, rows=130)
        torchs = results(dense, low, targets, label_smoothing=smoothing)
    assert ours[0].dtype == torch.float32
    assert error(ours[0], true[0]) < 1e-3
    for one, other, exact in zip(ours[1:], torchs[1:], true[1:], strict=True):
        assert one.dtype == other.dtype
        # One more rounding of the hidden state's gradient where it is bfloat16 itself; one less of everything else.
        assert error(one, exact) < 1.05 * error(other, exact)


def test_float16_keeps_small_probabilities() -> None:
    *inputs, targets = layer(words=70_000, rows=6, size=8)
    inputs[1] = (inputs[1].detach() * 0.01).requires_grad_()
    true = results(dense, inputs, targets)
    single = [one.detach().float().requires_grad_() for one in inputs]
    with torch.autocast("cpu", torch.float16):
        ours = results(linear_cross_entropy, single, targets, rows=4)
    assert [error(*pair) < 0.01 for pair in zip(ours, true, strict=True)] == [True] * 4


def test_gradients_are_the_slopes_of_the_loss() -> None:
    hidden, weight, bias, targets = layer()
    options = class_weights(OPTIONS[5]) | {"rows": 4}
    _, *gradients = results(linear_cross_entropy, [hidden, weight, bias], targets, **options)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for place, gradient in enumerate(gradients):
            step = torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
            ends = []
            for sign in (1, -1):
                moved = [hidden, weight, bias]
                moved[place] = moved[place] + sign * 1e-5 * step
                ends.append(3.0 * linear_cross_entropy(*moved, targets, **options))
            torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, (gradient * step).sum(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_calls_add_up_and_into_what_is_there(smoothing: float) -> None:
    hidden, weight, bias, targets = layer()
    value, *gradients = results(dense, [hidden, weight, bias], targets, label_smoothing=smoothing)
    before = torch.full_like(weight, 2.0), torch.full_like(bias, -1.0)
    buffers = [one.clone() for one in before]
    window = LinearCrossEntropy(
        weight,
        bias,
        divisor=divisor(targets),
        scale=3.0,
        label_smoothing=smoothing,
        grad_weight=buffers[0],
        grad_bias=buffers[1],
        rows=2,
    )
    parts = [window.add(hidden[part], targets[part]) for part in (slice(0, 5), slice(5, 6), slice(6, N))]
    torch.testing.assert_close(window.nats, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat(parts), gradients[0], rtol=0, atol=1e-12)
    for buffer, start, gradient in zip(buffers, before, gradients[1:], strict=True):
        torch.testing.assert_close(buffer, start + gradient, rtol=0, atol=1e-12)


def test_what_is_not_wanted_is_not_made() -> None:
    hidden, weight, bias, targets = layer()
    window = LinearCrossEntropy(weight, bias, divisor=1.0)
    assert window.add(hidden, targets, need_hidden=False) is None
    torch.testing.assert_close(window.nats, dense(hidden, weight, bias, targets, reduction="sum").detach())
    assert not window.nats.requires_grad
    for wanted in product((True, False), repeat=3):
        inputs = [one.detach().requires_grad_(want) for one, want in zip((hidden, weight, bias), wanted, strict=True)]
        loss = linear_cross_entropy(*inputs, targets)
        assert loss.requires_grad == any(wanted)
        if any(wanted):
            loss.backward()
            dense(*(one.requires_grad_() for one in (hidden, weight, bias)), targets).backward()
        for one, other, want in zip(inputs, (hidden, weight, bias), wanted, strict=True):
            assert (one.grad is not None) == want
            if want:
                torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
            other.grad = None
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, bias, targets).requires_grad


def test_a_tied_embedding_gets_both_gradients() -> None:
    _, weight, bias, targets = layer()
    words = targets.clamp_min(0).roll(1)
    grads = [
        torch.autograd.grad(loss(torch.tanh(F.embedding(words, weight)), weight, bias, targets), weight)[0]
        for loss in (linear_cross_entropy, dense)
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


def test_a_second_backward_is_refused() -> None:
    *inputs, targets = layer()
    loss = linear_cross_entropy(*inputs, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="gives its gradients once.*compute the loss again"):
        loss.backward()


def test_a_double_backward_is_refused() -> None:
    *inputs, targets = layer()
    with pytest.raises(RuntimeError, match="cannot be differentiated again.*create_graph"):
        torch.autograd.grad(linear_cross_entropy(*inputs, targets), inputs, create_graph=True)


class Sizes(TorchDispatchMode):
    """Elements of every tensor that an operator makes; those of weights are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes() // one.element_size())
        return out


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_all_rows_never_exist(autocast: bool, smoothing: float) -> None:
    *inputs, targets = layer(words=211, rows=60, size=6, dtype=torch.float32)
    with Sizes() as sizes, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        linear_cross_entropy(*inputs, targets, rows=13, label_smoothing=smoothing).backward()
    # The scratch, and no column more.
    assert sizes.largest == 211 * 13


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("words", [4, V])
def test_where_every_target_is_ignored(smoothing: float, rows: int | None, words: int) -> None:
    hidden, weight, bias, _ = layer(words=words)
    targets = torch.full((N,), -100)
    for reduction in ("mean", "sum"):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        expected = results(dense, [hidden, weight, bias], targets, **options)
        found = results(linear_cross_entropy, [hidden, weight, bias], targets, rows=rows, **options)
        assert bool(found[0].isnan()) == (reduction == "mean")
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_no_rows_at_all() -> None:
    _, weight, bias, _ = layer()
    none = torch.zeros(0, H, dtype=torch.float64), weight, bias, torch.zeros(0, dtype=torch.int64)
    assert linear_cross_entropy(*none).isnan()
    assert linear_cross_entropy(*none, reduction="sum") == 0


def test_a_word_that_cannot_occur() -> None:
    hidden, weight, bias, targets = layer()
    with torch.no_grad():
        bias[0] = -torch.inf  # labels of ignored rows are looked up as word 0
    targets[targets == 0] = 1
    expected, found = (results(loss, [hidden, weight, bias], targets) for loss in (dense, linear_cross_entropy))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.full((N,), V)}, rf"targets must be in \[0, {V}\) or ignored, but it is {V}"),
        ({"targets": torch.full((N,), -1)}, "but it is -1"),
        ({"targets": torch.zeros(N + 1, dtype=torch.int64)}, r"targets must have shape \(14,\), but it is \(15,\)"),
        ({"targets": torch.zeros(N)}, r"targets must be int64 of shape \(14,\), but it is 'float32 \(14,\)'"),
        ({"hidden": torch.zeros(N, H)}, "hidden must have the weight's dtype, torch.float64, but it is torch.float32"),
        ({"hidden": torch.zeros(N, H + 1).double()}, r"hidden must be floats of shape \(N, 5\)"),
        ({"weight": torch.zeros(V).double()}, r"weight must be floats of shape \(V, H\), but it is 'float64 \(37,\)'"),
        ({"bias": torch.zeros(V - 1).double()}, r"bias must be floats of shape \(37,\), but it is 'float64 \(36,\)'"),
        ({"class_weights": torch.ones(V, 1)}, r"class_weights must be floats of shape \(37,\)"),
        ({"label_smoothing": 1.5}, "label_smoothing must be a number"),
        ({"rows": 0}, "rows must be an integer of at least 1"),
        ({"reduction": "none"}, "reduction must be one of mean, sum"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = dict(zip(("hidden", "weight", "bias", "targets"), layer(), strict=True)) | {"rows": 3} | change
    with pytest.raises(UserError, match=message):
        linear_cross_entropy(**arguments)


def test_targets_are_checked_for_few_words_too() -> None:
    hidden, weight, bias, targets = layer(words=4)
    with pytest.raises(UserError, match=r"targets must be in \[0, 4\) or ignored, but it is 4"):
        linear_cross_entropy(hidden, weight, bias, torch.full_like(targets, 4))


def test_chunks_fit_into_their_bytes() -> None:
    for words, dtype in product((65, 10_000, 33_278, 200_000, 10**8), (torch.float32, torch.float64, torch.bfloat16)):
        rows = chunk_rows(words, dtype)
        bytes_of_a_row = words * (8 if dtype == torch.float64 else 4)
        assert rows == 1 or rows * bytes_of_a_row <= 28 * 2**20
        assert rows % 64 == 0 or rows < 64
    assert scratch_bytes(7, 100, 9, torch.float32) == 7 * 100 * 4
    assert scratch_bytes(7, 100, 9, torch.bfloat16) == 7 * 100 * (4 + 2) + 100 * 9 * 2
    assert scratch_bytes(7, 100, 9, torch.bfloat16, "cuda") == 7 * 100 * (4 + 2) + 100 * 9 * 2 * 2
