"""A cache under strain: other processes, no room, no rights, files that change, other locales and hash seeds."""

import errno
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_files import LINES, assert_equal_corpora, leftovers, set_blocks, text_of, whole, write

from tbptt.errors import UserError
from tbptt.text import Options, Vocabulary, encode_files, read_corpus
from tbptt.text import corpus as corpus_module
from tbptt.text import preparation as preparation_module
from tbptt.text import spool as spool_module
from tbptt.text import store as store_module
from tbptt.text.source import Source

ROOT = Path(__file__).resolve().parent.parent
# Stands in for the real package, which takes seconds to import torch.
HEADER = f"""
import json, logging, sys, types
package = types.ModuleType("tbptt")
package.__path__ = [{str(ROOT / "tbptt")!r}]
sys.modules["tbptt"] = package
from tbptt.text import Options, read_corpus
logging.basicConfig(level="INFO", format="%(message)s")
"""


def start(program: str, *arguments: object, before: Callable[[], None] | None = None, **environment: str) -> Any:
    command = [sys.executable, "-c", HEADER + program, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=before, **pipes)


def finish(process: Any) -> tuple[str, str]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    return output.decode(), errors.decode()


READ = """
found = read_corpus(Options(sys.argv[1]), sys.argv[2], cache_dir=sys.argv[3])
print(json.dumps([found.sha256, str(found.folder), found.card["seconds"]]))
"""


def test_four_processes_prepare_once(tmp_path: Path) -> None:
    path = write(tmp_path, LINES * 50)
    processes = [start(READ, "word", path, tmp_path / "cache") for _ in range(4)]
    outputs = {finish(process)[0] for process in processes}
    # One of them took that many seconds, and wrote it down.
    assert len(outputs) == 1
    assert not list(leftovers(tmp_path / "cache"))
    found = read_corpus(Options("word"), path, cache_dir=tmp_path / "cache")
    assert json.loads(outputs.pop())[:2] == [found.sha256, str(found.folder)]
    assert_equal_corpora(found, read_corpus(Options("word"), path, cache_dir=tmp_path / "other"))


@pytest.mark.parametrize("level", ["char", "word", "bpe"])
def test_ids_do_not_depend_on_the_hash_seed(level: str, tmp_path: Path) -> None:
    text = " ".join(f"w{i * i % 97} é{i % 31}\n" for i in range(2000))
    path = write(tmp_path, text)
    program = READ.replace("sys.argv[1]", "sys.argv[1], max_vocab=270")
    processes = [start(program, level, path, tmp_path / seed, PYTHONHASHSEED=seed) for seed in "012"]
    assert len({json.loads(finish(process)[0])[0] for process in processes}) == 1
    stores = [sorted((tmp_path / seed).glob("*/*.[nv]*")) for seed in "012"]
    contents = [[file.read_bytes() for file in files] for files in stores]
    assert contents[0] == contents[1] == contents[2]
    assert contents[0]


def test_locales_that_are_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path, "käse 日本\n" * 50, "käse.txt")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    program = READ + "print(sys.getfilesystemencoding(), file=sys.stderr); logging.info(found.source)"
    output, errors = finish(start(program, "char", path, tmp_path / "cache", **locale))
    assert "Logging error" not in errors
    assert json.loads(output)[0] == read_corpus(Options("char"), path, cache_dir=tmp_path / "new").sha256


