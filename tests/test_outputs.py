"""What a run leaves behind, and what can be done with it."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tbptt
from tbptt.checkpoint import Loaded
from tbptt.errors import UserError
from tbptt.evaluate import evaluate_tokens, trained_part
from tbptt.run import Run

Trained = Callable[..., tuple[Run, dict[str, Any]]]


def events(run: Run) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(run.folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def strict(path: Path) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    content: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return content


@pytest.mark.parametrize(("level", "unit"), [("word", "perplexity"), ("char", "bpc")])
def test_result_json(trained: Trained, words: Path, level: str, unit: str) -> None:
    run, returned = trained(
        f"data={level}", f"data.path={words}", "data.batch_size=4", "trainer.limit_train_batches=25"
    )
    result = strict(run.folder / "result.json")
    assert result == returned
    numbers = ("train/loss", "val/loss", "test/loss", f"val/{unit}", f"test/{unit}", "val/loss_unigram")
    assert all(isinstance(result[name], float) for name in (*numbers, "tokens_per_second", "peak_memory_mib"))
    assert result["steps"] == 25
    assert result["seed"] == 0
    assert result["vocab_size"] == len(run.data.vocabulary)
    assert result["parameters"] == sum(p.numel() for p in run.task.model.parameters())
    assert Path(result["best_checkpoint"]).is_file()
    quoted = math.exp(result["val/loss"]) if level == "word" else result["val/loss"] / math.log(2)
    assert result[f"val/{unit}"] == pytest.approx(quoted)
    assert not (run.folder / "result.part").exists()


@pytest.mark.parametrize(
    ("limit", "whole"), [("1", False), ("2", False), ("0.5", False), ("1.0", True), ("null", True)]
)
def test_the_unigram_model_stands_beside_the_loss_of_the_same_text(
    trained: Trained, words: Path, limit: str, whole: bool
) -> None:
    _, result = trained(f"data.path={words}", "trainer.max_steps=2", f"trainer.limit_val_batches={limit}")
    assert ("val/loss_unigram" in result) is whole


def test_numbers_that_are_not_finite_leave_strict_json(trained: Trained, words: Path) -> None:
    run, _ = trained(
        f"data.path={words}",
        "optimizer=sgd",
        "optimizer.lr=1e6",
        "trainer.gradient_clip_val=null",
        "trainer.max_steps=20",
        "scheduler=constant",
    )
    result = strict(run.folder / "result.json")
    assert result["steps"] == 20
    assert result["val/perplexity"] is None
    assert result["val/loss"] is None or result["val/loss"] > 710, "beyond the exponential"


def test_a_model_that_has_burst_is_reported(trained: Trained, words: Path) -> None:
    """Weights that are not finite: no crash from sampling, and no best."""
    run, result = trained(f"data.path={words}", "optimizer.lr=1e30", "scheduler=constant", "trainer.max_steps=20")
    assert strict(run.folder / "result.json")["val/loss"] is None
    assert result["best_checkpoint"] is None
    loaded = tbptt.load(result["last_checkpoint"])
    with pytest.raises(UserError, match="output is not finite"):
        tbptt.sample(loaded.model, loaded.vocabulary, length=3)


def test_control_characters_of_the_text_do_not_reach_the_log(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "escape.txt"
    path.write_text("\x1b[2J\x00\x07" * 200)
    with caplog.at_level(logging.INFO):
        trained("data=char", f"data.path={path}", "callbacks.samples.temperature=5")
    samples = [record.getMessage() for record in caplog.records if record.getMessage().startswith("sample:")]
    assert samples
    assert "\\x1b" in samples[0]
    assert not any(c in samples[0] for c in "\x1b\x00\x07")


def test_tensorboard_events(trained: Trained, words: Path) -> None:
    run, result = trained(f"data.path={words}", "trainer.max_steps=25", "trainer.val_check_interval=10")
    found = events(run)
    for tag in ("train/loss", "train/gradient_norm", "train/learning_rate"):
        assert [step for step, _ in found[tag]] == list(range(1, 26)), tag
        assert all(math.isfinite(value) for _, value in found[tag])
    assert found["train/learning_rate"][0][1] > found["train/learning_rate"][-1][1]
    assert all(value > 0 for _, value in found["train/tokens_per_second"])
    assert [step for step, _ in found["val/loss"]] == [10, 20, 25]
    assert min(value for _, value in found["val/loss"]) == pytest.approx(result["val/loss"])
    assert found["test/loss"][0][1] == pytest.approx(result["test/loss"])


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_loss_points_are_the_means_of_their_updates(trained: Trained, words: Path, accumulate: int) -> None:
    """With a learning rate of 0 an update's point is the loss of the windows in it, by tokens."""
    run, _ = trained(
        f"data.path={words}",
        "optimizer.lr=0",
        "model.dropout=0",
        f"trainer.accumulate_grad_batches={accumulate}",
        "trainer.limit_train_batches=12",
    )
    loader, model = run.data.train_loader(), run.task.model
    state, nats = None, []
    with torch.no_grad():
        for index in range(12):
            window = loader[index]
            loss, state = model.loss(window.x, window.y, state)
            nats.append(loss.item())
    expected = [sum(nats[i : i + accumulate]) / accumulate for i in range(0, 12, accumulate)]
    assert [value for _, value in events(run)["train/loss"]] == pytest.approx(expected, rel=1e-5)


