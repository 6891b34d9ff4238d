"""Write the course of training to the logger: one row per optimizer update, in batches."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from tbptt.callbacks.stopwatch import Stopwatch
from tbptt.errors import check_integer
from tbptt.metrics import TokenLoss
from tbptt.module import TBPTTModule


class Monitor(L.Callback):
    """Logs `train/loss` (nats per token), `train/gradient_norm`, `train/learning_rate` of each update, and the speed.

    With several processes the loss is that of the first one's streams, and the speed that of all.
    Values wait on the device and are fetched together every `every_n_updates` updates, at the end of each pass and of
    training, so that logging does not make a GPU wait at each step and no run, however short, is without a point.
    `total` measures the whole of training.
    """

    def __init__(self, every_n_updates: int) -> None:
        check_integer("callbacks.monitor.every_n_updates", every_n_updates, 1, "it counts optimizer updates")
        self.every_n_updates = every_n_updates
        self.total = Stopwatch()
        self._since = Stopwatch()
        self._update = TokenLoss()
        self._rows: list[tuple[int, TokenLoss, Tensor, float]] = []
        self._step = 0
        self._learning_rate = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note where training starts."""
        self._step = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the clocks run."""
        self.total.run()
        self._since.run()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Note the rate of this update; once it is made, the schedule has moved on."""
        self._learning_rate = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a window; close a row when the optimizer has stepped."""
        assert isinstance(pl_module, TBPTTModule)
        targets = outputs["targets"]
        self._update.add_mean(outputs["nats"], targets)
        self.total.targets += targets
        self._since.targets += targets
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        assert pl_module.gradient_norm is not None, "an update was made, and its gradient was clipped before"
        self._rows.append((self._step, self._update, pl_module.gradient_norm, self._learning_rate))
        self._update = TokenLoss()
        if self._step % self.every_n_updates == 0:
            self._flush(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clocks, once the device has done what was asked of it."""
        self._pause(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what is left of the pass."""
        self._pause(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write what is left of training."""
        self._pause(trainer)

    def _pause(self, trainer: L.Trainer) -> None:
        if trainer.sanity_checking:
            return
        self._flush(trainer)
        self.total.pause()
        self._since.pause()

    def _flush(self, trainer: L.Trainer) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        losses = [row[1].nats for row in rows]
        norms = torch.stack([row[2] for row in rows]).tolist()
        speed = self._since.tokens_per_second * trainer.world_size
        self._since.restart()
        if trainer.logger is None:
            return
        for (step, _, _, learning_rate), loss, norm in zip(rows, losses, norms, strict=True):
            values = {"train/loss": loss, "train/gradient_norm": norm, "train/learning_rate": learning_rate}
            if step == rows[-1][0]:
                values["train/tokens_per_second"] = speed
            trainer.logger.log_metrics(values, step=step)
