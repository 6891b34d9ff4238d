"""LSTM by hand (Hochreiter and Schmidhuber 1997; gates as in `torch.nn.LSTM`).

`c = f * c_before + i * g`, `h = o * tanh(c)`. Blocks kept per step: `o, i, f, g`; with `c` and `h` that is 6 H floats.
The order puts the sigmoids side by side going forward, and those that depend on `c` going backward.
"""

from functools import cached_property

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cuts, Flow, rows

# In torch's order i, f, g, o: where each block of ours stands there, and the way back.
OURS = (3, 0, 1, 2)
TORCHS = (1, 2, 3, 0)


class LSTM(Cell):
    """The LSTM cell."""

    gates = 4
    blocks = 4
    has_cell = True

    def _ours(self, weight: Tensor) -> Tensor:
        blocks = torch.split(weight, self.size)
        return torch.cat([blocks[number] for number in OURS])

    @cached_property
    def _halves(self) -> Tensor:
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, and torch shares the work of tanh among threads where that of sigmoid
        # stays with one: halve what enters the sigmoids.
        halves = self.weights.hidden.new_full((4 * self.size, 1), 0.5)
        halves[3 * self.size :] = 1.0
        return halves

    @cached_property
    def _forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bias, and both weights transposed; rows of the hidden one side by side, which small products like."""
        bias = self._ours(self.weights.input_bias + self.weights.hidden_bias)
        left, right = (self._ours(weight).mul_(self._halves) for weight in self.weights[:2])
        return bias * self._halves[:, 0], left.t(), right.t().contiguous()

    @cached_property
    def _step(self) -> Tensor:
        return self.of_steps(self._forward[2])

    @cached_property
    def _backward(self) -> Tensor:
        return self.of_steps(self._ours(self.weights.hidden))

    def project(self, inputs: Tensor, activations: Tensor) -> None:
        """As `Cell.project`."""
        bias, weight, _ = self._forward
        torch.addmm(bias, inputs, weight, out=rows(activations))

    def _activate(self, whole: Tensor, sigmoids: Tensor) -> None:
        whole.tanh_()
        torch.add(self._halves[0], sigmoids, alpha=0.5, out=sigmoids)

    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.run`."""
        size, weight = self.size, self._step
        steps = activations.unbind(0)
        sigmoids = activations[:, :, : 3 * size].unbind(0)
        o, i, f, g = (block.unbind(0) for block in torch.split(activations, size, dim=2))
        h, c = hidden.unbind(0), cell.unbind(0)
        squashed = torch.empty_like(h[0])
        for t, step in enumerate(steps):
            h_before, c_before = h[t], c[t]
            if t in cuts:
                h_before, c_before = cuts[t].enter(h_before, cuts[t].hidden), cuts[t].enter(c_before, cuts[t].cell)
            self.add_product(step, h_before, weight)
            self._activate(step, sigmoids[t])
            after = c[t + 1]
            torch.mul(f[t], c_before, out=after)
            after.addcmul_(i[t], g[t])
            torch.tanh(after, out=squashed)
            torch.mul(o[t], squashed, out=h[t + 1])

    def redo(self, inputs: Tensor, activations: Tensor, before: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.redo`: all gates by one product, then the cell state step by step."""
        self.project(inputs, activations)
        rows(activations).addmm_(rows(before), self._forward[2])
        self._activate(activations, activations[:, :, : 3 * self.size])
        _, i, f, g = (block.unbind(0) for block in torch.split(activations, self.size, dim=2))
        c = cell.unbind(0)
        for t in range(len(i)):
            c_before = cuts[t].enter(c[t], cuts[t].cell) if t in cuts else c[t]
            torch.mul(f[t], c_before, out=c[t + 1])
            c[t + 1].addcmul_(i[t], g[t])

    def _factors(self, activations: Tensor, cell: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
        """Derivatives of all steps at once, in place: by `dh` for o, by `dc` for i, f, g; and `f`, `dc / dh`."""
        o, i, f, g = torch.split(activations, self.size, dim=2)
        squashed = cell[1:].tanh()
        product = o * squashed
        through = torch.addcmul(o, product, squashed, value=-1)
        torch.addcmul(product, product, o, value=-1, out=o)
        torch.mul(i, g, out=product)
        torch.addcmul(i, product, g, value=-1, out=g)
        torch.addcmul(product, product, i, value=-1, out=i)
        forget = f.clone()
        torch.mul(f, cell[:-1], out=product)
        for t, cut in cuts.items():
            torch.mul(f[t], cut.enter(cell[t], cut.cell), out=product[t])
        torch.addcmul(product, product, f, value=-1, out=f)
        return forget, through

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
        """As `Cell.sweep`: per step one product and six calls, all in place."""
        forget, through = (part.unbind(0) for part in self._factors(activations, cell, cuts))
        steps, outside = activations.unbind(0), gradient.unbind(0)
        o, i, f, g = (block.unbind(0) for block in torch.split(activations, self.size, dim=2))
        dc, weight = flow.cell, self._backward
        assert dc is not None
        dh = outside[-1].add_(flow.hidden)
        for t in range(len(steps) - 1, -1, -1):
            dc.addcmul_(dh, through[t])
            o[t].mul_(dh)
            i[t].mul_(dc)
            f[t].mul_(dc)
            g[t].mul_(dc)
            dc.mul_(forget[t])
            dh = self.leave(steps[t], weight, t, outside, flow, cuts)

    def input_side(self, activations: Tensor) -> Tensor:
        """As `Cell.input_side`: all."""
        return rows(activations)

    def hidden_side(self, activations: Tensor) -> Tensor:
        """As `Cell.hidden_side`: all."""
        return rows(activations)

    def input_weight(self) -> Tensor:
        """As `Cell.input_weight`."""
        return self._ours(self.weights.input)

    def to_torch(self, gradient: Tensor, *, side: str) -> Tensor:
        """As `Cell.to_torch`; both sides have one order."""
        blocks = torch.split(gradient, self.size)
        return torch.cat([blocks[number] for number in TORCHS])
