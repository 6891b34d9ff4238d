"""Tokens folded into streams and cut into windows.

Shapes: a text of `N` tokens becomes `B` contiguous streams of `N // B` tokens; a window is `T` steps of all streams,
time-major `(T, B)`, with `C` steps before them as context. Target `y[t]` is the token after `x[C + t]` in the text,
always. A target across the border of two documents may be left out of the count: it is `IGNORED`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tbptt.borders import Borders, Positions, check_reset
from tbptt.columns import Columns
from tbptt.errors import UserError, check_integer
from tbptt.metrics import IGNORED
from tbptt.truncation import CarryDrop, WindowLengths, context_steps, limited

NONE = torch.empty(0, dtype=torch.int64)


class Window(NamedTuple):
    """A window of the streams.

    `x` is `(C + T, B)` and `y` `(T, B)`, int64: the first `C` steps of `x` are context, which was trained on before
    and is run again so that gradients reach back into it.
    `reset` `(S, B)` of bool marks streams that start anew before one of the first `S` steps of `x`; before later ones
        none does. None when none does at all.
    `advance` is the number of steps of `x` after which the state is that of the next window's first step, None for all.
    `rate` is the factor on the learning rate of an update with this window.
    `counted` is the number of targets that are not `IGNORED`, None where all count.
    `divisor` is what their nats are divided by for the loss: the number counted per process, on average over all, so
        that gradients averaged over processes are those of one with all streams. None for those of `y`.
    """

    x: Tensor
    y: Tensor
    reset: Tensor | None
    advance: int | None = None
    rate: float = 1.0
    counted: int | None = None
    divisor: float | None = None

    @property
    def targets(self) -> int:
        """Number of targets that count."""
        return self.y.numel() if self.counted is None else self.counted


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
        reset: "epoch" marks the start of each pass for a fresh state, "document" that of each document too, "never"
            none of them.
        borders: `(D,)`, int64, increasing: the tokens that are the first of a document, for `reset="document"`; its
            last token then has no target that counts. May be a memory map.
        horizon: steps a gradient may reach back: `horizon - window_steps` earlier steps precede each window, or as many
            as the text has; None for `window_steps`, which is none.
        lengths: for windows that are not all of `window_steps` steps.
        drop: which streams start anew before a window's own first step, None for none.
        release: gives back the memory of tokens that were read from a memory map; None for tokens in memory.
        limit: a pass is over after so many windows (int) or this share of them (float), and after one at the least.
        rank: which part of the streams this process gets.
        world_size: number of such parts.

    Raises:
        UserError: when a number is out of range, the text is too short for one target in every stream, or documents
            are to be kept apart and nobody said where they begin.
    """

    def __init__(
        self,
        tokens: Tensor,
        batch_size: int,
        window_steps: int,
        *,
        reset: str = "epoch",
        borders: Positions | None = None,
        horizon: int | None = None,
        lengths: WindowLengths | None = None,
        drop: CarryDrop | None = None,
        release: Callable[[], None] | None = None,
        limit: float | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_integer("data.batch_size", batch_size, 1, "it counts the streams trained side by side")
        self._lengths = WindowLengths(window_steps) if lengths is None else lengths
        assert self._lengths.window == window_steps
        self._context = context_steps(window_steps, horizon)
        check_reset(reset, borders is not None)
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
        self._reset = reset != "never"
        self._drop = CarryDrop(0.0) if drop is None else drop
        self._limit = limit
        share = batch_size // world_size
        self._columns = slice(rank * share, (rank + 1) * share)
        streams = tokens[: batch_size * (steps + 1)].view(batch_size, steps + 1)
        self._streams = streams[self._columns]
        self._tokens = Columns(self._streams, release)
        self._steps = steps
        self._borders: Borders | None = None
        if reset == "document" and borders is not None:
            self._borders = Borders(borders, batch_size, steps + 1)
        # Windows trained before each pass, as far as it is known; they are needed where windows grow.
        self._before = [0]
        self._begins: tuple[int, Sequence[int]] = (-1, ())
        self._pass = 0
        self._next = 0
        self._start = 0

    @property
    def targets(self) -> int:
        """Tokens predicted in one pass by this process: those that count."""
        pairs = self._streams.shape[0] * self._steps
        if self._borders is None:
            return pairs
        return pairs - int(self._borders.count(1, self._steps + 1)[self._columns].sum())

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
        piece = self._tokens.read(first, end + 1)
        x, y = piece[:-1], piece[begin - first + 1 :]
        places, streams = (NONE, NONE) if self._borders is None else self._borders.find(first, end + 1)
        counted, divisor = y.numel(), float(y.numel())
        if len(places):
            y, counted, divisor = self._without(y, places - begin - 1, streams)
        reset = self._marks(first, end, places, streams, begin, self._drop.streams(number, index, self.batch_size))
        # After the last window of a pass nothing is run again: the state goes on from the end.
        last = index + 1 >= self.pass_windows(number)
        advance = (end if last else max(0, end - self._context)) - first
        rate = 1.0
        if self._lengths.random:
            rate = (end - begin) / self._lengths.base(self._windows_before(number) + index)
        return Window(x, y, reset, advance, rate, counted, divisor)

    def _without(self, y: Tensor, steps: Tensor, streams: Tensor) -> tuple[Tensor, int, float]:
        """Targets less those at `steps` of `streams` (of all processes), how many count here, and the divisor."""
        steps, streams = steps[steps >= 0], streams[steps >= 0]
        all_counted = len(y) * self.batch_size - len(steps)
        own = self._own(streams)
        if own.any():
            # A copy: the inputs share the memory of the targets.
            y = y.clone()
            y[steps[own], streams[own] - self._columns.start] = IGNORED
        # Where none counts the loss is 0, whatever it is divided by.
        return y, y.numel() - int(own.sum()), max(1, all_counted) * y.shape[1] / self.batch_size

    def _marks(
        self, first: int, end: int, places: Tensor, streams: Tensor, begin: int, dropped: Tensor | None
    ) -> Tensor | None:
        """What `Window.reset` is: the start of the text, of documents at `places`, and `dropped` before `begin`."""
        fresh = self._reset and first == 0
        if dropped is None and not len(places):
            return torch.ones(1, len(self._streams), dtype=torch.bool) if fresh else None
        own = self._own(streams) & (places < end)
        places, streams = places[own] - first, streams[own] - self._columns.start
        dropped = None if dropped is None else dropped[self._columns]
        steps = max(
            int(fresh), 0 if dropped is None else begin - first + 1, int(places.max()) + 1 if len(places) else 0
        )
        if not steps:
            return None
        marks = torch.zeros(steps, len(self._streams), dtype=torch.bool)
        marks[places, streams] = True
        if fresh:
            marks[0] = True
        if dropped is not None:
            marks[begin - first] |= dropped
        return marks

    def _own(self, streams: Tensor) -> Tensor:
        """Which of them are those of this process."""
        return (streams >= self._columns.start) & (streams < self._columns.stop)

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
