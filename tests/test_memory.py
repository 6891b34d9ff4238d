import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from tbptt.bptt import Plan, window_loss
from tbptt.budget import choose
from tbptt.errors import UserError
from tbptt.memory import MIB, Prediction, Setting, optimizer_tensors, predict
from tbptt.nn import LanguageModel
from tbptt.peak import PeakMemory

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], Optimizer]] = {
    "adamw fused": lambda parameters: AdamW(parameters, fused=True),
    "adam": lambda parameters: Adam(parameters),
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "sgd momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "rmsprop": lambda parameters: RMSprop(parameters),
}


def setting(cell: str, optimizer: str = "adamw fused", **changes: Any) -> Setting:
    """What `Setting` says, and the arguments of `LanguageModel`, by name."""
    values: dict[str, Any] = {
        "vocab_size": 65,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_layers": 2,
        "dropout": 0.0,
        "tie_weights": False,
        "learn_initial_state": False,
        "nonlinearity": None if cell in ("lstm", "gru") else cell,
        "kernel": "ours",
    }
    others: dict[str, Any] = {"streams": 16, "steps": 60, "context": 0, "accumulate": 1, "compute_dtype": torch.float32}
    for name, value in changes.items():
        (others if name in others else values)[name] = value
    model = LanguageModel(cell=cell if cell in ("lstm", "gru") else "rnn", **values)
    return Setting(model=model, optimizer=OPTIMIZERS[optimizer], device="cpu", **others)


def measured(one: Setting, found: Prediction, updates: int = 2) -> int:
    """The peak of a plain training loop, model and optimizer included."""
    narrow = one.compute_dtype == torch.bfloat16
    core, weight = one.model.core, one.model.embedding.weight
    arguments: dict[str, Any] = {
        "cell": core.cell,
        "embedding_size": weight.shape[1],
        "hidden_size": core.rnn.hidden_size,
        "num_layers": core.rnn.num_layers,
        "dropout": one.model.dropout.probability,
        "tie_weights": one.model.head.projection.weight is weight,
        "learn_initial_state": False,
        "nonlinearity": None if core.kind == core.cell else core.kind,
        "kernel": core.kernel,
        "save": found.save,
    }
    with PeakMemory() as peak:
        model = LanguageModel(len(weight), **arguments).to(weight.dtype)
        optimizer = one.optimizer(model.parameters())
        state = model.initial_state(one.streams)
        for number in range(updates * one.accumulate):
            text = torch.randint(len(weight), (one.steps + 1, one.streams))
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                loss, state = window_loss(model, text[:-1], text[1 + one.context :], state, plan=found.plan)
            (loss / one.accumulate).backward()
            if (number + 1) % one.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
                optimizer.zero_grad()
    return peak.bytes


GRID: list[tuple[str, dict[str, Any], Plan, str]] = [
    ("lstm", {"vocab_size": 10000, "kernel": "torch", "optimizer": "sgd", "dropout": 0.2}, Plan(), "gates"),
    ("lstm", {"vocab_size": 33278, "hidden_size": 128, "tie_weights": True, "steps": 33}, Plan((), 32), "gates"),
    ("lstm", {"kernel": "torch", "steps": 200, "streams": 8}, Plan((56,)), "gates"),
    ("lstm", {"embedding_size": 320, "kernel": "torch", "compute_dtype": torch.bfloat16}, Plan(), "gates"),
    ("lstm", {"vocab_size": 2000, "hidden_size": 400, "optimizer": "sgd momentum", "dropout": 0.2}, Plan(), "gates"),
    ("lstm", {"vocab_size": 2000, "context": 25, "accumulate": 2, "optimizer": "adam"}, Plan(), "hidden"),
    ("lstm", {"num_layers": 3, "dropout": 0.2, "steps": 330, "streams": 4}, Plan((300, 30)), "hidden"),
    ("gru", {"num_layers": 3, "optimizer": "rmsprop", "steps": 90}, Plan(), "gates"),
    ("gru", {"kernel": "auto", "steps": 540, "streams": 4, "hidden_size": 128}, Plan((504, 8)), "gates"),
    ("gru", {"steps": 220, "compute_dtype": torch.bfloat16, "vocab_size": 3000}, Plan((16,)), "hidden"),
    ("gru", {"kernel": "torch", "dropout": 0.2, "num_layers": 1, "steps": 90}, Plan(), "gates"),
    ("tanh", {"steps": 300, "dropout": 0.2}, Plan(), "gates"),
    ("tanh", {"steps": 300, "kernel": "torch"}, Plan((104,)), "gates"),
    ("relu", {"vocab_size": 10000, "streams": 128, "optimizer": "adam", "steps": 20}, Plan((1,), 16), "gates"),
]


