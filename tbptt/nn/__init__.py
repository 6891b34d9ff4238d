"""Networks as plain `torch.nn.Module`s, usable without Lightning."""

from tbptt.nn.core import CELLS, Core
from tbptt.nn.head import Head
from tbptt.nn.language_model import LanguageModel

__all__ = ["CELLS", "Core", "Head", "LanguageModel"]
