"""Memory does not grow with a text or its lines, but with its distinct symbols alone."""

import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

ROOT = Path(__file__).resolve().parent.parent
# Stands in for the real package, which takes seconds to import torch. Forked, so that each peak is its own.
PROGRAM = f"""
import os, resource, sys, types
package = types.ModuleType("tbptt")
package.__path__ = [{str(ROOT / "tbptt")!r}]
sys.modules["tbptt"] = package
from tbptt.text import Options, read_corpus
level, separator, *paths = sys.argv[1:]
separator = None if separator == "none" else separator
for path in paths:
    child = os.fork()
    if not child:
        found = read_corpus(Options(level, document_separator=separator), path)
        print(len(found.tokens["train"]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
LINE = b"the cat sat on the mat, and 7 dogs slept in the sun all day"
MIB = 1 << 20


def write(path: Path, size: int, end: bytes) -> Path:
    unit = (LINE + end) * 1000
    with path.open("wb") as file:
        for _ in range(0, size, len(unit)):
            file.write(unit)
    return path


def peaks_mib(level: str, separator: str, *paths: Path) -> list[float]:
    command = [sys.executable, "-c", PROGRAM, level, separator, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert int(rows[1][0]) > 15 * int(rows[0][0])
    return [float(peak) for _, peak in rows]


@pytest.mark.parametrize("end", ["\n", " ", "."])
@pytest.mark.parametrize("level", ["byte", "char", "word"])
def test_peak_does_not_grow_with_the_text(level: str, end: str, tmp_path: Path) -> None:
    # Lines, one line, and one line of which all is prepared without a cut at white space.
    options = "file" if end == "." else "blank_line" if level == "char" else "none"
    small = write(tmp_path / "small.txt", 3 * MIB, end.encode())
    large = write(tmp_path / "large.txt", 60 * MIB, end.encode())
    less, more = peaks_mib(level, options, small, large)
    assert more - less < 40, (less, more)


def test_peak_does_not_grow_with_records_or_documents(tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    row = b'{"text": "a"}\n' * 1000
    small.write_bytes(row * 4)
    large.write_bytes(row * 200)
    less, more = peaks_mib("char", "file", small, large)
    assert more - less < 40, (less, more)


def test_peak_does_not_grow_with_what_is_packed(tmp_path: Path) -> None:
    small, large = tmp_path / "small.zst", tmp_path / "large.zst"
    for path, size in ((small, 3), (large, 200)):
        path.write_bytes(zstandard.compress(b"a" * (size * MIB)))
    less, more = peaks_mib("byte", "none", small, large)
    assert more - less < 40, (less, more)
