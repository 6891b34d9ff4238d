"""Rows of figures as a Markdown table and as a chart, and the machine they are from."""

import importlib
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tbptt

MIB = 2**20
WITHOUT_CHART = 'no chart: matplotlib is not installed; pip install -e ".[benchmark]" brings it.'
Row = dict[str, Any]


def say(text: str) -> None:
    """Tell what is running."""
    print(text, flush=True)


def environment(device: str) -> Row:
    """Versions, threads and the names of the processors: a part of each row."""
    return {
        "tbptt": tbptt.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def spread(name: str, values: Sequence[float]) -> Row:
    """Median, lowest and highest of what was measured several times."""
    return {name: statistics.median(values), f"{name}_lowest": min(values), f"{name}_highest": max(values)}


def span(row: Row, name: str, form: str = ".3f") -> str:
    """`median (lowest - highest)`, or the median alone where it was measured once; a dash where it was not."""
    if row.get(name) is None:
        return "-"
    low, high = row.get(f"{name}_lowest"), row.get(f"{name}_highest")
    text = format(row[name], form)
    return text if low is None or low == high else f"{text} ({low:{form}} - {high:{form}})"


def number(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """A figure, or a dash."""
    value: Any = row.get(name)
    return "-" if value is None else format(value / scale if scale != 1 else value, form)


def mib(row: Row, name: str) -> str:
    """Bytes in MiB."""
    return number(row, name, ",.1f", MIB)


def markdown(columns: dict[str, Callable[[Row], str]], rows: Sequence[Row]) -> str:
    """A table: a heading and what to write below it from each row."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(write(row) for write in columns.values()) + " |" for row in rows]
    return "\n".join(lines)


@dataclass(frozen=True)
class Panel:
    """One chart of horizontal bars.

    Attributes:
        title: what is shown, with its unit.
        bars: a label and a value for each, from top to bottom.
        spans: lowest and highest of each, or empty.
    """

    title: str
    bars: Sequence[tuple[str, float]]
    spans: Sequence[tuple[float, float]] = ()


def panel(title: str, rows: Sequence[Row], label: Callable[[Row], str], name: str, scale: float = 1.0) -> Panel:
    """A chart of one figure of the rows that have it."""
    there = [row for row in rows if row.get(name) is not None]
    edges = [{name: row[name], f"{name}_lowest": row[name], f"{name}_highest": row[name], **row} for row in there]
    return Panel(
        title,
        [(label(row), row[name] / scale) for row in there],
        [(row[f"{name}_lowest"] / scale, row[f"{name}_highest"] / scale) for row in edges],
    )


def chart(path: Path, panels: Sequence[Panel]) -> str:
    """Draw the panels below each other; says where they are, or what is missing."""
    try:
        make: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        return WITHOUT_CHART
    panels = [one for one in panels if one.bars]
    heights = [0.9 + 0.28 * len(one.bars) for one in panels]
    figure = make(figsize=(9, sum(heights) + 0.4), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0] if panels else []
    for axis, one in zip(axes, panels, strict=True):
        places = range(len(one.bars))
        values = [value for _, value in one.bars]
        errors = [[value - low, high - value] for value, (low, high) in zip(values, one.spans, strict=True)]
        axis.barh(places, values, xerr=list(zip(*errors, strict=True)) if errors else None, color="#4477aa")
        axis.set_yticks(places, [label for label, _ in one.bars])
        axis.invert_yaxis()
        axis.set_title(one.title, loc="left")
        axis.grid(axis="x", alpha=0.4)
        axis.set_axisbelow(True)
    figure.savefig(path, dpi=120)
    return f"chart: {path}"
