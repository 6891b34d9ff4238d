"""The head: output projection and cross entropy.

Shapes: hidden `(T, B, H)`, targets `(T, B)` int64, logits `(T, B, V)`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.metrics import IGNORED
from tbptt.ops.linear_cross_entropy import linear_cross_entropy

# Logits of one evaluation chunk, in elements: 16 MiB of float32, whatever the vocabulary.
EVALUATION_LOGITS = 2**22


class Head(nn.Module):
    """`logits = hidden @ weight.T + bias`, with `weight` `(V, H)`, and the loss of targets under them."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden_size, vocab_size)
        nn.init.uniform_(self.projection.weight, -0.1, 0.1)
        nn.init.zeros_(self.projection.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits `(..., V)` of `hidden` `(..., H)`."""
        logits: Tensor = self.projection(hidden)
        return logits

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean nats per token of a window, 0-dimensional, with its gradient; in row chunks.

        Targets that are `IGNORED` do not count; where none does the loss is 0.
        """
        mean = linear_cross_entropy(hidden, self.projection.weight, self.projection.bias, targets)
        return torch.where((targets != IGNORED).any(), mean, 0.0)

    @torch.no_grad()
    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Sum of nats, 0-dimensional, without a gradient; in row chunks, so memory does not grow with `T * B * V`."""
        rows, labels = hidden.flatten(0, 1), targets.flatten()
        chunk = max(1, EVALUATION_LOGITS // self.projection.out_features)
        total = torch.zeros((), device=hidden.device, dtype=torch.float32 if hidden.is_mps else torch.float64)
        for begin in range(0, len(rows), chunk):
            logits = self(rows[begin : begin + chunk])
            total += F.cross_entropy(logits, labels[begin : begin + chunk], reduction="none").to(total.dtype).sum()
        return total
