"""Byte-pair encoding, by the tokenizers of Hugging Face: trained on the training text, applied line by line.

Its base is all 256 bytes, so nothing is unknown, and it has no special tokens that a text could forge. A token never
crosses the end of a line; a line longer than `LONGEST_LINE` characters is cut there.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tbptt.errors import UserError

LONGEST_LINE = 1 << 14

_LONE = re.compile("[\ud800-\udfff]")


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise UserError("data.level=bpe needs the package tokenizers; pip install 'tbptt[text]'.") from error


class Bpe:
    """A trained tokenizer.

    Args:
        state: what `train` returned.

    Raises:
        UserError: the package is not there, or cannot read `state`.
    """

    def __init__(self, state: str) -> None:
        try:
            self._tokenizer = _library().Tokenizer.from_str(state)
        except UserError:
            raise
        except Exception as error:  # of a Rust library, which has one type for all
            raise UserError(f"The tokenizer of level bpe cannot be read ({error}); use another checkpoint.") from error

    @property
    def symbols(self) -> list[str]:
        """The tokens by id, as the library spells them: bytes that are no printable ASCII have stand-ins."""
        size: int = self._tokenizer.get_vocab_size()
        return [self._tokenizer.id_to_token(i) for i in range(size)]

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Ids of a text, `(tokens,)`; lone surrogates, which UTF-8 has not, become U+FFFD."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], list[int]]:
        """Ids of texts one after the other, `(tokens,)`, and how many of them each text has."""
        apart = [list(lines(_LONE.sub("\ufffd", text))) for text in texts]
        whole = [line for text in apart for line in text]
        found = self._tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        left = iter(found)
        sizes = [sum(len(next(left).ids) for _ in text) for text in apart]
        return np.fromiter((i for line in found for i in line.ids), np.uint32), sizes

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """The text of ids, `(tokens,)`: the inverse of `encode`."""
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text


def lines(text: str) -> Iterator[str]:
    r"""Yield the lines of a text with their "\n", cut into pieces of at most `LONGEST_LINE` characters."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin, begin + LONGEST_LINE) + 1 or min(begin + LONGEST_LINE, len(text))
        yield text[begin:end]
        begin = end


def train(pieces: Iterable[str], size: int, min_count: int) -> str:
    """A tokenizer of `size` tokens at most, in JSON, from a training text.

    Args:
        pieces: the text, cut at ends of lines.
        size: most tokens, at least 256.
        min_count: pairs that occur less often are not joined.

    Raises:
        UserError: the package is not there.
    """
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=[],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    whole = (line for piece in pieces for line in lines(_LONE.sub("\ufffd", piece)))
    tokenizer.train_from_iterator(whole, trainer)
    state: str = tokenizer.to_str()
    return state
