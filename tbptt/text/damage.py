"""Finding what is wrong with the description of a vocabulary that was read from a checkpoint."""

import reprlib
from collections.abc import Mapping
from typing import Any

from tbptt.text.bpe import Bpe
from tbptt.text.symbols import BYTES, END_OF_LINE, FORMS, LEVELS, UNKNOWN

KEYS = frozenset({"level", "symbols", "counts", "has_unknown", "lowercase", "normalize", "unknown_word", "tokenizer"})


def find_damage(state: object) -> str:
    """Return what is wrong with the description of a vocabulary, or "" if nothing is."""
    if not isinstance(state, Mapping):
        return f"it is no mapping but {reprlib.repr(state)}"
    if set(state) != KEYS:
        return f"its keys are {sorted(map(str, state))} instead of {sorted(KEYS)}"
    return _bad_option(state) or _bad_lists(state["symbols"], state["counts"]) or _bad_symbols(state)


def _bad_option(state: Mapping[str, Any]) -> str:
    for name in ("has_unknown", "lowercase"):
        if not isinstance(state[name], bool):
            return f"{name} must be true or false, but it is {reprlib.repr(state[name])}"
    for name, choices in (("level", LEVELS), ("normalize", FORMS)):
        if state[name] not in choices:
            return f"{name} must be one of {choices}, but it is {reprlib.repr(state[name])}"
    word, tokenizer = state["unknown_word"], state["tokenizer"]
    apart = state["level"] == "word" and state["has_unknown"]
    if word is not None and not (isinstance(word, str) and apart and word.split() == [word]):
        return f"unknown_word must be a word or None, but it is {reprlib.repr(word)}"
    if not isinstance(tokenizer, str) or bool(tokenizer) != (state["level"] == "bpe"):
        return f"tokenizer must be a string, and empty but for level bpe; it is {reprlib.repr(tokenizer)}"
    return ""


def _bad_lists(symbols: object, counts: object) -> str:
    if not isinstance(symbols, list) or not symbols or not all(isinstance(item, str) for item in symbols):
        return f"symbols must be a list of strings, but it is {reprlib.repr(symbols)}"
    if not isinstance(counts, list) or not all(type(item) is int and item >= 0 for item in counts):
        return f"counts must be a list of integers of at least 0, but it is {reprlib.repr(counts)}"
    if len(counts) != len(symbols):
        return f"it has {len(symbols)} symbols, but {len(counts)} counts"
    if len(set(symbols)) != len(symbols):
        return "some of its symbols occur twice"
    return ""


def _bad_symbols(state: Mapping[str, Any]) -> str:
    symbols: list[str] = state["symbols"]
    if state["level"] in ("byte", "bpe"):
        return _bad_bytes(state)
    if state["has_unknown"] and symbols[0] != UNKNOWN:
        return f"symbol 0 must be {UNKNOWN!r}, but it is {symbols[0]!r}"
    known = symbols[1:] if state["has_unknown"] else symbols
    bad = [symbol for symbol in known if not _is_symbol(symbol, state["level"])]
    if bad:
        return f"{reprlib.repr(bad[0])} is no symbol of level {state['level']}"
    if state["level"] == "word" and END_OF_LINE not in known:
        return "it has no end of line"
    return ""


def _bad_bytes(state: Mapping[str, Any]) -> str:
    if state["has_unknown"]:
        return f"level {state['level']} has no unknown symbol"
    if state["level"] == "byte" and state["symbols"] != [chr(code) for code in range(BYTES)]:
        return "level byte has all 256 bytes and nothing else"
    if state["level"] == "bpe" and state["symbols"] != Bpe(state["tokenizer"]).symbols:
        return "its symbols are not those of its tokenizer"
    return ""


def _is_symbol(symbol: str, level: str) -> bool:
    if level == "char":
        return len(symbol) == 1
    return symbol == END_OF_LINE or symbol.split() == [symbol]
