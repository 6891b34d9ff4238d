"""A corpus by its name: its files from where they are published, its parts and counts as everyone has them."""

import os
from collections.abc import Mapping
from typing import Any

from tbptt.errors import check_choice, refusal
from tbptt.text.corpus import Corpus, read_corpus
from tbptt.text.download import check_counts, fetch
from tbptt.text.options import PARTS, Options
from tbptt.text.source import PathLike
from tbptt.text.store import Cache

KEYS = ("name", "sources", "expected")


def read_data(
    options: Options,
    *,
    path: PathLike | None,
    val_path: PathLike | None,
    test_path: PathLike | None,
    corpus: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> Corpus:
    """Read what the keys of `data` say: files if there is a path, else a named corpus, else what Python carries.

    Args:
        options: how text becomes tokens.
        path: as for `read_corpus`, like the other paths.
        val_path: of validation text.
        test_path: of test text.
        corpus: `name`, `sources` as for `tbptt.text.download.fetch`, `expected` as for `check_counts`; or None.
        cache_dir: folder of prepared corpora and of downloads, None for the usual one.

    Raises:
        UserError: as `read_corpus`, `fetch` and `check_counts`.
    """
    if corpus is None or path is not None:
        return read_corpus(options, path, val_path, test_path, cache_dir=cache_dir)
    if not isinstance(corpus, Mapping):
        raise refusal("data.corpus", f"hold {', '.join(KEYS)}", corpus, "a named corpus is taken as a whole: data=NAME")
    for key in corpus:
        check_choice("data.corpus", key, KEYS)
    for key in KEYS:
        if key not in corpus:
            raise refusal("data.corpus", f"have {', '.join(KEYS)}", dict(corpus), f"add {key}")
    for key, other in (("val_path", val_path), ("test_path", test_path)):
        if other is not None:
            rule = "be given together with data.path, the training text"
            raise refusal(f"data.{key}", rule, other, "add data.path=FILE, or leave the parts to the named corpus")
    name = corpus["name"]
    files = fetch(name, corpus["sources"], Cache(cache_dir).folder / "downloads")
    paths = [str(files[part]) if part in files else None for part in PARTS]
    found = read_corpus(options, *paths, cache_dir=cache_dir)
    sizes = {part: len(ids) for part, ids in found.tokens.items()}
    check_counts(name, corpus["expected"], {**sizes, "types": len(found.vocabulary)})
    return found
