"""The numbers that stand for characters or words: built from the training text alone, and the same on every run."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import UserError, refusal
from tbptt.text.bpe import Bpe
from tbptt.text.choice import check_options, choose
from tbptt.text.damage import find_damage
from tbptt.text.symbols import (
    BYTES,
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

    At level "byte" the symbols are all 256 bytes of the text's UTF-8, at level "char" Unicode code points, at level
    "bpe" what the tokenizer of `tbptt.text.bpe` makes of each line. At level "word" they are words, separated by white
    space, and `END_OF_LINE`, which follows each line; `unknown_word` in a text is the unknown symbol, if there is one.
    `counts[i]` is how often symbol i occurs in the training text; for `UNKNOWN`, which has id 0 if there is one, it is
    how many training tokens became unknown. No text can hold `UNKNOWN` or, within a line, `END_OF_LINE`.
    `lowercase` and `normalize` are applied to every text first.
    """

    level: str
    symbols: tuple[str, ...]
    counts: tuple[int, ...]
    has_unknown: bool
    lowercase: bool = False
    normalize: str | None = None
    unknown_word: str | None = None
    tokenizer: str = ""

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
        unknown_word: str | None = None,
        need_unknown: bool = False,
    ) -> "Vocabulary":
        """Build the vocabulary of a training text: by descending count, then by symbol.

        There is an unknown symbol if a symbol was dropped, if the text holds `unknown_word`, or on demand.
        `END_OF_LINE` is never dropped at level "word". For "byte" and "bpe" see `of_bytes` and `tbptt.text.bpe`.

        Args:
            train_text: the training text, and no other.
            level: "char" or "word".
            min_count: rarer symbols are dropped.
            max_vocab: most entries the vocabulary may have, the unknown symbol included; at least 2.
            lowercase: whether to put every text into lower case.
            normalize: the Unicode normal form of every text: None, "NFC", "NFD", "NFKC" or "NFKD".
            unknown_word: the word by which texts say that a word is unknown, None for none.
            need_unknown: whether there is an unknown symbol even if the training text needs none.

        Raises:
            UserError: an option out of its range, an empty text, or nothing left of it.
        """
        check_options(level, min_count, max_vocab, lowercase, normalize, unknown_word)
        assert level in ("char", "word"), level
        found = count_symbols(prepare(train_text, lowercase, normalize), level)
        return cls.of_counts(
            found,
            level,
            min_count,
            max_vocab,
            need_unknown,
            lowercase=lowercase,
            normalize=normalize,
            unknown_word=unknown_word,
        )

    @classmethod
    def of_counts(
        cls,
        found: Mapping[str, int],
        level: str,
        min_count: int,
        max_vocab: int | None,
        need_unknown: bool,
        *,
        lowercase: bool,
        normalize: str | None,
        unknown_word: str | None,
    ) -> "Vocabulary":
        """As `build`, from the symbols of a training text and how often each is there.

        Raises:
            UserError: there is no symbol, or none is left.
        """
        if not found:
            raise refusal("data.path", "hold training text", "", "give a longer text or smaller fractions")
        symbols, counts, has_unknown = choose(found, level, min_count, max_vocab, need_unknown, unknown_word)
        word = unknown_word if has_unknown else None
        return cls(level, tuple(symbols), tuple(counts), has_unknown, lowercase, normalize, word)

    @classmethod
    def of_bytes(cls, counts: Iterable[int]) -> "Vocabulary":
        """The vocabulary of all 256 bytes, with how often each occurs in the training text."""
        return cls("byte", tuple(map(chr, range(BYTES))), tuple(counts), has_unknown=False)

    @classmethod
    def of_bpe(cls, tokenizer: str, counts: Iterable[int], *, lowercase: bool, normalize: str | None) -> "Vocabulary":
        """The vocabulary of a tokenizer that `tbptt.text.bpe.train` made, with counts of the training text."""
        symbols = tuple(Bpe(tokenizer).symbols)
        return cls("bpe", symbols, tuple(counts), False, lowercase, normalize, None, tokenizer)

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
        if self.level == "byte":
            return np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)
        prepared = prepare(text, self.lowercase, self.normalize)
        dtype = np.min_scalar_type(len(self) - 1)
        if self.level == "bpe":
            return self._bpe.encode(prepared).astype(dtype)
        fallback = self._fallback
        if self.level == "word":
            look_up = self._ids.get
            ids = np.fromiter((look_up(word, fallback) for word in words(prepared, final_end_of_line)), np.uint32)
        else:
            ids = self._table[code_points(prepared)]
        if not self.has_unknown and bool((ids == fallback).any()):
            found = count_symbols(prepared, self.level)
            raise self.outside(self.unknown_symbols(text), found.total(), key)
        return ids.astype(dtype)

    def places(self, symbols: Iterable[str]) -> npt.NDArray[np.uint32]:
        """The id of each symbol; of one that is not in the vocabulary 0 if that is unknown, else its size."""
        look_up, fallback = self._ids.get, self._fallback
        return np.fromiter((look_up(symbol, fallback) for symbol in symbols), np.uint32)

    @property
    def _fallback(self) -> int:
        return 0 if self.has_unknown else len(self)

    def unknown_symbols(self, text: str) -> dict[str, int]:
        """Return the symbols of a text that are not in the vocabulary, with their counts, most frequent first."""
        if self.level in ("byte", "bpe"):
            return {}
        return self.not_in(count_symbols(prepare(text, self.lowercase, self.normalize), self.level))

    def not_in(self, found: Mapping[str, int]) -> dict[str, int]:
        """Those of `found` that are not in the vocabulary, most frequent first."""
        outside = [symbol for symbol in found if symbol not in self._ids]
        return {symbol: found[symbol] for symbol in sorted(outside, key=lambda symbol: (-found[symbol], symbol))}

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of ids, (tokens,).

        At levels "byte" and "char" it is the exact inverse of `encode`, but for unknown symbols, which are written as
        `unknown_word` or `<unk>`; bytes that no text has become U+FFFD. At level "word" words are joined by one space,
        and `END_OF_LINE` is a newline without a space around it.

        Raises:
            IndexError: an id is negative or not less than the size of the vocabulary.
        """
        array = np.asarray(ids).reshape(-1)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < len(self):
            raise IndexError(f"ids must be in 0..{len(self) - 1}, but they are in {array.min()}..{array.max()}")
        if self.level == "byte":
            return _text(array.astype(np.uint8).tobytes())
        if self.level == "bpe":
            return self._bpe.decode(array)
        shown = [self.unknown_word or "<unk>", *self.symbols[1:]] if self.has_unknown else self.symbols
        symbols = [shown[i] for i in array.tolist()]
        if self.level == "char":
            return "".join(symbols)
        return " ".join(symbols).replace(" \n", "\n").replace("\n ", "\n")

    def unigram_loss(self, seen: npt.ArrayLike) -> float:
        """Return the loss of a text under the training text's unigram model, in nats per token.

        Symbol i has probability (counts[i] + 1) / (N + V), with N the sum of all counts and V the size of the
        vocabulary; the loss is the mean of -log probability over the text's tokens.

        Args:
            seen: how often each symbol occurs in the text, `(V,)`.

        Raises:
            UserError: the text has no tokens.
        """
        array = np.asarray(seen, dtype=np.float64)
        total = array.sum()
        if total == 0:
            raise refusal("ids", "hold at least one token", [], "give a longer text")
        smoothed = np.asarray(self.counts, dtype=np.float64) + 1
        return float(np.log(smoothed.sum()) - (array * np.log(smoothed)).sum() / total)

    def to_dict(self) -> dict[str, Any]:
        """Return the vocabulary in strings, integers, booleans, None and lists, for a checkpoint."""
        return {
            "level": self.level,
            "symbols": list(self.symbols),
            "counts": list(self.counts),
            "has_unknown": self.has_unknown,
            "lowercase": self.lowercase,
            "normalize": self.normalize,
            "unknown_word": self.unknown_word,
            "tokenizer": self.tokenizer,
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
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        return ids if self.unknown_word is None else {**ids, self.unknown_word: 0}

    @cached_property
    def _table(self) -> npt.NDArray[np.uint32]:
        table = np.full(CODE_POINTS, self._fallback, dtype=np.uint32)
        for symbol, i in self._ids.items():
            if symbol != UNKNOWN:
                table[ord(symbol)] = i
        return table

    @cached_property
    def _bpe(self) -> Bpe:
        return Bpe(self.tokenizer)

    def outside(self, symbols: dict[str, int], total: int, key: str) -> UserError:
        """What to say of a text of `total` tokens with these symbols, which are not in the vocabulary."""
        missing = sum(symbols.values())
        return UserError(
            f"{key} must hold only symbols of the training text, but {missing} of its {total} tokens "
            f"({missing / total:.2%}) are others: {describe(symbols, self.level)}; remove them, or train with an "
            f"unknown symbol: data.max_vocab={max(2, len(self) - 1)} makes the rarest one unknown."
        )


def _text(data: bytes) -> str:
    """The text of its UTF-8; lone surrogates pass, as in `encode`, and what is none becomes U+FFFD."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
