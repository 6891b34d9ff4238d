"""The rooms and what each may import, held to the code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tbptt"
FILES = sorted(PACKAGE.rglob("*.py"))

# Level of each room. A room may import rooms of lower levels, and itself.
LEVELS = {
    "errors": 0,
    "state": 0,
    "metrics": 0,
    "peak": 0,
    "gradient_memory": 0,
    "text": 1,
    "ops": 1,
    "truncation": 1,
    "borders": 1,
    "columns": 1,
    "streams": 2,
    "nn": 2,
    "bptt": 2,
    "kernel_memory": 2,
    "memory": 2,
    "budget": 2,
    "vocabulary_memory": 2,
    "length": 2,
    "passes": 3,
    "data": 3,
    "module": 3,
    "tasks": 3,
    "checkpoint": 4,
    "sample": 4,
    "evaluate": 4,
    "callbacks": 5,
    "resume": 5,
    "run": 5,
    "benchmark": 6,
    "construct": 6,
    "build": 7,
}
SAME_LEVEL = {
    ("bptt", "nn"),
    ("kernel_memory", "nn"),
    ("memory", "kernel_memory"),
    ("memory", "nn"),
    ("memory", "bptt"),
    ("budget", "nn"),
    ("budget", "bptt"),
    ("budget", "memory"),
    ("vocabulary_memory", "memory"),
    ("tasks", "module"),
    ("module", "passes"),
    ("resume", "callbacks"),
    ("run", "callbacks"),
    ("evaluate", "checkpoint"),
    ("run", "resume"),
}
# Third-party packages, and the rooms that may import them.
THIRD_PARTY = {
    "hydra": {"build"},
    "omegaconf": {"build"},
    "lightning": {
        "length",
        "passes",
        "data",
        "module",
        "callbacks",
        "resume",
        "run",
        "benchmark",
        "construct",
        "build",
    },
    "rich": {"callbacks", "text"},
    "pooch": {"text"},
    "filelock": {"text"},
    "numpy": {"text", "borders", "run"},
    "torch": set(LEVELS) - {"errors", "text"},
}


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: import by full name"
            found |= {node.module} if node.module != "tbptt" else {f"tbptt.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    assert here in LEVELS, f"{here} has no level: say where it stands"
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "tbptt":
            other = rest[0] if rest else "__init__"
            allowed = other in (here, "__init__") or LEVELS[other] < LEVELS[here] or (here, other) in SAME_LEVEL
            assert allowed, f"{here} must not import {other}"
        elif top in THIRD_PARTY:
            assert here in THIRD_PARTY[top], f"{here} must not import {top}"


def test_text_and_models_do_not_meet() -> None:
    for path in FILES:
        names = imports(path)
        if room(path) == "nn":
            assert not any(name.startswith("tbptt.text") for name in names)
        if room(path) == "text":
            assert not any(name.startswith(("tbptt.nn", "torch")) for name in names)


def test_using_a_model_needs_neither_lightning_nor_hydra() -> None:
    others = {"lightning", "hydra", "omegaconf", "tensorboard", "rich", "pooch", "tokenizers"}
    check = f"import sys, tbptt; print({others} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", [*FILES, *(PACKAGE.parent / "scripts").glob("*.py")], ids=lambda path: path.name)
def test_files_are_short_and_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= (60 if path.parent.name == "scripts" else 320)
