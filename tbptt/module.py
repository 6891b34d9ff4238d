"""The training engine: a window is a batch, and the state lives on between batches.

Lightning's automatic optimization does the rest, so clipping, accumulation, precision, schedulers and step counts keep
their meaning. Shapes: window `(T, B)`, carry `(L, B, H)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tbptt.errors import UserError
from tbptt.metrics import TokenLoss
from tbptt.passes import close_pass, set_length, start_pass
from tbptt.state import State
from tbptt.streams import Window

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]

# What torch's schedules derive from the number of steps of a run.
LENGTHS = {"T_max", "total_steps", "_schedule_phases"}


class TBPTTModule(L.LightningModule, ABC):
    """Truncated BPTT for any model: run the window from the carry, detach, keep.

    There are three kinds of state, and none touches another: the training carry (here), the evaluation carry (here,
    fresh for each validation or test), and the state of sampling (in `tbptt.sample`).

    Args:
        model: the network; its parameters are trained.
        optimizer: makes the optimizer from the parameters.
        scheduler: makes the learning-rate schedule from the optimizer, None for a constant rate.
        interval: "step" to advance the schedule after each update, "epoch" after each pass over the text.
            A `ReduceLROnPlateau` advances after each validation instead, on the validation loss.
        recipe: what built this run, in plain types; saved in every checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None,
        interval: str,
        recipe: dict[str, Any],
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.gradient_norm: Tensor | None = None
        self.train_loss = TokenLoss()
        self.evaluation_loss = TokenLoss()
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._interval = interval
        self._carry: State | None = None
        self._evaluation_carry: State | None = None
        self._saved: dict[str, Any] | None = None
        self._rates: list[float] = []

    # What a task says.

    @abstractmethod
    def initial_state(self, streams: int) -> State:
        """The state at the start of a text, for that many streams."""

    @abstractmethod
    def window_loss(self, window: Window, state: State) -> tuple[Tensor, State]:
        """Nats of a window through its divisor, with its gradient, and the state after `window.advance` steps.

        Here and in `window_nats` streams start anew where `window.reset` says.
        """

    @abstractmethod
    def window_nats(self, window: Window, state: State) -> tuple[Tensor, State]:
        """Sum of nats over a window's targets that count, without a gradient, and the state after it."""

    @abstractmethod
    def metrics(self, part: str, loss: TokenLoss) -> dict[str, float]:
        """What to report of a whole text: names `part/...` and values."""

    # What is the same for all.

    def training_step(self, window: Window, batch_idx: int) -> dict[str, Any]:
        """Loss of one window from the carry; the carry moves on, without its history."""
        loss, state = self.window_loss(window, self._enter(self._carry, window))
        self._carry = state.detach()
        targets = window.targets
        nats = loss.detach()
        if window.divisor is not None and window.divisor != targets:
            # Other processes count more targets or fewer: the loss is a share of theirs, this is our own mean.
            nats = nats * (window.divisor / max(1, targets))
        self.train_loss.add_mean(nats, targets)
        # Lightning divides `loss` in place of the one returned when it accumulates gradients.
        return {"loss": loss, "nats": nats, "targets": targets}

    def validation_step(self, window: Window, batch_idx: int) -> None:
        """Add one window to the loss of the text that is evaluated."""
        nats, state = self.window_nats(window, self._enter(self._evaluation_carry, window))
        self._evaluation_carry = state
        self.evaluation_loss.add(nats, window.targets)

    def test_step(self, window: Window, batch_idx: int) -> None:
        """As in validation."""
        self.validation_step(window, batch_idx)

    def _enter(self, carry: State | None, window: Window) -> State:
        """The state a window starts from: the carry, or a fresh one where there is none."""
        streams = window.x.shape[1]
        if carry is None:
            return self.initial_state(streams)
        if carry.batch_size != streams:
            raise UserError(
                f"data.batch_size must stay the one the saved state has: it holds {carry.batch_size} streams here, "
                f"but a window has {streams}; resume with the batch size that was trained with."
            )
        return carry

    def on_train_start(self) -> None:
        """Put loss, schedule and random generators where the checkpoint had them.

        Here, since nothing before draws from the generators for training, and nothing after may.
        """
        set_length(self.trainer)
        self._rates = []
        saved, self._saved = self._saved, None
        if saved is None:
            if self.global_rank:
                # Other streams, other dropout masks; the weights were drawn alike before.
                torch.manual_seed(torch.initial_seed() + self.global_rank)
            return
        if self._carry is not None:
            self._carry = self._carry.to(self.device)
        self.train_loss = TokenLoss.from_dict(saved["train_loss"], self.device)
        self._fit_schedule(saved["lr_schedulers"])
        rank = self.global_rank if self.global_rank < len(saved["rng"]["cpu"]) else 0
        torch.set_rng_state(saved["rng"]["cpu"][rank])
        if len(saved["rng"]["cuda"]) and self.device.type == "cuda":
            torch.cuda.set_rng_state(saved["rng"]["cuda"][rank], self.device)

    def _fit_schedule(self, saved: list[dict[str, Any]]) -> None:
        """Move onto the curve of this run's length, where it is longer or shorter than the one that was saved."""
        for config, state in zip(self.trainer.lr_scheduler_configs, saved, strict=True):
            now = config.scheduler.state_dict()
            if any(now[name] != state[name] for name in LENGTHS & state.keys()):
                for group in config.scheduler.optimizer.param_groups:
                    group["lr"] = self._rate_after(state["last_epoch"])

    def _rate_after(self, steps: int) -> float:
        """The learning rate of this run's schedule after so many of its steps, found by making them."""
        assert self._scheduler is not None
        optimizer = self._optimizer(iter([nn.Parameter(torch.zeros(1))]))
        schedule = self._scheduler(optimizer)
        for _ in range(steps):
            optimizer.step()
            schedule.step()
        return float(optimizer.param_groups[0]["lr"])

    def on_train_epoch_start(self) -> None:
        """Start a new pass: its windows, and its loss."""
        start_pass(self.trainer)
        self.train_loss = TokenLoss()

    def on_train_batch_start(self, batch: Window, batch_idx: int) -> None:
        """Note the factor on the learning rate that the window asks for."""
        self._rates.append(batch.rate)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Update, at the scheduled rate times the mean factor of the windows in it; the schedule does not see that."""
        factor, self._rates = sum(self._rates) / len(self._rates), []
        scheduled = [group["lr"] for group in optimizer.param_groups]
        if factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        try:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        finally:
            for group, rate in zip(optimizer.param_groups, scheduled, strict=True):
                group["lr"] = rate
        # Lightning would keep them until the next window's are made, and both would take memory.
        optimizer.zero_grad(set_to_none=True)

    def on_validation_epoch_start(self) -> None:
        """Start the evaluation of a text from its beginning."""
        self._evaluation_carry, self.evaluation_loss = None, TokenLoss()

    def on_test_epoch_start(self) -> None:
        """As in validation."""
        self.on_validation_epoch_start()

    def on_validation_epoch_end(self) -> None:
        """Report the validation loss; advance a schedule that waits for it."""
        self._report("val")
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            for config in self.trainer.lr_scheduler_configs:
                if isinstance(config.scheduler, ReduceLROnPlateau):
                    config.scheduler.step(self.evaluation_loss.nats)

    def _report(self, part: str) -> None:
        # Every process evaluates the whole text, so the numbers are equal and need no exchange. They go to the logger
        # from here, since Lightning would count their step from 0 where training's updates count from 1.
        numbers = self.metrics(part, self.evaluation_loss)
        self.log_dict(numbers, logger=False)
        if self.trainer.logger is not None and not self.trainer.sanity_checking:
            self.trainer.logger.log_metrics(numbers, step=self.trainer.global_step)

    def on_test_epoch_end(self) -> None:
        """Report the test loss."""
        self._report("test")

    def configure_optimizers(self) -> Any:
        """The optimizer and, where there is one, the schedule with its interval."""
        optimizer = self._optimizer(self.parameters())
        if self._scheduler is None:
            return optimizer
        schedule = {"scheduler": self._scheduler(optimizer), "interval": self._interval, "reduce_on_plateau": False}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Advance a schedule; a plateau one is advanced by validation, so that a checkpoint made there holds it."""
        if not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip, and keep the gradient's norm from before clipping: one pass for both."""
        if gradient_clip_algorithm == "value":
            self.gradient_norm = torch.nn.utils.get_total_norm(_gradients(self.parameters()))
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)
        else:
            self.gradient_norm = torch.nn.utils.get_total_norm(_gradients(self.parameters()))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the recipe, the training carry of all processes and the state of the random generators."""
        checkpoint["recipe"] = self.recipe
        checkpoint["carry"] = None if self._carry is None else self._all_columns(self._carry).to_dict()
        checkpoint["train_loss"] = self.train_loss.to_dict()
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        checkpoint["rng"] = {
            "cpu": self._of_all_ranks(torch.get_rng_state()),
            "cuda": [state for one in cuda for state in self._of_all_ranks(one)],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them back. The length of a schedule is that of this run, which may be longer than the one saved."""
        carry = checkpoint["carry"]
        self._carry = None if carry is None else self._own_columns(State.from_dict(carry))
        schedules = [dict(state) for state in checkpoint["lr_schedulers"]]
        self._saved = {"rng": checkpoint["rng"], "train_loss": checkpoint["train_loss"], "lr_schedulers": schedules}
        close_pass(checkpoint)
        for state in checkpoint["lr_schedulers"]:
            for name in LENGTHS & state.keys():
                del state[name]

    def _of_all_ranks(self, state: Tensor) -> list[Tensor]:
        """A tensor of each process, on the CPU."""
        if self.trainer.world_size == 1:
            return [state]
        gathered = self.all_gather(state.to(self.device))
        assert isinstance(gathered, Tensor)
        # Copies: torch crashes on a generator state that is a view into a larger tensor.
        return [one.clone() for one in gathered.cpu()]

    def _all_columns(self, carry: State) -> State:
        """The carry of all processes side by side, by global column."""
        if self.trainer.world_size == 1:
            return carry
        return carry.map(lambda part: torch.cat(list(self.all_gather(part)), dim=1))

    def _own_columns(self, carry: State) -> State:
        """Take this process' columns of the carry of all."""
        share = carry.batch_size // self.trainer.world_size
        begin = self.trainer.global_rank * share
        return carry.map(lambda whole: whole[:, begin : begin + share].contiguous())


def _gradients(parameters: Iterator[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
