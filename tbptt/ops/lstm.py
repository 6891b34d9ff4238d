"""LSTM by hand (Hochreiter and Schmidhuber 1997; gates as in `torch.nn.LSTM`).

`c = f * c_before + i * g`, `h = o * tanh(c)`. Blocks kept per step: `i, f, g, o`, as in torch's weights, so that no
weight has to be rearranged; with `c` and `h` that is 6 H floats.
"""

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cuts, Flow, rows


class LSTM(Cell):
    """The LSTM cell."""

    gates = 4
    blocks = 4
    has_cell = True

    @staticmethod
    def _activate(i_f: Tensor, g: Tensor, o: Tensor) -> None:
        i_f.sigmoid_()
        g.tanh_()
        o.sigmoid_()

    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.run`."""
        size, weight = self.size, self.step_weight
        steps, i_f = activations.unbind(0), activations[:, :, : 2 * size].unbind(0)
        i, f, g, o = (block.unbind(0) for block in torch.split(activations, size, dim=2))
        h, c = hidden.unbind(0), cell.unbind(0)
        squashed = torch.empty_like(h[0])
        for t, step in enumerate(steps):
            h_before, c_before = h[t], c[t]
            if t in cuts:
                h_before, c_before = cuts[t].enter(h_before, cuts[t].hidden), cuts[t].enter(c_before, cuts[t].cell)
            self.add_product(step, h_before, weight)
            self._activate(i_f[t], g[t], o[t])
            after = c[t + 1]
            torch.mul(f[t], c_before, out=after)
            after.addcmul_(i[t], g[t])
            torch.tanh(after, out=squashed)
            torch.mul(o[t], squashed, out=h[t + 1])

    def redo(self, inputs: Tensor, activations: Tensor, before: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.redo`: all gates by one product, then the cell state step by step."""
        self.project(inputs, activations)
        self.add_product(rows(activations), rows(before), self.step_weight)
        blocks = torch.split(activations, self.size, dim=2)
        self._activate(activations[:, :, : 2 * self.size], blocks[2], blocks[3])
        i, f, g = (block.unbind(0) for block in blocks[:3])
        c = cell.unbind(0)
        for t in range(len(i)):
            c_before = cuts[t].enter(c[t], cuts[t].cell) if t in cuts else c[t]
            torch.mul(f[t], c_before, out=c[t + 1])
            c[t + 1].addcmul_(i[t], g[t])

    def _factors(self, activations: Tensor, cell: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
        """Derivatives of all steps at once, in place: by `dh` for o, by `dc` for i, f, g; and `f`, `dc / dh`."""
        i, f, g, o = torch.split(activations, self.size, dim=2)
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
        i, f, g, o = (block.unbind(0) for block in torch.split(activations, self.size, dim=2))
        dc, weight = flow.cell, self.of_steps(self.weights.hidden)
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
