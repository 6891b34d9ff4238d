"""Where a text is cut into windows: how long each of them is, in each pass.

No shapes: a stream of `S` steps becomes windows that begin at increasing steps, the first at 0; the last ends at `S`.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice, check_integer, check_number, refusal

# Windows of random length as in Merity, Keskar and Socher 2017, section 5: a share of them half as long, and around
# both a normal draw in whole steps.
FULL_SHARE = 0.95
DEVIATION = 5.0
LEAST = 5
# Lengths that are drawn at a time; what is drawn depends on it.
CHUNK = 1024


def limited(windows: int, limit: float | None) -> int:
    """How many of so many windows Lightning uses under a limit: a share (float), a number (int), or all (None)."""
    if limit is None:
        return windows
    return int(windows * limit) if isinstance(limit, float) else min(windows, limit)


def _generator(name: str, *numbers: int) -> torch.Generator:
    """A generator of its own for draws of that name; no other is touched."""
    # torch seeds with 32 bits, so all numbers are folded into as many.
    digest = hashlib.sha256(" ".join([name, *map(str, numbers)]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


class CarryDrop:
    """Which streams lose their carry before a window: each with a probability, in training.

    The draw depends on seed, pass and window, and is one for the streams of all processes.

    Args:
        probability: of each stream at each window.
        seed: of the draws.

    Raises:
        UserError: for a probability outside [0, 1).
    """

    def __init__(self, probability: float, *, seed: int = 0) -> None:
        check_number("bptt.carry_drop", probability, "it is a probability; 0 drops none", below=1.0)
        self.probability = probability
        self._seed = seed

    def streams(self, number: int, index: int, streams: int) -> Tensor | None:
        """Those of `streams` that start anew before window `index` of pass `number`, `(B,)` of bool; None: none."""
        if not self.probability:
            return None
        draws = torch.rand(streams, generator=_generator("carry", self._seed, number, index), dtype=torch.float64)
        dropped = draws < self.probability
        return dropped if dropped.any() else None


class WindowLengths:
    """The lengths of the windows of a run: all the same, growing with training, drawn at random, or these together.

    The lengths of a pass depend on these options, its number and the windows trained before it, and on nothing else:
    every process has the same ones, a resumed run too, and no other generator is touched.

    Args:
        window: steps of a window.
        random: draw each length anew: with probability 0.95 around the length it would have, else around half of it,
            with a standard deviation of 5 steps, rounded down; at least 5 steps, or that length where it is shorter.
        offset: let each pass begin with a window of random length, from 1 step to the length it would have, so that
            the borders of windows lie elsewhere in each pass.
        grow_from: steps of the first window of the run, None for windows that do not grow.
        grow_windows: windows of training until they have `window` steps, growing linearly, rounded down.
        seed: of the draws, together with the number of the pass.

    Raises:
        UserError: for a value out of range, or growth of which only one end is given.
    """

    def __init__(
        self,
        window: int,
        *,
        random: bool = False,
        offset: bool = False,
        grow_from: int | None = None,
        grow_windows: int | None = None,
        seed: int = 0,
    ) -> None:
        check_integer("bptt.window", window, 1, "it counts the steps of a window")
        check_choice("bptt.random_window", random, (True, False))
        check_choice("bptt.random_offset", offset, (True, False))
        if grow_from is not None:
            check_integer("bptt.grow_from", grow_from, 1, "it counts the steps of the first window; null grows none")
            if grow_from > window:
                rule = f"be at most bptt.window={window}, to which windows grow"
                raise refusal("bptt.grow_from", rule, grow_from, "give fewer steps, or null")
            if grow_windows is None:
                raise UserError(
                    f"bptt.grow_from={grow_from} needs bptt.grow_windows, the windows of training until "
                    f"bptt.window={window} is reached; give it, or leave bptt.grow_from out."
                )
        if grow_windows is not None:
            check_integer("bptt.grow_windows", grow_windows, 1, "it counts the windows until bptt.window is reached")
            if grow_from is None:
                raise UserError(
                    f"bptt.grow_windows={grow_windows} needs bptt.grow_from, the steps of the first window; give it, "
                    "or leave bptt.grow_windows out."
                )
        self.window = window
        self.random = random
        self._offset = offset
        self._grow_from = window if grow_from is None else grow_from
        self._grow_windows = grow_windows or 0
        self._seed = seed

    @property
    def longest(self) -> int:
        """Steps that a window has at most; of random ones, all but one in 30,000 (four standard deviations)."""
        return self.window + (int(4 * DEVIATION) if self.random else 0)

    @property
    def equal(self) -> bool:
        """Whether all passes are cut alike."""
        return not self.random and not self._offset and not self._grow_windows

    def base(self, number: int) -> int:
        """Steps of window `number` of the whole run (from 0), but for chance and the end of the text."""
        if number >= self._grow_windows:
            return self.window
        return self._grow_from + (self.window - self._grow_from) * number // self._grow_windows

    def begins(self, steps: int, number: int, before: int) -> Sequence[int]:
        """First step of each window of pass `number` over `steps` steps, with `before` windows trained before it."""
        first = self._first(number, before)
        if not self.random and before >= self._grow_windows:
            rest = range(first, steps, self.window)
            return [0, *rest] if first else rest
        generator = _generator("windows", self._seed, number)
        chunks = [torch.tensor([first])] if first else []
        end, next_window = first, before + len(chunks)
        while end < steps:
            chunks.append(end + self._lengths(next_window, generator).cumsum(0))
            end, next_window = int(chunks[-1][-1]), next_window + CHUNK
        ends = torch.cat(chunks)
        return [0, *ends[ends < steps].tolist()]

    def _first(self, number: int, before: int) -> int:
        """Steps of the first window of a pass where it is drawn apart from the others, else 0."""
        if not self._offset:
            return 0
        return int(torch.randint(1, self.base(before) + 1, (), generator=_generator("offset", self._seed, number)))

    def _lengths(self, number: int, generator: torch.Generator) -> Tensor:
        """Lengths of the windows of the run from `number` on, `(CHUNK,)` int64."""
        bases = torch.tensor([self.base(index) for index in range(number, number + CHUNK)])
        if not self.random:
            return bases
        full = torch.rand(CHUNK, generator=generator, dtype=torch.float64) < FULL_SHARE
        centres = bases * torch.where(full, 1.0, 0.5).double()
        drawn = torch.normal(centres, DEVIATION, generator=generator).floor().long()
        return torch.maximum(drawn, bases.clamp(max=LEAST))


def context_steps(window: int, horizon: int | None) -> int:
    """Steps that precede a window for its gradients to reach `horizon` steps back.

    Raises:
        UserError: for a horizon that is shorter than the window.
    """
    if horizon is None:
        return 0
    check_integer("bptt.horizon", horizon, 1, "it counts the steps a gradient may reach back; null is bptt.window")
    if horizon < window:
        raise UserError(
            f"bptt.horizon={horizon} must be at least bptt.window={window}: a gradient reaches back through its own "
            f"window; raise it, or take bptt.window={horizon}."
        )
    return horizon - window
