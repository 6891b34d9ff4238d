"""One process at a time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds to wait without a word


@contextmanager
def alone(file: Path, what: str) -> Iterator[None]:
    """Hold a lock on `file` while others wait for it; it ends with this process, however that ends.

    Args:
        file: made if need be; it stays.
        what: what another process does that holds it, for the log.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        log.info("waiting for another process, which %s", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
