"""What is trained in a measurement: a model, a shape of windows, and a text.

Shapes: `B` streams, windows of `T` steps; tokens `(N,)`, a window's inputs and targets `(T, B)` of int64.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice
from tbptt.nn import CELLS, LanguageModel
from tbptt.streams import WindowLoader
from tbptt.text import Options, read_corpus


@dataclass(frozen=True)
class Work:
    """A model and a shape of windows; every layer and the embedding are `hidden_size` wide."""

    level: str
    types: int
    hidden_size: int
    num_layers: int
    streams: int
    window_steps: int

    @property
    def tokens(self) -> int:
        """Tokens of a window."""
        return self.streams * self.window_steps

    @property
    def shape(self) -> str:
        """Layers, units, streams and steps in a few letters."""
        return f"{self.num_layers} x {self.hidden_size}, {self.streams} x {self.window_steps}"

    def overrides(self, path: Path, cell: str, windows: int) -> list[str]:
        """The command line of this work, with the default callbacks and TensorBoard, and without validation."""
        values = {
            "data": self.level,
            "model": cell,
            "data.path": path,
            "data.min_count": 1,
            "data.batch_size": self.streams,
            "bptt.window": self.window_steps,
            "model.embedding_size": self.hidden_size,
            "model.hidden_size": self.hidden_size,
            "model.num_layers": self.num_layers,
            "scheduler": "constant",
            "trainer.max_steps": windows,
            "trainer.max_epochs": -1,
            "trainer.limit_val_batches": 0,
        }
        return [f"{key}={value}" for key, value in values.items()]


def _characters(units: int, layers: int) -> Work:
    return Work("char", types=65, hidden_size=units, num_layers=layers, streams=50, window_steps=50)


WORKS = {
    "words": Work("word", types=33_278, hidden_size=200, num_layers=2, streams=20, window_steps=35),
    "ptb": Work("word", types=10_000, hidden_size=650, num_layers=2, streams=20, window_steps=35),
    "characters": _characters(128, 1),
    "characters-2x128": _characters(128, 2),
    "characters-2x200": _characters(200, 2),
}
GRID = {f"grid-{units}x{layers}": _characters(units, layers) for units in (64, 128, 256, 512) for layers in (1, 2, 3)}
ALL = {**WORKS, **GRID}


def find(name: str) -> Work:
    """The work of that name.

    Raises:
        UserError: where there is none.
    """
    check_choice("works", name, tuple(ALL))
    return ALL[name]


def made_text(work: Work, windows: int) -> str:
    """Random text with exactly the types of `work`; word frequencies follow Zipf's law, as in natural text."""
    draw = random.Random(0)  # noqa: S311 - no secret
    count = work.streams * (work.window_steps * windows + 1)
    if work.level == "char":
        symbols = ["\n", *(chr(33 + i) for i in range(work.types - 1))]
        return "".join(symbols + draw.choices(symbols, k=count))
    # One type of the vocabulary is the end of a line.
    symbols = [f"w{i}" for i in range(work.types - 1)]
    drawn = symbols + draw.choices(symbols, weights=[1 / (i + 1) for i in range(len(symbols))], k=count)
    return "\n".join(" ".join(drawn[i : i + 20]) for i in range(0, len(drawn), 20)) + "\n"


def made_tokens(work: Work, windows: int) -> Tensor:
    """Tokens `(N,)` for so many windows, drawn one by one; their frequencies follow Zipf's law."""
    chances = 1 / torch.arange(1, work.types + 1, dtype=torch.float64)
    count = work.streams * (work.window_steps * windows + 1)
    return torch.multinomial(chances, count, replacement=True, generator=torch.Generator().manual_seed(0)).int()


def read_tokens(work: Work, path: str | None, windows: int) -> tuple[Work, Tensor]:
    """The tokens of a text file, and the work with its types; made ones where there is no path."""
    if path is None:
        return work, made_tokens(work, windows)
    newlines = "universal" if work.level == "word" else "keep"
    options = Options(work.level, newlines=newlines, max_vocab=work.types, val_fraction=0.0, test_fraction=0.0)
    corpus = read_corpus(options, path)
    return replace(work, types=len(corpus.vocabulary)), torch.from_numpy(corpus.tokens["train"].astype("int32"))


class Windows:
    """The full windows of some tokens, round and round.

    Raises:
        UserError: for a text with less than one.
    """

    def __init__(self, work: Work, tokens: Tensor, device: str) -> None:
        self._count = (len(tokens) // work.streams - 1) // work.window_steps
        self._device = device
        if self._count < 1:
            need = work.streams * (work.window_steps + 1)
            raise UserError(f"path must name a text of at least {need} tokens, but it has {len(tokens)}; take another.")
        self._loader = WindowLoader(tokens, work.streams, work.window_steps)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of window `index`, both `(T, B)`."""
        window = self._loader[index % self._count]
        return window.x.to(self._device), window.y.to(self._device)


def make_model(work: Work, cell: str, dropout: float = 0.0, **others: Any) -> LanguageModel:
    """A model with the weights that seed 0 gives; `others` are arguments of `LanguageModel` that are to differ."""
    check_choice("cells", cell, CELLS)
    torch.manual_seed(0)
    arguments = {
        "cell": cell,
        "embedding_size": work.hidden_size,
        "hidden_size": work.hidden_size,
        "num_layers": work.num_layers,
        "dropout": dropout,
        "tie_weights": False,
        "learn_initial_state": False,
        "nonlinearity": "tanh" if cell == "rnn" else None,
    }
    return LanguageModel(work.types, **{**arguments, **others})


def window_flops(model: LanguageModel, work: Work) -> int:
    """Operations of a window's matrix products, forward and backward: 6 for each weight and token."""
    matrices = [weight.numel() for weight in model.core.parameters() if weight.dim() == 2]
    return 6 * work.tokens * (sum(matrices) + model.head.projection.weight.numel())
