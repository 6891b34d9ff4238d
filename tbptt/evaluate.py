"""Score a text with a model: every token but the first of each stream, once, in context."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tbptt.borders import Positions
from tbptt.checkpoint import Loaded
from tbptt.errors import UserError, check_choice, check_integer
from tbptt.metrics import TokenLoss
from tbptt.nn import LanguageModel
from tbptt.state import State
from tbptt.streams import Window, WindowLoader
from tbptt.text import Options, PathLike, encode_files, read_data


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


def evaluate_tokens(
    model: LanguageModel,
    tokens: Tensor,
    borders: Positions | None = None,
    *,
    batch_size: int = 1,
    window_steps: int = 1000,
) -> TokenLoss:
    """Loss of `model` over `tokens` `(N,)`, read as `batch_size` streams, with documents apart if `borders` are given.

    Raises:
        UserError: when there are too few tokens, or none that can be predicted.
    """
    check_integer("batch_size", batch_size, 1, "it counts the streams the text is read as")
    check_integer("window", window_steps, 1, "it counts the steps at a time; the result does not depend on it")
    if len(tokens) < 2 * batch_size:
        raise UserError(
            f"batch_size={batch_size} streams need at least {2 * batch_size} tokens, but the text has {len(tokens)}; "
            f"take batch_size=1 or a longer text."
        )
    reset = "epoch" if borders is None else "document"
    windows = WindowLoader(tokens, batch_size, window_steps, reset=reset, borders=borders)
    if not windows.targets:
        raise UserError(
            "the text must have a document of 2 tokens, of which one can be predicted, but none has more than 1; give "
            "a longer text."
        )
    return evaluate(model, windows)


def trained_part(loaded: Loaded, part: str) -> tuple[Tensor, Positions | None, str]:
    """A part ("train", "validation", "test") of the corpus that a model was trained with.

    Returns:
        tokens, borders of documents where training kept them apart, and a line that names them.

    Raises:
        UserError: when the corpus is gone, is not the one that it was, or has no such part.
    """
    check_choice("part", part, ("train", "validation", "test"))
    recipe, sha256 = loaded.recipe["data"], loaded.corpus["sha256"]
    paths = {name: recipe[name] for name in ("path", "val_path", "test_path", "corpus", "cache_dir")}
    try:
        corpus = read_data(_options(recipe), **paths)
    except UserError as error:
        raise UserError(
            f"the corpus of training cannot be read: {error} Or give path=FILE to score another."
        ) from error
    if corpus.sha256 != sha256:
        raise UserError(
            f"the corpus ({corpus.source}) is not the one this model was trained on: its checksum is "
            f"{corpus.sha256[:12]} and was {sha256[:12]}; give path=FILE to score a file as it is."
        )
    tokens = corpus.tokens[part]
    if not len(tokens):
        others = " or ".join(f"part={name}" for name, ids in corpus.tokens.items() if len(ids))
        raise UserError(f"part={part} is empty in this corpus; take {others}, or give path=FILE.")
    borders = corpus.borders[part] if _apart(loaded) else None
    return torch.from_numpy(tokens), borders, f"{part} part of {corpus.source}"


def other_text(loaded: Loaded, path: PathLike, encoding: str | None) -> tuple[Tensor, Positions | None, str]:
    """The same of another text, in this encoding (None: that of training).

    Raises:
        UserError: when it cannot be read, or holds symbols that the vocabulary lacks and has no unknown for.
    """
    options = _options(loaded.recipe["data"])
    if encoding is not None:
        options = replace(options, encoding=encoding)
    ids, borders = encode_files(path, loaded.vocabulary, options)
    return torch.from_numpy(ids), borders if _apart(loaded) else None, str(path)


def _options(recipe: dict[str, Any]) -> Options:
    return Options(**{name: recipe[name] for name in Options.names()})


def _apart(loaded: Loaded) -> bool:
    """Whether the model was trained with documents apart."""
    return bool(loaded.recipe["bptt"]["reset"] == "document")
