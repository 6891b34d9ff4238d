"""What recurrent layers take in memory, by kernel: one alone, and all of them in a chunk's forward and backward pass.

Shapes: a chunk of `S` steps of `B` streams, inputs `x` and outputs `H` wide; a segment is a part of a chunk.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tbptt.ops.layer import CELLS, segments
from tbptt.peak import PeakMemory


class KernelBytes(NamedTuple):
    """Bytes of a layer.

    Attributes:
        kept: from the forward to the backward pass, inputs not counted.
        outputs: of the outputs, where they are not among what is kept, else 0.
        forward: in passing in the forward pass, beside these.
        backward: in passing in the backward pass, with the gradients of inputs and weights that it makes.
        item: bytes of one value of the outputs.
    """

    kept: int
    outputs: int
    forward: int
    backward: int
    item: int


@dataclass
class Ledger:
    """What is alive, by name, and what was when it was most."""

    now: Counter[str]
    peak: Counter[str] = field(default_factory=Counter)
    moment: str = ""

    def look(self, moment: str, **passing: int) -> None:
        """A moment at which `passing` is alive too."""
        there = self.now + Counter(passing)
        if there.total() > self.peak.total():
            self.peak, self.moment = there, moment


class _Ours(NamedTuple):
    """Copies of (input weight, hidden weight) that a cell written by hand makes, and more.

    Attributes:
        forward: at once in the forward pass.
        again: what of these is there in the backward pass too, where it makes activations again.
        backward: in the backward pass, sums of gradients included.
        end: beside these at its end, when gradients are put into torch's order.
        factors: derivatives of a segment, in rows of `H`; gone at the end.
    """

    forward: tuple[int, int]
    again: tuple[int, int]
    backward: tuple[int, int]
    end: tuple[int, int]
    factors: float


OURS = {
    "lstm": _Ours((0, 1), (0, 1), (1, 1), (0, 0), 4),
    "gru": _Ours((0, 1), (0, 1), (1, 1), (0, 0), 2),
    "tanh": _Ours((0, 1), (0, 0), (1, 1), (0, 0), 0),
    "relu": _Ours((0, 1), (0, 0), (1, 1), (0, 0), 0.25),
}
# What torch's own layers keep per token beside the outputs, and take in passing in the forward pass, in rows of `H`.
# They are made of single operations: this is what is left of them, as measured with torch 2.6 and 2.13.
TORCH = {"lstm": (7, 4), "gru": (7, 3), "tanh": (1, 1), "relu": (1, 1)}
# The backward pass adds up the hidden weight's gradient step by step: sum, summand, and its transpose.
TORCH_HIDDEN_WEIGHTS = 3
# Steps x streams at which oneDNN's LSTM is measured, and at twice as many.
PROBE_ROWS = 128
# cuDNN's, from the size of its reserve; not measured.
CUDNN = {"lstm": (6, 2), "gru": (7, 2), "tanh": (2, 2), "relu": (2, 2)}


def kernel_bytes(
    kernel: str,
    kind: str,
    weights: Sequence[Tensor],
    steps: int,
    streams: int,
    *,
    save: str,
    dtype: torch.dtype,
    device: str,
) -> KernelBytes:
    """Bytes of a layer over a chunk.

    Args:
        kernel: "ours", "torch" or "cudnn".
        kind: "lstm", "gru", "tanh" or "relu".
        weights: of the layer, in torch's order.
        steps: `S`.
        streams: `B`.
        save: "gates" or "hidden", for "ours".
        dtype: of products.
        device: type of the device.
    """
    if kernel == "ours":
        return _ours(kind, weights, steps, streams, save)
    narrow = dtype.itemsize < weights[0].itemsize
    if kernel == "torch" and kind == "lstm" and device == "cpu" and weights[0].dtype != torch.float64:
        shape = weights[0].shape[1], weights[1].shape[1], streams
        few = math.ceil(PROBE_ROWS / streams)
        return _line(steps, few, *(_onednn(*shape, length, weights[0].dtype, dtype) for length in (few, 2 * few)))
    return _torchs(kernel, kind, weights, steps, streams, narrow=narrow)


def _ours(kind: str, weights: Sequence[Tensor], steps: int, streams: int, save: str) -> KernelBytes:
    # Computed in float32 at least.
    item = max(4, weights[0].itemsize)
    own = [weight.numel() * item for weight in weights[:2]]
    narrow = sum(own) if weights[0].itemsize < item else 0
    cell, copies = CELLS[kind], OURS[kind]
    row = streams * weights[1].shape[1] * item
    parts = segments(steps, streams)
    longest = parts[0][1]
    # Activations and cell states: of all steps where they are kept, else of a segment, made again.
    inside = (longest * cell.blocks + (longest + 1) * cell.has_cell) * row
    keeps = save == "gates" and cell.keeps
    kept = (steps + 1) * row
    kept += (steps * cell.blocks + (steps + 1) * cell.has_cell) * row if keeps else len(parts) * cell.has_cell * row
    backward = _copies(copies.backward, own) + longest * row
    if not keeps:
        backward += inside + _copies(copies.again, own)
    backward += max(int(copies.factors * longest * row), _copies(copies.end, own))
    of_inputs = steps * streams * weights[0].shape[1] * item
    forward = _copies(copies.forward, own) + (0 if keeps else inside)
    return KernelBytes(kept, 0, forward + narrow, backward + of_inputs + narrow, weights[0].itemsize)


def _copies(number: tuple[int, int], own: list[int]) -> int:
    return number[0] * own[0] + number[1] * own[1]


def _torchs(
    kernel: str, kind: str, weights: Sequence[Tensor], steps: int, streams: int, *, narrow: bool
) -> KernelBytes:
    """Layers that torch makes of single operations, and cuDNN's."""
    item, hidden = weights[0].itemsize, weights[1].nbytes
    row = streams * weights[1].shape[1] * item
    blocks = len(weights[0]) // weights[1].shape[1]
    keeps, forward = (CUDNN if kernel == "cudnn" else TORCH)[kind]
    # At the end of the backward pass: gradients of the projected inputs, of the inputs, and of weights.
    end = (blocks - keeps) * steps * row + steps * streams * weights[0].shape[1] * item + weights[0].nbytes + hidden
    backward = max(TORCH_HIDDEN_WEIGHTS * hidden, end)
    # Under autocast each step casts the hidden weight, and keeps that.
    cast = steps * hidden // 2 if narrow and kernel == "torch" else 0
    out = item // 2 if narrow and kind != "gru" else item
    return KernelBytes(keeps * steps * row + cast, steps * row * out // item, forward * steps * row, backward, out)


def _line(steps: int, few: int, *measured: KernelBytes) -> KernelBytes:
    """Bytes for any number of steps from those for `few` and for twice as many: all grow on a line."""
    return KernelBytes(*(low + (high - low) * (steps - few) // few for low, high in zip(*measured, strict=True)))


@lru_cache(maxsize=64)
def _onednn(
    width: int, size: int, streams: int, steps: int, dtype: torch.dtype, compute_dtype: torch.dtype
) -> KernelBytes:
    """The LSTM of oneDNN, whose workspace depends on its version and the processor: one call is measured."""
    # A run's generator must not be drawn from.
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.LSTM(width, size, dtype=dtype)
    inputs = torch.zeros(steps, streams, width, dtype=dtype, requires_grad=True)
    state = torch.zeros(1, streams, size, dtype=dtype)
    narrow = dtype != compute_dtype
    with torch.enable_grad(), PeakMemory() as peak:
        with torch.autocast("cpu", compute_dtype, enabled=narrow, cache_enabled=False):
            outputs, _ = layer(inputs, (state, state))
        peak.mark()
        gradient = torch.zeros_like(outputs)
        torch.autograd.grad(outputs, [inputs, *layer.parameters()], gradient)
    kept, before = peak.kept[0], gradient.nbytes
    return KernelBytes(kept, 0, peak.peaks[0] - kept, peak.peaks[1] - kept - before, outputs.itemsize)


def run_forward(ledger: Ledger, layers: Sequence[KernelBytes], values: int, *, drops: bool) -> None:
    """All layers, and the dropout after each; outputs have so many `values`."""
    now = ledger.now
    for number, layer in enumerate(layers):
        now["activations"] += layer.kept
        ledger.look(f"the forward pass of layer {number}", activations=layer.outputs + layer.forward)
        dropped = values * layer.item
        if drops:
            # Of the mask there are numbers too, in passing; the values and the mask are kept.
            ledger.look("dropout", activations=layer.outputs + 2 * dropped + values)
            now["activations"] += dropped + values
        else:
            now["activations"] += layer.outputs


def run_backward(
    ledger: Ledger, layers: Sequence[KernelBytes], values: int, weights: Sequence[int], given: int, *, drops: bool
) -> None:
    """The way back, from a gradient of the outputs of which `given` bytes go when they are used.

    Gradients of each layer's weights take `weights` bytes, and stay.
    """
    now = ledger.now
    for number, layer in reversed(list(enumerate(layers))):
        out = values * layer.item
        if drops:
            # Scaled, multiplied by the mask, and the mask as numbers.
            ledger.look("the backward pass of dropout", **{"backward pass": max(given, 2 * out) + out})
            given = out
            now["activations"] -= values
        ledger.look(f"the backward pass of layer {number}", **{"backward pass": given + layer.backward})
        now["gradients"] += weights[number]
        # Outputs of the last layer are held until the chunk is done.
        held = out if layer is layers[-1] and not drops and not layer.outputs else 0
        now["activations"] -= layer.kept - held
        if number:
            given = values * layers[number - 1].item
            # What went into this layer.
            now["activations"] -= out if drops else layers[number - 1].outputs
