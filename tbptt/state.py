"""The recurrent state of a core.

Shapes: `L` layers, `D` directions, `B` streams, `H` hidden units. A state is always `(L * D, B, H)`, whatever the
layout of the batch: layers first, streams second, never the other way round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """The hidden state, and for an LSTM the cell state, each `(L * D, B, H)`."""

    hidden: Tensor
    cell: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "State":
        """Apply `function` to each tensor of the state."""
        return State(function(self.hidden), None if self.cell is None else function(self.cell))

    def detach(self) -> "State":
        """The same values without their history: what may pass from window to window."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> "State":
        """The same state on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def reset_rows(self, rows: Tensor, initial: "State") -> "State":
        """Replace the columns of the streams marked in `rows`, `(B,)` of bool, by those of `initial`.

        No copy to the host takes place, so a GPU does not wait.
        """
        mask = rows.view(1, -1, 1)
        hidden = torch.where(mask, initial.hidden.to(self.hidden.dtype), self.hidden)
        if self.cell is None or initial.cell is None:
            return State(hidden)
        return State(hidden, torch.where(mask, initial.cell.to(self.cell.dtype), self.cell))

    @property
    def batch_size(self) -> int:
        """Number of streams `B`."""
        return self.hidden.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held by the state."""
        return self.hidden.nbytes + (0 if self.cell is None else self.cell.nbytes)

    def to_dict(self) -> dict[str, Tensor]:
        """Plain tensors by name, as a checkpoint keeps them (copies on the CPU)."""
        named = {"hidden": self.hidden} if self.cell is None else {"hidden": self.hidden, "cell": self.cell}
        return {name: tensor.detach().cpu().clone() for name, tensor in named.items()}

    @staticmethod
    def from_dict(named: Mapping[str, Tensor]) -> "State":
        """The inverse of `to_dict`."""
        return State(named["hidden"], named.get("cell"))
