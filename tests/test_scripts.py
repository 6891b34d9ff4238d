"""The scripts as a user starts them, each in a process of its own."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, SMALL, script

import tbptt
from tbptt.run import Run

Trained = Callable[..., tuple[Run, dict[str, Any]]]


@pytest.mark.parametrize("level", ["word", "char"])
@pytest.mark.parametrize("model", ["rnn", "gru", "lstm"])
def test_every_model_learns_every_level(trained: Trained, words: Path, model: str, level: str) -> None:
    """Better than knowing how frequent each token is: the grammar of the text has been learnt."""
    _, result = trained(
        f"model={model}",
        f"data={level}",
        f"data.path={words}",
        "data.batch_size=10",
        "optimizer.lr=0.01",
        "trainer.max_epochs=2",
        "trainer.limit_train_batches=150",
    )
    assert result["val/loss"] < 0.75 * result["val/loss_unigram"]
    assert result["test/loss"] == pytest.approx(result["val/loss"], rel=0.2)


def run_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("runs/**/result.json"))


def test_train_sample_evaluate_resume(tmp_path: Path, words: Path) -> None:
    first = script("train", f"data.path={words}", *SMALL, "trainer.limit_train_batches=30", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Warning" not in first.stdout + first.stderr
    (folder,) = run_folders(tmp_path)
    assert {path.name for path in folder.iterdir()} >= {".hydra", "checkpoints", "train.log", "result.json"}
    assert any(path.name.startswith("events.") for path in folder.iterdir())
    result = json.loads((folder / "result.json").read_text())
    assert "of the unigram model" in first.stdout
    commands = re.findall(r"python (scripts/\w+\.py) (\S+)$|(tensorboard --logdir) (\S+)$", first.stdout, re.MULTILINE)
    assert [command[0] or command[2] for command in commands] == [
        "scripts/sample.py",
        "scripts/evaluate.py",
        "tensorboard --logdir",
    ]
    best = commands[0][1]
    assert "=" not in best.removeprefix("checkpoint="), "no name needs quoting"

    sampled = script("sample", best, "length=12", "prompt=the", "seed=3", cwd=tmp_path)
    assert sampled.returncode == 0, sampled.stderr
    assert sampled.stdout.startswith("the ")
    assert len(re.findall(r"\S+|\n", sampled.stdout.removeprefix("the ").removesuffix("\n"))) == 12
    piped = script("sample", best, "length=12", "prompt_path=-", "seed=3", cwd=tmp_path, stdin="the")
    assert piped.stdout == sampled.stdout

    for part, key in (("validation", "val/loss"), ("test", "test/loss")):
        scored = script("evaluate", best, f"part={part}", cwd=tmp_path)
        assert scored.returncode == 0, scored.stderr
        found = re.search(r"([\d.]+) nats per token", scored.stdout)
        assert found
        assert float(found[1]) == pytest.approx(result[key], abs=1e-5)
    other = tmp_path / "other.txt"
    other.write_text("the cat sat on the mat\n" * 10)
    assert "69 tokens scored" in script("evaluate", best, "path=other.txt", cwd=tmp_path).stdout

    options = ("trainer.limit_train_batches=30", "trainer.max_epochs=2", "resume=last")
    second = script("train", f"data.path={words}", *SMALL[:-3], "trainer.accelerator=cpu", *options, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "after update 30" in second.stdout
    steps = [json.loads((path / "result.json").read_text())["steps"] for path in run_folders(tmp_path)]
    assert steps == [30, 60]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.txt", "runs", "words.txt"]


def test_a_sample_is_printed_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "a\\ud800\u00e9"}\n' * 300, encoding="utf-8")
    where = "hydra.run.dir=run"
    done = script("train", "data=char", "data.path=text.jsonl", *SMALL, "trainer.max_steps=2", where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sampled = script("sample", "checkpoint=run", "length=60", "temperature=5", cwd=tmp_path)
    assert sampled.returncode == 0, sampled.stderr
    assert "\\ud800" in sampled.stdout
    assert "\u00e9" in sampled.stdout


def test_a_sweep_has_a_folder_a_job(tmp_path: Path, words: Path) -> None:
    done = script(
        "train",
        "-m",
        "model=gru,lstm",
        "optimizer.lr=1e-3,3e-3",
        "data.path=words.txt",
        *SMALL,
        "trainer.limit_train_batches=3",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    folders = run_folders(tmp_path)
    assert [folder.name for folder in folders] == ["0", "1", "2", "3"]
    seen = set()
    for folder in folders:
        recipe = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["recipe"]
        seen.add((recipe["model"]["cell"], recipe["optimizer"]["lr"]))
    assert seen == {(cell, lr) for cell in ("gru", "lstm") for lr in (1e-3, 3e-3)}


def test_starts_in_one_second_have_a_folder_each(tmp_path: Path, words: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"data.path={words}", *SMALL, "trainer.max_steps=1"]
    started = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=200) for process in started] == [0, 0, 0]
    assert len(run_folders(tmp_path)) == 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_says_so_and_fails(tmp_path: Path, words: Path, number: int, status: int) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"data.path={words}", *SMALL]
    command += ["trainer.max_epochs=1000", "hydra.run.dir=run"]
    # A program that is started in the background by a shell ignores SIGINT, and so do all that it starts.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.signal(signal.SIGINT, heard)
    end = time.monotonic() + 120
    while not (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file():
        assert time.monotonic() < end
        time.sleep(0.2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert re.search(r"stopped by SIG\w+ at update \d+; go on with the same options and resume=\S+last.ckpt", output)
    assert tbptt.load(tmp_path / "run" / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("train", "data.batch_size=0", "error: data.batch_size must be an integer of at least 1, but it is 0"),
        ("train", "optimizer.lr=${nowhere}", "nowhere"),
        ("sample", "length=3", "error: checkpoint must be given"),
        ("evaluate", "checkpoint=3", "error: checkpoint=3 must be a checkpoint file"),
        ("evaluate", "checkpoint=nowhere.ckpt", "error: checkpoint=nowhere.ckpt must be a checkpoint file"),
    ],
)
def test_a_mistake_is_one_message_without_a_traceback(tmp_path: Path, name: str, override: str, message: str) -> None:
    done = script(name, override, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_terminal_shows_a_bar(tmp_path: Path, words: Path) -> None:
    """In a pseudo-terminal; in all other tests the output is a pipe, and plain."""
    leader, follower = pty.openpty()
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"data.path={words}", *SMALL[:-1]]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "━" in text
    assert "tokens/s" in text
    assert "run folder: runs/" in text


def run_in(folder: Path, *overrides: str) -> dict[str, Any]:
    """Train in `folder`, and return the newest checkpoint."""
    done = script("train", *SMALL, *overrides, f"hydra.run.dir={folder}", cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, Any] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return content


TWO = ("trainer.devices=2", "trainer.strategy=ddp")


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, words: Path) -> None:
    """Data parallel on two CPU processes: the same model as from one, and the carry of all streams is saved."""
    common = (f"data.path={words}", "model.dropout=0", "model.learn_initial_state=true", "trainer.max_steps=30")
    common += ("bptt.carry_drop=0.3", "bptt.random_offset=true", "bptt.horizon=12")
    one, two = run_in(tmp_path / "one", *common), run_in(tmp_path / "two", *common, *TWO)
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, rtol=1e-3, atol=1e-5)
    assert two["carry"]["hidden"].shape == one["carry"]["hidden"].shape
    torch.testing.assert_close(two["carry"]["hidden"], one["carry"]["hidden"], rtol=1e-3, atol=1e-4)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    for key in ("train/loss", "val/loss", "test/loss"):
        assert results[1][key] == pytest.approx(results[0][key], rel=1e-4)


@pytest.mark.slow
def test_two_processes_go_on_exactly(tmp_path: Path, words: Path) -> None:
    """With dropout, so with a random generator of its own in each process."""
    common = (f"data.path={words}", "model.dropout=0.5", "scheduler=constant", *TWO)
    whole = run_in(tmp_path / "whole", *common, "trainer.max_steps=20")
    half = run_in(tmp_path / "half", *common, "trainer.max_steps=10")
    assert not torch.equal(half["rng"]["cpu"][0], half["rng"]["cpu"][1])
    resumed = f"resume={tmp_path / 'half'}"
    again = run_in(tmp_path / "again", *common, "trainer.max_steps=20", resumed)
    for name, value in whole["state_dict"].items():
        assert torch.equal(again["state_dict"][name], value), name
