"""The standard sizes of a corpus, which published numbers go by."""

from collections.abc import Mapping

from tbptt.errors import UserError


def check_counts(name: str, expected: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Refuse a prepared corpus whose counts are not its standard ones: its losses could not be compared.

    Args:
        name: of the corpus.
        expected: tokens of "train", "validation" and "test", and "types" of the vocabulary; those that are known.
        found: the same of the prepared corpus; what is missing counts 0.

    Raises:
        UserError: naming the corpus and every count that differs.
    """
    wrong = [
        f"{part} has {found.get(part, 0):,} tokens instead of {count:,}"
        if part != "types"
        else f"the vocabulary has {found.get(part, 0):,} types instead of {count:,}"
        for part, count in expected.items()
        if found.get(part, 0) != count
    ]
    if wrong:
        raise UserError(
            f"corpus {name} must have its standard counts, but {', '.join(wrong)}; leave the keys of data={name} that "
            f"prepare the text as they are, or give its files by data.path, where any count is right."
        )
