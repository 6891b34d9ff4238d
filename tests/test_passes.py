"""Passes of different lengths in a run: rates, validation, limits, stops, and going on."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch
from conftest import assert_equal_weights, watched, weights

from tbptt.callbacks import Progress
from tbptt.errors import UserError
from tbptt.length import training_length
from tbptt.run import Run, train

Make = Callable[..., Run]
RANDOM = "bptt.random_window=true"
RUNS = {"random": (RANDOM,), "growing": ("bptt.grow_from=2", "bptt.grow_windows=45")}


@pytest.mark.parametrize("policy", RUNS)
def test_validation_keeps_to_its_interval_in_every_pass(make: Make, toy: Path, policy: str) -> None:
    common = ("data=char", f"data.path={toy}", "trainer.max_epochs=3", *RUNS[policy])
    counts = {}
    for interval in ("1.0", "0.5", "7"):
        watch = watched(make(*common, f"trainer.val_check_interval={interval}"))
        counts[interval] = [len(watch.lengths(number)) for number in range(3)]
        assert [sum(watch.lengths(number)) for number in range(3)] == [134] * 3
        if interval == "7":
            total = itertools.accumulate(counts[interval], initial=0)
            starts = dict(enumerate(total))
            assert [starts[epoch] + index + 1 for epoch, index in watch.validations] == [
                *range(7, sum(counts[interval]) + 1, 7)
            ]
        else:
            every = [int(count * float(interval)) for count in counts[interval]]
            assert watch.validations == [
                (epoch, index)
                for epoch in range(3)
                for index in range(counts[interval][epoch])
                if (index + 1) % every[epoch] == 0
            ]
    assert counts["1.0"] == counts["0.5"] == counts["7"]
    assert len(set(counts["1.0"])) > 1


@pytest.mark.parametrize(("limit", "of"), [("4", lambda n: min(n, 4)), ("0.5", lambda n: int(n * 0.5))])
def test_a_limit_holds_for_every_pass(make: Make, toy: Path, limit: str, of: Callable[[int], int]) -> None:
    run = make("data=char", f"data.path={toy}", RANDOM, f"trainer.limit_train_batches={limit}", "trainer.max_epochs=4")
    watch = watched(run)
    loader = run.data.train_loader()
    expected = [of(loader.pass_windows(number)) for number in range(4)]
    assert [len(watch.lengths(number)) for number in range(4)] == expected
    assert run.trainer.lr_scheduler_configs[0].scheduler.T_max == sum(expected) == run.trainer.global_step
    assert len(watch.validations) == 4


def test_training_stops_at_max_steps_and_the_schedule_with_it(make: Make, toy: Path) -> None:
    options = ("trainer.max_epochs=9", "trainer.max_steps=13", "trainer.accumulate_grad_batches=2")
    run = make("data=char", f"data.path={toy}", RANDOM, *options)
    watch = watched(run)
    assert len(watch.rates) == run.trainer.global_step == 13
    assert run.trainer.lr_scheduler_configs[0].scheduler.T_max == 13
    assert {epoch for epoch, _ in watch.windows} == {0, 1}


def test_the_length_of_a_run_is_the_sum_of_its_passes() -> None:
    windows = [5, 8, 3, 7]

    def length(unit: str, **bounds: int) -> tuple[int | None, int | None]:
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, barebones=True, **bounds)  # type: ignore[arg-type]
        return training_length(trainer, windows.__getitem__, unit), training_length(trainer, 5, unit)

    assert length("step", max_epochs=4) == (23, 20)
    assert length("step", max_epochs=4, accumulate_grad_batches=2) == (3 + 4 + 2 + 4, 12)
    assert length("step", max_epochs=4, max_steps=14) == (14, 14)
    assert length("step", max_epochs=-1, max_steps=10**9) == (10**9, 10**9)
    assert length("epoch", max_epochs=4) == (4, 4)
    assert length("epoch", max_epochs=4, max_steps=14) == (3, 3)
    assert length("epoch", max_epochs=-1, max_steps=13) == (2, 3)
    assert length("epoch", max_epochs=-1) == length("step", max_epochs=-1) == (None, None)


RESUMED = {
    "horizon": ("bptt.horizon=22", "trainer.val_check_interval=0.5"),
    "random": (RANDOM, "trainer.val_check_interval=0.5"),
    "random, accumulated": (RANDOM, "trainer.accumulate_grad_batches=2"),
    "random, by steps": (RANDOM, "trainer.val_check_interval=0.4", "trainer.max_steps=1000"),
    "growing": ("bptt.grow_from=3", "bptt.grow_windows=30", "trainer.limit_val_batches=0"),
}


@pytest.mark.parametrize("policy", RESUMED)
def test_resumed_equals_uninterrupted(make: Make, toy: Path, policy: str) -> None:
    """In mid-pass, at the end of the first pass, and in the second."""
    base = ["data=char", f"data.path={toy}", "model.dropout=0.5", "trainer.max_epochs=3", *RESUMED[policy]]
    base.append("seed=2")  # the second pass has more windows than the first
    whole = make(*base)
    expected = train(whole)
    windows = whole.data.train_loader().pass_windows
    group = whole.trainer.accumulate_grad_batches
    first = math.ceil(windows(0) / group)
    assert windows(1) > windows(0) or RANDOM not in base
    for stop in (first // 2, first, first + 2):
        before = make(*base)
        before.trainer.fit_loop.epoch_loop.max_steps = stop
        watched(before)
        assert before.trainer.global_step == stop
        again = make(*base, f"resume={before.folder}")
        found = train(again)
        ours, theirs = (
            torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True) for run in (again, whole)
        )
        assert ours["global_step"] == theirs["global_step"]
        assert_equal_weights(ours["state_dict"], theirs["state_dict"])
        assert torch.equal(ours["carry"]["hidden"], theirs["carry"]["hidden"])
        assert torch.equal(ours["rng"]["cpu"][0], theirs["rng"]["cpu"][0])
        assert found["train/loss"] == expected["train/loss"]
        assert found["val/loss"] == expected["val/loss"]


@pytest.mark.parametrize("more", [(), ("trainer.max_steps=1000",)], ids=["passes", "steps"])
@pytest.mark.parametrize("validation", ["trainer.limit_val_batches=0", "trainer.val_check_interval=1.0"])
def test_a_run_goes_on_for_longer_from_the_end_of_a_pass(
    make: Make, toy: Path, validation: str, more: tuple[str, ...]
) -> None:
    base = ["data=char", f"data.path={toy}", "scheduler=constant", "model.dropout=0.5", RANDOM, validation, *more]
    whole = make(*base, "trainer.max_epochs=4")
    watch = watched(whole)
    first = make(*base, "trainer.max_epochs=1")
    watched(first)
    second = make(*base, "trainer.max_epochs=2", f"resume={first.folder}")
    watched(second)
    third = make(*base, "trainer.max_epochs=4", f"resume={second.folder}")
    rest = watched(third)
    assert rest.windows == [(epoch, length) for epoch, length in watch.windows if epoch >= 2]
    assert rest.validations == [(epoch, index) for epoch, index in watch.validations if epoch >= 2]
    assert_equal_weights(weights(third), weights(whole))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bptt.horizon=12", "bptt.horizon must be None.*but it is 12"),
        (RANDOM, "bptt.random_window must be False.*but it is True"),
        ("bptt.grow_windows=6", "bptt.grow_windows must be 5.*but it is 6"),
    ],
)
def test_another_truncation_is_refused_on_resume(make: Make, toy: Path, change: str, message: str) -> None:
    base = ["data=char", f"data.path={toy}", "trainer.max_steps=1", "bptt.grow_from=2", "bptt.grow_windows=5"]
    first = make(*base)
    watched(first)
    with pytest.raises(UserError, match=message):
        train(make(*base, f"resume={first.folder}", change))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_rate_of_each_update_follows_its_length(make: Make, toy: Path, accumulate: int) -> None:
    """Under a cosine, which ends with the last update and knows nothing of the lengths."""
    options = [f"data.path={toy}", "data=char", "trainer.max_epochs=3", "optimizer.lr=0.1", "scheduler=cosine"]
    run = make(*options, RANDOM, f"trainer.accumulate_grad_batches={accumulate}")
    watch = watched(run)
    factors = []
    for number in range(3):
        lengths = watch.lengths(number)
        groups = [lengths[i : i + accumulate] for i in range(0, len(lengths), accumulate)]
        factors += [sum(group) / len(group) / 9 for group in groups]
    updates = run.trainer.global_step
    assert len(watch.rates) == updates == len(factors)
    wanted = [factor * 0.05 * (1 + math.cos(math.pi * n / updates)) for n, factor in enumerate(factors)]
    assert watch.rates == pytest.approx(wanted, rel=1e-9)
    schedule = run.trainer.lr_scheduler_configs[0].scheduler
    assert schedule.T_max == schedule.last_epoch == updates
    assert run.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    progress = next(c for c in run.trainer.callbacks if isinstance(c, Progress))  # type: ignore[attr-defined]
    assert progress._updates == updates
    assert len({len(watch.lengths(number)) for number in range(3)}) > 1, "passes differ, or this shows little"
