"""Texts -> numbered symbols -> parts -> a vocabulary from the training part -> ids, all through temporary files.

Memory does not grow with the text, with its lines or with the number of files, but only with its distinct symbols.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tbptt.errors import UserError, refusal
from tbptt.text import bpe
from tbptt.text.bar import Bar
from tbptt.text.documents import Documents
from tbptt.text.numbering import Numbering, numbering
from tbptt.text.options import PARTS, Options
from tbptt.text.reader import Carried, texts
from tbptt.text.source import Source
from tbptt.text.spool import Numbers, Spool, counts
from tbptt.text.symbols import END_OF_LINE
from tbptt.text.vocabulary import Vocabulary

KEYS = {"train": "data.path", "validation": "data.val_path", "test": "data.test_path"}

Sources = Mapping[str, Sequence[Source | Carried]]


@dataclass
class Facts:
    """What there is in a text: characters (bytes at level "byte") with those of its longest line, and documents."""

    characters: int = 0
    documents: int = 0
    longest_line: int = 0
    line: int = field(default=0, repr=False)  # characters of the line that is being read

    def add(self, piece: Any) -> None:
        """Count a piece."""
        self.characters += len(piece)
        lines = piece.split(b"\n" if isinstance(piece, bytes) else "\n")
        first = self.line + len(lines[0])
        self.longest_line = max(self.longest_line, first, max(map(len, lines)))
        self.line = len(lines[-1]) if len(lines) > 1 else first

    def to_dict(self) -> dict[str, int]:
        """Names and values."""
        return {name: value for name, value in asdict(self).items() if name != "line"}


class Numbered:
    """The symbols of the files of one part, numbered, with the borders of its documents among them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.numbers = stack.enter_context(Spool(folder))
        self.borders = stack.enter_context(Spool(folder))
        self.facts = Facts()

    def read(self, source: Source | Carried, options: Options, numbers: Numbering[Any], digest: Any) -> None:
        """Add a file."""
        numbers.key = source.key
        documents = Documents(options.document_separator)
        for text in texts(source, options, digest):
            self.facts.line = 0
            for piece, begins in documents.split(text):
                self.facts.add(piece)
                found, places = numbers.number(piece, begins)
                if places:
                    self.borders.append(np.asarray(places, np.uint64) + np.uint64(len(self.numbers)))
                self.numbers.append(found)
            self.numbers.append(numbers.end())
        self.facts.documents = len(self.borders)


@dataclass(frozen=True)
class Part:
    """A part of a corpus: a range of the numbers of a file or several."""

    source: Numbered
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def blocks(self) -> Iterator[Numbers]:
        """Its numbers, in order."""
        return self.source.numbers.ranges(self.begin, self.end)

    def borders(self) -> Iterator[Numbers]:
        """Where documents begin, counted from its own beginning, which is none where it was cut within a document."""
        for block in self.source.borders.ranges():
            yield block[(block >= self.begin) & (block < self.end)].astype(np.uint64) - np.uint64(self.begin)

    def counts(self, kinds: int) -> Any:
        """How often each number is there, `(kinds,)`."""
        return counts(self.source.numbers, self.begin, self.end, kinds)


class _Watched:
    """A digest of bytes that a bar counts."""

    def __init__(self, digest: Any, bar: Bar) -> None:
        self._digest, self._bar = digest, bar

    def update(self, data: bytes, /) -> None:
        self._digest.update(data)
        self._bar.update(len(data))


def number_all(
    sources: Sources, options: Options, folder: Path, stack: ExitStack
) -> tuple[dict[str, Numbered], list[str], list[str]]:
    """Number the symbols of all files.

    Returns:
        what each path gave; the symbols, by number; the digests of what was read.

    Raises:
        UserError: a file cannot be read, holds nothing, or changed while it was read.
    """
    numbers = numbering(options.level)
    found, prints = {}, []
    with closing(Bar("reading", 0)) as bar:
        bar.total = sum(source.size for part in sources.values() for source in part)
        for part, files in sources.items():
            found[part] = Numbered(folder, stack)
            for source in files:
                digest = hashlib.sha256()
                found[part].read(source, options, numbers, _Watched(digest, bar))
                prints.append(digest.hexdigest() if isinstance(source, Source) else source.fingerprint())
            _refuse_empty(files, found[part], options)
    return found, numbers.symbols, prints


def _refuse_empty(files: Sequence[Source | Carried], found: Numbered, options: Options) -> None:
    key, name = files[0].key, files[0].name
    if not found.facts.characters:
        raise refusal(key, "name a file with text in it", name, "that file is empty: give another")
    if options.level == "word" and not any(block.any() for block in found.numbers.ranges()):
        raise refusal(key, "name a file with words in it", name, "it holds only white space: give another")
    if len(found.numbers) < 2:
        rule = "name a file of at least 2 tokens, so that one can be predicted"
        raise refusal(key, rule, name, "give a longer text")


