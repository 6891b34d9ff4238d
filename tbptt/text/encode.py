"""Other files in the ids of a vocabulary that is there already."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import refusal
from tbptt.text.bpe import Bpe
from tbptt.text.options import Options
from tbptt.text.preparation import Part, encode_bpe, number_all
from tbptt.text.source import PathLike, find
from tbptt.text.spool import Numbers
from tbptt.text.vocabulary import Vocabulary


def encode_files(
    path: PathLike, vocabulary: Vocabulary, options: Options, *, key: str = "path", folder: str | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The tokens of other files, `(N,)`, with a vocabulary that is there already, and where documents begin, `(D,)`.

    They lie in a temporary file, which is gone when they are.

    Args:
        path: as for `read_corpus`.
        vocabulary: gives each symbol its id.
        options: how text becomes symbols.
        key: the option that gave the path, for messages.
        folder: for temporary files.

    Raises:
        UserError: a file that cannot be read, or holds symbols that the vocabulary lacks and has no unknown one for.
    """
    with _room(folder), ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        found, symbols, _ = number_all({"train": find(key, path)}, options, work, stack)
        part = Part(found["train"], 0, len(found["train"].numbers))
        if options.level == "bpe":
            part = encode_bpe(part, symbols, Bpe(vocabulary.tokenizer), work, stack)
            places = np.arange(len(vocabulary), dtype=np.uint32)
        else:
            places = vocabulary.places(symbols)
            seen = part.counts(len(symbols))
            there = {symbols[i]: int(seen[i]) for i in np.flatnonzero(seen).tolist()}
            outside = {} if vocabulary.has_unknown else vocabulary.not_in(there)
            if outside:
                raise vocabulary.outside(outside, len(part), key)
        table = places.astype(np.min_scalar_type(len(vocabulary) - 1))
        # Written and not mapped at first: to write to a map on a full disk ends the process.
        file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        for block in part.blocks():
            renumbered(block, table).tofile(file)
        ids = np.memmap(file, table.dtype, "c", shape=len(part))
        borders = np.concatenate([np.empty(0, np.uint64), *part.borders()]).astype(np.int64)
    return ids, borders


@contextmanager
def _room(folder: str | None) -> Iterator[None]:
    """Say which folder for temporary files it is that cannot be written to."""
    try:
        yield
    except OSError as error:
        rule = "be a folder for temporary files with room in it that may be written to"
        remedy = f"writing failed ({error.strerror or error}): free some room, or set it to another folder"
        raise refusal("TMPDIR", rule, folder or tempfile.gettempdir(), remedy) from error


def renumbered(block: Numbers, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`table[block]`, several times as fast where both are bytes."""
    if block.dtype == table.dtype == np.uint8:
        whole = np.zeros(256, np.uint8)
        whole[: len(table)] = table[:256]
        return np.frombuffer(block.tobytes().translate(whole.tobytes()), np.uint8)
    return table[block]
