"""What the trainer costs: the same training as a plain torch loop and through the whole trainer, in one run, in turn.

Shapes: `B` streams, windows of `T` steps; a round is `windows` windows of each, and the rounds alternate, so that a
machine whose speed drifts slows both alike.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.errors import check_choice, check_integer
from tbptt.run import Run

# Windows at the start of a round that do not count: first allocations, first kernels.
WARM_UP = 3
Builder = Callable[[list[str], Path], Run]


@dataclass(frozen=True)
class Work:
    """A model and a shape of windows; the text is drawn at random, with every type in it."""

    level: str
    types: int
    hidden_size: int
    num_layers: int
    streams: int
    window_steps: int

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


WORKS = {
    "words": Work("word", types=33_278, hidden_size=200, num_layers=2, streams=20, window_steps=35),
    "characters": Work("char", types=65, hidden_size=128, num_layers=1, streams=50, window_steps=50),
}


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


class Clock(L.Callback):
    """The time at which each window starts."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """Note the time."""
        self.starts.append(time.perf_counter())


def plain_loop(run: Run, windows: int) -> list[float]:
    """Train as `run` would, in plain torch, and return the time at which each window starts."""
    model, device = run.task.model, run.trainer.strategy.root_device
    tokens, streams = run.data.tokens["train"], run.data.batch_size
    types, width = model.embedding.weight.shape
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[model.core.cell]
    layers, dropout = model.core.rnn.num_layers, model.dropout.p
    embedding, out = nn.Embedding(types, width).to(device), nn.Linear(width, types).to(device)
    rnn = kind(width, width, layers, dropout=dropout if layers > 1 else 0.0).to(device)
    parameters = [*embedding.parameters(), *rnn.parameters(), *out.parameters()]
    defaults = run.task.recipe["optimizer"]
    optimizer = torch.optim.AdamW(parameters, lr=defaults["lr"], weight_decay=defaults["weight_decay"], fused=True)
    text = tokens[: len(tokens) // streams * streams].view(streams, -1).t().long().to(device)
    starts: list[float] = []
    state: Any = None
    for index in range(windows):
        starts.append(time.perf_counter())
        begin = index * run.data.window_steps
        x, y = text[begin : begin + run.data.window_steps], text[begin + 1 : begin + run.data.window_steps + 1]
        hidden, state = rnn(F.dropout(embedding(x), dropout), state)
        state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        loss: Tensor = F.cross_entropy(out(F.dropout(hidden, dropout)).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, run.task.recipe["trainer"]["gradient_clip_val"])
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return starts


def trainer_loop(run: Run) -> list[float]:
    """Train `run` and return the time at which each window starts."""
    clock = Clock()
    run.trainer.callbacks.append(clock)  # type: ignore[attr-defined]
    run.trainer.fit(run.task, datamodule=run.data)
    return clock.starts


def seconds_per_window(starts: list[float]) -> float:
    """Mean over the windows that count."""
    return (starts[-1] - starts[WARM_UP]) / (len(starts) - 1 - WARM_UP)


def overhead(name: str, cell: str, rounds: int, windows: int, builder: Builder) -> dict[str, Any]:
    """Tokens per second of the plain loop and of the trainer, and the ratio of their times, medians over the rounds.

    Args:
        name: "words" or "characters".
        cell: "lstm", "gru" or "rnn".
        rounds: how often each is run, in turn.
        windows: windows of a round.
        builder: makes a run from command-line overrides and a folder.
    """
    check_choice("work", name, tuple(WORKS))
    check_integer("rounds", rounds, 1, "it counts the turns of each loop")
    check_integer("windows", windows, WARM_UP + 2, f"the first {WARM_UP} do not count")
    work = WORKS[name]
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        # A quarter more: the default configuration cuts a tenth off for validation and test.
        path.write_text(made_text(work, windows * 10 // 8 + 2), encoding="utf-8")
        for number in range(rounds):
            run = builder(work.overrides(path, cell, windows), Path(folder) / str(number))
            # The second of a round finds memory that the first has warmed: they take turns at that too.
            if number % 2:
                ours = seconds_per_window(trainer_loop(run))
                plain = seconds_per_window(plain_loop(run, windows))
            else:
                plain = seconds_per_window(plain_loop(run, windows))
                ours = seconds_per_window(trainer_loop(run))
            times.append((plain, ours))
    tokens = work.streams * work.window_steps
    ratios = [ours / plain for plain, ours in times]
    return {
        "work": name,
        "model": cell,
        **asdict(work),
        "rounds": rounds,
        "windows": windows,
        "plain_tokens_per_second": tokens / statistics.median(plain for plain, _ in times),
        "trainer_tokens_per_second": tokens / statistics.median(ours for _, ours in times),
        "time_ratio": statistics.median(ratios),
        "time_ratio_lowest": min(ratios),
        "time_ratio_highest": max(ratios),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| work | model | plain torch loop, tokens/s | trainer, tokens/s | time, trainer : plain (lowest - highest) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shape = f"{row['work']}, {row['num_layers']} x {row['hidden_size']}, {row['streams']} x {row['window_steps']}"
        spread = f"{row['time_ratio']:.3f} ({row['time_ratio_lowest']:.3f} - {row['time_ratio_highest']:.3f})"
        speeds = f"{row['plain_tokens_per_second']:,.0f} | {row['trainer_tokens_per_second']:,.0f}"
        lines.append(f"| {shape} | {row['model']} | {speeds} | {spread} |")
    return "\n".join(lines)
