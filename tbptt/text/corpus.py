"""A corpus in three parts, ready to train on: prepared once, kept in a cache, and found there by its content."""

import hashlib
import json
import logging
import mmap
import os
import platform
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import refusal
from tbptt.text.bpe import Bpe
from tbptt.text.encode import renumbered
from tbptt.text.options import PARTS, Options
from tbptt.text.preparation import (
    KEYS,
    Numbered,
    Part,
    Sources,
    choose_vocabulary,
    encode_bpe,
    number_all,
    split,
    train_bpe,
)
from tbptt.text.reader import Carried
from tbptt.text.source import CARD, PathLike, find
from tbptt.text.store import FORMAT, VOCABULARY, Cache, DamageError, Store, Writer, checksum, refuse
from tbptt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_EMBEDDED = "English of the language reference, docstrings and comments", "source code of the standard library"


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test tokens, and what they stand for.

    Attributes:
        tokens: of each part, `(N,)`; memory-mapped, empty where there is no such part.
        borders: of each part, `(D,)` int64: tokens that begin a document; None where none were asked for.
        vocabulary: of the training part.
        source: one line that says where the text came from.
        sha256: the digest of tokens, borders and vocabulary, in hexadecimal digits; paths do not matter to it.
        card: what `store.json` says: sizes of parts, facts of files, options.
        folder: of the store.
    """

    tokens: dict[str, npt.NDArray[Any]]
    borders: dict[str, npt.NDArray[np.int64] | None]
    vocabulary: Vocabulary
    source: str
    sha256: str
    card: dict[str, Any]
    folder: Path

    def release(self) -> None:
        """Give back the memory that mapped tokens take since they were read; they can be read again."""
        if sys.platform == "linux":
            for ids in self.tokens.values():
                if isinstance(ids.base, mmap.mmap):
                    ids.base.madvise(mmap.MADV_DONTNEED)


def read_corpus(
    options: Options,
    path: PathLike | None = None,
    val_path: PathLike | None = None,
    test_path: PathLike | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Find a corpus in the cache, or prepare it.

    Args:
        options: how text becomes tokens.
        path: a file, a folder, a glob or a list of these, or the folder of a store. None is the text that Python itself
            carries: English at levels "word" and "bpe", source code at the others.
        val_path: validation text alone, or None to cut it off the end of `path`.
        test_path: test text alone, or None.
        cache_dir: where stores are; None for the usual place.

    Raises:
        UserError: a file that cannot be read or decoded or has fewer than 2 tokens, or a cache that cannot be written.
    """
    stored = _stored(path)
    if stored is not None:
        return _open_given(stored, options, val_path, test_path)
    sources = _sources(options.level, {"train": path, "validation": val_path, "test": test_path})
    cache = Cache(cache_dir)
    if any(source.once for part in sources.values() for source in part):
        return _made(cache, sources, options, None)
    key = _key(options, {part: [source.fingerprint() for source in sources[part]] for part in sources}, sources)
    # Without the lock first: a cache that may only be read is of use too.
    found = _found(cache, key, sources)
    if found is not None:
        return found
    with cache.alone(key):
        return _found(cache, key, sources, warn=True) or _made(cache, sources, options, key)


def _found(cache: Cache, key: str, sources: Sources, *, warn: bool = False) -> Corpus | None:
    """What the cache has under this key, if that is as it was written."""
    place = cache.place(key)
    if place.exists():
        try:
            return _corpus(Store.open(place), _line(sources))
        except DamageError as damage:
            if warn:
                log.warning("text: the prepared corpus in %s is made again: %s", place, damage)
    return None


