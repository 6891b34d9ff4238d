import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from text_files import LINES, text_of, texts_of, whole, write

from tbptt.errors import UserError
from tbptt.text import Options, Vocabulary, encode_files, read_corpus
from tbptt.text import source as source_module
from tbptt.text.source import find

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


def read(path: object, tmp_path: Path, level: str = "char", **options: object) -> str:
    return text_of(whole(level, path, tmp_path / "cache", **options))


def refused(path: object, tmp_path: Path, level: str = "char", **options: object) -> str:
    with pytest.raises(UserError) as caught:
        whole(level, path, tmp_path / "cache", **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["123", 123, Path("123"), "~/123"])
def test_paths_of_any_kind(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path, "some text", "123")
    assert read(name, tmp_path) == "some text"


@pytest.mark.parametrize(
    "name", ["a b.txt", "käse.txt", "x=1,y.txt", "[a]*?.txt", "$HOME", "-.txt", "a\nb", "\udcff.txt"]
)
def test_odd_file_names(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t", "some text", name)
    found = whole("char", str(path), tmp_path / "cache")
    assert text_of(found) == "some text"
    found.source.encode("utf-8")
    assert read(str(path.parent), tmp_path, level="byte") == "some text"


def test_folder_in_the_order_of_names(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    for name, text in (("b.txt", "bb"), ("a/2.txt", "a2"), ("a/10.txt", "a10"), ("c/d/e.txt", "cde"), ("a.txt", "a")):
        write(folder, text, name)
    for name in (".hidden", ".git/config", "a/.DS_Store"):
        write(folder, "hidden", name)
    (folder / "none").mkdir()
    assert read(folder, tmp_path) == "a" + "a10" + "a2" + "bb" + "cde"
    assert whole("char", folder, tmp_path / "cache").source == f"{folder}/a.txt and 4 more"


def test_folder_within_a_hidden_one(tmp_path: Path) -> None:
    write(tmp_path / ".data", "here", "x.txt")
    assert read(tmp_path / ".data", tmp_path) == "here"


def test_glob_and_lists(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "in/d.txt"):
        write(tmp_path / "t", Path(name).stem, name)
    assert read(f"{tmp_path}/t/*.txt", tmp_path) == "ab"
    assert read(f"{tmp_path}/t/**/*.txt", tmp_path) == "abd"
    assert read(f"{tmp_path}/t/[bc].*", tmp_path) == "bc"
    nested = [f"{tmp_path}/t/c.md", [f"{tmp_path}/t/in", (tmp_path / "t" / "a.txt", f"{tmp_path}/t/b*")]]
    assert read(nested, tmp_path) == "cdab"
    assert "data.path must match a file" in refused(f"{tmp_path}/t/*.csv", tmp_path)


@pytest.mark.parametrize("path", [[], (), [[]]])
def test_empty_lists_are_refused(path, tmp_path: Path) -> None:
    assert refused(path, tmp_path) == "data.path must name a file, but it is []; the list is empty: name one at least."


@pytest.mark.parametrize("path", ["", "a\0b", ["", "x"]])
def test_what_is_no_path_is_refused(path, tmp_path: Path) -> None:
    assert refused(path, tmp_path).startswith("data.path must be a path, but it is ")


def test_links(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, "text", "a.txt")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "nowhere").symlink_to(folder / "missing")
    (folder / "b.txt").symlink_to(folder / "a.txt")
    assert read(folder, tmp_path) == "texttext"
    assert read(f"{folder}/**/*.txt", tmp_path) == "texttext"
    assert "reading it failed" in refused(folder / "loop", tmp_path)
    assert "no such file" in refused(folder / "nowhere", tmp_path)


def test_texts_are_not_joined(tmp_path: Path) -> None:
    for name, text in (("1", "a b"), ("2", ""), ("3", "c\n"), ("4", "\ufeff"), ("5", "\ufeffd"), ("6", "\n")):
        write(tmp_path / "t", text, name)
    assert read(tmp_path / "t", tmp_path, "word") == "a b\nc\nd\n\n"
    found = whole("char", tmp_path / "t", tmp_path / "cache", document_separator="file")
    assert text_of(found) == "a bc\nd\n"
    assert found.borders["train"].tolist() == [0, 3, 5, 6]


def test_ten_thousand_files(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    for i in range(10_000):
        (folder / f"{i:05}.txt").write_bytes(b"%d " % i)
    start = time.monotonic()
    found = whole("char", folder, tmp_path / "cache")
    assert time.monotonic() - start < 20
    assert text_of(found) == "".join(f"{i} " for i in range(10_000))
    assert found.card["facts"]["data.path"]["characters"] == 48_890


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("level", ["char", "byte"])
def test_packed_files(packing: str, level: str, tmp_path: Path) -> None:
    text = LINES + "é"
    first, second = PACK[packing](text[:5000].encode()), PACK[packing](text[5000:].encode())
    folder = tmp_path / "t"
    assert read(write(folder, first + second, f"text.txt.{packing.upper()}"), tmp_path, level) == text
    write(folder, PACK[packing](b""), f"none.{packing}")
    assert read(folder, tmp_path, level) == text


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kept", [1.0, 0.99, 0.5, 0.01])
def test_packed_files_cut_off(packing: str, kept: float, tmp_path: Path) -> None:
    data = PACK[packing](LINES.encode())
    path = write(tmp_path, data[: int(len(data) * kept) - 3], f"text.{packing}")
    message = refused(path, tmp_path)
    assert message.startswith(f"data.path must name a whole file that is packed as .{packing} says, but it is ")
    assert "cut off or damaged" in message


@pytest.mark.parametrize("packing", PACK)
def test_mislabelled_files(packing: str, tmp_path: Path) -> None:
    plain, packed = write(tmp_path, LINES, f"plain.{packing}"), write(tmp_path, PACK[packing](LINES.encode()))
    assert f"packed as .{packing} says" in refused(plain, tmp_path)
    message = refused(packed, tmp_path)
    assert "data.path must name a file in data.encoding=utf-8" in message
    assert f"it is packed: let its name end in .{packing}" in message


def test_same_bytes_packed_or_not_are_two_texts(tmp_path: Path) -> None:
    data = gzip.compress(LINES.encode())
    assert read(write(tmp_path, data, "text"), tmp_path, "byte") != LINES
    assert read(write(tmp_path, data, "text.gz"), tmp_path, "byte") == LINES


def test_missing_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zstandard", "compression.zstd", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, package in (("t.zst", "zstandard"), ("t.parquet", "pyarrow")):
        message = refused(write(tmp_path, b"x", name), tmp_path)
        assert message == f"files that end in .{name[2:]} need the package {package}; pip install 'tbptt[text]'."


@pytest.mark.parametrize("level", ["char", "byte", "word"])
def test_records_of_json(level: str, tmp_path: Path) -> None:
    rows = [{"text": "first one", "id": 1}, {"text": "zweite é\n"}, {"text": ""}, {"text": "a\r\nb"}]
    data = codecs.BOM_UTF8 + "\r\n\n".join(json.dumps(row) for row in rows).encode()
    expected = "first one\nzweite é\n\na\r\nb\n"
    if level == "word":
        expected = expected.replace("\r", "")
    for name, content in (("t.jsonl", data), ("t.NDJSON", data), ("t.jsonl.gz", gzip.compress(data))):
        found = whole(level, write(tmp_path, content, name), tmp_path / "cache", document_separator="file")
        assert text_of(found) == expected
        assert found.card["parts"]["train"]["documents"] == 4


def test_lone_surrogates_of_json(tmp_path: Path) -> None:
    path = write(tmp_path, '{"body": "a\\ud800b"}\n', "t.jsonl")
    assert read(path, tmp_path, text_column="body") == "a\ud800b\n"
    assert read(path, tmp_path, "byte", text_column="body") == "a\ud800b\n"
    assert read(path, tmp_path, "bpe", text_column="body", max_vocab=256) == "a\ufffdb\n"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "a', ["one JSON object a line", "line 3", "mend it"]),
        ('{"title": "a"}', ["data.text_column=text", "line 3"]),
        ('{"text": null}', ["data.text_column=text", "line 3"]),
        ("[1, 2]", ["data.text_column=text", "line 3"]),
        ("[" * 100_000, ["one JSON object a line", "line 3"]),
        ("nul", ["one JSON object a line", "line 3"]),
    ],
)
def test_bad_records_are_located(line: str, parts: list[str], tmp_path: Path) -> None:
    message = refused(write(tmp_path, f'{{"text": "fine"}}\n\n{line}\n', "t.jsonl"), tmp_path)
    assert message.startswith("data.path must ")
    assert all(part in message for part in ["t.jsonl", *parts]), message


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(3000)), "body": [f"text {i} é" for i in range(3000)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    found = whole("char", tmp_path / "t.parquet", tmp_path / "c", text_column="body", document_separator="file")
    assert text_of(found) == "".join(f"text {i} é\n" for i in range(3000))
    assert found.card["parts"]["train"]["documents"] == 3000
    message = refused(tmp_path / "t.parquet", tmp_path)
    assert "have the column data.text_column=text" in message
    assert "its columns are id, body" in message


def test_bad_parquet_files_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "b"]}), tmp_path / "none.parquet")
    assert "none.parquet, row 2" in refused(tmp_path / "none.parquet", tmp_path)
    pq.write_table(pa.table({"text": [f"{i * i}" for i in range(5000)]}), tmp_path / "bad.parquet")
    data = bytearray((tmp_path / "bad.parquet").read_bytes())
    assert "name a whole parquet file" in refused(write(tmp_path, bytes(data[:-9]), "cut.parquet"), tmp_path)
    data[100:9000] = bytes(8900)
    assert "name a whole parquet file" in refused(write(tmp_path, bytes(data), "bad.parquet"), tmp_path)


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
        found = whole("char", "-", tmp_path / "cache")
        assert text_of(found) == LINES
    assert found.source == "-"
    assert found.folder == whole("char", write(tmp_path, LINES), tmp_path / "cache").folder
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "that file is empty" in refused("-", tmp_path)


