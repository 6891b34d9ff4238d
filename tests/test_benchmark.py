"""The benchmark: its peers train alike, its figures mean what they say, and each measurement runs from start to end."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import script

from tbptt.benchmark import grid, memory, overhead, plan, report, speed, windows, worker
from tbptt.benchmark.options import Options
from tbptt.benchmark.peers import VARIANTS, Variant, make_peer
from tbptt.benchmark.works import ALL, Windows, Work, made_tokens, make_model, read_tokens, window_flops
from tbptt.build import compose_recipe
from tbptt.errors import UserError

SMALL = Work("char", types=11, hidden_size=12, num_layers=2, streams=3, window_steps=10)
FLOAT32 = ["clones", "ours", "ours-kernel", "ours-hidden", "ours-torch", "ours-chunked"]


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_peers_train_alike(cell: str) -> None:
    """Losses of every window, and the weights in the end."""
    feed = Windows(SMALL, made_tokens(SMALL, 6), "cpu")
    model = make_model(SMALL, cell)
    before = [parameter.clone() for parameter in model.parameters()]
    peers = {name: make_peer(VARIANTS[name], model, SMALL, cell) for name in ["plain", *FLOAT32]}
    for index in range(6):
        losses = {name: peer.step(*feed[index]) for name, peer in peers.items()}
        for name in FLOAT32:
            torch.testing.assert_close(losses[name], losses["plain"], rtol=1e-4, atol=1e-5)
    for name in FLOAT32:
        for mine, theirs in zip(peers[name].parameters, peers["plain"].parameters, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
    assert not torch.equal(peers["plain"].parameters[0], before[0])
    assert all(map(torch.equal, model.parameters(), before)), "the model they start from stays as it is"


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_bfloat16_is_near(cell: str) -> None:
    feed, model = Windows(SMALL, made_tokens(SMALL, 4), "cpu"), make_model(SMALL, cell)
    peers = [make_peer(VARIANTS[name], model, SMALL, cell) for name in ("plain", "plain-bf16", "ours-bf16")]
    for index in range(4):
        exact, *narrow = [peer.step(*feed[index]).item() for peer in peers]
    assert narrow == pytest.approx([exact, exact], rel=0.01)


def test_the_carry_passes_from_window_to_window() -> None:
    """The second of two equal windows has another loss than the first, without any update between them."""
    model = make_model(SMALL, "gru")
    x, y = Windows(SMALL, made_tokens(SMALL, 1), "cpu")[0]
    for name in ("plain", "clones", "ours"):
        peer = make_peer(VARIANTS[name], model, SMALL, "gru")
        assert peer.loss(x, y).item() != peer.loss(x, y).item()


def test_windows_go_round_and_texts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcde\n" * 20)
    work, tokens = read_tokens(SMALL, str(path), 5)
    assert work.types == 6
    feed = Windows(work, tokens, "cpu")
    assert torch.equal(feed[0][0], feed[3][0]), "three windows of 10 steps in 40 of each stream"
    assert torch.equal(feed[0][0][1:], feed[0][1][:-1])
    with pytest.raises(UserError, match="path must name a text of at least 33 tokens"):
        Windows(SMALL, tokens[:20], "cpu")


def test_flops_of_a_window() -> None:
    gates = 2 * 2 * (3 * 12 * 12)
    assert window_flops(make_model(SMALL, "gru"), SMALL) == 6 * 30 * (gates + 11 * 12)


def test_ratios_of_speed() -> None:
    """By rounds: a machine that slows down for one of them does not change its ratio."""
    row = speed.figures(
        VARIANTS["plain-bf16"],
        [0.5, 1.0, 2.0],
        [1.0, 2.0, 5.0],
        SMALL,
        1000,
        {"float32": [1.0], "bfloat16": [4e3, 2e3, 1e3]},
    )
    assert (row["speed_ratio"], row["speed_ratio_lowest"], row["speed_ratio_highest"]) == (2.0, 2.0, 2.5)
    assert row["tokens_per_second"] == SMALL.tokens
    assert row["share_of_peak"] == 0.5
    assert report.span(row, "speed_ratio", ".2f") == "2.00 (2.00 - 2.50)"
    assert speed.agreement(VARIANTS["ours"], 2.004, 2.0, 0.0)["agrees"] is False
    assert speed.agreement(VARIANTS["ours-bf16"], 2.004, 2.0, 0.0)["agrees"] is True
    assert speed.agreement(VARIANTS["ours"], 3.0, 2.0, 0.1)["agrees"] is None


def test_ratios_of_memory() -> None:
    common = {"work": "words", "cell": "lstm"}
    found = [
        {**common, "variant": "plain", "resident": 300, "tensors": 200, "saved": 16.0},
        {**common, "variant": "ours", "resident": 100, "tensors": 50, "saved": 2.0},
    ]
    ratios = memory.with_ratios(found)[1]
    assert [ratios[f"{name}_ratio"] for name in memory.FIGURES] == [3.0, 4.0, 8.0]


def test_a_table_and_a_chart_of_made_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"part": "equal", "cell": "gru", "streams": 8, "steps": 1_000, "windows": 2, "sizes": [400, 100]}
    row |= {"resident": 3 * report.MIB, "resident_ratio": 1.5, "seconds": None}
    assert "| gru | 2 x 8 x 1,000 | 100 of 400 | 3.0 | 1.50 | - | - | - | - |" in windows.table([row])
    (panel,) = windows.panels([row])
    assert panel.bars == [("gru, 8 x 1,000", 3.0)]
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert report.chart(tmp_path / "chart.png", [panel]) == report.WITHOUT_CHART


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panel = report.Panel("speed", [("plain", 1.0), ("ours", 2.0)], [(1.0, 1.0), (1.5, 2.5)])
    assert report.chart(tmp_path / "chart.png", [panel]) == f"chart: {tmp_path / 'chart.png'}"
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def job(variant: Variant, **more: Any) -> dict[str, Any]:
    return memory.job(SMALL, "gru", variant, Options(), "saved", **more)


def test_what_layers_keep() -> None:
    """Our GRU keeps its gates and outputs with save=gates, its outputs alone with save=hidden, and its inputs."""
    kept = {name: worker.saved(worker.Bench(job(VARIANTS[name])))["saved"] for name in ("ours-kernel", "ours-hidden")}
    # Outputs with the state before them, 1.1 H a layer, which the second layer takes as its inputs; those of the first
    # are one H more. Activations are 4 H.
    assert kept["ours-hidden"] == pytest.approx(1.1 + 0.5)
    assert kept["ours-kernel"] == pytest.approx(1.1 + 0.5 + 4)
    halves = Variant("ours", kernel="ours", save="gates", chunk=5)
    assert worker.saved(worker.Bench(job(halves)))["saved"] < 0.75 * kept["ours-kernel"]


def test_activations_are_without_weights_and_gradients() -> None:
    """Of the same size for twice the types, whose weights and gradients are most of the memory."""
    one, two = (replace(SMALL, types=types, window_steps=40, streams=20) for types in (500, 1000))
    told = {**job(VARIANTS["ours-kernel"]), "windows": 2}
    taken = [worker.window(worker.Bench({**told, "work": asdict(work)})) for work in (one, two)]
    logits = 800 * 500 * 4
    assert 0 < taken[0]["activations"] <= taken[1]["activations"] < taken[0]["activations"] + 4 * logits
    hidden = 2 * 800 * 12 * 4
    assert taken[0]["activations"] > 5 * hidden


def test_a_failing_worker_is_a_message() -> None:
    with pytest.raises(UserError, match="a measuring process failed: .*no such file"):
        worker.fresh({**job(VARIANTS["plain"]), "path": "nowhere.txt"})


def test_every_work_says_its_shape() -> None:
    assert {name: work.shape for name, work in ALL.items() if work.level == "word"} == {
        "words": "2 x 200, 20 x 35",
        "ptb": "2 x 650, 20 x 35",
    }
    assert len({case.name for case in plan.CASES}) == 12
    assert len({asdict(work)["hidden_size"] for name, work in ALL.items() if name.startswith("grid")}) == 4
    assert set(overhead.WINDOWS) <= set(ALL)
    assert set(grid.LEAN) == {5, 10}


@pytest.mark.slow
def test_every_measurement_runs(tmp_path: Path) -> None:
    """All in one command, in a tiny setting."""
    kinds = ["speed", "memory", "grid", "windows", "plan", "overhead"]
    overrides = ["works=[characters]", "variants=[plain]", "rounds=1", "windows=5", "steps=64"]
    paths = ["json_path=rows.json", "png_path=rows.png"]
    done = script("benchmark", f"what=[{','.join(kinds)}]", *overrides, *paths, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    counts = {"speed": 1, "memory": 1, "grid": 1, "windows": 2, "plan": 1, "overhead": 1}
    assert {what: sum(row["what"] == what for row in rows) for what in kinds} == counts
    assert all(row["torch"] == torch.__version__ and row["cpu"] and row["threads"] for row in rows)
    for text in ("speed, 1 of 1: ", "memory, 1 of 1: ", "grid, 1 of 1: ", "long windows, 1 of 1: ", "plan, 1 of 1: "):
        assert text in done.stdout
    headings = ("speed : plain", "kept per token", "clones : ours", "windows x streams", "predicted", "trainer : plain")
    for text in headings:
        assert text in done.stdout
    assert (tmp_path / "rows.png").exists() or report.WITHOUT_CHART in done.stdout


def test_predictions_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's part of `plan`, in this process."""
    told = {**job(Variant("ours", chunk=4)), "windows": 2, "optimizer": "adamw", "model": {"tie_weights": True}}
    chosen = worker.prediction(worker.Bench(told))
    assert chosen["sizes"] == (4,)
    monkeypatch.setattr(plan, "CASES", (plan.Case("gru", SMALL),))
    measured = worker.tensors(worker.Bench({**told, **chosen}))["tensors"]
    assert 0.4 < chosen["predicted"] / measured < 2.5


def test_a_mistake_is_a_message(tmp_path: Path) -> None:
    done = script("benchmark", "what=[sped]", cwd=tmp_path)
    assert done.returncode == 2
    assert "what must be one of" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"works": ["word"]}, r"did you mean words\?"),
        ({"works": "words"}, r"write 'works=\[words\]'"),
        ({"variants": ["our"]}, "variants must be one of"),
        ({"rounds": 0}, "rounds must be an integer of at least 1"),
        ({"dropout": 1.0}, "dropout must be a number"),
    ],
)
def test_options_are_checked(given: dict[str, Any], message: str) -> None:
    recipe = {**compose_recipe([], "benchmark"), **given}
    with pytest.raises(UserError, match=message):
        Options.read(recipe, lambda *_: None)
