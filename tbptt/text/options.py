"""How a text becomes tokens: the options that change the result, and nothing else."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from tbptt.errors import check_choice, check_number, refusal
from tbptt.text.choice import check_options
from tbptt.text.decode import check_encoding
from tbptt.text.documents import check_separator

# Of a corpus.
PARTS = ("train", "validation", "test")
NEWLINES = ("keep", "universal")
SPLITS = ("tokens", "documents")


@dataclass(frozen=True)
class Options:
    r"""The preparation of a corpus; names are those of `data`.

    Args:
        level: "byte", "char", "word" or "bpe".
        encoding: of all files of plain text; at level "byte" they are not decoded.
        newlines: "keep" leaves "\r" as it is, "universal" turns "\r\n" and "\r" into "\n".
        lowercase: whether to put all text into lower case, before it is counted.
        normalize: a Unicode normal form of all text, or None.
        min_count: symbols that are rarer in the training text become the unknown one.
        max_vocab: most entries of the vocabulary, None for no limit; at level "bpe" its size.
        unknown_word: the word by which the text itself says that a word is unknown, or None.
        document_separator: None, "blank_line", "file", or a regular expression for lines that begin a document.
        text_column: where files of records (.jsonl, .parquet) have their text.
        split: what fractions are of: "tokens" or "documents".
        val_fraction: the share cut off for validation, in [0, 1).
        test_fraction: the share cut off for the test.

    Raises:
        UserError: a value out of its range, or one that does not fit another.
    """

    level: str
    encoding: str = "utf-8"
    newlines: str = "keep"
    lowercase: bool = False
    normalize: str | None = None
    min_count: int = 1
    max_vocab: int | None = None
    unknown_word: str | None = None
    document_separator: str | None = None
    text_column: str = "text"
    split: str = "tokens"
    val_fraction: float = 0.05
    test_fraction: float = 0.05

    def __post_init__(self) -> None:
        check_options(self.level, self.min_count, self.max_vocab, self.lowercase, self.normalize, self.unknown_word)
        check_encoding(self.encoding)
        check_choice("data.newlines", self.newlines, NEWLINES)
        if self.level == "byte" and self.newlines != "keep":
            remedy = "take data.newlines=keep or data=char"
            raise refusal(
                "data.newlines", "be keep at level byte, which reads files as they are", self.newlines, remedy
            )
        check_separator(self.document_separator)
        check_choice("data.split", self.split, SPLITS)
        if self.split == "documents" and self.document_separator is None:
            remedy = "give it, for example data.document_separator=blank_line"
            raise refusal("data.document_separator", "be given for data.split=documents", None, remedy)
        if not isinstance(self.text_column, str):
            raise refusal("data.text_column", "be the name of a column", self.text_column, "the usual one is text")
        self._check_fractions()

    def _check_fractions(self) -> None:
        remedy = "give the share of the text that is cut off, for example 0.05"
        check_number("data.val_fraction", self.val_fraction, remedy, below=1.0)
        check_number("data.test_fraction", self.test_fraction, remedy, below=1.0)
        both = self.val_fraction + self.test_fraction
        if both >= 1:
            rule = "be less than 1 together with data.test_fraction, so that training text is left"
            raise refusal("data.val_fraction", rule, both, "give smaller fractions")

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all options."""
        return frozenset(one.name for one in fields(cls))

    def to_dict(self) -> dict[str, Any]:
        """Names and values, in plain types."""
        return asdict(self)
