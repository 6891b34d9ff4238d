"""How far reading or a download is, with rich: pooch's idea of a progress bar."""

import logging
import time
from typing import Any

log = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
LOG_SECONDS = 30.0


class Bar:
    """Shows nothing of what is soon over; after `QUIET_SECONDS` a bar on a terminal, and elsewhere a line now and then.

    Who makes it sets `total`, the bytes to come (0: unknown), and calls the rest; `start` bytes were there before.
    `close` may be called more than once.
    """

    def __init__(self, title: str, start: int) -> None:
        self.title = title
        self.start = start
        self.total = 0
        self._done = 0
        self._show_at = time.monotonic() + QUIET_SECONDS
        self._live: Any = None

    def update(self, size: int) -> None:
        """Count `size` more bytes."""
        self._done += size
        if time.monotonic() >= self._show_at:
            self._show()

    def reset(self) -> None:
        """Count from the start again."""
        self._done = 0

    def close(self) -> None:
        """Take the bar away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._show_at = float("inf")

    def _show(self) -> None:
        import rich  # at the start of a program it would cost time that few programs need
        from rich import progress

        done, total = self.start + self._done, (self.start + self.total) if self.total else None
        if not rich.get_console().is_terminal:
            log.info("%s: %.1f of %s MiB", self.title, done / 2**20, f"{total / 2**20:.1f}" if total else "?")
            self._show_at += LOG_SECONDS
            return
        if self._live is None:
            columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
            self._live = progress.Progress("{task.description}", *columns, transient=True)
            self._live.add_task(self.title, total=total)
            self._live.start()
        self._live.update(self._live.task_ids[0], completed=done)
