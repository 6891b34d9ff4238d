"""Choosing which symbols of a training text make up its vocabulary."""

from collections.abc import Mapping

from tbptt.errors import check_choice, check_integer, refusal
from tbptt.text.symbols import BYTES, END_OF_LINE, FORMS, LEVELS, UNKNOWN


def check_options(
    level: str, min_count: int, max_vocab: int | None, lowercase: bool, normalize: str | None, unknown_word: str | None
) -> None:
    """Refuse options of `Vocabulary.build` that are out of their range, or that their level has no use for.

    Raises:
        UserError: naming the option.
    """
    check_choice("data.level", level, LEVELS)
    check_integer("data.min_count", min_count, 1, "1 keeps every symbol")
    if max_vocab is not None:
        check_integer("data.max_vocab", max_vocab, 2, "null sets no limit")
    check_choice("data.lowercase", lowercase, (True, False))
    check_choice("data.normalize", normalize, FORMS)
    _check_unknown_word(level, unknown_word)
    if level == "byte":
        _refuse_for_bytes(min_count=min_count, max_vocab=max_vocab, lowercase=lowercase, normalize=normalize)
    if level == "bpe":
        check_integer("data.max_vocab", max_vocab, BYTES, "level bpe starts from all 256 bytes; 8192 is usual")


def _check_unknown_word(level: str, word: object) -> None:
    # Quoted twice, for the shell and for Hydra.
    key, remedy = "data.unknown_word", "give for example 'data.unknown_word=\"<unk>\"', or null"
    if word is None:
        return
    if level != "word":
        raise refusal(key, "be null but at level word", word, f"level {level} has no words")
    if not isinstance(word, str) or word.split() != [word]:
        raise refusal(key, "be one word, without white space", word, remedy)


def _refuse_for_bytes(**options: object) -> None:
    """All 256 bytes are the vocabulary, as they stand in the file."""
    for name, value in options.items():
        if value != (1 if name == "min_count" else None) and value is not False:
            remedy = f"leave data.{name} out, or take data=char"
            raise refusal(f"data.{name}", "be left out at level byte, which reads a file as it is", value, remedy)


def choose(
    found: Mapping[str, int],
    level: str,
    min_count: int,
    max_vocab: int | None,
    need_unknown: bool,
    unknown_word: str | None = None,
) -> tuple[list[str], list[int], bool]:
    """Return the symbols of a vocabulary, their counts, and whether the first of them is `UNKNOWN`.

    Args:
        found: the symbols of the training text with their counts.
        level: "char" or "word".
        min_count: rarer symbols are dropped.
        max_vocab: most entries, `UNKNOWN` included, or None.
        need_unknown: whether `UNKNOWN` is there in any case.
        unknown_word: the word that stands for the unknown in the text itself, or None.

    Raises:
        UserError: `min_count` leaves nothing.
    """
    always = END_OF_LINE if level == "word" else ""
    if always:
        found = {always: 0, **found}  # of a text without ends of lines
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
        kept, counts = [UNKNOWN, *kept], [sum(found.values()) - sum(counts), *counts]
    return kept, counts, unknown


def _first(ranked: list[str], room: int, always: str) -> list[str]:
    kept = ranked[:room]
    return [*kept[:-1], always] if always in ranked and always not in kept else kept