@pytest.mark.parametrize(("cell", "changes", "plan", "save"), GRID, ids=lambda value: str(value)[:40])
def test_a_prediction_is_the_measured_peak(cell: str, changes: dict[str, Any], plan: Plan, save: str) -> None:
    one = setting(cell, **changes)
    found = predict(one, plan, save)
    assert found.total == pytest.approx(measured(one, found), rel=0.05)
    assert all(size >= 0 for size in found.parts.values())


def test_a_model_in_float64_is_predicted_too() -> None:
    one = setting("lstm", kernel="torch", dropout=0.2, compute_dtype=torch.float64)
    one.model.double()
    found = predict(one, Plan(), "gates")
    assert found.total == pytest.approx(measured(one, found), rel=0.05)


def test_a_frozen_embedding_has_neither_gradient_nor_optimizer() -> None:
    one = setting("gru", vocab_size=20000, steps=9)
    before = predict(one, Plan((), 16), "gates")
    one.model.embedding.weight.requires_grad_(False)
    after = predict(one, Plan((), 16), "gates")
    # AdamW keeps two tensors beside the gradient; the weights stay.
    assert before.parts["optimizer"] - after.parts["optimizer"] == 2 * one.model.embedding.weight.nbytes
    assert before.parts["weights"] == after.parts["weights"]
    assert before.total - after.total == pytest.approx(3 * one.model.embedding.weight.nbytes, rel=0.05)


@pytest.mark.parametrize(
    ("optimizer", "kept", "passing"),
    [("adamw fused", 2, 0), ("adam", 2, 2), ("sgd", 0, 0), ("sgd momentum", 1, 0), ("rmsprop", 1, 1)],
)
def test_tensors_of_an_optimizer(optimizer: str, kept: int, passing: int) -> None:
    assert optimizer_tensors(OPTIMIZERS[optimizer]) == (kept, passing)
    with PeakMemory() as peak:
        weight = nn.Parameter(torch.zeros(2**20))
        made = OPTIMIZERS[optimizer](iter([weight]))
        for _ in range(2):
            weight.grad = torch.zeros(2**20)
            made.step()
            made.zero_grad()
        peak.mark()
    assert peak.kept[0] == pytest.approx((1 + kept) * weight.nbytes, rel=0.001)
    assert peak.bytes == pytest.approx((2 + kept + passing) * weight.nbytes, rel=0.001)


def test_a_table_adds_up_and_says_when_and_why() -> None:
    one = setting("lstm", vocab_size=900)
    found = choose(one, 7, None)
    *rows, total, moment, reason = found.table().splitlines()
    sizes = {line[:13].strip(): float(line.split()[-2]) for line in rows}
    assert list(sizes) == list(found.parts)
    assert list(sizes)[:3] == ["weights", "optimizer", "gradients"]
    assert re.fullmatch(r"total +[\d.]+ MiB", total)
    assert sum(sizes.values()) == pytest.approx(float(total.split()[1]), abs=0.05 * len(sizes))
    assert moment.startswith("most is taken in the ")
    assert reason == "chunks of 7 steps, as bptt.chunk=7 asks"
    assert sizes["weights"] == pytest.approx(sum(p.nbytes for p in one.model.parameters()) / MIB, abs=0.05)


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("gru", {"hidden_size": 96, "embedding_size": 64, "steps": 150, "streams": 64}),
    (
        "lstm",
        {"hidden_size": 96, "embedding_size": 64, "vocab_size": 5000, "num_layers": 1, "steps": 70, "dropout": 0.1},
    ),
    ("lstm", {"hidden_size": 64, "embedding_size": 48, "kernel": "torch", "streams": 4, "steps": 700, "context": 40}),
]


