"""One training run: fit, validate, test, and say what came out."""

import json
import logging
import math
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch

import tbptt
from tbptt import checkpoint
from tbptt.callbacks import Checkpoints, Monitor
from tbptt.callbacks.checkpoints import best_path, last_path
from tbptt.data import TextDataModule
from tbptt.errors import UserError
from tbptt.metrics import perplexity
from tbptt.tasks import LanguageModelTask, quoted, unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """The parts of a run, built from its recipe."""

    trainer: L.Trainer
    task: LanguageModelTask
    data: TextDataModule
    checkpoints: Checkpoints
    monitor: Monitor
    folder: Path
    seed: int
    resume: Path | None


def train(run: Run) -> dict[str, Any]:
    """Train, then validate what was not yet validated, test the best weights, and write `result.json`.

    Returns:
        the content of `result.json`.
    """
    run.data.report()
    parameters = sum(parameter.numel() for parameter in run.task.parameters())
    log.info("model: %s parameters", f"{parameters:,}")
    done = 0 if run.resume is None else prepare_resume(run, run.resume)
    run.trainer.fit(run.task, datamodule=run.data, ckpt_path=run.resume, weights_only=True)
    if run.trainer.global_step == done:
        raise UserError(
            f"training made no update beyond the {done} that were made before: trainer.max_epochs, trainer.max_steps "
            "and trainer.limit_train_batches must leave something to do; raise the one that ends the run."
        )
    numbers: dict[str, float | None] = {"train/loss": run.task.train_loss.nats}
    if run.trainer.limit_val_batches and run.checkpoints.validated_step != run.trainer.global_step:
        run.trainer.validate(run.task, datamodule=run.data, verbose=False)
    numbers |= validation_numbers(run)
    numbers |= test_numbers(run)
    result = {
        "steps": run.trainer.global_step,
        "parameters": parameters,
        "vocab_size": len(run.data.vocabulary),
        **numbers,
        "tokens_per_second": run.monitor.total.tokens_per_second * run.trainer.world_size,
        "peak_memory_mib": peak_memory_mib(run.trainer.strategy.root_device),
        "seed": run.seed,
        "best_checkpoint": str(best_path(run.trainer)) if run.checkpoints.best_step >= 0 else None,
        "last_checkpoint": str(last_path(run.trainer)),
        "corpus": {"source": run.data.corpus.source, "sha256": run.data.corpus.sha256},
        "versions": versions(),
    }
    if run.trainer.is_global_zero:
        write_json(run.folder / "result.json", result)
        report(run, result)
    return result


def prepare_resume(run: Run, path: Path) -> int:
    """Refuse a checkpoint of another model or vocabulary; bring the best weights so far into this run's folder.

    Returns:
        the number of updates made before.
    """
    content = checkpoint.read(path)
    theirs, ours = content["recipe"]["model"], run.task.recipe["model"]
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            raise UserError(
                f"model.{key} must be {theirs.get(key)!r}, as in the checkpoint that is resumed, but it is "
                f"{ours.get(key)!r}; set it so, or start anew without resume=."
            )
    if content["vocabulary"] != run.data.vocabulary.to_dict():
        known, here = set(content["vocabulary"]["symbols"]), set(run.data.vocabulary.symbols)
        names = ", ".join(repr(symbol) for symbol in sorted(known ^ here)[:10]) or "none: the counts differ"
        raise UserError(
            f"resume={path} was trained with another vocabulary than this text gives (symbols in one and not in the "
            f"other: {names}); resume with the text it was trained on."
        )
    done: int = content["global_step"]
    log.info("resume: %s, after update %d", path, done)
    if run.trainer.is_global_zero:
        bring_best(run, path.parent / "best.ckpt", content["callbacks"].get("checkpoints", {}).get("best_step", -1))
    return done


def bring_best(run: Run, best: Path, step: int) -> None:
    """Copy the best weights so far, those after update `step`, into this run's folder; -1 stands for none."""
    target = best_path(run.trainer)
    if step < 0 or target.resolve() == best.resolve():
        return
    if not best.is_file() or checkpoint.read(best)["global_step"] != step:
        log.warning("the best weights, of update %d, are not beside %s: they are not brought along", step, best.parent)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(best, target)


def validation_numbers(run: Run) -> dict[str, float | None]:
    """Loss of the best weights, of the last ones, and of the unigram model of the same text."""
    level, tokens = run.data.vocabulary.level, run.data.tokens["validation"]
    name = unit(level)
    if run.checkpoints.best_step < 0:
        return {"val/loss": None, f"val/{name}": None}
    best = run.checkpoints.best_loss
    unigram = run.data.vocabulary.unigram_loss(tokens.numpy())
    log.info("validation: perplexity %.2f, of the unigram model %.2f", perplexity(best), perplexity(unigram))
    value = perplexity(best) if name == "perplexity" else best / math.log(2)
    return {
        "val/loss": best,
        f"val/{name}": value,
        "val/loss_last": run.task.evaluation_loss.nats,
        "val/loss_unigram": unigram,
    }


def test_numbers(run: Run) -> dict[str, float | None]:
    """Loss of the best weights on the test text; the last weights where no validation chose any."""
    level = run.data.vocabulary.level
    if not run.trainer.limit_test_batches:
        return {"test/loss": None, f"test/{unit(level)}": None}
    if run.checkpoints.best_step >= 0 and best_path(run.trainer).is_file():
        weights = checkpoint.read(best_path(run.trainer))["state_dict"]
        run.task.load_state_dict(weights)
    run.trainer.test(run.task, datamodule=run.data, verbose=False)
    loss = run.task.evaluation_loss
    log.info("test: loss %.4f, %s %.3f", loss.nats, unit(level), quoted(level, loss))
    return {"test/loss": loss.nats, f"test/{unit(level)}": quoted(level, loss)}


def peak_memory_mib(device: torch.device) -> float | None:
    """Largest memory in MiB: tensors on the GPU if that is the device, else resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    names = {"python": platform.python_version(), "torch": torch.__version__, "lightning": L.__version__}
    return {**names, "tbptt": tbptt.__version__}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON, whole or not at all; numbers that are not finite become null."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in content.items()
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(clean, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def report(run: Run, result: dict[str, Any]) -> None:
    """The last lines of a run: where things are, and what to do next."""
    model = shown(Path(result["best_checkpoint"] or result["last_checkpoint"]))
    log.info("done: %s tokens/s, peak memory %s MiB", *(f"{result[key] or 0:,.0f}" for key in SPEED))
    log.info("run folder: %s", shown(run.folder))
    log.info("result:     %s", shown(run.folder / "result.json"))
    log.info("checkpoint: %s", model)
    log.info("next:\n  python scripts/sample.py checkpoint=%s", model)
    log.info("  python scripts/evaluate.py checkpoint=%s", model)
    log.info("  tensorboard --logdir %s", shown(run.folder))


SPEED = ("tokens_per_second", "peak_memory_mib")


def shown(path: Path) -> Path:
    """A path as short as it can be typed from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
