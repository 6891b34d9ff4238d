"""The tokens of streams, which may lie in a memory map of a file of any size.

Shapes: `B` streams of `L` tokens each, `(B, L)` of any integer type; what is read is time-major, `(n, B)` int64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Of a memory map so many bytes are copied at a time. To read a map in place costs no copy, but the system may put
# hundreds of KiB around each place into the memory of the process, for each stream.
BLOCK_BYTES = 1 << 20


class Columns:
    """Reads the same steps of all streams.

    Args:
        streams: `(B, L)`; kept as it is.
        release: gives back the memory that a map takes since it was read; None for tokens that are in memory.
    """

    def __init__(self, streams: Tensor, release: Callable[[], None] | None) -> None:
        self._streams, self._release = streams, release
        self._block, self._first = streams[:, :0], 0

    def read(self, first: int, end: int) -> Tensor:
        """Tokens `first` to `end - 1` of each stream."""
        if self._release is None:
            part = self._streams[:, first:end]
        else:
            if not self._first <= first <= end <= self._first + self._block.shape[1]:
                self._load(first, end, self._release)
            part = self._block[:, first - self._first : end - self._first]
        return part.t().contiguous().to(torch.int64)

    def _load(self, first: int, end: int, release: Callable[[], None]) -> None:
        count = max(1, len(self._streams)) * self._streams.element_size()
        end = min(max(end, first + BLOCK_BYTES // count), self._streams.shape[1])
        self._block = torch.empty(len(self._streams), end - first, dtype=self._streams.dtype)
        self._first = first
        for own, whole in zip(self._block, self._streams, strict=True):
            own.copy_(whole[first:end])
            release()
