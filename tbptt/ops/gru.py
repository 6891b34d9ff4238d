"""GRU by hand (Cho et al. 2014), in the variant of `torch.nn.GRU`: the reset gate acts after the hidden product.

`n = tanh(x_n + r * q)` with `q = W_hn h + b_hn`, `h = (1 - z) * n + z * h_before`. Blocks kept per step: `n, r, z, q`;
with `h` that is 5 H floats. The inputs contribute to `n, r, z`, the hidden state to `r, z, q`: each side lies together.
"""

from functools import cached_property

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cuts, Flow, rows


class GRU(Cell):
    """The GRU cell."""

    gates = 3
    blocks = 4

    @cached_property
    def _left(self) -> tuple[Tensor, Tensor]:
        """Bias and weight of the input side, in the order n, r, z where torch has r, z, n."""
        both = 2 * self.size
        bias = self.weights.input_bias.clone()
        bias[:both] += self.weights.hidden_bias[:both]
        return torch.cat([bias[both:], bias[:both]]), torch.cat([self.weights.input[both:], self.weights.input[:both]])

    @cached_property
    def _right(self) -> Tensor:
        """The hidden weight with rows side by side, which small products like."""
        return self.weights.hidden.t().contiguous()

    @cached_property
    def _step(self) -> Tensor:
        return self.of_steps(self._right)

    def project(self, inputs: Tensor, activations: Tensor) -> None:
        """As `Cell.project`."""
        bias, weight = self._left
        torch.addmm(bias, inputs, weight.t(), out=self.input_side(activations))
        activations[:, :, 3 * self.size :] = self.weights.hidden_bias[2 * self.size :]

    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.run`; there is no cell state."""
        size, weight = self.size, self._step
        right = activations[:, :, size:].unbind(0)
        sigmoids = activations[:, :, size : 3 * size].unbind(0)
        n, r, z, q = (block.unbind(0) for block in torch.split(activations, size, dim=2))
        h = hidden.unbind(0)
        for t, step in enumerate(right):
            before = cuts[t].enter(h[t], cuts[t].hidden) if t in cuts else h[t]
            self.add_product(step, before, weight)
            sigmoids[t].sigmoid_()
            new = n[t]
            new.addcmul_(r[t], q[t])
            new.tanh_()
            torch.lerp(new, before, z[t], out=h[t + 1])

    def redo(self, inputs: Tensor, activations: Tensor, before: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.redo`: nothing waits for an earlier step."""
        self.project(inputs, activations)
        self.hidden_side(activations).addmm_(rows(before), self._right)
        activations[:, :, self.size : 3 * self.size].sigmoid_()
        n, r, _, q = torch.split(activations, self.size, dim=2)
        n.addcmul_(r, q).tanh_()

    def _factors(self, activations: Tensor, before: Tensor) -> Tensor:
        """Derivatives of all blocks by `dh`, all steps at once, in place; and `z`, the share that passes by."""
        n, r, z, q = torch.split(activations, self.size, dim=2)
        keep = z.clone()
        # z: (h - n) z (1 - z)
        product = (before - n).mul_(z)
        torch.addcmul(product, product, z, value=-1, out=z)
        # n: (1 - z) (1 - n n)
        torch.mul(n, n, out=product)
        product.neg_().add_(1)
        torch.addcmul(product, product, keep, value=-1, out=n)
        # q: n' r, and r: n' q r (1 - r)
        torch.mul(n, r, out=product)
        q.mul_(product)
        torch.addcmul(q, q, r, value=-1, out=r)
        q.copy_(product)
        return keep

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
        """As `Cell.sweep`: per step one product and five or six calls."""
        keep = self._factors(activations, before).unbind(0)
        right, outside = activations[:, :, self.size :].unbind(0), gradient.unbind(0)
        n, r, z, q = (block.unbind(0) for block in torch.split(activations, self.size, dim=2))
        weight = self.of_steps(self.weights.hidden)
        dh = outside[-1].add_(flow.hidden)
        for t in range(len(right) - 1, -1, -1):
            n[t].mul_(dh)
            r[t].mul_(dh)
            z[t].mul_(dh)
            q[t].mul_(dh)
            dh = self.leave(right[t], weight, t, outside, flow, cuts, dh.mul_(keep[t]))

    def input_side(self, activations: Tensor) -> Tensor:
        """As `Cell.input_side`: `n, r, z`."""
        return rows(activations)[:, : 3 * self.size]

    def hidden_side(self, activations: Tensor) -> Tensor:
        """As `Cell.hidden_side`: `r, z, q`."""
        return rows(activations)[:, self.size :]

    def input_weight(self) -> Tensor:
        """As `Cell.input_weight`."""
        return self._left[1]

    def to_torch(self, gradient: Tensor, *, side: str) -> Tensor:
        """As `Cell.to_torch`: `n, r, z` to `r, z, n`; the hidden side is in order."""
        return gradient if side == "hidden" else torch.cat([gradient[self.size :], gradient[: self.size]])
