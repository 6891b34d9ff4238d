"""Preparing a text: ours, a plain Python loop, and the tokenizers of Hugging Face where they are installed.

No shapes: a text file becomes ids, in a store on the disk (ours), or in a list of numbers in memory (the others).
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tbptt.text import Options, read_corpus

TYPES = 8192  # of bpe


def ours(level: str, path: str) -> int:
    """Tokens of the whole file, prepared with an empty cache."""
    newlines = "universal" if level in ("word", "bpe") else "keep"
    limit = TYPES if level == "bpe" else None
    options = Options(level, newlines=newlines, max_vocab=limit, val_fraction=0.0, test_fraction=0.0)
    with tempfile.TemporaryDirectory() as cache:
        return len(read_corpus(options, path, cache_dir=cache).tokens["train"])


def loop(level: str, path: str) -> int:
    """Tokens as a loop in plain Python counts and numbers them."""
    symbols = list(Path(path).read_bytes()) if level == "byte" else _symbols(level, path)
    numbers = {symbol: i for i, (symbol, _) in enumerate(Counter(symbols).most_common())}
    ids = [numbers[symbol] for symbol in symbols]
    return len(ids)


def _symbols(level: str, path: str) -> list[Any]:
    with open(path, encoding="utf-8", newline="\n") as file:
        if level == "char":
            return list(file.read())
        return [word for line in file for word in [*line.split(), "\n"]]


def hugging_face(level: str, path: str) -> int:
    """Tokens by `tokenizers`: WordLevel for words, whose ends of lines become a word of their own first; BPE."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    with open(path, encoding="utf-8", newline="\n") as file:
        lines = list(file)
    if level == "word":
        lines = [line.replace("\n", " </s>") for line in lines]
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))  # noqa: S106 - no password
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer: Any = trainers.WordLevelTrainer(vocab_size=10**9, special_tokens=["<unk>"], show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=TYPES, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return sum(len(found.ids) for found in tokenizer.encode_batch_fast(lines, add_special_tokens=False))


VARIANTS = {"ours": ours, "python loop": loop, "tokenizers": hugging_face}
# Those that a level has, but for words, which have all.
HAVE = {"byte": ("ours", "python loop"), "char": ("ours", "python loop"), "bpe": ("ours", "tokenizers")}
