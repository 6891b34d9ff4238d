"""Whole numbers on their way from a text to its store: in a temporary file, so that memory does not grow with them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.unsignedinteger[Any]]

# Numbers held in memory before they are written.
BLOCK = 1 << 20
# Arrays held in memory before they are written: small ones take more than their numbers.
ARRAYS = 1 << 12


class Spool:
    """Numbers of at least 0, appended once and then read as often as one likes, all or a range of them.

    Each block lies in the file in the smallest type that holds it.

    Args:
        folder: where the temporary file is; it vanishes with the spool.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, `close` does it
        self._blocks: list[tuple[int, int, np.dtype[Any]]] = []  # (first number, byte offset, type)
        self._held: list[Numbers] = []
        self._written = self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, numbers: npt.NDArray[Any]) -> None:
        """Add numbers `(n,)` at the end."""
        if not len(numbers):
            return
        self._held.append(numbers)
        self._size += len(numbers)
        if self._size - self._written >= BLOCK or len(self._held) >= ARRAYS:
            self._write()

    def _write(self) -> None:
        held, self._held = self._held, []
        if held:
            block = held[0] if len(held) == 1 else np.concatenate(held)
            kind = np.min_scalar_type(block.max()) if block.dtype != np.uint8 else block.dtype
            self._blocks.append((self._written, self._file.seek(0, 2), kind))
            block.astype(kind, copy=False).tofile(self._file)
            self._written += len(block)

    def ranges(self, begin: int = 0, end: int | None = None) -> Iterator[Numbers]:
        """Yield the numbers from `begin` to `end` (None: all), in order, in arrays of some length."""
        self._write()
        end = self._size if end is None else end
        for index, (first, offset, kind) in enumerate(self._blocks):
            after = self._blocks[index + 1][0] if index + 1 < len(self._blocks) else self._size
            low, high = max(begin, first), min(end, after)
            while low < high:
                count = min(high - low, BLOCK)
                self._file.seek(offset + (low - first) * kind.itemsize)
                yield np.fromfile(self._file, kind, count)
                low += count

    def close(self) -> None:
        """Give the file back to the system."""
        self._file.close()

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def counts(spool: Spool, begin: int, end: int, kinds: int) -> npt.NDArray[np.int64]:
    """How often each of the numbers `0..kinds - 1` is there from `begin` to `end`, `(kinds,)`."""
    totals = np.zeros(kinds, np.int64)
    for block in spool.ranges(begin, end):
        if block.dtype == np.uint8:
            found = _bytes_count(block)
            totals[: min(256, kinds)] += found[:kinds]
        else:
            totals += np.bincount(block, minlength=kinds)
    return totals


def _bytes_count(block: Numbers) -> npt.NDArray[np.int64]:
    """How often each byte occurs, `(256,)`: two at a time, which is half the work."""
    pairs = block[: len(block) // 2 * 2].view(np.uint16)
    both = np.bincount(pairs, minlength=1 << 16).reshape(256, 256)
    found: npt.NDArray[np.int64] = both.sum(0) + both.sum(1)
    if len(block) % 2:
        found[block[-1]] += 1
    return found
