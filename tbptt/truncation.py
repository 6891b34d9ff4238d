"""Where a text is cut into windows: how long each of them is, in each pass.

No shapes: a stream of `S` steps becomes windows that begin at increasing steps, the first at 0; the last ends at `S`.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice, check_integer, refusal

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


class WindowLengths:
    """The lengths of the windows of a run: all the same, growing with training, drawn at random, or both.

    The lengths of a pass depend on these options, its number and the windows trained before it, and on nothing else:
    every process has the same ones, a resumed run too, and no other generator is touched.

    Args:
        window: steps of a window.
        random: draw each length anew: with probability 0.95 around the length it would have, else around half of it,
            with a standard deviation of 5 steps, rounded down; at least 5 steps, or that length where it is shorter.
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
        grow_from: int | None = None,
        grow_windows: int | None = None,
        seed: int = 0,
    ) -> None:
        check_integer("bptt.window", window, 1, "it counts the steps of a window")
        check_choice("bptt.random_window", random, (True, False))
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
        return not self.random and not self._grow_windows

    def base(self, number: int) -> int:
        """Steps of window `number` of the whole run (from 0), but for chance and the end of the text."""
        if number >= self._grow_windows:
            return self.window
        return self._grow_from + (self.window - self._grow_from) * number // self._grow_windows

    def begins(self, steps: int, number: int, before: int) -> Sequence[int]:
        """First step of each window of pass `number` over `steps` steps, with `before` windows trained before it."""
        if not self.random and before >= self._grow_windows:
            return range(0, steps, self.window)
        # torch seeds with 32 bits, so both numbers are folded into as many.
        digest = hashlib.sha256(f"windows {self._seed} {number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        chunks: list[Tensor] = []
        end = 0
        while end < steps:
            chunks.append(end + self._lengths(before + len(chunks) * CHUNK, generator).cumsum(0))
            end = int(chunks[-1][-1])
        ends = torch.cat(chunks)
        return [0, *ends[ends < steps].tolist()]

    def _lengths(self, number: int, generator: torch.Generator) -> Tensor:
        """Lengths of the windows of the run from `number` on, `(CHUNK,)` int64."""
        bases = torch.tensor([self.base(index) for index in range(number, number + CHUNK)])
        if not self.random:
            return bases
        full = torch.rand(CHUNK, generator=generator, dtype=torch.float64) < FULL_SHARE
        centres = bases * torch.where(full, 1.0, 0.5).double()
        drawn = torch.normal(centres, DEVIATION, generator=generator).floor().long()
        return torch.maximum(drawn, bases.clamp(max=LEAST))
