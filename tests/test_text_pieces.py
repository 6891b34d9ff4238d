import random
import unicodedata

import pytest
from text_files import LINES, chunked, set_blocks, text_of, whole, write

from tbptt.errors import UserError
from tbptt.text import Options, Vocabulary, read_corpus
from tbptt.text import numbering as numbering_module
from tbptt.text import pieces as pieces_module
from tbptt.text.pieces import settle
from tbptt.text.symbols import FORMS

SIGMAS = [
    "ΑΣ",
    "ΟΔΥΣΣΕΥΣ ΟΔΟΣ, Σ",
    "ΑΣ" + "." * 90 + "\u0391",
    "ΑΣ" + "'\u0301" * 40,
    "\u0391\U0001d6ba:::\U0001d6ba",
    "x1Σ\u00adΣ2",
]
MARKS = [
    "a\u0323\u0301\u0327 e\u0301 o\u0302\u0323 \u0301 initial",
    "a" + "\u0301\u0323" * 40 + "b" + "\u0327",
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한 \uffa1\uffc2",
    "क\u093c ল\u09c7\u09be \u0b47\u0b56 \u1025\u102e \u30ab\u3099\uff76\uff9e",
    "\u212b ﬁ ﷺ ½ \u2126 İI\u0307 ẞ ǅ \u03d4 \u1e9b\u0323",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd",
    "\ud800 lone \udfff \0 nul \x7f",
    "中文字元沒有空格" * 9 + "\u0301",
]
NEWLINES = ["a\r\nb\rc\nd\r", "\r\r\n\n\r", "\r", "\r\n" * 5, "no end", "\r\n\r", "x\r" * 7]


def whole_text(text: str, newlines: str, form: str | None, lowercase: bool) -> str:
    if newlines == "universal":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if form is not None:
        text = unicodedata.normalize(form, text)
    if lowercase:
        text = text.lower()
    return text if form is None else unicodedata.normalize(form, text)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("newlines", ["keep", "universal"])
def test_settled_text_does_not_depend_on_the_pieces(newlines: str, form: str | None, lowercase: bool) -> None:
    draw = random.Random(4)
    for text in [*SIGMAS, *MARKS, *NEWLINES, "".join(SIGMAS), "".join(MARKS), "".join(NEWLINES)]:
        expected = whole_text(text, newlines, form, lowercase)
        cuts = [list(range(len(text))), [], *([place] for place in range(len(text)))]
        cuts += [draw.sample(range(len(text)), min(len(text), 3)) for _ in range(5)]
        for places in cuts:
            settled = "".join(settle(chunked(text, places), newlines, form, lowercase))
            assert settled == expected, (text, places)


@pytest.mark.parametrize("unit", [*MARKS, *SIGMAS, "abc", "가각힣", "ΑΣ-", "ΑΣ.Σ'"])
@pytest.mark.parametrize("form", [None, "NFC", "NFKC", "NFKD"])
def test_long_lines_without_white_space_are_the_same_in_pieces(unit: str, form: str | None) -> None:
    unit = "".join(unit.split())
    text = "b" + (unit * 900)[:900]
    for size in (7, 299):
        pieces = settle(chunked(text, list(range(0, len(text), size))), "keep", form, True)
        assert "".join(pieces) == whole_text(text, "keep", form, True)


@pytest.mark.parametrize(
    ("unit", "form"), [("abc", None), ("abc", "NFC"), ("하", "NFD"), ("中文", "NFKC"), ("ΑΩ", None)]
)
def test_long_lines_are_not_held(unit: str, form: str | None) -> None:
    pieces = list(settle([unit * 100] * 50, "keep", form, True))
    assert len(pieces) >= 50


def test_marks_without_end_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "LONGEST", 300)
    pieces = list(settle(["\u0301" * 100] * 30, "keep", "NFC", False))
    assert "".join(pieces) == "\u0301" * 3000
    assert max(map(len, pieces)) <= 400


def test_every_place_where_text_is_cut_is_safe() -> None:
    alone = pieces_module._stands_alone
    drawn = random.Random(6).sample(range(0x80, 0x30000), 3000)
    for code in [*range(0x250), *range(0x370, 0x600), *range(0x1E00, 0x2000), *drawn]:
        character = chr(code)
        if not alone(character):
            continue
        # Lower case must not turn it into something that joins what comes before.
        assert alone(character.lower()[0]), hex(code)
        for form in FORMS[1:]:
            for before in ("a", "\u1100", "e\u0301", "\u09c7", character):
                apart = unicodedata.normalize(form, before) + unicodedata.normalize(form, character)
                assert unicodedata.normalize(form, before + character) == apart, (hex(code), before)


@pytest.mark.parametrize("newlines", ["keep", "universal"])
def test_newlines_in_a_corpus(newlines: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_blocks(monkeypatch, 2)
    text = "ab\r\ncd\r\n\r\n\ref\ngh\r"
    found = whole("char", write(tmp_path, text), tmp_path / "cache", newlines=newlines)
    assert text_of(found) == (text if newlines == "keep" else "ab\ncd\n\n\nef\ngh\n")
    # "\r" is white space at level word, and ends no line unless it is told to.
    found = whole("word", tmp_path / "text.txt", tmp_path / "cache", newlines=newlines)
    assert text_of(found) == ("ab\ncd\n\nef\ngh\n" if newlines == "keep" else "ab\ncd\n\n\nef\ngh\n")


def test_only_carriage_returns(tmp_path) -> None:
    path = write(tmp_path, "one two\rthree\r" * 50)
    found = whole("word", path, tmp_path / "cache", newlines="universal")
    assert found.vocabulary.symbols == ("\n", "one", "three", "two")
    assert found.vocabulary.counts == (100, 50, 50, 50)
    assert found.card["facts"]["data.path"]["longest_line"] == 7
    found = whole("word", path, tmp_path / "cache")
    assert found.vocabulary.counts == (50, 50, 50, 1)


@pytest.mark.parametrize("level", ["char", "word"])
@pytest.mark.parametrize("block", [1, 2, 3, 5, 64])
def test_bytes_cut_within_characters(level: str, block: int, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é\u2028 \U0001f600日本\0 e\u0301\n\u3000x\u00a0y" * 5
    set_blocks(monkeypatch, block)
    found = whole(level, write(tmp_path, text), tmp_path / "cache")
    built = Vocabulary.build(text, level)
    assert found.vocabulary == built
    assert found.tokens["train"].tolist() == built.encode(text).tolist()


def test_words_longer_than_the_limit_are_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering_module, "LONGEST_WORD", 50)
    fine, long = "ab " + "x" * 50 + " cd\n", "ab " + "y" * 51 + " cd\n"
    for block in (7, 1 << 20):
        set_blocks(monkeypatch, block)
        assert text_of(whole("word", write(tmp_path, fine), tmp_path / f"cache{block}")) == fine
        with pytest.raises(UserError) as caught:
            whole("word", write(tmp_path, long), tmp_path / f"cache{block}")
        assert str(caught.value) == (
            f"data.path must hold words of at most 50 characters between white space, but it is '{'y' * 20}...'; "
            "read it with data=char or data=byte."
        )
        assert text_of(whole("char", tmp_path / "text.txt", tmp_path / f"cache{block}")) == long


def test_long_word_of_a_validation_file_names_its_key(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering_module, "LONGEST_WORD", 50)
    with pytest.raises(UserError, match=r"data\.val_path must hold words"):
        read_corpus(Options("word"), write(tmp_path, LINES), write(tmp_path, "z" * 99, "v"), cache_dir=tmp_path / "c")
