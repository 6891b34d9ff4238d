"""What is trained: a language model over one text."""

from typing import Any

from torch import Tensor

from tbptt.bptt import WHOLE, Plan, window_loss
from tbptt.metrics import TokenLoss
from tbptt.module import OptimizerFactory, SchedulerFactory, TBPTTModule
from tbptt.nn import LanguageModel
from tbptt.state import State
from tbptt.streams import Window
from tbptt.text import Vocabulary


class LanguageModelTask(TBPTTModule):
    """Predict each token from those before it; reports perplexity for words and bits per character for characters.

    Args beyond those of `TBPTTModule`:
        vocabulary: of the text; saved in every checkpoint.
        corpus: where the text came from and its checksum; saved too.
        plan: how windows are run; a choice of memory and speed.
    """

    model: LanguageModel

    def __init__(
        self,
        model: LanguageModel,
        vocabulary: Vocabulary,
        *,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None = None,
        interval: str = "epoch",
        recipe: dict[str, Any],
        corpus: dict[str, str],
        plan: Plan = WHOLE,
    ) -> None:
        super().__init__(model, optimizer=optimizer, scheduler=scheduler, interval=interval, recipe=recipe)
        self.vocabulary = vocabulary
        self.corpus = corpus
        self.plan = plan

    def initial_state(self, streams: int) -> State:
        """Zeros, or the learned state."""
        return self.model.initial_state(streams)

    def window_loss(self, window: Window, state: State) -> tuple[Tensor, State]:
        """Mean nats per token, and the state that the next window starts from."""
        return window_loss(
            self.model,
            window.x,
            window.y,
            state,
            plan=self.plan,
            reset=window.reset,
            advance=window.advance,
            divisor=window.divisor,
        )

    def window_nats(self, window: Window, state: State) -> tuple[Tensor, State]:
        """Sum of nats."""
        return self.model.nats(window.x, window.y, state, reset=window.reset)

    def metrics(self, part: str, loss: TokenLoss) -> dict[str, float]:
        """Loss in nats per token, and the unit people quote for this level."""
        return {f"{part}/loss": loss.nats, f"{part}/{unit(self.vocabulary.level)}": quoted(self.vocabulary.level, loss)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the vocabulary: a checkpoint needs nothing else to be used."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["vocabulary"] = self.vocabulary.to_dict()
        checkpoint["corpus"] = self.corpus


def unit(level: str) -> str:
    """The name of the quoted unit: bpc and bpb (bits per character and byte) at their levels, else perplexity."""
    return {"char": "bpc", "byte": "bpb"}.get(level, "perplexity")


def quoted(level: str, loss: TokenLoss) -> float:
    """The loss in that unit."""
    return loss.perplexity if unit(level) == "perplexity" else loss.bits
