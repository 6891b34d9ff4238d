"""One training run: fit, validate, test, and say what came out."""

import json
import logging
import math
import os
import platform
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

import tbptt
from tbptt import checkpoint
from tbptt.callbacks import Checkpoints, Interrupted, Monitor
from tbptt.callbacks.checkpoints import best_path, last_path
from tbptt.data import TextDataModule
from tbptt.errors import UserError
from tbptt.memory import Prediction
from tbptt.metrics import IGNORED, bits, perplexity
from tbptt.resume import prepare_resume
from tbptt.streams import WindowLoader
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
    memory: Prediction
    vocabulary: tuple[str, str]  # what it costs, and a warning or ""


def train(run: Run) -> dict[str, Any]:
    """Train, then validate what was not yet validated, test the best weights, and write `result.json`.

    Returns:
        the content of `result.json`.
    """
    if not run.trainer.is_global_zero:
        # One process reports for all.
        logging.getLogger("tbptt").setLevel(logging.WARNING)
    device = run.trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run.data.report()
    parameters = sum(parameter.numel() for parameter in run.task.parameters())
    log.info("model: %s parameters", f"{parameters:,}")
    log.info("memory of training (tensors of one process):\n%s", run.memory.table())
    log.info("vocabulary: %s", run.vocabulary[0])
    if run.vocabulary[1]:
        log.warning("vocabulary: %s", run.vocabulary[1])
    done = 0 if run.resume is None else prepare_resume(run.task, run.data, run.trainer, run.resume)
    try:
        run.trainer.fit(run.task, datamodule=run.data, ckpt_path=run.resume, weights_only=True)
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
    except SIGTERMException:
        # Lightning's exception is a SystemExit with status 0, which a job manager takes for success.
        sys.exit(128 + signal.SIGTERM)
    except MisconfigurationException as error:
        raise UserError(f"trainer: Lightning refuses these values: {error}") from error
    if run.trainer.global_step == done:
        raise UserError(
            f"training made no update beyond the {done} that were made before: trainer.max_epochs, trainer.max_steps "
            "and trainer.limit_train_batches must leave something to do; raise the one that ends the run."
        )
    # Every process has the same number of targets, so the mean of their means is the mean.
    train_loss = run.trainer.strategy.reduce(torch.tensor(run.task.train_loss.nats, device=device), reduce_op="mean")
    numbers: dict[str, float | None] = {"train/loss": float(train_loss)}
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
        "peak_memory_mib": peak_memory_mib(device),
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


def validation_numbers(run: Run) -> dict[str, float | None]:
    """Loss of the best weights, of the last ones, and of the unigram model of the same text."""
    name = unit(run.data.vocabulary.level)
    if run.checkpoints.best_step < 0:
        return {"val/loss": None, f"val/{name}": None}
    best = run.checkpoints.best_loss
    value = perplexity(best) if name == "perplexity" else bits(best)
    numbers: dict[str, float | None] = {"val/loss": best, f"val/{name}": value}
    numbers["val/loss_last"] = run.task.evaluation_loss.nats
    windows = run.data.evaluation_loader("validation")
    assert windows is not None
    # Of the whole text or not at all: a limit of 1 is one window, a limit of 1.0 all of them.
    if run.task.evaluation_loss.tokens == windows.targets:
        unigram = run.data.vocabulary.unigram_loss(target_counts(windows, len(run.data.vocabulary)))
        base = perplexity(unigram) if name == "perplexity" else bits(unigram)
        log.info("validation: %s %.3f, of the unigram model %.3f", name, value, base)
        numbers["val/loss_unigram"] = unigram
    return numbers


def target_counts(windows: WindowLoader, types: int) -> npt.NDArray[np.int64]:
    """How often each token is a target, `(types,)`."""
    seen = torch.zeros(types, dtype=torch.int64)
    for window in windows:
        targets = window.y[window.y != IGNORED]
        seen.index_add_(0, targets, torch.ones_like(targets))
    return seen.numpy()


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
    """Largest memory in MiB: tensors on the GPU if that is the device, else resident memory of the process so far."""
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
    part = path.with_suffix(".part")
    part.write_text(json.dumps(finite(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def finite(value: Any) -> Any:
    """The same content with None for each number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report(run: Run, result: dict[str, Any]) -> None:
    """The last lines of a run: where things are, and what to do next."""
    model = shown(Path(result["best_checkpoint"] or result["last_checkpoint"]))
    speed, memory = result["tokens_per_second"], result["peak_memory_mib"] or 0
    log.info("done: %s tokens/s, peak memory %s MiB", f"{speed:,.0f}", f"{memory:,.0f}")
    log.info("run folder: %s", shown(run.folder))
    log.info("result:     %s", shown(run.folder / "result.json"))
    log.info("checkpoint: %s", model)
    log.info("next:\n  python scripts/sample.py checkpoint=%s", model)
    log.info("  python scripts/evaluate.py checkpoint=%s", model)
    log.info("  tensorboard --logdir %s", shown(run.folder))


def shown(path: Path) -> Path:
    """A path as short as it can be typed from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
