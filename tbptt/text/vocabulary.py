"""The numbers that stand for characters or words: built from the training text alone, and the same on every run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import UserError, refusal
from tbptt.text.choice import check_options, choose
from tbptt.text.damage import find_damage
from tbptt.text.symbols import (
    CODE_POINTS,
    END_OF_LINE,
    LEVELS,
    UNKNOWN,
    code_points,
    count_symbols,
    describe,
    prepare,
    words,
)

__all__ = ["END_OF_LINE", "LEVELS", "UNKNOWN", "Vocabulary"]

Ids = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Vocabulary:
    """A list of symbols; the place of a symbol in it is its id.

    At level "char" the symbols are Unicode code points. At level "word" they are words, separated by white space,
    and `END_OF_LINE`, which follows each line; the word `<unk>` in a text is the unknown symbol, as in the Penn
    Treebank and WikiText files. `counts[i]` is how often symbol i occurs in the training text; for `UNKNOWN`, which
    has id 0 if there is one, it is how many training tokens became unknown. `lowercase` and `normalize` are applied
    to every text first.
    """

    level: str
    symbols: tuple[str, ...]
    counts: tuple[int, ...]
    has_unknown: bool
    lowercase: bool = False
    normalize: str | None = None

    @classmethod
    def build(
        cls,
        train_text: str,
        level: str,
        *,
        min_count: int = 1,
        max_vocab: int | None = None,
        lowercase: bool = False,
        normalize: str | None = None,
        need_unknown: bool = False,
    ) -> "Vocabulary":
        """Build the vocabulary of a training text: by descending count, then by symbol.

        There is an unknown symbol if a symbol was dropped, if a word text has the word `<unk>`, or on demand.
        `END_OF_LINE` is never dropped at level "word".

        Args:
            train_text: the training text, and no other.
            level: "char" or "word".
            min_count: rarer symbols are dropped.
            max_vocab: most entries the vocabulary may have, the unknown symbol included; at least 2.
            lowercase: whether to put every text into lower case.
            normalize: the Unicode normal form of every text: None, "NFC", "NFD", "NFKC" or "NFKD".
            need_unknown: whether there is an unknown symbol even if the training text needs none.

        Raises:
            UserError: an option out of its range, an empty text, or nothing left of it.
        """
        check_options(level, min_count, max_vocab, lowercase, normalize)
        found = count_symbols(prepare(train_text, lowercase, normalize), level)
        if not found:
            raise refusal("data.path", "hold training text", train_text, "give a longer text or smaller fractions")
        symbols, counts, has_unknown = choose(found, level, min_count, max_vocab, need_unknown)
        return cls(level, tuple(symbols), tuple(counts), has_unknown, lowercase, normalize)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str, *, final_end_of_line: bool = True, key: str = "data.path") -> Ids:
        """Return the ids of a text: (tokens,), of the smallest unsigned type that holds every id.

        Args:
            text: any text; what is not in the vocabulary becomes the unknown symbol, if there is one.
            final_end_of_line: whether a last line without a newline gets its `END_OF_LINE` (level "word").
            key: the option that gave the text, for messages.

        Raises:
            UserError: a symbol is not in the vocabulary, which has no unknown symbol.
        """
        prepared = prepare(text, self.lowercase, self.normalize)
        fallback = 0 if self.has_unknown else len(self)
        dtype = np.min_scalar_type(len(self) - 1)
        if self.level == "word":
            look_up = self._ids.get
            ids = np.fromiter((look_up(word, fallback) for word in words(prepared, final_end_of_line)), np.uint32)
        else:
            ids = self._table[code_points(prepared)]
        if not self.has_unknown and bool((ids == fallback).any()):
            raise self._outside(text, key)
        return ids.astype(dtype)

    def unknown_symbols(self, text: str) -> dict[str, int]:
        """Return the symbols of a text that are not in the vocabulary, with their counts, most frequent first."""
        found = count_symbols(prepare(text, self.lowercase, self.normalize), self.level)
        outside = [symbol for symbol in found if symbol not in self._ids]
        return {symbol: found[symbol] for symbol in sorted(outside, key=lambda symbol: (-found[symbol], symbol))}

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of ids, (tokens,).

        At level "char" it is the exact inverse of `encode`, but for unknown symbols, written `<unk>`. At level "word"
        words are joined by one space, and `END_OF_LINE` is a newline without a space around it.

        Raises:
            IndexError: an id is negative or not less than the size of the vocabulary.
        """
        array = np.asarray(ids).reshape(-1)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < len(self):
            raise IndexError(f"ids must be in 0..{len(self) - 1}, but they are in {array.min()}..{array.max()}")
        symbols = [self.symbols[i] for i in array.tolist()]
        if self.level == "char":
            return "".join(symbols)
        return " ".join(symbols).replace(" \n", "\n").replace("\n ", "\n")

    def unigram_loss(self, ids: npt.ArrayLike) -> float:
        """Return the loss of ids under the training text's unigram model, in nats per token.

        Symbol i has probability (counts[i] + 1) / (N + V), with N the sum of all counts and V the size of the
        vocabulary; the loss is the mean of -log probability over the ids, (tokens,).

        Raises:
            UserError: there are no ids.
        """
        array = np.asarray(ids).reshape(-1)
        if array.size == 0:
            raise refusal("ids", "hold at least one token", [], "give a longer text")
        smoothed = np.asarray(self.counts, dtype=np.float64) + 1
        seen = np.bincount(array.astype(np.int64), minlength=len(self))
        return float(np.log(smoothed.sum()) - (seen * np.log(smoothed)).sum() / array.size)

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabulary in strings, integers, booleans, None and lists, for a checkpoint."""
        return {
            "level": self.level,
            "symbols": list(self.symbols),
            "counts": list(self.counts),
            "has_unknown": self.has_unknown,
            "lowercase": self.lowercase,
            "normalize": self.normalize,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Vocabulary":
        """Return the vocabulary that `to_dict` described.

        Raises:
            UserError: the description is damaged; says what is wrong with it.
        """
        damage = find_damage(state)
        if damage:
            raise UserError(f"The checkpoint's vocabulary is damaged: {damage}; use another checkpoint.")
        return cls(**{**state, "symbols": tuple(state["symbols"]), "counts": tuple(state["counts"])})

    @property
    def sha256(self) -> str:
        """The hexadecimal digest of everything in `to_dict`, to compare vocabularies by."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode("ascii")).hexdigest()

    @cached_property
    def _ids(self) -> dict[str, int]:
        hidden = self.has_unknown and self.level == "char"  # no character is the unknown symbol
        return {symbol: i for i, symbol in enumerate(self.symbols) if i or not hidden}

    @cached_property
    def _table(self) -> npt.NDArray[np.uint32]:
        table = np.full(CODE_POINTS, 0 if self.has_unknown else len(self), dtype=np.uint32)
        for symbol, i in self._ids.items():
            table[ord(symbol)] = i
        return table

    def _outside(self, text: str, key: str) -> UserError:
        outside = self.unknown_symbols(text)
        total = count_symbols(prepare(text, self.lowercase, self.normalize), self.level).total()
        missing = sum(outside.values())
        return UserError(
            f"{key} must hold only symbols of the training text, but {missing} of its {total} tokens "
            f"({missing / total:.2%}) are others: {describe(outside, self.level)}; remove them, or train with an "
            "unknown symbol (data.min_count=2 or data.max_vocab)."
        )
