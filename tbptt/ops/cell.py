"""What a hand-written recurrent cell must say; `layer.py` does the rest.

Shapes: a segment is `S` steps of `B` streams. `activations` `(S, B, blocks * H)` holds what each step computes, one
block of `H` columns per quantity, and becomes the gradient of the same quantities in the backward pass. `hidden` and
`cell` `(S + 1, B, H)` hold the state before each step and, last, after the segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """Weights of one layer as torch keeps them: `(G * H, E)`, `(G * H, H)`, `(G * H,)`, `(G * H,)`."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


class Cut(NamedTuple):
    """A step before which some streams start anew: their rows `(B, 1)`, and the fresh state `(B, H)` they get."""

    rows: Tensor
    hidden: Tensor | None
    cell: Tensor | None

    def enter(self, state: Tensor, fresh: Tensor | None) -> Tensor:
        """A state `(B, H)` with the fresh rows put in."""
        return torch.where(self.rows, state.new_zeros(()) if fresh is None else fresh, state)


Cuts = Mapping[int, Cut]

# From this width on the product of a step takes its weight in bfloat16 where products are to be: it no longer fits in a
# core's cache, and half of it is to be fetched. Below, float32 is faster.
NARROW_SIZE = 256


class Flow(NamedTuple):
    """Gradients that flow from step to step, each `(B, H)`, changed in place; the fresh ones where states are cut."""

    hidden: Tensor
    cell: Tensor | None
    fresh_hidden: Tensor | None
    fresh_cell: Tensor | None

    def leave(self, cut: Cut) -> None:
        """Take the gradient of rows that started anew out of the flow, and give it to the fresh state."""
        for flow, fresh in ((self.hidden, self.fresh_hidden), (self.cell, self.fresh_cell)):
            if flow is not None:
                if fresh is not None:
                    fresh.add_(flow * cut.rows)
                flow.masked_fill_(cut.rows, 0)


class Cell(ABC):
    """The arithmetic of one step, forward and backward, on whole segments where steps do not wait for each other.

    Attributes:
        gates: quantities `G` that torch's weights compute.
        blocks: quantities that a step computes.
        keeps: whether they are worth keeping, or the hidden states say it all.
        has_cell: whether there is a cell state beside the hidden state.
    """

    gates: int
    blocks: int
    keeps: bool = True
    has_cell: bool = False

    def __init__(self, weights: Weights, dtype: torch.dtype, *, bfloat16: bool = False) -> None:
        self.size = weights.hidden.shape[1]
        self.weights = Weights(*(weight.to(dtype) for weight in weights))
        self.bfloat16 = bfloat16
        self._narrow = bfloat16 and self.size >= NARROW_SIZE

    @property
    def input_parts(self) -> tuple[tuple[slice, slice], ...]:
        """Which columns of the activations which rows of torch's input weight contribute to."""
        return ((slice(None), slice(None)),)

    @property
    def input_bias(self) -> Tensor:
        """What is added to the products of the inputs, `(G * H,)` in torch's order."""
        return self.weights.input_bias + self.weights.hidden_bias

    @property
    def hidden_columns(self) -> slice:
        """Columns of the activations that the hidden state contributes to, in the order of torch's hidden weight."""
        return slice(None)

    def project(self, inputs: Tensor, activations: Tensor) -> None:
        """Write what the inputs `(S * B, E)` and the biases contribute into `activations`, by products of all rows."""
        bias = self.input_bias
        for columns, part in self.input_parts:
            torch.addmm(bias[part], inputs, self.weights.input[part].t(), out=rows(activations)[:, columns])

    @cached_property
    def step_weight(self) -> Tensor:
        """The hidden weight `(H, G * H)` for the products of steps; in float32 with rows side by side, which pays."""
        return self.of_steps(self.weights.hidden).t() if self._narrow else self.weights.hidden.t().contiguous()

    def of_steps(self, weight: Tensor) -> Tensor:
        """A weight as the product of each step takes it."""
        return weight.to(torch.bfloat16) if self._narrow else weight

    @staticmethod
    def add_product(total: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
        """`total += factor @ weight` in place, in the precision of the weight; returns it."""
        if weight.dtype == total.dtype:
            return total.addmm_(factor, weight)
        return total.add_(factor.to(weight.dtype) @ weight)

    @abstractmethod
    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """Step through a projected segment from `hidden[0]`, `cell[0]`; fill the rest of both, and `activations`."""

    @abstractmethod
    def redo(self, inputs: Tensor, activations: Tensor, before: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """Fill `activations` and `cell` of a segment again, from inputs and the hidden states `before` each step."""

    @abstractmethod
    def sweep(
        self,
        activations: Tensor,
        hidden: Tensor,
        before: Tensor,
        cell: Tensor,
        gradient: Tensor,
        flow: Flow,
        cuts: Cuts,
    ) -> None:
        """Turn `activations` into their gradients, from the last step to the first.

        Args:
            activations: of the segment; overwritten.
            hidden: `(S, B, H)`, outputs of the segment.
            before: `(S, B, H)`, the hidden state each step started from, fresh rows put in.
            cell: `(S + 1, B, H)`.
            gradient: `(S, B, H)` of the outputs; overwritten.
            flow: gradient of the state after the segment; on return, of the state before it.
            cuts: where streams started anew.
        """

    def leave(
        self,
        step: Tensor,
        weight: Tensor,
        t: int,
        outside: Sequence[Tensor],
        flow: Flow,
        cuts: Cuts,
        past: Tensor | None = None,
    ) -> Tensor:
        """Go back over the border before step `t`; returns the gradient of the hidden state there.

        Args:
            step: gradients `(B, G * H)` of the hidden side of step `t`.
            weight: `(G * H, H)`, by `of_steps`.
            t: the step.
            outside: gradients `(B, H)` of the outputs; the result is added to that of the step before, in place.
            flow: gets the result for the first step of the segment, and where streams start anew.
            cuts: where they do.
            past: what passes by the product, None for nothing.
        """
        if t and t not in cuts:
            before = outside[t - 1]
            if past is not None:
                before += past
            return self.add_product(before, step, weight)
        if past is None:
            flow.hidden.zero_()
        elif past is not flow.hidden:
            flow.hidden.copy_(past)
        self.add_product(flow.hidden, step, weight)
        if t in cuts:
            flow.leave(cuts[t])
        return outside[t - 1].add_(flow.hidden) if t else flow.hidden


def rows(activations: Tensor) -> Tensor:
    """Steps and streams as one dimension, `(S * B, ...)`, without a copy."""
    return activations.flatten(0, 1)
