"""The gradient of a window, in chunks, against plain torch and against itself."""

import itertools
import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.bptt import Plan, window_loss
from tbptt.nn import LanguageModel
from tbptt.peak import PeakMemory
from tbptt.state import State

CELLS = [("lstm", None), ("gru", None), ("rnn", "tanh"), ("rnn", "relu")]
STEPS, STREAMS, CONTEXT = 23, 3, 4
PLANS = [(), (1,), (2,), (5,), (7, 3), (12, 6, 2), (27,), (100,)]


def model_of(cell: str, nonlinearity: str | None, **changes: Any) -> LanguageModel:
    torch.manual_seed(2)
    values: dict[str, Any] = {
        "vocab_size": 17,
        "embedding_size": 6,
        "hidden_size": 8,
        "num_layers": 2,
        "dropout": 0.0,
        "tie_weights": False,
        "learn_initial_state": False,
    }
    return LanguageModel(**{**values, "cell": cell, "nonlinearity": nonlinearity, **changes})


def text(steps: int, types: int, streams: int = STREAMS) -> Tensor:
    return torch.randint(types, (steps, streams), generator=torch.Generator().manual_seed(4))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def assert_close(left: list[Tensor], right: list[Tensor], tolerance: float) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert (one - other).abs().max() <= tolerance * max(1e-6, other.abs().max())


def plain_loss(model: LanguageModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """The same network by torch.nn and F.cross_entropy, on the same parameters."""
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}[model.core.kind]
    rnn = kind(6, 8, 2, **({"nonlinearity": model.core.kind} if kind is nn.RNN else {})).double()
    weights = {name.removeprefix("core.rnn."): value for name, value in model.named_parameters() if "core.rnn" in name}
    inputs = F.embedding(tokens, model.embedding.weight)
    outputs = torch.func.functional_call(rnn, weights, (inputs,))[0]
    return F.cross_entropy(model.head(outputs[-len(targets) :]).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("types", [17, 5])
@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_any_chunks_give_the_gradient_of_plain_torch(
    cell: str, nonlinearity: str | None, kernel: str, types: int
) -> None:
    model = model_of(cell, nonlinearity, kernel=kernel, vocab_size=types).double()
    tokens, targets = text(CONTEXT + STEPS, types), text(STEPS, types)
    expected_loss = plain_loss(model, tokens, targets)
    expected = gradients(model, expected_loss)
    for save, sizes, rows in itertools.product(("gates", "hidden"), PLANS, (None, 7)):
        model.core.save = save
        loss, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan(sizes, rows))
        assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-12)
        assert_close(gradients(model, loss), expected, 1e-12)


@pytest.mark.parametrize("advance", [0, 9, 12, 27])
@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_chunks_change_nothing_with_dropout_ties_context_and_a_learned_state(
    cell: str, nonlinearity: str | None, kernel: str, advance: int
) -> None:
    changes = {"dropout": 0.3, "tie_weights": True, "learn_initial_state": True, "embedding_size": 8}
    model = model_of(cell, nonlinearity, kernel=kernel, **changes).double()
    tokens, targets = text(CONTEXT + STEPS, 17), text(STEPS, 17)
    torch.manual_seed(7)
    loss, after = model.loss(tokens, targets, model.initial_state(STREAMS), advance=advance)
    expected = gradients(model, loss)
    assert len(expected) == len(list(model.parameters()))
    for sizes, rows in itertools.product(PLANS, (None, 7)):
        torch.manual_seed(7)
        start = model.initial_state(STREAMS)
        found, state = window_loss(model, tokens, targets, start, plan=Plan(sizes, rows), advance=advance)
        assert not state.hidden.requires_grad
        assert found.item() == pytest.approx(loss.item(), rel=1e-12)
        assert_close(gradients(model, found), expected, 1e-12)
        assert_close([state.hidden], [after.hidden], 1e-12)


@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_streams_that_start_anew_inside_a_window(cell: str, nonlinearity: str | None, kernel: str) -> None:
    """Against windows that end where a stream starts anew, one stream at a time."""
    model = model_of(cell, nonlinearity, kernel=kernel, learn_initial_state=True).double()
    nn.init.normal_(model.core.initial_hidden)
    tokens, targets = text(STEPS, 17), text(STEPS, 17)
    marks = {0: [6, 11], 1: [0, 22], 2: []}
    reset = torch.zeros(STEPS, STREAMS, dtype=torch.bool)
    torch.manual_seed(3)
    carry = model.initial_state(STREAMS).detach().map(torch.randn_like)
    total = torch.zeros((), dtype=torch.float64)
    for stream, steps in marks.items():
        reset[steps, stream] = True
        state = carry.map(lambda tensor, stream=stream: tensor[:, stream : stream + 1].contiguous())
        borders = sorted({0, *steps, STEPS})
        for begin, end in itertools.pairwise(borders):
            if begin in steps:
                state = model.initial_state(1)
            column = slice(stream, stream + 1)
            loss, state = model.loss(tokens[begin:end, column], targets[begin:end, column], state)
            total = total + loss * (end - begin)
    total = total / targets.numel()
    expected = gradients(model, total)
    for sizes, rows in itertools.product(((), (4,), (11,)), (None, 7)):
        loss, _ = window_loss(model, tokens, targets, carry, plan=Plan(sizes, rows), reset=reset)
        assert loss.item() == pytest.approx(total.item(), rel=1e-12)
        assert_close(gradients(model, loss), expected, 1e-11)


