"""Stopped and resumed = uninterrupted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import assert_equal_weights

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
    assert torch.equal(ours["rng"]["cpu"], theirs["rng"]["cpu"])
    for key in ("val/loss", "test/loss"):
        assert found[key] == expected[key]
    left, right = (run.trainer.optimizers[0] for run in (again, whole))
    assert left.param_groups[0]["lr"] == right.param_groups[0]["lr"]
    for mine, other in zip(left.state.values(), right.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], other["exp_avg"])


def test_the_best_weights_come_along(make: Make, words: Path) -> None:
    """A run that only gets worse after it was resumed still ends with the best weights of before."""
    base = [f"data.path={words}", "trainer.limit_train_batches=20", "scheduler=constant"]
    first = make(*base)
    before = train(first)
    content = last(first).read_bytes()
    second = make(*base, "trainer.max_epochs=2", "optimizer.lr=0", f"resume={first.folder}")
    after = train(second)
    assert Path(after["best_checkpoint"]).parent == second.folder / "checkpoints"
    assert Path(after["best_checkpoint"]).is_file()
    assert after["val/loss"] <= before["val/loss"]
    assert last(first).read_bytes() == content, "the run that was resumed is as it was"


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
    third = make(*base, "trainer.max_steps=8", "optimizer.lr=50", f"resume={first.folder}")
    third.trainer.fit_loop.epoch_loop.max_steps = 8
    assert train(third)["val/loss"] <= before["val/loss"]


def test_a_best_that_is_gone_is_forgotten(make: Make, words: Path) -> None:
    base = [f"data.path={words}", "trainer.limit_train_batches=20", "scheduler=constant"]
    first = make(*base)
    train(first)
    (first.folder / "checkpoints" / "best.ckpt").unlink()
    second = make(*base, "trainer.max_epochs=2", "optimizer.lr=0", f"resume={last(first)}")
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


def test_another_model_or_text_is_refused(make: Make, words: Path, tmp_path: Path) -> None:
    first = make(f"data.path={words}", "trainer.max_steps=2")
    train(first)
    with pytest.raises(UserError, match=r"model.hidden_size must be 16.*but it is 17"):
        train(make(f"data.path={words}", f"resume={last(first)}", "model.hidden_size=17"))
    other = tmp_path / "other.txt"
    other.write_text(words.read_text().replace("aunt", "uncle"))
    with pytest.raises(UserError, match=r"another vocabulary.*'aunt', 'uncle'"):
        train(make(f"data.path={other}", f"resume={last(first)}"))
    with pytest.raises(UserError, match=r"data.batch_size must stay 4"):
        train(make(f"data.path={words}", f"resume={last(first)}", "data.batch_size=5"))
    with pytest.raises(UserError, match=r"there is none"):
        train(make(f"data.path={words}", "resume=nowhere.ckpt"))
