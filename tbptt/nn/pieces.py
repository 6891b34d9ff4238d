"""Windows with borders inside, for kernels that know none: each piece between borders becomes a row of its own.

Shapes: inputs `(T, B, W)`, `reset` `(S, B)` of bool, for the first `S` steps. A packed sequence holds the `P` pieces in
order of length.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Pieces(NamedTuple):
    """How a window falls into pieces.

    `order` `(T * B,)` says where in the window each row of the packed data comes from, `batch_sizes` how many pieces
    have a step, `stream` `(P,)` whose piece it is, `fresh` `(P, 1)` whether it starts anew, `last` `(B,)` which piece
    ends each stream.
    """

    order: Tensor
    batch_sizes: Tensor
    stream: Tensor
    fresh: Tensor
    last: Tensor

    def enter(self, state: Tensor, fresh: Tensor) -> Tensor:
        """The state `(L, P, H)` of all pieces from that of the streams, `(L, B, H)`, and a fresh one."""
        return torch.where(self.fresh, fresh[:, self.stream], state[:, self.stream]).contiguous()

    def pack(self, inputs: Tensor) -> Tensor:
        """The rows `(T * B, W)` in packed order."""
        return inputs.flatten(0, 1)[self.order]

    def unpack(self, packed: Tensor, steps: int) -> Tensor:
        """The inverse of `pack`."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order), device=self.order.device)
        return packed[inverse].view(steps, -1, packed.shape[1])


def cut(reset: Tensor, steps: int) -> Pieces:
    """Cut a window of `steps` steps at the marks of `reset` `(S, B)`; a piece begins at each, and with each stream."""
    device, marks = reset.device, reset.cpu()
    streams = marks.shape[1]
    begins = marks.clone()
    begins[0] = True
    stream, begin = begins.t().nonzero().unbind(1)
    # A piece ends where the next of its stream begins, or with the window.
    after = torch.cat([begin[1:], begin.new_tensor([steps])])
    ends = torch.cat([stream[1:] != stream[:-1], stream.new_tensor([True])]).bool()
    length = torch.where(ends, steps, after) - begin
    by_length = torch.argsort(length, descending=True, stable=True)
    stream, begin, length, ends = stream[by_length], begin[by_length], length[by_length], ends[by_length]
    # How many pieces have a step: not a table of steps and pieces, which may both be many.
    there = len(length) - torch.bincount(length).cumsum(0)[:-1]
    step = torch.repeat_interleave(torch.arange(len(there)), there)
    piece = torch.arange(steps * streams) - torch.repeat_interleave(there.cumsum(0) - there, there)
    order = (begin[piece] + step) * streams + stream[piece]
    last = torch.empty(streams, dtype=torch.int64)
    last[stream[ends]] = ends.nonzero().flatten()
    fresh = marks[begin, stream].unsqueeze(1)
    return Pieces(order.to(device), there, stream.to(device), fresh.to(device), last.to(device))
