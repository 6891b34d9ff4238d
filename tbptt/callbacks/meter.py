"""Loss and speed of a stretch of training."""

import time

from torch import Tensor

from tbptt.metrics import TokenLoss


class Meter:
    """Sums loss, targets and seconds between two readings.

    The clock stands while it is paused, so validation, sampling and saving do not count as training time.
    """

    def __init__(self) -> None:
        self.loss = TokenLoss()
        self._seconds = 0.0
        self._since: float | None = None

    def add(self, loss: Tensor, targets: int) -> None:
        """Add a window: its mean nats, 0-dimensional, over so many targets."""
        self.loss.add(loss * targets, targets)

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
        return self.loss.tokens / self.seconds if self.seconds else 0.0

    def restart(self) -> None:
        """Forget all sums; a clock that runs goes on."""
        self.loss, self._seconds = TokenLoss(), 0.0
        if self._since is not None:
            self._since = time.perf_counter()
