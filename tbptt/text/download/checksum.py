"""Checksums as `algorithm:hexadecimal digits`, and those of files."""

import hashlib
import re
from pathlib import Path

_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


def normal_checksum(value: object) -> str | None:
    """Return a checksum in lower case with its algorithm, sha256 where none is named; None where it is no checksum.

    Algorithms are md5, sha1, sha256 and sha512; the digits must be as many as theirs.
    """
    found = re.fullmatch(r"(?:(\w+):)?([0-9a-f]+)", str(value).lower())
    if not found:
        return None
    algorithm = found[1] or "sha256"
    return f"{algorithm}:{found[2]}" if _DIGITS.get(algorithm) == len(found[2]) else None


def file_checksum(path: Path, like: str) -> str:
    """Return the checksum of a file by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        # Against accidents, not attackers, so that machines which forbid old algorithms in cryptography take them here.
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"
