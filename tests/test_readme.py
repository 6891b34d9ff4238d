"""What the README shows works as it stands there."""

import re

import pytest
import yaml
from conftest import ROOT

from tbptt.build import CONFIGS

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plain_loop_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (loop,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "WindowLoader" in block)
    names: dict[str, object] = {}
    exec(loop, names)  # noqa: S102 - our own README
    assert names["loss"].item() < 2.5  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("group", ["data", "model", "bptt"])
def test_every_key_stands_in_the_table(group: str) -> None:
    """In backquotes, with its group before it or after another key of the same row."""
    keys = {key for path in (CONFIGS / group).glob("*.yaml") for key in yaml.safe_load(path.read_text())}
    for key in keys - {"defaults", "level", "cell"}:
        assert re.search(rf"`({group}\.)?{key}(=\w+)?`", README), f"{group}.{key}"


def test_every_choice_stands_in_the_table() -> None:
    for group in ("data", "model", "optimizer", "scheduler", "logger"):
        for path in (CONFIGS / group).glob("[!_]*.yaml"):
            assert re.search(rf"`({group}=)?{path.stem}`", README), f"{group}={path.stem}"