def split(found: Mapping[str, Numbered], options: Options) -> dict[str, Part]:
    """Cut validation and test parts off the end of the training text, but for those with files of their own.

    A part of fewer than 2 tokens is left empty, and what it would hold stays in the one before it.
    """
    whole = found["train"]
    val_share = 0.0 if "validation" in found else options.val_fraction
    test_share = 0.0 if "test" in found else options.test_fraction
    size = len(whole.numbers)
    if options.split == "documents":
        documents = whole.facts.documents
        left = documents - int(test_share * documents)
        test_start = _document(whole, left)
        val_start = _document(whole, left - int(val_share * documents))
    else:
        test_size = int(test_share * size)
        test_start = _line(whole, size - test_size, options)
        val_start = _line(whole, size - test_size - int(val_share * size), options)
    if size - test_start < 2:
        test_start = size
        if options.split == "tokens":
            val_start = _line(whole, size - int(val_share * size), options)
    if test_start - val_start < 2 or not val_share:
        val_start = test_start
    parts = {"train": Part(whole, 0, val_start), "validation": Part(whole, val_start, test_start)}
    parts["test"] = Part(whole, test_start, size)
    return {**parts, **{name: Part(found[name], 0, len(found[name].numbers)) for name in found if name != "train"}}


def _document(whole: Numbered, index: int) -> int:
    """Where document `index` begins, the end of the text if there is no such document."""
    for block in whole.borders.ranges(index, index + 1):
        return int(block[0])
    return len(whole.numbers)


def _line(whole: Numbered, position: int, options: Options) -> int:
    """Where a part may start, at or after `position`: not within a line where lines end in a token of their own."""
    size = len(whole.numbers)
    if options.level in ("char", "byte") or not 0 < position < size:
        return position
    newline = 0 if options.level == "word" else ord("\n")
    begin = position - 1
    for block in whole.numbers.ranges(begin, size - 1):
        places = np.flatnonzero(block == newline)
        if len(places):
            return begin + int(places[0]) + 1
        begin += len(block)
    return position


def choose_vocabulary(parts: Mapping[str, Part], symbols: Sequence[str], options: Options) -> tuple[Vocabulary, int]:
    """The vocabulary of the training part, and how many symbols there are in all parts.

    It has an unknown symbol if another part has symbols that the training part lacks.
    """
    kinds = len(symbols)
    seen = parts["train"].counts(kinds)
    others = sum(parts[name].counts(kinds) for name in PARTS[1:])
    distinct = int(np.count_nonzero(seen + others))
    if options.level == "byte":
        return Vocabulary.of_bytes(seen.tolist()), distinct
    found = {symbols[i]: int(seen[i]) for i in np.flatnonzero(seen).tolist()}

    def build(need_unknown: bool) -> Vocabulary:
        values = {name: getattr(options, name) for name in ("lowercase", "normalize", "unknown_word")}
        return Vocabulary.of_counts(found, options.level, options.min_count, options.max_vocab, need_unknown, **values)

    vocabulary = build(need_unknown=False)
    if vocabulary.has_unknown or not vocabulary.not_in({symbols[i]: 1 for i in np.flatnonzero(others).tolist()}):
        return vocabulary, distinct
    return build(need_unknown=True), distinct


def train_bpe(part: Part, symbols: Sequence[str], options: Options) -> str:
    """The tokenizer of a training part that was numbered by characters."""
    assert options.max_vocab is not None
    if len(part) == 0:
        raise UserError("data.path must hold training text; give a longer text or smaller fractions.")
    return bpe.train(_whole_lines(part, symbols), options.max_vocab, options.min_count)


def encode_bpe(part: Part, symbols: Sequence[str], tokenizer: bpe.Bpe, folder: Path, stack: ExitStack) -> Part:
    """The same part in tokens of a tokenizer, none of which crosses the border of a document."""
    result = Numbered(folder, stack)
    borders = _Sorted(part.borders())
    position = 0
    for text in _whole_lines(part, symbols):
        inside = (borders.below(position + len(text)) - np.uint64(position)).tolist()
        texts = [text[begin:end] for begin, end in zip([0, *inside], [*inside, len(text)], strict=True)]
        ids, sizes = tokenizer.encode_all(texts)
        begins = len(result.numbers) + np.cumsum([0, *sizes])[1:-1]
        result.borders.append(begins.astype(np.uint64))
        result.numbers.append(ids)
        position += len(text)
    return Part(result, 0, len(result.numbers))


class _Sorted:
    """Increasing numbers that come in blocks, taken off from the left."""

    def __init__(self, blocks: Iterator[Numbers]) -> None:
        self._blocks = blocks
        self._held: Numbers = np.empty(0, np.uint64)

    def below(self, limit: int) -> Numbers:
        """All that are less than `limit` and were not taken yet."""
        while not len(self._held) or self._held[-1] < limit:
            block = next(self._blocks, None)
            if block is None:
                break
            self._held = np.concatenate([self._held, block])
        taken, self._held = np.split(self._held, [np.searchsorted(self._held, limit)])
        return taken


def _whole_lines(part: Part, symbols: Sequence[str]) -> Iterator[str]:
    """The text of characters by number, cut after ends of lines, or where `bpe.lines` cuts a long line."""
    table = np.array([ord(symbol) for symbol in symbols], dtype="<u4")
    held = ""
    for block in part.blocks():
        text = held + table[block].tobytes().decode("utf-32-le", "surrogatepass")
        cut = text.rfind(END_OF_LINE) + 1 or len(text) // bpe.LONGEST_LINE * bpe.LONGEST_LINE
        held = text[cut:]
        if cut:
            yield text[:cut]
    if held:
        yield held
