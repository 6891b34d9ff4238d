import json
import logging
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from text_files import LINES, PARTS, assert_equal_corpora, counted, leftovers, set_blocks, text_of, whole, write

from tbptt.errors import UserError
from tbptt.text import Cache, Options, read_corpus
from tbptt.text import store as store_module

TEXT = LINES.replace("7\n", "7\n\n") + "é"
FULL = Options("word", document_separator="blank_line", max_vocab=300)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    # Runs of other tests may have set another level.
    caplog.set_level(logging.INFO, "tbptt")


@pytest.mark.parametrize(("types", "dtype"), [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65537, "uint32")])
def test_ids_lie_in_the_smallest_type(types: int, dtype: str, tmp_path: Path) -> None:
    path = write(tmp_path, " ".join(f"w{i}" for i in range(types - 1)) + "\n")
    found = whole("word", path, tmp_path / "cache")
    assert len(found.vocabulary) == types
    assert found.tokens["train"].dtype == np.load(found.folder / "train.npy").dtype == np.dtype(dtype)
    assert found.vocabulary.decode(found.tokens["train"]) == path.read_text()
    assert np.array_equal(np.load(found.folder / "train.npy"), found.tokens["train"])


def test_store_describes_itself(tmp_path: Path) -> None:
    found = read_corpus(FULL, write(tmp_path, TEXT), cache_dir=tmp_path / "cache")
    card = json.loads((found.folder / "store.json").read_text())
    assert card == json.loads(json.dumps(found.card))
    assert card["options"] == FULL.to_dict()
    assert card["sha256"] == found.sha256
    assert card["facts"]["data.path"]["characters"] == len(TEXT)
    assert {part: sizes["tokens"] for part, sizes in card["parts"].items()} == {
        part: len(found.tokens[part]) for part in PARTS
    }
    assert {part: sizes["documents"] for part, sizes in card["parts"].items()} == {
        part: len(found.borders[part]) for part in PARTS
    }
    for part in PARTS:
        assert card["parts"][part]["unknown"] == (found.tokens[part] == 0).sum()
    assert sorted(card["files"]) == sorted({file.name for file in found.folder.iterdir()} - {"store.json"})
    # The cache may be shared: others get the rights that they have for any new folder.
    (tmp_path / "other").mkdir()
    assert found.folder.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_store_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, path = counted(monkeypatch), write(tmp_path, TEXT)
    first = read_corpus(FULL, path, cache_dir=tmp_path / "cache")
    times = {file: file.stat().st_mtime_ns for file in first.folder.iterdir()}
    second = read_corpus(FULL, path, cache_dir=tmp_path / "cache")
    assert calls() == 1
    assert_equal_corpora(first, second)
    assert first.folder == second.folder
    assert {file: file.stat().st_mtime_ns for file in second.folder.iterdir()} == times
    assert not list(leftovers(tmp_path / "cache"))


def test_content_is_the_key_and_not_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, path = counted(monkeypatch), write(tmp_path, TEXT)
    first = whole("char", path, tmp_path / "cache")
    other = whole("char", write(tmp_path, TEXT, "other/name.md"), tmp_path / "cache")
    assert calls() == 1
    assert other.folder == first.folder
    assert other.source == f"{tmp_path}/other/name.md"
    assert whole("char", [str(path)], tmp_path / "cache").folder == first.folder


