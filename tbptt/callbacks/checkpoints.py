"""Keep the newest and the best state of a run."""

import logging
import math
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from tbptt.callbacks.interrupt import Interrupt, Interrupted
from tbptt.checkpoint import read, write
from tbptt.errors import UserError
from tbptt.module import TBPTTModule
from tbptt.passes import validation_follows

log = logging.getLogger(__name__)


class CheckpointFiles(TorchCheckpointIO):
    """How Lightning is to write checkpoints; its own way holds a second copy of all of it in memory.

    `written` is what was written last: it refers to the tensors themselves, and is as it was until the next update.
    """

    written: dict[str, Any] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: D102
        write(checkpoint, path)
        self.written = checkpoint


class Checkpoints(Checkpoint):
    """Writes `checkpoints/last.ckpt` and `checkpoints/best.ckpt` in the run folder.

    `last` is written after each validation, after each pass that had none, at the end of training, and where a signal
    asks for the end; `best` whenever
    a validation loss is finite and lower than all before. Lightning's own callback writes `last` only together with a
    new best, and takes NaN for a loss worth keeping.
    """

    # A state in the middle of an accumulation group would lack the gradients that wait there: it waits for the update.

    def __init__(self) -> None:
        self.best_loss = math.inf
        self.best_step = -1
        self.validated_step = -1
        self._saved_step = -1
        self._waits = False
        self._interrupt = Interrupt()

    @property
    def state_key(self) -> str:
        """Under this name the callback's state stands in a checkpoint."""
        return "checkpoints"

    def state_dict(self) -> dict[str, Any]:
        """What the best so far was."""
        return {"best_loss": self.best_loss, "best_step": self.best_step, "validated_step": self.validated_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on comparing with the best of the run that is resumed."""
        self.best_loss = state_dict["best_loss"]
        self.best_step = state_dict["best_step"]
        self.validated_step = state_dict["validated_step"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget a best whose weights did not come along with a resumed run; listen for signals."""
        if self.best_step >= 0 and not best_path(trainer).is_file():
            self.best_loss, self.best_step = math.inf, -1
        self._interrupt.start()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save `best` where the loss is, and `last` where training goes on."""
        if trainer.sanity_checking:
            return
        assert isinstance(pl_module, TBPTTModule)
        loss = pl_module.evaluation_loss
        # All processes save together or none does, so one of them decides.
        improved = trainer.strategy.broadcast(loss.nats < self.best_loss and math.isfinite(loss.nats))
        self.validated_step = trainer.global_step
        if improved:
            self.best_loss, self.best_step = loss.nats, trainer.global_step
        if trainer.is_global_zero:
            names = {name.partition("/")[2]: value for name, value in pl_module.metrics("val", loss).items()}
            values = ", ".join(f"{name} {value:.4f}" for name, value in names.items())
            log.info("validation: %s%s", values, " (best so far)" if improved else "")
        if trainer.state.fn == "fit":
            if improved:
                trainer.save_checkpoint(best_path(trainer))
            # Also where this update was saved before its validation: a schedule may have moved since.
            self._saved_step = -1
            self._waits = not self._is_whole(trainer)
            if not self._waits:
                self._save_last(trainer)
        elif trainer.is_global_zero:
            self._amend(trainer, improved)

    def _amend(self, trainer: L.Trainer, improved: bool) -> None:
        """Write what a validation after training has found into the state that training saved.

        A state saved anew would not do: Lightning counts the pass as done once training has stopped.
        """
        files = trainer.strategy.checkpoint_io
        assert isinstance(files, CheckpointFiles)
        content = files.written or read(last_path(trainer))
        content["callbacks"][self.state_key] = self.state_dict()
        write(content, last_path(trainer))
        if improved:
            write(content, best_path(trainer))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save `last` where training stops in the middle of a pass, or where a save had to wait for an update.

        At a stop, later is too late: Lightning then counts the pass as done, and a resumed run would skip the rest.
        """
        due = self._waits and trainer.global_step > self.validated_step
        number = self._interrupt.number(trainer)
        # A validation that is due, and the end of a pass, change more than the counters: first they, and a window more.
        if number is not None and self._is_whole(trainer) and not validation_follows(trainer):
            self._save_last(trainer)
            raise Interrupted(number)
        if due or trainer.should_stop or 0 < trainer.max_steps <= trainer.global_step:
            self._waits = False
            self._save_last(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Say what is kept of a run that ends before its time."""
        self._interrupt.stop()
        if trainer.is_global_zero and not isinstance(exception, UserError):
            kept = last_path(trainer)
            way = f"go on with the same options and resume={kept}" if kept.is_file() else "nothing was saved yet"
            what = str(exception) if isinstance(exception, Interrupted) else type(exception).__name__
            log.error("stopped by %s at update %d; %s", what, trainer.global_step, way)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save `last` after a pass without validation at its end."""
        self._save_last(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save `last` when updates were made since."""
        self._interrupt.stop()
        self._save_last(trainer)

    @staticmethod
    def _is_whole(trainer: L.Trainer) -> bool:
        """Whether no gradients wait for an update."""
        window, windows = trainer.fit_loop.batch_idx + 1, trainer.num_training_batches
        return bool(window % trainer.accumulate_grad_batches == 0 or window >= windows)

    def _save_last(self, trainer: L.Trainer) -> None:
        if trainer.global_step != self._saved_step:
            self._saved_step = trainer.global_step
            trainer.save_checkpoint(last_path(trainer))


def last_path(trainer: L.Trainer) -> Path:
    """Where the newest state is kept."""
    return Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"


def best_path(trainer: L.Trainer) -> Path:
    """Where the state with the lowest validation loss is kept."""
    return Path(trainer.default_root_dir) / "checkpoints" / "best.ckpt"
