"""Choosing which symbols of a training text make up its vocabulary."""

from collections import Counter

from tbptt.errors import check_choice, check_integer, refusal
from tbptt.text.symbols import END_OF_LINE, FORMS, LEVELS, UNKNOWN


def check_options(level: str, min_count: int, max_vocab: int | None, lowercase: bool, normalize: str | None) -> None:
    """Refuse options of `Vocabulary.build` that are out of their range.

    Raises:
        UserError: naming the option.
    """
    check_choice("data.level", level, LEVELS)
    check_integer("data.min_count", min_count, 1, "1 keeps every symbol")
    if max_vocab is not None:
        check_integer("data.max_vocab", max_vocab, 2, "null sets no limit")
    check_choice("data.lowercase", lowercase, (True, False))
    check_choice("data.normalize", normalize, FORMS)


def choose(
    found: Counter[str], level: str, min_count: int, max_vocab: int | None, need_unknown: bool
) -> tuple[list[str], list[int], bool]:
    """Return the symbols of a vocabulary, their counts, and whether the first of them is `UNKNOWN`.

    Args:
        found: the symbols of the training text with their counts.
        level: as for `Vocabulary.build`, like the others.
        min_count: rarer symbols are dropped.
        max_vocab: most entries, `UNKNOWN` included, or None.
        need_unknown: whether `UNKNOWN` is there in any case.

    Raises:
        UserError: `min_count` leaves nothing.
    """
    always = END_OF_LINE if level == "word" else ""
    unknown_word = UNKNOWN if level == "word" else ""
    ranked = sorted(found.keys() - {unknown_word}, key=lambda symbol: (-found[symbol], symbol))
    kept = [symbol for symbol in ranked if found[symbol] >= min_count or symbol == always]
    if len(kept) < len(ranked) and set(kept) <= {always}:
        rule = "leave some token of the training text, none of which occurs so often"
        raise refusal("data.min_count", rule, min_count, "give a smaller count")
    unknown = need_unknown or len(kept) < len(found)
    if max_vocab is not None and len(kept) + unknown > max_vocab:
        unknown, kept = True, _first(kept, max_vocab - 1, always)
    counts = [found[symbol] for symbol in kept]
    if unknown:
        kept, counts = [UNKNOWN, *kept], [found.total() - sum(counts), *counts]
    return kept, counts, unknown


def _first(ranked: list[str], room: int, always: str) -> list[str]:
    kept = ranked[:room]
    return [*kept[:-1], always] if always in ranked and always not in kept else kept
