"""Horizons beyond the window, random and growing windows: against plain loops, and in a run."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_equal_weights, watched, weights
from plain_loop import assert_close_weights, plain_loop
from torch import Tensor

from tbptt.errors import UserError
from tbptt.run import Run, train
from tbptt.streams import WindowLoader
from tbptt.truncation import WindowLengths

Make = Callable[..., Run]
RANDOM, GROW = "bptt.random_window=true", ("bptt.grow_from=2", "bptt.grow_windows=30")


def whole_lengths(loader: WindowLoader, passes: int) -> list[list[int]]:
    return [[len(window.y) for window in loader] for _ in range(passes)]


# Horizon.


@pytest.mark.parametrize("reset", ["epoch", "never"])
@pytest.mark.parametrize("context", [3, 12])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_a_horizon_beyond_the_window_equals_a_plain_loop(exact: Make, cell: str, context: int, reset: str) -> None:
    """Shorter and longer than a window, no multiple of it, over a pass border, the last window shorter."""
    run = exact(f"model={cell}", f"bptt.horizon={5 + context}", f"bptt.reset={reset}")
    start = weights(run)
    watched(run)
    assert run.trainer.global_step == 28
    tokens, cut = run.data.tokens["train"], [[5] * 13 + [1]] * 2
    assert_close_weights(run, plain_loop(start, cell, tokens, cut, context=context, reset=reset), start)
    without = plain_loop(start, cell, tokens, cut, reset=reset)["core.rnn.weight_hh_l0"]
    assert (without - run.task.model.state_dict()["core.rnn.weight_hh_l0"]).abs().max() > 1e-6


def test_a_horizon_of_one_window_is_none(make: Make, words: Path) -> None:
    ended = []
    for horizon in ("null", "9"):
        run = make(f"data.path={words}", "model.dropout=0.5", "trainer.max_steps=30", f"bptt.horizon={horizon}")
        watched(run)
        assert run.task._carry is not None
        ended.append({**weights(run), **run.task._carry.to_dict()})
    assert_equal_weights(*ended)


@pytest.mark.parametrize("horizon", [7, 9, 19])
def test_context_comes_before_each_window(horizon: int) -> None:
    loader = WindowLoader(torch.arange(90), 2, 7, horizon=horizon)
    position = 0
    for index, window in enumerate(loader):
        context = min(horizon - 7, index * 7)
        assert len(window.x) - len(window.y) == context
        assert torch.equal(window.x[context:] + 1, window.y)
        assert window.x[0, 0] == position == index * 7 - context
        assert (window.reset is not None) == (position == 0)
        assert window.advance is not None
        position += window.advance
    assert position == 44, "the state after the last window is that of the end"
    assert loader.targets == 88


def test_the_state_goes_on_from_the_end_of_a_pass_that_a_limit_cuts_short() -> None:
    windows = list(WindowLoader(torch.arange(90), 2, 7, horizon=12, limit=3))
    assert [(len(w.x), w.advance) for w in windows] == [(7, 2), (12, 7), (12, 12)]


def test_dropout_and_accumulation_with_a_horizon(make: Make, words: Path) -> None:
    options = ("bptt.horizon=30", "model.dropout=0.5", "trainer.accumulate_grad_batches=2", "trainer.max_steps=10")
    run = make(f"data.path={words}", *options)
    result = train(run)
    assert math.isfinite(result["train/loss"])
    assert run.task.train_loss.tokens == 20 * 9 * 4, "context is no target"


@pytest.mark.parametrize("reset", ["epoch", "never"])
def test_a_learned_initial_state_is_reached_from_every_window_near_it(make: Make, words: Path, reset: str) -> None:
    task = make(f"data.path={words}", "model.learn_initial_state=true", f"bptt.reset={reset}", "bptt.horizon=20").task
    initial = task.model.core.initial_hidden
    assert initial is not None
    loader = WindowLoader(torch.arange(400) % 7, 4, 9, horizon=20, reset=reset)
    reached = []
    for window in itertools.islice(loader, 4):
        task.zero_grad()
        task.training_step(window, 0)["loss"].backward()
        reached.append(initial.grad is not None and bool(initial.grad.any()))
        carry = task._carry
        assert carry is not None
        before = carry.hidden.clone()
        with torch.no_grad():
            initial += 1.0
        assert torch.equal(carry.hidden, before), "what is kept is no view of a weight"
    assert reached == ([True, True, False, False] if reset == "epoch" else [True, False, False, False])


# Random lengths.


def drawn(window: int, *, number: int = 0, seed: int = 1, steps: int = 3_000_000) -> Tensor:
    lengths = WindowLengths(window, random=True, seed=seed)
    return torch.tensor(lengths.begins(steps, number, 0)).diff()


def test_random_lengths_have_the_distribution_of_the_paper() -> None:
    found = drawn(70)
    # A draw that is rounded down lies half a step lower on average; 52.5 is 3.5 deviations from both centres.
    long, short = found[found > 52].double(), found[found <= 52].double()
    assert len(short) / len(found) == pytest.approx(0.05, abs=0.004)
    assert long.mean().item() == pytest.approx(69.5, abs=0.15)
    assert short.mean().item() == pytest.approx(34.5, abs=0.5)
    deviation = math.sqrt(25 + 1 / 12)
    assert long.std().item() == pytest.approx(deviation, rel=0.03)
    assert short.std().item() == pytest.approx(deviation, rel=0.1)
    assert found.max() > 85, "nothing holds them from above"


@pytest.mark.parametrize(("window", "least"), [(35, 5), (8, 5), (5, 5), (3, 3), (1, 1)])
def test_no_random_length_is_tiny(window: int, least: int) -> None:
    assert drawn(window, steps=100_000).min() == least


def test_random_lengths_depend_on_seed_and_pass_alone() -> None:
    before = torch.get_rng_state()
    first = drawn(35, steps=5000)
    assert torch.equal(first, drawn(35, steps=5000))
    for other in (
        drawn(35, steps=5000, number=1),
        drawn(35, steps=5000, seed=2),
        drawn(35, steps=5000, seed=2**32 - 1),
    ):
        assert first.tolist() != other.tolist()
    assert torch.equal(torch.get_rng_state(), before)


POLICIES: dict[str, dict[str, Any]] = {
    "horizon": {"horizon": 17},
    "random": {"lengths": WindowLengths(7, random=True, seed=3)},
    "growing": {"lengths": WindowLengths(7, grow_from=2, grow_windows=40)},
    "all": {"horizon": 17, "lengths": WindowLengths(7, random=True, grow_from=2, grow_windows=40, seed=3)},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_token_is_a_target_once_a_pass_in_every_process(policy: str) -> None:
    tokens = torch.arange(6 * 101)
    whole = WindowLoader(tokens, 6, 7, **POLICIES[policy])
    parts = [WindowLoader(tokens, 6, 7, rank=rank, world_size=2, **POLICIES[policy]) for rank in range(2)]
    cuts = []
    for number in range(3):
        windows = list(whole)
        assert {len(windows)} == {loader.pass_windows(number) for loader in (whole, *parts)}
        assert torch.equal(torch.cat([window.y for window in windows]), tokens.view(6, 101)[:, 1:].t())
        assert all(torch.equal(w.x[-len(w.y) :] + 1, w.y) for w in windows)
        for index, (left, right) in enumerate(zip(*parts, strict=True)):
            assert torch.equal(torch.cat([left.x, right.x], dim=1), windows[index].x)
            assert left.advance == right.advance == windows[index].advance
            assert left.rate == right.rate == windows[index].rate
        cuts.append([len(window.y) for window in windows])
    assert (cuts[0] == cuts[1] == cuts[2]) is (policy == "horizon")


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(
    "options", [(RANDOM,), GROW, (RANDOM, *GROW, "bptt.horizon=13")], ids=["random", "grow", "all"]
)
def test_unequal_windows_equal_a_plain_loop_of_their_lengths(exact: Make, cell: str, options: tuple[str, ...]) -> None:
    run = exact(f"model={cell}", "bptt.reset=never", *options)
    start = weights(run)
    cut = whole_lengths(run.data.train_loader(), 2)
    grown = [min(5, 2 + 3 * n // 30) for n in range(1000)] if "bptt.grow_from=2" in options else [5] * 1000

    def rate(length: int, number: int) -> float:
        return length / grown[number] if RANDOM in options else 1.0

    watch = watched(run)
    assert [watch.lengths(0), watch.lengths(1)] == cut
    context = 8 if "bptt.horizon=13" in options else 0
    tokens = run.data.tokens["train"]
    assert_close_weights(run, plain_loop(start, cell, tokens, cut, context=context, reset="never", rate=rate), start)


# Growth.


@pytest.mark.parametrize("limit", [None, 5, 0.4])
def test_windows_grow_by_their_formula_over_the_passes(limit: float | None) -> None:
    """Over those that are trained: what a limit leaves out does not count."""
    lengths = WindowLengths(9, grow_from=2, grow_windows=50)
    loader = WindowLoader(torch.arange(2 * 91), 2, 9, lengths=lengths, limit=limit)
    number = 0
    for _ in range(14):
        left, windows = 90, list(loader)
        for window in windows:
            assert len(window.y) == min(9, 2 + 7 * number // 50, left)
            assert window.rate == 1.0
            left, number = left - len(window.y), number + 1
        assert len(windows) == 5 if limit == 5 else (left == 0) is (limit is None)
    assert number > 50
    assert len(loader) == 10, "in the end all windows are full"


REFUSED = [
    (("bptt.horizon=8",), "bptt.horizon=8 must be at least bptt.window=9.*bptt.window=8"),
    (("bptt.horizon=far",), "bptt.horizon must be an integer of at least 1, but it is 'far'"),
    (("bptt.random_window=maybe",), "bptt.random_window must be one of True, False, but it is 'maybe'"),
    (("bptt.grow_from=10", "bptt.grow_windows=5"), "bptt.grow_from must be at most bptt.window=9.*but it is 10"),
    (("bptt.grow_from=3",), "bptt.grow_from=3 needs bptt.grow_windows"),
    (("bptt.grow_windows=3",), "bptt.grow_windows=3 needs bptt.grow_from"),
    (("bptt.grow_from=0", "bptt.grow_windows=5"), "bptt.grow_from must be an integer of at least 1"),
    (("bptt.grow_from=2", "bptt.grow_windows=0"), "bptt.grow_windows must be an integer of at least 1"),
    (("+bptt.seed=3",), "bptt.seed is not a key of"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_what_cannot_be_cut_is_refused_by_name(make: Make, toy: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("data=char", f"data.path={toy}", *options)
