"""Long windows: one of a million steps, and the same number of tokens an update in ever longer windows.

Shapes: `long` is one stream; `equal` has `TOKENS / T` streams of windows of `T` steps. LSTM by default, 1 x 128,
characters; ours, with the chunks that the project chooses by itself.
"""

import itertools
from dataclasses import replace

from tbptt.benchmark.memory import job, planned
from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import VARIANTS
from tbptt.benchmark.report import MIB, Panel, Row, environment, markdown, mib, number, panel, say
from tbptt.benchmark.worker import fresh
from tbptt.benchmark.works import WORKS

PARTS = ("long", "equal")
LONG_STEPS = 1_000_000
QUICK_STEPS = 20_000
SHORT = 1_000
TOKENS = 65_536
STEPS = (64, 512, 4_096, 65_536)


def rows(options: Options) -> list[Row]:
    """Rows of both parts, for each cell."""
    parts = options.chosen_parts(PARTS)
    found: list[Row] = []
    for cell, part in itertools.product(options.cells, parts):
        found += long(cell, options) if part == "long" else equal(cell, options)
    return [{"what": "windows", **row, **environment(options.device)} for row in found]


def long(cell: str, options: Options) -> list[Row]:
    """One window of many steps, and the same text in windows of 1,000 (or as many as there are)."""
    steps = options.steps or (QUICK_STEPS if options.quick else LONG_STEPS)
    sizes = dict.fromkeys((min(SHORT, steps), steps))
    found: list[Row] = []
    for index, size in enumerate(sizes):
        say(f"long windows, {index + 1} of {len(sizes)}: {cell}, {steps // size:,} windows of {size:,} steps, 1 stream")
        work = replace(WORKS["characters"], streams=1, window_steps=size)
        told = job(work, cell, VARIANTS["ours-auto"], options, "resident", windows=steps // size)
        told |= planned(told)
        row: Row = {"part": "long", "cell": cell, "streams": 1, "steps": size, "windows": steps // size}
        found.append({**row, "sizes": told["sizes"], **fresh(told)})
    return _with_ratios(found, ("resident", "seconds"))


def equal(cell: str, options: Options) -> list[Row]:
    """The same tokens an update in windows of more and more steps."""
    tokens = TOKENS // 8 if options.quick else TOKENS
    sizes: tuple[int, ...] = STEPS[:3] if options.quick else STEPS
    if options.steps:
        tokens, sizes = options.steps, tuple(size for size in STEPS if size <= options.steps) or (options.steps,)
    found: list[Row] = []
    for index, size in enumerate(sizes):
        streams = tokens // size
        say(f"equal tokens, {index + 1} of {len(sizes)}: {cell}, windows of {size:,} steps, {streams:,} streams")
        work = replace(WORKS["characters"], streams=streams, window_steps=size)
        row: Row = {"part": "equal", "cell": cell, "streams": streams, "steps": size, "windows": options.windows or 2}
        told = job(work, cell, VARIANTS["ours-auto"], options, "resident", windows=row["windows"])
        told |= planned(told)
        row |= {"sizes": told["sizes"], "predicted": told["predicted"]}
        for measure in ("resident", "tensors"):
            row |= fresh({**told, "measure": measure})
        found.append(row)
    return _with_ratios(found, ("resident", "tensors", "seconds"))


def _with_ratios(found: list[Row], names: tuple[str, ...]) -> list[Row]:
    """The rows with how many times as much as the first each takes."""
    return [
        {**row, **{f"{name}_ratio": row[name] / found[0][name] if found[0][name] > 0 else None for name in names}}
        for row in found
    ]


def table(found: list[Row]) -> str:
    """A line for each length."""
    return markdown(
        {
            "cell": lambda row: row["cell"],
            "windows x streams x steps": lambda row: f"{row['windows']:,} x {row['streams']:,} x {row['steps']:,}",
            "chunk": lambda row: " of ".join(f"{size:,}" for size in reversed(row["sizes"])) or "-",
            "resident above the loaded model, MiB": lambda row: mib(row, "resident"),
            "it : first": lambda row: number(row, "resident_ratio", ".2f"),
            "peak of tensors, MiB": lambda row: mib(row, "tensors"),
            "it : first ": lambda row: number(row, "tensors_ratio", ".2f"),
            "seconds": lambda row: number(row, "seconds", ".1f"),
            "it : first  ": lambda row: number(row, "seconds_ratio", ".2f"),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """What the process takes, by length of the window."""
    return [
        panel(
            "resident above the loaded model, MiB",
            found,
            lambda row: f"{row['cell']}, {row['streams']:,} x {row['steps']:,}",
            "resident",
            MIB,
        )
    ]
