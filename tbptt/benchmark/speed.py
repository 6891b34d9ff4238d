"""Tokens per second of all variants beside each other, and how much of the machine's own speed that is.

Shapes: windows `(T, B)`. All variants of a work live in one process and see the same windows. In each round each has a
turn, and the turns rotate, so that a machine whose speed drifts slows all alike; ratios are taken within a round.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import Peer, Variant, make_peer
from tbptt.benchmark.report import Panel, Row, environment, markdown, number, panel, say, span, spread
from tbptt.benchmark.works import Windows, Work, make_model, read_tokens, window_flops

DEFAULT_WORKS = ("words", "ptb", "characters", "characters-2x128", "characters-2x200")
QUICK_WORKS = ("words", "ptb", "characters")
DEFAULT_VARIANTS = (
    "plain-bf16",
    "clones",
    "ours",
    "ours-bf16",
    "ours-kernel",
    "ours-hidden",
    "ours-torch",
    "ours-chunked",
)
QUICK_VARIANTS = ("plain-bf16", "clones", "ours", "ours-bf16", "ours-kernel")
# Of the windows that count in a turn, unless asked otherwise: turns are short and rounds many, since a shared machine
# may change its speed from one second to the next.
TURN_FLOPS = 4e10
ROUNDS, QUICK_ROUNDS = 15, 5
SIDE = 2048
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2}


def rows(options: Options) -> list[Row]:
    """A row for each variant of each work and cell."""
    found: list[Row] = []
    works, variants = (
        options.chosen_works(DEFAULT_WORKS, QUICK_WORKS),
        options.chosen_variants(DEFAULT_VARIANTS, QUICK_VARIANTS),
    )
    cases = list(itertools.product(works.items(), options.cells))
    for index, ((name, work), cell) in enumerate(cases):
        say(f"speed, {index + 1} of {len(cases)}: {name}, {cell}, {work.shape}, {len(variants)} variants")
        found += compare(name, work, cell, variants, options)
    return found


def compare(name: str, work: Work, cell: str, variants: dict[str, Variant], options: Options) -> list[Row]:
    """Variants of one work and cell in one process, in turn."""
    windows = turn_windows(work, cell, options)
    work, tokens = read_tokens(work, options.path, max(20, 2 * windows))
    feed = Windows(work, tokens, options.device)
    model = make_model(work, cell, options.dropout).to(options.device)
    drift = losses(work, cell, variants, options, model, feed) if options.loss_windows else {}
    runners = {
        key: Runner(make_peer(variant, model, work, cell, dropout=options.dropout, device=options.device), feed)
        for key, variant in variants.items()
    }
    for runner in runners.values():
        runner.turn(1)
    times: dict[str, list[float]] = {key: [] for key in runners}
    peaks: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    for round_number in range(rounds):
        say(f"  round {round_number + 1} of {rounds}, {windows} windows each")
        for dtype in peaks:
            peaks[dtype].append(matrix_peak(dtype, options.device))
        order = list(runners)
        first = round_number % len(order)
        for key in order[first:] + order[:first]:
            times[key].append(runners[key].turn(windows))
        if not round_number and not options.loss_windows:
            drift = {key: runner.loss for key, runner in runners.items()}
    common = {"work": name, "cell": cell, **_shape(work), "rounds": rounds, "windows": windows}
    common |= {"matrix_peaks": {key: statistics.median(values) for key, values in peaks.items()}}
    common |= {"loss_windows": options.loss_windows or windows + 2, "dropout": options.dropout, "path": options.path}
    return [
        {
            "what": "speed",
            **common,
            "variant": key,
            **figures(variant, times[key], times["plain"], work, window_flops(model, work), peaks),
            **agreement(variant, drift[key], drift["plain"], options.dropout),
            **environment(options.device),
        }
        for key, variant in variants.items()
    ]


def _shape(work: Work) -> Row:
    return {"shape": work.shape, "types": work.types}


def turn_windows(work: Work, cell: str, options: Options) -> int:
    """Windows of a turn: more of small ones, which would be too short to be measured."""
    if options.windows is not None:
        return options.windows
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    weights = work.num_layers * gates * 2 * work.hidden_size**2 + work.types * work.hidden_size
    # A window of small layers takes longer than its products alone would.
    windows = int(TURN_FLOPS / (6 * work.tokens * (weights + 2e5)))
    return min(20, max(1 if options.quick else 2, windows))


class Runner:
    """A peer, and where in the windows it is."""

    def __init__(self, peer: Peer, feed: Windows) -> None:
        self._peer, self._feed, self._next = peer, feed, 0
        self.loss = float("nan")

    def turn(self, count: int) -> float:
        """Seconds per window, after one that does not count; the windows are there before the clock starts."""
        windows = [self._feed[self._next + index] for index in range(count + 1)]
        self._next += count + 1
        loss = self._peer.step(*windows[0])
        _wait(self._peer.device)
        begin = time.perf_counter()
        for x, y in windows[1:]:
            loss = self._peer.step(x, y)
        _wait(self._peer.device)
        seconds = time.perf_counter() - begin
        self.loss = loss.item()
        return seconds / count


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_peak(dtype: str, device: str) -> float:
    """Operations per second of a large product, the best of three."""
    left = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype), device=device)
    right, best = left.clone(), float("inf")
    for _ in range(3):
        _wait(device)
        begin = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * SIDE**3 / best


def losses(
    work: Work, cell: str, variants: dict[str, Variant], options: Options, model: Any, feed: Windows
) -> dict[str, float]:
    """The loss of the last of `loss_windows` windows, of each variant, from equal weights."""
    found = {}
    for index, (key, variant) in enumerate(variants.items()):
        say(f"  loss after {options.loss_windows} windows, {index + 1} of {len(variants)}: {key}")
        runner = Runner(make_peer(variant, model, work, cell, dropout=options.dropout, device=options.device), feed)
        runner.turn(max(1, options.loss_windows - 1))
        found[key] = runner.loss
    return found


def figures(
    variant: Variant, times: list[float], plain: list[float], work: Work, flops: int, peaks: dict[str, list[float]]
) -> Row:
    """Speeds of a variant, beside those of the plain loop and of the machine."""
    peak = statistics.median(peaks["bfloat16" if variant.bfloat16 else "float32"])
    return {
        **spread("tokens_per_second", [work.tokens / seconds for seconds in times]),
        **spread("speed_ratio", [base / seconds for seconds, base in zip(times, plain, strict=True)]),
        "share_of_peak": flops / statistics.median(times) / peak,
    }


def agreement(variant: Variant, loss: float, plain: float, dropout: float) -> Row:
    """How far the loss is from the plain loop's; with dropout, which each draws for itself, that says nothing."""
    difference = loss / plain - 1
    allowed = TOLERANCE["bfloat16" if variant.bfloat16 else "float32"]
    return {"loss": loss, "loss_difference": difference, "agrees": None if dropout else abs(difference) <= allowed}


