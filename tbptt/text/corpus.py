"""A corpus in three parts: training, validation and test text, from files or from what Python itself carries."""

import hashlib
import os
import platform
import re
from dataclasses import dataclass

from tbptt.errors import check_choice, check_number, refusal
from tbptt.text.embedded import english, source_code
from tbptt.text.files import check_encoding, read_text
from tbptt.text.vocabulary import LEVELS

_SPACE = re.compile(r"\s")
_EMBEDDED = {
    "word": (english, "English of the language reference, docstrings and comments"),
    "char": (source_code, "source code of the standard library"),
}


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test text; a part that does not exist is "".

    `source` is one line that says where the text came from. `sha256` is the hexadecimal digest of the three parts,
    each in UTF-8 (lone surrogates pass) and followed by the byte 0xff, which UTF-8 never holds.
    """

    train: str
    validation: str
    test: str
    source: str
    sha256: str


def read_corpus(
    level: str,
    path: str | int | os.PathLike[str] | None = None,
    val_path: str | int | os.PathLike[str] | None = None,
    test_path: str | int | os.PathLike[str] | None = None,
    val_fraction: float = 0.05,
    test_fraction: float = 0.05,
    encoding: str = "utf-8",
) -> Corpus:
    """Read a corpus and split it.

    Validation and test text are contiguous cuts off the end of the text of `path`: training, validation, test. A
    part with a path of its own takes nothing off it, and its fraction is ignored. A fraction of the characters is
    meant; at level "word" each cut moves on to the next line (or, where no line follows, to the next white space).
    A part of fewer than 2 tokens is left empty, and its text stays in what comes before it.

    Args:
        level: "char" or "word".
        path: a text file; None is the text that Python carries: English for words, source code for characters.
        val_path: a file of validation text alone, or None.
        test_path: a file of test text alone, or None.
        val_fraction: the share for validation, in [0, 1); 0 leaves it empty.
        test_fraction: the share for test; together they are less than 1.
        encoding: of all files.

    Raises:
        UserError: a file that cannot be read or decoded or has fewer than 2 tokens, or a value out of its range.
    """
    check_choice("data.level", level, LEVELS)
    check_encoding(encoding)
    shares = (0.0 if val_path is not None else val_fraction, 0.0 if test_path is not None else test_fraction)
    _check_fractions(*shares)
    if path is None:
        _refuse_paths_alone(val_path=val_path, test_path=test_path)
        read, title = _EMBEDDED[level]
        text, source = read(), f"text of CPython {platform.python_version()}: {title}"
    else:
        text = _read_part("data.path", path, encoding, level)
        source = ", ".join(str(name) for name in (path, val_path, test_path) if name is not None)
    train, validation, test = _split(text, level, *shares)
    if val_path is not None:
        validation = _read_part("data.val_path", val_path, encoding, level)
    if test_path is not None:
        test = _read_part("data.test_path", test_path, encoding, level)
    return Corpus(train, validation, test, source, _digest(train, validation, test))


def _check_fractions(val_fraction: float, test_fraction: float) -> None:
    remedy = "give the share of the text that is cut off, for example 0.05"
    check_number("data.val_fraction", val_fraction, remedy, below=1.0)
    check_number("data.test_fraction", test_fraction, remedy, below=1.0)
    if val_fraction + test_fraction >= 1:
        given = val_fraction + test_fraction
        rule = "be less than 1 together with data.test_fraction, so that training text is left"
        raise refusal("data.val_fraction", rule, given, "give smaller fractions")


def _refuse_paths_alone(**paths: object) -> None:
    for name, path in paths.items():
        if path is not None:
            rule = "be given together with data.path, the training text"
            raise refusal(f"data.{name}", rule, str(path), "add data.path=FILE")


def _read_part(key: str, path: str | int | os.PathLike[str], encoding: str, level: str) -> str:
    text = read_text(key, str(path), encoding)
    if level == "word" and not text.strip():
        raise refusal(key, "name a file with words in it", str(path), "it holds only white space: give another")
    if not _predictable(text, level):
        rule = "name a file of at least 2 tokens, so that one can be predicted"
        raise refusal(key, rule, str(path), "give a longer text")
    return text


def _split(text: str, level: str, val_fraction: float, test_fraction: float) -> tuple[str, str, str]:
    val_size, test_size = int(val_fraction * len(text)), int(test_fraction * len(text))
    test_start = _cut(text, level, len(text) - test_size)
    if not _predictable(text[test_start:], level):
        test_size, test_start = 0, len(text)
    val_start = _cut(text, level, len(text) - test_size - val_size)
    if val_size == 0 or not _predictable(text[val_start:test_start], level):
        val_start = test_start
    return text[:val_start], text[val_start:test_start], text[test_start:]


def _cut(text: str, level: str, position: int) -> int:
    """Return where a part may start, at or after `position`: never within a word at level "word"."""
    if level == "char" or not 0 < position < len(text):
        return position
    line_end = text.find("\n", position - 1, len(text) - 1)
    if line_end >= 0:
        return line_end + 1
    space = _SPACE.search(text, position - 1)
    return space.end() if space else len(text)


def _predictable(text: str, level: str) -> bool:
    if level == "char":
        return len(text) >= 2
    line_ends = text.count("\n") + (text != "" and not text.endswith("\n"))
    return len(text.split(None, 2)) + line_ends >= 2


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\xff")
    return digest.hexdigest()
