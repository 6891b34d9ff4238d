"""A run that a signal ends goes on as if nothing had happened."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from conftest import assert_equal_weights

from tbptt.run import Run, train

Make = Callable[..., Run]


class Send(L.Callback):
    """Sends a signal to this process before window `number` (from 1) of the run."""

    def __init__(self, number: int, *signals: int) -> None:
        self.number, self.signals, self.seen = number, signals, 0

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen += 1
        if self.seen == self.number:
            for one in self.signals:
                os.kill(os.getpid(), one)


def interrupted(run: Run, number: int, *signals: int) -> Path:
    """Where the state of the run is that got signals before a window."""
    run.trainer.callbacks.append(Send(number, *signals))  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as stopped:
        train(run)
    assert stopped.value.code == 128 + signals[0]
    return run.folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("scheduler", ["cosine", "plateau", "step scheduler.interval=epoch scheduler.step_size=1"])
# Windows 10 and 20 of a pass end in a validation, 20 in the end of the pass as well; 3 windows make an update.
@pytest.mark.parametrize(("number", "updates"), [(1, 1), (3, 1), (8, 3), (10, 4), (20, 8), (29, 10), (40, 15)])
def test_a_run_goes_on_after_a_signal(make: Make, words: Path, scheduler: str, number: int, updates: int) -> None:
    base = [
        f"data.path={words}",
        "model.dropout=0.5",
        "trainer.limit_train_batches=20",
        "trainer.val_check_interval=0.5",
    ]
    base += ["trainer.max_epochs=3", "trainer.accumulate_grad_batches=3", "trainer.limit_val_batches=5"]
    base += f"scheduler={scheduler}".split()
    whole = make(*base)
    expected = train(whole)
    state = interrupted(make(*base), number, signal.SIGTERM)
    assert torch.load(state, weights_only=True)["global_step"] == updates
    again = make(*base, f"resume={state}")
    found = train(again)
    ours, theirs = (torch.load(run.folder / "checkpoints/last.ckpt", weights_only=True) for run in (again, whole))
    assert_equal_weights(ours["state_dict"], theirs["state_dict"])
    assert torch.equal(ours["carry"]["hidden"], theirs["carry"]["hidden"])
    assert torch.equal(ours["rng"]["cpu"][0], theirs["rng"]["cpu"][0])
    for key in ("train/loss", "val/loss", "test/loss"):
        assert found[key] == expected[key]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_heard_and_given_back(make: Make, words: Path, number: int) -> None:
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        state = interrupted(make(f"data.path={words}"), 5, number)
        assert torch.load(state, weights_only=True)["global_step"] == 5
        assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_so(make: Make, words: Path) -> None:
    """As Ctrl-C for a program that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = make(f"data.path={words}", "trainer.max_steps=7")
        run.trainer.callbacks.append(Send(3, signal.SIGINT))  # type: ignore[attr-defined]
        assert train(run)["steps"] == 7
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
