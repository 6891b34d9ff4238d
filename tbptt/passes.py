"""Passes of different lengths under Lightning, which takes one length for all when training starts.

No shapes. A pass is what Lightning calls an epoch; its number is Lightning's `current_epoch`.
"""

from typing import Any

import lightning as L

from tbptt.streams import WindowLoader


def train_loader(trainer: L.Trainer) -> WindowLoader | None:
    """The windows that are trained on, None where they come from elsewhere."""
    loader = trainer.train_dataloader
    return loader if isinstance(loader, WindowLoader) else None


def start_pass(trainer: L.Trainer) -> None:
    """At the start of a pass: its windows from the first one on, and its length."""
    loader = train_loader(trainer)
    if loader is not None:
        loader.start_pass(trainer.current_epoch)
        set_length(trainer)


def set_length(trainer: L.Trainer) -> None:
    """Let the trainer stop, validate and step after the windows of the pass that comes next or goes on.

    Lightning sets these once, for the pass that the loader was at before its position was restored. What fetches the
    windows asks for their number again at each later pass, but not at the first one after a start.
    """
    loader = train_loader(trainer)
    if loader is None:
        return
    loop = trainer.fit_loop
    windows = loader.pass_windows(loader.next_pass)
    assert loop._combined_loader is not None
    assert loop._data_fetcher is not None
    loop.max_batches = windows
    loop._combined_loader.limits = [windows]
    loop._data_fetcher.length = windows
    # A whole number counts windows as it is.
    if isinstance(trainer.val_check_interval, float):
        trainer.val_check_batch = max(1, int(windows * trainer.val_check_interval))


def validation_follows(trainer: L.Trainer) -> bool:
    """Whether a validation, or the end of the pass, comes between this window and the next."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return loop.epoch_loop.batch_progress.is_last_batch or loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def close_pass(checkpoint: dict[str, Any]) -> None:
    """Let a checkpoint made after the last window of a pass go on with the first one of the next.

    At that point Lightning's counters say, by where exactly it was made and by `max_steps`, that the pass is to be
    finished, has been, or has one more window. Its last window, its validation and its schedule's step are all in the
    checkpoint, so there is one state to go on from: the pass is complete and none has begun.
    """
    loop = checkpoint["loops"]["fit_loop"]
    positions = loop["state_dict"].get("combined_loader")
    if not positions or positions[0]["next_window"] or not positions[0].get("pass"):
        return
    for counts in loop["epoch_progress"].values():
        counts["started"] = counts["processed"] = counts["completed"] = counts["ready"]
    windows = loop["epoch_loop.batch_progress"]
    windows["is_last_batch"] = False
    windows["total"]["completed"] = windows["total"]["processed"]
    windows["current"] = dict.fromkeys(windows["current"], 0)
