"""Memory of the variants: what the process takes, what tensors take, and what layers keep for the backward pass.

Shapes: windows `(T, B)`; each figure is from a process of its own.
"""

import itertools
from dataclasses import asdict
from typing import Any

from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import Variant
from tbptt.benchmark.report import MIB, Panel, Row, environment, markdown, mib, number, panel, say
from tbptt.benchmark.worker import fresh
from tbptt.benchmark.works import Work

DEFAULT_WORKS = ("words", "ptb", "characters")
DEFAULT_VARIANTS = ("clones", "ours", "ours-kernel", "ours-hidden", "ours-chunked", "plain-bf16", "ours-bf16")
QUICK_VARIANTS = ("clones", "ours", "ours-chunked")
WINDOWS = 3
FIGURES = ("resident", "tensors", "saved")


def job(work: Work, cell: str, variant: Variant, options: Options, measure: str, **more: Any) -> Row:
    """What a worker is told."""
    told: Row = {"measure": measure, "work": asdict(work), "cell": cell, "variant": asdict(variant)}
    told |= {"dropout": options.dropout, "device": options.device, "path": options.path}
    return {**told, "windows": options.windows or WINDOWS, **more}


def planned(told: Row) -> Row:
    """What the project chooses and predicts for a job; `sizes` and `rows` of it belong into the jobs that follow."""
    return fresh({**told, "measure": "prediction"})


def rows(options: Options) -> list[Row]:
    """A row for each variant of each work and cell."""
    works = options.chosen_works(DEFAULT_WORKS, ("characters",))
    variants = options.chosen_variants(DEFAULT_VARIANTS, QUICK_VARIANTS)
    cases = list(itertools.product(works.items(), options.cells, variants.items()))
    found: list[Row] = []
    for index, ((name, work), cell, (key, variant)) in enumerate(cases):
        say(f"memory, {index + 1} of {len(cases)}: {name}, {cell}, {key}")
        row: Row = {"what": "memory", "work": name, "cell": cell, "shape": work.shape, "types": work.types}
        row |= {"variant": key, "windows": options.windows or WINDOWS}
        for measure in FIGURES:
            row |= fresh(job(work, cell, variant, options, measure))
        found.append({**row, **environment(options.device)})
    return with_ratios(found)


def with_ratios(found: list[Row]) -> list[Row]:
    """The rows with how many times less they take than the plain loop of the same work and cell."""
    plain = {(row["work"], row["cell"]): row for row in found if row["variant"] == "plain"}
    return [
        {
            **row,
            **{f"{name}_ratio": _ratio(plain[row["work"], row["cell"]][name], row[name]) for name in FIGURES},
        }
        for row in found
    ]


def _ratio(plain: float, own: float) -> float | None:
    return plain / own if own > 0 else None


def table(found: list[Row]) -> str:
    """A line for each variant."""
    return markdown(
        {
            "work": lambda row: f"{row['work']}, {row['types']:,} types, {row['shape']}",
            "cell": lambda row: row["cell"],
            "variant": lambda row: row["variant"],
            "resident above the loaded model, MiB": lambda row: mib(row, "resident"),
            "plain : it": lambda row: number(row, "resident_ratio", ".2f"),
            "peak of tensors, MiB": lambda row: mib(row, "tensors"),
            "plain : it ": lambda row: number(row, "tensors_ratio", ".2f"),
            "kept per token and layer, H": lambda row: number(row, "saved", ".1f"),
            "plain : it  ": lambda row: number(row, "saved_ratio", ".2f"),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """What the process takes."""
    return [
        panel(
            "resident above the loaded model, MiB",
            found,
            lambda row: f"{row['work']}, {row['cell']}, {row['variant']}",
            "resident",
            MIB,
        )
    ]
