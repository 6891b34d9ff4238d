"""Recurrent cores: a stack of RNN, GRU or LSTM layers, with the state it starts from.

Shapes, time-major: inputs `(T, B, E)`, outputs `(T, B, H)`, state `(L, B, H)`.
"""

import torch
from torch import Tensor, nn

from tbptt.errors import UserError, check_choice, check_integer, check_number
from tbptt.state import State

CELLS = ("lstm", "gru", "rnn")


class Core(nn.Module):
    """`torch.nn.LSTM`, `GRU` or `RNN` behind one interface: `State` in, `State` out.

    On CUDA these are cuDNN's fused kernels on flat weights. Weights have torch's names and layout (`rnn.weight_ih_l0`
    and so on), so they can be exchanged with a plain `torch.nn` layer.

    Args:
        cell: "lstm", "gru" or "rnn".
        input_size: width `E` of the input.
        hidden_size: width `H`.
        num_layers: depth `L`.
        dropout: probability on the outputs of each layer but the last.
        learn_initial_state: start texts from a trained state instead of zeros.
        nonlinearity: "tanh" or "relu" for "rnn", None for the others.

    Raises:
        UserError: for a value out of range, naming its key.
    """

    def __init__(
        self,
        cell: str,
        *,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        dropout: float,
        learn_initial_state: bool,
        nonlinearity: str | None = None,
    ) -> None:
        super().__init__()
        check_choice("model.cell", cell, CELLS)
        check_integer("model.hidden_size", hidden_size, 1, "it is the width of every layer")
        check_integer("model.num_layers", num_layers, 1, "it counts the recurrent layers")
        check_number("model.dropout", dropout, "it is the share of units set to zero in training", below=1.0)
        check_choice("model.learn_initial_state", learn_initial_state, (True, False))
        if cell == "rnn":
            check_choice("model.nonlinearity", nonlinearity, ("tanh", "relu"))
        elif nonlinearity is not None:
            raise UserError(
                f"model.nonlinearity={nonlinearity} is for model=rnn alone; leave it out with model={cell}."
            )
        # torch warns of dropout in a single layer, between which there is nothing to drop.
        between = dropout if num_layers > 1 else 0.0
        if cell == "lstm":
            self.rnn: nn.RNNBase = nn.LSTM(input_size, hidden_size, num_layers, dropout=between)
        elif cell == "gru":
            self.rnn = nn.GRU(input_size, hidden_size, num_layers, dropout=between)
        else:
            self.rnn = nn.RNN(input_size, hidden_size, num_layers, nonlinearity=str(nonlinearity), dropout=between)
        self.cell = cell
        shape = (num_layers, 1, hidden_size)
        self.initial_hidden = nn.Parameter(torch.zeros(shape)) if learn_initial_state else None
        self.initial_cell = nn.Parameter(torch.zeros(shape)) if learn_initial_state and cell == "lstm" else None

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of a text, for `batch_size` streams: zeros, or the learned one (with its gradient)."""
        if self.initial_hidden is not None:
            hidden = self.initial_hidden.expand(-1, batch_size, -1)
            return State(hidden, None if self.initial_cell is None else self.initial_cell.expand(-1, batch_size, -1))
        weight = self.rnn.weight_hh_l0
        assert isinstance(weight, Tensor)
        zeros = weight.new_zeros(self.rnn.num_layers, batch_size, self.rnn.hidden_size)
        return State(zeros, torch.zeros_like(zeros) if self.cell == "lstm" else None)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run `inputs` `(T, B, E)` on from `state`; return outputs `(T, B, H)` and the state after the last step."""
        # cuDNN wants contiguous states, and an expanded initial state is not.
        if self.cell == "lstm":
            assert state.cell is not None
            outputs, (hidden, cell) = self.rnn(inputs, (state.hidden.contiguous(), state.cell.contiguous()))
            return outputs, State(hidden, cell)
        outputs, hidden = self.rnn(inputs, state.hidden.contiguous())
        return outputs, State(hidden)
