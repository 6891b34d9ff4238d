"""Tokens folded into streams and cut into windows.

Shapes: a text of `N` tokens becomes `B` contiguous streams of `N // B` tokens; a window is `T` steps of all streams,
time-major `(T, B)`, with `C` steps before them as context. Target `y[t]` is the token after `x[C + t]` in the text,
always.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice, check_integer
from tbptt.truncation import WindowLengths, limited


class Window(NamedTuple):
    """A window of the streams.

    `x` is `(C + T, B)` and `y` `(T, B)`, int64: the first `C` steps of `x` are context, which was trained on before
    and is run again so that gradients reach back into it.
    `reset` `(B,)` marks streams whose text begins with the first step of `x`, None when none does.
    `advance` is the number of steps of `x` after which the state is that of the next window's first step, None for all.
    `rate` is the factor on the learning rate of an update with this window.
    """

    x: Tensor
    y: Tensor
    reset: Tensor | None
    advance: int | None = None
    rate: float = 1.0


class WindowLoader:
    """Yield the windows of one pass over the text, in order, from an exact position; then those of the next pass.

    Each adjacent pair of a stream is a target once; the last window may be shorter; `spare` tokens at the end of the
    text, fewer than `batch_size`, fit no stream. The order cannot be shuffled: a carried state needs it.

    Under several processes, `batch_size` counts the streams of all of them, and rank `r` of `w` gets the columns
    `[r * batch_size / w, (r + 1) * batch_size / w)`, so continuity holds per process.

    Args:
        tokens: `(N,)` of any integer type; kept as it is, never copied.
        batch_size: streams `B`.
        window_steps: steps `T` of a window.
        reset: "epoch" marks the start of each pass for a fresh state, "never" none of them.
        horizon: steps a gradient may reach back: `horizon - window_steps` earlier steps precede each window, or as many
            as the text has; None for `window_steps`, which is none.
        lengths: for windows that are not all of `window_steps` steps.
        limit: a pass is over after so many windows (int) or this share of them (float), and after one at the least.
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
        horizon: int | None = None,
        lengths: WindowLengths | None = None,
        limit: float | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_integer("data.batch_size", batch_size, 1, "it counts the streams trained side by side")
        self._lengths = WindowLengths(window_steps) if lengths is None else lengths
        assert self._lengths.window == window_steps
        self._context = context_steps(window_steps, horizon)
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
        self._limit = limit
        share = batch_size // world_size
        streams = tokens[: batch_size * (steps + 1)].view(batch_size, steps + 1)
        self._streams = streams[rank * share : (rank + 1) * share]
        self._steps = steps
        # Windows trained before each pass, as far as it is known; they are needed where windows grow.
        self._before = [0]
        self._begins: tuple[int, Sequence[int]] = (-1, ())
        self._pass = 0
        self._next = 0
        self._start = 0

    @property
    def targets(self) -> int:
        """Tokens predicted in one pass by this process."""
        return self._streams.shape[0] * self._steps

    @property
    def longest(self) -> tuple[int, int]:
        """Steps that a window has at most, context included, and those of context."""
        context = min(self._context, self._steps - 1)
        return min(self._steps, self._lengths.longest + context), context

    @property
    def equal(self) -> bool:
        """Whether all passes are cut alike."""
        return self._lengths.equal

    def __len__(self) -> int:
        """Number of windows in the pass that the next window is of, without a limit."""
        return len(self._cut(self._pass))

    def pass_windows(self, number: int) -> int:
        """Windows of pass `number` (from 0), up to the limit."""
        if self.equal:
            return max(1, limited(len(self._cut(0)), self._limit))
        return self._windows_before(number + 1) - self._windows_before(number)

    @property
    def windows_per_pass(self) -> int | Callable[[int], int]:
        """Windows of a pass, up to the limit: one number for all, or where passes differ a function of theirs."""
        return self.pass_windows(0) if self.equal else self.pass_windows

    def _windows_before(self, number: int) -> int:
        while len(self._before) <= number:
            last = len(self._before) - 1
            begins = self._lengths.begins(self._steps, last, self._before[last])
            self._before.append(self._before[last] + max(1, limited(len(begins), self._limit)))
        return self._before[number]

    def _cut(self, number: int) -> Sequence[int]:
        """First steps of the windows of a pass; the newest are kept."""
        if self._begins[0] != number:
            before = 0 if self.equal else self._windows_before(number)
            self._begins = number, self._lengths.begins(self._steps, number, before)
        return self._begins[1]

    def __getitem__(self, index: int) -> Window:
        """Window `index` of the pass that the next window is of."""
        return self._window(self._pass, index)

    def _window(self, number: int, index: int) -> Window:
        begins = self._cut(number)
        if not 0 <= index < len(begins):
            raise IndexError(index)
        begin = begins[index]
        end = begins[index + 1] if index + 1 < len(begins) else self._steps
        first = max(0, begin - self._context)
        # One token more than the window has steps: inputs and targets share the memory of all but one.
        piece = self._streams[:, first : end + 1].t().contiguous().to(torch.int64)
        fresh = torch.ones(piece.shape[1], dtype=torch.bool) if self._reset and first == 0 else None
        # After the last window of a pass nothing is run again: the state goes on from the end.
        last = index + 1 >= self.pass_windows(number)
        advance = (end if last else max(0, end - self._context)) - first
        rate = 1.0
        if self._lengths.random:
            rate = (end - begin) / self._lengths.base(self._windows_before(number) + index)
        return Window(piece[:-1], piece[begin - first + 1 :], fresh, advance, rate)

    def __iter__(self) -> Iterator[Window]:
        # A generator: the restored position is used up by the first window that is asked for, not by `iter()`,
        # which a trainer may call more than once.
        number, start, self._start = self._pass, self._start, 0
        windows = self.pass_windows(number)
        for index in range(start, windows):
            # Set before the window is given: a state saved while it is in use names the one after it, and after
            # the last one the first of the next pass.
            self._pass, self._next = (number, index + 1) if index + 1 < windows else (number + 1, 0)
            yield self._window(number, index)

    def start_pass(self, number: int) -> None:
        """Make the next window the first one of pass `number`."""
        self._pass, self._next, self._start = number, 0, 0

    @property
    def next_pass(self) -> int:
        """Number of the pass that the next window is of."""
        return self._pass

    def state_dict(self) -> dict[str, int]:
        """The position: the next window to give, after the last one that of the next pass, and what it rests on."""
        position = {"pass": self._pass, "next_window": self._next}
        return {**position, "batch_size": self.batch_size, "window_steps": self.window_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from the saved position.

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
        number = state.get("pass", 0)
        if not 0 <= state["next_window"] < len(self._cut(number)):
            raise UserError(
                f"the checkpoint stopped before window {state['next_window']}, but this text has "
                f"{len(self._cut(number))}; resume with the text it was trained on."
            )
        self._pass = number
        self._next = self._start = state["next_window"]


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
