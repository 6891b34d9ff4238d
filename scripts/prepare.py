"""Prepare a corpus ahead of training, and say what is in it. Training with the same keys of `data` finds it.

python scripts/prepare.py data=word data.path=texts/
python scripts/prepare.py data=char 'data.path=[a.txt,b.txt.gz]' data.document_separator=file
python scripts/prepare.py data=wikitext2
zcat dump.gz | python scripts/prepare.py data=byte data.path=-
python scripts/prepare.py clear=true
"""

from pathlib import Path
from typing import Any

from tbptt.build import command, prepare
from tbptt.errors import check_choice
from tbptt.text import Cache, Corpus


def report(corpus: Corpus) -> None:
    """Print the facts of a corpus."""
    print(f"source: {corpus.source}\nstore: {corpus.folder}")
    for key, facts in corpus.card["facts"].items():
        documents = f", {facts['documents']:,} documents" if facts["documents"] else ""
        unit = "bytes" if corpus.vocabulary.level == "byte" else "characters"
        print(f"{key}: {facts['characters']:,} {unit}{documents}, longest line {facts['longest_line']:,}")
    for part, sizes in corpus.card["parts"].items():
        share = f", {sizes['unknown'] / sizes['tokens']:.2%} unknown" if corpus.vocabulary.has_unknown else ""
        documents = f", {sizes['documents']:,} documents" if sizes["documents"] else ""
        print(f"{part}: {sizes['tokens']:,} tokens{share if sizes['tokens'] else ''}{documents}")
    found = sum(count > 0 for count in corpus.vocabulary.counts)
    distinct = corpus.card["distinct"]
    print(f"types: {len(corpus.vocabulary):,} ({found:,} in the training part); symbols in all parts: {distinct:,}")
    size = sum(size for size, _ in corpus.card["files"].values())
    print(f"size: {size / 2**20:.1f} MiB, prepared in {corpus.card['seconds']:.1f} s")


@command("prepare")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Prepare, or clear the cache."""
    # What is true or not in other ways must not remove anything: "no" is a string.
    check_choice("clear", recipe["clear"], (True, False))
    if recipe["clear"]:
        cache = Cache(recipe["data"]["cache_dir"])
        print(f"{cache.clear() / 2**20:.1f} MiB freed in {cache.folder}")
        return
    corpus = prepare(recipe["data"])
    report(corpus)
    if recipe["data"]["path"] == "-":
        print(f"train with it: data.path={corpus.folder}, and the same keys of data")


if __name__ == "__main__":
    main()
