import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest
from text_files import chunked, set_blocks, text_of, whole, write

from tbptt.text import Corpus, Options, read_corpus
from tbptt.text import documents as documents_module
from tbptt.text.documents import Documents

TITLE = r"^= .* =$"
BOOK = "= One =\nfirst\n\n = no title =\n= Two =\n= Three =\n\n\nlast = x =\n \t\nend\n\n"


def lines_of(text: str) -> list[tuple[int, str]]:
    """Where each line begins, and the line with its newline."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    return list(zip(itertools.accumulate([0, *map(len, lines)]), lines, strict=False))


def borders_of(text: str, separator: str) -> list[int]:
    """What `Documents` must find, in the plainest words."""
    found = [0] if text else []
    before = ""
    for place, line in lines_of(text):
        blank = line.endswith("\n") and not line.strip()
        if separator == "blank_line":
            begins = before.endswith("\n") and not before.strip() and not blank
        else:
            begins = separator != "file" and re.search(separator, line.removesuffix("\n")) is not None
        if begins and place:
            found.append(place)
        before = line
    return found


def split(pieces: list, separator: str) -> list[int]:
    found, position = [], 0
    for piece, begins in Documents(separator).split(pieces):
        found += [position + begin for begin in begins]
        position += len(piece)
    return found


def made(draw: random.Random) -> str:
    return "".join(
        draw.choices(["\n", "\n\n", " ", "a", "= b =", "\n= t =\n", "\r", "\u2028", "\t\n"], k=draw.randint(1, 25))
    )


@pytest.mark.parametrize("separator", ["blank_line", "file", TITLE, "t", r"^\s*$", "", r"^(?!a)", r"\n\n", r"(?<=\n)a"])
def test_borders_are_those_of_the_whole_text(separator: str) -> None:
    draw = random.Random(1)
    for text in [BOOK, BOOK[:-1], *(made(draw) for _ in range(60))]:
        expected = borders_of(text, separator)
        for places in [[], list(range(len(text))), *(draw.sample(range(len(text)), min(len(text), 2)) for _ in "abc")]:
            pieces = chunked(text, places)
            assert split(pieces, separator) == expected, (text, places)
        if text.isascii():
            pieces = [piece.encode() for piece in chunked(text, [len(text) // 3])]
            assert split(pieces, separator) == expected, text


def test_expressions_mean_the_same_in_bytes() -> None:
    text = "für\né\ncafé\n\xa0é\nund\n"
    for separator in ("[é]$", r"^\w$", "^.{3}$", r"(?i)^É", r"(?u)\s"):
        at = [text.encode()[: len(text[:place].encode())].decode() for place in borders_of(text, separator)]
        assert split([text.encode()], separator) == [len(before.encode()) for before in at]


def test_long_lines_are_looked_at_as_far_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "LONGEST", 20)
    text = "a\n" + "x" * 19 + "t" + "y" * 90 + "\nb\n" + "x" * 20 + "t" + "y" * 30 + "\nt\n\nc" + "z" * 50
    for size in (1, 7, 19, 20, 21, 300):
        pieces = chunked(text, list(range(0, len(text), size)))
        assert split(pieces, "t") == [0, 2, text.index("\nt\n") + 1]
        assert split(pieces, "blank_line") == [0, text.index("\n\nc") + 2]


def expected_words(text: str, separator: str) -> tuple[list[str], list[int]]:
    tokens, begins = [], []
    places = borders_of(text, separator)
    for begin, end in itertools.pairwise([*places, len(text)]):
        begins.append(len(tokens))
        for _, line in lines_of(text[begin:end]):
            tokens += [*line.split(), "\n"]
    return tokens, begins


def decoded_documents(found: Corpus, part: str = "train") -> list[str]:
    borders = found.borders[part]
    assert borders is not None
    assert borders.dtype == np.int64
    ids = found.tokens[part]
    return [found.vocabulary.decode(ids[a:b]) for a, b in itertools.pairwise([*borders.tolist(), len(ids)])]


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1 << 20])
@pytest.mark.parametrize("separator", ["blank_line", TITLE])
@pytest.mark.parametrize("text", [BOOK * 3, BOOK[:-1], "\n" + BOOK, BOOK + "tail"])
def test_borders_in_tokens(
    text: str, separator: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_blocks(monkeypatch, block)
    path = write(tmp_path, text)
    documents = [text[a:b] for a, b in itertools.pairwise([*borders_of(text, separator), len(text)])]
    for level, options in (("char", {}), ("byte", {}), ("bpe", {"max_vocab": 270, "min_count": 2})):
        found = whole(level, path, tmp_path / f"cache{block}", document_separator=separator, **options)
        assert decoded_documents(found) == documents
        assert found.card["parts"]["train"]["documents"] == len(documents)
    found = whole("word", path, tmp_path / f"cache{block}", document_separator=separator)
    tokens, begins = expected_words(text, separator)
    assert [found.vocabulary.symbols[i] for i in found.tokens["train"]] == tokens
    assert found.borders["train"].tolist() == begins


def test_borders_follow_lower_case_and_normal_forms(tmp_path: Path) -> None:
    text = "İİİ ﬁ\n\nB\u0301İ\r\n\r\n\u0130x\n"
    path = write(tmp_path, text)
    settled = text.replace("\r\n", "\n").lower()
    assert len(settled) != len(text.replace("\r\n", "\n"))
    options = {"document_separator": "blank_line", "lowercase": True, "newlines": "universal"}
    for level in ("char", "bpe"):
        more = {"max_vocab": 260} if level == "bpe" else {}
        found = whole(level, path, tmp_path / "cache", **options, **more)
        assert decoded_documents(found) == [
            settled[a:b] for a, b in itertools.pairwise([*borders_of(settled, "blank_line"), len(settled)])
        ]
    found = whole("char", path, tmp_path / "cache", **options, normalize="NFKC")
    assert decoded_documents(found)[0] == "i̇i̇i̇ fi\n\n"


def test_files_are_documents(tmp_path: Path) -> None:
    for name, text in (("1", "one\n\n\n"), ("2", ""), ("3", "three"), ("4", "\n"), ("5", "= 5 =\nx\n= 5 =\n")):
        write(tmp_path / "t", text, name)
    for level, documents in (("char", ["one\n\n\n", "three", "\n"]), ("word", ["one\n\n\n", "three\n", "\n"])):
        found = whole(level, tmp_path / "t", tmp_path / "c", document_separator="file")
        assert decoded_documents(found) == [*documents, "= 5 =\nx\n= 5 =\n"]
        found = whole(level, tmp_path / "t", tmp_path / "c", document_separator=TITLE)
        assert decoded_documents(found) == [*documents, "= 5 =\nx\n", "= 5 =\n"]
    # A blank line ends no document of the next file.
    found = whole("char", tmp_path / "t", tmp_path / "c", document_separator="blank_line")
    assert decoded_documents(found) == ["one\n\n\n", "three", "\n", "= 5 =\nx\n= 5 =\n"]


def test_no_borders_unless_asked_for(tmp_path: Path) -> None:
    found = whole("char", write(tmp_path, BOOK), tmp_path / "c")
    assert found.borders == {"train": None, "validation": None, "test": None}
    assert not list(found.folder.glob("*borders*"))


@pytest.mark.parametrize("level", ["char", "word", "byte", "bpe"])
def test_split_by_documents(level: str, tmp_path: Path) -> None:
    text = "".join(f"doc {i}\n" + "x\n" * (i % 5) + "\n" for i in range(40))
    more = {"max_vocab": 280} if level == "bpe" else {}
    options = Options(
        level, document_separator="blank_line", split="documents", val_fraction=0.1, test_fraction=0.2, **more
    )
    found = read_corpus(options, write(tmp_path, text), cache_dir=tmp_path / "c")
    parts = [decoded_documents(found, part) for part in ("train", "validation", "test")]
    assert list(map(len, parts)) == [28, 4, 8]
    if level != "word":  # where a document's number may be unknown
        assert [*parts[0], *parts[1], *parts[2]] == re.findall(r"doc.*\n(?:x\n)*\n", text)
    assert all(document.startswith("doc") for part in parts for document in part)


def test_split_by_tokens_keeps_borders_within_a_part(tmp_path: Path) -> None:
    text = "ab\n\n" * 25
    options = Options("char", document_separator="blank_line", val_fraction=0.2, test_fraction=0.1)
    found = read_corpus(options, write(tmp_path, text), cache_dir=tmp_path / "c")
    assert found.borders["train"].tolist() == list(range(0, 70, 4))
    assert found.borders["validation"].tolist() == list(range(2, 20, 4))
    assert found.borders["test"].tolist() == [2, 6]
    assert text_of(found, "validation") == "\n\n" + "ab\n\n" * 4 + "ab"


def test_few_documents_stay_in_training(tmp_path: Path) -> None:
    options = Options("char", document_separator="blank_line", split="documents", val_fraction=0.4, test_fraction=0.4)
    found = read_corpus(options, write(tmp_path, "one\n\ntwo\n"), cache_dir=tmp_path / "c")
    assert [len(found.tokens[part]) for part in ("train", "validation", "test")] == [9, 0, 0]