def refused(path: Path, cache: Path) -> str:
    with pytest.raises(UserError) as caught:
        whole("word", path, cache, document_separator="blank_line")
    return str(caught.value)


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["write", "fsync", "spool"])
def test_full_disk(name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[str, tuple[Any, str]] = {
        "write": (store_module._Digested, "write"),
        "fsync": (store_module.os, "fsync"),
        "spool": (spool_module.Spool, "_write"),
    }
    original, calls = getattr(*places[name]), []

    def fail(*arguments: object) -> object:
        calls.append(1)
        return full_disk() if len(calls) == call else original(*arguments)

    path = write(tmp_path, LINES)
    with monkeypatch.context() as patch:
        set_blocks(patch, 500)
        patch.setattr(*places[name], fail)
        if name == "fsync" and call == 5:  # four files
            whole("word", path, tmp_path / "cache", document_separator="blank_line")
            return
        message = refused(path, tmp_path / "cache")
    assert message == (
        f"data.cache_dir must be a folder with room in it that may be written to, but it is '{tmp_path}/cache'; "
        "writing failed (No space left on device): free some room, or give another data.cache_dir."
    )
    assert not list(leftovers(tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("*/store.json"))
    assert text_of(whole("word", path, tmp_path / "cache", document_separator="blank_line")) == LINES


def test_files_may_not_be_as_large(tmp_path: Path) -> None:
    path = write(tmp_path, LINES * 100)
    # The system's own limit, which makes real writes fail.
    program = """
from tbptt.errors import UserError
try:
    read_corpus(Options("char"), sys.argv[1], cache_dir=sys.argv[2])
except UserError as error:
    print(error)
"""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    message, _ = finish(start(program, path, tmp_path / "cache", before=limit))
    assert message.startswith("data.cache_dir must be a folder with room in it"), message
    assert "free some room, or give another data.cache_dir." in message
    assert not list(leftovers(tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("*/store.json"))


def test_cache_that_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    for cache in (path, path / "below"):
        assert refused(path, cache).startswith(
            f"data.cache_dir must be a folder with room in it that may be written to, but it is '{cache}'"
        )


def test_cache_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = write(tmp_path, LINES), write(tmp_path, LINES[:-1] + "x\n", "other")
    first = whole("word", path, tmp_path / "cache")

    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "alone", denied)
        assert_equal_corpora(whole("word", path, tmp_path / "cache"), first)
        assert "writing failed (Permission denied)" in refused(other, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(store_module.Path, "mkdir", denied)
        assert "writing failed (Permission denied)" in refused(other, tmp_path / "new")


def test_broken_off_preparation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    path = write(tmp_path, LINES)
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "_write_card", interrupted)
        with pytest.raises(KeyboardInterrupt):
            whole("word", path, tmp_path / "cache")
    assert not list(leftovers(tmp_path / "cache"))
    assert text_of(whole("word", path, tmp_path / "cache")) == LINES


def test_killed_preparation_leaves_nothing_in_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    program = (
        """
import os
from tbptt.text import corpus
corpus._write_card = lambda *_, **__: os.kill(os.getpid(), 9)
"""
        + READ
    )
    process = start(program, "char", path, tmp_path / "cache")
    process.communicate(timeout=60)
    assert process.returncode == -9
    assert len(list(leftovers(tmp_path / "cache"))) == 1
    read_corpus(Options("char"), path, cache_dir=tmp_path / "cache")
    assert not list(leftovers(tmp_path / "cache"))


def test_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LINES)
    original = Source.fingerprint

    def changing(source: Source) -> str:
        found = original(source)
        path.write_text(LINES + "more\n")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Source, "fingerprint", changing)
        message = refused(path, tmp_path / "cache")
    assert message.startswith("data.path must stay as it is while it is read, but it is ")
    assert not list(leftovers(tmp_path / "cache"))
    assert text_of(whole("word", path, tmp_path / "cache")) == LINES + "more\n"


def test_memory_of_a_store_is_that_of_the_system(tmp_path: Path) -> None:
    found = whole("char", write(tmp_path, LINES), tmp_path / "cache")
    assert isinstance(found.tokens["train"], np.memmap)
    before = (found.folder / "train.npy").read_bytes()
    found.tokens["train"][:] = 0
    assert (found.folder / "train.npy").read_bytes() == before


def test_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, path = Vocabulary.build(LINES, "char"), write(tmp_path, LINES)
    monkeypatch.setattr(preparation_module, "Spool", full_disk)
    with pytest.raises(UserError, match=r"TMPDIR must be a folder .* with room .*No space left on device"):
        encode_files(str(path), vocabulary, Options("char"), folder=str(tmp_path))


def test_waiting_for_another_process_is_told(tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "tbptt")
    monkeypatch.setattr("tbptt.text.lock.PATIENCE", 0.05)
    path = write(tmp_path, LINES)
    folder = whole("char", path, tmp_path / "cache").folder
    (folder / "store.json").unlink()
    program = """
import time
from tbptt.text import Cache
with Cache(sys.argv[1]).alone(sys.argv[2]):
    print("locked", flush=True)
    time.sleep(1)
"""
    holder = start(program, tmp_path / "cache", folder.name)
    holder.stdout.readline()
    assert text_of(whole("char", path, tmp_path / "cache")) == LINES
    assert "waiting for another process, which prepares the same corpus" in caplog.text
    finish(holder)
