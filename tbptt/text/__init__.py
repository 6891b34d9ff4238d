"""Text for language models: read from anywhere, split, turned into numbers and back, and stored."""

from tbptt.text.corpus import Corpus, read_corpus
from tbptt.text.encode import encode_files
from tbptt.text.named import read_data
from tbptt.text.options import Options
from tbptt.text.source import PathLike
from tbptt.text.store import Cache
from tbptt.text.vocabulary import Vocabulary

__all__ = ["Cache", "Corpus", "Options", "PathLike", "Vocabulary", "encode_files", "read_corpus", "read_data"]
