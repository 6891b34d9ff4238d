"""The most memory that tensors took while a block of code ran: what predictions are held to.

On CUDA the allocator knows it. On a CPU the profiler is asked, which records each allocation: that costs time, so
nothing is to be timed meanwhile.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile, record_function

MARK = "PeakMemory.mark"
# What the profiler and the allocator say on standard error of a process, and what is of no use to anybody.
CHATTER = ("profiler_start", "profiler_stop", "Memory block of unknown size", "gpuGetDeviceCount failed")


class PeakMemory:
    """A context manager that measures; read the attributes after the block.

    Only memory taken inside the block counts; so make the model and the optimizer there too, if they are to be counted.
    On a CPU what was taken before and is given back inside does not count either.

    Args:
        device: type of the device, "cpu" or "cuda".

    Attributes:
        bytes: the peak inside the block.
        peaks: the peak of each section between marks.
        kept: what the block had taken and not given back at the end of each section.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.peaks: list[int] = []
        self.kept: list[int] = []
        self._before = 0
        self._profile: profile | None = None
        self._open = ExitStack()

    @property
    def bytes(self) -> int:
        """The peak inside the block."""
        return max(self.peaks, default=0)

    def mark(self) -> None:
        """End a section and begin the next."""
        if self._profile is not None:
            with record_function(MARK):
                return
        self.peaks.append(torch.cuda.max_memory_allocated() - self._before)
        self.kept.append(torch.cuda.memory_allocated() - self._before)
        torch.cuda.reset_peak_memory_stats()

    def __enter__(self) -> Self:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return self
        self._open.enter_context(_without_chatter())
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._open.enter_context(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is None:
            self.mark()
            return
        self._open.close()
        self.peaks, self.kept = _sections(self._profile)
        self._profile = None


def _sections(recorded: profile) -> tuple[list[int], list[int]]:
    """Of the sum of all allocations, less what was given back: the greatest and the last value of each section."""
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    every: list[Any] = recorded.profiler.kineto_results.events()
    events = [one for one in every if one.name() in ("[memory]", MARK)]
    total, peaks, kept = 0, [0], []
    for event in sorted(events, key=lambda one: one.start_ns()):
        if event.name() == MARK:
            kept.append(total)
            peaks.append(total)
        else:
            total += event.nbytes()
            peaks[-1] = max(peaks[-1], total)
    return peaks, [*kept, total]


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold back what is written to standard error; at the end write it, but for lines that only the profiler needs."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        before = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            said = "".join(line for line in lines if not any(word in line for word in CHATTER))
            if said:
                os.write(2, said.encode())
