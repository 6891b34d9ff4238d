"""Checkpoints that describe themselves.

Beside what Lightning saves, a checkpoint holds `recipe` (the whole configuration, in plain types), `vocabulary`,
`corpus` (source and checksum), `carry` (the training state) and `rng`. It is read with `weights_only=True`: a file from
a stranger runs no code.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tbptt.errors import UserError, refusal
from tbptt.nn import LanguageModel
from tbptt.text import Vocabulary

PREFIX = "model."


@dataclass(frozen=True)
class Loaded:
    """A trained model, ready to use: in evaluation mode, with its vocabulary and what it was trained with."""

    model: LanguageModel
    vocabulary: Vocabulary
    recipe: dict[str, Any]
    corpus: dict[str, str]


def read(path: str | os.PathLike[str], key: str = "checkpoint") -> dict[str, Any]:
    """The raw content of a checkpoint, on the CPU.

    Raises:
        UserError: when there is no such file, or it is no checkpoint of this program.
    """
    # A number on the command line is a file of that name.
    file = Path(str(path)).expanduser()
    if file.is_dir():
        # A run folder stands for its best weights.
        best, last = (file / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
        file = best if best.is_file() else last
    if not file.is_file():
        raise UserError(f"{key}={file} must be a checkpoint file, but there is none; give the path of a .ckpt file.")
    try:
        # Mapped: what nobody looks at, such as the optimizer of a model that is only used, takes no memory.
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{key}={file} cannot be read ({type(error).__name__}): damaged, or of another program."
        ) from error
    needed = {"state_dict", "recipe", "vocabulary", "corpus"}
    if not isinstance(content, dict) or not needed <= content.keys():
        raise UserError(f"{key}={file} was not written by this program: it must hold {', '.join(sorted(needed))}.")
    return content


def write(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint, whole or not at all; it takes no memory beside its content."""
    file = Path(path)
    part = file.with_suffix(".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as opened:
        torch.save(content, opened)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(part, file)


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Loaded:
    """Rebuild the model of a checkpoint, without Lightning or Hydra.

    Raises:
        UserError: as `read`, or when the weights do not fit the model that the recipe describes.
    """
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise refusal("device", "be one that torch knows", device, "use device=cpu or device=cuda") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={device} must be there, but torch sees no GPU; use device=cpu.")
    content = read(path)
    vocabulary = Vocabulary.from_dict(content["vocabulary"])
    model = LanguageModel(len(vocabulary), **content["recipe"]["model"])
    weights = {
        name.removeprefix(PREFIX): value for name, value in content["state_dict"].items() if name.startswith(PREFIX)
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"checkpoint={path} holds weights that do not fit its recipe: {error}") from error
    return Loaded(model.to(where).eval(), vocabulary, content["recipe"], content["corpus"])


def newest(folder: Path) -> Path:
    """The last.ckpt written last below `folder`.

    Raises:
        UserError: when there is none, naming the folder that was searched.
    """
    found = sorted(folder.glob("**/checkpoints/last.ckpt"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UserError(f"resume=last found no checkpoints/last.ckpt below {folder}; give resume=PATH instead.")
    return found[-1]
