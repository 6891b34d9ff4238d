import math
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tbptt.errors import UserError
from tbptt.text import Vocabulary
from tbptt.text.vocabulary import END_OF_LINE, UNKNOWN

ODD = "a b\u2028c d\x85e f\x0cg\n" * 200
PTB = " the <unk> sat \n the cat \n"


def test_characters_in_order_of_count() -> None:
    vocabulary = Vocabulary.build("abcd" * 500, "char")
    assert vocabulary.symbols == ("a", "b", "c", "d")
    assert vocabulary.counts == (500, 500, 500, 500)
    assert not vocabulary.has_unknown
    assert Vocabulary.build("zzbaab\n", "char").symbols == ("a", "b", "z", "\n")


def test_words_in_order_of_count() -> None:
    vocabulary = Vocabulary.build("b a b\n\nc", "word")
    assert vocabulary.symbols == (END_OF_LINE, "b", "a", "c")
    assert vocabulary.counts == (3, 2, 1, 1)
    assert vocabulary.encode("b a b\n\nc").tolist() == [1, 2, 1, 0, 0, 3, 0]


@pytest.mark.parametrize(
    "text",
    [ODD, "\ud800 lone \udfff, pair \ud83d\ude00, one \U0001f600", "\r\n\0\x7f", "é e\u0301 \U0010ffff", "a"],
)
def test_characters_come_back_exactly(text: str) -> None:
    vocabulary = Vocabulary.build(text, "char")
    ids = vocabulary.encode(text)
    assert ids.shape == (len(text),)
    assert vocabulary.decode(ids) == text
    assert dict(zip(vocabulary.symbols, vocabulary.counts, strict=True)) == Counter(text)


def test_only_the_newline_ends_a_line() -> None:
    vocabulary = Vocabulary.build(ODD, "word")
    ids = vocabulary.encode(ODD)
    assert (ids == vocabulary.symbols.index(END_OF_LINE)).sum() == 200
    assert set(vocabulary.symbols) == {*"abcdefg", END_OF_LINE}
    assert vocabulary.decode(ids) == "a b c d e f g\n" * 200


@pytest.mark.parametrize("ending", ["\n", "\r\n", " \n", ""])
def test_every_line_has_one_end(ending: str) -> None:
    vocabulary = Vocabulary.build("a b\r\n\r\nc\r\n", "word")
    assert vocabulary.decode(vocabulary.encode("a b\n\nc" + ending)) == "a b\n\nc\n"
    prompt = vocabulary.encode("a b\n\nc" + ending, final_end_of_line=False)
    assert vocabulary.decode(prompt) == ("a b\n\nc\n" if ending else "a b\n\nc")
    assert vocabulary.encode("").size == 0


@pytest.mark.parametrize(("size", "dtype"), [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65537, "uint32")])
def test_smallest_type(size: int, dtype: str) -> None:
    text = "".join(map(chr, range(size)))
    ids = Vocabulary.build(text, "char").encode(text)
    assert ids.dtype == np.dtype(dtype)
    assert int(ids.max()) == size - 1


def test_long_text_is_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbptt.text.symbols._CHUNK", 3)
    text = "hello, wörld" * 3
    vocabulary = Vocabulary.build(text, "char")
    assert dict(zip(vocabulary.symbols, vocabulary.counts, strict=True)) == Counter(text)


def test_unseen_words_are_unknown() -> None:
    vocabulary = Vocabulary.build("the cat sat\n" * 3 + "rare\n", "word", min_count=2)
    assert vocabulary.symbols == (UNKNOWN, END_OF_LINE, "cat", "sat", "the")
    assert vocabulary.counts == (1, 4, 3, 3, 3)
    ids = vocabulary.encode("the dog sat on the dog\n")
    assert ids.tolist() == [4, 0, 3, 0, 4, 0, 1]
    assert (ids == 0).mean() == pytest.approx(3 / 7)
    assert vocabulary.unknown_symbols("the dog sat on the dog\n") == {"dog": 2, "on": 1}
    assert vocabulary.decode(ids) == "the <unk> sat <unk> the <unk>\n"


def test_unknown_word_in_the_text_is_the_unknown_symbol() -> None:
    vocabulary = Vocabulary.build(PTB, "word", unknown_word="<unk>")
    assert vocabulary.symbols == (UNKNOWN, END_OF_LINE, "the", "cat", "sat")
    assert vocabulary.counts == (1, 2, 2, 1, 1)
    assert vocabulary.encode("<unk> dog", final_end_of_line=False).tolist() == [0, 0]
    assert vocabulary.decode([0, 3]) == "<unk> cat"
    assert "<" in Vocabulary.build(PTB, "char").symbols
    assert not Vocabulary.build(PTB, "char").has_unknown


def test_text_without_the_unknown_word_needs_no_unknown_symbol() -> None:
    vocabulary = Vocabulary.build("a b\n", "word", unknown_word="UNK")
    assert not vocabulary.has_unknown
    assert vocabulary.unknown_word is None
    with pytest.raises(UserError, match="'UNK'"):
        vocabulary.encode("a UNK\n")


