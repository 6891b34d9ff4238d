"""A prepared corpus on disk: one folder with ids in standard `.npy` files, which are mapped into memory.

    store.json              what it is: options, facts, and size and SHA-256 digest of each file beside it
    vocabulary.json
    train.npy               ids `(N,)` in uint8, uint16 or uint32; so for validation.npy and test.npy, if there are any
    train.borders.npy       `(D,)` int64, increasing: where documents begin, if documents were asked for

A folder is written under another name and gets its own in one step, so that a store is whole or not there.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import UserError, refusal
from tbptt.text.lock import alone
from tbptt.text.options import PARTS
from tbptt.text.source import CARD
from tbptt.text.vocabulary import Vocabulary

# To be raised whenever the same options would give other tokens or other files than before.
FORMAT = 1

VOCABULARY = "vocabulary.json"
_TEMPORARY = ".part-"


class DamageError(Exception):
    """What is wrong with a store."""


@dataclass(frozen=True)
class Store:
    """A prepared corpus. `card` is what `store.json` holds, `tokens` and `borders` lie on disk."""

    folder: Path
    card: dict[str, Any]
    vocabulary: Vocabulary
    tokens: dict[str, npt.NDArray[Any]]
    borders: dict[str, npt.NDArray[np.int64] | None]

    @classmethod
    def open(cls, folder: Path, *, check: bool = True) -> "Store":
        """Open a store, every byte of which is checked first, but for one that was written a moment ago.

        Raises:
            DamageError: it is none, or not as it was written; says why.
        """
        try:
            card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DamageError(f"{CARD} cannot be read ({error})") from error
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise DamageError(f"{CARD} is of another version")
        try:
            if card["check"] != checksum(card):
                raise DamageError(f"{CARD} is not as it was written")
            for name, (size, sha256) in card["files"].items() if check else ():
                _check(folder / name, size, sha256)
            text = (folder / VOCABULARY).read_text(encoding="utf-8")
            return cls(folder, card, Vocabulary.from_dict(json.loads(text)), *_arrays(folder, card["files"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamageError(str(error)) from error


def checksum(card: dict[str, Any]) -> str:
    """What `check` of a card must be: a digest of all the rest of it."""
    rest = {name: value for name, value in card.items() if name != "check"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def _arrays(
    folder: Path, files: dict[str, Any]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[np.int64] | None]]:
    tokens, borders = {}, {}
    for part in PARTS:
        # Copy on write, though nobody writes: torch warns of arrays that it could not write to.
        there, parted = f"{part}.npy" in files, f"{part}.borders.npy" in files
        tokens[part] = np.load(folder / f"{part}.npy", mmap_mode="c") if there else np.empty(0, np.uint8)
        borders[part] = np.load(folder / f"{part}.borders.npy", mmap_mode="c") if parted else None
    return tokens, borders


def _check(file: Path, size: int, sha256: str) -> None:
    if file.stat().st_size != size:
        raise DamageError(f"{file.name} has {file.stat().st_size} bytes and not {size}")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        raise DamageError(f"{file.name} is not as it was written")


class Writer:
    """Writes the files of a store into a folder, and keeps their sizes and digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, tuple[int, str]] = {}

    def array(self, name: str, dtype: npt.DTypeLike, count: int, blocks: Iterable[npt.NDArray[Any]]) -> None:
        """Write a one-dimensional `.npy` file of `count` numbers that come in blocks."""
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
        with _Digested(self.folder / name) as file:
            np.lib.format.write_array_header_1_0(file, header)
            written = 0
            for block in blocks:
                file.write(block.astype(dtype, copy=False).tobytes())
                written += len(block)
        assert written == count, (name, written, count)
        self.files[name] = file.result()

    def json(self, name: str, content: Any) -> None:
        """Write a JSON file; all of it is ASCII."""
        with _Digested(self.folder / name) as file:
            file.write(json.dumps(content, indent=None if name == VOCABULARY else 2).encode("ascii") + b"\n")
        self.files[name] = file.result()


class _Digested:
    """A new file that is hashed while it is written, and on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> int:
        """Add bytes."""
        self._digest.update(data)
        self._size += len(data)
        return self._file.write(data)

    def result(self) -> tuple[int, str]:
        """Number of bytes, and their SHA-256 digest."""
        return self._size, self._digest.hexdigest()

    def __enter__(self) -> "_Digested":
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


class Cache:
    """The folder that holds all stores, each under its key.

    Args:
        folder: None for `$TBPTT_CACHE`, or else `tbptt` in the user's folder for caches.

    Raises:
        UserError: it cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        chosen = os.environ.get("TBPTT_CACHE") if folder is None else str(folder)
        usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tbptt"
        self.folder = (Path(chosen) if chosen else usual).expanduser()
        with self.guarded():
            self.folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Say which folder it is that cannot be written to.

        Raises:
            UserError: in place of the error of the system.
        """
        try:
            yield
        except OSError as error:
            raise refusal(
                "data.cache_dir",
                "be a folder with room in it that may be written to",
                str(self.folder),
                f"writing failed ({error.strerror or error}): free some room, or give another data.cache_dir",
            ) from error

    def place(self, key: str) -> Path:
        """The folder of the store with this key."""
        return self.folder / key

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Hold the right to make a store, so that other processes wait for it instead of making it too."""
        with ExitStack() as stack:
            with self.guarded():
                stack.enter_context(alone(self.folder / f"{key}.lock", "prepares the same corpus"))
            yield

    @contextmanager
    def workshop(self, key: str | None) -> Iterator[Path]:
        """A new folder to write the store `key` in (None: not known yet), gone in the end unless it was moved."""
        # With the usual rights, which `tempfile` would not give: others may share the cache.
        folder = self.folder / f"{_TEMPORARY}{key or uuid.uuid4().hex}"
        with self.guarded():
            if folder.exists():  # left by a process that was killed, since this one alone may make that store
                shutil.rmtree(folder)
            folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path, key: str) -> None:
        """Give a finished folder its place, whatever was there."""
        place = self.place(key)
        if place.exists():
            shutil.rmtree(place)
        os.replace(folder, place)

    def clear(self) -> int:
        """Remove all stores and what unfinished runs left; return how many bytes that frees."""
        freed = 0
        for item in self.folder.iterdir():
            if (item / CARD).is_file() or item.name.startswith(_TEMPORARY):
                freed += sum(file.stat().st_size for file in item.rglob("*") if file.is_file())
                shutil.rmtree(item)
        return freed


def refuse(folder: Path, damage: DamageError) -> UserError:
    """What to say of a damaged store that cannot be made again."""
    return refusal("data.path", "name a store as prepare.py wrote it", str(folder), f"{damage}: prepare it again")
