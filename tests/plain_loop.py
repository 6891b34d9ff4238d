"""Truncated BPTT from its definition, step by step: what a run in float64 must equal."""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tbptt.run import Run


def plain_loop(
    start: dict[str, Tensor],
    cell: str,
    tokens: Tensor,
    passes: Sequence[Sequence[int]],
    *,
    context: int = 0,
    reset: str = "epoch",
    rate: Callable[[int, int], float] = lambda length, number: 1.0,
    borders: Collection[int] = (),
    dropped: Callable[[int, int], Tensor | None] = lambda number, index: None,
    accumulate: int = 1,
) -> dict[str, Tensor]:
    """Truncated BPTT from its definition, in float64, step by step through torch's cells.

    The state at each step of the text is kept, detached, as it was when the step before it was last run. An update
    starts from the one `context` steps before its window, or at the start of the text, runs up to the end of the
    window with the weights of now, and scores the window. A stream starts from zeros before the first token of a
    document, which is not scored either, and, where it is `dropped`, before the first step of the window itself.
    """
    kind = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}[cell]
    types = len(start["model.embedding.weight"])
    embedding, out = nn.Embedding(types, 12).double(), nn.Linear(16, types).double()
    cells = [kind(12, 16).double(), kind(16, 16).double()]
    net = nn.ModuleDict({"embedding": embedding, "cells": nn.ModuleList(cells), "out": out})
    names = {"embedding.weight": "embedding.weight"}
    names |= {f"out.{part}": f"head.projection.{part}" for part in ("weight", "bias")}
    for layer, part in itertools.product((0, 1), ("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
        names[f"cells.{layer}.{part}"] = f"core.rnn.{part}_l{layer}"
    net.load_state_dict({ours: start[f"model.{theirs}"].double() for ours, theirs in names.items()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    text = tokens[: len(tokens) // 3 * 3].view(3, -1).t().long()
    first_of_document = torch.tensor([place in borders for place in range(text.numel())]).view(3, -1).t()
    zeros = torch.zeros(3, 16, dtype=torch.float64)
    fresh: list[Any] = [(zeros, zeros) if cell == "lstm" else zeros] * 2
    kept = {0: fresh}
    number = 0
    for turn, lengths in enumerate(passes):
        kept = {0: kept[max(kept)] if reset == "never" else fresh}
        begin = 0
        for index, length in enumerate(lengths):
            first, end = max(0, begin - context), begin + length
            state, nats = kept[first], torch.zeros((), dtype=torch.float64)
            lost = dropped(turn, index)
            for step in range(first, end):
                state = anew(state, first_of_document[step])
                if step == begin and lost is not None:
                    state = anew(state, lost)
                value, after = embedding(text[step]), []
                for layer, before in zip(cells, state, strict=True):
                    after.append(layer(value, before))
                    value = after[-1][0] if cell == "lstm" else after[-1]
                state = after
                kept[step + 1] = [
                    tuple(part.detach() for part in s) if cell == "lstm" else s.detach()  # type: ignore[union-attr]
                    for s in state
                ]
                if step >= begin:
                    of_each = F.cross_entropy(out(value), text[step + 1], reduction="none")
                    nats = nats + of_each[~first_of_document[step + 1]].sum()
            targets = max(1, int((~first_of_document[begin + 1 : end + 1]).sum()))
            (nats / targets / accumulate).backward()  # type: ignore[no-untyped-call]
            optimizer.param_groups[0]["lr"] = 0.5 * rate(length, number)
            begin, number = end, number + 1
            if number % accumulate == 0 or index == len(lengths) - 1:
                optimizer.step()
                optimizer.zero_grad()
    return {theirs: net.state_dict()[ours] for ours, theirs in names.items()}


def anew(state: list[Any], rows: Tensor) -> list[Any]:
    """The state of all layers, with zeros in the marked rows `(3,)`."""
    return [
        tuple(anew(list(layer), rows)) if isinstance(layer, tuple) else layer.masked_fill(rows[:, None], 0.0)
        for layer in state
    ]


def assert_close_weights(run: Run, expected: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    trained = run.task.model.state_dict()
    assert trained["embedding.weight"].dtype == torch.float64
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-12, atol=1e-12)
        assert (value - start[f"model.{name}"]).abs().max() > 1e-4, "training moved it by far more than that"
