"""GRU by hand (Cho et al. 2014), in the variant of `torch.nn.GRU`: the reset gate acts after the hidden product.

`n = tanh(x_n + r * q)` with `q = W_hn h + b_hn`, `h = (1 - z) * n + z * h_before`. Blocks kept per step: `n, r, z, q`;
with `h` that is 5 H floats. The inputs contribute to `n, r, z`, the hidden state to `r, z, q`: each side lies together.
"""

import torch
from torch import Tensor

from tbptt.ops.cell import Cell, Cuts, Flow, rows


class GRU(Cell):
    """The GRU cell."""

    gates = 3
    blocks = 4

    @property
    def input_parts(self) -> tuple[tuple[slice, slice], ...]:
        """As `Cell.input_parts`: torch's order is r, z, n."""
        size = self.size
        return (slice(0, size), slice(2 * size, 3 * size)), (slice(size, 3 * size), slice(0, 2 * size))

    @property
    def input_bias(self) -> Tensor:
        """As `Cell.input_bias`: the hidden bias of n belongs to q."""
        bias = self.weights.input_bias.clone()
        bias[: 2 * self.size] += self.weights.hidden_bias[: 2 * self.size]
        return bias

    @property
    def hidden_columns(self) -> slice:
        """As `Cell.hidden_columns`: r, z, q."""
        return slice(self.size, None)

    def project(self, inputs: Tensor, activations: Tensor) -> None:
        """As `Cell.project`; q starts from its bias."""
        super().project(inputs, activations)
        activations[:, :, 3 * self.size :] = self.weights.hidden_bias[2 * self.size :]

    def run(self, activations: Tensor, hidden: Tensor, cell: Tensor, cuts: Cuts) -> None:
        """As `Cell.run`; there is no cell state."""
        size, weight = self.size, self.step_weight
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
        self.add_product(rows(activations)[:, self.hidden_columns], rows(before), self.step_weight)
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