@pytest.mark.parametrize("word", ["<unk>", "<eos>", "</s>", "[UNK]"])
def test_words_in_brackets_are_words(word: str) -> None:
    vocabulary = Vocabulary.build(f"a {word} b {word}\n", "word", max_vocab=3)
    assert vocabulary.symbols == (UNKNOWN, word, END_OF_LINE)
    assert vocabulary.encode(f"{word} z b\n").tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize(("text", "level"), [("aaaa", "char"), ("\n\n", "word"), (" \n", "word")])
def test_vocabulary_of_one(text: str, level: str) -> None:
    vocabulary = Vocabulary.build(text, level)
    assert len(vocabulary) == 1
    ids = vocabulary.encode(text)
    assert ids.dtype == np.uint8
    assert not ids.any()
    assert vocabulary.decode(ids).strip(" ") == text.strip(" ")
    assert vocabulary.unigram_loss([len(ids)]) == 0.0
    with pytest.raises(IndexError):
        vocabulary.decode([1])


def test_unknown_characters() -> None:
    vocabulary = Vocabulary.build("aab", "char", need_unknown=True)
    assert vocabulary.symbols == (UNKNOWN, "a", "b")
    assert vocabulary.counts == (0, 2, 1)
    assert vocabulary.encode("abz\ud800").tolist() == [1, 2, 0, 0]
    assert vocabulary.unknown_symbols("zza\ud800") == {"z": 2, "\ud800": 1}


def test_symbols_outside_are_refused() -> None:
    vocabulary = Vocabulary.build("aab", "char")
    with pytest.raises(UserError) as caught:
        vocabulary.encode("ab\u2019\u2019\ud800", key="data.val_path")
    message = str(caught.value)
    assert message.startswith("data.val_path must ")
    assert all(part in message for part in ("3 of its 5", "60.00%", "U+2019", "U+D800", "data.max_vocab=2"))
    message.encode("utf-8")
    with pytest.raises(UserError, match=r"data\.path .* 12 of its 14 .* and 2 more"):
        Vocabulary.build("x\n", "word").encode("x a b c d e f g h i j k l\n")


@pytest.mark.parametrize(
    ("limit", "symbols"),
    [
        (2, (UNKNOWN, END_OF_LINE)),
        (3, (UNKNOWN, "a", END_OF_LINE)),
        (4, ("a", "b", END_OF_LINE, "c")),
        (5, ("a", "b", END_OF_LINE, "c")),
        (None, ("a", "b", END_OF_LINE, "c")),
    ],
)
def test_limit_counts_the_unknown_symbol_and_keeps_line_ends(limit, symbols) -> None:
    vocabulary = Vocabulary.build("a a a b b c", "word", max_vocab=limit)
    assert vocabulary.symbols == symbols
    assert sum(vocabulary.counts) == 7


def test_limit_that_fits_needs_no_unknown() -> None:
    assert not Vocabulary.build("abc", "char", max_vocab=3).has_unknown
    assert Vocabulary.build("abc", "char", max_vocab=3, need_unknown=True).symbols == (UNKNOWN, "a", "b")


def test_lower_case_and_normal_forms() -> None:
    vocabulary = Vocabulary.build("The CAT the cat\n", "word", lowercase=True)
    assert vocabulary.symbols == ("cat", "the", END_OF_LINE)
    assert vocabulary.counts == (2, 2, 1)
    assert vocabulary.decode(vocabulary.encode("THE Cat\n")) == "the cat\n"
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        text = "é ﬁ e\u0301 \u212b"
        vocabulary = Vocabulary.build(text, "char", normalize=form)
        assert vocabulary.decode(vocabulary.encode(text)) == unicodedata.normalize(form, text)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"level": "line"}, "level"),
        ({"min_count": 0}, "min_count"),
        ({"min_count": 1.5}, "min_count"),
        ({"min_count": 9}, "min_count"),
        ({"level": "word", "min_count": 9}, "min_count"),
        ({"max_vocab": 1}, "max_vocab"),
        ({"max_vocab": True}, "max_vocab"),
        ({"normalize": "nfc"}, "normalize"),
        ({"lowercase": 1}, "lowercase"),
        ({"train_text": ""}, "path"),
        ({"unknown_word": "<unk>"}, "unknown_word"),
        ({"level": "word", "unknown_word": "a b"}, "unknown_word"),
        ({"level": "word", "unknown_word": ""}, "unknown_word"),
        ({"level": "word", "unknown_word": 3}, "unknown_word"),
    ],
)
def test_bad_options_are_refused(options: dict, key: str) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must"):
        Vocabulary.build(**{"train_text": "some text", "level": "char", **options})


