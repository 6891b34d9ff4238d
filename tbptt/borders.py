"""Where documents begin in the streams of a text.

Shapes: positions `(D,)`, int64, sorted; `B` streams of `L` tokens each, side by side, `B * L` of the text.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice

Positions = npt.NDArray[np.int64]


class Borders:
    """Finds the documents that begin in a part of each stream, by bisection: the work does not grow with the text.

    Args:
        positions: `(D,)`, increasing: the tokens of the text that are the first of a document. Those beyond the
            streams are no matter. It may be a memory map; it is neither copied nor read as a whole.
        streams: number of streams `B`.
        length: tokens `L` of a stream.
    """

    def __init__(self, positions: Positions, streams: int, length: int) -> None:
        # Bisection would copy all of another type.
        assert positions.ndim == 1
        assert positions.dtype == np.int64
        self._positions = positions
        self._starts = np.arange(streams, dtype=np.int64) * length

    def find(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Places and streams `(K,)` of the documents that begin at the places `begin` to `end - 1` of a stream."""
        first, after = self._range(begin, end)
        numbers = after - first
        streams = np.repeat(np.arange(len(numbers)), numbers)
        within = np.arange(len(streams)) - np.repeat(numbers.cumsum() - numbers, numbers)
        places = self._positions[first[streams] + within] - self._starts[streams]
        return torch.from_numpy(places), torch.from_numpy(streams)

    def count(self, begin: int, end: int) -> Tensor:
        """How many documents begin there, in each stream, `(B,)`."""
        first, after = self._range(begin, end)
        return torch.from_numpy(after - first)

    def _range(self, begin: int, end: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """First and last but one of the positions that fall there, for each stream, `(B,)` each."""
        left = np.searchsorted(self._positions, self._starts + begin)
        return left, np.searchsorted(self._positions, self._starts + end)


def check_reset(reset: str, known: bool) -> None:
    """Refuse another choice than those there are, and documents of which nobody has `known` where they begin.

    Raises:
        UserError: naming the key.
    """
    check_choice("bptt.reset", reset, ("epoch", "document", "never"))
    if reset == "document" and not known:
        raise UserError(
            "bptt.reset=document needs to know where documents begin, but data.document_separator is null; set it to "
            "blank_line, file or a regular expression for a line that begins a document, or take bptt.reset=epoch."
        )
