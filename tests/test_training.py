"""The trainer against a plain loop, and what must not change a run."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from conftest import assert_equal_weights, weights
from torch import Tensor, nn

from tbptt.bptt import window_loss
from tbptt.callbacks import Samples
from tbptt.nn.dropout import Dropout
from tbptt.run import Run
from tbptt.streams import Window

Make = Callable[..., Run]
MODELS = ["lstm", "gru", "rnn", "rnn model.nonlinearity=relu"]
SEED = 11


class SeedAtStart(L.Callback):
    """So that dropout draws the same masks as in the plain loop."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.manual_seed(SEED)


class Losses(L.Callback):
    """The loss of every training window."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, *args: Any, **more: Any) -> None:
        self.values.append(args[2]["nats"].item())


def fit(run: Run, *callbacks: L.Callback) -> Run:
    run.trainer.callbacks += callbacks  # type: ignore[attr-defined]
    run.trainer.fit(run.task, datamodule=run.data)
    return run


def losses(run: Run) -> list[float]:
    seen = Losses()
    fit(run, seen)
    return seen.values


def plain_loop(start: dict[str, Tensor], cell: str, tokens: Tensor, *, clip: float, accumulate: int = 1) -> nn.Module:
    """The lines of plain torch that a trainer must equal: 4 streams, windows of 9, the state carried and detached."""
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell.split()[0]]
    options = {"nonlinearity": "relu"} if "relu" in cell else {}
    net = nn.ModuleDict(
        {
            "embedding": nn.Embedding(*start["model.embedding.weight"].shape),
            "first": kind(12, 16, **options),
            "second": kind(16, 16, **options),
            "out": nn.Linear(16, len(start["model.embedding.weight"])),
        }
    ).double()
    for name, value in start.items():
        layer = "second" if name.endswith("_l1") else "first"
        for ours, theirs in (("core.rnn", layer), ("head.projection", "out"), ("_l1", "_l0"), ("model.", "")):
            name = name.replace(ours, theirs)
        net.get_parameter(name).data.copy_(value)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.002, weight_decay=0.01)
    streams = tokens[: len(tokens) // 4 * 4].view(4, -1).t().long()
    torch.manual_seed(SEED)
    dropout, states = Dropout(0.3), [None, None]
    for number, begin in enumerate(range(0, 20 * 9, 9)):
        x, y = streams[begin : begin + 9], streams[begin + 1 : begin + 10]
        drop = dropout.window()
        hidden, states[0] = net["first"](drop(net["embedding"](x), 0), states[0])
        hidden, states[1] = net["second"](drop(hidden, 1), states[1])
        states = [tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach() for state in states]
        loss = F.cross_entropy(net["out"](drop(hidden, 2)).flatten(0, 1), y.flatten())
        (loss / accumulate).backward()
        if (number + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return net


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cell", MODELS)
@pytest.mark.parametrize("chunk", ["auto", 4])
def test_twenty_windows_equal_a_plain_loop(make: Make, words: Path, cell: str, accumulate: int, chunk: str) -> None:
    """Trainer, carry, dropout, head, chunks, clipping and accumulation against plain torch, in float64."""
    run = make(
        f"data.path={words}",
        *f"model={cell}".split(),
        f"bptt.chunk={chunk}",
        "model.dropout=0.3",
        "trainer.precision=64-true",
        "trainer.gradient_clip_val=0.25",
        f"trainer.max_steps={20 // accumulate}",
        f"trainer.accumulate_grad_batches={accumulate}",
        "scheduler=constant",
    )
    start = weights(run)
    fit(run, SeedAtStart())
    plain = plain_loop(start, cell, run.data.tokens["train"], clip=0.25, accumulate=accumulate).state_dict()
    assert run.trainer.global_step == 20 // accumulate
    for name, value in weights(run).items():
        layer = "second" if name.endswith("_l1") else "first"
        for ours, theirs in (("core.rnn", layer), ("head.projection", "out"), ("_l1", "_l0"), ("model.", "")):
            name = name.replace(ours, theirs)
        torch.testing.assert_close(value, plain[name], rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cell", MODELS)
def test_twenty_windows_equal_a_loop_without_lightning_bit_for_bit(
    make: Make, words: Path, cell: str, accumulate: int
) -> None:
    run = make(
        f"data.path={words}",
        *f"model={cell}".split(),
        "model.dropout=0.3",
        "trainer.gradient_clip_val=0.25",
        f"trainer.max_steps={20 // accumulate}",
        f"trainer.accumulate_grad_batches={accumulate}",
        "scheduler=constant",
    )
    model = copy.deepcopy(run.task.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, weight_decay=0.01, fused=True)
    torch.manual_seed(SEED)
    state = model.initial_state(4)
    for number, window in zip(range(20), run.data.train_loader(), strict=False):
        loss, state = window_loss(model, window.x, window.y, state)
        (loss / accumulate).backward()
        if (number + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad()
    start = weights(run)
    fit(run, SeedAtStart())
    trained = run.task.model.state_dict()
    assert not torch.equal(trained["embedding.weight"], start["model.embedding.weight"])
    assert_equal_weights(trained, model.state_dict())


def test_no_gradient_passes_from_a_window_to_the_one_before(make: Make, words: Path) -> None:
    task = make(f"data.path={words}").task
    first = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    second = torch.tensor([[4, 5, 6, 7], [5, 6, 7, 4]])
    task.training_step(Window(first, first, torch.ones(1, 4, dtype=torch.bool)), 0)
    carry = task._carry
    assert carry is not None
    task.training_step(Window(second, second, None), 1)["loss"].backward()
    gradient = task.model.embedding.weight.grad
    assert gradient is not None
    assert (gradient[:4] == 0).all()
    assert (gradient[4:8] != 0).any(dim=1).all()
    assert carry.hidden.abs().sum() > 0, "the state itself did pass"


def test_the_carry_is_the_state_of_one_long_window(make: Make, words: Path) -> None:
    run = make(f"data.path={words}", "optimizer.lr=0", "model.dropout=0", "trainer.max_steps=30")
    fit(run)
    tokens = run.data.tokens["train"]
    streams = tokens[: len(tokens) // 4 * 4].view(4, -1).t().long()
    _, expected = run.task.model.hidden(streams[: 30 * 9])
    carry = run.task._carry
    assert carry is not None
    assert carry.cell is not None
    torch.testing.assert_close(carry.hidden, expected.hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(carry.cell, expected.cell, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("reset", "equal"), [("epoch", True), ("never", False)])
def test_without_learning_every_epoch_has_the_same_losses(make: Make, words: Path, reset: str, equal: bool) -> None:
    found = losses(
        make(
            f"data.path={words}",
            "optimizer.lr=0",
            "model.dropout=0",
            "trainer.max_epochs=2",
            "trainer.limit_val_batches=0",
            f"bptt.reset={reset}",
        )
    )
    half = len(found) // 2
    assert (found[:half] == found[half:]) is equal
    assert found[1:half] != found[half + 1 :] or equal


VALIDATION = [
    "trainer.limit_val_batches=0",
    "trainer.val_check_interval=0.3",
    "trainer.val_check_interval=7",
    "trainer.num_sanity_val_steps=2",
    "data.eval_batch_size=3",
    "~callbacks.samples",
    "callbacks.samples.length=7",
    "logger=none",
]


def test_nothing_but_training_moves_training(make: Make, words: Path) -> None:
    """Validation, sanity checks, sampling and logging, each on and off: the same losses and weights, bit for bit."""
    common = [f"data.path={words}", "model.dropout=0.5", "trainer.max_steps=40", "data.eval_batch_size=1"]
    reference = make(*common)
    expected = losses(reference)
    assert len(expected) == 40
    for option in VALIDATION:
        run = make(*common, option)
        assert losses(run) == expected, option
        assert_equal_weights(weights(run), weights(reference))


def test_validation_losses_of_an_unchanged_model_are_equal(make: Make, words: Path) -> None:
    seen: list[float] = []

    class Validations(L.Callback):
        def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            seen.append(pl_module.evaluation_loss.nats)

    run = make(
        f"data.path={words}",
        "data.eval_batch_size=3",
        "optimizer.lr=0",
        "trainer.val_check_interval=0.25",
        "trainer.num_sanity_val_steps=-1",
        "trainer.limit_train_batches=40",
    )
    fit(run, Validations())
    assert len(seen) == 5
    assert len(set(seen)) == 1


def test_sampling_leaves_the_random_state_alone(make: Make, words: Path) -> None:
    run = make(f"data.path={words}", "model.dropout=0", "trainer.max_steps=2", "trainer.val_check_interval=1")
    assert any(isinstance(callback, Samples) for callback in run.trainer.callbacks)  # type: ignore[attr-defined]
    before = torch.get_rng_state()
    run.task.train()
    fit(run)
    assert run.task.model.training
    assert torch.equal(torch.get_rng_state(), before), "no dropout, so training draws nothing either"


def test_updates_are_counted_alike_everywhere(make: Make, words: Path) -> None:
    run = make(
        f"data.path={words}",
        "trainer.gradient_clip_val=0.25",
        "trainer.accumulate_grad_batches=2",
        "trainer.max_steps=10",
        "scheduler=cosine",
    )
    seen = losses(run)
    optimizer, schedule = run.trainer.optimizers[0], run.trainer.lr_scheduler_configs[0].scheduler
    assert len(seen) == 20
    assert run.trainer.global_step == 10
    assert {int(state["step"]) for state in optimizer.state.values()} == {10}
    assert schedule.last_epoch == 10
    saved = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 10
    assert schedule.T_max == 10


def test_clipping_bounds_the_step_and_reports_the_norm_before_it(make: Make, words: Path) -> None:
    norms = {}
    for clip in ("null", "0.001"):
        run = make(
            f"data.path={words}",
            "optimizer=sgd",
            "optimizer.lr=1.0",
            "scheduler=constant",
            "trainer.max_steps=1",
            f"trainer.gradient_clip_val={clip}",
        )
        start = run.task.model.state_dict()
        start = {name: value.clone() for name, value in start.items()}
        fit(run)
        moved = [(value - start[name]).square().sum() for name, value in run.task.model.state_dict().items()]
        norms[clip] = (torch.stack(moved).sum().sqrt().item(), float(run.task.gradient_norm))  # type: ignore[arg-type]
    assert norms["null"][0] == pytest.approx(norms["null"][1], rel=1e-3)
    assert norms["0.001"][0] == pytest.approx(0.001, rel=1e-2)
    assert norms["0.001"][1] == pytest.approx(norms["null"][1], rel=1e-5)


def test_clipping_by_value(make: Make, words: Path) -> None:
    run = make(
        f"data.path={words}",
        "optimizer=sgd",
        "optimizer.lr=1.0",
        "scheduler=constant",
        "trainer.max_steps=1",
        "trainer.gradient_clip_val=1e-5",
        "+trainer.gradient_clip_algorithm=value",
    )
    start = weights(run)
    fit(run)
    moved = torch.cat([(value - start[name]).flatten() for name, value in weights(run).items()])
    assert moved.abs().max().item() == pytest.approx(1e-5, rel=1e-2)


def test_bf16_mixed_trains(make: Make, words: Path) -> None:
    """Close to float32 from the same weights, but not equal: bf16 products really ran."""
    common = (f"data.path={words}", "model.dropout=0", "optimizer.lr=0.01", "trainer.limit_train_batches=60")
    exact = losses(make(*common))
    found = losses(make(*common, "trainer.precision=bf16-mixed"))
    assert found != exact
    assert found == pytest.approx(exact, rel=0.02)


def test_a_learned_initial_state_is_trained(make: Make, words: Path) -> None:
    run = fit(make(f"data.path={words}", "model.learn_initial_state=true", "trainer.max_epochs=2"))
    learned = run.task.model.core.initial_hidden
    assert learned is not None
    assert learned.abs().sum() > 0


def test_a_text_of_one_window(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("abcabcabcabc")
    run = make("data=char", f"data.path={path}", "data.batch_size=2", "bptt.window=35")
    assert len(losses(run)) == 1
    assert run.task.train_loss.tokens == 10
