"""What training will take in memory, part by part, before it starts.

Shapes: a window is `T` steps (with context) of `B` streams, a chunk `S` steps. All figures are bytes of tensors; the
interpreter and its libraries come on top. `scripts/benchmark.py plan` compares the prediction with the measured peak.

How: a chunk's forward and backward pass and the update are gone through in thought, with a ledger of what is alive.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, RMSprop

from tbptt.bptt import Plan, runs_dense
from tbptt.kernel_memory import KernelBytes, Ledger, kernel_bytes, run_backward, run_forward
from tbptt.nn import LanguageModel
from tbptt.nn.kernel import choose_kernel
from tbptt.ops.linear_cross_entropy import chunk_rows, scratch_bytes

MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """What a prediction rests on.

    Attributes:
        model: the network.
        streams: `B` of one process.
        steps: `T`, context included.
        context: steps of it that have no targets.
        optimizer: makes the optimizer from parameters.
        accumulate: windows whose gradients add up before an update.
        compute_dtype: of products: bfloat16 or float16 under autocast, else that of the weights.
        device: type of the device.
    """

    model: LanguageModel
    streams: int
    steps: int
    context: int
    optimizer: Callable[[Iterator[nn.Parameter]], Optimizer]
    accumulate: int
    compute_dtype: torch.dtype
    device: str

    @property
    def item(self) -> int:
        """Bytes of a weight."""
        return self.model.embedding.weight.itemsize

    @property
    def kernel(self) -> str:
        """What computes the recurrence; without gradients it may be another."""
        core = self.model.core
        example = torch.empty(0, dtype=self.model.embedding.weight.dtype)
        if self.device == "cuda":
            return "cudnn" if core.kernel == "auto" else core.kernel
        return choose_kernel(core.kernel, core.kind, example, core.rnn.hidden_size, cut=False)


@dataclass(frozen=True)
class Prediction:
    """Bytes of each part at the moment that takes most, for one way to run the windows.

    Attributes:
        plan: that way.
        save: what the kernel written by hand keeps.
        parts: bytes by name; their sum is the peak.
        moment: when that is.
        reason: why this way was chosen.
    """

    plan: Plan
    save: str
    parts: dict[str, int]
    moment: str = ""
    reason: str = ""

    @property
    def total(self) -> int:
        """The predicted peak in bytes."""
        return sum(self.parts.values())

    def table(self) -> str:
        """Parts and total in MiB, one a line, when that is, and the reason."""
        sizes = {**self.parts, "total": self.total}
        width = max(map(len, sizes))
        lines = [f"{name:<{width}}  {size / MIB:10.1f} MiB" for name, size in sizes.items()]
        return "\n".join([*lines, f"most is taken in {self.moment}", *([self.reason] if self.reason else [])])


def predict(setting: Setting, plan: Plan, save: str) -> Prediction:
    """Bytes of each part of training, at the moment that takes most, with windows run by `plan`.

    Gradients of the last update are taken to be gone when a window begins, as `zero_grad` after an update leaves it.
    """
    model, sizes = setting.model, plan.sizes if setting.steps > min(plan.sizes, default=setting.steps) else ()
    wanted = {parameter: parameter.nbytes for parameter in model.parameters() if parameter.requires_grad}
    tensors, passing = optimizer_tensors(setting.optimizer)
    state = model.initial_state(setting.streams).nbytes
    ledger = Ledger(
        Counter(
            {
                "weights": sum(parameter.nbytes for parameter in model.parameters()),
                "optimizer": int(tensors * sum(wanted.values())),
                "gradients": sum(wanted.values()) * (setting.accumulate > 1),
                "activations": 0,
                "head": 0,
                "backward pass": 0,
                # As it comes in, as it goes on, and its gradient before and after a chunk.
                "states": (4 + borders(setting.steps, sizes)) * state,
                # x and y, int64.
                "tokens": 8 * setting.streams * (2 * setting.steps - setting.context),
            }
        )
    )
    before = Counter(ledger.now)
    _sweep(ledger, setting, Plan(sizes, plan.rows), save)
    ledger.now = before
    ledger.now["gradients"], ledger.now["states"] = sum(wanted.values()), state
    if setting.accumulate > 1 and not runs_dense(model, plan):
        # The buffer that the last window's was added from waits for the next.
        ledger.now["gradients"] += model.head.projection.weight.nbytes * model.head.projection.weight.requires_grad
    ledger.look("the update", optimizer=int(passing * max(wanted.values(), default=0)))
    return Prediction(plan, save, {name: ledger.peak[name] for name in before}, ledger.moment)


def optimizer_tensors(optimizer: Callable[[Iterator[nn.Parameter]], Optimizer]) -> tuple[float, float]:
    """Tensors of a parameter's size that the optimizer keeps, found by one step, and those it takes in passing."""
    size = 1024
    probe = nn.Parameter(torch.zeros(size))
    made = optimizer(iter([probe]))
    probe.grad = torch.zeros(size)
    made.step()
    tensors = [value for state in made.state.values() for value in state.values() if isinstance(value, Tensor)]
    kept = sum(tensor.numel() for tensor in tensors if tensor.numel() >= size) / size
    # One parameter after the other: SGD works in place, RMSprop takes a root, Adam divides it too.
    passing = 0.0 if made.defaults.get("fused") or isinstance(made, SGD) else 1.0 if isinstance(made, RMSprop) else 2.0
    return kept, passing


