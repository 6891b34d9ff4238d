"""One try of a download over HTTP, which goes on where the try before it broke off."""

import logging
import os
from pathlib import Path
from typing import IO, Any

from tbptt.text.bar import Bar
from tbptt.text.download.checksum import file_checksum

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
# Answers after which another try may go better: time-out, too early, too many requests.
_PASSING = (408, 425, 429)


class FinalError(Exception):
    """What another try would not mend."""


class Transfer:
    """A downloader for pooch: called with an address and a file name, once per try.

    What has arrived stays in `unfinished` until its checksum is right, so the next try, or the next start of the
    program, asks for the rest alone. A server that sends the whole file all the same is taken at its word. A file of
    the wrong checksum is deleted; if it was put together from several tries, another one from the start may be right.

    Raises (from a call):
        ValueError, or one of `requests`, which are OSErrors: too little or too much arrived. pooch tries again.
        FinalError, or another OSError: the server has no such file or another one, or the disk is full.
    """

    def __init__(self, unfinished: Path, checksum: str) -> None:
        self.unfinished = unfinished
        self.checksum = checksum

    def __call__(self, url: str, output: str, _: object = None) -> None:
        """Download `url`, and move it to `output` when it is whole."""
        with self.unfinished.open("ab") as file:
            start = file.tell()
            _receive(url, file, start, self.unfinished.name.removesuffix(".part"))
        found = file_checksum(self.unfinished, self.checksum)
        if found != self.checksum:
            self.unfinished.unlink()
            raise (ValueError if start else FinalError)(f"what arrived has the checksum {found}")
        os.replace(self.unfinished, output)


def _receive(url: str, file: IO[bytes], start: int, title: str) -> None:
    """Append to a file that has `start` bytes what the server sends after them, or replace them by all it sends."""
    import pooch  # with requests a quarter of a second that only a download needs

    answers: list[Any] = []

    def answered(answer: Any, *_: object, **__: object) -> None:
        answers.append(answer)
        status = answer.status_code
        if status in (200, 416):
            file.truncate(0)
        if status == 416:
            raise ValueError("the server has no more than what had arrived before")
        if 400 <= status < 500 and status not in _PASSING:
            raise FinalError(f"{status} {answer.reason}")

    # Compressed on the way, bytes could not be counted; and some servers turn nameless clients away.
    headers = {"User-Agent": "tbptt", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        log.info("%s: going on from byte %s", title, f"{start:,}")
    bar = Bar(title, start)
    download = pooch.HTTPDownloader(bar, _CHUNK, headers=headers, hooks={"response": answered})
    try:
        download(url, file, None)
        _check_length(answers[-1], file.tell(), start)
    finally:
        bar.close()
        for answer in answers:
            answer.close()


def _check_length(answer: Any, size: int, start: int) -> None:
    """Refuse a body shorter than announced: not every version of what is below says so itself."""
    announced = answer.headers.get("Content-Length")
    arrived = size - (start if answer.status_code == 206 else 0)
    if announced is not None and arrived < int(announced):
        raise ValueError(f"{arrived} of {announced} bytes arrived")
