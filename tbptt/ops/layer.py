"""One recurrent layer with its gradient written by hand, for any `Cell`.

Shapes: inputs `(T, B, E)`, outputs `(T, B, H)`, states `(B, H)`. What stays for the backward pass, in floats per step
and stream beside the inputs: with `save="gates"` the activations, the cell state and the output (LSTM 6 H, GRU 5 H,
RNN 1 H); with `save="hidden"` the output alone, 1 H, and a cell state at the border of each segment. Either way a
segment is worked on at a time, so what is needed in passing does not grow with `T`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cut, Cuts, Flow, Weights, rows
from tbptt.ops.gru import GRU
from tbptt.ops.lstm import LSTM
from tbptt.ops.precision import bfloat16_products
from tbptt.ops.rnn import RNN, ReluRNN

CELLS: dict[str, type[Cell]] = {"lstm": LSTM, "gru": GRU, "tanh": RNN, "relu": ReluRNN}
# Steps x streams of a segment: enough for full products, few enough for its parts to stay in a cache.
SEGMENT_ROWS = 4096

SECOND = (
    "the gradient of a hand-written recurrent layer can be taken once: its backward pass overwrites what the forward "
    "pass kept. Run the forward pass again, or set model.kernel=torch to use retain_graph or create_graph."
)


class Saved(NamedTuple):
    """What a forward pass keeps: hidden `(T + 1, B, H)`; cell states of all steps or of all segments' starts."""

    hidden: Tensor
    cells: Tensor
    activations: Tensor


def find_cuts(reset: Tensor | None, hidden: Tensor | None, cell: Tensor | None) -> dict[int, Cut]:
    """The steps that `reset` `(T, B)` marks, and the fresh state `(B, H)` (None: zeros) of the streams marked there."""
    if reset is None:
        return {}
    return {t: Cut(reset[t].unsqueeze(1), hidden, cell) for t in reset.any(dim=1).nonzero().flatten().tolist()}


