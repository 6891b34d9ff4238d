"""What must hold of any text, in any pieces, and of any streams and windows."""

import itertools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_files import chunked

from tbptt.metrics import IGNORED
from tbptt.streams import WindowLoader
from tbptt.text import Options, Vocabulary, read_corpus
from tbptt.text import source as source_module
from tbptt.text import spool as spool_module
from tbptt.text.documents import Documents
from tbptt.text.numbering import numbering
from tbptt.text.pieces import settle
from tbptt.text.symbols import FORMS, prepare

# Characters that decide something, among any others.
SPECIAL = (
    "aA \n\r\t\0\u0301\u0327\u1100\u1161\u11a8\ud800\udfff\x85\u2028\x1c\xa0Σ\u03c3İI\u0131'.\xad"
    "\U0001d6baﬁé가日\U0001f600\u200d\ufeff<>"
)
TEXTS = st.text(st.one_of(st.sampled_from(SPECIAL), st.characters(exclude_categories=())), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=6)
FAST = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


def cut(text: str, places: list[int]) -> list[str]:
    return chunked(text, [place for place in places if place < len(text)])


@settings(FAST, max_examples=600)
@given(TEXTS, CUTS, st.sampled_from(["keep", "universal"]), st.sampled_from(FORMS), st.booleans())
def test_settled_text_is_that_of_the_whole(text, places, newlines, form, lowercase) -> None:
    expected = text.replace("\r\n", "\n").replace("\r", "\n") if newlines == "universal" else text
    settled = "".join(settle(cut(text, places), newlines, form, lowercase))
    assert settled == prepare(expected, lowercase, form)
    assert "".join(settle(list(text), newlines, form, lowercase)) == settled


@settings(FAST, max_examples=300)
@given(TEXTS.filter(bool), CUTS, st.sampled_from(["char", "word", "byte"]), st.booleans())
def test_numbers_in_pieces_are_those_of_the_whole(text, places, level, documents) -> None:
    numbers = numbering(level)
    pieces: list = cut(text, places)
    if level == "byte":
        pieces = [piece.encode("utf-8", "surrogatepass") for piece in pieces]
    found, begins = [], []
    for piece, at in Documents("blank_line" if documents else None).split(pieces):
        ids, borders = numbers.number(piece, at)
        begins += [len(found) + border for border in borders]
        found += ids.tolist()
    found += numbers.end().tolist()
    vocabulary = Vocabulary.of_bytes(range(256)) if level == "byte" else Vocabulary.build(text, level)
    assert vocabulary.places(numbers.symbols)[found].tolist() == vocabulary.encode(text).tolist()
    assert begins == sorted(set(begins))
    assert begins[:1] == [0] * documents
    assert all(begin < len(found) for begin in begins)


@settings(FAST, max_examples=120)
@given(TEXTS)
def test_characters_and_bytes_come_back(text) -> None:
    vocabularies = [Vocabulary.of_bytes(range(256)), Vocabulary.build(text or "a", "char")]
    for vocabulary in vocabularies:
        assert vocabulary.decode(vocabulary.encode(text)) == text
    if text:
        assert dict(zip(vocabularies[1].symbols, vocabularies[1].counts, strict=True)) == Counter(text)


@settings(FAST, max_examples=60)
@given(
    st.text(st.sampled_from("ab \n\u0301Σé日\u2028\U0001f600"), min_size=2, max_size=80).filter(str.strip),
    st.sampled_from(["byte", "char", "word", "bpe"]),
    st.integers(1, 40),
    st.sampled_from([(0.0, 0.0), (0.3, 0.2)]),
    st.sampled_from([None, "blank_line"]),
)
def test_stored_tokens_are_those_of_the_vocabulary(text, level, block, fractions, separator) -> None:
    before = source_module.BLOCK, spool_module.BLOCK
    options = Options(
        level,
        max_vocab=260 if level == "bpe" else None,
        document_separator=separator,
        val_fraction=fractions[0],
        test_fraction=fractions[1],
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_bytes(text.encode())
        source_module.BLOCK = spool_module.BLOCK = block
        try:
            found = read_corpus(options, f"{folder}/text", cache_dir=f"{folder}/cache")
        finally:
            source_module.BLOCK, spool_module.BLOCK = before
        tokens = np.concatenate(list(found.tokens.values()))
        vocabulary = found.vocabulary
        if level == "bpe":
            assert "".join(map(vocabulary.decode, found.tokens.values())) == text
        else:
            assert np.array_equal(tokens, vocabulary.encode(text))
        counts = np.bincount(found.tokens["train"], minlength=len(vocabulary)).tolist()
        assert counts == list(vocabulary.counts)


@settings(FAST, max_examples=150)
@given(st.data())
def test_every_pair_within_a_document_is_a_target_once(data) -> None:
    size = data.draw(st.integers(4, 90))
    batch, window = data.draw(st.integers(1, size // 2)), data.draw(st.integers(1, 25))
    borders = sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=size)))
    tokens = torch.arange(size, dtype=torch.uint8)
    loader = WindowLoader(tokens, batch, window, reset="document", borders=np.array(borders, dtype=np.int64))
    length = size // batch
    found = []
    for part in loader:
        pairs = zip(part.x.flatten().tolist(), part.y.flatten().tolist(), strict=True)
        found += [pair for pair in pairs if pair[1] != IGNORED]
        assert part.targets == (part.y != IGNORED).sum()
    streams = [range(begin, begin + length) for begin in range(0, batch * length, length)]
    pairs = [pair for stream in streams for pair in itertools.pairwise(stream)]
    assert sorted(found) == [pair for pair in pairs if pair[1] not in borders]
    assert loader.targets == len(found)
    assert loader.spare == size - batch * length
