"""From documentation strings to lines of English words, one paragraph a line, split at white space alone."""

import inspect
import re
from collections.abc import Iterator

_BULLET = re.compile(r"\s*(?:[*+-]|\d{1,2}[.)]|[:@]\w+[^:]*:)\s+")
_ROLE = re.compile(r":[\w:]+:(?=`)")
_EMPHASIS = re.compile(r"``?|(?<![\w)])\*{1,2}(?=\w)|(?<=[\w)])\*{1,2}(?![\w(])")
_TABLE = re.compile(r"\s*[|+].*[|+]\s*|.*?\S {3,}[^\s].*? {3,}\S.*")
_PLAIN_WORD = re.compile(r"""(?<!\S)["'(\[]*([A-Za-z]+(?:[-'/][A-Za-z]+)*)["')\].,;:!?]*(?!\S)""")
_TOKEN = re.compile(
    r"[A-Za-z]+(?=n't\b)|n't\b|'(?:s|d|m|re|ve|ll)\b"  # "does n't", "file 's"
    r"|\w+(?:[.\-]\w+)*"  # words, numbers, identifiers, with dots or hyphens inside them
    r"|\.{2,}|-{2,}|[^\w\s]"  # a run of dots or dashes, or any other sign alone
)
_FUNCTION_WORDS = frozenset(
    {
        "a", "an", "are", "as", "at", "be", "by", "can", "it", "its", "of", "on", "that", "the", "this", "to", "was",
        "were", "when", "which", "with",
    }
)  # fmt: skip

MINIMUM_WORDS = 3
PLAIN_SHARE = 0.7


def tokenise(paragraph: str) -> str:
    """Split punctuation off the words of one line: `the file's name.` becomes `the file 's name .`."""
    return " ".join(_TOKEN.findall(paragraph))


def is_prose(paragraph: str) -> bool:
    """Tell English from code: a rule of three counts over the white-space-separated pieces of a paragraph.

    It is prose if at least `MINIMUM_WORDS` pieces are plain words (letters, with punctuation only around them), if
    these are at least `PLAIN_SHARE` of all pieces, and if one of them is a common English function word. Grammar
    productions (`::=`) and paragraphs with control characters or lone surrogates never are.
    """
    plain = _PLAIN_WORD.findall(paragraph)
    if len(plain) < max(MINIMUM_WORDS, PLAIN_SHARE * len(paragraph.split())):
        return False
    if "::=" in paragraph or not paragraph.isprintable():
        return False
    return not _FUNCTION_WORDS.isdisjoint(word.lower() for word in plain)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the prose of one documentation string, paragraph by paragraph, each joined to one line.

    Examples (from `>>>` to the next blank line), tables, underlines and other lines without a letter, markup signs
    and paragraphs that `is_prose` refuses are left out. Every item of a list is a paragraph of its own.
    """
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        for lines in _items(block.split("\n")):
            paragraph = _unmarked(" ".join(" ".join(lines).split()))
            if is_prose(paragraph):
                yield paragraph


def _items(lines: list[str]) -> Iterator[list[str]]:
    item: list[str] = []
    for line in lines:
        if line.lstrip().startswith(">>>"):
            break
        bullet = _BULLET.match(line)
        if bullet and item:
            yield item
            item = []
        line = line[bullet.end() :] if bullet else line
        if any(character.isalpha() for character in line) and not _TABLE.fullmatch(line):
            item.append(line)
    if item:
        yield item


def _unmarked(paragraph: str) -> str:
    return _EMPHASIS.sub("", _ROLE.sub("", paragraph)).replace("::", ":").strip()
