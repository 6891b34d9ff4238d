"""What computes the recurrence: a choice of speed and memory, never of the result."""

import torch
from torch import Tensor

from tbptt.errors import UserError

KERNELS = ("auto", "ours", "torch", "cudnn")
# LSTM layers of this width and more are faster by hand than by oneDNN in bfloat16.
WIDE_BFLOAT16 = 512
SAVES = ("auto", "gates", "hidden")


def choose_kernel(kernel: str, kind: str, inputs: Tensor, hidden_size: int, *, bfloat16: bool, cut: bool) -> str:
    """The kernel for a window, by what was measured (the figures are in the README).

    Args:
        kernel: the user's choice, or "auto".
        kind: "lstm", "gru", "tanh" or "relu".
        inputs: of the window, for their device and dtype.
        hidden_size: width `H`.
        bfloat16: whether products are to be of bfloat16.
        cut: whether streams start anew inside the window.

    Raises:
        UserError: for "cudnn" without a GPU.
    """
    if kernel == "cudnn" and not inputs.is_cuda:
        raise UserError(
            f"model.kernel=cudnn needs a CUDA device, but the model is on {inputs.device.type}; use model.kernel=auto."
        )
    if kernel != "auto":
        return kernel
    if inputs.is_cuda:
        return "cudnn"
    if not torch.is_grad_enabled() and not cut:
        # Forward alone torch's are as fast, and for a single step faster.
        return "torch"
    if inputs.device.type != "cpu":
        return "torch"
    # oneDNN's LSTM is hard to beat, but for wide layers in bfloat16; for GRU and RNN, float64, and borders inside a
    # window torch has no such kernel.
    onednn = kind == "lstm" and not cut and inputs.dtype != torch.float64
    return "torch" if onednn and not (bfloat16 and hidden_size >= WIDE_BFLOAT16) else "ours"


def products_dtype(inputs: Tensor) -> torch.dtype:
    """What matrix products of these inputs are made of, under autocast too."""
    device = inputs.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype


def choose_save(save: str) -> str:
    """Every activation, unless the outputs alone are asked for or the memory plan wants them."""
    return "gates" if save == "auto" else save
