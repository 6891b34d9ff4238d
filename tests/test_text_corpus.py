import hashlib
from pathlib import Path

import pytest

from tbptt.errors import UserError
from tbptt.text import Vocabulary, corpus, files, read_corpus

LINES = "".join(f"line {i} of the text\n" for i in range(1000))


def write(folder: Path, data: bytes | str, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


@pytest.mark.parametrize("level", ["char", "word"])
@pytest.mark.parametrize("fractions", [(0.05, 0.05), (0.0, 0.1), (0.1, 0.0), (0.0, 0.0), (0.3, 0.6), (0.333, 0.5)])
@pytest.mark.parametrize(
    "text", [LINES, LINES.replace("\n", "\r\n"), LINES[:-1], LINES.replace("\n", " "), "ab cd " * 50]
)
def test_parts_are_contiguous(level, fractions, text, tmp_path: Path) -> None:
    found = read_corpus(level, write(tmp_path, text), val_fraction=fractions[0], test_fraction=fractions[1])
    assert found.train + found.validation + found.test == text
    for part, fraction in ((found.validation, fractions[0]), (found.test, fractions[1])):
        size = int(fraction * len(text))
        assert len(part) == size if level == "char" else abs(len(part) - size) <= 25
    if level == "word":
        parts = [part for part in (found.train, found.validation, found.test) if part]
        assert all(part[-1] in " \n" for part in parts[:-1])
        assert [word for part in parts for word in part.split()] == text.split()
        if "\n" in text:
            assert all(part.endswith("\n") for part in parts[:-1])


def test_word_cut_on_a_line_start_stays(tmp_path: Path) -> None:
    found = read_corpus("word", write(tmp_path, "a b\n" * 10), val_fraction=0.2, test_fraction=0.1)
    assert (found.train, found.validation, found.test) == ("a b\n" * 7, "a b\n" * 2, "a b\n")


def test_word_cut_moves_to_white_space_where_no_line_follows(tmp_path: Path) -> None:
    found = read_corpus("word", write(tmp_path, "aaaa bbbb cccc dddd eeee\n"), val_fraction=0, test_fraction=0.5)
    assert (found.train, found.test) == ("aaaa bbbb cccc ", "dddd eeee\n")


def test_tiny_parts_stay_in_training(tmp_path: Path) -> None:
    found = read_corpus("char", write(tmp_path, "abcdefghij"), val_fraction=0.3, test_fraction=0.1)
    assert (found.train, found.validation, found.test) == ("abcdefg", "hij", "")
    found = read_corpus("char", write(tmp_path, "abcdefghij"), val_fraction=0.1, test_fraction=0.3)
    assert (found.train, found.validation, found.test) == ("abcdefg", "", "hij")
    found = read_corpus("word", write(tmp_path, "hello there\n"))
    assert (found.train, found.validation, found.test) == ("hello there\n", "", "")


def test_own_paths_take_nothing_off(tmp_path: Path) -> None:
    path, val, test = write(tmp_path, LINES), write(tmp_path, "val text", "v"), write(tmp_path, "test text", "t")
    found = read_corpus("char", path, val, test, val_fraction=7.0)
    assert (found.train, found.validation, found.test) == (LINES, "val text", "test text")
    assert found.source == f"{path}, {val}, {test}"
    found = read_corpus("char", path, val, val_fraction=0.5, test_fraction=0.25)
    size = len(LINES) // 4
    assert (found.train, found.validation, found.test) == (LINES[:-size], "val text", LINES[-size:])


def test_digest_tells_where_the_parts_end(tmp_path: Path) -> None:
    path = write(tmp_path, "abcdé" * 4)
    found = read_corpus("char", path, val_fraction=0.5, test_fraction=0.0)
    expected = b"abcd\xc3\xa9" * 2 + b"\xff" + b"abcd\xc3\xa9" * 2 + b"\xff\xff"
    assert found.sha256 == hashlib.sha256(expected).hexdigest()
    assert found.sha256 != read_corpus("char", path, val_fraction=0.0, test_fraction=0.5).sha256
    assert len(corpus._digest("\ud800", "", "")) == 64


@pytest.mark.parametrize("name", ["123", 123, Path("123"), "~/123"])
def test_paths_of_any_kind(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path, "some text", "123")
    assert read_corpus("char", name).train == "some text"


def test_byte_order_mark_is_no_symbol(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + b"hello world\n" * 200
    text = read_corpus("char", write(tmp_path, data), val_fraction=0, test_fraction=0).train
    vocabulary = Vocabulary.build(text, "char")
    assert len(vocabulary) == 9
    assert "\ufeff" not in vocabulary.symbols


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
def test_encodings_give_the_same_text(encoding: str, tmp_path: Path) -> None:
    text = "it\u2019s fine\r\né\x0c\x1c\n" * 20
    found = read_corpus("char", write(tmp_path, text.encode(encoding)), encoding=encoding)
    assert found.train + found.validation + found.test == text


def test_undecodable_byte_is_located(tmp_path: Path) -> None:
    path = write(tmp_path, b"it\x92s fine\n" * 200)
    with pytest.raises(UserError) as caught:
        read_corpus("char", path)
    message = str(caught.value)
    assert all(
        part in message for part in (str(path), "0x92", "offset 2,", "line 1 ", "data.encoding=cp1252", "data.path")
    )
    text = read_corpus("char", path, encoding="cp1252").train
    assert "\u2019" in Vocabulary.build(text, "char").symbols


@pytest.mark.parametrize(
    ("data", "encoding", "parts"),
    [
        (("hello world\n" * 200).encode("utf-16"), "utf-8", ["offset 0,", "line 1 ", "data.encoding=utf-16;"[:-1]]),
        (("hello world\n" * 200).encode("utf-32"), "utf-8", ["data.encoding=utf-32"]),
        ("ab\ncd\né".encode()[:-1], "utf-8", ["offset 6,", "line 3 ", "0xc3"]),
        (b"\xef\xbb\xbfa\n\xff", "utf-8", ["offset 5,", "line 2 ", "0xff"]),
        ("a\nb\n".encode("utf-16-le") + b"\x00\xd8", "utf-16-le", ["offset 8,", "line 3 ", "data.encoding=utf-16-le"]),
        ("é\n".encode(), "ascii", ["offset 0,", "data.encoding=ascii"]),
    ],
)
def test_undecodable_files(data: bytes, encoding: str, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_corpus("char", write(tmp_path, data), encoding=encoding)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "rot13", "", "a\0b", None, 8])
def test_unknown_encodings_are_refused(encoding, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.encoding must"):
        read_corpus("char", write(tmp_path, "text"), encoding=encoding)


@pytest.mark.parametrize("key", ["path", "val_path", "test_path"])
@pytest.mark.parametrize(
    ("content", "level", "reason"),
    [
        (None, "char", "no such file"),
        ("folder", "char", "a folder"),
        (b"", "char", "empty"),
        (b"\xef\xbb\xbf", "char", "at least 2 tokens"),
        (b"a", "char", "at least 2 tokens"),
        (b" \n\n\t", "word", "only white space"),
    ],
)
def test_useless_files_are_refused(key: str, content, level: str, reason: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    if content == "folder":
        bad.mkdir()
    elif content is not None:
        bad.write_bytes(content)
    paths = {"path": write(tmp_path, LINES), key: bad}
    with pytest.raises(UserError) as caught:
        read_corpus(level, **paths)
    assert str(caught.value).startswith(f"data.{key} must ")
    assert all(part in str(caught.value) for part in (reason, "bad.txt"))


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(5, "broken disk")])
def test_reading_errors_are_told(error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise error

    path = write(tmp_path, LINES)
    monkeypatch.setattr(files.Path, "read_bytes", fail)
    with pytest.raises(UserError, match=r"data\.path must .*text\.txt.*(denied|broken disk)"):
        read_corpus("char", path)


@pytest.mark.parametrize("key", ["val_path", "test_path"])
def test_part_without_training_file_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must .*data\.path"):
        read_corpus("char", **{key: write(tmp_path, LINES)})


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
def test_fractions_out_of_range_are_refused(fractions, key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"data\.{key}_fraction must"):
        read_corpus("char", write(tmp_path, LINES), val_fraction=fractions[0], test_fraction=fractions[1])


def test_unknown_level_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.level must be one of char, word.*did you mean word"):
        read_corpus("words")


@pytest.mark.parametrize(("level", "title"), [("word", "English"), ("char", "source code")])
def test_embedded_text_by_level(level: str, title: str) -> None:
    found = read_corpus(level)
    total = len(found.train + found.validation + found.test)
    assert found.source.startswith("text of CPython 3.")
    assert title in found.source
    assert len(found.validation) / total == pytest.approx(0.05, abs=0.001)
    assert len(found.test) / total == pytest.approx(0.05, abs=0.001)
    vocabulary = Vocabulary.build(found.train, level, need_unknown=True)
    ids = vocabulary.encode(found.validation)
    assert (ids == 0).mean() < 0.04