def test_pipes_are_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(LINES,), daemon=True)
    writer.start()
    assert read(tmp_path / "pipe", tmp_path) == LINES
    writer.join(9)
    assert "data.path must be no pipe" in refused_pipe(tmp_path)


def refused_pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe.parquet")
    return refused(tmp_path / "pipe.parquet", tmp_path)


def test_other_files_with_a_vocabulary(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build("abcd \n", "char")
    for name, text in (("1", "ab\n"), ("2.gz", "cd\n")):
        write(tmp_path / "t", gzip.compress(text.encode()) if name.endswith("gz") else text, name)
    ids, borders = encode_files(f"{tmp_path}/t", vocabulary, Options("char", document_separator="file"))
    assert ids.dtype == np.uint8
    assert vocabulary.decode(ids) == "ab\ncd\n"
    assert borders.tolist() == [0, 3]
    with pytest.raises(UserError, match=r"path must hold only symbols of the training text, but 2 of its 4 .*'Z'"):
        encode_files(str(write(tmp_path, "aZbZ")), vocabulary, Options("char"))


def test_parts_of_several_files(tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        write(tmp_path, f"{name}\n" * 9, name)
    found = read_corpus(Options("word", test_fraction=0.5), f"{tmp_path}/a", [f"{tmp_path}/b/2", f"{tmp_path}/b/1"])
    assert texts_of(found) == ("a/1\n" * 9, "<unk>\n" * 18, "<unk>\n" * 9)


def test_vanished_file(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    [source] = find("data.path", path)
    path.unlink()
    for use in (source.fingerprint, lambda: source.size):
        with pytest.raises(UserError, match=r"data\.path must name an existing file"):
            use()
    assert source_module.Source("data.path", "-").size == 0
