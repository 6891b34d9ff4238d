"""Predicted memory against measured, over a dozen ways to train.

Shapes: windows `(T, B)`; each measured figure is from a process of its own.
"""

from dataclasses import dataclass, field
from typing import Any

from tbptt.benchmark.memory import job, planned
from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import Variant
from tbptt.benchmark.report import Panel, Row, environment, markdown, mib, panel, say, span
from tbptt.benchmark.worker import fresh
from tbptt.benchmark.works import ALL, Work

DEFAULT = Variant("ours")


@dataclass(frozen=True)
class Case:
    """A way to train: cell, work, what differs from the project's defaults."""

    cell: str
    work: Work
    optimizer: str = "adamw"
    dropout: float = 0.0
    variant: Variant = DEFAULT
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What is special about it."""
        chosen = self.variant
        parts = [f"{self.cell}, {self.work.types:,} types, {self.work.shape}", self.optimizer]
        parts += [f"dropout {self.dropout:g}"] if self.dropout else []
        parts += [f"kernel={chosen.kernel}"] if chosen.kernel != "auto" else []
        parts += [f"save={chosen.save}"] if chosen.save != "auto" else []
        parts += [f"chunk={chosen.chunk}"] if chosen.chunk else []
        parts += ["bfloat16"] if chosen.bfloat16 else []
        return ", ".join([*parts, *(f"{key}={value}" for key, value in self.model.items())])


def _characters(units: int, layers: int, streams: int, steps: int) -> Work:
    return Work("char", 65, units, layers, streams, steps)


WORDS, PTB = ALL["words"], ALL["ptb"]
CASES = (
    Case("lstm", ALL["characters"]),
    Case("gru", ALL["characters-2x200"]),
    Case("rnn", _characters(256, 2, 50, 100), dropout=0.2),
    Case("lstm", WORDS, "sgd", dropout=0.2),
    Case("lstm", WORDS, model={"tie_weights": True}),
    Case("lstm", WORDS, "sgd", variant=Variant("ours", bfloat16=True)),
    Case("lstm", PTB, "sgd", variant=Variant("ours", kernel="ours", save="gates")),
    Case("gru", PTB, "rmsprop", variant=Variant("ours", kernel="ours", save="hidden")),
    Case("lstm", ALL["grid-512x3"], variant=Variant("ours", kernel="ours", save="hidden", chunk=10)),
    Case("gru", ALL["grid-512x3"], dropout=0.2, variant=Variant("ours", kernel="torch")),
    Case("lstm", _characters(128, 1, 1, 20_000), variant=Variant("ours", chunk=1_000)),
    Case("lstm", _characters(256, 2, 8, 4_000), dropout=0.3, variant=Variant("ours", chunk="auto")),
)
WINDOWS = 2


def rows(options: Options) -> list[Row]:
    """A row for each way, or for each with one of the works asked for."""
    cases: tuple[Case, ...] = CASES[:3] if options.quick else CASES
    if options.works:
        cases = tuple(case for case in CASES if case.work in options.chosen_works(()).values())
    found: list[Row] = []
    for index, case in enumerate(cases):
        say(f"plan, {index + 1} of {len(cases)}: {case.name}")
        windows = options.windows or WINDOWS
        told: Row = {"windows": windows, "optimizer": case.optimizer, "model": case.model, "dropout": case.dropout}
        row: Row = {"what": "plan", "case": case.name, "cell": case.cell, "windows": windows}
        told = job(case.work, case.cell, case.variant, options, "prediction", **told)
        chosen = planned(told)
        row |= chosen
        for measure in ("tensors", "resident"):
            row |= fresh({**told, **chosen, "measure": measure})
        row["predicted_ratio"] = row["predicted"] / row["tensors"]
        found.append({**row, **environment(options.device)})
    return found


def table(found: list[Row]) -> str:
    """A line for each way."""
    return markdown(
        {
            "way to train": lambda row: row["case"],
            "predicted, MiB": lambda row: mib(row, "predicted"),
            "peak of tensors, MiB": lambda row: mib(row, "tensors"),
            "predicted : measured": lambda row: span(row, "predicted_ratio"),
            "resident above the loaded model, MiB": lambda row: mib(row, "resident"),
        },
        found,
    )


def panels(found: list[Row]) -> list[Panel]:
    """How far predictions are from what was measured."""
    return [panel("memory, predicted : measured", found, lambda row: row["case"], "predicted_ratio")]
