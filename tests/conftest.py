"""Shared by the tests: recipes composed as on the command line, small texts, and runs inside this process."""

import os

# As `import tbptt` does, but before pytest's plugins or this file load torch.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tbptt.build import build, compose_recipe, quiet_lightning
from tbptt.run import Run, train
from tbptt.streams import Window

ROOT = Path(__file__).resolve().parent.parent
SMALL = (
    "model.embedding_size=12",
    "model.hidden_size=16",
    "model.num_layers=2",
    "data.batch_size=4",
    "bptt.window=9",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
    "callbacks.progress.every_seconds=1000",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Not the user's; scripts that tests start inherit it.
    os.environ["TBPTT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _as_in_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    # What `command` does before a run; and no test may depend on the folder it runs in.
    quiet_lightning()
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture
def abcd(tmp_path: Path) -> Path:
    path = tmp_path / "abcd.txt"
    path.write_text("abcd" * 500)
    return path


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """1,200 lines of a small made grammar: enough to learn, quick to train on."""
    draw = random.Random(3)
    subjects, verbs, places = ["the cat", "a dog", "my aunt"], ["sat", "slept", "sang"], ["on the mat", "in the sun"]
    lines = [f"{draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(places)}" for _ in range(1200)]
    path = tmp_path / "words.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    draw = random.Random(5)
    path = tmp_path / "toy.txt"
    path.write_text("".join(draw.choices("abcde", weights=[5, 4, 3, 2, 1], k=600)))
    return path


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    """Build a small run from overrides, in a folder of its own."""
    count = iter(range(1000))

    def make_run(*overrides: str) -> Run:
        folder = tmp_path / f"run{next(count)}"
        folder.mkdir()
        return build(compose_recipe([*SMALL, *overrides]), folder)

    return make_run


@pytest.fixture
def trained(make: Callable[..., Run]) -> Callable[..., tuple[Run, dict[str, Any]]]:
    """Build and train a small run."""

    def train_run(*overrides: str) -> tuple[Run, dict[str, Any]]:
        run = make(*overrides)
        return run, train(run)

    return train_run


@pytest.fixture
def exact(make: Callable[..., Run], toy: Path) -> Callable[..., Run]:
    """A run in float64 with plain SGD: 3 streams of 66 steps, windows of 5, two passes."""
    toy.write_text(toy.read_text()[: 3 * 67])
    options = ["data=char", f"data.path={toy}", "data.val_fraction=0", "data.test_fraction=0", "data.batch_size=3"]
    options += ["bptt.window=5", "model.dropout=0", "optimizer=sgd", "optimizer.lr=0.5", "scheduler=constant"]
    options += ["trainer.precision=64-true", "trainer.gradient_clip_val=null", "trainer.max_epochs=2"]
    return lambda *more: make(*options, *more)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.task.state_dict().items()}


def assert_equal_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def rates(run: Run) -> list[float]:
    """Train, and return the learning rate of each update."""
    seen: list[float] = []

    class Watch(L.Callback):
        def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
            seen.append(optimizer.param_groups[0]["lr"])

    run.trainer.callbacks.append(Watch())  # type: ignore[attr-defined]
    run.trainer.fit(run.task, datamodule=run.data, ckpt_path=run.resume, weights_only=True)
    return seen


class Watch(L.Callback):
    """What happens in a run, in order."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, int]] = []
        self.validations: list[tuple[int, int]] = []
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Window, batch_idx: int) -> None:
        self.windows.append((trainer.current_epoch, len(batch.y)))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.validations.append((trainer.current_epoch, trainer.fit_loop.batch_idx))

    def lengths(self, number: int) -> list[int]:
        return [length for epoch, length in self.windows if epoch == number]


def watched(run: Run) -> Watch:
    watch = Watch()
    run.trainer.callbacks.append(watch)  # type: ignore[attr-defined]
    run.trainer.fit(run.task, datamodule=run.data, ckpt_path=run.resume, weights_only=True)
    return watch


def script(name: str, *overrides: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script as a user does, from the folder `cwd`."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *overrides]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=300, check=False)
