"""What the trainer costs: the same training as a plain torch loop and through the whole trainer, in one run, in turn.

Shapes: `B` streams, windows of `T` steps; a round is `windows` windows of each, and the rounds alternate, so that a
machine whose speed drifts slows both alike.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.benchmark.options import Options
from tbptt.benchmark.report import Panel, Row, environment, markdown, number, panel, say, span, spread
from tbptt.benchmark.works import find, made_text
from tbptt.errors import check_integer
from tbptt.run import Run

# Windows at the start of a round that do not count: first allocations, first kernels.
WARM_UP = 3
# Of a round.
WINDOWS = {"words": 25, "characters": 150}
Builder = Callable[[list[str], Path], Run]


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
    layers, dropout = model.core.rnn.num_layers, float(model.dropout.probability)
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
        name: of a work, "words" or "characters".
        cell: "lstm", "gru" or "rnn".
        rounds: how often each is run, in turn.
        windows: windows of a round.
        builder: makes a run from command-line overrides and a folder.
    """
    check_integer("rounds", rounds, 1, "it counts the turns of each loop")
    check_integer("windows", windows, WARM_UP + 2, f"the first {WARM_UP} do not count")
    work = find(name)
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
        **spread("time_ratio", ratios),
    }


def rows(options: Options) -> list[Row]:
    """A row for each work and cell."""
    assert options.builder is not None
    rounds = options.rounds or (3 if options.quick else 8)
    cases = list(itertools.product(options.chosen_works(tuple(WINDOWS)), options.cells))
    found = []
    for index, (name, cell) in enumerate(cases):
        windows = options.windows or WINDOWS.get(name, 25) // (2 if options.quick else 1)
        say(f"overhead, {index + 1} of {len(cases)}: {name}, {cell}, {rounds} rounds of {windows} windows")
        row = overhead(name, cell, rounds, windows, options.builder)
        found.append({"what": "overhead", **row, **environment("cuda" if torch.cuda.is_available() else "cpu")})
    return found


def table(found: list[Row]) -> str:
    """A line for each work and cell."""
    return markdown(
        {
            "work": lambda row: f"{row['work']}, {find(row['work']).shape}",
            "model": lambda row: row["model"],
            "plain torch loop, tokens/s": lambda row: number(row, "plain_tokens_per_second", ",.0f"),
            "trainer, tokens/s": lambda row: number(row, "trainer_tokens_per_second", ",.0f"),
            "time, trainer : plain (lowest - highest)": lambda row: span(row, "time_ratio"),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """The ratios."""
    return [panel("time, trainer : plain", found, lambda row: f"{row['work']}, {row['model']}", "time_ratio")]