def table(found: list[Row]) -> str:
    """A line for each variant."""
    shown = markdown(
        {
            "work": lambda row: f"{row['work']}, {row['types']:,} types, {row['shape']}",
            "cell": lambda row: row["cell"],
            "variant": lambda row: row["variant"],
            "tokens/s": lambda row: number(row, "tokens_per_second", ",.0f"),
            "speed : plain (lowest - highest)": lambda row: span(row, "speed_ratio"),
            "of the matrix peak": lambda row: number(row, "share_of_peak", ".1%"),
            "loss": lambda row: "-" if row["agrees"] is None else f"{row['loss_difference']:+.3%}",
        },
        found,
    )
    notes = [
        f"{work}, {cell}: {rounds} rounds of {turn} windows; loss after {windows} windows, beside plain's; matrix peak "
        f"float32 {peaks['float32'] / 1e9:,.0f}, bfloat16 {peaks['bfloat16'] / 1e9:,.0f} GFLOP/s"
        for work, cell, peaks, windows, rounds, turn in _cases(found)
    ]
    wrong = [f"{row['work']}, {row['cell']}, {row['variant']}" for row in found if row["agrees"] is False]
    if wrong:
        notes.append(f"the loss is further from plain's than rounding explains: {'; '.join(wrong)}")
    return "\n\n".join([shown, "\n".join(notes)])


def _cases(found: list[Row]) -> list[tuple[Any, ...]]:
    keys = ("work", "cell", "matrix_peaks", "loss_windows", "rounds", "windows")
    return [tuple(row[key] for key in keys) for row in found if row["variant"] == "plain"]


def panels(found: list[Row]) -> list[Panel]:
    """A chart for each work and cell."""
    label: Callable[[Row], str] = lambda row: row["variant"]  # noqa: E731
    groups = dict.fromkeys((row["work"], row["cell"]) for row in found)
    return [
        panel(
            f"{work}, {cell}: speed, plain = 1",
            [row for row in found if (row["work"], row["cell"]) == (work, cell)],
            label,
            "speed_ratio",
        )
        for work, cell in groups
    ]
