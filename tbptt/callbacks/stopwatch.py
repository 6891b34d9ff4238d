"""Speed of a stretch of training."""

import time


class Stopwatch:
    """Counts targets and seconds.

    The clock stands while it is paused, so validation, sampling and saving do not count as training time.
    """

    def __init__(self) -> None:
        self.targets = 0
        self._seconds = 0.0
        self._since: float | None = None

    def run(self) -> None:
        """Let the clock go on, if it stands."""
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock, if it runs."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._seconds + (0.0 if self._since is None else time.perf_counter() - self._since)

    @property
    def tokens_per_second(self) -> float:
        """Targets per second of training."""
        return self.targets / self.seconds if self.seconds else 0.0

    def restart(self) -> None:
        """Forget all counts; a clock that runs goes on."""
        self.targets, self._seconds = 0, 0.0
        if self._since is not None:
            self._since = time.perf_counter()
