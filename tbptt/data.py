"""A text as training, validation and test windows."""

import logging
from typing import Any

import lightning as L
import torch
from torch import Tensor

from tbptt.borders import check_reset
from tbptt.errors import UserError, check_integer
from tbptt.streams import WindowLoader
from tbptt.text import Corpus, Options, PathLike, Vocabulary, read_data
from tbptt.truncation import CarryDrop, WindowLengths, context_steps

log = logging.getLogger(__name__)


class TextDataModule(L.LightningDataModule):
    """Reads a corpus, or finds it prepared, and serves the windows of each part.

    Args:
        options: how text becomes tokens.
        path: a file, a folder, a glob, a list of these or a prepared store; None for the text that Python carries.
        val_path: validation text, None to cut `options.val_fraction` off the end of `path`.
        test_path: test text, None to cut `options.test_fraction` off the end of `path`.
        corpus: a named corpus, read where there is no path: see `tbptt.text.named`.
        cache_dir: folder of prepared corpora, None for the usual one.
        batch_size: streams of the training text, over all processes.
        eval_batch_size: streams of validation and test; with 1 each token but the first is scored, in context.
        window_steps: steps of a window.
        reset: "epoch", "document" or "never": when the training state starts anew.
        horizon: steps a gradient may reach back in training, None for `window_steps`.
        lengths: of the training windows, None for `window_steps` each.
        drop: which training streams start anew before a window, None for none.
    """

    corpus: Corpus
    vocabulary: Vocabulary

    def __init__(
        self,
        options: Options,
        *,
        path: PathLike | None,
        val_path: PathLike | None,
        test_path: PathLike | None,
        corpus: dict[str, Any] | None,
        cache_dir: str | None,
        batch_size: int,
        eval_batch_size: int,
        window_steps: int,
        reset: str,
        horizon: int | None = None,
        lengths: WindowLengths | None = None,
        drop: CarryDrop | None = None,
    ) -> None:
        super().__init__()
        check_integer("data.batch_size", batch_size, 1, "it counts the streams trained side by side")
        check_integer("data.eval_batch_size", eval_batch_size, 1, "it counts the streams evaluated side by side")
        check_integer("bptt.window", window_steps, 1, "it counts the steps of a window")
        check_reset(reset, options.document_separator is not None)
        context_steps(window_steps, horizon)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.window_steps = window_steps
        self.reset = reset
        self.horizon = horizon
        self.lengths = lengths
        self.drop = drop
        paths: dict[str, Any] = {"path": path, "val_path": val_path, "test_path": test_path}
        self.corpus = read_data(options, **paths, corpus=corpus, cache_dir=cache_dir)
        self.vocabulary = self.corpus.vocabulary
        self.borders = self.corpus.borders
        self.tokens = {part: torch.from_numpy(ids) for part, ids in self.corpus.tokens.items()}
        self._train = self.train_loader()
        for part in self.tokens:
            loader = self._train if part == "train" else self.evaluation_loader(part)
            if loader is not None and not loader.targets:
                raise UserError(
                    f"the {part} part must have a document of 2 tokens or more, of which one can be predicted under "
                    f"bptt.reset=document, but it has none; give another data.document_separator or another text."
                )

    def train_loader(self, rank: int = 0, world_size: int = 1, limit: float | None = None) -> WindowLoader:
        """The training windows of one of `world_size` processes; `limit` of each pass, a share or a number of them."""
        return WindowLoader(
            self.tokens["train"],
            self.batch_size,
            self.window_steps,
            reset=self.reset,
            borders=self.borders["train"],
            horizon=self.horizon,
            lengths=self.lengths,
            drop=self.drop,
            release=self.corpus.release,
            limit=limit,
            rank=rank,
            world_size=world_size,
        )

    def evaluation_loader(self, part: str) -> WindowLoader | None:
        """The windows of "validation" or "test", None where there is no such part.

        A text too short for `eval_batch_size` streams gets as many as it can fill. Documents are kept apart where they
        are in training.
        """
        tokens = self.tokens[part]
        streams = min(self.eval_batch_size, len(tokens) // 2)
        if not streams:
            return None
        reset = "document" if self.reset == "document" else "epoch"
        apart: dict[str, Any] = {"reset": reset, "borders": self.borders[part]}
        return WindowLoader(tokens, streams, self.window_steps, **apart, release=self.corpus.release)

    def longest_window(self) -> tuple[int, int]:
        """Steps that a training window has at most, context included, and those of context."""
        return self._train.longest

    def windows(self) -> dict[str, int]:
        """Windows of the first pass over each part, 0 where there is no such part."""
        validation, test = self.evaluation_loader("validation"), self.evaluation_loader("test")
        return {"train": len(self._train), "val": len(validation or ()), "test": len(test or ())}

    def train_dataloader(self) -> WindowLoader:
        """The training windows of this process."""
        trainer = self.trainer
        if trainer is None:
            return self._train
        return self.train_loader(trainer.global_rank, trainer.world_size, trainer.limit_train_batches)

    def val_dataloader(self) -> WindowLoader | None:
        """The validation windows; every process evaluates the whole text."""
        return self.evaluation_loader("validation")

    def test_dataloader(self) -> WindowLoader | None:
        """The test windows."""
        return self.evaluation_loader("test")

    def report(self) -> None:
        """Log what was read: source, checksum, sizes, unknown shares, spare tokens, cold starts."""
        log.info("text: %s", self.corpus.source)
        log.info("store: %s", self.corpus.folder)
        log.info("checksum: sha256 %s", self.corpus.sha256)
        log.info("vocabulary: %s types from the training part", f"{len(self.vocabulary):,}")
        for part, tokens in self.tokens.items():
            if len(tokens):
                log.info("%s: %s", part, self._describe(part, tokens))
            else:
                log.info("%s: none (no path, and the fraction gives fewer than 2 tokens, or is 0)", part)
        separator = self.corpus.card["options"]["document_separator"]
        if separator is not None and self.corpus.card["facts"]["data.path"]["documents"] == 1:
            log.warning("text: data.document_separator=%s parts nothing: the whole text is one document", separator)

    def _describe(self, part: str, tokens: Tensor) -> str:
        sizes = self.corpus.card["parts"][part]
        text = f"{len(tokens):,} tokens of {tokens.dtype}".replace("torch.", "")
        if self.vocabulary.has_unknown:
            text += f", {sizes['unknown'] / len(tokens):.2%} unknown"
        if self.borders[part] is not None:
            text += f", {sizes['documents']:,} documents"
        loader = self._train if part == "train" else self.evaluation_loader(part)
        assert loader is not None
        text += f", {loader.batch_size} streams, {len(loader)} windows, {loader.spare} spare"
        if not loader.equal:
            text += " (other passes have other numbers of windows)"
        if part != "train" and loader.batch_size > 1:
            text += f", {loader.batch_size} cold starts"
        if part != "train" and loader.batch_size < self.eval_batch_size:
            text += f" (too short for data.eval_batch_size={self.eval_batch_size})"
        return text


def truncation(
    window: int,
    reset: str,
    horizon: int | None,
    random_window: bool,
    random_offset: bool,
    grow_from: int | None,
    grow_windows: int | None,
    carry_drop: float,
    chunk: int | str,
    memory_mib: float | None,
    *,
    seed: int,
) -> dict[str, Any]:
    """What the keys of `bptt` and the seed of the run are to `TextDataModule`: not how a window is run."""
    del chunk, memory_mib
    growth = {"grow_from": grow_from, "grow_windows": grow_windows}
    lengths = WindowLengths(window, random=random_window, offset=random_offset, **growth, seed=seed)
    drop = CarryDrop(carry_drop, seed=seed)
    return {"window_steps": window, "reset": reset, "horizon": horizon, "lengths": lengths, "drop": drop}
