"""Where documents begin in a text that comes in pieces.

The text itself stays as it is; a border is the position of a document's first character.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import AnyStr

from tbptt.errors import refusal

# Separators with a name; any other is a regular expression.
BLANK_LINE = "blank_line"
FILE = "file"

# Of a longer line only so many characters are looked at.
LONGEST = 1 << 20


def check_separator(separator: object) -> None:
    """Refuse what separates no documents.

    Raises:
        UserError: naming `data.document_separator`.
    """
    key, rule = "data.document_separator", f"be null, {BLANK_LINE}, {FILE} or a regular expression"
    # Quoted twice, for the shell and for Hydra.
    remedy = "give for example 'data.document_separator=\"^= .* =$\"' for documents that begin with such a line"
    if separator is None:
        return
    # An empty one is found in every line; `^` says so plainly.
    if not isinstance(separator, str) or not separator:
        raise refusal(key, rule, separator, remedy)
    try:
        re.compile(separator, re.MULTILINE)
    except re.error as error:
        raise refusal(key, f"{rule}, which must be one that Python reads ({error})", separator, remedy) from error


# Blank lines, and blank lines after the end of another, which are sought much faster.
_BLANK = re.compile(r"(?:[^\S\n]*\n)+"), re.compile(r"\n(?:[^\S\n]*\n)+")
_BLANK_BYTES = re.compile(rb"(?:[ \t\r\f\v]*\n)+"), re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")


class Documents:
    """Finds the borders in the texts of a corpus, one text after the other.

    Each text (a file, or a record of a file of records) begins a document. With `BLANK_LINE` so does each line that
    follows blank ones, and with a regular expression each line in which it is found (in the line alone, without its
    end; bytes are read as UTF-8 for that).

    Args:
        separator: as `check_separator` lets pass.
    """

    def __init__(self, separator: str | None) -> None:
        self._separator = separator
        self._pattern = re.compile(separator or "")

    def split(self, pieces: Iterable[AnyStr]) -> Iterator[tuple[AnyStr, list[int]]]:
        """Yield the pieces of one text, each with the positions in it at which a document begins, increasing."""
        if self._separator is None:
            yield from ((piece, []) for piece in pieces)
            return
        begins = [0]
        if self._separator == FILE:
            for piece in pieces:
                yield piece, begins
                begins = []
            return
        find = self._after_blank if self._separator == BLANK_LINE else self._matching
        self._after = False
        for piece, line in _whole_lines(pieces):
            begins += [place for place in find(piece, line) if place not in begins]
            yield piece, begins
            begins = []

    def _matching(self, piece: AnyStr, line: int) -> Iterator[int]:
        """First characters of lines in which the expression is found, from position `line` on."""
        newline = b"\n" if isinstance(piece, bytes) else "\n"
        # Line by line: what is found must not depend on how the text was cut.
        lines = piece[line:].split(newline)
        if not lines[-1]:
            del lines[-1]
        for text in lines:
            shown = text[:LONGEST]
            if self._pattern.search(shown.decode(errors="replace") if isinstance(shown, bytes) else shown):
                yield line
            line += len(text) + 1

    def _after_blank(self, piece: AnyStr, line: int) -> Iterator[int]:
        """First characters of lines that follow blank ones, from position `line` on; `_after`: one is due."""
        blank: re.Pattern[AnyStr]
        later: re.Pattern[AnyStr]
        blank, later = _BLANK_BYTES if isinstance(piece, bytes) else _BLANK
        first = blank.match(piece, line)
        if first is None and self._after:
            yield line
        self._after = False
        for found in itertools.chain([first] if first else [], later.finditer(piece, first.end() if first else line)):
            self._after = found.end() == len(piece)
            if not self._after:
                yield found.end()


def _whole_lines(pieces: Iterable[AnyStr]) -> Iterator[tuple[AnyStr, int]]:
    """The pieces cut after ends of lines, each with the position of its first line; a piece of a long line has none."""
    held: AnyStr | None = None
    inside = False
    for piece in pieces:
        newline = b"\n" if isinstance(piece, bytes) else "\n"
        text = piece if held is None else held + piece
        cut = text.rfind(newline) + 1
        if not cut and len(text) > LONGEST:
            cut = len(text)
        held = text[cut:]
        if cut:
            whole = text[:cut]
            yield whole, (whole.find(newline) + 1 or len(whole)) if inside else 0
            inside = not whole.endswith(newline)
    if held:
        yield held, len(held) if inside else 0