@pytest.mark.parametrize("level", ["char", "word"])
def test_checkpoint_round_trip(level: str) -> None:
    vocabulary = Vocabulary.build("b a \ud800 b\n", level, min_count=2, lowercase=True, normalize="NFC")
    state = vocabulary.to_dict()
    assert {type(value) for value in state.values()} <= {str, bool, list, type(None)}
    assert {type(item) for item in state["counts"]} == {int}
    again = Vocabulary.from_dict(state)
    assert again == vocabulary
    assert again.sha256 == vocabulary.sha256
    assert again.encode("b x\n").tolist() == vocabulary.encode("b x\n").tolist()


def test_digest_depends_on_everything() -> None:
    texts = ("ab", "aab", "ba\n")
    built = [
        Vocabulary.build(text, level, lowercase=low)
        for text in texts
        for level in ("char", "word")
        for low in (0 > 1, 1 > 0)
    ]
    assert len({vocabulary.sha256 for vocabulary in built}) == len(built)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"extra": 1}, "keys"),
        ({"level": "line"}, "level"),
        ({"level": ["word"]}, "level"),
        ({"symbols": ("a",)}, "symbols"),
        ({"symbols": []}, "symbols"),
        ({"symbols": ["", "\n", "b", 3]}, "symbols"),
        ({"symbols": ["", "\n", "b", "b"]}, "twice"),
        ({"symbols": ["\n", "", "a", "b"]}, "symbol 0"),
        ({"symbols": ["<unk>", "\n", "b", "a"]}, "symbol 0"),
        ({"symbols": ["", "\n", "b", "a b"]}, "'a b' is no symbol"),
        ({"symbols": ["", "c", "b", "a"]}, "end of line"),
        ({"level": "char", "symbols": ["", "\n", "b", "ab"]}, "'ab' is no symbol"),
        ({"has_unknown": False}, "'' is no symbol"),
        ({"unknown_word": "a b"}, "unknown_word"),
        ({"unknown_word": 7}, "unknown_word"),
        ({"level": "char", "unknown_word": "<unk>"}, "unknown_word"),
        ({"tokenizer": "{}"}, "tokenizer"),
        ({"tokenizer": None}, "tokenizer"),
        ({"level": "bpe"}, "tokenizer"),
        ({"level": "byte"}, "no unknown symbol"),
        ({"level": "byte", "has_unknown": False}, "256 bytes"),
        ({"has_unknown": 1}, "has_unknown"),
        ({"counts": [1, 2]}, "2 counts"),
        ({"counts": [1, 2, 3, -1]}, "counts"),
        ({"counts": [1, 2, 3, True]}, "counts"),
        ({"normalize": "x"}, "normalize"),
        ({"lowercase": None}, "lowercase"),
    ],
)
def test_damaged_checkpoints_are_refused(change: dict, reason: str) -> None:
    state = Vocabulary.build("b b a a\n\n\n", "word", need_unknown=True).to_dict()
    with pytest.raises(UserError, match=f"checkpoint's vocabulary is damaged: .*{reason}"):
        Vocabulary.from_dict({**state, **change})


@pytest.mark.parametrize("state", [None, [], {"level": "char"}])
def test_no_vocabulary_is_refused(state) -> None:
    with pytest.raises(UserError, match="damaged"):
        Vocabulary.from_dict(state)


def test_unigram_loss_is_the_closed_form() -> None:
    vocabulary = Vocabulary.build("aaab", "char")
    assert vocabulary.unigram_loss([1, 2]) == pytest.approx(-(math.log(4 / 6) + 2 * math.log(2 / 6)) / 3, rel=1e-12)
    uniform = Vocabulary.build("abcd" * 500, "char")
    assert uniform.unigram_loss([1, 1, 1, 2]) == pytest.approx(math.log(4), rel=1e-12)
    unknown = Vocabulary.build("aab", "char", need_unknown=True)
    assert unknown.unigram_loss([1, 0, 0]) == pytest.approx(math.log(6), rel=1e-12)
    with pytest.raises(UserError, match="ids must"):
        vocabulary.unigram_loss([0, 0])


@pytest.mark.parametrize("ids", [[-1], [0, 2], np.array([200], dtype=np.uint8)])
def test_ids_out_of_range_are_refused(ids) -> None:
    with pytest.raises(IndexError):
        Vocabulary.build("ab", "char").decode(ids)


def test_ids_do_not_depend_on_the_hash_seed() -> None:
    folder = str(Path(__file__).resolve().parent.parent / "tbptt")
    program = (
        "import sys, types\n"
        "package = types.ModuleType('tbptt')\n"  # stands in for the real one, which takes seconds to import torch
        f"package.__path__ = [{folder!r}]\n"
        "sys.modules['tbptt'] = package\n"
        "from tbptt.text import Vocabulary\n"
        "text = ' '.join(f'w{i * i % 97} w{i % 31}' for i in range(2000)) + '\\n'\n"
        "for level in ('char', 'word'):\n"
        "    v = Vocabulary.build(text, level, max_vocab=9)\n"
        "    print(v.sha256, v.encode(text).tobytes().hex()[:200])\n"
    )
    outputs = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
