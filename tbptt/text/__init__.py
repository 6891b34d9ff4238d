"""Text for language models: reading and splitting a corpus, and turning it into numbers and back."""

from tbptt.text.corpus import Corpus, read_corpus
from tbptt.text.files import read_text
from tbptt.text.vocabulary import Vocabulary

__all__ = ["Corpus", "Vocabulary", "read_corpus", "read_text"]