@pytest.mark.parametrize("rows", [None, 7])
def test_scaled_and_added_up_losses_as_in_accumulation(rows: int | None) -> None:
    """Two windows an update, three times: what is made for a window must not be what another still uses."""
    model = model_of("lstm", None).double()
    for number in range(3):
        windows = [(text(2 * STEPS, 17)[number + first :][:STEPS], factor) for first, factor in ((0, 0.5), (9, 3.0))]
        expected = sum_of(gradients(model, model.loss(one, one.roll(1))[0] * factor) for one, factor in windows)
        model.zero_grad()
        for (one, factor), sizes in zip(windows, ((), (4,)), strict=True):
            start = model.initial_state(STREAMS)
            loss, _ = window_loss(model, one, one.roll(1), start, plan=Plan(sizes, rows))
            (loss * factor).backward()
        assert_close([parameter.grad for parameter in model.parameters()], expected, 1e-12)


def sum_of(windows: Iterable[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts).sum(0) for parts in zip(*windows, strict=True)]


@pytest.mark.parametrize("rows", [None, 7])
def test_a_gradient_that_someone_keeps_is_not_written_over(rows: int | None) -> None:
    model = model_of("gru", None)
    tokens = text(STEPS, 17)
    targets = tokens.roll(1, 0)
    window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan((), rows))[0].backward()
    kept = model.head.projection.weight.grad
    assert kept is not None
    before = kept.clone()
    model.zero_grad()
    window_loss(model, targets, tokens, model.initial_state(STREAMS), plan=Plan((), rows))[0].backward()
    assert torch.equal(kept, before)
    assert not torch.equal(model.head.projection.weight.grad, before)


@pytest.mark.parametrize("rows", [None, 7])
@pytest.mark.parametrize("frozen", ["embedding", "core", "head"])
def test_frozen_parts_get_no_gradient_and_the_others_the_same(frozen: str, rows: int | None) -> None:
    model = model_of("lstm", None).double()
    tokens, targets = text(STEPS, 17), text(STEPS, 17)
    whole, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan((5,)))
    whole.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    getattr(model, frozen).requires_grad_(False)
    loss, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan((5,), rows))
    loss.backward()
    for name, parameter in model.named_parameters():
        if name.startswith(frozen):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("more", [{"retain_graph": True}, {"create_graph": True}])
def test_a_second_gradient_is_refused(more: dict[str, bool]) -> None:
    model = model_of("lstm", None)
    loss, _ = window_loss(model, text(STEPS, 17), text(STEPS, 17), model.initial_state(STREAMS))
    if "retain_graph" in more:
        loss.backward(**more)
    with pytest.raises(RuntimeError, match="can be taken once"):
        loss.backward(**more)


@pytest.mark.parametrize("kernel", ["ours", "torch"])
def test_bfloat16_in_chunks_is_close_to_float32(kernel: str) -> None:
    model = model_of("lstm", None, kernel=kernel, hidden_size=256, vocab_size=300)
    tokens, targets = text(STEPS, 300), text(STEPS, 300)
    exact, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS))
    expected = gradients(model, exact)
    for sizes in ((), (6,)):
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan(sizes))
        assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
        assert_close(gradients(model, loss), expected, 0.05)


def test_a_window_of_ten_thousand_steps_is_full_autograd() -> None:
    model = model_of("gru", None)
    tokens, targets = text(10_000, 17, 1), text(10_000, 17, 1)
    plain, _ = model.loss(tokens, targets)
    expected = gradients(model, plain)
    loss, _ = window_loss(model, tokens, targets, model.initial_state(1), plan=Plan((400,)))
    assert_close(gradients(model, loss), expected, 1e-5)


def test_long_windows_take_no_more_than_many_streams() -> None:
    """The same tokens an update: 64 steps of 64 streams, or 4,096 steps of one in chunks."""
    peaks = []
    for steps, streams, sizes in ((64, 64, (16,)), (4096, 1, (1024,))):
        model = model_of("lstm", None, hidden_size=64, embedding_size=64)
        tokens, targets = text(steps, 17, streams), text(steps, 17, streams)
        with PeakMemory() as memory:
            window_loss(model, tokens, targets, model.initial_state(streams), plan=Plan(sizes))[0].backward()
        peaks.append(memory.bytes)
    assert peaks[1] <= 1.1 * peaks[0]


