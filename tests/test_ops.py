"""Recurrent layers written by hand, held to `torch.nn`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tbptt.ops.cell import Weights
from tbptt.ops.layer import recurrent_layer
from tbptt.peak import PeakMemory

KINDS = ("lstm", "gru", "tanh", "relu")
SAVES = ("gates", "hidden")
STREAMS, WIDTH, SIZE = 3, 5, 7
# Floats kept per step, stream and hidden unit.
GATES = {"lstm": 6, "gru": 5, "tanh": 1, "relu": 1}


def plain_layer(kind: str, dtype: torch.dtype = torch.float64, width: int = WIDTH, size: int = SIZE) -> nn.RNNBase:
    torch.manual_seed(2)
    if kind in ("lstm", "gru"):
        return {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, size).to(dtype)
    return nn.RNN(width, size, nonlinearity=kind).to(dtype)


def weights_of(plain: nn.RNNBase) -> Weights:
    return Weights(*plain.all_weights[0])


def tensors(
    kind: str,
    steps: int,
    streams: int = STREAMS,
    dtype: torch.dtype = torch.float64,
    width: int = WIDTH,
    size: int = SIZE,
) -> list[Tensor]:
    """Inputs, and the hidden and cell state before them; each wants its gradient."""
    torch.manual_seed(5)
    shapes = [(steps, streams, width), (streams, size), *([(streams, size)] if kind == "lstm" else [])]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def ours(kind: str, plain: nn.RNNBase, given: list[Tensor], save: str = "gates", **options: Any) -> list[Tensor]:
    inputs, hidden, *cell = given
    found = recurrent_layer(kind, inputs, hidden, cell[0] if cell else None, weights_of(plain), save=save, **options)
    return [one for one in found if one is not None]


def torchs(plain: nn.RNNBase, given: list[Tensor]) -> list[Tensor]:
    inputs, *state = (one if number == 0 else one[None] for number, one in enumerate(given))
    outputs, last = plain(inputs, tuple(state) if len(state) > 1 else state[0])
    return [outputs, *(one[0] for one in (last if isinstance(last, tuple) else (last,)))]


def gradients(results: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """Of a sum of all results with random weights, so that each value of each result counts."""
    draw = torch.Generator().manual_seed(9)
    outside = [torch.randn(one.shape, generator=draw, dtype=torch.float64).to(one.dtype) for one in results]
    return list(torch.autograd.grad(results, wanted, outside))


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Relative to the greatest value of each tensor."""
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.shape == right.shape
        assert error(left, right) <= tolerance


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1e-30)).item()


