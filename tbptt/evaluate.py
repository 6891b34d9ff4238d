"""Score a text with a model: every token but the first of each stream, once, in context."""

from collections.abc import Iterable
from typing import Any

import torch

from tbptt.errors import UserError, check_choice, check_integer
from tbptt.metrics import TokenLoss
from tbptt.nn import LanguageModel
from tbptt.state import State
from tbptt.streams import Window, WindowLoader
from tbptt.text import Vocabulary, read_corpus


@torch.no_grad()
def evaluate(model: LanguageModel, windows: Iterable[Window]) -> TokenLoss:
    """Loss of `model` over `windows`, from a fresh state, and anew where a window says so; its mode stays.

    The result does not depend on how long the windows are, and with one stream on nothing else either.
    """
    training, device = model.training, next(model.parameters()).device
    loss = TokenLoss()
    state: State | None = None
    model.eval()
    try:
        for window in windows:
            reset = None if window.reset is None else window.reset.to(device)
            nats, state = model.nats(window.x.to(device), window.y.to(device), state, reset=reset)
            loss.add(nats, window.targets)
    finally:
        model.train(training)
    return loss


def evaluate_text(
    model: LanguageModel, vocabulary: Vocabulary, text: str, *, batch_size: int = 1, window_steps: int = 1000
) -> TokenLoss:
    """Loss of `model` over a text, read as `batch_size` streams.

    Raises:
        UserError: when the text is too short, or holds symbols that the vocabulary lacks and has no unknown for.
    """
    check_integer("batch_size", batch_size, 1, "it counts the streams the text is read as")
    check_integer("window", window_steps, 1, "it counts the steps at a time; the result does not depend on it")
    tokens = torch.from_numpy(vocabulary.encode(text, key="path"))
    if len(tokens) < 2 * batch_size:
        raise UserError(
            f"batch_size={batch_size} streams need at least {2 * batch_size} tokens, but the text has {len(tokens)}; "
            f"take batch_size=1 or a longer text."
        )
    return evaluate(model, WindowLoader(tokens, batch_size, window_steps))


def corpus_part(recipe: dict[str, Any], part: str, sha256: str) -> tuple[str, str]:
    """A part ("train", "validation", "test") of the corpus that a recipe's `data` names, and a line that names it.

    Raises:
        UserError: when the corpus is gone, is not the one with this checksum any more, or has no such part.
    """
    check_choice("part", part, ("train", "validation", "test"))
    names = ("level", "path", "val_path", "test_path", "val_fraction", "test_fraction", "encoding")
    corpus = read_corpus(**{name: recipe[name] for name in names})
    if corpus.sha256 != sha256:
        raise UserError(
            f"the corpus ({corpus.source}) is not the one this model was trained on: its checksum is "
            f"{corpus.sha256[:12]} and was {sha256[:12]}; give path=FILE to score a file as it is."
        )
    text: str = getattr(corpus, part)
    if not text:
        raise UserError(f"part={part} is empty in this corpus; take part=train or give path=FILE.")
    return text, f"{part} part of {corpus.source}"
