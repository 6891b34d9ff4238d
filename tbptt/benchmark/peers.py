"""The same training, written in the ways that people write it, and in ours.

Shapes: inputs and targets of a window `(T, B)` of int64, states `(L, B, H)`. All start from the weights of one model,
clip alike, update alike, and carry the state on, detached. Dropout, where asked for, is on the embedding, between
layers and on the output.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tbptt.benchmark.works import Work, make_model
from tbptt.bptt import Plan, window_loss
from tbptt.budget import choose
from tbptt.errors import check_choice
from tbptt.memory import Prediction, Setting
from tbptt.nn import LanguageModel
from tbptt.state import State

CLIP = 0.25
RATE = 1.0


@dataclass(frozen=True)
class Variant:
    """A way to train.

    Attributes:
        family: "plain", "clones" or "ours".
        bfloat16: whether products are of bfloat16, under autocast.
        kernel: for ours, `model.kernel`.
        save: for ours, `model.save`.
        chunk: for ours, steps of a chunk: 0 for the whole window, "fifth" of it, or "auto" for the project's choice.
    """

    family: str
    bfloat16: bool = False
    kernel: str = "auto"
    save: str = "auto"
    chunk: int | str = 0


VARIANTS = {
    "plain": Variant("plain"),
    "plain-bf16": Variant("plain", bfloat16=True),
    "clones": Variant("clones"),
    "ours": Variant("ours"),
    "ours-bf16": Variant("ours", bfloat16=True),
    "ours-kernel": Variant("ours", kernel="ours", save="gates"),
    "ours-hidden": Variant("ours", kernel="ours", save="hidden"),
    "ours-torch": Variant("ours", kernel="torch"),
    "ours-chunked": Variant("ours", chunk="fifth"),
    "ours-auto": Variant("ours", chunk="auto"),
}


class Peer(ABC):
    """One of them.

    Args:
        net: the network; its parameters come in the order of `LanguageModel`.
        model: whose weights it starts from.
        device: "cpu" or "cuda".
        bfloat16: whether the forward pass is under autocast.
    """

    def __init__(self, net: nn.Module, model: LanguageModel, device: str, *, bfloat16: bool) -> None:
        self.net, self.device, self.bfloat16 = net.to(device), device, bfloat16
        self.parameters = list(net.parameters())
        for mine, given in zip(self.parameters, model.parameters(), strict=True):
            mine.data.copy_(given)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train on a window; returns its loss, 0-dimensional, mean nats per token."""
        loss = self.gradients(x, y)
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.update()
        return loss

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss and gradients of a window."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """As in PyTorch's word language model example."""
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-RATE)
            parameter.grad = None

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of a window, with a graph; carries the state on."""

    @abstractmethod
    def recur(self, inputs: Tensor) -> Tensor:
        """The recurrent layers alone: outputs `(T, B, H)` of inputs `(T, B, E)`."""


class PlainNet(nn.Module):
    """Embedding, torch's recurrent layers, projection."""

    def __init__(self, work: Work, cell: str, dropout: float) -> None:
        super().__init__()
        kind: Callable[..., nn.RNNBase] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell]
        between = dropout if work.num_layers > 1 else 0.0
        self.embedding = nn.Embedding(work.types, work.hidden_size)
        self.rnn = kind(work.hidden_size, work.hidden_size, work.num_layers, dropout=between)
        self.out = nn.Linear(work.hidden_size, work.types)
        self.dropout = dropout


class Plain(Peer):
    """A plain torch loop: the logits of the whole window, then their cross entropy."""

    net: PlainNet
    state: Any = None

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of a window; the state stays, detached."""
        net = self.net
        hidden, state = net.rnn(F.dropout(net.embedding(x), net.dropout), self.state)
        self.state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return F.cross_entropy(net.out(F.dropout(hidden, net.dropout)).flatten(0, 1), y.flatten())

    def recur(self, inputs: Tensor) -> Tensor:
        """The recurrent layers alone."""
        outputs: Tensor = self.net.rnn(inputs)[0]
        return outputs


class Step(nn.Module):
    """One time step: a cell for each layer, and the projection."""

    def __init__(self, work: Work, cell: str, dropout: float) -> None:
        super().__init__()
        kind: Callable[..., nn.RNNCellBase] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}[cell]
        self.cells = nn.ModuleList(kind(work.hidden_size, work.hidden_size) for _ in range(work.num_layers))
        self.out = nn.Linear(work.hidden_size, work.types)
        self.dropout = dropout

    def recur(self, values: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Outputs `(B, H)` and the states of the layers, from inputs `(B, E)` and those before."""
        after = []
        for layer, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            state = cell(F.dropout(values, self.dropout) if layer else values, state)
            values = state[0] if isinstance(state, tuple) else state
            after.append(state)
        return values, after


