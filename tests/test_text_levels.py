import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tbptt.errors import UserError
from tbptt.text import Options, Vocabulary, read_corpus
from tbptt.text import bpe as bpe_module
from tbptt.text.bpe import Bpe, train

BYTES = Vocabulary.of_bytes(range(256))
ODD = [
    "",
    "a",
    "\0\x7f\r\n\r\x0c\x85\u2028",
    "\ufeff mark inside \ufeff",
    "é e\u0301 ﬁ \u212b \U0010ffff",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467, flag \U0001f1e9\U0001f1ea, tone \U0001f44d\U0001f3fd",
    "각 \u1100\u1161\u11a8, ลำ, र्क",
    "  two  spaces \n\n\t tabs\t\n",
    "<unk> <eos> <s> </s> [UNK] <|endoftext|> ĠĊ",
    "x" * 40000 + "\n" + "y z " * 9000,
]
LONE = ["\ud800", "a\udfffb\n", "\ude00\ud83d pair the wrong way"]


def trained(text: str, size: int = 300, min_count: int = 2) -> Vocabulary:
    state = train([text], size, min_count)
    counts = np.bincount(Bpe(state).encode(text), minlength=len(Bpe(state).symbols))
    return Vocabulary.of_bpe(state, counts.tolist(), lowercase=False, normalize=None)


@pytest.fixture(scope="module")
def merged() -> Vocabulary:
    return trained("the cat sat on the mat, <unk> the end\n" * 50)


@pytest.mark.parametrize("text", ODD + LONE)
def test_bytes_come_back_exactly(text: str) -> None:
    ids = BYTES.encode(text)
    assert ids.dtype == np.uint8
    assert ids.tobytes() == text.encode("utf-8", "surrogatepass")
    assert BYTES.decode(ids) == text
    assert BYTES.unknown_symbols(text) == {}


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert BYTES.decode([0x61, 0xFF, 0x62]) == "a\ufffdb"
    with pytest.raises(IndexError):
        BYTES.decode([256])


def test_all_bytes_are_there_whatever_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(b"\xff\xfe\x00ab" * 40)
    found = read_corpus(Options("byte"), path)
    assert found.vocabulary.symbols == tuple(map(chr, range(256)))
    assert b"".join(ids.tobytes() for ids in found.tokens.values()) == path.read_bytes()
    assert dict(enumerate(found.vocabulary.counts)) == {
        **dict.fromkeys(range(256), 0),
        **Counter(found.tokens["train"].tolist()),
    }
    again = Vocabulary.from_dict(found.vocabulary.to_dict())
    assert again == found.vocabulary


@pytest.mark.parametrize("text", ODD)
def test_bpe_comes_back_exactly(text: str, merged: Vocabulary) -> None:
    assert merged.decode(merged.encode(text)) == text
    assert merged.unknown_symbols(text) == {}


@pytest.mark.parametrize("text", LONE)
def test_bpe_has_no_lone_surrogates(text: str, merged: Vocabulary) -> None:
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert merged.decode(merged.encode(text)) == expected


def test_bpe_tokens_end_with_the_line(merged: Vocabulary) -> None:
    line = merged.encode("the cat\n")
    assert merged.encode("the cat\n" * 7).tolist() == line.tolist() * 7
    whole = merged.encode("the\n\n\nthe\n").tolist()
    assert whole == [i for text in ("the\n", "\n", "\n", "the\n") for i in merged.encode(text).tolist()]


def test_bpe_vocabulary_is_as_large_as_asked_for_or_as_the_text_allows() -> None:
    draw = random.Random(3)
    text = "".join(draw.choices("abcd \n", k=3000))
    assert len(trained(text, 300)) == 300
    assert len(trained(text, 256)) == 256
    assert 256 < len(trained("ab ab\n", 5000)) < 270
    assert len(trained("ab ab\n", 5000, min_count=9)) == 256


def test_bpe_survives_a_checkpoint(merged: Vocabulary) -> None:
    again = Vocabulary.from_dict(merged.to_dict())
    assert again == merged
    assert again.sha256 == merged.sha256
    assert again.encode("the hat").tolist() == merged.encode("the hat").tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": ""}, "tokenizer must be a string"),
        ({"tokenizer": "{}"}, "tokenizer of level bpe cannot be read"),
        ({"tokenizer": "no json"}, "tokenizer of level bpe cannot be read"),
        ({"symbols": ["a"], "counts": [1]}, "not those of its tokenizer"),
        ({"has_unknown": True}, "no unknown symbol"),
        ({"unknown_word": "<unk>"}, "unknown_word"),
    ],
)
def test_damaged_bpe_states_are_refused(change: dict, reason: str, merged: Vocabulary) -> None:
    with pytest.raises(UserError, match=reason):
        Vocabulary.from_dict({**merged.to_dict(), **change})


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(bpe_module.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package tokenizers; pip install 'tbptt\[text\]'"):
        train(["a"], 256, 1)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"level": "bpe"}, "max_vocab"),
        ({"level": "bpe", "max_vocab": 255}, "max_vocab"),
        ({"level": "bpe", "max_vocab": 300, "unknown_word": "<unk>"}, "unknown_word"),
        ({"level": "byte", "max_vocab": 256}, "max_vocab"),
        ({"level": "byte", "min_count": 2}, "min_count"),
        ({"level": "byte", "lowercase": True}, "lowercase"),
        ({"level": "byte", "normalize": "NFC"}, "normalize"),
        ({"level": "byte", "newlines": "universal"}, "newlines"),
        ({"level": "char", "newlines": "crlf"}, "newlines"),
        ({"level": "char", "split": "lines"}, "split"),
        ({"level": "char", "split": "documents"}, "document_separator"),
        ({"level": "char", "document_separator": "("}, "document_separator"),
        ({"level": "char", "document_separator": 3}, "document_separator"),
        ({"level": "char", "text_column": 3}, "text_column"),
        ({"level": "words"}, "level"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, key: str) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must"):
        Options(**options)