def test_two_updates_an_epoch_leave_a_point(trained: Trained, abcd: Path) -> None:
    run, result = trained(
        "data=char", f"data.path={abcd}", "data.batch_size=90", "bptt.window=10", "trainer.max_epochs=3"
    )
    assert result["steps"] == 6
    assert len(events(run)["train/loss"]) == 6


@pytest.mark.parametrize("logger", ["none", "csv", "tensorboard"])
@pytest.mark.parametrize(
    "option",
    ["trainer.limit_val_batches=0", "trainer.val_check_interval=100", "scheduler=plateau", "~callbacks.samples"],
)
def test_callbacks_do_without_a_logger_or_a_metric(trained: Trained, abcd: Path, logger: str, option: str) -> None:
    small = ("data=char", f"data.path={abcd}", "data.batch_size=90", "bptt.window=10", "trainer.max_epochs=2")
    run, result = trained(*small, f"logger={logger}", option)
    assert result["steps"] == 4
    assert (run.folder / "checkpoints" / "last.ckpt").is_file()
    assert (result["val/loss"] is None) == ("limit_val" in option)
    assert (run.folder / "metrics.csv").is_file() == (logger == "csv")


def test_a_text_without_a_validation_part(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("abcabcabcabc")
    _run, result = trained("data=char", f"data.path={path}", "data.batch_size=2")
    assert result["val/loss"] is None
    assert result["test/loss"] is None
    assert result["best_checkpoint"] is None
    assert tbptt.load(result["last_checkpoint"]).vocabulary.symbols == ("a", "b", "c")


def test_a_validation_text_of_two_symbols(trained: Trained, abcd: Path, caplog: pytest.LogCaptureFixture) -> None:
    two = abcd.with_name("two.txt")
    two.write_text("ab")
    with caplog.at_level(logging.INFO):
        run, result = trained("data=char", f"data.path={abcd}", f"data.val_path={two}", "data.eval_batch_size=10")
    assert run.data.evaluation_loader("validation").targets == 1  # type: ignore[union-attr]
    assert result["val/loss"] > 0
    assert "too short for data.eval_batch_size=10" in caplog.text


def test_what_the_log_says_of_the_text(trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, other = tmp_path / "t.txt", tmp_path / "other.txt"
    path.write_text("abcdefg" * 143 + "ab")
    other.write_text("abZZabcdef")
    with caplog.at_level(logging.INFO):
        run, _ = trained("data=char", f"data.path={path}", f"data.val_path={other}", "data.test_fraction=0")
    assert len(run.data.tokens["train"]) == 1003
    assert "3 spare" in caplog.text
    assert "20.00% unknown" in caplog.text
    assert run.data.corpus.sha256 in caplog.text
    assert run.data.vocabulary.counts[0] == 0, "the unknown symbol is not learnt from validation"


def test_best_is_the_lowest_validation_loss_and_last_the_newest_state(trained: Trained, words: Path) -> None:
    """A learning rate that ruins the model after it has learnt: the best weights are those from before."""
    run, result = trained(
        f"data.path={words}",
        "optimizer=sgd",
        "optimizer.lr=2.0",
        "scheduler=onecycle",
        "scheduler.max_lr=300.0",
        "scheduler.pct_start=0.9",
        "trainer.max_steps=60",
        "trainer.val_check_interval=5",
        "trainer.gradient_clip_val=null",
    )
    best, last = (torch.load(run.folder / "checkpoints" / f"{n}.ckpt", weights_only=True) for n in ("best", "last"))
    losses = dict(events(run)["val/loss"])
    finite = {step: value for step, value in losses.items() if math.isfinite(value)}
    assert best["global_step"] == min(finite, key=lambda step: finite[step]) < 60
    assert last["global_step"] == 60
    assert result["val/loss"] == pytest.approx(min(finite.values()))
    loaded = tbptt.load(run.folder / "checkpoints" / "best.ckpt")
    again = evaluate_tokens(loaded.model, run.data.tokens["validation"])
    assert again.nats == pytest.approx(result["val/loss"], rel=1e-6)


def test_a_checkpoint_describes_itself_in_plain_types(trained: Trained, words: Path) -> None:
    run, _ = trained(f"data.path={words}", "model=gru", "trainer.max_steps=3")
    names = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert names == {"best.ckpt", "last.ckpt"}
    for name in names:
        content = torch.load(run.folder / "checkpoints" / name, weights_only=True)
        assert content["recipe"]["model"]["cell"] == "gru"
        assert "${" not in json.dumps(content["recipe"]), "interpolations are resolved"
        assert content["vocabulary"]["symbols"] == list(run.data.vocabulary.symbols)
    loaded = tbptt.load(run.folder / "checkpoints" / "last.ckpt")
    assert not loaded.model.training
    assert loaded.recipe["seed"] == 0
    assert loaded.corpus["sha256"] == run.data.corpus.sha256


@pytest.mark.parametrize("level", ["word", "char"])
def test_the_loss_of_a_text_does_not_depend_on_the_window(trained: Trained, words: Path, level: str) -> None:
    run, _ = trained(f"data={level}", f"data.path={words}", "data.batch_size=4", "trainer.max_steps=30")
    loaded = tbptt.load(run.folder / "checkpoints" / "best.ckpt")
    tokens = run.data.tokens["validation"]
    found = [evaluate_tokens(loaded.model, tokens, window_steps=w) for w in (1, 5, 35, 1000)]
    assert {loss.tokens for loss in found} == {len(tokens) - 1}
    for loss in found:
        assert loss.nats == pytest.approx(found[0].nats, abs=1e-5)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("window", [1, 7, 35, 1000])
def test_knowing_nothing_of_four_symbols_costs_two_bits(
    make: Callable[..., Run], abcd: Path, window: int, streams: int
) -> None:
    run = make("data=char", f"data.path={abcd}")
    torch.nn.init.zeros_(run.task.model.head.projection.weight)
    tokens = run.data.tokens["train"]
    loss = evaluate_tokens(run.task.model, tokens, window_steps=window, batch_size=streams)
    assert loss.nats == pytest.approx(1.386294, abs=1e-6)
    assert loss.perplexity == pytest.approx(4, abs=1e-5)
    assert loss.bits == pytest.approx(2, abs=1e-6)


def test_an_empty_part_names_those_that_are_not(make: Callable[..., Run], abcd: Path) -> None:
    run = make("data=char", f"data.path={abcd}", "data.test_fraction=0")
    recipe, corpus = run.task.recipe, {"sha256": run.data.corpus.sha256}
    loaded = Loaded(run.task.model, run.data.vocabulary, recipe, corpus)
    with pytest.raises(UserError, match="part=test is empty in this corpus; take part=train or part=validation, or"):
        trained_part(loaded, "test")


def test_a_device_that_torch_does_not_know_is_refused(tmp_path: Path) -> None:
    for device in ("foo", "", None):
        with pytest.raises(UserError, match="device must be one that torch knows, but it is"):
            tbptt.load(tmp_path, device)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad.ckpt cannot be read"):
        tbptt.load(path)


def test_other_wrong_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is none"):
        tbptt.load(tmp_path / "missing.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(UserError, match="not written by this program"):
        tbptt.load(tmp_path / "foreign.ckpt")


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("code ran",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {}, "recipe": Evil(), "vocabulary": {}, "corpus": {}}, tmp_path / "evil.ckpt")
    with pytest.raises(UserError, match="cannot be read"):
        tbptt.load(tmp_path / "evil.ckpt")
    assert "code ran" not in capsys.readouterr().out
