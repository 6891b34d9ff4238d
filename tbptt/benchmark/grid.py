"""Activation memory and speed over widths and depths: plain, clones, ours.

Shapes: windows of 50 steps of 50 streams. Activation memory is the peak of tensor bytes within the loss and gradients
of one window, less the weights and their gradients.
"""

import itertools

from tbptt.benchmark import speed
from tbptt.benchmark.memory import job
from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import VARIANTS, Variant
from tbptt.benchmark.report import Panel, Row, environment, markdown, mib, number, panel, say, span
from tbptt.benchmark.worker import fresh
from tbptt.benchmark.works import GRID, Work

PARTS = ("memory", "speed")
CHUNKS = (5, 10)
LEAN = {chunk: Variant("ours", kernel="ours", save="hidden", chunk=chunk) for chunk in CHUNKS}


def rows(options: Options) -> list[Row]:
    """A row for each work and cell."""
    works = options.chosen_works(tuple(GRID), ("grid-64x1", "grid-128x2"))
    cases = list(itertools.product(works.items(), options.cells))
    parts = options.chosen_parts(PARTS)
    found: list[Row] = []
    for index, ((name, work), cell) in enumerate(cases):
        say(f"grid, {index + 1} of {len(cases)}: {name}, {cell}, {', '.join(parts)}")
        row: Row = {"what": "grid", "work": name, "cell": cell, "shape": work.shape, "types": work.types}
        if "memory" in parts:
            row |= activations(work, cell, options)
        if "speed" in parts:
            # Without memory measured, the smaller chunk: speed is shown of the setting whose memory is.
            row.setdefault("chunk", CHUNKS[0])
            row |= speeds(name, work, cell, options, row["chunk"])
        found.append({**row, **environment(options.device)})
    return found


def activations(work: Work, cell: str, options: Options) -> Row:
    """Of plain and clones, and the least of ours over the sizes of chunks."""

    def measure(variant: Variant) -> int:
        bytes_taken: int = fresh(job(work, cell, variant, options, "window", windows=2))["activations"]
        return bytes_taken

    plain, clones = measure(VARIANTS["plain"]), measure(VARIANTS["clones"])
    ours = {chunk: measure(variant) for chunk, variant in LEAN.items()}
    chunk = min(ours, key=lambda size: ours[size])
    row = {"plain": plain, "clones": clones, "ours": ours[chunk], "chunk": chunk, "ours_by_chunk": ours}
    return {**row, "plain_to_ours": plain / ours[chunk], "clones_to_ours": clones / ours[chunk]}


def speeds(name: str, work: Work, cell: str, options: Options, chunk: int) -> Row:
    """Ratios to the plain loop: whole windows by our kernel, by the default, and the way that takes least memory."""
    variants = {"plain": VARIANTS["plain"], "kernel": VARIANTS["ours-kernel"], "auto": VARIANTS["ours"]}
    variants["lean"] = LEAN[chunk]
    row: Row = {}
    for one in speed.compare(name, work, cell, variants, options):
        for key in ("speed_ratio", "speed_ratio_lowest", "speed_ratio_highest", "tokens_per_second"):
            row[f"{one['variant']}_{key.replace('_ratio', '', 1)}"] = one[key]
        row["agrees"] = row.get("agrees", True) and one["agrees"] is not False
    return row


def table(found: list[Row]) -> str:
    """A line for each work and cell."""
    return markdown(
        {
            "layers x units": lambda row: row["shape"].split(",")[0],
            "cell": lambda row: row["cell"],
            "plain, MiB": lambda row: mib(row, "plain"),
            "clones, MiB": lambda row: mib(row, "clones"),
            "ours, MiB": lambda row: mib(row, "ours"),
            "chunk": lambda row: number(row, "chunk", "d"),
            "clones : ours": lambda row: number(row, "clones_to_ours", ".1f"),
            "plain : ours": lambda row: number(row, "plain_to_ours", ".1f"),
            "plain, tokens/s": lambda row: number(row, "plain_tokens_per_second", ",.0f"),
            "speed, kernel=ours : plain": lambda row: span(row, "kernel_speed", ".2f"),
            "speed, kernel=auto : plain": lambda row: span(row, "auto_speed", ".2f"),
            "speed, chunks : plain": lambda row: span(row, "lean_speed", ".2f"),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """Memory, and speed."""

    def label(row: Row) -> str:
        return f"{row['shape'].split(',')[0]}, {row['cell']}"

    return [
        panel("activation memory, clones : ours", found, label, "clones_to_ours"),
        panel("activation memory, plain : ours", found, label, "plain_to_ours"),
        panel("speed, kernel=ours : plain", found, label, "kernel_speed"),
    ]
