"""Memory of gradients that is used again from window to window."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# The memory of the last gradient of each parameter, by a tensor of its own beside the one that became `grad`.
_LAST: Any = WeakTensorKeyDictionary()


def _users(tensor: Tensor) -> int:
    """How many hold the memory of a tensor, as torch counts: some versions count the handle that asks, too."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


ALONE = _users(torch.empty(1))


def empty_again(parameter: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Memory for the gradient of a parameter: that of its last one, if nothing else holds that any more.

    A large block that is given back and asked for again costs a page fault for every 4 KiB, more than to fill it.
    """
    last = _LAST.get(parameter)
    wanted = parameter.shape, parameter.dtype, parameter.device
    if last is not None and (last.shape, last.dtype, last.device) == wanted and _users(last) == ALONE:
        free: Tensor = last.detach()
        return free
    made = torch.empty_like(parameter, memory_format=memory_format)
    _LAST[parameter] = made.detach()
    return made
