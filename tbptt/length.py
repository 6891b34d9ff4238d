"""How long a run is: windows of a pass, optimizer updates, passes over the text."""

import math
from collections.abc import Callable
from typing import Any

import lightning as L

from tbptt.errors import check_integer, check_number, refusal
from tbptt.truncation import limited


def check_lengths(section: dict[str, Any]) -> None:
    """Refuse values of `trainer` that Lightning takes without a word, or refuses late and with a traceback.

    Raises:
        UserError: naming the key, what must hold and what was given.
    """
    check_number("trainer.gradient_clip_val", section.get("gradient_clip_val") or 0.0, "null or 0 clips nothing")
    check_integer("trainer.accumulate_grad_batches", section.get("accumulate_grad_batches", 1), 1, "1 accumulates none")
    for name in ("max_epochs", "max_steps"):
        value = section.get(name)
        if value is not None and (type(value) is not int or value < -1 or value == 0):
            raise refusal(f"trainer.{name}", "be an integer of at least 1, or -1 for no limit", value, "give one")
    interval = section.get("val_check_interval", 1.0)
    if not isinstance(interval, (int, float)) or isinstance(interval, bool) or interval <= 0:
        rule = "be a fraction of an epoch (up to 1.0) or a whole number of windows"
        raise refusal("trainer.val_check_interval", rule, interval, "use trainer.limit_val_batches=0 for no validation")


def check_limit(part: str, windows: int, limit: float | None) -> None:
    """Refuse a limit that leaves nothing of a text, but for a plain 0 where a part may be left out.

    Raises:
        UserError: naming the key and the number of windows there are.
    """
    key = f"trainer.limit_{part}_batches"
    if limit is not None:
        check_number(key, limit, "give a share of the windows (1.0 for all) or a number of them")
        if limited(windows, limit) < 1 and (limit or part == "train"):
            raise refusal(key, f"leave at least one of the {windows} windows", limit, "give a larger share or a number")


def trainer_arguments(section: dict[str, Any], windows: dict[str, int], *, unused: bool) -> dict[str, Any]:
    """The arguments of Lightning's trainer, checked and made to mean what they say.

    Args:
        section: as the user gave them.
        windows: of "train", "val" and "test"; 0 where there is no such part.
        unused: whether some parameters take part in some windows only, as a learned initial state does.
    """
    values = dict(section)
    check_lengths(values)
    for part, number in windows.items():
        if number:
            check_limit(part, number, values.get(f"limit_{part}_batches"))
        else:
            # Lightning warns of a loader without batches, so it is told not to ask for one.
            values[f"limit_{part}_batches"] = 0
    # Lightning counts whole-number intervals within an epoch and refuses longer ones; counted over the whole run they
    # work for texts of any length.
    if type(values.get("val_check_interval")) is int:
        values.setdefault("check_val_every_n_epoch", None)
    if unused and values.get("strategy") == "ddp":
        values["strategy"] = "ddp_find_unused_parameters_true"
    return values


def training_length(trainer: L.Trainer, windows: int | Callable[[int], int], unit: str) -> int | None:
    """How long a whole run is, in optimizer updates ("step") or in passes begun ("epoch"), None where nothing says.

    Computed here: asking Lightning for it while the optimizer is made drops the position of a resumed run.

    Args:
        trainer: with the bounds on the run.
        windows: of each pass, or a function from the number of a pass (from 0) to them.
        unit: "step" or "epoch".
    """
    group = trainer.accumulate_grad_batches
    epochs = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
    most = trainer.max_steps if trainer.max_steps > 0 else None
    if epochs is None and most is None:
        return None
    if isinstance(windows, int):
        per_epoch = math.ceil(windows / group)
        updates = min(bound for bound in (most, epochs and epochs * per_epoch) if bound)
        return updates if unit == "step" else math.ceil(updates / per_epoch)
    # Passes are counted out only where their lengths matter.
    if epochs is None and unit == "step":
        return most
    if most is None and unit == "epoch":
        return epochs
    updates = passes = 0
    while (epochs is None or passes < epochs) and (most is None or updates < most):
        updates += math.ceil(windows(passes) / group)
        passes += 1
    return passes if unit == "epoch" else min(updates, most or updates)
