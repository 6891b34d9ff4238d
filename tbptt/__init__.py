"""tbptt: truncated backpropagation through time for recurrent language models.

What is imported here needs torch and numpy only; training runs need Lightning (`tbptt.module`, `tbptt.run`) and their
configuration Hydra (`tbptt.build`).
"""

from tbptt.checkpoint import Loaded, load
from tbptt.errors import UserError
from tbptt.evaluate import evaluate
from tbptt.metrics import TokenLoss
from tbptt.nn import LanguageModel
from tbptt.sample import sample
from tbptt.state import State
from tbptt.streams import Window, WindowLoader
from tbptt.text import Vocabulary, read_corpus

__version__ = "0.1.0"

__all__ = [
    "LanguageModel",
    "Loaded",
    "State",
    "TokenLoss",
    "UserError",
    "Vocabulary",
    "Window",
    "WindowLoader",
    "evaluate",
    "load",
    "read_corpus",
    "sample",
]
