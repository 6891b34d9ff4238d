"""Downloads against a server of this machine that can do all that servers do wrong."""

import hashlib
import io
import logging
import re
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import ROOT

from tbptt.build import CONFIGS
from tbptt.errors import UserError
from tbptt.text import bar as bars
from tbptt.text.download import files, transfer
from tbptt.text.download.checksum import file_checksum, normal_checksum
from tbptt.text.download.counts import check_counts
from tbptt.text.download.files import RETRIES, fetch

TEXT = "".join(f"line {i} of the text\n" for i in range(20_000)).encode()
# Said by urllib3 2, or by us where there is an older one.
SHORT = r"IncompleteRead|bytes arrived"
NAMED = ("shakespeare", "ptb", "wikitext2", "wikitext103", "text8", "enwik8")


def sha(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves `files`, breaks off each of the first `breaks` answers half-way, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.breaks = 0
        self.ranges = True
        self.delay = 0.0

    def starts(self) -> list[int]:
        """The byte from which each answer was asked."""
        return [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for _, asked in self.asked]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, name, asked = self.server, self.path[1:], self.headers["Range"]
        server.asked.append((name, asked))
        time.sleep(server.delay)
        if name == "moved":
            self.send_response(302)
            self.send_header("Location", "/text.txt")
            self.end_headers()
            return
        if name not in server.files:
            self.send_error(500 if name == "broken" else 404)
            return
        data, start = server.files[name], 0
        if asked and server.ranges:
            start = server.starts()[-1]
            if start >= len(data):
                self.send_error(416)
                return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Between tries pooch waits for seconds.
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    server = Server()
    server.files["text.txt"] = TEXT
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def one(server: Server, name: str = "text.txt", data: bytes = TEXT) -> dict[str, dict[str, object]]:
    return {"train": {"url": server.url(name), "hash": sha(data)}}


def refused(*arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        fetch(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    found = fetch("made", one(server), tmp_path / "data")
    assert found == {"train": tmp_path / "data" / "made" / "text.txt"}
    assert found["train"].read_bytes() == TEXT
    assert fetch("made", one(server), tmp_path / "data") == found
    assert len(server.asked) == 1
    assert {path.name for path in found["train"].parent.iterdir()} <= {"text.txt", ".lock"}


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha512"])
def test_other_checksums(server: Server, tmp_path: Path, algorithm: str) -> None:
    source = {"url": server.url("text.txt"), "hash": sha(TEXT, algorithm).upper()}
    assert fetch("made", {"train": source}, tmp_path)["train"].read_bytes() == TEXT
    assert algorithm in refused("made", {"train": {**source, "hash": sha(b"", algorithm)}}, tmp_path)


def test_redirections_are_followed(server: Server, tmp_path: Path) -> None:
    assert fetch("made", one(server, "moved"), tmp_path)["train"].read_bytes() == TEXT


def test_a_broken_download_goes_on(server: Server, tmp_path: Path) -> None:
    server.breaks = 2
    assert fetch("made", one(server), tmp_path)["train"].read_bytes() == TEXT
    first, second, third = server.starts()
    half = len(TEXT) // 2
    # What was on its way through a buffer is lost.
    assert first == 0
    assert half - transfer._CHUNK <= second <= half
    assert second < third <= second + (len(TEXT) - second) // 2


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.breaks, server.ranges = 1, False
    assert fetch("made", one(server), tmp_path)["train"].read_bytes() == TEXT
    assert len(server.asked) == 2


def test_the_next_start_goes_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRIES", 0)
    server.breaks = 1
    message = refused("made", one(server), tmp_path)
    path = tmp_path / "made" / "text.txt"
    assert not path.exists()
    for part in ("corpus made", "text.txt", server.url("text.txt"), sha(TEXT), str(path)):
        assert part in message
    assert re.search(SHORT, message)
    assert fetch("made", one(server), tmp_path)["train"].read_bytes() == TEXT
    assert len(TEXT) // 2 - transfer._CHUNK <= server.starts()[-1] <= len(TEXT) // 2


@pytest.mark.parametrize("left", [b"rubbish", TEXT, TEXT + b"more"], ids=["wrong", "whole", "too long"])
def test_a_bad_rest_of_an_earlier_start_is_thrown_away(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "text.txt.part").write_bytes(left)
    assert fetch("made", one(server), tmp_path)["train"].read_bytes() == TEXT
    assert server.starts() == [len(left), 0]


def test_a_download_that_is_always_cut_is_told(server: Server, tmp_path: Path) -> None:
    server.breaks, server.ranges = 100, False
    message = refused("made", one(server), tmp_path)
    assert re.search(SHORT, message)
    assert len(server.asked) == 1 + RETRIES


@pytest.mark.parametrize(("status", "size", "fits"), [(200, 7, True), (200, 6, False), (206, 9, True), (206, 8, False)])
def test_a_short_body_is_noticed_by_its_length(status: int, size: int, fits: bool) -> None:
    """What an older urllib3 leaves to us."""
    answer = SimpleNamespace(status_code=status, headers={"Content-Length": "7"})
    with nullcontext() if fits else pytest.raises(ValueError, match="6 of 7 bytes arrived"):
        transfer._check_length(answer, size, start=2)


def test_a_wrong_checksum_is_told(server: Server, tmp_path: Path) -> None:
    message = refused("made", one(server, data=b"other"), tmp_path)
    path = tmp_path / "made" / "text.txt"
    for part in ("corpus made", server.url("text.txt"), sha(b"other"), f"has the checksum {sha(TEXT)}", f"at {path}"):
        assert part in message
    assert len(server.asked) == 1
    assert [file.name for file in path.parent.iterdir() if file.name != ".lock"] == []


@pytest.mark.parametrize(
    ("name", "reason", "tries"), [("nowhere.txt", "404 Not Found", 1), ("broken", "500 Server", 3)]
)
def test_errors_of_the_server_are_told(server: Server, tmp_path: Path, name: str, reason: str, tries: int) -> None:
    message = refused("made", one(server, name), tmp_path)
    for part in ("corpus made", reason, server.url(name), sha(TEXT), str(tmp_path / "made" / name)):
        assert part in message
    assert len(server.asked) == tries


def test_no_network_is_told(server: Server, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    sources = {"train": {"url": f"http://127.0.0.1:{port}/a%20b.txt", "hash": sha(TEXT)}}
    message = refused("made", sources, tmp_path)
    assert "Connection refused" in message
    path = tmp_path / "made" / "a b.txt"
    assert f"put it at {path}, where the next start takes it" in message
    path.write_bytes(TEXT)
    assert fetch("made", sources, tmp_path) == {"train": path}


def test_a_file_put_there_by_hand_is_taken_unasked(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "made" / "text.txt"
    path.parent.mkdir()
    path.write_bytes(TEXT)
    assert fetch("made", one(server), tmp_path) == {"train": path}
    assert server.asked == []
    # The folder may be one that nobody may write to.
    assert [file.name for file in path.parent.iterdir()] == ["text.txt"]


def test_a_wrong_file_put_there_by_hand_is_named(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "made" / "text.txt"
    path.parent.mkdir()
    path.write_bytes(b"wrong")
    message = refused("made", one(server), tmp_path)
    for part in ("corpus made", str(path), sha(TEXT), f"has {sha(b'wrong')}", "delete it", server.url("text.txt")):
        assert part in message
    assert path.read_bytes() == b"wrong"
    assert server.asked == []


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in files.items():
            box.writestr(name, content)
    return data.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as box:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            box.addfile(item, io.BytesIO(content))
        link = tarfile.TarInfo("box/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        box.addfile(link)
    return data.getvalue()


FILES = {"box/a.txt": b"training text", "box/b.txt": b"validation text", "../evil.txt": b"evil"}


def packed(server: Server, kind: str) -> dict[str, dict[str, object]]:
    name = f"box.{kind}"
    data = server.files.setdefault(name, zipped(FILES) if kind == "zip" else tarred(FILES))
    source = {"url": server.url(name), "hash": sha(data)}
    members = {"train": "box/a.txt", "validation": "box/b.txt"}
    return {part: {**source, "member": member, "member_hash": sha(FILES[member])} for part, member in members.items()}


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_parts_of_one_archive_are_downloaded_once(server: Server, tmp_path: Path, kind: str) -> None:
    sources, home = packed(server, kind), tmp_path / "made"
    found = fetch("made", sources, tmp_path)
    assert found == {"train": home / "box" / "a.txt", "validation": home / "box" / "b.txt"}
    assert found["train"].read_bytes() == b"training text"
    assert found["validation"].read_bytes() == b"validation text"
    assert len(server.asked) == 1
    assert {path.name for path in tmp_path.rglob("*")} == {"made", ".lock", f"box.{kind}", "box", "a.txt", "b.txt"}

    # Unpacked by hand it needs no archive, and a damaged text is named.
    (home / f"box.{kind}").unlink()
    assert fetch("made", sources, tmp_path) == found
    found["validation"].write_bytes(b"damaged")
    message = refused("made", sources, tmp_path)
    assert all(part in message for part in (str(found["validation"]), sha(b"damaged"), sha(b"validation text")))
    found["validation"].unlink()
    assert fetch("made", sources, tmp_path) == found
    assert len(server.asked) == 2


@pytest.mark.parametrize("kind", ["zip", "tgz"])
@pytest.mark.parametrize("member", ["box/c.txt", "box", "box/link"])
def test_a_member_must_be_a_file_of_the_archive(server: Server, tmp_path: Path, kind: str, member: str) -> None:
    source = {**packed(server, kind)["train"], "member": member}
    message = refused("made", {"train": source}, tmp_path)
    assert all(part in message for part in (repr(member), "box/a.txt", f"box.{kind}"))


@pytest.mark.parametrize(
    "member", ["../evil.txt", "/etc/passwd", "box/../../evil.txt", "C:/evil", "..\\evil.txt", "a//b", "", 7]
)
def test_a_member_does_not_leave_the_folder(server: Server, tmp_path: Path, member: object) -> None:
    source = {**packed(server, "zip")["train"], "member": member}
    assert "data.corpus.sources.train.member must be" in refused("made", {"train": source}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert server.asked == []


def test_a_wrong_member_is_not_left_behind(server: Server, tmp_path: Path) -> None:
    source = {**packed(server, "zip")["train"], "member_hash": sha(b"other")}
    message = refused("made", {"train": source}, tmp_path)
    assert all(part in message for part in ("box/a.txt", sha(b"other"), sha(b"training text"), "correct member_hash"))
    assert not list((tmp_path / "made" / "box").iterdir())


def test_a_text_is_no_archive(server: Server, tmp_path: Path) -> None:
    source = {**one(server)["train"], "member": "a.txt"}
    assert "must be a zip or tar archive" in refused("made", {"train": source}, tmp_path)


GOOD = {"url": "http://example.org/a.txt", "hash": "0" * 64}
WRONG = [
    ({"validation": GOOD}, "have a part train"),
    ({"train": GOOD, "valid": GOOD}, "must be one of train, validation, test, but it is 'valid'"),
    ({"train": {**GOOD, "hsh": 1}}, "must be one of url, hash, member, member_hash, but it is 'hsh'"),
    ({"train": {"hash": GOOD["hash"]}}, "sources.train.url must be an address"),
    ({"train": {**GOOD, "url": "ftp://example.org/a"}}, "sources.train.url must be an address"),
    ({"train": {**GOOD, "url": "https://example.org/a/.."}}, "sources.train.url must be an address"),
    ({"train": {**GOOD, "url": "https://example.org/"}}, "sources.train.url must be an address"),
    ({"train": {"url": GOOD["url"]}}, "sources.train.hash must be"),
    ({"train": {**GOOD, "hash": "sha256:" + "0" * 40}}, "sources.train.hash must be"),
    ({"train": {**GOOD, "hash": "crc32:00000000"}}, "sources.train.hash must be"),
    ({"train": {**GOOD, "member": "a", "member_hash": "x"}}, "sources.train.member_hash must be"),
    ({"train": GOOD, "test": GOOD}, "a file of its own for each part"),
    ({"train": GOOD, "test": {**GOOD, "url": "http://example.com/a.txt", "member": "b"}}, "a file of its own"),
]


@pytest.mark.parametrize(("sources", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_source_is_refused(sources: Any, message: str, tmp_path: Path) -> None:
    assert message in refused("made", sources, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", None, 3])
def test_a_corpus_is_named_as_a_folder_can_be(name: Any, tmp_path: Path) -> None:
    assert "data.corpus.name must be" in refused(name, {"train": GOOD}, tmp_path)


def test_a_folder_that_is_a_file_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "made").write_text("no folder")
    message = refused("made", one(server), tmp_path)
    assert f"corpus made must have a folder for its files, but {tmp_path / 'made'} does not serve" in message


def test_two_processes_download_once(server: Server, tmp_path: Path) -> None:
    server.delay = 2.0
    code = (
        f"import pathlib, tbptt.text.download as d; d.fetch('made', {one(server)!r}, pathlib.Path({str(tmp_path)!r}))"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in both]
    assert ends == [("", 0), ("", 0)]
    assert (tmp_path / "made" / "text.txt").read_bytes() == TEXT
    assert len(server.asked) == 1


def test_nothing_is_imported_for_it_at_the_start() -> None:
    check = "import sys, tbptt.text.download; print({'pooch', 'requests', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_long_download_shows_how_far_it_is(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tbptt")
    monkeypatch.setattr(bars, "QUIET_SECONDS", 0.0)
    fetch("made", one(server), tmp_path)
    size = f"{len(TEXT) / 2**20:.1f}"
    assert [record.message for record in caplog.records if "MiB" in record.message] == [f"text.txt: 0.1 of {size} MiB"]


def test_a_terminal_shows_a_bar(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rich
    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(rich, "_console", Console(file=screen, force_terminal=True, width=100))
    fetch("short", one(server), tmp_path)
    assert screen.getvalue() == ""
    monkeypatch.setattr(bars, "QUIET_SECONDS", 0.0)
    fetch("long", one(server), tmp_path)
    assert "text.txt" in screen.getvalue()


def test_checksums_are_those_of_hashlib(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abc")
    assert file_checksum(path, "md5:") == "md5:900150983cd24fb0d6963f7d28e17f72"
    assert normal_checksum("A" * 64) == "sha256:" + "a" * 64
    assert normal_checksum("SHA1:" + "0" * 40) == "sha1:" + "0" * 40
    assert normal_checksum(None) is normal_checksum("sha1:0") is normal_checksum("sha1:" + "g" * 40) is None


def test_counts_are_compared_one_by_one() -> None:
    expected = {"train": 9000, "test": 5, "types": 27}
    check_counts("made", expected, {"train": 9000, "validation": 3, "test": 5, "types": 27})
    with pytest.raises(UserError) as caught:
        check_counts("made", expected, {"train": 8999, "types": 28})
    message = str(caught.value)
    assert message.startswith(
        "corpus made must have its standard counts, but train has 8,999 tokens instead of 9,000, "
    )
    assert "test has 0 tokens instead of 5, the vocabulary has 28 types instead of 27;" in message


@pytest.mark.parametrize("name", NAMED)
def test_named_corpora_say_all_that_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = yaml.safe_load((CONFIGS / "data" / f"{name}.yaml").read_text(encoding="utf-8"))
    corpus = section["corpus"]
    assert corpus["name"] == name
    for source in corpus["sources"].values():
        # A branch would change; a commit does not.
        assert "raw.githubusercontent.com" not in source["url"] or re.search(r"/[0-9a-f]{40}/", source["url"])
        assert source["url"].startswith("https://")
        assert ("member" in source) == ("member_hash" in source) == source["url"].endswith(".zip")
    assert set(corpus["expected"]) == {"train", "validation", "test", "types"}
    assert all(type(count) is int for count in corpus["expected"].values())
    # Parts are cut where there is one file, and have one each otherwise.
    assert set(corpus["sources"]) == ({"train"} if "val_fraction" in section else {"train", "validation", "test"})

    # The form of every source is right, so that the first thing that fails is the network.
    def offline(source: Any) -> None:
        raise UserError(f"offline: {source.url}")

    monkeypatch.setattr(files, "_download", offline)
    assert refused(name, corpus["sources"], tmp_path) == f"offline: {corpus['sources']['train']['url']}"


def test_every_named_corpus_is_looked_at() -> None:
    found = {path.stem for path in (CONFIGS / "data").glob("*.yaml") if "sources:" in path.read_text(encoding="utf-8")}
    assert found == set(NAMED)
