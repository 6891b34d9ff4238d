"""Encodings, and files that are missing, empty or cannot be read."""

import random
from pathlib import Path

import pytest
from text_files import LINES, set_blocks, text_of, whole, write

from tbptt.errors import UserError
from tbptt.text import Options, read_corpus
from tbptt.text import source as source_module
from tbptt.text.decode import decoded


def test_byte_order_mark_is_no_symbol(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + b"hello world\n" * 200
    vocabulary = whole("char", write(tmp_path, data), tmp_path / "cache").vocabulary
    assert len(vocabulary) == 9
    assert "\ufeff" not in vocabulary.symbols


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
def test_encodings_give_the_same_text(
    encoding: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_blocks(monkeypatch, block)
    text = "it\u2019s fine\r\né\x0c\x1c\n" * 20
    assert text_of(whole("char", write(tmp_path, text.encode(encoding)), tmp_path / "c", encoding=encoding)) == text


@pytest.mark.parametrize("encoding", ["shift_jis", "gb18030", "iso2022_jp", "big5", "utf-7"])
def test_encodings_with_a_state(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_blocks(monkeypatch, 3)
    text = "abc 日本\n大小 x\n" * 20
    assert text_of(whole("char", write(tmp_path, text.encode(encoding)), tmp_path / "c", encoding=encoding)) == text


def test_undecodable_byte_is_located(tmp_path: Path) -> None:
    path = write(tmp_path, b"it\x92s fine\n" * 200)
    with pytest.raises(UserError) as caught:
        whole("char", path, tmp_path / "cache")
    assert str(caught.value) == (
        f"data.path must name a file in data.encoding=utf-8, but {str(path)!r} has byte 0x92 at byte offset 2, line 1 "
        "(invalid start byte); give the encoding it was written in, for example data.encoding=cp1252, or mend the file."
    )
    assert "\u2019" in whole("char", path, tmp_path / "cache", encoding="cp1252").vocabulary.symbols


@pytest.mark.parametrize("block", [1, 2, 5, 1 << 20])
@pytest.mark.parametrize(
    ("data", "encoding", "parts"),
    [
        (("hello world\n" * 200).encode("utf-16"), "utf-8", ["offset 0,", "line 1 "]),
        ("ab\ncd\né".encode()[:-1], "utf-8", ["offset 6,", "line 3 ", "0xc3"]),
        ("a\n\U0001f600\n".encode()[:5] + b"\n", "utf-8", ["offset 2,", "line 2 ", "0xf0"]),
        (b"\xef\xbb\xbfa\n\xff", "utf-8", ["offset 5,", "line 2 ", "0xff"]),
        (b"\xef\xbb\xbfa\n\xff", "utf-8-sig", ["offset 5,", "line 2 ", "0xff"]),
        ("a\nb\n".encode("utf-16-le") + b"\x00\xd8", "utf-16-le", ["offset 8,", "line 3 ", "data.encoding=utf-16-le"]),
        ("é\n".encode(), "ascii", ["offset 0,", "data.encoding=ascii"]),
        (b"a\n\x81", "cp1252", ["offset 2,", "line 2 ", "0x81"]),
        ("a\nb\n".encode("utf-16-be"), "utf-16", ["utf-16"]),
    ],
)
def test_undecodable_files(data: bytes, encoding: str, parts: list[str], block: int) -> None:
    blocks = [data[begin : begin + block] for begin in range(0, len(data), block)]
    if parts == ["utf-16"]:  # without a mark it is taken for the order of this machine, which gives other text
        try:
            assert "".join(decoded("data.path", "x", blocks, encoding)) != "a\nb\n"
        except UserError as error:
            assert "data.path must name a file in utf-16" in str(error)  # noqa: PT017
        return
    with pytest.raises(UserError) as caught:
        list(decoded("data.path", "x", blocks, encoding))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_byte_order_mark_tells_the_encoding(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"its byte order mark shows data.encoding={encoding}\\."):
        whole("char", write(tmp_path, ("hello world\n" * 200).encode(encoding)), tmp_path / "cache")


def test_location_does_not_depend_on_blocks() -> None:
    draw = random.Random(2)
    text = "".join(draw.choices("ab\né\u2028\U0001f600", k=300)).encode()
    for _ in range(30):
        place = draw.randrange(len(text))
        data = text[:place] + b"\xff" + text[place:]
        said = set()
        for size in (1, 3, 64, 1000):
            blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
            with pytest.raises(UserError) as caught:
                list(decoded("data.path", "x", blocks, "utf-8"))
            said.add(str(caught.value))
        assert len(said) == 1


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "rot13", "", "a\0b", None, 8])
def test_unknown_encodings_are_refused(encoding) -> None:
    with pytest.raises(UserError, match=r"data\.encoding must"):
        Options("char", encoding=encoding)


@pytest.mark.parametrize("key", ["path", "val_path", "test_path"])
@pytest.mark.parametrize(
    ("content", "level", "reason"),
    [
        (None, "char", "no such file was found from the current folder"),
        ("folder", "char", "that folder holds none"),
        (b"", "char", "that file is empty"),
        (b"", "byte", "that file is empty"),
        (b"\xef\xbb\xbf", "char", "that file is empty"),
        (b"a", "char", "at least 2 tokens"),
        (b"\0", "byte", "at least 2 tokens"),
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
        read_corpus(Options(level), **paths, cache_dir=tmp_path / "cache")
    assert str(caught.value).startswith(f"data.{key} must ")
    assert all(part in str(caught.value) for part in (reason, "bad.txt"))


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(5, "broken disk")])
@pytest.mark.parametrize("after", [0, 2])
def test_reading_errors_are_told(error: OSError, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = open, []

    def broken(file: object, *arguments: object, **options: object) -> object:
        calls.append(file)
        if len(calls) > after:
            raise error
        return original(file, *arguments, **options)  # type: ignore[call-overload]

    path = write(tmp_path, LINES)
    monkeypatch.setattr(source_module, "open", broken, raising=False)
    with pytest.raises(UserError, match=r"data\.(path|val_path) must .*text\.txt.*(denied|broken disk)"):
        read_corpus(Options("char"), path, path, cache_dir=tmp_path / "cache")
