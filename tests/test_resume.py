"""Stopped and resumed = uninterrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from conftest import assert_equal_weights, rates

from tbptt.errors import UserError
from tbptt.run import Run, train

Make = Callable[..., Run]

SCHEDULERS = ["constant", "cosine", "onecycle", "step", "exponential", "plateau"]
# 20 windows an epoch; validation in the middle of an epoch and at its end.
COMMON = (
    "model.dropout=0.5",
    "trainer.limit_train_batches=20",
    "trainer.val_check_interval=0.5",
    "trainer.max_epochs=3",
)


def last(run: Run) -> Path:
    return run.folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("stop", [7, 10, 20, 33])
def test_resumed_equals_uninterrupted(make: Make, words: Path, scheduler: str, stop: int) -> None:
    """In mid-epoch, at a validation in mid-epoch, at the end of an epoch, in a later epoch."""
    base = [f"data.path={words}", *COMMON, f"scheduler={scheduler}"]
    if scheduler in ("step", "exponential"):
        base.append("scheduler.gamma=0.5")
    whole = make(*base)
    expected = train(whole)
    # The schedule is that of the whole run; only the trainer stops early.
    first = make(*base)
    first.trainer.fit_loop.epoch_loop.max_steps = stop
    first.trainer.fit(first.task, datamodule=first.data)
    assert first.trainer.global_step == stop
    again = make(*base, f"resume={last(first)}")
    found = train(again)
    assert again.trainer.global_step == whole.trainer.global_step == 60
    ours, theirs = (torch.load(last(run), weights_only=True) for run in (again, whole))
    assert_equal_weights(ours["state_dict"], theirs["state_dict"])
    assert torch.equal(ours["carry"]["hidden"], theirs["carry"]["hidden"])
    assert torch.equal(ours["rng"]["cpu"][0], theirs["rng"]["cpu"][0])
    for key in ("train/loss", "val/loss", "test/loss"):
        assert found[key] == expected[key]
    left, right = (run.trainer.optimizers[0] for run in (again, whole))
    assert left.param_groups[0]["lr"] == right.param_groups[0]["lr"]
    for mine, other in zip(left.state.values(), right.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], other["exp_avg"])


def test_the_best_weights_come_along(make: Make, words: Path) -> None:
    """A run that never gets better after it was resumed still ends with the best weights of before."""
    base = [f"data.path={words}", "trainer.limit_train_batches=20", "scheduler=constant"]
    first = make(*base)
    train(first)
    best, newest = last(first).with_name("best.ckpt"), last(first)
    content = torch.load(newest, weights_only=True)
    content["callbacks"]["checkpoints"]["best_loss"] = 0.001
    torch.save(content, newest)
    before = newest.read_bytes()
    second = make(*base, "trainer.max_epochs=2", f"resume={first.folder}")
    result = train(second)
    assert result["steps"] == 40
    assert result["val/loss"] == 0.001
    assert Path(result["best_checkpoint"]).parent == second.folder / "checkpoints"
    assert Path(result["best_checkpoint"]).read_bytes() == best.read_bytes()
    assert newest.read_bytes() == before, "the run that was resumed is as it was"


@pytest.mark.parametrize("scheduler", ["cosine", "onecycle", "cosine scheduler.interval=epoch"])
def test_a_longer_run_goes_on_along_its_own_schedule(make: Make, words: Path, scheduler: str) -> None:
    base = [f"data.path={words}", "trainer.limit_train_batches=10", *f"scheduler={scheduler}".split()]
    first = make(*base, "trainer.max_epochs=3")
    rates(first)
    found = rates(make(*base, "trainer.max_epochs=6", f"resume={last(first)}"))
    whole = rates(make(*base, "trainer.max_epochs=6"))
    assert len(whole) == 60
    assert found == pytest.approx(whole[30:], rel=1e-6)


def test_every_state_saved_between_accumulated_gradients_goes_on_exactly(make: Make, words: Path) -> None:
    """Validation every 7 windows, an update every 2: some validations fall between two windows of one update."""
    base = [
        f"data.path={words}",
        "model.dropout=0.5",
        "trainer.accumulate_grad_batches=2",
        "trainer.limit_train_batches=30",
        "trainer.val_check_interval=7",
    ]
    saved: list[Path] = []

    class Keep(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
            newest = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
            copy = newest.with_name(f"{newest.stat().st_mtime_ns}.kept") if newest.is_file() else newest
            if newest.is_file() and not copy.exists():
                copy.write_bytes(newest.read_bytes())
                saved.append(copy)

    whole = make(*base)
    whole.trainer.callbacks.insert(0, Keep())  # type: ignore[attr-defined]
    train(whole)
    assert len(saved) == 4
    expected = torch.load(last(whole), weights_only=True)["state_dict"]
    for copy in saved:
        again = make(*base, f"resume={copy}")
        train(again)
        assert_equal_weights(torch.load(last(again), weights_only=True)["state_dict"], expected)


def test_early_stopping_goes_on_counting(make: Make, words: Path) -> None:
    base = [f"data.path={words}", "trainer.limit_train_batches=5", "callbacks=early_stopping", "scheduler=constant"]
    base.append("+callbacks.early_stopping.min_delta=100")
    first = make(*base)
    train(first)
    second = make(*base, "trainer.max_epochs=9", f"resume={last(first)}")
    assert train(second)["steps"] == 20, "the first validation and three that were no better"


@pytest.mark.parametrize("name", ["last", "best"])
def test_the_best_of_a_validation_after_training_comes_along(make: Make, words: Path, name: str) -> None:
    """Stopped in mid-epoch before any validation: the one at the end is remembered, and either file goes on exactly."""
    base = [f"data.path={words}", "model.dropout=0.5", "trainer.limit_train_batches=20", "scheduler=constant"]
    whole = make(*base, "trainer.max_steps=20")
    train(whole)
    first = make(*base, "trainer.max_steps=7")
    before = train(first)
    assert {path.name for path in last(first).parent.iterdir()} == {"best.ckpt", "last.ckpt"}
    second = make(*base, "trainer.max_steps=20", f"resume={first.folder}/checkpoints/{name}.ckpt")
    after = train(second)
    assert second.trainer.global_step == 20
    ours, theirs = (torch.load(last(run), weights_only=True)["state_dict"] for run in (second, whole))
    assert_equal_weights(ours, theirs)
    assert after["val/loss"] < before["val/loss"]


def test_a_best_that_is_gone_is_forgotten(make: Make, words: Path) -> None:
    base = [f"data.path={words}", "trainer.limit_train_batches=20", "scheduler=constant"]
    first = make(*base)
    train(first)
    (first.folder / "checkpoints" / "best.ckpt").unlink()
    second = make(*base, "trainer.max_epochs=2", f"resume={last(first)}")
    assert Path(train(second)["best_checkpoint"]).is_file()


def test_nothing_left_to_do_is_said(make: Make, words: Path) -> None:
    base = [f"data.path={words}", "trainer.limit_train_batches=20"]
    first = make(*base)
    train(first)
    with pytest.raises(UserError, match="no update beyond the 20 that were made before"):
        train(make(*base, f"resume={last(first)}"))


def test_last_finds_the_newest(make: Make, words: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"resume=last found no checkpoints/last.ckpt below runs"):
        make(f"data.path={words}", "resume=last")
    for name in ("a", "b"):
        run = make(f"data.path={words}", "trainer.max_steps=1")
        train(run)
        target = tmp_path / "runs" / "day" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        run.folder.rename(target)
    found = make(f"data.path={words}", "resume=last").resume
    assert found == Path("runs/day/b/checkpoints/last.ckpt")


CHANGES = [
    ("model.hidden_size=17", r"model.hidden_size must be 16.*but it is 17"),
    ("model=gru", r"model.cell must be 'lstm'.*but it is 'gru'"),
    ("optimizer.lr=0.5", r"optimizer.lr must be 0.002.*but it is 0.5"),
    ("optimizer=sgd", r"optimizer._target_ must be 'torch.optim.AdamW'"),
    ("scheduler=step", r"scheduler._target_ must be"),
    ("bptt.window=8", r"bptt.window must be 9.*but it is 8"),
    ("data.batch_size=5", r"data.batch_size must be 4.*but it is 5"),
    ("trainer.precision=bf16-mixed", r"trainer.precision must be '32-true'"),
    ("trainer.limit_train_batches=7", r"trainer.limit_train_batches must be None"),
]


def test_another_model_or_text_is_refused(make: Make, words: Path, tmp_path: Path) -> None:
    first = make(f"data.path={words}", "trainer.max_steps=2")
    train(first)
    for change, message in CHANGES:
        with pytest.raises(UserError, match=message):
            train(make(f"data.path={words}", f"resume={last(first)}", change))
    changed = tmp_path / "changed.txt"
    lines = words.read_text().splitlines(keepends=True)
    changed.write_text("".join([*lines[:-40], *sorted(lines[-40:])]))  # in the test part only
    with pytest.raises(UserError, match=r"was trained on another text"):
        train(make(f"data.path={changed}", f"resume={last(first)}"))
    other = tmp_path / "other.txt"
    other.write_text(words.read_text().replace("aunt", "uncle"))
    with pytest.raises(UserError, match=r"another vocabulary.*'aunt', 'uncle'"):
        train(make(f"data.path={other}", f"resume={last(first)}"))
    with pytest.raises(UserError, match=r"resume=nowhere.ckpt must be a checkpoint file"):
        train(make(f"data.path={words}", "resume=nowhere.ckpt"))
