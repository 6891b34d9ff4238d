"""scripts/prepare.py as a user runs it."""

import re
from pathlib import Path

from conftest import script

WORDS = "a b c\n\nd e\n" * 30


def prepared(folder: Path, *overrides: str, stdin: str | None = None) -> str:
    done = script("prepare", *overrides, f"data.cache_dir={folder / 'cache'}", cwd=folder, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stores(folder: Path) -> list[Path]:
    return sorted(card.parent for card in (folder / "cache").glob("*/store.json"))


def test_facts_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(WORDS + "longest of all lines")
    told = prepared(tmp_path, "data.path=text.txt", "data.document_separator=blank_line", "data.val_fraction=0.2")
    assert "data.path: 350 characters, 31 documents, longest line 20" in told
    # 30 x (3 + 1, 1, 2 + 1) tokens, 4 and their end of line; the cuts move on to the next line.
    parts = {name: int(size) for name, size in re.findall(r"^(train|validation|test): (\d+) tokens", told, re.M)}
    assert sum(parts.values()) == 30 * 8 + 5
    assert parts["validation"] in range(47, 53)
    # The four words of the last line occur in no training text, and the symbols are five letters more and "\n".
    assert "types: 7 (6 in the training part); symbols in all parts: 10" in told
    assert len(stores(tmp_path)) == 1
    prepared(tmp_path, "data.path=text.txt", "data.document_separator=blank_line", "data.val_fraction=0.2")
    assert len(stores(tmp_path)) == 1


def test_standard_input_makes_a_store_to_train_with(tmp_path: Path) -> None:
    told = prepared(tmp_path, "data=char", "data.path=-", stdin="abcde" * 200)
    (store,) = stores(tmp_path)
    assert f"train with it: data.path={store}" in told
    assert prepared(tmp_path, "data=char", f"data.path={store}").splitlines()[2:] == told.splitlines()[2:-1]
    small = ("model.hidden_size=4", "trainer.max_steps=1", "callbacks.samples.length=0", "logger=none")
    done = script("train", "data=char", f"data.path={store}", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: 900 tokens of uint8" in done.stdout + done.stderr


def test_the_cache_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(WORDS)
    prepared(tmp_path, "data.path=text.txt")
    assert len(stores(tmp_path)) == 1
    done = script("prepare", "clear=no", f"data.cache_dir={tmp_path / 'cache'}", cwd=tmp_path)
    assert done.returncode == 2
    assert "clear must be one of True, False, but it is 'no'" in done.stdout + done.stderr
    assert len(stores(tmp_path)) == 1
    assert "MiB freed" in prepared(tmp_path, "clear=true")
    assert not stores(tmp_path)


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    done = script("prepare", "data.path=nothing.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "data.path must name an existing file" in done.stdout + done.stderr