def test_time_and_size_are_not_the_key(tmp_path: Path) -> None:
    path = write(tmp_path, "abab")
    before = path.stat()
    assert text_of(whole("char", path, tmp_path / "cache")) == "abab"
    path.write_text("bbba")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert text_of(whole("char", path, tmp_path / "cache")) == "bbba"
    assert len([item for item in (tmp_path / "cache").iterdir() if item.is_dir()]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": "latin-1"},
        {"newlines": "universal"},
        {"lowercase": True},
        {"normalize": "NFC"},
        {"min_count": 2},
        {"max_vocab": 20},
        {"document_separator": "file"},
        {"text_column": "body"},
        {"val_fraction": 0.1},
        {"test_fraction": 0.1},
        {"level": "byte"},
    ],
)
def test_every_option_is_in_the_key(change: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, path = counted(monkeypatch), write(tmp_path, TEXT)
    options = {"level": "char", **change}
    read_corpus(Options("char"), path, cache_dir=tmp_path / "cache")
    read_corpus(Options(**options), path, cache_dir=tmp_path / "cache")
    assert calls() == 2


def test_which_part_a_file_is_of_is_in_the_key(tmp_path: Path) -> None:
    one, two = write(tmp_path, "abab", "1"), write(tmp_path, "ba", "2")
    options = Options("char", val_fraction=0, test_fraction=0)
    found = [
        read_corpus(options, *paths, cache_dir=tmp_path / "cache").folder
        for paths in ((one, two), (two, one), (one, None, two), ([one, two],), (one, two, two))
    ]
    assert len(set(found)) == 5


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "flip":
        data[random.Random(len(data)).randrange(len(data))] ^= 4
    elif how == "cut":
        del data[-1:]
    elif how == "longer":
        data += b"\0"
    elif how == "empty":
        data.clear()
    file.unlink()
    if how != "gone":
        file.write_bytes(data)


@pytest.mark.parametrize("how", ["flip", "cut", "longer", "empty", "gone"])
@pytest.mark.parametrize(
    "name", ["store.json", "vocabulary.json", "train.npy", "validation.npy", "train.borders.npy", "test.borders.npy"]
)
def test_damaged_stores(name: str, how: str, tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, TEXT)
    first = read_corpus(FULL, path, cache_dir=tmp_path / "cache")
    kept = shutil.copytree(first.folder, tmp_path / "kept")
    damage(kept / name, how)
    harmless = (name, how) == ("store.json", "cut")  # the last byte is a newline
    if not harmless and (name, how) != ("store.json", "gone"):
        with pytest.raises(UserError, match=r"data\.path must name a store as prepare.py wrote it.*prepare it again"):
            read_corpus(FULL, str(kept))
    calls = counted(monkeypatch)
    damage(first.folder / name, how)
    again = read_corpus(FULL, path, cache_dir=tmp_path / "cache")
    assert_equal_corpora(again, read_corpus(FULL, path, cache_dir=tmp_path / "new"))
    assert calls() == 1 + (not harmless)
    assert ("is made again" in caplog.text) == (not harmless)
    assert not list(leftovers(tmp_path / "cache"))


def test_no_byte_of_the_card_can_change_unseen(tmp_path: Path) -> None:
    folder = read_corpus(FULL, write(tmp_path, TEXT), cache_dir=tmp_path / "cache").folder
    card = (folder / "store.json").read_bytes()
    refused = 0
    for place in range(0, len(card), 41):
        data = bytearray(card)
        data[place] ^= 1
        (folder / "store.json").write_bytes(data)
        try:
            assert read_corpus(FULL, str(folder)).card == json.loads(card)  # white space of another kind
        except UserError as error:
            assert "prepare it again" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 25


@pytest.mark.parametrize(
    "card",
    [
        "[]",
        "{}",
        "null",
        '{"format": 1}',
        '{"format": 1, "files": 3}',
        '{"format": 99, "files": {}}',
        "\ud800",
        "[" * 9,
    ],
)
def test_foreign_cards(card: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, TEXT)
    first = whole("char", path, tmp_path / "cache")
    (first.folder / "store.json").write_bytes(card.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"data\.path must name a store"):
        whole("char", str(first.folder), tmp_path / "cache")
    assert_equal_corpora(whole("char", path, tmp_path / "cache"), whole("char", path, tmp_path / "new"))
    assert "is made again" in caplog.text


def test_store_as_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, TEXT)
    first = read_corpus(FULL, path, cache_dir=tmp_path / "cache")
    moved = shutil.copytree(first.folder, tmp_path / "moved")
    path.unlink()
    calls = counted(monkeypatch)
    for name in (str(moved), moved, f"{moved}/"):
        found = read_corpus(FULL, name, cache_dir=tmp_path / "none")
        assert_equal_corpora(found, first)
        assert found.source == first.source
    assert calls() == 0
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match=r"data\.path must stand alone .* leave out data\.val_path"):
        read_corpus(FULL, str(moved), str(moved))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"max_vocab": 301}, "max_vocab"),
        ({"max_vocab": None}, "max_vocab"),
        ({"lowercase": True}, "lowercase"),
        ({"document_separator": "file"}, "document_separator"),
        ({"level": "char"}, "level"),
        ({"unknown_word": "<unk>"}, "unknown_word"),
        ({"val_fraction": 0.25}, "val_fraction"),
    ],
)
def test_store_of_other_options_is_refused(change: dict, key: str, tmp_path: Path) -> None:
    first = read_corpus(FULL, write(tmp_path, TEXT), cache_dir=tmp_path / "cache")
    given = FULL.to_dict()[key]
    with pytest.raises(UserError) as caught:
        read_corpus(Options(**{**FULL.to_dict(), **change}), str(first.folder))
    assert str(caught.value) == (
        f"data.{key} must be {given!r}, as the store {first.folder} has it, but it is {change[key]!r}; set it so."
    )


