"""Show what the model writes, after each validation."""

import logging
import math

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from tbptt.errors import check_integer, check_number
from tbptt.sample import sample
from tbptt.tasks import LanguageModelTask

log = logging.getLogger(__name__)


class Samples(L.Callback):
    """Logs `length` tokens written by the model, to the log and to TensorBoard, always from the same seed.

    Own state and own random generator: training is bit for bit the same with and without it.
    """

    def __init__(self, length: int, temperature: float) -> None:
        check_integer("callbacks.samples.length", length, 0, "it counts the tokens to write")
        check_number("callbacks.samples.temperature", temperature, "0 takes the likeliest token")
        self.length = length
        self.temperature = temperature

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write and log a sample."""
        if trainer.sanity_checking or not trainer.is_global_zero or not self.length:
            return
        assert isinstance(pl_module, LanguageModelTask)
        if not math.isfinite(pl_module.evaluation_loss.nats):
            log.warning("sample: none, since the validation loss is not finite")
            return
        text = sample(pl_module.model, pl_module.vocabulary, length=self.length, temperature=self.temperature)
        # A text may hold characters that would move the cursor or end the string.
        text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
        log.info("sample: %s", text.strip().replace("\n", "\n        "))
        if isinstance(trainer.logger, TensorBoardLogger):
            # Four spaces make a code block of Markdown: the text is shown as it is.
            block = "\n".join("    " + line for line in text.split("\n"))
            trainer.logger.experiment.add_text("sample", block, trainer.global_step)
