"""Show what the model writes, after each validation."""

import logging

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from tbptt.sample import sample
from tbptt.tasks import LanguageModelTask

log = logging.getLogger(__name__)


class Samples(L.Callback):
    """Logs `length` tokens written by the model, to the log and to TensorBoard, always from the same seed.

    Own state and own random generator: training is bit for bit the same with and without it.
    """

    def __init__(self, length: int, temperature: float) -> None:
        self.length = length
        self.temperature = temperature

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write and log a sample."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, LanguageModelTask)
        text = sample(pl_module.model, pl_module.vocabulary, length=self.length, temperature=self.temperature)
        log.info("sample: %s", text.strip().replace("\n", "\n        "))
        if isinstance(trainer.logger, TensorBoardLogger):
            # Four spaces make a code block of Markdown: the text is shown as it is.
            block = "\n".join("    " + line for line in text.split("\n"))
            trainer.logger.experiment.add_text("sample", block, trainer.global_step)
