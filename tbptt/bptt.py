"""The exact gradient of a window in bounded memory.

Shapes: tokens `(C + T, B)`, targets `(T, B)`, state `(L, B, H)`; the first `C` steps are context, without targets.

A window is cut into chunks. A first pass keeps the state at the chunks' borders and nothing else; then the chunks are
run again from the last to the first, each with its activations, its loss and its gradients, and the gradient of the
state goes on to the chunk before. The last chunk needs no first pass, so a window of one chunk is plain BPTT. Where
even the borders are many, chunks are nested (Griewank 1992): a group keeps its parts' borders only while it is swept.

Gradients of weights add up in one buffer each, from the forward call on; the backward call hands them over. So logits
and activations of one chunk exist at a time, and the head's gradients are made while its logits are there.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.gradient_memory import empty_again
from tbptt.metrics import IGNORED
from tbptt.nn import LanguageModel
from tbptt.nn.dropout import WindowDropout
from tbptt.ops.linear_cross_entropy import LinearCrossEntropy
from tbptt.state import State

SECOND = (
    "the gradient of a window can be taken once: it is made together with the loss and handed over by the first "
    "backward pass. Call window_loss again, or model.loss to use retain_graph or create_graph."
)


@dataclass(frozen=True)
class Plan:
    """How a window is run.

    Attributes:
        sizes: steps of a chunk, last; before it, steps of the groups that hold chunks, the largest first. Empty for
            windows that are run whole.
        rows: rows of the head's chunks, None for its own choice.
    """

    sizes: tuple[int, ...] = ()
    rows: int | None = None


WHOLE = Plan()
# Types of characters or bytes, for which torch's own loss is the fastest.
DENSE_TYPES = 256


def runs_dense(model: LanguageModel, plan: Plan) -> bool:
    """Whether a chunk has all its logits at once: no larger than what else is kept, they cost little and save time."""
    linear = model.head.projection
    return plan.rows is None and linear.out_features <= max(DENSE_TYPES, linear.in_features)


def window_loss(
    model: LanguageModel,
    tokens: Tensor,
    targets: Tensor,
    state: State,
    *,
    plan: Plan = WHOLE,
    reset: Tensor | None = None,
    advance: int | None = None,
    divisor: float | None = None,
) -> tuple[Tensor, State]:
    """Mean nats per target of a window, with its exact gradient, and the state to go on from.

    Args:
        model: the network; its parameters get their gradients when `backward` is called on the loss.
        tokens: `(C + T, B)`, int64.
        targets: `(T, B)`, of the last `T` steps; those that are `IGNORED` do not count.
        state: before the first step; a learned one gets its gradient too.
        plan: chunks; the result does not depend on it but for rounding.
        reset: `(S, B)` of bool, streams that go back to the initial state before one of the first `S` steps; None for
            none.
        advance: the state returned is the one after so many steps, None for all.
        divisor: what the sum of nats is divided by; None for the number of targets that count, or 1 where none does.

    Returns:
        the loss, 0-dimensional, and a state without history.

    Raises:
        RuntimeError: when `backward` is called a second time, or with `create_graph`.
    """
    window = _Window(model, tokens, targets, plan, reset, len(tokens) if advance is None else advance, divisor)
    parameters = list(model.parameters())
    loss: Tensor = _Gradient.apply(window, state.hidden, state.cell, *parameters)  # type: ignore[no-untyped-call]
    assert window.after is not None
    return loss, window.after


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, window: "_Window", hidden: Tensor, cell: Tensor | None, *parameters: nn.Parameter) -> Tensor:
        ctx.scale = window.scale
        wanted = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        flow = window.sweep(State(hidden, cell))
        ctx.gradients = [flow.hidden if wanted else None, flow.cell if wanted else None]
        ctx.gradients += [window.gradients.get(parameter) for parameter in parameters]
        return window.nats

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.gradients is None or torch.is_grad_enabled():
            raise RuntimeError(SECOND)
        gradients, ctx.gradients = ctx.gradients, None
        factor = gradient / ctx.scale
        # Usually 1, which only a CPU can find out without waiting.
        if factor.device.type != "cpu" or factor.item() != 1.0:
            for one in gradients:
                if one is not None:
                    one.mul_(factor)
        return None, *gradients


class _Window:
    """One window on its way through the sweep."""

    def __init__(
        self,
        model: LanguageModel,
        tokens: Tensor,
        targets: Tensor,
        plan: Plan,
        reset: Tensor | None,
        advance: int,
        divisor: float | None,
    ) -> None:
        self.model, self.tokens, self.targets, self.reset = model, tokens, targets, reset
        self.context = len(tokens) - len(targets)
        self.sizes = plan.sizes
        self.advance = advance
        self.after: State | None = None
        self.dropout: WindowDropout | None = model.dropout.window()
        self.gradients: dict[Tensor, Tensor] = {}
        linear = model.head.projection
        device = tokens.device.type
        self.autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if self.autocast else linear.weight.dtype
        # In float16 the gradients of a mean over many tokens would vanish; those of the sum do not.
        self.scale = (divisor or float(targets.numel())) if dtype == torch.float16 else 1.0
        # Counted on the device where nobody has counted before: to ask how many there are would be to wait.
        self.divisor = (targets != IGNORED).sum().clamp_(min=1) if divisor is None else divisor
        self.dense = runs_dense(model, plan)
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.nats = torch.zeros((), device=tokens.device, dtype=self.wide)
        parts = [model.core, model.head] if self.dense else [model.core]
        self.weights = [one for part in parts for one in part.parameters() if one.requires_grad]
        self.head = None if self.dense else self._accumulator(dtype, plan.rows)

    def _accumulator(self, dtype: torch.dtype, rows: int | None) -> LinearCrossEntropy:
        linear, scored = self.model.head.projection, len(self.targets) > 0
        return LinearCrossEntropy(
            linear.weight,
            linear.bias,
            divisor=self.divisor,
            scale=self.scale,
            grad_weight=self._buffer(linear.weight, again=scored),
            grad_bias=self._buffer(linear.bias),
            fresh=scored,
            rows=rows,
            compute_dtype=dtype,
        )

    def _buffer(self, parameter: Tensor, *, again: bool = False) -> Tensor | None:
        """Where the gradient of a parameter adds up, zeros, or `again` memory used before, to be written first.

        A tied one has one buffer for both of its places.
        """
        if not parameter.requires_grad:
            return None
        if parameter not in self.gradients:
            made = empty_again if again else torch.zeros_like
            self.gradients[parameter] = made(parameter, memory_format=torch.contiguous_format)
        return self.gradients[parameter]

    def sweep(self, state: State) -> State:
        """Run the whole window; return the gradient of the state it started from."""
        flow = state.map(torch.zeros_like)
        # The cache of autocast would hand weights cast without a gradient to the chunks that want one.
        with torch.autocast(self.tokens.device.type, enabled=self.autocast, cache_enabled=False):
            return self._reverse(0, len(self.tokens), state.detach(), flow, self.sizes)

    def _parts(self, begin: int, end: int, size: int) -> list[tuple[int, int]]:
        """Steps `begin` to `end` in parts of `size`; one more border where the carry is to be taken."""
        borders = sorted({*range(begin, end, size), *({self.advance} if begin < self.advance < end else ())})
        return list(zip(borders, [*borders[1:], end], strict=True))

    def _reverse(self, begin: int, end: int, state: State, flow: State, sizes: tuple[int, ...]) -> State:
        """Sweep from `end` back to `begin`, where `state` stands; `flow` is the gradient of the state after `end`."""
        if begin == self.advance:
            self.after = state.map(Tensor.clone)
        parts = self._parts(begin, end, sizes[0] if sizes else end - begin)
        if len(parts) == 1 and len(sizes) <= 1:
            return self._chunk(begin, end, state, flow)
        borders = self._borders(parts, state)
        while parts:
            flow = self._reverse(*parts.pop(), borders.pop(), flow, sizes[1:])
        return flow

    def _borders(self, parts: list[tuple[int, int]], state: State) -> list[State]:
        """The state before each part. The last part is not run: nobody asks yet where it ends."""
        borders = [state]
        with torch.no_grad():
            for begin, end in parts[:-1]:
                # A group of chunks goes by in chunks too, so that it takes no more memory than these.
                for first, last in self._parts(begin, end, min(self.sizes, default=end - begin)):
                    state = self._core(first, last, self._inputs(first, last), state)[1].detach()
                borders.append(state)
        return borders

    def _inputs(self, begin: int, end: int) -> Tensor:
        """Embedded and dropped tokens, without history: the sweep treats them as leaves."""
        with torch.no_grad():
            inputs = F.embedding(self.tokens[begin:end], self.model.embedding.weight)
            return inputs if self.dropout is None else self.dropout.at(begin)(inputs, 0)

    def _core(self, begin: int, end: int, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        dropout = None if self.dropout is None else self.dropout.at(begin)
        result: tuple[Tensor, State] = self.model.core(
            inputs, state, dropout, None if self.reset is None else self.reset[begin:end]
        )
        return result

    def _run(self, begin: int, end: int, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, after = self._core(begin, end, inputs, state)
        if self.dropout is not None:
            outputs = self.dropout.at(begin)(outputs, self.model.core.rnn.num_layers)
        return outputs, after

    def _chunk(self, begin: int, end: int, state: State, flow: State) -> State:
        """Loss and gradients of one chunk; returns the gradient of the state before it."""
        inputs = self._inputs(begin, end).requires_grad_(self.model.embedding.weight.requires_grad)
        leaf = state.map(lambda tensor: tensor.detach().requires_grad_())
        with torch.enable_grad():
            outputs, after = self._run(begin, end, inputs, leaf)
            scored, targets = self._scored(begin, outputs)
            loss = self._dense_loss(scored, targets) if self.dense else (scored, self._loss(begin, scored, targets))
        if end == len(self.tokens) and self.advance == end:
            self.after = after.map(lambda tensor: tensor.detach().clone())
        sources = [loss, (after.hidden, flow.hidden), (after.cell, flow.cell)]
        ends = [(tensor, gradient) for tensor, gradient in sources if tensor is not None and gradient is not None]
        leaves = [leaf.hidden, *([] if leaf.cell is None else [leaf.cell])]
        found = torch.autograd.grad(
            [tensor for tensor, _ in ends],
            [*leaves, *self.weights, *([inputs] if inputs.requires_grad else [])],
            [gradient.to(tensor.dtype) for tensor, gradient in ends],
            allow_unused=True,
        )
        for parameter, gradient in zip(self.weights, found[len(leaves) :], strict=False):
            self._add(parameter, gradient)
        if inputs.requires_grad:
            self._embed(begin, end, found[-1])
        return State(*found[: len(leaves)])

    def _add(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        if parameter in self.gradients:
            self.gradients[parameter] += gradient
        else:
            self.gradients[parameter] = gradient

    def _embed(self, begin: int, end: int, gradient: Tensor) -> None:
        """Add the gradient of embedded tokens `(S, B, E)` to the rows that they came from."""
        if self.dropout is not None:
            gradient = self.dropout.at(begin)(gradient, 0)
        weight, tokens = self.model.embedding.weight, self.tokens[begin:end]
        buffer = self._buffer(weight)
        assert buffer is not None
        if tokens.is_cuda:
            # In place it would add in any order there, and two runs would differ.
            buffer += torch.ops.aten.embedding_dense_backward(gradient, tokens, len(weight), -1, False)
        else:
            buffer.index_add_(0, tokens.flatten(), gradient.flatten(0, 1).to(buffer.dtype))

    def _scored(self, begin: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of a chunk that have targets, `(S * B, H)`, and these; of a chunk of context none."""
        first = min(len(outputs), max(0, self.context - begin))
        at = begin + first - self.context
        return outputs[first:].flatten(0, 1), self.targets[at : at + len(outputs) - first].flatten()

    def _loss(self, begin: int, scored: Tensor, targets: Tensor) -> Tensor | None:
        """Add the loss of a chunk; returns the gradient of its outputs."""
        if not len(targets):
            return None
        assert self.head is not None
        gradient = self.head.add(scored.detach(), targets)
        self.nats = self.head.nats
        if begin <= self.context:
            # The first targets come last: the weight that the head has cast is not needed any more.
            self.head = None
        return gradient

    def _dense_loss(self, scored: Tensor, targets: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Add the loss of a chunk; returns it, with its history, and its gradient."""
        if not len(targets):
            return None, None
        loss = F.cross_entropy(self.model.head(scored).to(self.wide), targets, reduction="sum") / self.divisor
        self.nats = self.nats + loss.detach()
        return loss, torch.full_like(loss, self.scale)
