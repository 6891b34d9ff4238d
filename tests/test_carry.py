"""Runs with documents, dropped carries and windows of random offset: against plain loops, and resumed."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_equal_weights, watched, weights
from plain_loop import assert_close_weights, plain_loop
from torch import Tensor

from tbptt.data import truncation
from tbptt.errors import UserError
from tbptt.run import Run, train
from tbptt.streams import WindowLoader
from tbptt.truncation import CarryDrop, WindowLengths

Make = Callable[..., Run]
# Of three streams of 67 tokens: adjacent, at the start of a window, in the middle, at the ends of streams.
BORDERS = [0, 3, 10, 11, 12, 30, 66, 67, 68, 75, 101, 133, 134, 170, 171, 199, 200]


def with_documents(run: Run, **parts: list[int]) -> Run:
    """Tell a run that was made without documents where they begin."""
    run.data.borders |= {name: np.array(places, dtype=np.int64) for name, places in parts.items()}
    run.data.reset = "document"
    return run


def draws(probability: float, seed: int = 0) -> Callable[[int, int], Tensor | None]:
    drop = CarryDrop(probability, seed=seed)
    return lambda number, index: drop.streams(number, index, 3)


FORMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "chunks": (("bptt.chunk=2",), {}),
    "horizon": (("bptt.horizon=12",), {"context": 7}),
    "horizon in chunks": (("bptt.horizon=8", "bptt.chunk=3"), {"context": 3}),
    "accumulated": (("trainer.accumulate_grad_batches=2",), {"accumulate": 2}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", ["ours", "torch"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_documents_and_dropped_carries_equal_a_plain_loop(exact: Make, cell: str, kernel: str, form: str) -> None:
    """Two passes of windows of 5 over streams of 66 steps; documents begin at any place, carries are dropped."""
    options, same = FORMS[form]
    run = exact(f"model={cell}", f"model.kernel={kernel}", "bptt.carry_drop=0.3", *options)
    with_documents(run, train=BORDERS)
    start = weights(run)
    watched(run)
    tokens, cut = run.data.tokens["train"], [[5] * 13 + [1]] * 2
    expected = plain_loop(start, cell, tokens, cut, borders=BORDERS, dropped=draws(0.3), **same)
    assert_close_weights(run, expected, start)
    kept = plain_loop(start, cell, tokens, cut, borders=BORDERS, **same)["core.rnn.weight_hh_l0"]
    assert (kept - expected["core.rnn.weight_hh_l0"]).abs().max() > 1e-6
    assert run.task.train_loss.tokens == 3 * 66 - sum(place % 67 > 0 for place in BORDERS)


@pytest.mark.parametrize("reset", ["epoch", "never"])
@pytest.mark.parametrize("options", [(), ("bptt.horizon=12",), ("bptt.random_window=true",)], ids=str)
def test_offsets_and_dropped_carries_equal_a_plain_loop(exact: Make, options: tuple[str, ...], reset: str) -> None:
    run = exact("bptt.random_offset=true", "bptt.carry_drop=0.5", f"bptt.reset={reset}", *options)
    start = weights(run)
    loader = run.data.train_loader()
    cut = [[len(window.y) for window in loader] for _ in range(2)]
    watch = watched(run)
    assert [watch.lengths(0), watch.lengths(1)] == cut
    same: dict[str, Any] = {"context": 7} if "bptt.horizon=12" in options else {}
    if "bptt.random_window=true" in options:
        same["rate"] = lambda length, number: length / 5
    tokens = run.data.tokens["train"]
    assert_close_weights(run, plain_loop(start, "lstm", tokens, cut, reset=reset, dropped=draws(0.5), **same), start)


# Dropped carries.


def test_carries_are_dropped_by_seed_pass_and_window_alone() -> None:
    before = torch.get_rng_state()
    rows = [CarryDrop(0.2, seed=4).streams(0, index, 50) for index in range(400)]
    again = [CarryDrop(0.2, seed=4).streams(0, index, 50) for index in range(400)]
    assert all(
        one is not None and two is not None and torch.equal(one, two) for one, two in zip(rows, again, strict=True)
    )
    share = torch.stack([one for one in rows if one is not None]).double().mean().item()
    assert share == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 20_000))
    for seed, number, index in ((5, 0, 0), (4, 1, 0), (4, 0, 1)):
        other = CarryDrop(0.2, seed=seed).streams(number, index, 50)
        assert other is not None
        assert rows[0] is not None
        assert not torch.equal(other, rows[0])
    assert CarryDrop(0.0).streams(0, 0, 50) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_drops_no_carry(make: Make, words: Path) -> None:
    run = make(f"data.path={words}", "bptt.carry_drop=0.9", "bptt.random_offset=true")
    for part in ("validation", "test"):
        loader = run.data.evaluation_loader(part)
        assert loader is not None
        assert [window.reset is None for window in loader] == [False, *[True] * (len(loader) - 1)]
        assert {len(window.y) for window in list(loader)[:-1]} == {9}


@pytest.mark.parametrize("streams", [1, 3])
def test_validation_in_a_run_keeps_documents_apart(make: Make, words: Path, streams: int) -> None:
    """The loss of a run is that of the documents alone, and the unigram model is asked for the same targets."""
    run = make(f"data.path={words}", "trainer.max_steps=5", f"data.eval_batch_size={streams}")
    tokens = run.data.tokens["validation"].long()
    borders = [4, 5, 30, 31, 32, 100, 101, 250]
    with_documents(run, train=[7, 9], validation=borders, test=[])
    result = train(run)
    length = len(tokens) // streams
    edges = sorted({*range(0, streams * length + 1, length), *(place for place in borders if place < streams * length)})
    nats, count, unigram = 0.0, 0, []
    model = run.task.model.eval()
    run.task.load_state_dict(torch.load(result["best_checkpoint"], weights_only=True)["state_dict"])
    with torch.no_grad():
        for begin, end in itertools.pairwise(edges):
            if end - begin > 1:
                piece = tokens[begin:end].unsqueeze(1)
                nats += model.nats(piece[:-1], piece[1:])[0].item()
                count += end - begin - 1
                unigram.append(tokens[begin + 1 : end])
    assert run.task.model is model
    assert result["val/loss"] == pytest.approx(nats / count, rel=1e-6)
    expected = run.data.vocabulary.unigram_loss(torch.cat(unigram).bincount(minlength=len(run.data.vocabulary)))
    assert result["val/loss_unigram"] == pytest.approx(expected, rel=1e-9)


# Random offsets.


def test_the_first_window_has_any_length_and_the_others_all_steps() -> None:
    firsts: Counter[int] = Counter()
    for number in range(2000):
        begins = WindowLengths(7, offset=True, seed=3).begins(100, number, 0)
        assert begins[0] == 0
        firsts[begins[1]] += 1
        assert {after - before for before, after in itertools.pairwise(begins[1:])} == {7}
        assert 100 - begins[-1] <= 7
    assert set(firsts) == set(range(1, 8))
    assert all(abs(count - 2000 / 7) < 5 * math.sqrt(2000 / 7) for count in firsts.values())


def test_an_offset_starts_a_growing_run_within_its_first_length_and_fits_any_text() -> None:
    growing = WindowLengths(9, offset=True, grow_from=2, grow_windows=50)
    for number in range(50):
        lengths = torch.tensor(growing.begins(1000, number, 0)).diff().tolist()
        assert 1 <= lengths[0] <= 2
        assert lengths[1:60] == [min(9, 2 + 7 * window // 50) for window in range(1, 60)]
    for steps in (1, 2, 5):
        for number in range(50):
            begins = WindowLengths(7, offset=True).begins(steps, number, 0)
            assert begins[0] == 0
            assert begins[-1] < steps
            assert len(begins) <= 2
    assert not WindowLengths(7, offset=True).equal


def test_offsets_leave_other_draws_as_they_are() -> None:
    """Random lengths after the first are drawn as without an offset."""
    whole = WindowLengths(35, random=True, seed=1).begins(3000, 2, 0)
    later = WindowLengths(35, random=True, offset=True, seed=1).begins(3000, 2, 0)
    first = later[1]
    assert later[1:] == [place + first for place in whole if place + first < 3000]


# Resumed, refused.


@pytest.mark.parametrize("stop", [7, 20, 33])
def test_a_run_with_all_of_it_is_resumed_bit_for_bit(make: Make, words: Path, stop: int) -> None:
    base = [f"data.path={words}", "model.dropout=0.5", "trainer.max_epochs=3", "trainer.val_check_interval=0.5"]
    base += ["trainer.limit_train_batches=20", "bptt.carry_drop=0.4", "bptt.random_offset=true", "bptt.horizon=14"]
    base += ["bptt.chunk=4", "model.learn_initial_state=true"]
    places = {part: list(range(0, 3000, 17)) for part in ("train", "validation", "test")}
    whole = with_documents(make(*base), **places)
    expected = train(whole)
    first = with_documents(make(*base), **places)
    first.trainer.fit_loop.epoch_loop.max_steps = stop
    first.trainer.fit(first.task, datamodule=first.data)
    assert first.trainer.global_step == stop
    again = with_documents(make(*base, f"resume={first.folder}"), **places)
    found = train(again)
    assert_equal_weights(weights(again), weights(whole))
    ours, theirs = (torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True) for run in (again, whole))
    assert torch.equal(ours["carry"]["hidden"], theirs["carry"]["hidden"])
    for key in ("train/loss", "val/loss", "test/loss"):
        assert found[key] == expected[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bptt.carry_drop=0.1", "bptt.carry_drop must be 0, as in the checkpoint.*but it is 0.1"),
        ("bptt.random_offset=true", "bptt.random_offset must be False, as in the checkpoint.*but it is True"),
    ],
)
def test_another_carry_is_refused_on_resume(make: Make, toy: Path, change: str, message: str) -> None:
    base = ["data=char", f"data.path={toy}", "trainer.max_steps=1"]
    first = make(*base)
    watched(first)
    with pytest.raises(UserError, match=message):
        train(make(*base, f"resume={first.folder}", change))


REFUSED = [
    ("bptt.carry_drop=1", "bptt.carry_drop must be a number of at least 0 and less than 1, but it is 1"),
    ("bptt.carry_drop=-0.1", "bptt.carry_drop must be a number"),
    ("bptt.carry_drop=often", "bptt.carry_drop must be a number.*'often'"),
    ("bptt.random_offset=1", "bptt.random_offset must be one of True, False, but it is 1"),
    ("bptt.reset=document", "bptt.reset=document needs to know where documents begin, but data.document_separator is"),
    ("bptt.reset=documents", "bptt.reset must be one of epoch, document, never.*did you mean document"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[change for change, _ in REFUSED])
def test_what_cannot_be_is_refused_by_name(make: Make, toy: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("data=char", f"data.path={toy}", change)


@pytest.mark.parametrize(("key", "part"), [("path", "train"), ("val_path", "validation"), ("test_path", "test")])
def test_a_part_without_a_target_is_refused(make: Make, toy: Path, tmp_path: Path, key: str, part: str) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n" * 400)
    options = ("data=char", f"data.path={toy}", "data.document_separator='^'", f"data.{key}={lines}")
    make(*options)
    with pytest.raises(UserError, match=f"the {part} part must have a document of 2 tokens or more"):
        make(*options, "bptt.reset=document")


def test_a_separator_that_parts_nothing_is_told(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b\nc d\n\n" * 50)
    for separator, told in (("blank_lines", True), ("file", True), ("blank_line", False)):
        caplog.clear()
        make("data=char", f"data.path={text}", f"data.document_separator={separator}").data.report()
        assert ("parts nothing: the whole text is one document" in caplog.text) == told


def test_a_loader_needs_borders_for_documents() -> None:
    with pytest.raises(UserError, match="data.document_separator"):
        WindowLoader(torch.arange(90), 2, 7, reset="document")


def test_keys_of_the_configuration_reach_the_loader() -> None:
    keys = {"window": 7, "reset": "never", "horizon": None, "random_window": False, "grow_from": None}
    keys |= {"grow_windows": None, "chunk": "auto", "memory_mib": None}
    found = truncation(**keys, random_offset=True, carry_drop=0.25, seed=6)
    assert found["drop"].probability == 0.25
    assert not found["lengths"].equal