def test_the_two_thousandth_window_takes_what_the_twentieth_took() -> None:
    model = model_of("lstm", None)
    state: State = model.initial_state(STREAMS)
    tokens = text(5, 17)
    seen = {}
    for number in range(2001):
        watched = number in (20, 2000)
        with PeakMemory() if watched else torch.enable_grad() as memory:
            loss, state = window_loss(model, tokens[:-1], tokens[1:], state)
            loss.backward()
        model.zero_grad()
        if watched:
            seen[number] = memory.bytes
    assert seen[2000] == seen[20]


@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_every_size_of_chunks_and_every_place_of_the_carry(cell: str, nonlinearity: str | None, kernel: str) -> None:
    """Sizes from one step to more than the window, alone and in groups; both states are those of the whole window."""
    model = model_of(cell, nonlinearity, kernel=kernel, num_layers=1, dropout=0.2).double()
    tokens, targets = text(2 + 9, 17), text(9, 17)
    for number in range(1, 13):
        sizes = [(number,), (2 * number, number), (6, number)] if number < 6 else [(number,)]
        torch.manual_seed(number)
        advance = number - 1
        loss, after = model.loss(tokens, targets, model.initial_state(STREAMS), advance=advance)
        expected = gradients(model, loss)
        for one, save in itertools.product(sizes, ("gates", "hidden")):
            torch.manual_seed(number)
            model.core.save = save
            start = model.initial_state(STREAMS)
            found, state = window_loss(model, tokens, targets, start, plan=Plan(one, rows=7), advance=advance)
            assert found.item() == pytest.approx(loss.item(), rel=1e-12)
            assert_close(gradients(model, found), expected, 1e-12)
            assert_close([state.hidden], [after.hidden], 1e-12)
            if state.cell is not None and after.cell is not None:
                assert_close([state.cell], [after.cell], 1e-12)


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
def test_float32_is_close_to_float64(cell: str, nonlinearity: str | None) -> None:
    model = model_of(cell, nonlinearity)
    tokens, targets = text(CONTEXT + STEPS, 17), text(STEPS, 17)
    exact = model_of(cell, nonlinearity).double()
    exact.load_state_dict(model.state_dict())
    expected = gradients(exact, plain_loss(exact, tokens, targets))
    for sizes, rows in itertools.product(PLANS, (None, 7)):
        loss, _ = window_loss(model, tokens, targets, model.initial_state(STREAMS), plan=Plan(sizes, rows))
        assert loss.dtype == torch.float32
        assert_close([one.double() for one in gradients(model, loss)], expected, 1e-5)


def test_gradients_can_be_clipped_and_stepped_on_like_others() -> None:
    tokens, targets = text(STEPS, 17), text(STEPS, 17)
    ends = []
    for sizes in (None, (), (5,)):
        model = model_of("gru", None).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
        norms = []
        for _ in range(3):
            start = model.initial_state(STREAMS)
            if sizes is None:
                loss, _ = model.loss(tokens, targets, start)
            else:
                loss, _ = window_loss(model, tokens, targets, start, plan=Plan(sizes))
            optimizer.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
            optimizer.step()
        ends.append([*norms, *(parameter.detach() for parameter in model.parameters())])
    assert all(norm > 0.01 for norm in ends[0][:3])
    for other in ends[1:]:
        assert_close(other, ends[0], 1e-11)


class _Step(nn.Module):
    """What DistributedDataParallel wraps: its forward call is the window's loss."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor, sizes: tuple[int, ...]) -> Tensor:
        start = self.model.initial_state(tokens.shape[1])
        return window_loss(self.model, tokens, targets, start, plan=Plan(sizes, rows=7))[0]


def _two_windows(step: nn.Module, first: AbstractContextManager[Any], streams: slice) -> list[Tensor]:
    """Gradients of two windows that add up, the first of them as `first` has it."""
    tokens = text(2 * STEPS + 1, 17, 4)[:, streams]
    with first:
        (step(tokens[:STEPS], tokens[1 : STEPS + 1], (5,)) / 2).backward()
    (step(tokens[STEPS:-1], tokens[STEPS + 1 :], ()) / 2).backward()
    return [parameter.grad for parameter in step.parameters() if parameter.grad is not None]


def _in_process(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    step = nn.parallel.DistributedDataParallel(_Step(model_of("lstm", None).double()))
    found = _two_windows(step, step.no_sync(), slice(2 * rank, 2 * rank + 2))
    torch.save(found, f"{folder}/part-{rank}")
    Path(f"{folder}/part-{rank}").rename(f"{folder}/{rank}.pt")
    while not Path(f"{folder}/{1 - rank}.pt").exists():
        time.sleep(0.01)
    os._exit(0)  # At once: when a group is taken down in order, gloo's threads abort the process now and then.


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    """Two with two streams each make the gradients of one with four; the first window waits for the second."""
    torch.multiprocessing.spawn(_in_process, (str(tmp_path),), nprocs=2)
    expected = _two_windows(_Step(model_of("lstm", None).double()), nullcontext(), slice(None))
    for rank in range(2):
        assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected, 1e-12)