class ClonesNet(nn.Module):
    """Embedding and step; `clones` share its weights, one for each time step, as in char-rnn."""

    def __init__(self, work: Work, cell: str, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(work.types, work.hidden_size)
        self.step = Step(work, cell, dropout)
        shared = {id(parameter): parameter for parameter in self.step.parameters()}
        self.clones = [copy.deepcopy(self.step, dict(shared)) for _ in range(work.window_steps)]
        self.layers, self.dropout = work.num_layers, dropout


class Clones(Peer):
    """A clone of the cell for each time step, with logits and loss of its own; one backward pass through all.

    The embedding is looked up once for the window, which is faster than a look-up a step.
    """

    net: ClonesNet
    states: list[Any] | None = None

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean of the steps' losses; the states stay, detached."""
        net = self.net
        states: list[Any] = self.states or [None] * net.layers
        losses = []
        for clone, values, targets in zip(net.clones, F.dropout(net.embedding(x), net.dropout), y, strict=True):
            values, states = clone.recur(values, states)
            losses.append(F.cross_entropy(clone.out(F.dropout(values, net.dropout)), targets))
        self.states = [
            tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach() for state in states
        ]
        return torch.stack(losses).mean()

    def recur(self, inputs: Tensor) -> Tensor:
        """The recurrent layers alone."""
        outputs, states = [], [None] * self.net.layers
        for clone, values in zip(self.net.clones, inputs, strict=True):
            values, states = clone.recur(values, states)
            outputs.append(values)
        return torch.stack(outputs)


class Ours(Peer):
    """The project's: `window_loss`, and torch's fused optimizer.

    Args:
        net: the network, of the project's own class.
        model: whose weights it starts from.
        device: "cpu" or "cuda".
        bfloat16: whether the forward pass is under autocast.
        optimizer: makes the optimizer.
        plan: how the windows are run.
    """

    net: LanguageModel

    def __init__(
        self,
        net: LanguageModel,
        model: LanguageModel,
        device: str,
        *,
        bfloat16: bool,
        optimizer: "Make",
        plan: Plan,
    ) -> None:
        super().__init__(net, model, device, bfloat16=bfloat16)
        self.optimizer = optimizer(iter(self.parameters))
        self.plan = plan
        self.state: State | None = None

    def update(self) -> None:
        """By torch's optimizer."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of a window; the state stays."""
        state = self.net.initial_state(x.shape[1]) if self.state is None else self.state
        loss, self.state = window_loss(self.net, x, y, state, plan=self.plan, divisor=float(y.numel()))
        return loss

    def recur(self, inputs: Tensor) -> Tensor:
        """The recurrent layers alone."""
        outputs: Tensor = self.net.core(inputs, self.net.initial_state(inputs.shape[1]))[0]
        return outputs


Make = Callable[[Iterator[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(list(parameters), lr=RATE, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(list(parameters), lr=1e-3, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(list(parameters), lr=1e-3),
}


def make_peer(
    variant: Variant,
    model: LanguageModel,
    work: Work,
    cell: str,
    *,
    dropout: float = 0.0,
    device: str = "cpu",
    optimizer: str = "sgd",
    plan: Plan | None = None,
    **others: Any,
) -> Peer:
    """A peer that starts from the weights of `model`, which is left as it is.

    Args:
        variant: the way to train.
        model: of the project's class, with the shapes of `work`.
        work: model and shape of windows.
        cell: "lstm", "gru" or "rnn".
        dropout: probability.
        device: "cpu" or "cuda".
        optimizer: for ours, a name of `OPTIMIZERS`.
        plan: for ours, how to run windows; None for what the variant says.
        others: for ours, arguments of `LanguageModel` that are to differ.

    Raises:
        UserError: for a family that does not exist.
    """
    check_choice("family", variant.family, ("plain", "clones", "ours"))
    if variant.family == "plain":
        return Plain(PlainNet(work, cell, dropout), model, device, bfloat16=variant.bfloat16)
    if variant.family == "clones":
        return Clones(ClonesNet(work, cell, dropout), model, device, bfloat16=variant.bfloat16)
    net = make_model(work, cell, dropout, **{**others, "kernel": variant.kernel, "save": variant.save})
    plan = usual_plan(variant, work) if plan is None else plan
    return Ours(net, model, device, bfloat16=variant.bfloat16, optimizer=OPTIMIZERS[optimizer], plan=plan)


def usual_plan(variant: Variant, work: Work) -> Plan:
    """How a variant runs windows, where the project is not asked to choose."""
    assert variant.chunk != "auto", "choose it beforehand: that takes memory itself"
    chunk = max(1, work.window_steps // 5) if variant.chunk == "fifth" else int(variant.chunk)
    return Plan((chunk,)) if 0 < chunk < work.window_steps else Plan()


def predicted(
    variant: Variant, work: Work, cell: str, *, dropout: float, device: str, optimizer: str = "sgd", **others: Any
) -> Prediction:
    """How the project would run the windows of a variant, and what it says that this takes in memory."""
    net = make_model(work, cell, dropout, **{**others, "kernel": variant.kernel, "save": variant.save})
    setting = Setting(
        model=net.to(device),
        streams=work.streams,
        steps=work.window_steps,
        context=0,
        optimizer=OPTIMIZERS[optimizer],
        accumulate=1,
        compute_dtype=torch.bfloat16 if variant.bfloat16 else torch.float32,
        device=device,
    )
    chunk = max(1, work.window_steps // 5) if variant.chunk == "fifth" else variant.chunk or work.window_steps
    return choose(setting, chunk, None)
