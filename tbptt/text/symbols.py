"""Cutting a text into the symbols of a vocabulary: bytes, Unicode code points, or words and ends of lines."""

import unicodedata
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

# The symbols that stand for something: no text holds them, since no word or character is empty, and no word a newline.
UNKNOWN = ""
END_OF_LINE = "\n"
LEVELS = ("byte", "char", "word", "bpe")
FORMS = (None, "NFC", "NFD", "NFKC", "NFKD")

BYTES = 256
CODE_POINTS = 0x110000
_CHUNK = 1 << 22  # characters counted at once: bounds the memory, which is 12 bytes a character


def prepare(text: str, lowercase: bool, normalize: str | None) -> str:
    """Return the text in a Unicode normal form (if one is given) and in lower case (if asked for)."""
    text = _normal(text, normalize)
    if lowercase:
        # Normal forms can make capitals (the script letter for H), and lower case can leave a normal form.
        text = _normal(text.lower(), normalize)
    return text


def _normal(text: str, form: str | None) -> str:
    match form:
        case "NFC" | "NFD" | "NFKC" | "NFKD":
            return unicodedata.normalize(form, text)
    return text


def words(text: str, final_end_of_line: bool = True) -> Iterator[str]:
    """Yield the words of each line, each line followed by `END_OF_LINE`.

    Only a newline ends a line; words are separated by Unicode white space, so none of them is or holds `END_OF_LINE`.
    A last line without one is followed by `END_OF_LINE` too, unless `final_end_of_line` is False.
    """
    *lines, last = text.split("\n")
    for line in lines:
        yield from line.split()
        yield END_OF_LINE
    yield from last.split()
    if last and final_end_of_line:
        yield END_OF_LINE


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the code points of a text, (characters,), lone surrogates included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def count_symbols(text: str, level: str) -> Counter[str]:
    """Return how often each symbol of the text occurs, at level "char" or "word"."""
    if level == "word":
        return Counter(words(text))
    totals = np.zeros(CODE_POINTS, dtype=np.int64)
    for start in range(0, len(text), _CHUNK):
        totals += np.bincount(code_points(text[start : start + _CHUNK]), minlength=CODE_POINTS)
    return Counter({chr(code): int(totals[code]) for code in np.flatnonzero(totals)})


def describe(symbols: dict[str, int], level: str, limit: int = 10) -> str:
    """Return the first `limit` symbols for a message: quoted, characters with their code points."""
    code = level == "char"
    shown = [repr(symbol) + (f" (U+{ord(symbol):04X})" if code else "") for symbol in list(symbols)[:limit]]
    return ", ".join(shown) + (f" and {len(symbols) - limit} more" if len(symbols) > limit else "")
