"""Pieces of text -> numbers of their symbols, in the order in which symbols are met: what a vocabulary renumbers.

A text of `n` symbols gives `(n,)` numbers. Numbers below 256 of characters are their code points; they need not occur.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tbptt.errors import refusal
from tbptt.text.spool import Numbers
from tbptt.text.symbols import CODE_POINTS, END_OF_LINE, code_points

Text = TypeVar("Text", str, bytes)

# Characters of a word; what is longer is no word.
LONGEST_WORD = 1 << 20


class Numbering(ABC, Generic[Text]):
    """Numbers the symbols of texts that come one after the other, each in pieces.

    `key` is the option that gave the text, for messages.
    """

    key = "data.path"

    @abstractmethod
    def number(self, piece: Text, begins: list[int]) -> tuple[Numbers, list[int]]:
        """Numbers of the symbols that `piece` completes, and which of them (from 0) stand at the positions `begins`."""

    @abstractmethod
    def end(self) -> Numbers:
        """Numbers of what is left when a text ends."""

    @property
    @abstractmethod
    def symbols(self) -> list[str]:
        """The symbol of each number given so far, and of those in between."""


class Bytes(Numbering[bytes]):
    """Each byte is its own number."""

    def number(self, piece: bytes, begins: list[int]) -> tuple[Numbers, list[int]]:
        """As the class says."""
        return np.frombuffer(piece, np.uint8), begins

    def end(self) -> Numbers:
        """Nothing is left."""
        return np.empty(0, np.uint8)

    @property
    def symbols(self) -> list[str]:
        """All bytes, each as the character of that code point."""
        return [chr(code) for code in range(256)]


class Characters(Numbering[str]):
    """A code point below 256 is its own number; others count on from there."""

    def __init__(self) -> None:
        self._symbols = [chr(code) for code in range(256)]
        self._table: Numbers | None = None  # 0: no number yet, but for code point 0

    def number(self, piece: str, begins: list[int]) -> tuple[Numbers, list[int]]:
        """As the class says."""
        try:
            return np.frombuffer(piece.encode("latin-1"), np.uint8), begins
        except UnicodeEncodeError:
            return self._others(code_points(piece)), begins

    def _others(self, codes: npt.NDArray[np.uint32]) -> Numbers:
        if self._table is None:
            self._table = np.zeros(CODE_POINTS, np.uint16)
            self._table[:256] = np.arange(256)
        numbers: Numbers = self._table[codes]
        missing = numbers == 0
        if missing.any():
            new = np.unique(codes[missing])
            self._add(new[new != 0])
            numbers = self._table[codes]
        return numbers

    def _add(self, codes: npt.NDArray[np.uint32]) -> None:
        """Number some code points."""
        assert self._table is not None
        before = len(self._symbols)
        self._symbols += map(chr, codes.tolist())
        if len(self._symbols) > 1 << 16:
            self._table = self._table.astype(np.uint32)
        self._table[codes] = np.arange(before, len(self._symbols))

    def end(self) -> Numbers:
        """Nothing is left."""
        return np.empty(0, np.uint8)

    @property
    def symbols(self) -> list[str]:
        """The characters."""
        return self._symbols


class Words(Numbering[str]):
    """Words between white space, and `END_OF_LINE` (number 0) after each line, the last one too."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__
        self._numbers[END_OF_LINE] = 0
        self._word = ""  # its end is yet to come
        self._line = False  # whether a line has begun

    def number(self, piece: str, begins: list[int]) -> tuple[Numbers, list[int]]:
        """As the class says."""
        if not piece:
            return np.empty(0, np.uint8), begins
        before = len(self._word)
        text = self._word + piece
        self._word = "" if text[-1].isspace() else text.rsplit(None, 1)[-1]
        self._refuse_long([self._word])
        self._line = not text.endswith("\n")
        text = text[: len(text) - len(self._word)]
        words: list[str] = []
        places = []
        start = 0
        for begin in begins:
            _add_words(words, text[start : begin + before])
            places.append(len(words))
            start = begin + before
        _add_words(words, text[start:] if start else text)
        # Among those of a short piece only the first, which began before it, can be that long.
        self._refuse_long(words if len(piece) > LONGEST_WORD else words[:1])
        return self._look_up(words), places

    def _refuse_long(self, words: list[str]) -> None:
        longest = max(words, key=len, default="")
        if len(longest) > LONGEST_WORD:
            rule = f"hold words of at most {LONGEST_WORD:,} characters between white space"
            raise refusal(self.key, rule, f"{longest[:20]}...", "read it with data=char or data=byte")

    def _look_up(self, words: list[str]) -> Numbers:
        return np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))

    def end(self) -> Numbers:
        """The last word, and the end of a last line without a newline."""
        words = [self._word] if self._word else []
        if self._line:
            words.append(END_OF_LINE)
        self._word, self._line = "", False
        return self._look_up(words)

    @property
    def symbols(self) -> list[str]:
        """The words, `END_OF_LINE` first."""
        return list(self._numbers)


def _add_words(words: list[str], text: str) -> None:
    *lines, last = text.split("\n")
    for line in lines:
        words += line.split()
        words.append(END_OF_LINE)
    words += last.split()


def numbering(level: str) -> Numbering[Any]:
    """A fresh one for a level, "byte", "char", "word" or "bpe", whose text is numbered by characters first."""
    if level == "byte":
        return Bytes()
    return Words() if level == "word" else Characters()
