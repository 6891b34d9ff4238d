"""The way to run windows that keeps training within a budget of memory.

Shapes: a window is `T` steps of `B` streams, a chunk some of its steps. The result of training does not depend on it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tbptt.bptt import Plan
from tbptt.errors import UserError, check_integer, check_number
from tbptt.memory import MIB, Prediction, Setting, head_rows, kept_bytes, predict
from tbptt.nn.dropout import BLOCK_STEPS
from tbptt.nn.kernel import choose_save
from tbptt.ops.layer import CELLS

# A window whose activations take no more than this is run whole unless a budget says otherwise: chunks cost time.
WHOLE_BYTES = 512 * MIB
# Else chunks are this large, or have so many steps x streams as full products need; with a quarter of that they suffer.
CHUNK_BYTES = 16 * MIB
CHUNK_ROWS = 1024
# Rows of logits at a time: down to the first number at hardly a cost, down to the second at up to twice the time.
ENOUGH_ROWS = 128
LEAST_ROWS = 16
# Chunks are tried in sizes that differ by this factor at least.
FINENESS = 1.06


def choose(setting: Setting, chunk: int | str, memory_mib: float | None) -> Prediction:
    """How to run the windows.

    Args:
        setting: model, shapes and optimizer.
        chunk: steps of a chunk, or "auto".
        memory_mib: the budget in MiB, None for none.

    Raises:
        UserError: for a budget that no way can meet, naming the least that one can; or a wrong value.
    """
    if chunk != "auto":
        check_integer("bptt.chunk", chunk, 1, "it counts the steps whose activations are alive at once; or give auto")
    if memory_mib is not None:
        check_number("bptt.memory_mib", memory_mib, "it is a budget in MiB; or give null for none", exclusive=True)
        return _within_budget(setting, chunk, memory_mib)
    if isinstance(chunk, int):
        found = predict(setting, _usual(setting, chunk), choose_save(setting.model.core.save))
        return replace(found, reason=f"chunks of {chunk} steps, as bptt.chunk={chunk} asks")
    return _without_budget(setting)


def _without_budget(setting: Setting) -> Prediction:
    save = choose_save(setting.model.core.save)
    kept = kept_bytes(setting, setting.steps, save)
    if kept <= WHOLE_BYTES:
        return replace(predict(setting, Plan(), save), reason="whole windows: their activations are small")
    per_step = kept_bytes(setting, 2 * BLOCK_STEPS, save) // (2 * BLOCK_STEPS)
    # Where states are large beside a step's activations: as much for borders as for activations is the least in all.
    state = setting.model.initial_state(setting.streams).nbytes
    balanced = min(math.ceil(math.sqrt(setting.steps * state / per_step)), max(1, WHOLE_BYTES // per_step))
    chunk = _multiple(max(CHUNK_BYTES // per_step, math.ceil(CHUNK_ROWS / setting.streams), balanced))
    reason = f"chunks of {chunk} steps: activations of a whole window would take {kept / MIB:.0f} MiB"
    return replace(predict(setting, _usual(setting, chunk), save), reason=reason)


def _usual(setting: Setting, chunk: int) -> Plan:
    """Chunks of so many steps; in groups where the borders of a whole window would take more than a chunk keeps."""
    plans = _plans(setting, chunk)
    borders = math.ceil(setting.steps / chunk) * setting.model.initial_state(setting.streams).nbytes
    return plans[0] if borders <= max(CHUNK_BYTES, kept_bytes(setting, chunk, "gates")) else plans[-1]


def _plans(setting: Setting, chunk: int) -> list[Plan]:
    """Ways to run chunks of so many steps, the fastest first."""
    chunks = math.ceil(setting.steps / chunk)
    if chunks <= 1:
        return [Plan()]
    # About as many groups as a group has chunks. A second level costs one more forward pass.
    group = chunk * math.ceil(math.sqrt(chunks))
    return [Plan((chunk,)), *([Plan((group, chunk))] if chunk < group < setting.steps else [])]


def _within_budget(setting: Setting, chunk: int | str, memory_mib: float) -> Prediction:
    """The fastest way that fits; with a larger budget never a smaller chunk."""
    budget = memory_mib * MIB
    ways = list(_ways(setting)) if chunk == "auto" else list(_ways_of_chunk(setting, [int(chunk)]))
    for plan, save, rows in ways:
        # The fewest rows decide; then as many as there is room for.
        if predict(setting, Plan(plan.sizes, rows[-1]), save).total <= budget:
            fits = (predict(setting, Plan(plan.sizes, number), save) for number in rows)
            found = next(one for one in fits if one.total <= budget)
            return replace(found, reason=_reason(setting, found, memory_mib))
    every = (predict(setting, Plan(plan.sizes, rows[-1]), save) for plan, save, rows in ways)
    least = min(every, key=lambda one: one.total)
    needed = math.ceil(least.total / MIB)
    fixed = sum(least.parts[name] for name in ("weights", "gradients", "optimizer"))
    asked = "" if chunk == "auto" else f" with bptt.chunk={chunk}"
    other = "" if chunk == "auto" else "bptt.chunk=auto, "
    raise UserError(
        f"bptt.memory_mib={memory_mib:g} cannot be met{asked}: weights, gradients and optimizer alone take "
        f"{fixed / MIB:.1f} MiB, and the least that training can do with is {needed} MiB; give "
        f"bptt.memory_mib={needed} or more, {other}or a smaller model, vocabulary or data.batch_size."
    )


Way = tuple[Plan, str, list[int | None]]


def _ways(setting: Setting) -> Iterator[Way]:
    """Plans, what is kept, and rows of logits to choose from, the fastest first.

    A window run whole, then keeping less of it, costs less time than chunks, which have a forward pass more. Chunks
    keep as little as they can, since they can be the longer for it.
    """
    enough = math.ceil(CHUNK_ROWS / 4 / setting.streams)
    saves, rows = _saves(setting), _rows(setting, ENOUGH_ROWS)
    yield from ((Plan(), save, rows) for save in saves)
    sizes = _sizes(setting.steps)
    yield from ((Plan((size,)), saves[-1], rows) for size in sizes if size >= enough)
    yield from _ways_of_chunk(setting, [size for size in sizes if size <= enough])


def _ways_of_chunk(setting: Setting, sizes: Iterable[int]) -> Iterator[Way]:
    """The same for chunks of given sizes."""
    rows = _rows(setting, LEAST_ROWS)
    for size in sizes:
        for plan in _plans(setting, size):
            yield from ((plan, save, rows) for save in _saves(setting))


def _saves(setting: Setting) -> list[str]:
    core = setting.model.core
    if core.save != "auto" or setting.kernel != "ours" or not CELLS[core.kind].keeps:
        return [choose_save(core.save)]
    return ["gates", "hidden"]


def _rows(setting: Setting, least: int) -> list[int | None]:
    """Rows of logits at a time, from the usual number (None) down by halves, as long as they are `least`."""
    most = min(head_rows(setting), (setting.steps - setting.context) * setting.streams)
    halves = (most >> shift for shift in range(1, most.bit_length()))
    return [None, *(rows // LEAST_ROWS * LEAST_ROWS for rows in halves if rows >= least)]


def _sizes(steps: int) -> list[int]:
    """Sizes of chunks that are shorter than a window, from the largest down."""
    found, size = [], steps - 1
    while size >= 1:
        found.append(_multiple(size))
        size = min(found[-1] - 1, int(found[-1] / FINENESS))
    return found


def _multiple(steps: int) -> int:
    """Down to a multiple of the steps that dropout draws at once, where there is one."""
    return steps // BLOCK_STEPS * BLOCK_STEPS or steps


def _reason(setting: Setting, found: Prediction, memory_mib: float) -> str:
    sizes, rows = found.plan.sizes, found.plan.rows
    text = f"chunks of {sizes[-1]} steps" if sizes else "whole windows"
    text += f" in groups of {sizes[0]}" if len(sizes) > 1 else ""
    text += f", save={found.save}" if setting.kernel == "ours" else ""
    text += f", {rows} rows of logits at a time" if rows else ""
    return f"{text}: the fastest way within bptt.memory_mib={memory_mib:g}"
