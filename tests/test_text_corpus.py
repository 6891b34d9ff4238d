from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from text_files import LINES, PARTS, text_of, texts_of, whole, write

from tbptt.errors import UserError
from tbptt.streams import WindowLoader
from tbptt.text import Options, read_corpus
from tbptt.text.vocabulary import END_OF_LINE, UNKNOWN

FRACTIONS = [(0.05, 0.05), (0.0, 0.1), (0.1, 0.0), (0.0, 0.0), (0.3, 0.6), (0.333, 0.5)]


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize("fractions", FRACTIONS)
def test_parts_are_contiguous(level: str, fractions: tuple[float, float], tmp_path: Path) -> None:
    text = LINES.replace("\n", "\r\n")[:-1] + "é"
    found = read_corpus(Options(level, val_fraction=fractions[0], test_fraction=fractions[1]), write(tmp_path, text))
    tokens = np.concatenate([found.tokens[part] for part in PARTS])
    assert np.array_equal(tokens, found.vocabulary.encode(text))
    for part, fraction in zip(PARTS[1:], fractions, strict=True):
        assert len(found.tokens[part]) == int(fraction * len(tokens))


@pytest.mark.parametrize("fractions", FRACTIONS)
@pytest.mark.parametrize("text", [LINES, LINES.replace("\n", "\r\n"), LINES[:-1], LINES.replace("\n", " ")])
def test_parts_of_words_begin_with_lines(fractions: tuple[float, float], text: str, tmp_path: Path) -> None:
    found = read_corpus(Options("word", val_fraction=fractions[0], test_fraction=fractions[1]), write(tmp_path, text))
    tokens = np.concatenate([found.tokens[part] for part in PARTS])
    assert np.array_equal(tokens, found.vocabulary.encode(text))
    end = found.vocabulary.symbols.index(END_OF_LINE)
    for part, fraction in zip(PARTS[1:], fractions, strict=True):
        size = int(fraction * len(tokens))
        if "\n" in text:
            assert abs(len(found.tokens[part]) - size) <= 6
        else:
            assert len(found.tokens[part]) == size
    if "\n" in text:
        assert all(found.tokens[part][-1] == end for part in PARTS if len(found.tokens[part]))


def test_word_cut_on_a_line_start_stays(tmp_path: Path) -> None:
    found = read_corpus(Options("word", val_fraction=0.2, test_fraction=0.1), write(tmp_path, "a b\n" * 10))
    assert texts_of(found) == ("a b\n" * 7, "a b\n" * 2, "a b\n")


def test_word_cut_stays_where_no_line_follows(tmp_path: Path) -> None:
    text = "aaaa bbbb cccc dddd eeee ffff"
    found = read_corpus(Options("word", val_fraction=0, test_fraction=0.5), write(tmp_path, text))
    assert texts_of(found) == ("aaaa bbbb cccc dddd", "", "<unk> <unk>\n")


def test_bpe_cut_moves_to_a_line(tmp_path: Path) -> None:
    options = Options("bpe", max_vocab=260, val_fraction=0.2, test_fraction=0.1)
    found = read_corpus(options, write(tmp_path, "abcd efg\n" * 30))
    assert texts_of(found) == ("abcd efg\n" * 21, "abcd efg\n" * 6, "abcd efg\n" * 3)


def test_tiny_parts_stay_in_training(tmp_path: Path) -> None:
    path = write(tmp_path, "aaabbbabab")
    found = read_corpus(Options("char", val_fraction=0.3, test_fraction=0.1), path)
    assert texts_of(found) == ("aaabbba", "bab", "")
    found = read_corpus(Options("char", val_fraction=0.1, test_fraction=0.3), path)
    assert texts_of(found) == ("aaabbba", "", "bab")
    found = read_corpus(Options("word"), write(tmp_path, "hello there\n", "short"))
    assert texts_of(found) == ("hello there\n", "", "")


def test_own_paths_take_nothing_off(tmp_path: Path) -> None:
    path, val, test = write(tmp_path, LINES), write(tmp_path, "line of text", "v"), write(tmp_path, "text of", "t")
    found = read_corpus(Options("char", val_fraction=0.7), path, val, test)
    assert texts_of(found) == (LINES, "line of text", "text of")
    assert found.source == f"{path}, {val}, {test}"
    found = read_corpus(Options("char", val_fraction=0.5, test_fraction=0.25), path, val)
    size = len(LINES) // 4
    assert texts_of(found) == (LINES[:-size], "line of text", LINES[-size:])


def test_digest_tells_where_the_parts_end(tmp_path: Path) -> None:
    path = write(tmp_path, "abcdé" * 4)
    first = read_corpus(Options("char", val_fraction=0.5, test_fraction=0.0), path)
    second = read_corpus(Options("char", val_fraction=0.0, test_fraction=0.5), path)
    assert len(first.sha256) == 64
    assert first.sha256 != second.sha256
    assert first.sha256 != whole("char", path, tmp_path / "cache").sha256
    assert first.vocabulary == second.vocabulary


def test_vocabulary_is_of_the_training_part(tmp_path: Path) -> None:
    path, val = write(tmp_path, "aab" * 7), write(tmp_path, "baZ", "v")
    found = read_corpus(Options("char", test_fraction=0), path, val)
    assert found.vocabulary.symbols == (UNKNOWN, "a", "b")
    assert found.vocabulary.counts == (0, 14, 7)
    assert found.tokens["validation"].tolist() == [2, 1, 0]
    assert found.card["parts"]["validation"] == {"tokens": 3, "unknown": 1, "documents": 0}
    assert not whole("char", path, tmp_path / "cache").vocabulary.has_unknown