def test_folder_of_texts_with_such_a_file(tmp_path: Path) -> None:
    write(tmp_path / "t", "some", "store.json")
    write(tmp_path / "t", "text", "text")
    assert text_of(whole("char", str(tmp_path / "t"), tmp_path / "cache")) == "sometext"


@pytest.mark.parametrize("block", [1, 5, 64])
@pytest.mark.parametrize("level", ["byte", "char", "word", "bpe"])
def test_store_does_not_depend_on_blocks(level: str, block: int, tmp_path: Path, monkeypatch) -> None:
    more = {"max_vocab": 300} if level == "bpe" else {}
    for size in (63, 64, 65, 128, 777):
        text = ("é\n\nab \U0001f600" * 99).encode()[:size].decode(errors="ignore")
        for tail in ("", "\n"):
            path = write(tmp_path, text + tail)
            options = Options(level, document_separator="blank_line", **more)
            expected = read_corpus(options, path, cache_dir=tmp_path / "one")
            with monkeypatch.context() as patch:
                set_blocks(patch, block)
                found = read_corpus(options, path, cache_dir=tmp_path / f"blocks{block}")
            assert_equal_corpora(found, expected)


def test_one_long_line(tmp_path: Path) -> None:
    unit = "wörd another <unk> 日本 "
    text = unit * (6 * 10**6 // len(unit.encode()))
    path = write(tmp_path, text)
    for level in ("char", "word", "byte"):
        found = whole(level, path, tmp_path / "cache", document_separator="blank_line")
        assert np.array_equal(found.tokens["train"], found.vocabulary.encode(text))
        assert found.borders["train"].tolist() == [0]
    assert found.card["facts"]["data.path"]["longest_line"] == len(text.encode())


def test_long_line_of_bpe_is_cut_alike_in_any_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ab cde\n" + "".join(random.Random(8).choices("abcde ", k=50_000)) + "\n" + "xyz" * 9000
    path = write(tmp_path, text)
    for block in (1000, 16384, 20000, 1 << 20):
        set_blocks(monkeypatch, block)
        found = whole("bpe", path, tmp_path / f"cache{block}", max_vocab=300)
        assert np.array_equal(found.tokens["train"], found.vocabulary.encode(text))


def test_clearing_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = whole("char", write(tmp_path, TEXT), tmp_path / "cache")
    size = sum(file.stat().st_size for file in first.folder.iterdir())
    write(tmp_path / "cache" / ".part-123", "half", "train.npy")
    write(tmp_path / "cache", "mine", "mine.txt")
    write(tmp_path / "cache" / "downloads", "kept", "x.zip")
    assert cache.clear() == size + 4
    assert sorted(item.name for item in (tmp_path / "cache").iterdir() if item.suffix != ".lock") == [
        "downloads",
        "mine.txt",
    ]
    assert cache.clear() == 0
    assert text_of(whole("char", tmp_path / "text.txt", tmp_path / "cache")) == TEXT


def test_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TBPTT_CACHE", "")
    assert Cache().folder == tmp_path / ".cache" / "tbptt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert Cache().folder == tmp_path / "x" / "tbptt"
    monkeypatch.setenv("TBPTT_CACHE", "~/y")
    assert Cache().folder == tmp_path / "y"
    assert Cache("~/z").folder == tmp_path / "z"
    assert store_module.FORMAT == 1


def test_a_store_is_no_text_of_another_part(tmp_path: Path) -> None:
    store = read_corpus(Options("char"), write(tmp_path, "abcdefgh" * 9, "t.txt"), cache_dir=tmp_path / "cache").folder
    for paths in ((tmp_path / "t.txt", store), ([str(store)],)):
        with pytest.raises(UserError, match=r"must be text, and not a prepared store"):
            read_corpus(Options("char"), *paths, cache_dir=tmp_path / "cache")
