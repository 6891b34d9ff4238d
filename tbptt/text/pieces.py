"""Text in pieces -> the same text after the options on newlines, normal form and case, in pieces.

However a text is cut, what comes out is what the whole text would give.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator

from tbptt.text.symbols import prepare

_HANGUL = range(0xAC00, 0xD7A4)

# A text without such a place for so many characters is cut all the same; it is no writing of any language.
LONGEST = 1 << 20


def settle(pieces: Iterable[str], newlines: str, normalize: str | None, lowercase: bool) -> Iterator[str]:
    r"""Yield a text as it is to be counted.

    Args:
        pieces: the text.
        newlines: "keep", or "universal" to turn each "\r\n" and each "\r" into "\n".
        normalize: a Unicode normal form, or None.
        lowercase: whether to put it into lower case.
    """
    if newlines == "universal":
        pieces = _universal(pieces)
    if normalize is None and not lowercase:
        yield from pieces
        return
    for piece in _at_safe_places(pieces, lowercase):
        yield prepare(piece, lowercase, normalize)


def _universal(pieces: Iterable[str]) -> Iterator[str]:
    held = ""
    for piece in pieces:
        text = held + piece
        # The "\n" that makes one newline of both may come with the next piece.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(held)
        yield text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    if held:
        yield "\n"


def _at_safe_places(pieces: Iterable[str], lowercase: bool) -> Iterator[str]:
    held = ""
    for piece in pieces:
        text = held + piece
        cut = _last_place(text, lowercase)
        if not cut and len(text) > LONGEST:
            cut = len(text)
        held = text[cut:]
        if cut:
            yield text[:cut]
    if held:
        yield held


def _last_place(text: str, lowercase: bool) -> int:
    """The last position at which `text` can be cut, 0 if there is none.

    Text before and from a white space on can be put into a normal form or lower case apart: ASCII characters take part
    in nothing that comes before them, and it ends the word on which a final sigma depends.
    """
    position = max(text.rfind("\n"), text.rfind(" "), text.rfind("\t"))
    if position > 0:
        return position
    for position in range(len(text) - 1, max(0, len(text) - 4096), -1):
        apart = not lowercase or (_solid(text[position - 1]) and _solid(text[position]))
        if apart and _stands_alone(text[position]):
            return position
    return 0


@functools.lru_cache(1 << 12)
def _solid(character: str) -> bool:
    """Whether lower case of a sigma on one side of this character does not depend on what is on the other side.

    A sigma's does on the nearest letter, apostrophes, full stops, marks and the like in between left aside.
    """
    parts = unicodedata.normalize("NFKD", character)
    if "Σ" in parts:
        return False
    ends = parts[0], parts[-1]
    letter = all(("AΣ" + end).lower()[1] != "ς" for end in ends)
    return letter or all(("AΣ" + end + "A").lower()[1] == "ς" for end in ends)


@functools.lru_cache(1 << 12)
def _stands_alone(character: str) -> bool:
    """Whether normal forms of a text that begins with this character do not depend on what comes before it."""
    if character < "\x80":
        return True
    first = unicodedata.normalize("NFKD", character)[0]
    return not unicodedata.combining(first) and first not in _seconds()


@functools.cache
def _seconds() -> frozenset[str]:
    """All characters that may join the one before them into one, though they are no combining marks."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x110000) if code not in _HANGUL)
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")}
    # Vowels and finals of Hangul syllables, which join by rule.
    return frozenset(seconds | {chr(code) for code in range(0x1161, 0x11C3)})