def spread(found: Tensor, expected: Tensor) -> float:
    """The error of all values together."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture
def _segments_of_four_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbptt.ops.layer.SEGMENT_ROWS", 4 * STREAMS + 1)


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 13])
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.usefixtures("_segments_of_four_steps")
def test_outputs_states_and_all_gradients_are_torchs(
    kind: str, save: str, steps: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Windows shorter than a segment, as long, longer by one, and of several segments, the last one cut short."""
    plain, exact = plain_layer(kind, dtype), plain_layer(kind)
    given, precise = tensors(kind, steps, dtype=dtype), tensors(kind, steps)
    exact.load_state_dict(plain.state_dict())
    for one, other in zip(precise, given, strict=True):
        one.data.copy_(other.data)
    found, expected = ours(kind, plain, given, save), torchs(exact, precise)
    assert all(one.dtype == dtype for one in found)
    assert_close(found, expected, tolerance)
    assert_close(
        gradients(found, [*given, *plain.parameters()]), gradients(expected, [*precise, *exact.parameters()]), tolerance
    )


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_stream(kind: str, save: str) -> None:
    plain = plain_layer(kind)
    given = tensors(kind, 4, streams=1)
    found, expected = ours(kind, plain, given, save), torchs(plain, given)
    assert_close(found, expected, 1e-12)
    wanted = [*given, *plain.parameters()]
    assert_close(gradients(found, wanted), gradients(expected, wanted), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_is_not_contiguous(kind: str) -> None:
    """As a slice of longer streams, or of a batch-major tensor, is; and its outputs may get a gradient like that."""
    plain = plain_layer(kind)
    given = tensors(kind, 4)
    whole = torch.randn(STREAMS, 9, WIDTH, dtype=torch.float64)
    inputs = whole.transpose(0, 1)[2:8]
    found, expected = ours(kind, plain, [inputs, *given[1:]]), torchs(plain, [inputs.contiguous(), *given[1:]])
    assert_close(found, expected, 1e-12)
    outside = torch.randn(STREAMS, 6, SIZE, dtype=torch.float64).transpose(0, 1)
    wanted = [*given[1:], *plain.parameters()]
    left = torch.autograd.grad(found[0], wanted, outside)
    assert_close(list(left), list(torch.autograd.grad(expected[0], wanted, outside)), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_that_comes_in_belongs_to_somebody_else(kind: str) -> None:
    results = ours(kind, plain_layer(kind), tensors(kind, 4))
    outside = [torch.randn_like(one) for one in results]
    before = [one.clone() for one in outside]
    torch.autograd.backward(results, outside)
    assert all(torch.equal(one, other) for one, other in zip(outside, before, strict=True))


class _Fresh(torch.autograd.Function):
    """Runs the layer anew for each backward pass, as `gradcheck` goes back over one graph many times."""

    @staticmethod
    def forward(ctx: Any, run: Any, *given: Tensor) -> Any:
        ctx.run = run
        ctx.save_for_backward(*given)
        with torch.no_grad():
            return tuple(run(*given))

    @staticmethod
    def backward(ctx: Any, *outside: Tensor) -> Any:
        with torch.enable_grad():
            given = [one.detach().requires_grad_() for one in ctx.saved_tensors]
            return None, *torch.autograd.grad(ctx.run(*given), given, outside, allow_unused=True)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_differences_of_values(kind: str, save: str, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbptt.ops.layer.SEGMENT_ROWS", 4)
    plain = plain_layer(kind, width=3, size=4)
    states = tensors(kind, 5, streams=2, width=3, size=4)
    fresh = tensors(kind, 1, streams=2, width=3, size=4)[1:]
    reset = torch.zeros(5, 2, dtype=torch.bool)
    reset[2, 1] = reset[3, 0] = True
    number = len(states)

    def run(*given: Tensor) -> list[Tensor]:
        inputs, hidden, *cell = given[:number]
        start = (given[number], given[number + 1] if cell else None) if cut else (None, None)
        weights = Weights(*given[-4:])
        found = recurrent_layer(
            kind,
            inputs,
            hidden,
            cell[0] if cell else None,
            weights,
            save=save,
            reset=reset if cut else None,
            fresh=start,
        )
        return [one for one in found if one is not None]

    given = [*states, *(fresh if cut else []), *(p.detach().requires_grad_() for p in plain.parameters())]
    assert torch.autograd.gradcheck(
        lambda *values: _Fresh.apply(run, *values),  # type: ignore[no-untyped-call]
        given,
        check_undefined_grad=False,
    )


def brute_force(plain: nn.RNNBase, given: list[Tensor], reset: Tensor, fresh: list[Tensor] | None) -> list[Tensor]:
    """Step by step and stream by stream through torch's layer."""
    inputs, *state = given
    ends = []
    for stream in range(inputs.shape[1]):
        now, outputs = [one[stream : stream + 1] for one in state], []
        for t in range(len(inputs)):
            if reset[t, stream]:
                now = [
                    torch.zeros_like(one) if fresh is None else fresh[n][stream : stream + 1]
                    for n, one in enumerate(now)
                ]
            output, *now = torchs(plain, [inputs[t : t + 1, stream : stream + 1], *now])
            outputs.append(output)
        ends.append([torch.cat(outputs), *now])
    return [torch.cat(parts, dim=1 if number == 0 else 0) for number, parts in enumerate(zip(*ends, strict=True))]


RESETS: dict[str, list[tuple[int, int]]] = {
    "none": [],
    "first step": [(0, 1)],
    "first step, all": [(0, 0), (0, 1), (0, 2)],
    "last step": [(10, 2)],
    "segment borders": [(4, 0), (8, 1), (3, 2), (7, 2)],
    "twice in a stream": [(2, 1), (9, 1)],
    "step after step": [(5, 0), (6, 0), (7, 0)],
    "many": [(0, 0), (1, 2), (4, 0), (4, 1), (4, 2), (5, 1), (9, 2), (10, 0)],
}


@pytest.mark.parametrize("start", ["zeros", "learned"])
@pytest.mark.parametrize("where", RESETS)
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_segments_of_four_steps")
def test_streams_start_anew_inside_a_window(kind: str, save: str, where: str, start: str) -> None:
    plain, given = plain_layer(kind), tensors(kind, 11)
    fresh = [one.detach().add(1.5).requires_grad_() for one in given[1:]] if start == "learned" else None
    reset = torch.zeros(11, STREAMS, dtype=torch.bool)
    for t, stream in RESETS[where]:
        reset[t, stream] = True
    options = {} if fresh is None else {"fresh": (fresh[0], fresh[1] if kind == "lstm" else None)}
    found, expected = ours(kind, plain, given, save, reset=reset, **options), brute_force(plain, given, reset, fresh)
    assert_close(found, expected, 1e-12)
    wanted = [*given, *plain.parameters()]
    left, right = gradients(found, [*wanted, *(fresh or [])]), used(expected, [*wanted, *(fresh or [])])
    assert_close(left, right, 1e-12)


def used(results: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """As `gradients`; zeros for what played no part."""
    draw = torch.Generator().manual_seed(9)
    outside = [torch.randn(one.shape, generator=draw, dtype=torch.float64) for one in results]
    found = torch.autograd.grad(results, wanted, outside, allow_unused=True)
    return [torch.zeros_like(one) if part is None else part for part, one in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_autocast_errs_no_more_than_torchs(kind: str, save: str) -> None:
    sizes: dict[str, Any] = {"width": 48, "size": 64}
    plain, exact = plain_layer(kind, torch.float32, **sizes), plain_layer(kind, torch.float64, **sizes)
    exact.load_state_dict(plain.state_dict())
    given = tensors(kind, 33, streams=16, dtype=torch.float32, **sizes)
    precise = [one.detach().double().requires_grad_() for one in given]
    expected = torchs(exact, precise)
    truth = [*expected, *gradients(expected, [*precise, *exact.parameters()])]
    with torch.autocast("cpu", torch.bfloat16):
        found, others = ours(kind, plain, given, save), torchs(plain, given)
    assert [one.dtype for one in found] == [torch.float32] * len(found)
    wanted = [*given, *plain.parameters()]
    left, right = [*found, *gradients(found, wanted)], [*others, *gradients(others, wanted)]
    assert all(one.dtype == torch.float32 for one in left)
    for mine, torchs_own, true in zip(left, right, truth, strict=True):
        assert spread(mine, true) <= max(1.5 * spread(torchs_own, true), 1e-5)
        # Where relu has its bend a small error makes a large one of the gradient.
        assert spread(mine, true) < (0.1 if kind == "relu" else 0.02)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_weights_give_bfloat16_outputs_and_full_states(kind: str, save: str) -> None:
    sizes: dict[str, Any] = {"width": 48, "size": 64}
    plain, exact = plain_layer(kind, torch.bfloat16, **sizes), plain_layer(kind, torch.float64, **sizes)
    exact.load_state_dict(plain.state_dict())
    given = tensors(kind, 33, streams=16, dtype=torch.bfloat16, **sizes)
    given[1:] = [one.detach().float().requires_grad_() for one in given[1:]]
    precise = [one.detach().double().requires_grad_() for one in given]
    found, expected = ours(kind, plain, given, save), torchs(exact, precise)
    assert [one.dtype for one in found] == [torch.bfloat16, *[torch.float32] * (len(found) - 1)]
    wanted = [*given, *plain.parameters()]
    made = gradients(found, wanted)
    assert [one.dtype for one in made] == [one.dtype for one in wanted]
    truth = [*expected, *gradients(expected, [*precise, *exact.parameters()])]
    for mine, true in zip([*found, *made], truth, strict=True):
        # Eight bits of a result that is rounded once, and of factors of sums.
        assert spread(mine, true) < (0.1 if kind == "relu" else 0.02)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["inputs", "hidden", "weight_ih", "weight_hh", "bias_ih", "bias_hh"])
def test_only_what_wants_a_gradient_gets_one(kind: str, save: str, wanted: str) -> None:
    plain = plain_layer(kind)
    given = tensors(kind, 4)
    named = {"inputs": given[0], "hidden": given[1], **{name[:-3]: p for name, p in plain.named_parameters()}}
    (expected,) = gradients(torchs(plain, given), [named[wanted]])
    for name, tensor in [*named.items(), *((f"cell{n}", one) for n, one in enumerate(given[2:]))]:
        tensor.requires_grad_(name == wanted)
    results = ours(kind, plain, given, save)
    draw = torch.Generator().manual_seed(9)
    outside = [torch.randn(one.shape, generator=draw, dtype=torch.float64) for one in results]
    torch.autograd.backward(results, outside)
    found = named[wanted].grad
    assert found is not None
    assert_close([found], [expected], 1e-12)
    assert all(tensor.grad is None for name, tensor in named.items() if name != wanted)


@pytest.mark.parametrize("used_result", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_through_outputs_or_through_the_state_alone(kind: str, used_result: int) -> None:
    plain, given = plain_layer(kind), tensors(kind, 4)
    wanted = [*given, *plain.parameters()]
    found, expected = ours(kind, plain, given)[used_result], torchs(plain, given)[used_result]
    assert_close(gradients([found], wanted), used([expected], wanted), 1e-12)


@contextmanager
def counted(*uncounted: Tensor) -> Iterator[dict[int, int]]:
    """Bytes saved for the backward pass by memory, `uncounted` tensors left out."""
    left_out = {one.untyped_storage().data_ptr() for one in uncounted}
    found: dict[int, int] = {}

    def pack(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in left_out and storage.nbytes():
            found[storage.data_ptr()] = storage.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_for_the_backward_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, streams, size = 64, 8, 96
    monkeypatch.setattr("tbptt.ops.layer.SEGMENT_ROWS", 16 * streams)
    plain = plain_layer(kind, torch.float32, width=48, size=size)
    given = tensors(kind, steps, streams, torch.float32, width=48, size=size)
    row, found = streams * size * 4, {}
    for name in (*SAVES, "torch"):
        with counted(*given, *plain.parameters()) as seen:
            results = torchs(plain, given) if name == "torch" else ours(kind, plain, given, name)
        found[name] = sum(seen.values())
        del results
    # A row more of each state that is kept of each step: the one before the first.
    assert found["gates"] == (GATES[kind] * steps + (2 if kind == "lstm" else 1)) * row
    assert found["hidden"] == (steps + 1 + (4 if kind == "lstm" else 0)) * row
    # torch's own RNN keeps its outputs alone, too; it has no row before them.
    assert found["torch"] > found["gates"] if kind in ("lstm", "gru") else found["torch"] == found["gates"] - row


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_where_nobody_wants_a_gradient(kind: str) -> None:
    steps, streams, size = 64, 8, 96
    plain = plain_layer(kind, torch.float32, width=48, size=size).requires_grad_(False)
    given = [one.detach() for one in tensors(kind, steps, streams, torch.float32, width=48, size=size)]
    for wanted in (False, True):
        given[0].requires_grad_(wanted)
        with counted(*given) as seen, PeakMemory() as memory, torch.set_grad_enabled(not wanted):
            results = ours(kind, plain, given)
            memory.mark()
        assert seen == {}
        assert all(one.grad_fn is None for one in results)
        # The outputs with the state before them, and the last states.
        assert memory.kept[0] == (steps + 1 + len(results) - 1) * streams * size * 4
        del results


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_pass_is_refused(kind: str, save: str) -> None:
    plain, given = plain_layer(kind), tensors(kind, 4)
    loss = ours(kind, plain, given, save)[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(
        RuntimeError, match=r"can be taken once.*model\.kernel=torch to use retain_graph or create_graph"
    ):
        loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_the_gradient_is_refused(kind: str) -> None:
    plain, given = plain_layer(kind), tensors(kind, 4)
    with pytest.raises(
        RuntimeError, match=r"can be taken once.*model\.kernel=torch to use retain_graph or create_graph"
    ):
        torch.autograd.grad(ours(kind, plain, given)[0].sum(), given, create_graph=True)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_changed_in_place_are_noticed(kind: str, save: str) -> None:
    """The backward pass needs them as they were."""
    plain, given = plain_layer(kind), tensors(kind, 4)
    with pytest.raises(RuntimeError, match="in-?place"):
        ours(kind, plain, given, save)[0].mul_(2).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_does_not_hold_on_to_its_window(kind: str) -> None:
    outputs, *states = ours(kind, plain_layer(kind), tensors(kind, 9))
    for number, state in enumerate(states):
        assert state.untyped_storage().nbytes() == STREAMS * SIZE * 8
        others = [outputs, *states[:number]]
        assert all(state.untyped_storage().data_ptr() != one.untyped_storage().data_ptr() for one in others)


def graph_size(tensor: Tensor) -> int:
    """Autograd's nodes that can be reached from a tensor."""
    seen, open_nodes = set(), [tensor.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [other for other, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize("kind", ["lstm", "tanh"])
def test_window_two_thousand_costs_what_window_twenty_does(kind: str) -> None:
    plain = plain_layer(kind, torch.float32)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    torch.manual_seed(3)
    state, sizes, memory = [one.detach() for one in tensors(kind, 2, dtype=torch.float32)[1:]], [], []
    for number in range(1, 2001):
        with PeakMemory() if number in (20, 2000) else nullcontext() as peak:
            outputs, *after = ours(kind, plain, [torch.randn(2, STREAMS, WIDTH), *state])
            sizes.append(graph_size(outputs))
            outputs.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            state = [one.detach() for one in after]
            del outputs, after
        if peak is not None:
            memory.append((peak.peaks, peak.kept))
    assert len(set(sizes)) == 1
    assert memory[0] == memory[1]
