"""Loss as a sum of nats and a count of tokens, and the units people quote.

A mean of window means is wrong as soon as one window is shorter than the rest; sums and counts are right for every
window length, batch size and number of devices.
"""

import math

import torch
from torch import Tensor

# The target of a step that does not count, as in torch's losses.
IGNORED = -100


def perplexity(nats: float) -> float:
    """exp(nats per token); infinite, not an error, where the exponential overflows."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def bits(nats: float) -> float:
    """Nats / ln 2: bits per token, which for characters is bits per character (bpc)."""
    return nats / math.log(2)


class TokenLoss:
    """A running sum of nats and count of tokens.

    The sum stays a tensor on its device until it is asked for, so adding never makes a GPU wait.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self.tokens = 0

    def add(self, nats: Tensor, tokens: int) -> None:
        """Add `nats`, the 0-dimensional sum over `tokens` targets."""
        # MPS has no float64; everywhere else a whole epoch is summed without rounding that matters.
        exact = nats.detach() if nats.device.type == "mps" else nats.detach().to(torch.float64)
        self._sum = exact if self._sum is None else self._sum + exact
        self.tokens += tokens

    def add_mean(self, nats: Tensor, tokens: int) -> None:
        """Add `nats`, the 0-dimensional mean over `tokens` targets."""
        # Widened first: the product of a half-precision mean and a count would overflow or lose digits.
        self.add(nats.detach().to(torch.float32 if nats.device.type == "mps" else torch.float64) * tokens, tokens)

    def to_dict(self) -> dict[str, float]:
        """Return sum and count, as a checkpoint keeps them."""
        return {"nats": 0.0 if self._sum is None else self._sum.item(), "tokens": self.tokens}

    @staticmethod
    def from_dict(saved: dict[str, float], device: torch.device | str) -> "TokenLoss":
        """Return the loss that `to_dict` described, summed on `device` from now on."""
        loss = TokenLoss()
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        loss.add(torch.tensor(saved["nats"], dtype=dtype, device=device), int(saved["tokens"]))
        return loss

    @property
    def nats(self) -> float:
        """Nats per token; NaN when no token was added."""
        return math.nan if self._sum is None or not self.tokens else self._sum.item() / self.tokens

    @property
    def perplexity(self) -> float:
        """Exp of the nats per token."""
        return perplexity(self.nats)

    @property
    def bits(self) -> float:
        """Bits per token."""
        return bits(self.nats)
