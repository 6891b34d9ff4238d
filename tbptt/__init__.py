"""tbptt: truncated backpropagation through time for recurrent language models.

What is imported here needs torch and numpy only; training runs need Lightning (`tbptt.module`, `tbptt.run`) and their
configuration Hydra (`tbptt.build`).
"""

import os

# Read when torch loads, by its OpenMP on Linux: how long a thread that waits for the others spins before it sleeps.
# With the default, threads of two runs on one machine keep each other from the cores, and both nearly stand still; with
# a short spin they share, and an idle machine is as fast as before. Figures are in the README.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import torch

from tbptt.bptt import Plan, window_loss
from tbptt.checkpoint import Loaded, load
from tbptt.errors import UserError
from tbptt.evaluate import evaluate
from tbptt.metrics import TokenLoss
from tbptt.nn import LanguageModel
from tbptt.sample import sample
from tbptt.state import State
from tbptt.streams import Window, WindowLoader
from tbptt.text import Vocabulary, read_corpus

# From the first large block that it gets back, glibc's malloc learns how much freed memory to keep for what comes next.
# Left to a window's own tensors it may return most of them after each window, and the next one pays two microseconds
# for each page that it asks for again. Nobody touches this block, so it takes no memory.
torch.empty(31 * 2**20, dtype=torch.uint8)

__version__ = "0.1.0"

__all__ = [
    "LanguageModel",
    "Loaded",
    "Plan",
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
    "window_loss",
]
