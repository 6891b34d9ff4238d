"""Tokens folded into streams and cut into windows.

Shapes: a text of `N` tokens becomes `B` contiguous streams of `N // B` tokens; a window is `T` steps of all streams,
time-major `(T, B)`. Target `y[t]` is the token after `x[t]` in the text, always.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice, check_integer


class Window(NamedTuple):
    """`x` and `y` are `(T, B)` int64; `reset` `(B,)` marks streams whose text begins here, None when none does."""

    x: Tensor
    y: Tensor
    reset: Tensor | None


class WindowLoader:
    """Yield the windows of one pass over the text, in order, from an exact position.

    Each adjacent pair of a stream is a target once; the last window may be shorter; `spare` tokens at the end of the
    text, fewer than `batch_size`, fit no stream. The order cannot be shuffled: a carried state needs it.

    Under several processes, `batch_size` counts the streams of all of them, and rank `r` of `w` gets the columns
    `[r * batch_size / w, (r + 1) * batch_size / w)`, so continuity holds per process.

    Args:
        tokens: `(N,)` of any integer type; kept as it is, never copied.
        batch_size: streams `B`.
        window_steps: steps `T` of a window.
        reset: "epoch" marks the first window of each pass for a fresh state, "never" none of them.
        pass_windows: windows after which a pass is over and the position is 0 again, when it is cut short.
        rank: which part of the streams this process gets.
        world_size: number of such parts.

    Raises:
        UserError: when a number is out of range or the text is too short for one target in every stream.
    """

    def __init__(
        self,
        tokens: Tensor,
        batch_size: int,
        window_steps: int,
        *,
        reset: str = "epoch",
        pass_windows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_integer("data.batch_size", batch_size, 1, "it counts the streams trained side by side")
        check_integer("bptt.window", window_steps, 1, "it counts the steps of a window")
        check_choice("bptt.reset", reset, ("epoch", "never"))
        steps = len(tokens) // batch_size - 1
        if steps < 1:
            raise UserError(
                f"data.batch_size={batch_size} streams need a text of at least {2 * batch_size} tokens (2 a stream), "
                f"for bptt.window={window_steps} or any other, but it has {len(tokens)}; take a longer text "
                f"or data.batch_size={max(1, len(tokens) // 2)} or less."
            )
        if batch_size % world_size:
            raise UserError(
                f"data.batch_size={batch_size} must be a multiple of the {world_size} processes that share its "
                f"streams; data.batch_size={batch_size - batch_size % world_size or world_size} is."
            )
        self.batch_size = batch_size
        self.window_steps = window_steps
        self.spare = len(tokens) - batch_size * (steps + 1)
        self._reset = reset == "epoch"
        share = batch_size // world_size
        streams = tokens[: batch_size * (steps + 1)].view(batch_size, steps + 1)
        self._streams = streams[rank * share : (rank + 1) * share]
        self._pass = len(self) if pass_windows is None else min(pass_windows, len(self))
        self._next = 0
        self._start = 0

    @property
    def targets(self) -> int:
        """Tokens predicted in one pass by this process."""
        return self._streams.shape[0] * (self._streams.shape[1] - 1)

    def __len__(self) -> int:
        """Number of windows in one pass."""
        return -(-(self._streams.shape[1] - 1) // self.window_steps)

    def __getitem__(self, index: int) -> Window:
        """Window `index` of the pass."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin = index * self.window_steps
        # One token more than the window has steps (fewer at the end): inputs and targets overlap by all but one.
        piece = self._streams[:, begin : begin + self.window_steps + 1].t().to(torch.int64)
        fresh = torch.ones(piece.shape[1], dtype=torch.bool) if self._reset and index == 0 else None
        return Window(piece[:-1].contiguous(), piece[1:].contiguous(), fresh)

    def __iter__(self) -> Iterator[Window]:
        # A generator: the restored position is used up by the first window that is asked for, not by `iter()`,
        # which a trainer may call more than once.
        start, self._start = self._start, 0
        for index in range(start, len(self)):
            # Set before the window is given: a state saved while it is in use names the one after it, and after
            # the last one the first of the next pass.
            self._next = (index + 1) % self._pass
            yield self[index]

    def state_dict(self) -> dict[str, int]:
        """The position: the next window to give, which rolls over to 0 at the end of a pass, and what it rests on."""
        return {"next_window": self._next, "batch_size": self.batch_size, "window_steps": self.window_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next pass start at the saved position.

        Raises:
            UserError: when the position was saved with other streams or windows, where it would mean another place.
        """
        here = self.state_dict()
        for key, name in (("batch_size", "data.batch_size"), ("window_steps", "bptt.window")):
            if state[key] != here[key]:
                raise UserError(
                    f"{name} must stay {state[key]}, as in the checkpoint that is resumed, but it is {here[key]}; "
                    f"set {name}={state[key]}."
                )
        if not 0 <= state["next_window"] < len(self):
            raise UserError(
                f"the checkpoint stopped before window {state['next_window']}, but this text has {len(self)}; "
                "resume with the text it was trained on."
            )
        self._next = self._start = state["next_window"]
