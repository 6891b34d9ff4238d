"""Dropout whose masks depend on the window, the place and the step, and on nothing else.

Shapes: values `(T, B, W)`. A window draws one seed; the mask of a step can then be made again at any time. So a window
that is run in chunks, and run again in the backward sweep, drops exactly what the whole window would have dropped, and
no mask has to be kept.
"""

import torch
from torch import Tensor, nn

from tbptt.errors import check_number

# Steps whose mask is drawn at once. A part of it cannot be drawn alone, so chunks best begin at multiples.
BLOCK_STEPS = 8
LEVELS = 2**16
MASK_64 = 2**64 - 1


def _mix(value: int) -> int:
    """A 64-bit hash (the finalizer of SplitMix64; Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


class WindowDropout:
    """The dropout of one window.

    Args:
        seed: of the window.
        probability: of a value to be dropped, taken to the nearest 1/65536.
        first: step of the window that is step 0 of the values.
    """

    def __init__(self, seed: int, probability: float, first: int = 0) -> None:
        self.seed = seed
        self.probability = probability
        self.first = first
        self._dropped = min(LEVELS - 1, round(probability * LEVELS))

    def at(self, step: int) -> "WindowDropout":
        """The same, for values that begin `step` steps later."""
        return WindowDropout(self.seed, self.probability, self.first + step)

    def mask(self, steps: int, streams: int, width: int, place: int, device: torch.device) -> Tensor:
        """What is kept, `(steps, streams, width)` of bool, at a place: 0 embedding, `l` above layer `l`."""
        first, last = self.first // BLOCK_STEPS, (self.first + steps - 1) // BLOCK_STEPS
        size = BLOCK_STEPS * streams * width
        # 16 bits a value, four values a draw: a sixth of the time of torch's own dropout on a CPU.
        draws = torch.empty((last - first + 1, (size + 3) // 4), dtype=torch.int64, device=device)
        generator = torch.Generator(device)
        for row, block in enumerate(range(first, last + 1)):
            generator.manual_seed(_mix(_mix(self.seed ^ place << 48) ^ block) >> 1)
            draws[row].random_(-(2**63), None, generator=generator)
        levels = draws.view(torch.int16)[:, :size].reshape(-1, streams, width)
        begin = self.first - first * BLOCK_STEPS
        return levels[begin : begin + steps] >= self._dropped - LEVELS // 2

    def __call__(self, values: Tensor, place: int) -> Tensor:
        """Values `(T, B, W)` with dropped ones at zero and the others scaled up, so that the mean stays."""
        keep = self.mask(*values.shape, place, values.device)  # type: ignore[call-arg]
        # For the backward pass autograd keeps one byte a value.
        return values.mul(keep).mul_(LEVELS / (LEVELS - self._dropped))


class Dropout(nn.Module):
    """Gives each training window its dropout.

    Raises:
        UserError: for a probability outside [0, 1).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        check_number("model.dropout", probability, "it is the share of units set to zero in training", below=1.0)
        self.probability = probability

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.probability}"

    def window(self) -> WindowDropout | None:
        """For the next window, by a seed from torch's generator; None in evaluation and where nothing is dropped."""
        if not self.training or not self.probability:
            return None
        return WindowDropout(int(torch.randint(2**62, ()).item()), self.probability)
