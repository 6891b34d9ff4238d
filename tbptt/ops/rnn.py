"""Plain recurrence by hand (Elman 1990): `h = tanh(W x + U h_before + b)`, or the same with relu.

Nothing is kept beside `h`: 1 H floats per step. Both derivatives follow from `h` itself.
"""

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cuts, Flow


class RNN(Cell):
    """The Elman cell with tanh."""

    gates = 1
    blocks = 1
    keeps = False

    def _squash(self, values: Tensor) -> None:
        """Apply the nonlinearity in place."""
        values.tanh_()

    def _factors(self, hidden: Tensor, activations: Tensor) -> None:
        """Write the derivative of the nonlinearity, a function of its result, into `activations`."""
        torch.mul(hidden, hidden, out=activations)
        activations.neg_().add_(1)

    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.run`; there is no cell state."""
        h, steps, weight = hidden.unbind(0), activations.unbind(0), self.step_weight
        for t, step in enumerate(steps):
            before = cuts[t].enter(h[t], cuts[t].hidden) if t in cuts else h[t]
            self._squash(h[t + 1].copy_(self.add_product(step, before, weight)))

    def redo(self, inputs: Tensor, activations: Tensor, before: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.redo`: the hidden states say it all."""

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
        """As `Cell.sweep`: per step one product and one call in place."""
        self._factors(hidden, activations)
        steps, outside = activations.unbind(0), gradient.unbind(0)
        weight = self.of_steps(self.weights.hidden)
        dh = outside[-1].add_(flow.hidden)
        for t in range(len(steps) - 1, -1, -1):
            steps[t].mul_(dh)
            dh = self.leave(steps[t], weight, t, outside, flow, cuts)


class ReluRNN(RNN):
    """The Elman cell with relu."""

    def _squash(self, values: Tensor) -> None:
        values.relu_()

    def _factors(self, hidden: Tensor, activations: Tensor) -> None:
        activations.copy_(hidden > 0)
