"""Show how far a run is: a live line on a terminal, a plain line now and then in a log file."""

import logging
import time
from typing import Any

import lightning as L
import rich
from rich.live import Live
from rich.text import Text

from tbptt.callbacks.stopwatch import Stopwatch
from tbptt.errors import check_number
from tbptt.length import training_length
from tbptt.metrics import TokenLoss, perplexity
from tbptt.module import TBPTTModule
from tbptt.passes import train_loader

log = logging.getLogger(__name__)

BAR_WIDTH = 24
LIVE_SECONDS = 0.5


class ConsoleHandler(logging.Handler):
    """Prints log records above the live line, unwrapped and unstyled, so that redirected output is plain text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        rich.get_console().print(self.format(record), markup=False, highlight=False, soft_wrap=True)


class Progress(L.Callback):
    """Epoch, window, loss (nats per token), perplexity, tokens per second and time left.

    On a terminal one line with a bar is redrawn; elsewhere a line is logged every `every_seconds` seconds.
    """

    def __init__(self, every_seconds: float) -> None:
        check_number("callbacks.progress.every_seconds", every_seconds, "it is the time between two lines")
        check_number("callbacks.progress.every_seconds", every_seconds, "it is the time between two lines")
        self.every_seconds = every_seconds
        self._loss = TokenLoss()
        self._recent = Stopwatch()
        self._live: Live | None = None
        self._shown = time.perf_counter()
        self._done_at_start = 0
        self._all = Stopwatch()
        self._updates: int | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the live line where the output is a terminal."""
        self._done_at_start = trainer.global_step
        loader = train_loader(trainer)
        self._updates = None if loader is None else training_length(trainer, loader.windows_per_pass, "step")
        if trainer.is_global_zero and rich.get_console().is_terminal:
            self._live = Live(Text(""), refresh_per_second=2, transient=True)
            self._live.start()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the clocks run."""
        self._recent.run()
        self._all.run()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a window, and show it when it is time to."""
        self._loss.add_mean(outputs["nats"], outputs["targets"])
        self._recent.targets += outputs["targets"]
        wait = self.every_seconds if self._live is None else LIVE_SECONDS
        if trainer.is_global_zero and time.perf_counter() - self._shown >= wait:
            self._show(trainer, batch_idx + 1)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clocks."""
        self._recent.pause()
        self._all.pause()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the loss of the pass, or of what there was of it."""
        assert isinstance(pl_module, TBPTTModule)
        nats, window, windows = pl_module.train_loss.nats, trainer.fit_loop.batch_idx + 1, trainer.num_training_batches
        if trainer.is_global_zero:
            end = "done" if window >= windows else f"stopped after window {window} of {windows}"
            epoch = trainer.current_epoch + 1
            log.info("epoch %d %s: train loss %.4f, perplexity %.2f", epoch, end, nats, perplexity(nats))
        self._recent.pause()
        self._all.pause()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the live line."""
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the live line, so that the error can be read."""
        self._close()

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, trainer: L.Trainer, window: int) -> None:
        windows = int(trainer.num_training_batches)
        nats = self._loss.nats
        speed = self._recent.tokens_per_second * trainer.world_size
        share, left = self._share_and_seconds_left(trainer)
        epoch = f"epoch {trainer.current_epoch + 1}" + (
            f"/{trainer.max_epochs}" if (trainer.max_epochs or 0) > 0 else ""
        )
        line = (
            f"{epoch}  window {window:,}/{windows:,}  update {trainer.global_step:,}  loss {nats:.4f}  "
            f"perplexity {perplexity(nats):,.2f}  {speed:,.0f} tokens/s  {left}"
        )
        if self._live is None:
            log.info(line)
        else:
            full = round(share * BAR_WIDTH)
            self._live.update(
                Text(f"{'━' * full}{'╌' * (BAR_WIDTH - full)}  {line}", no_wrap=True, overflow="ellipsis")
            )
        self._loss = TokenLoss()
        self._recent.restart()
        self._shown = time.perf_counter()

    def _share_and_seconds_left(self, trainer: L.Trainer) -> tuple[float, str]:
        """Share of all updates done, and the time the rest takes at the speed so far."""
        updates, here = self._updates, trainer.global_step - self._done_at_start
        if updates is None or here < 1:
            return 0.0, ""
        left = round(self._all.seconds / here * max(0, updates - trainer.global_step))
        return min(1.0, trainer.global_step / updates), f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
