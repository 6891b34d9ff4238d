"""Every YAML is used, and a wrong value is one plain sentence."""

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import SMALL, rates

from tbptt.build import CONFIGS, build, compose_recipe
from tbptt.errors import UserError
from tbptt.run import Run, train

Make = Callable[..., Run]

GROUPS = ("data", "model", "task", "bptt", "optimizer", "scheduler", "trainer", "callbacks", "logger", "experiment")
CHOICES = [
    (group, path.stem)
    for group in GROUPS
    for path in sorted((CONFIGS / group).glob("*.yaml"))
    if not path.stem.startswith("_")
]


def test_all_groups_are_there() -> None:
    assert {group for group, _ in CHOICES} == set(GROUPS)


@pytest.mark.parametrize(("group", "name"), CHOICES, ids=lambda value: str(value))
def test_every_choice_trains(make: Make, words: Path, group: str, name: str) -> None:
    run = make(
        f"{group}={name}",
        f"data.path={words}",
        "trainer.limit_train_batches=3",
        "model.embedding_size=16",
        "data.batch_size=4",
    )
    result = train(run)
    assert result["steps"] == 3 * run.trainer.max_epochs  # type: ignore[operator]
    assert math.isfinite(result["train/loss"])
    assert math.isfinite(result["val/loss"])


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_no_yaml_is_empty(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_recipe_holds_plain_types_only() -> None:
    def walk(value: Any) -> None:
        if type(value) is dict:
            for key, item in value.items():
                assert type(key) is str
                walk(item)
        elif type(value) is list:
            for item in value:
                walk(item)
        else:
            assert value is None or type(value) in (int, float, str, bool), value

    walk(compose_recipe(["scheduler=onecycle", "optimizer=adam"]))


REFUSED = [
    ("optimizer.lr=fast", "optimizer.lr must be a number of at least 0, but it is 'fast'"),
    ("optimizer.lr=-1", "optimizer.lr must be a number of at least 0, but it is -1"),
    ("data.batch_size=2.5", "data.batch_size must be an integer of at least 1, but it is 2.5"),
    ("data.batch_size=0", "data.batch_size must be an integer of at least 1"),
    ("data.batch_size=1000000", "need a text of at least 2000000 tokens"),
    ("data.eval_batch_size=0", "data.eval_batch_size must be an integer"),
    ("bptt.window=0", "bptt.window must be an integer of at least 1"),
    ("bptt.window=-1", "bptt.window must be an integer of at least 1"),
    ("+bptt.windows=9", "bptt.windows is not a key of .*did you mean bptt.window"),
    ("bptt.reset=sometimes", "bptt.reset must be one of epoch, document, never"),
    ("model.dropout=1.5", "model.dropout must be a number of at least 0 and less than 1, but it is 1.5"),
    ("model.dropout=-0.1", "model.dropout must be a number"),
    ("model.cell=lstmm", "model.cell must be one of lstm, gru, rnn.*did you mean lstm"),
    ("+model.bidirectional=true", "model.bidirectional cannot be set: a bidirectional language model would see"),
    ("+data.shuffle=true", "data.shuffle cannot be set: windows come in the order of the text"),
    ("+data.num_workers=2", "data.num_workers cannot be set: windows are slices of memory"),
    ("+data.pth=x", "data.pth is not a key of TextDataModule; did you mean data.path"),
    ("+optimizer.momentun=0.9", "optimizer.momentun is not a key of AdamW"),
    ("+trainer.max_epoch=3", "trainer.max_epoch is not a key of .*did you mean trainer.max_epochs"),
    ("trainer.accelerator=abacus", "trainer: Trainer refuses these values: .*abacus"),
    ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val must be a number of at least 0"),
    ("optimizer._target_=os.system", "optimizer._target_ must start with one of tbptt"),
    ("optimizer._target_=torch.optim.Adamm", "optimizer._target_ must name a class"),
    ("scheduler.interval=week", "scheduler.interval must be one of step, epoch"),
    ("seed=007", "seed must be an integer of at least 0, but it is '007'"),
    ("seed=-1", "seed must be an integer of at least 0"),
    ("~callbacks.checkpoints", "callbacks must hold one Checkpoints"),
    ("data.val_fraction=1.0", "data.val_fraction must be a number"),
    ("data.path=nowhere.txt", "data.path must .*nowhere.txt"),
    ("trainer.max_steps=0", "trainer.max_steps must be an integer of at least 1, or -1"),
    ("trainer.max_epochs=2.5", "trainer.max_epochs must be an integer of at least 1, or -1"),
    ("trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches must be an integer of at least 1"),
    ("trainer.accumulate_grad_batches=1.5", "trainer.accumulate_grad_batches must be an integer"),
    ("trainer.val_check_interval=0", "trainer.val_check_interval must be a fraction"),
    ("trainer.limit_train_batches=0", "trainer.limit_train_batches must leave at least one of the"),
    ("trainer.limit_val_batches=0.001", "trainer.limit_val_batches must leave at least one of the"),
    ("trainer.limit_val_batches=many", "trainer.limit_val_batches must be a number"),
    ("seed=5000000000", "seed must be less than"),
    ("~optimizer._target_", "optimizer._target_ must start with"),
    ("callbacks.monitor.every_n_updates=0", "callbacks.monitor.every_n_updates must be an integer"),
    ("callbacks.progress.every_seconds=abc", "callbacks.progress.every_seconds must be a number"),
    ("callbacks.samples.length=-1", "callbacks.samples.length must be an integer of at least 0"),
    ("callbacks.samples=null", "callbacks.samples must be a section .*, but it is None; take it away with ~"),
    ("callbacks.monitor=3", "callbacks.monitor must be a section with a _target_, but it is 3"),
    ("+whatever=1", "whatever: no such key"),
    ("+scheduler.gamma=0.1", "scheduler.gamma is not a key of CosineAnnealingLR"),
]


@pytest.mark.parametrize(("override", "message"), REFUSED, ids=[override for override, _ in REFUSED])
def test_a_wrong_value_is_refused_by_name(words: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(build(compose_recipe([*SMALL, f"data.path={words}", override]), tmp_path))


@pytest.mark.parametrize("corpus", ["ptb", "3", "[ptb]"])
def test_a_corpus_is_named_by_its_group(make: Make, corpus: str) -> None:
    with pytest.raises(UserError, match=r"data\.corpus must hold name, sources, expected, but it is .*data=NAME"):
        make("data=word", f"data.corpus={corpus}")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.document_separator=", "^= .* =$"),
        ("data.document_separator=3", "^= .* =$"),
        ("data.unknown_word=[a]", "<unk>"),
    ],
)
def test_an_example_in_a_message_can_be_typed_as_it_is(make: Make, words: Path, override: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        make("data=word", f"data.path={words}", override)
    shown = re.search(r"for example ('data\S+=\".*\"')", str(caught.value))
    assert shown
    recipe = compose_recipe(shlex.split(shown[1]))
    assert recipe["data"][override.removeprefix("data.").partition("=")[0]] == value


def test_options_that_would_do_nothing_are_refused(make: Make, words: Path) -> None:
    with pytest.raises(UserError, match="scheduler=constant has no gamma"):
        make(f"data.path={words}", "scheduler=constant", "+scheduler.gamma=0.1")
    with pytest.raises(UserError, match="scheduler=plateau needs validation"):
        make(f"data.path={words}", "scheduler=plateau", "trainer.limit_val_batches=0")


def test_stopping_early_needs_validation(make: Make, words: Path) -> None:
    with pytest.raises(UserError, match="callbacks=early_stopping needs validation"):
        make(f"data.path={words}", "callbacks=early_stopping", "trainer.limit_val_batches=0")


def test_a_folder_with_a_run_is_not_written_over(words: Path, tmp_path: Path) -> None:
    recipe = [*SMALL, f"data.path={words}", "trainer.max_steps=1"]
    folder = tmp_path / "run"
    train(build(compose_recipe(recipe), folder))
    before = (folder / "result.json").read_bytes()
    with pytest.raises(UserError, match=r"hydra.run.dir=.*run holds a run already; give another folder"):
        build(compose_recipe(recipe), folder)
    assert (folder / "result.json").read_bytes() == before
    result = train(build(compose_recipe([*recipe, "trainer.max_steps=2", f"resume={folder}"]), folder))
    assert result["steps"] == 2


def test_an_own_choice_of_kernel_is_kept(make: Make, words: Path) -> None:
    optimizer = make(f"data.path={words}", "+optimizer.foreach=true", "scheduler=constant").task.configure_optimizers()
    assert optimizer.defaults["foreach"]
    assert not optimizer.defaults["fused"]


def test_a_schedule_without_an_end_is_refused(make: Make, words: Path) -> None:
    with pytest.raises(UserError, match="scheduler needs to know how long training lasts"):
        make(f"data.path={words}", "trainer.max_epochs=-1", "scheduler=cosine")
    make(f"data.path={words}", "trainer.max_epochs=-1", "scheduler=constant")


FORMULAS: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 0.1,
    "cosine": lambda n: 0.05 * (1 + math.cos(math.pi * n / 20)),
    "step scheduler.step_size=2 scheduler.gamma=0.3": lambda n: 0.1 * 0.3 ** (n // 5 // 2),
    "step scheduler.interval=step scheduler.step_size=3": lambda n: 0.1 * 0.5 ** (n // 3),
    "exponential": lambda n: 0.1 * 0.95 ** (n // 5),
    "exponential scheduler.interval=step": lambda n: 0.1 * 0.95**n,
    "cosine scheduler.interval=epoch": lambda n: 0.05 * (1 + math.cos(math.pi * (n // 5) / 4)),
}


@pytest.mark.parametrize("scheduler", FORMULAS)
def test_learning_rates_follow_their_formula(make: Make, words: Path, scheduler: str) -> None:
    """4 epochs of 5 updates; `n` counts the updates made before."""
    run = make(
        f"data.path={words}",
        *f"scheduler={scheduler}".split(),
        "optimizer.lr=0.1",
        "trainer.max_epochs=4",
        "trainer.limit_train_batches=5",
        "trainer.limit_val_batches=0",
    )
    assert rates(run) == pytest.approx([FORMULAS[scheduler](n) for n in range(20)], rel=1e-6)


def test_onecycle_rises_to_the_rate_and_falls(make: Make, words: Path) -> None:
    run = make(f"data.path={words}", "scheduler=onecycle", "optimizer.lr=0.1", "trainer.max_steps=30")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    expected = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=30, pct_start=0.1, cycle_momentum=False
    )
    wanted = []
    for _ in range(30):
        wanted.append(expected.get_last_lr()[0])
        optimizer.step()
        expected.step()
    seen = rates(run)
    assert seen == pytest.approx(wanted)
    assert max(seen) == pytest.approx(0.1)


def test_plateau_divides_when_validation_stalls(make: Make, words: Path) -> None:
    run = make(
        f"data.path={words}",
        "scheduler=plateau",
        "scheduler.factor=0.3",
        "optimizer.lr=1e-12",
        "trainer.max_epochs=4",
        "trainer.limit_train_batches=5",
    )
    run.trainer.fit(run.task, datamodule=run.data)
    # The first validation is the best so far; three more, of a model that hardly changes, divide three times.
    assert run.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-12 * 0.3**3)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop"])
def test_optimizers_are_fused_where_torch_has_it(make: Make, words: Path, name: str) -> None:
    run = make(f"data.path={words}", f"optimizer={name}", "scheduler=constant")
    optimizer = run.task.configure_optimizers()
    assert bool(optimizer.defaults.get("fused")) == (name != "rmsprop")


def test_clipping_is_on_by_default() -> None:
    assert compose_recipe([])["trainer"]["gradient_clip_val"] == 1.0
