"""What computes the recurrence: a choice of speed and memory, never of the result."""

import torch
from torch import Tensor

from tbptt.errors import UserError

KERNELS = ("auto", "ours", "torch", "cudnn")
# LSTM layers of this width and more are as fast by hand as by oneDNN, or faster, and keep a third as much.
WIDE = 512
SAVES = ("auto", "gates", "hidden")


def choose_kernel(kernel: str, kind: str, inputs: Tensor, hidden_size: int, *, cut: bool) -> str:
    """The kernel for a window, by what was measured (the figures are in the README).

    Args:
        kernel: the user's choice, or "auto".
        kind: "lstm", "gru", "tanh" or "relu".
        inputs: of the window, for their device and dtype.
        hidden_size: width `H`.
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
    # oneDNN's LSTM is hard to beat in narrow layers; for GRU and RNN, float64, and borders inside a window torch has no
    # such kernel.
    onednn = kind == "lstm" and not cut and inputs.dtype != torch.float64
    return "torch" if onednn and hidden_size < WIDE else "ours"


def choose_save(save: str) -> str:
    """Every activation, unless the outputs alone are asked for or the memory plan wants them."""
    return "gates" if save == "auto" else save
