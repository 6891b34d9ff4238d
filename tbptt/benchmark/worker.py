"""A fresh process for one figure of memory, so that nothing of an earlier measurement is left in it.

`fresh(job)` starts `python -m tbptt.benchmark.worker`, which reads the job as JSON and prints its figures as JSON.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tbptt.benchmark.peers import Ours, Peer, Variant, make_peer, predicted
from tbptt.benchmark.preparation import VARIANTS
from tbptt.benchmark.works import Windows, Work, make_model, read_tokens
from tbptt.bptt import Plan
from tbptt.errors import UserError
from tbptt.memory import borders
from tbptt.peak import PeakMemory

Job = dict[str, Any]


def fresh(job: Job) -> dict[str, Any]:
    """The figures of a job, from a process of its own.

    Raises:
        UserError: where that process fails, with what it said last.
    """
    places = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "tbptt.benchmark.worker"],
        input=json.dumps({**job, "threads": torch.get_num_threads()}),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"a measuring process failed: {last}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Bench:
    """A job made ready: a model to start from, windows, and how to make the peer."""

    def __init__(self, job: Job) -> None:
        self.count, self.cell, self.device = job["windows"], job["cell"], job["device"]
        self.variant, self.dropout = Variant(**job["variant"]), job["dropout"]
        self.options, self.optimizer = job.get("model", {}), job.get("optimizer", "sgd")
        self.plan = Plan(tuple(job["sizes"]), job["rows"]) if "sizes" in job else None
        self.work, tokens = read_tokens(Work(**job["work"]), job.get("path"), self.count)
        self.windows = Windows(self.work, tokens, self.device)
        self.model = make_model(self.work, self.cell, self.dropout, **self.options).to(self.device)
        values = torch.ones(128, 128, device=self.device, requires_grad=True)
        (values @ values).sum().backward()  # type: ignore[no-untyped-call]

    def peer(self) -> Peer:
        """A new one."""
        return make_peer(
            self.variant,
            self.model,
            self.work,
            self.cell,
            dropout=self.dropout,
            device=self.device,
            optimizer=self.optimizer,
            plan=self.plan,
            **self.options,
        )

    def train(self, peer: Peer) -> float:
        """All windows; returns the seconds."""
        begin = time.perf_counter()
        for index in range(self.count):
            loss = peer.step(*self.windows[index])
        loss.item()
        return time.perf_counter() - begin


def resident(bench: Bench) -> dict[str, Any]:
    """Bytes in memory at most in training, above what the process had with model and optimizer loaded; and seconds."""
    peer = bench.peer()
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        seconds = bench.train(peer)
        return {"resident": torch.cuda.max_memory_reserved() - before, "seconds": seconds, "by": "max_memory_reserved"}
    with _Resident() as figures:
        figures["seconds"] = bench.train(peer)
    return figures


def preparation(job: Job) -> dict[str, Any]:
    """Seconds and tokens of preparing a text, and bytes in memory at most above what the loaded program had."""
    with _Resident() as figures:
        begin = time.perf_counter()
        figures["tokens"] = VARIANTS[job["variant"]](job["level"], job["path"])
        figures["seconds"] = time.perf_counter() - begin
    return figures


class _Resident:
    """Measures how much more memory the process had at most than at the start."""

    def __enter__(self) -> dict[str, Any]:
        self._cleared = _clear_peak()
        self._before = _process_bytes("VmRSS") if self._cleared else _peak_bytes()
        self._figures: dict[str, Any] = {"by": "VmHWM" if self._cleared else "ru_maxrss"}
        return self._figures

    def __exit__(self, *_: object) -> None:
        after = _process_bytes("VmHWM") if self._cleared else _peak_bytes()
        self._figures["resident"] = after - self._before


def _clear_peak() -> bool:
    """Let the system's record of the peak begin anew; whether that worked."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _process_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def tensors(bench: Bench) -> dict[str, Any]:
    """Bytes of tensors at most, model and optimizer included."""
    with PeakMemory(bench.device) as peak:
        peer = bench.peer()
        bench.train(peer)
    return {"tensors": peak.bytes}


def prediction(bench: Bench) -> dict[str, Any]:
    """How the project would run these windows, and the bytes it predicts; finding out takes memory itself."""
    found = predicted(
        bench.variant,
        bench.work,
        bench.cell,
        dropout=bench.dropout,
        device=bench.device,
        optimizer=bench.optimizer,
        **bench.options,
    )
    return {
        "predicted": found.total,
        "predicted_parts": found.parts,
        "sizes": found.plan.sizes,
        "rows": found.plan.rows,
        "reason": found.reason,
    }


def window(bench: Bench) -> dict[str, Any]:
    """Bytes of tensors at most within the loss and the gradients of one window, without weights and gradients.

    It is the second window: memory that stays from one to the next counts too.
    """
    first, (x, y) = bench.windows[0], bench.windows[1]
    with PeakMemory(bench.device) as peak:
        peer = bench.peer()
        peer.step(*first)
        peak.mark()
        peer.gradients(x, y)
    weights = sum(parameter.nbytes for parameter in peer.parameters)
    return {"activations": peak.peaks[1] - 2 * weights, "weights": weights}


def saved(bench: Bench) -> dict[str, Any]:
    """What the recurrent layers keep for the backward pass, in hidden states of float32 per token and layer.

    Inputs count where they are kept; weights do not, and memory that several tensors share counts once. Where a window
    is cut, one chunk and the states at the borders of all.
    """
    peer, work = bench.peer(), bench.work
    sizes = peer.plan.sizes if isinstance(peer, Ours) else ()
    steps = sizes[-1] if sizes else work.window_steps
    alive = _Alive({parameter.untyped_storage().data_ptr() for parameter in peer.parameters})
    inputs = torch.randn(steps, work.streams, work.hidden_size, device=bench.device, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(alive.pack, lambda held: held.tensor),
        torch.autocast(bench.device, torch.bfloat16, enabled=bench.variant.bfloat16),
    ):
        outputs = peer.recur(inputs)
    state = work.num_layers * work.streams * work.hidden_size * 4 * (2 if bench.cell == "lstm" else 1)
    kept = alive.bytes + borders(work.window_steps, sizes) * state
    del outputs
    return {"saved": kept / (work.tokens * work.num_layers * work.hidden_size * 4)}


class _Held:
    """A saved tensor; it goes when the graph that saved it does."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Alive:
    """Bytes of the storages that are saved at the moment."""

    def __init__(self, without: set[int]) -> None:
        self._without = without
        self._holders: Counter[int] = Counter()
        self.bytes = 0

    def pack(self, tensor: Tensor) -> _Held:
        """Note a tensor."""
        held, storage = _Held(tensor), tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self._without:
            self.bytes += 0 if self._holders[place] else size
            self._holders[place] += 1
            weakref.finalize(held, self._release, place, size)
        return held

    def _release(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        self.bytes -= 0 if self._holders[place] else size


MEASURES = {measure.__name__: measure for measure in (resident, tensors, prediction, window, saved)}


def main() -> None:
    """Read a job, print its figures."""
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    figures = preparation(job) if job["measure"] == "preparation" else MEASURES[job["measure"]](Bench(job))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
