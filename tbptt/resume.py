"""Go on with a run: what must be as it was, and what comes along."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L

from tbptt import checkpoint
from tbptt.callbacks.checkpoints import best_path
from tbptt.data import TextDataModule
from tbptt.errors import UserError
from tbptt.module import TBPTTModule

# Keys of `trainer` on which training depends; how long it lasts and how often it is validated may change.
SAME_TRAINER = (
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
)

# Where a text lies, since its checksum is compared; and what costs time or memory but does not change the result.
FREE = {
    "data": {"path", "val_path", "test_path", "corpus", "cache_dir"},
    "bptt": {"chunk", "memory_mib"},
    "model": {"kernel", "save"},
    "optimizer": set[str](),
    "scheduler": set[str](),
}

log = logging.getLogger(__name__)


def prepare_resume(task: TBPTTModule, data: TextDataModule, trainer: L.Trainer, path: Path) -> int:
    """Refuse a checkpoint of another training; bring the best weights so far into the folder of this run.

    Returns:
        the number of updates made before.
    """
    content = checkpoint.read(path, "resume")
    for key, theirs, ours in differences(content["recipe"], task.recipe):
        raise UserError(
            f"{key} must be {theirs!r}, as in the checkpoint that is resumed, but it is {ours!r}; set it so, or start "
            "anew without resume=."
        )
    if content["vocabulary"] != data.vocabulary.to_dict():
        known, here = set(content["vocabulary"]["symbols"]), set(data.vocabulary.symbols)
        names = ", ".join(repr(symbol) for symbol in sorted(known ^ here)[:10]) or "none: the counts differ"
        raise UserError(
            f"resume={path} was trained with another vocabulary than this text gives (symbols in one and not in the "
            f"other: {names}); resume with the text it was trained on."
        )
    if content["corpus"]["sha256"] != data.corpus.sha256:
        raise UserError(
            f"resume={path} was trained on another text ({content['corpus']['source']}, or it has changed since); "
            "resume with the training, validation and test text it had."
        )
    done: int = content["global_step"]
    log.info("resume: %s, after update %d", path, done)
    if trainer.is_global_zero:
        bring_best(
            best_path(trainer),
            path.parent / "best.ckpt",
            content["callbacks"].get("checkpoints", {}).get("best_step", -1),
        )
    return done


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys on which two recipes train differently, with both values.

    How long, how often validated and what is logged may change between a run and the one that goes on with it; where
    the text lies may too, and how much memory a window takes.
    """
    for section in FREE:
        for key in sorted((theirs[section].keys() | ours[section].keys()) - FREE[section]):
            if theirs[section].get(key) != ours[section].get(key):
                yield f"{section}.{key}", theirs[section].get(key), ours[section].get(key)
    for key in SAME_TRAINER:
        if theirs["trainer"].get(key) != ours["trainer"].get(key):
            yield f"trainer.{key}", theirs["trainer"].get(key), ours["trainer"].get(key)


def bring_best(target: Path, best: Path, step: int) -> None:
    """Copy the best weights so far, those after update `step` (-1: none), to where this run keeps its own."""
    if step < 0 or target.resolve() == best.resolve():
        return
    if not best.is_file() or checkpoint.read(best)["global_step"] != step:
        log.warning("the best weights, of update %d, are not beside %s: they are not brought along", step, best.parent)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(best, target)