def kept_bytes(setting: Setting, steps: int, save: str) -> int:
    """Activations that a chunk of so many steps keeps for its backward pass."""
    core, tokens = setting.model.core, steps * setting.streams
    ledger = Ledger(Counter(activations=tokens * core.rnn.input_size * setting.item))
    drops = setting.model.dropout.probability > 0
    run_forward(ledger, _layers(setting, steps, save, setting.kernel), tokens * core.rnn.hidden_size, drops=drops)
    return ledger.now["activations"]


def head_rows(setting: Setting) -> int:
    """Rows of logits at a time, where the plan does not say."""
    return chunk_rows(len(setting.model.embedding.weight), setting.compute_dtype, setting.device)


def borders(steps: int, sizes: tuple[int, ...]) -> int:
    """States kept at borders at once: of the outermost parts, and of each level inside one part."""
    total, outer = 0, steps
    for size in sizes:
        total, outer = total + math.ceil(outer / size), size
    return total


def _sweep(ledger: Ledger, setting: Setting, plan: Plan, save: str) -> None:
    """The chunk that takes most: the only one, or one that finds the gradients of others there."""
    model, core = setting.model, setting.model.core
    steps = plan.sizes[-1] if plan.sizes else setting.steps
    tokens, drops = steps * setting.streams, model.dropout.probability > 0
    values = tokens * core.rnn.hidden_size
    head = [p.nbytes for p in model.head.parameters() if p.requires_grad]
    weights = [sum(weight.nbytes for weight in one if weight.requires_grad) for one in core.rnn.all_weights]
    table = model.embedding.weight
    table_bytes = table.nbytes if table.requires_grad and table is not model.head.projection.weight else 0
    layers = _layers(setting, steps, save, setting.kernel)
    now = ledger.now
    now["gradients"] += sum(head) + (sum(weights) + table_bytes if plan.sizes else 0)
    embedded = tokens * core.rnn.input_size * setting.item
    now["activations"] += embedded
    run_forward(ledger, layers, values, drops=drops)
    dense = runs_dense(model, plan)
    _head(ledger, setting, plan, tokens, dense=dense)
    given = values * layers[-1].item
    # The gradient that the rows of logits made is held until the chunk is done; that of dense ones goes as others do.
    now["backward pass"] += 0 if dense else given
    run_backward(ledger, layers, values, weights, given if dense else 0, drops=drops)
    now["backward pass"] += embedded
    # The embedding: the gradient of its values, and of the dropout before them.
    if drops:
        ledger.look("the embedding", **{"backward pass": 2 * embedded + tokens * core.rnn.input_size})
        now["backward pass"] += embedded
    now["gradients"] += 0 if plan.sizes else table_bytes
    ledger.look("the embedding")


def _head(ledger: Ledger, setting: Setting, plan: Plan, tokens: int, *, dense: bool) -> None:
    """Logits and, with them, gradients."""
    words, size = setting.model.head.projection.weight.shape
    scored = min(tokens, setting.streams * (setting.steps - setting.context))
    given = tokens * size * setting.item
    if dense:
        # Logarithms of probabilities, and gradients of these and of logits; then the last and what they make.
        logits = scored * words * setting.item
        ledger.look("the head", head=3 * logits)
        ledger.look("the head", head=logits, **{"backward pass": given})
        return
    rows = min(plan.rows or head_rows(setting), scored)
    scratch = scratch_bytes(rows, words, size, setting.compute_dtype, setting.device)
    ledger.look("the head", head=scratch + rows * size * setting.item, **{"backward pass": given})
    if plan.sizes and setting.compute_dtype.itemsize < setting.item:
        # The weight that was cast waits for the next chunk.
        ledger.now["head"] += words * size * setting.compute_dtype.itemsize


def _layers(setting: Setting, steps: int, save: str, kernel: str) -> list[KernelBytes]:
    core = setting.model.core
    options = {"save": save, "device": setting.device}
    return [
        kernel_bytes(kernel, core.kind, weights, steps, setting.streams, dtype=setting.compute_dtype, **options)
        for weights in core.rnn.all_weights
    ]
