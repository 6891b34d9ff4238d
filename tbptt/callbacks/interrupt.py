"""Ends a run that is asked to end: after the update it is at, where a state can be saved to go on from."""

import signal
import threading
from types import FrameType
from typing import Any

import lightning as L

# What a terminal, a job manager and `kill` send. Some managers say beforehand with SIGUSR1 that time is running out.
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")


class Interrupted(Exception):  # noqa: N818, nothing is wrong
    """Training was asked to end by a signal, and its state is saved.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class Interrupt:
    """Listens for signals while training lasts. A second signal does what it did before, and ends the run at once.

    A signal that is ignored stays so, as Ctrl-C is for a program in the background, and one that another part of the
    program listens for is left to that one.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        """Begin to listen; elsewhere than in a program's first thread Python lets nobody do so."""
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if getattr(number, "name", "") in SIGNALS and self._is_free(number):
                    self._before[number] = signal.signal(number, self._note)

    @staticmethod
    def _is_free(number: int) -> bool:
        # Lightning always listens for SIGTERM, only to end without saving.
        usual = (signal.SIG_DFL, signal.default_int_handler)
        return number == signal.SIGTERM or signal.getsignal(number) in usual

    def stop(self) -> None:
        """Give the signals back."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._number = number
        self.stop()

    def number(self, trainer: L.Trainer) -> int | None:
        """The signal that a process of the run got, None while none has."""
        own = self._number
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(own is not None, all=False):
            return own or signal.SIGTERM
        return own