def segments(steps: int, streams: int) -> list[tuple[int, int]]:
    """Begin and end of each segment."""
    length = max(1, SEGMENT_ROWS // streams)
    return [(begin, min(steps, begin + length)) for begin in range(0, steps, length)]


def _within(cuts: Cuts, begin: int, end: int) -> dict[int, Cut]:
    return {t - begin: cut for t, cut in cuts.items() if begin <= t < end}


def run_forward(
    cell: Cell, inputs: Tensor, hidden: Tensor, state: Tensor | None, cuts: Cuts, save: str
) -> tuple[Saved, Tensor | None]:
    """Run a layer; `save` is "gates", "hidden", or "none". Returns what is kept, and the last cell state."""
    steps, streams, _ = inputs.shape
    parts = segments(steps, streams)
    longest, width = parts[0][1], cell.blocks * cell.size
    keep = save == "gates" and cell.keeps
    all_hidden = hidden.new_empty(steps + 1, streams, cell.size)
    all_hidden[0] = hidden
    activations = hidden.new_empty(steps if keep else longest, streams, width)
    cells = hidden.new_empty((steps if keep else longest) + 1 if state is not None else 0, streams, cell.size)
    borders = hidden.new_empty(len(parts) if save == "hidden" and state is not None else 0, streams, cell.size)
    for number, (begin, end) in enumerate(parts):
        at = begin if keep else 0
        if state is not None:
            cells[at] = state
            if len(borders):
                borders[number] = state
        part, part_cells = activations[at : at + end - begin], cells[at : at + end - begin + 1]
        with bfloat16_products(cell.bfloat16):
            cell.project(rows(inputs[begin:end]).to(hidden.dtype), part)
        cell.run(part, all_hidden[begin : end + 1], part_cells, _within(cuts, begin, end))
        state = None if state is None else part_cells[-1]
    last = None if state is None else state.clone()
    none = hidden.new_empty(0)
    return Saved(all_hidden, cells if keep else borders, activations if keep else none), last


def run_backward(
    cell: Cell, inputs: Tensor, saved: Saved, cuts: Cuts, gradient: Tensor, flow: Flow, *, need_inputs: bool
) -> tuple[Tensor | None, Weights]:
    """Gradients of inputs and weights, in torch's layout; `flow` ends as that of the state before the first step."""
    steps, streams, _ = inputs.shape
    hidden = saved.hidden
    of_inputs = hidden.new_empty(inputs.shape) if need_inputs else None
    total = Weights(*(torch.empty_like(weight) for weight in cell.weights))
    for begin, end, part, part_cells in _segments_again(cell, saved, streams, steps):
        here, part_inputs = _within(cuts, begin, end), rows(inputs[begin:end]).to(hidden.dtype)
        before = hidden[begin:end]
        if here:
            before = before.clone()
            for t, cut in here.items():
                before[t] = cut.enter(before[t], cut.hidden)
        if not len(saved.activations):
            with bfloat16_products(cell.bfloat16):
                cell.redo(part_inputs, part, before, part_cells, here)
        outside = gradient[begin:end].to(hidden.dtype, copy=True, memory_format=torch.contiguous_format)
        cell.sweep(part, hidden[begin + 1 : end + 1], before, part_cells, outside, flow, here)
        # The last segment comes first, and finds nothing to add to.
        _add_weight_gradients(cell, total, rows(part), part_inputs, rows(before), keep=end < steps)
        if of_inputs is not None:
            _input_gradient(cell, rows(part), rows(of_inputs[begin:end]))
    return of_inputs, total


def _add_weight_gradients(
    cell: Cell, total: Weights, gradient: Tensor, inputs: Tensor, before: Tensor, *, keep: bool
) -> None:
    """Add what a segment contributes to the gradients of weights, or write it where nothing is to be kept."""
    beta, hidden_side = float(keep), gradient[:, cell.hidden_columns]
    if not keep:
        total.input_bias.zero_()
        total.hidden_bias.zero_()
    total.hidden_bias.add_(hidden_side.sum(0))
    with bfloat16_products(cell.bfloat16):
        torch.addmm(total.hidden, hidden_side.t(), before, beta=beta, out=total.hidden)
        for columns, part in cell.input_parts:
            total.input_bias[part].add_(gradient[:, columns].sum(0))
            torch.addmm(total.input[part], gradient[:, columns].t(), inputs, beta=beta, out=total.input[part])


def _input_gradient(cell: Cell, gradient: Tensor, out: Tensor) -> None:
    with bfloat16_products(cell.bfloat16):
        for number, (columns, part) in enumerate(cell.input_parts):
            weight = cell.weights.input[part]
            torch.addmm(out, gradient[:, columns], weight, beta=float(number > 0), out=out)


def _segments_again(cell: Cell, saved: Saved, streams: int, steps: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Segments from the last to the first: begin, end, activations and cell states, kept or to be filled again."""
    parts = segments(steps, streams)
    if len(saved.activations):
        for begin, end in reversed(parts):
            yield begin, end, saved.activations[begin:end], saved.cells[begin : end + 1]
        return
    longest = parts[0][1]
    activations = saved.hidden.new_empty(longest, streams, cell.blocks * cell.size)
    cells = saved.hidden.new_empty(longest + 1 if cell.has_cell else 0, streams, cell.size)
    for number, (begin, end) in reversed(list(enumerate(parts))):
        if cell.has_cell:
            cells[0] = saved.cells[number]
        yield begin, end, activations[: end - begin], cells[: end - begin + 1]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, save: str, bfloat16: bool, reset: Tensor | None, *tensors: Tensor | None) -> Any:
        inputs, hidden, state, fresh_hidden, fresh_state, *weights = tensors
        assert inputs is not None
        assert hidden is not None
        dtype = torch.float64 if inputs.dtype == torch.float64 else torch.float32
        # Autocast would convert the factors and result of each product; here precision is chosen for all of them.
        with torch.autocast(inputs.device.type, enabled=False):
            cell = CELLS[kind](Weights(*weights), dtype, bfloat16=bfloat16)  # type: ignore[arg-type]
            cuts = find_cuts(reset, fresh_hidden, fresh_state)
            state = None if state is None else state.to(dtype)
            saved, last = run_forward(cell, inputs, hidden.to(dtype), state, cuts, save)
        ctx.kind, ctx.bfloat16, ctx.dtype, ctx.spent = kind, bfloat16, dtype, False
        if save != "none":
            ctx.save_for_backward(inputs, reset, fresh_hidden, fresh_state, *weights, *saved)
        outputs = saved.hidden[1:]
        narrow = weights[1] is not None and weights[1].dtype == torch.bfloat16
        # A clone of the last state: the carry must not hold on to a whole window.
        return outputs.to(torch.bfloat16) if narrow else outputs, saved.hidden[-1].clone(), last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, d_hidden: Tensor, d_state: Tensor | None) -> Any:
        if ctx.spent or torch.is_grad_enabled():
            raise RuntimeError(SECOND)
        ctx.spent = True
        inputs, reset, fresh_hidden, fresh_state, *rest = ctx.saved_tensors
        weights, saved = Weights(*rest[:4]), Saved(*rest[4:])
        with torch.autocast(inputs.device.type, enabled=False):
            cell = CELLS[ctx.kind](weights, ctx.dtype, bfloat16=ctx.bfloat16)
            cuts = find_cuts(reset, fresh_hidden, fresh_state)
            flow = Flow(
                d_hidden.to(ctx.dtype, copy=True),
                None if d_state is None else d_state.to(ctx.dtype, copy=True),
                torch.zeros_like(fresh_hidden) if ctx.needs_input_grad[7] else None,
                torch.zeros_like(fresh_state) if ctx.needs_input_grad[8] else None,
            )
            of_inputs, total = run_backward(
                cell, inputs, saved, cuts, gradient, flow, need_inputs=ctx.needs_input_grad[4]
            )
        of_weights = [part.to(weight.dtype) for part, weight in zip(total, weights, strict=True)]
        of_inputs = None if of_inputs is None else of_inputs.to(inputs.dtype)
        return None, None, None, None, of_inputs, *flow, *of_weights


def recurrent_layer(
    kind: str,
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weights: Weights,
    *,
    save: str,
    reset: Tensor | None = None,
    fresh: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One layer over a window, like a `torch.nn` layer of the same weights.

    Args:
        kind: "lstm", "gru", "tanh" or "relu".
        inputs: `(T, B, E)`, float32, float64 or bfloat16.
        hidden: `(B, H)`, the state before the first step.
        cell: `(B, H)` for an LSTM, else None.
        weights: the layer's, as torch keeps them.
        save: "gates" keeps every activation, "hidden" the outputs alone.
        reset: `(T, B)` of bool: streams that start anew before a step.
        fresh: the hidden and cell state `(B, H)` they start from, None for zeros.

    Returns:
        outputs `(T, B, H)`, and the hidden and cell state after the last step, `(B, H)`. Computed in float64 for
        float64 and else in float32, under bfloat16 autocast and for bfloat16 weights with bfloat16 products; outputs
        of bfloat16 weights are bfloat16, states are not.

    Raises:
        RuntimeError: on a second backward pass, or a gradient of the gradient.
    """
    device = inputs.device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    bfloat16 = inputs.dtype != torch.float64 and (autocast or weights.input.dtype == torch.bfloat16)
    tensors = (inputs, hidden, cell, *fresh, *weights)
    wanted = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    result: tuple[Tensor, Tensor, Tensor | None] = _Layer.apply(
        kind, save if wanted else "none", bfloat16, reset, *tensors
    )  # type: ignore[no-untyped-call]
    return result
