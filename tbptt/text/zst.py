"""Files packed by Zstandard, in memory that does not grow with them: all frames, and the last one must be whole.

The reader of the package takes a file that was cut off for one that ends there.
"""

import importlib
import io
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from tbptt.errors import UserError

# Packed bytes taken at a time: they may become 30,000 times as many.
_PACKED = 1 << 8


def unpacked(file: BinaryIO) -> BinaryIO:
    """The bytes that are packed in `file`; reading them raises EOFError or OSError where it is damaged.

    Raises:
        UserError: the package for that is not there.
    """
    # Python has it itself from that version on.
    package = "compression.zstd" if sys.version_info >= (3, 14) else "zstandard"
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        raise UserError("files that end in .zst need the package zstandard; pip install 'tbptt[text]'.") from error
    return cast(BinaryIO, io.BufferedReader(_Blocks(_frames(file, library)), 1 << 16))


def _frames(file: BinaryIO, library: Any) -> Iterator[bytes]:
    new = library.ZstdDecompressor
    frame: Any = None
    while packed := file.read(_PACKED):
        while packed:
            if frame is None:
                frame = new() if sys.version_info >= (3, 14) else new().decompressobj()
            try:
                yield frame.decompress(packed)
            except library.ZstdError as error:
                raise OSError(str(error)) from error
            packed = b""
            if frame.eof:
                packed, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("its last frame has no end")


class _Blocks(io.RawIOBase):
    """Reads bytes that come in blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._block = memoryview(block)
        data = self._block[: len(buffer)]
        buffer[: len(data)], self._block = data, self._block[len(data) :]
        return len(data)
