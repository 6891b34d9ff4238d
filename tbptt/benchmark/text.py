"""Preparing a text of each level: ours, a plain Python loop, and the tokenizers of Hugging Face.

No shapes: a text file becomes ids. Each turn is a fresh process, and the turns of the variants alternate.
"""

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tbptt.benchmark.options import Options
from tbptt.benchmark.preparation import HAVE, VARIANTS
from tbptt.benchmark.report import MIB, Panel, Row, environment, markdown, mib, number, panel, say, span, spread
from tbptt.benchmark.worker import fresh
from tbptt.benchmark.works import WORKS, made_text

PARTS = ("byte", "char", "word", "bpe")
WINDOWS = 10_000  # of made text: 45 MB
QUICK_WINDOWS = 1_000


def rows(options: Options) -> list[Row]:
    """A row for each level and variant."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.path or str(_made(Path(folder), options))
        size = Path(path).stat().st_size
        found = [row for level in options.chosen_parts(PARTS) for row in _level(level, path, size, options)]
    return [{"what": "text", **row, **environment("cpu")} for row in found]


def _made(folder: Path, options: Options) -> Path:
    path = folder / "made.txt"
    windows = options.windows or (QUICK_WINDOWS if options.quick else WINDOWS)
    path.write_text(made_text(WORKS["words"], windows), encoding="utf-8")
    return path


def _level(level: str, path: str, size: int, options: Options) -> list[Row]:
    variants = HAVE.get(level, tuple(VARIANTS))
    turns: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
    rounds = options.rounds or (1 if options.quick else 3)
    for turn, variant in itertools.product(range(rounds), variants):
        say(f"text, {level}, turn {turn + 1} of {rounds}: {variant}, {size / 1e6:.0f} MB")
        turns[variant].append(fresh({"measure": "preparation", "level": level, "variant": variant, "path": path}))
    found: list[Row] = []
    for variant, figures in turns.items():
        speeds = [size / 1e6 / one["seconds"] for one in figures]
        row: Row = {"level": level, "variant": variant, "bytes": size, "tokens": figures[0]["tokens"]}
        row["resident"] = statistics.median(one["resident"] for one in figures)
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(figures, turns["ours"], strict=True)]
        found.append({**row, **spread("speed", speeds), **spread("times_ours", ratios)})
    return found


def table(found: list[Row]) -> str:
    """A line for each level and variant."""
    return markdown(
        {
            "level": lambda row: row["level"],
            "by": lambda row: row["variant"],
            "tokens": lambda row: f"{row['tokens']:,}",
            "MB/s": lambda row: span(row, "speed", ".1f"),
            "time, it : ours": lambda row: span(row, "times_ours", ".2f"),
            "resident above the loaded program, MiB": lambda row: mib(row, "resident"),
            "bytes of it per byte of text": lambda row: number(row, "resident", ".2f", row["bytes"]),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """Speed, and memory."""
    return [
        panel("MB/s", found, lambda row: f"{row['level']}, {row['variant']}", "speed"),
        panel("resident, MiB", found, lambda row: f"{row['level']}, {row['variant']}", "resident", MIB),
    ]
