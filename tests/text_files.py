"""Shared by the tests of text: files to read, and corpora read from them in pieces of any size."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tbptt.text import Corpus, Options, read_corpus
from tbptt.text import source as source_module
from tbptt.text import spool as spool_module

PARTS = ("train", "validation", "test")
LINES = "".join(f"line {i} of the text\n" for i in range(1000))


def write(folder: Path, data: bytes | str, name: str = "text.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def whole(level: str, path: object, cache: Path, **options: object) -> Corpus:
    """A corpus without validation and test parts."""
    return read_corpus(
        Options(level, val_fraction=0, test_fraction=0, **options),  # type: ignore[arg-type]
        path,  # type: ignore[arg-type]
        cache_dir=cache,
    )


def text_of(found: Corpus, part: str = "train") -> str:
    return found.vocabulary.decode(found.tokens[part])


def texts_of(found: Corpus) -> tuple[str, str, str]:
    return text_of(found, "train"), text_of(found, "validation"), text_of(found, "test")


def assert_equal_corpora(left: Corpus, right: Corpus) -> None:
    assert left.sha256 == right.sha256
    assert left.vocabulary == right.vocabulary
    for part in PARTS:
        assert left.tokens[part].dtype == right.tokens[part].dtype
        assert np.array_equal(left.tokens[part], right.tokens[part]), part
        mine, other = left.borders[part], right.borders[part]
        assert (mine is None) == (other is None)
        assert mine is None or np.array_equal(mine, other)


def chunked(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cuts), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def set_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Read and keep so many bytes or numbers at a time."""
    monkeypatch.setattr(source_module, "BLOCK", size)
    monkeypatch.setattr(spool_module, "BLOCK", size)


def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a corpus was prepared since then, rather than found."""
    from tbptt.text import corpus as corpus_module

    original, calls = corpus_module.number_all, []

    def number_all(*arguments: object) -> object:
        calls.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_module, "number_all", number_all)
    return lambda: len(calls)


def leftovers(cache: Path) -> Iterator[str]:
    """What lies in a cache that is neither a whole store nor a lock."""
    for item in cache.iterdir():
        if not (item / "store.json").is_file() and item.suffix != ".lock":
            yield item.name