@pytest.mark.parametrize(("cell", "changes"), SETTINGS, ids=["gru", "lstm-words", "lstm-torch"])
def test_a_budget_is_kept_and_a_larger_one_is_never_worse_used(cell: str, changes: dict[str, Any]) -> None:
    one = setting(cell, **changes)
    whole = predict(one, Plan(), "gates").total / MIB
    least = refused(one, 0.01)
    chunks, plans = [], {}
    for number in range(40):
        budget = least * (1.2 * whole / least) ** (number / 39)
        found = choose(one, "auto", budget)
        assert found.total <= budget * MIB
        chunks.append(found.plan.sizes[-1] if found.plan.sizes else one.steps)
        plans[found.plan, found.save] = found, budget
    assert chunks == sorted(chunks)
    assert chunks[-1] == one.steps
    assert len(plans) >= 5
    several = list(plans.values())
    for found, budget in several[:: len(several) // 4]:
        assert measured(one, found) <= 1.05 * budget * MIB


def refused(one: Setting, budget: float, chunk: int | str = "auto") -> int:
    """The least that the refusal of a budget names."""
    with pytest.raises(UserError, match=r"bptt.memory_mib=\S+ cannot be met.* weights, gradients and") as error:
        choose(one, chunk, budget)
    (least,) = re.findall(r"give bptt.memory_mib=(\d+) or more", str(error.value))
    return int(least)


@pytest.mark.parametrize(("cell", "changes"), SETTINGS, ids=["gru", "lstm-words", "lstm-torch"])
def test_the_least_that_a_refusal_names_is_enough_and_nothing_less(cell: str, changes: dict[str, Any]) -> None:
    one = setting(cell, **changes)
    least = refused(one, 0.5)
    assert refused(one, least - 1) == least
    found = choose(one, "auto", least)
    assert found.total <= least * MIB
    assert measured(one, found) <= 1.05 * least * MIB


def test_the_fastest_way_that_fits() -> None:
    """Whole windows, then fewer rows of logits, then less kept, then chunks, then groups of chunks."""
    one = setting("gru", hidden_size=96, vocab_size=300, steps=1000, streams=8)
    whole, hidden = (predict(one, Plan(), save).total / MIB for save in ("gates", "hidden"))
    assert choose(one, "auto", 300) == replace(
        predict(one, Plan(), "gates"), reason="whole windows, save=gates: the fastest way within bptt.memory_mib=300"
    )
    ways = [choose(one, "auto", budget) for budget in (whole - 0.5, hidden + 0.01, hidden * 0.5, refused(one, 0.1))]
    assert [(len(way.plan.sizes), way.save) for way in ways] == [
        (0, "gates"),
        (0, "hidden"),
        (1, "hidden"),
        (2, "gates"),
    ]
    assert ways[0].plan.rows is not None


def test_without_a_budget_windows_are_whole_until_their_activations_are_many() -> None:
    one = setting("gru", streams=2, steps=70)
    assert choose(one, "auto", None).plan == Plan()
    long = replace(one, steps=200_000)
    found = choose(long, "auto", None)
    assert len(found.plan.sizes) == 1
    assert found.plan.sizes[0] % 8 == 0
    assert found.plan.sizes[0] * 2 >= 1024
    assert "activations of a whole window would take" in found.reason


def test_many_borders_are_kept_in_groups() -> None:
    one = setting("gru", streams=8, steps=40_000)
    sizes = choose(one, 2, None).plan.sizes
    assert len(sizes) == 2
    assert sizes[0] == pytest.approx(2 * 20_000**0.5, rel=0.01)
    assert choose(one, 40_000, None).plan == Plan()


def test_a_chunk_that_is_asked_for_is_taken_or_the_budget_refused() -> None:
    one = setting("lstm", steps=40)
    found = choose(one, 10, 500)
    assert found.plan == Plan((10,))
    least = refused(one, 0.25, chunk=10)
    assert choose(one, 10, least).plan.sizes[-1] == 10
    with pytest.raises(UserError, match=r"cannot be met with bptt.chunk=10: .* or more, bptt.chunk=auto, or a smaller"):
        choose(one, 10, 0.25)


@pytest.mark.parametrize("chunk", [0, -3, 2.5, "x", True, None])
def test_a_wrong_chunk_is_refused(chunk: Any) -> None:
    with pytest.raises(UserError, match=r"bptt\.chunk must be an integer of at least 1, but it is .*; .*or give auto"):
        choose(setting("tanh"), chunk, None)


@pytest.mark.parametrize("budget", [0, -1, "x", True, float("nan"), float("inf")])
def test_a_wrong_budget_is_refused(budget: Any) -> None:
    with pytest.raises(UserError, match=r"bptt\.memory_mib must be a number greater than 0, but it is .*null for none"):
        choose(setting("tanh"), "auto", budget)


def test_the_peak_of_a_block_is_that_of_its_tensors() -> None:
    size = 2**18
    with PeakMemory() as peak:
        one = torch.zeros(size)
        two = one + 1
        del two
        peak.mark()
        three = one.double()
        del one, three
    # Beside them a number or two.
    assert peak.peaks == pytest.approx([2 * 4 * size, (4 + 8) * size], abs=64)
    assert peak.kept == [4 * size, 0]
    assert peak.bytes == peak.peaks[1]


def test_a_measurement_leaves_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with PeakMemory():
        torch.zeros(3)
        torch.ones(5)
    assert capfd.readouterr().err == ""
