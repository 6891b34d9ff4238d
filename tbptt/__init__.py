"""tbptt: truncated backpropagation through time for recurrent language models.

What is imported here needs torch and numpy only; training runs need Lightning (`tbptt.module`, `tbptt.run`) and their
configuration Hydra (`tbptt.build`).
"""

import os

# Read when torch loads. Its CPU threads wait for each other by spinning, and beside any other job on the machine they
# then keep each other from the cores: training beside one other run was 5 to 20 times slower than with threads that
# sleep while they wait. On an idle machine it makes no difference that can be measured.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
