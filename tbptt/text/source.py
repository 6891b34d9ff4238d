"""Files of text: which ones a path means, and their bytes in blocks, whatever they are packed in."""

import bz2
import functools
import glob
import gzip
import hashlib
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tbptt.errors import refusal
from tbptt.text import zst

# Bytes read at a time: what preparing a corpus takes in memory is a multiple of it.
BLOCK = 1 << 20

PathLike = str | int | float | Sequence[str]

# In the folder of a prepared store.
CARD = "store.json"

# The standard input, where a path may be that.
STANDARD_INPUT = "-"

# Files that are more than their text, by how their names end.
RECORDS = (".jsonl", ".ndjson")
PARQUET = ".parquet"


class Digest(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None:
        """Add some bytes."""


class Hashed(io.RawIOBase):
    """A file that is read once, from its start, and hashed on the way."""

    def __init__(self, file: BinaryIO, digest: Digest) -> None:
        super().__init__()
        self._file, self._digest = file, digest

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as there are bytes; return their number."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._digest.update(data)
        return len(data)


def _unpacked(name: str, file: io.RawIOBase) -> BinaryIO:
    opener: Callable[..., Any] = _PACKED.get(
        Path(name).suffix.lower(), functools.partial(io.BufferedReader, buffer_size=BLOCK)
    )
    opened: BinaryIO = opener(file)
    return opened


_PACKED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".lzma": lzma.open,
    ".zst": lambda file: zst.unpacked(io.BufferedReader(file)),
}


@dataclass(frozen=True)
class Source:
    """One file of text, named by the option `key`."""

    key: str
    name: str

    @property
    def kind(self) -> str:
        """How its name ends, packing aside: ".txt", ".jsonl", ".parquet" and so on, in lower case."""
        path = Path(self.name)
        return Path(path.stem if path.suffix.lower() in _PACKED else path.name).suffix.lower()

    @property
    def form(self) -> str:
        """How its bytes are read: two files of the same bytes and form have the same text."""
        packing = Path(self.name).suffix.lower()
        form = {PARQUET: PARQUET, **dict.fromkeys(RECORDS, RECORDS[0])}.get(self.kind, "")
        return f"{form}{packing if packing in _PACKED else ''}"

    @property
    def once(self) -> bool:
        """Whether it can be read only once: the standard input, a pipe or a device."""
        path = Path(self.name)
        return self.name == STANDARD_INPUT or path.is_fifo() or path.is_char_device()

    @property
    def size(self) -> int:
        """Bytes of the file as it lies there, 0 where that is not known."""
        with self.guarded():
            return 0 if self.once else Path(self.name).stat().st_size

    def fingerprint(self) -> str:
        """The SHA-256 digest of the file as it lies there, in hexadecimal digits.

        Raises:
            UserError: the file cannot be read.
        """
        with self.guarded(), open(self.name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def blocks(self, digest: Digest) -> Iterator[bytes]:
        """Yield the unpacked bytes in blocks of at most `BLOCK`, while the packed ones go into `digest`.

        Raises:
            UserError: the file cannot be read, or is not what its name says.
        """
        with self.guarded(), self._opened() as file:
            hashed = Hashed(file, digest)
            with _unpacked(self.name, hashed) as unpacked:
                while block := unpacked.read(BLOCK):
                    yield block
            # An unpacker may leave what follows the packed data.
            while not hashed.closed and hashed.read(BLOCK):
                pass

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.name == STANDARD_INPUT:
            yield sys.stdin.buffer
        else:
            with open(self.name, "rb", buffering=0) as file:
                yield file

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn what can go wrong with a file into a sentence.

        Raises:
            UserError: in place of the error of the system or of an unpacker.
        """
        key, name = self.key, self.name
        try:
            yield
        except FileNotFoundError as error:
            remedy = f"no such file was found from the current folder {Path.cwd()}: correct the path"
            raise refusal(key, "name an existing file", name, remedy) from error
        except PermissionError as error:
            remedy = "permission was denied: change its mode"
            raise refusal(key, "name a file that may be read", name, remedy) from error
        except (EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError) as error:
            # Errors of the system have a number, those of an unpacker none.
            if isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno is not None):
                raise refusal(key, "name a readable file", name, f"reading it failed ({error})") from error
            rule = f"name a whole file that is packed as {Path(name).suffix} says"
            raise refusal(key, rule, name, f"it is cut off or damaged ({error}): get it again") from error


def find(key: str, path: PathLike) -> list[Source]:
    """The files that a path means: a file, all files of a folder, those that a glob matches, or a list of these.

    Files of a folder (in folders of it too, hidden ones left out) and of a glob come in the order of their names.

    Args:
        key: the option that gave the path, for messages.
        path: relative to the current folder; `~` is expanded. A number is a file of that name.

    Raises:
        UserError: there is no such file, or none in the folder.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise refusal(key, "name a file", list(path), "the list is empty: name one at least")
        return [source for one in path for source in find(key, one)]
    name = str(path)
    if name == STANDARD_INPUT:
        return [Source(key, name)]
    if not name or "\0" in name:
        raise refusal(key, "be a path", name, "name a file, a folder or a glob")
    with Source(key, name).guarded():
        place = Path(name).expanduser()
        if (place / CARD).is_file() and (place / "vocabulary.json").is_file():
            rule = "be text, and not a prepared store, which data.path takes alone and with all its parts"
            raise refusal(key, rule, name, "name a file of text")
        if place.is_dir():
            return [Source(key, file) for file in _inside(key, name, place)]
        if not place.exists() and glob.has_magic(name):
            return [Source(key, file) for file in _matching(key, name, str(place))]
        place.stat()
        return [Source(key, str(place))]


def _inside(key: str, name: str, folder: Path) -> list[str]:
    # Relative to the folder: neither its own name nor a hidden folder above it matters.
    inner = (file.relative_to(folder) for file in folder.rglob("*"))
    shown = [file for file in inner if not any(part.startswith(".") for part in file.parts)]
    files = sorted(file.as_posix() for file in shown if (folder / file).is_file())
    if not files:
        raise refusal(
            key, "name a file, or a folder with files in it", name, "that folder holds none: correct the path"
        )
    return [str(folder / file) for file in files]


def _matching(key: str, name: str, pattern: str) -> list[str]:
    # A link to a folder above leads to the same files again and again; the shortest way to each is taken.
    ways: dict[tuple[str, str], str] = {}
    for file in sorted(glob.iglob(pattern, recursive=True), key=len):
        if os.path.isfile(file):
            folder, last = os.path.split(file)
            ways.setdefault((os.path.realpath(folder), last), file)
    files = sorted(ways.values())
    if not files:
        remedy = f"no file matches it from the current folder {Path.cwd()}: correct it"
        raise refusal(key, "match a file", name, remedy)
    return files
