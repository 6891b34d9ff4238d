"""What a measurement is asked to do: the configuration of the benchmark, checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tbptt.benchmark.peers import VARIANTS, Variant
from tbptt.benchmark.works import ALL, Work
from tbptt.errors import check_choice, check_integer, check_number, refusal
from tbptt.nn import CELLS


@dataclass(frozen=True)
class Options:
    """The keys of `configs/benchmark.yaml`; None and an empty tuple leave the choice to what is measured.

    Raises:
        UserError: for a value out of range, naming its key.
    """

    works: tuple[str, ...] = ()
    cells: tuple[str, ...] = ("lstm",)
    variants: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    rounds: int | None = None
    windows: int | None = None
    steps: int | None = None
    loss_windows: int = 0
    device: str = "cpu"
    dropout: float = 0.0
    path: str | None = None
    quick: bool = False
    builder: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for key, choices in (("works", tuple(ALL)), ("cells", CELLS), ("variants", tuple(VARIANTS))):
            for name in getattr(self, key):
                check_choice(key, name, choices)
        for key, least in (("rounds", 1), ("windows", 1), ("steps", 1)):
            if getattr(self, key) is not None:
                check_integer(key, getattr(self, key), least, "null leaves it to what is measured")
        check_integer("loss_windows", self.loss_windows, 0, "0 compares the losses of the first round")
        check_choice("device", self.device, ("cpu", "cuda"))
        check_number("dropout", self.dropout, "it is the share of units set to zero in training", below=1.0)
        check_choice("quick", self.quick, (True, False))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise refusal("device", "be cpu on a machine without a CUDA device", self.device, "take device=cpu")

    @classmethod
    def read(cls, recipe: dict[str, Any], builder: Callable[..., Any]) -> "Options":
        """From the configuration; `builder` makes a run from command-line overrides and a folder."""
        values = {name: recipe[name] for name in cls.__dataclass_fields__ if name != "builder"}
        for name in ("works", "cells", "variants", "parts"):
            if values[name] is not None and not isinstance(values[name], list):
                raise refusal(name, "be a list", values[name], f"write '{name}=[{values[name]}]'")
            values[name] = tuple(values[name] or ())
        return cls(**values, builder=builder)

    def chosen_works(self, names: tuple[str, ...], quick: tuple[str, ...] | None = None) -> dict[str, Work]:
        """The works asked for, or these."""
        names = quick if self.quick and quick is not None else names
        return {name: ALL[name] for name in self.works or names}

    def chosen_variants(self, names: tuple[str, ...], quick: tuple[str, ...] | None = None) -> dict[str, Variant]:
        """Plain, which the others are compared with, and the variants asked for, or these."""
        names = quick if self.quick and quick is not None else names
        return {name: VARIANTS[name] for name in dict.fromkeys(("plain", *(self.variants or names)))}

    def chosen_parts(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The parts of the measurement asked for, or all."""
        for name in self.parts:
            check_choice("parts", name, names)
        return self.parts or names