def test_unseen_words_of_a_validation_file_are_unknown(words: Path, tmp_path: Path) -> None:
    val = write(tmp_path, "the cat barked on the mat\n", "v")
    found = read_corpus(Options("word", test_fraction=0), words, val)
    assert text_of(found, "validation") == "the cat <unk> on the mat\n"
    assert found.card["parts"]["validation"]["unknown"] == 1
    assert found.card["parts"]["train"]["unknown"] == 0


def test_literal_unknown_is_a_word_unless_said_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, "a <unk> b <eos> <unk>\n" * 3)
    found = whole("word", path, tmp_path / "cache")
    assert found.vocabulary.symbols == ("<unk>", END_OF_LINE, "<eos>", "a", "b")
    assert not found.vocabulary.has_unknown
    found = whole("word", path, tmp_path / "cache", unknown_word="<unk>")
    assert found.vocabulary.symbols == (UNKNOWN, END_OF_LINE, "<eos>", "a", "b")
    assert found.card["parts"]["train"] == {"tokens": 18, "unknown": 6, "documents": 0}
    assert text_of(found) == "a <unk> b <eos> <unk>\n" * 3


def test_large_vocabulary_keeps_the_most_frequent(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(200_000)]
    text = "\n".join(" ".join(words[begin : begin + 10]) for begin in range(0, len(words), 10))
    often = "".join(f"w{i} " * 2 for i in range(998)) + "\n"
    found = whole("word", write(tmp_path, f"{text}\n{often}"), tmp_path / "cache", max_vocab=1000)
    vocabulary = found.vocabulary
    assert len(vocabulary) == 1000
    assert vocabulary.symbols[:2] == (UNKNOWN, END_OF_LINE)
    assert set(vocabulary.symbols[2:]) == set(words[:998])
    assert vocabulary.counts[:3] == (200_000 - 998, 20_001, 3)
    assert found.tokens["train"].dtype == np.uint16
    assert len(whole("word", tmp_path / "text.txt", tmp_path / "cache").vocabulary) == 200_001


def test_options_of_the_vocabulary_reach_it(tmp_path: Path) -> None:
    path = write(tmp_path, "The CAT the cat \ufb01 x\n" * 2)
    found = whole("word", path, tmp_path / "cache", lowercase=True, normalize="NFKC", min_count=3)
    assert found.vocabulary.symbols == (UNKNOWN, "cat", "the", END_OF_LINE)
    assert dict(zip(found.vocabulary.symbols, found.vocabulary.counts, strict=True)) == {
        **Counter(the=4, cat=4),
        END_OF_LINE: 2,
        UNKNOWN: 4,
    }
    assert (found.vocabulary.lowercase, found.vocabulary.normalize) == (True, "NFKC")
    assert found.vocabulary.encode("THE \ufb01\n").tolist() == [2, 0, 3]


def test_nothing_left_of_the_training_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.min_count must leave some token"):
        whole("char", write(tmp_path, "abc"), tmp_path / "cache", min_count=2)


def test_two_characters_are_one_target(tmp_path: Path) -> None:
    found = read_corpus(Options("char", test_fraction=0), write(tmp_path, LINES), write(tmp_path, "li", "v"))
    loader = WindowLoader(torch.from_numpy(found.tokens["validation"]), 1, 7)
    assert loader.targets == 1
    assert [window.y.numel() for window in loader] == [1]


def test_only_the_newline_ends_a_line(tmp_path: Path) -> None:
    found = whole("word", write(tmp_path, "a b\u2028c d\x85e f\x0cg\n" * 200), tmp_path / "cache")
    assert set(found.vocabulary.symbols) == {*"abcdefg", END_OF_LINE}
    assert found.vocabulary.counts[found.vocabulary.symbols.index(END_OF_LINE)] == 200
    assert text_of(found) == "a b c d e f g\n" * 200


@pytest.mark.parametrize("key", ["val_path", "test_path"])
def test_part_without_training_file_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must .*data\.path"):
        read_corpus(Options("char"), **{key: write(tmp_path, LINES)})


@pytest.mark.parametrize(
    ("fractions", "key"),
    [
        ((-0.1, 0.1), "val"),
        ((1.0, 0.0), "val"),
        ((0.1, 1), "test"),
        ((0.5, 0.5), "val"),
        ((float("nan"), 0.1), "val"),
        ((0.1, "0.1"), "test"),
        ((True, 0.1), "val"),
    ],
)
def test_fractions_out_of_range_are_refused(fractions, key: str) -> None:
    with pytest.raises(UserError, match=rf"data\.{key}_fraction must"):
        Options("char", val_fraction=fractions[0], test_fraction=fractions[1])


def test_unknown_level_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.level must be one of byte, char, word, bpe.*did you mean word"):
        Options("words")


@pytest.mark.parametrize(("level", "title"), [("word", "English"), ("char", "source code")])
def test_embedded_text_by_level(level: str, title: str) -> None:
    found = read_corpus(Options(level))
    sizes = [len(found.tokens[part]) for part in PARTS]
    assert found.source.startswith("text of CPython 3.")
    assert title in found.source
    assert sizes[1] / sum(sizes) == pytest.approx(0.05, abs=0.001)
    assert sizes[2] / sum(sizes) == pytest.approx(0.05, abs=0.001)
    assert found.card["parts"]["validation"]["unknown"] / sizes[1] < 0.04
