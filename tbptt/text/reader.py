"""The texts of a corpus, one after the other, each in pieces: of files as they are, of records, or of Python itself.

A piece is `bytes` at level "byte" and `str` at the others, settled as `tbptt.text.pieces` says.
"""

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tbptt.errors import UserError, refusal
from tbptt.text import embedded
from tbptt.text.decode import decoded
from tbptt.text.options import Options
from tbptt.text.pieces import settle
from tbptt.text.source import BLOCK, PARQUET, RECORDS, Digest, Source

Piece = str | bytes


@dataclass(frozen=True)
class Carried:
    """The text that Python itself carries, in place of a file."""

    level: str
    key: str = "data.path"
    name: str = "the text that Python carries"
    kind: str = ""
    form: str = ""
    once: bool = False

    def fingerprint(self) -> str:
        """The SHA-256 digest of what it is made of."""
        return embedded.fingerprint(self.level)

    @property
    def size(self) -> int:
        """Bytes to read, about."""
        return 0

    def text(self) -> str:
        """The text."""
        return embedded.english() if self.level in embedded.ENGLISH_LEVELS else embedded.source_code()


def texts(source: Source | Carried, options: Options, digest: Digest) -> Iterator[Iterator[Any]]:
    """Yield the texts of a file (one, or one a record), each of which is an iterator over its pieces.

    Each must be read to its end before the next one.

    Args:
        source: the file.
        options: how it is read.
        digest: gets the bytes of the file as they lie there.

    Raises:
        UserError: the file cannot be read, decoded or understood.
    """
    if isinstance(source, Carried):
        yield _settled([source.text()], options)
    elif source.kind in RECORDS:
        for text in _json_texts(source, options, digest):
            yield _settled([text], options)
    elif source.kind == PARQUET:
        for text in _parquet_texts(source, options, digest):
            yield _settled([text], options)
    elif options.level == "byte":
        yield source.blocks(digest)
    else:
        pieces = decoded(source.key, source.name, source.blocks(digest), options.encoding)
        yield settle(pieces, options.newlines, options.normalize, options.lowercase)


def _settled(pieces: Iterable[str], options: Options) -> Iterator[Piece]:
    if options.level == "byte":
        return (piece.encode("utf-8", "surrogatepass") for piece in pieces)
    return settle(pieces, options.newlines, options.normalize, options.lowercase)


def _json_texts(source: Source, options: Options, digest: Digest) -> Iterator[str]:
    """The text of each line, which is a JSON object; it ends in a newline in any case, so that texts are apart."""
    pieces = decoded(source.key, source.name, source.blocks(digest), options.encoding)
    for number, line in enumerate(_lines(pieces), 1):
        if not line.strip():
            continue
        where = f"{source.name}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise refusal(
                source.key, "hold one JSON object a line", where, f"that is none ({error}): mend it"
            ) from error
        yield _ended(source, where, record.get(options.text_column) if isinstance(record, dict) else None, options)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for piece in pieces:
        *whole, rest = piece.split("\n")
        if whole:
            yield "".join([*held, whole[0]])
            yield from whole[1:]
            held = []
        held.append(rest)
    yield "".join(held)


def _ended(source: Source, where: str, text: object, options: Options) -> str:
    if not isinstance(text, str):
        rule = f"hold a text in data.text_column={options.text_column} of each record"
        raise refusal(source.key, rule, where, "name the column that holds it, or mend that record")
    return text if text.endswith("\n") else text + "\n"


def _parquet_texts(source: Source, options: Options, digest: Digest) -> Iterator[str]:
    if source.once:
        raise refusal(source.key, "be no pipe where it is .parquet", source.name, "give a file")
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError("files that end in .parquet need the package pyarrow; pip install 'tbptt[text]'.") from error
    # The reader jumps about in the file, so that it is hashed apart.
    with source.guarded(), open(source.name, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    for number, text in enumerate(_column(source, parquet, options.text_column), 1):
        yield _ended(source, f"{source.name}, row {number}", text, options)


def _column(source: Source, parquet: Any, column: str) -> Iterator[object]:
    """The values of a column, row by row."""
    try:
        with parquet.ParquetFile(source.name, memory_map=False) as table:
            if column not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names)
                rule = f"have the column data.text_column={column}"
                raise refusal(source.key, rule, source.name, f"its columns are {names}: name one of them")
            for batch in table.iter_batches(batch_size=1024, columns=[column]):
                yield from batch.column(0).to_pylist()
    except UserError:
        raise
    except Exception as error:  # of a C++ library, which has many types
        raise refusal(source.key, "name a whole parquet file", source.name, f"it is none ({error}): mend it") from error