def _stored(path: object) -> Path | None:
    """The folder of a store, if `path` is one."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    folder = Path(path).expanduser()
    # A folder of texts may have a file of that name too.
    known = (folder / name for name in (VOCABULARY, f"{PARTS[0]}.npy"))
    return folder if (folder / CARD).is_file() and any(file.is_file() for file in known) else None


def _open_given(folder: Path, options: Options, *others: object) -> Corpus:
    try:
        store = Store.open(folder)
    except DamageError as damage:
        raise refuse(folder, damage) from damage
    for name, value in options.to_dict().items():
        if store.card["options"][name] != value:
            given = store.card["options"][name]
            raise refusal(f"data.{name}", f"be {given!r}, as the store {folder} has it", value, "set it so")
    if any(other is not None for other in others):
        rule = "stand alone where it is a prepared store, which has all its parts"
        raise refusal("data.path", rule, str(folder), "leave out data.val_path and data.test_path")
    return _corpus(store, store.card["source"])


def _sources(level: str, paths: Mapping[str, PathLike | None]) -> Sources:
    if paths["train"] is None:
        for part, path in paths.items():
            if path is not None:
                rule = "be given together with data.path, the training text"
                raise refusal(KEYS[part], rule, path, "add data.path=FILE")
        return {"train": [Carried(level)]}
    return {part: find(KEYS[part], path) for part, path in paths.items() if path is not None}


def _line(sources: Sources) -> str:
    """Where a text comes from, in a line."""
    first = sources["train"][0]
    if isinstance(first, Carried):
        return f"text of CPython {platform.python_version()}: {_EMBEDDED[first.level not in ('word', 'bpe')]}"
    names = []
    for files in sources.values():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        names.append(f"{files[0].name}{more}")
    # Names of files may hold bytes that are no text, which nothing could print.
    return ", ".join(names).encode("utf-8", "backslashreplace").decode()


def _key(options: Options, prints: Mapping[str, Sequence[str]], sources: Sources) -> str:
    """The name of a store: the same for the same content and options, wherever the files lie."""
    forms = {part: [source.form for source in sources[part]] for part in sources}
    # What white space, lower case and normal forms are is up to Python's edition of Unicode.
    content = [FORMAT, unicodedata.unidata_version, options.to_dict(), prints, forms]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _corpus(store: Store, source: str) -> Corpus:
    card = store.card
    return Corpus(store.tokens, store.borders, store.vocabulary, source, card["sha256"], card, store.folder)


def _made(cache: Cache, sources: Sources, options: Options, key: str | None) -> Corpus:
    """Prepare a corpus, and open it; `key` is the one that it must get, None where that is not known before."""
    start = time.monotonic()
    with cache.workshop(key) as folder, cache.guarded(), ExitStack() as stack:
        found, symbols, prints = number_all(sources, options, folder, stack)
        got = _key(options, _by_part(prints, sources), sources)
        if key not in (None, got):
            name = sources["train"][0].name
            raise refusal("data.path", "stay as it is while it is read", name, "it was changed meanwhile: start again")
        vocabulary, distinct, parts = _encoded(found, symbols, options, folder, stack)
        writer = Writer(folder)
        sizes = {name: _write_part(writer, name, *parts[name], vocabulary, options) for name in PARTS}
        writer.json(VOCABULARY, vocabulary.to_dict())
        own = {"source": _line(sources), "distinct": distinct}
        facts = {KEYS[part]: found[part].facts.to_dict() for part in found}
        _write_card(writer, vocabulary, options, **own, parts=sizes, facts=facts, start=start)
        with cache.alone(got) if key is None else nullcontext():
            cache.publish(folder, got)
    return _corpus(Store.open(cache.place(got), check=False), _line(sources))


def _encoded(
    found: Mapping[str, Numbered], symbols: Sequence[str], options: Options, folder: Path, stack: ExitStack
) -> tuple[Vocabulary, int, dict[str, tuple[Part, npt.NDArray[np.uint32]]]]:
    """The vocabulary, how many symbols there are in all, and each part with the ids of its numbers."""
    parts = split(found, options)
    if options.level != "bpe":
        vocabulary, distinct = choose_vocabulary(parts, symbols, options)
        places = vocabulary.places(symbols)
        return vocabulary, distinct, {name: (parts[name], places) for name in PARTS}
    state = train_bpe(parts["train"], symbols, options)
    tokenizer = Bpe(state)
    encoded = {name: encode_bpe(parts[name], symbols, tokenizer, folder, stack) for name in PARTS}
    seen = encoded["train"].counts(len(tokenizer.symbols)).tolist()
    vocabulary = Vocabulary.of_bpe(state, seen, lowercase=options.lowercase, normalize=options.normalize)
    places = np.arange(len(vocabulary), dtype=np.uint32)
    distinct = int(np.count_nonzero(sum(part.counts(len(vocabulary)) for part in encoded.values())))
    return vocabulary, distinct, {name: (encoded[name], places) for name in PARTS}


def _by_part(prints: Sequence[str], sources: Sources) -> dict[str, list[str]]:
    left = iter(prints)
    return {part: [next(left) for _ in sources[part]] for part in sources}


def _write_part(
    writer: Writer, name: str, part: Part, places: npt.NDArray[np.uint32], vocabulary: Vocabulary, options: Options
) -> dict[str, int]:
    """Write ids and borders; return the number of tokens, of unknown ones, and of documents."""
    sizes = {"tokens": len(part), "unknown": 0, "documents": 0}
    if not len(part):
        return sizes
    dtype = np.min_scalar_type(len(vocabulary) - 1)
    # Numbers that stand for nothing in any part have no place in the type either.
    table = places.astype(dtype)

    def blocks() -> Iterator[npt.NDArray[Any]]:
        for block in part.blocks():
            ids = renumbered(block, table)
            if vocabulary.has_unknown:
                sizes["unknown"] += len(ids) - int(np.count_nonzero(ids))
            yield ids

    writer.array(f"{name}.npy", dtype, len(part), blocks())
    if options.document_separator is not None:
        sizes["documents"] = sum(map(len, part.borders()))
        writer.array(f"{name}.borders.npy", np.int64, sizes["documents"], part.borders())
    return sizes


def _write_card(writer: Writer, vocabulary: Vocabulary, options: Options, *, start: float, **rest: Any) -> None:
    arrays = sorted(item for item in writer.files.items() if item[0] != VOCABULARY)
    content = json.dumps([arrays, vocabulary.sha256]).encode("ascii")
    card = {
        "format": FORMAT,
        **rest,
        "options": options.to_dict(),
        "sha256": hashlib.sha256(content).hexdigest(),
        "seconds": round(time.monotonic() - start, 3),
        "files": dict(writer.files),
    }
    writer.json(CARD, {**card, "check": checksum(card)})
