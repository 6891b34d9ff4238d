"""Recurrent cores: a stack of RNN, GRU or LSTM layers, with the state it starts from.

Shapes, time-major: inputs `(T, B, E)`, outputs `(T, B, H)`, state `(L, B, H)`.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tbptt.errors import UserError, check_choice, check_integer
from tbptt.nn.dropout import WindowDropout
from tbptt.nn.kernel import KERNELS, SAVES, choose_kernel, choose_save
from tbptt.nn.pieces import Pieces, cut
from tbptt.ops.cell import Weights
from tbptt.ops.layer import recurrent_layer
from tbptt.state import State

CELLS = ("lstm", "gru", "rnn")


class Core(nn.Module):
    """`torch.nn.LSTM`, `GRU` or `RNN` behind one interface: `State` in, `State` out.

    Weights have torch's names and layout (`rnn.weight_ih_l0` and so on), so they can be exchanged with a plain
    `torch.nn` layer, whatever computes with them.

    Args:
        cell: "lstm", "gru" or "rnn".
        input_size: width `E` of the input.
        hidden_size: width `H`.
        num_layers: depth `L`.
        learn_initial_state: start texts from a trained state instead of zeros.
        nonlinearity: "tanh" or "relu" for "rnn", None for the others.
        kernel: "ours" for the passes written by hand, "torch" for torch's own, "cudnn" for cuDNN's, "auto" for the
            fastest that was measured.
        save: what "ours" keeps for the backward pass: "gates" (every activation), "hidden" (outputs alone), "auto".

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
        learn_initial_state: bool,
        nonlinearity: str | None = None,
        kernel: str = "auto",
        save: str = "auto",
    ) -> None:
        super().__init__()
        check_choice("model.cell", cell, CELLS)
        check_integer("model.hidden_size", hidden_size, 1, "it is the width of every layer")
        check_integer("model.num_layers", num_layers, 1, "it counts the recurrent layers")
        check_choice("model.learn_initial_state", learn_initial_state, (True, False))
        check_choice("model.kernel", kernel, KERNELS)
        check_choice("model.save", save, SAVES)
        if cell == "rnn":
            check_choice("model.nonlinearity", nonlinearity, ("tanh", "relu"))
        elif nonlinearity is not None:
            raise UserError(
                f"model.nonlinearity={nonlinearity} is for model=rnn alone; leave it out with model={cell}."
            )
        if cell == "lstm":
            self.rnn: nn.RNNBase = nn.LSTM(input_size, hidden_size, num_layers)
        elif cell == "gru":
            self.rnn = nn.GRU(input_size, hidden_size, num_layers)
        else:
            self.rnn = nn.RNN(input_size, hidden_size, num_layers, nonlinearity=str(nonlinearity))
        self.cell = cell
        self.kind = nonlinearity or cell
        self.kernel = kernel
        self.save = save
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

    def forward(
        self, inputs: Tensor, state: State, dropout: WindowDropout | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run `inputs` on from `state`.

        Args:
            inputs: `(T, B, E)`.
            state: `(L, B, H)`.
            dropout: of the window, applied between layers; None for none.
            reset: `(S, B)` of bool: streams that go back to the initial state before one of the first `S` steps; None
                for none.

        Returns:
            outputs `(T, B, H)` and the state after the last step.
        """
        if reset is not None and len(reset) <= 1:
            # Before the first step alone: no kernel needs to know.
            state = state.reset_rows(reset[0], self.initial_state(inputs.shape[1])) if len(reset) else state
            reset = None
        kernel = choose_kernel(
            self.kernel,
            self.kind,
            inputs,
            self.rnn.hidden_size,
            cut=reset is not None,
        )
        if kernel == "ours":
            return self._ours(inputs, state, dropout, reset)
        return self._torchs(inputs, state, dropout, reset)

    def _ours(
        self, inputs: Tensor, state: State, dropout: WindowDropout | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        # Zeros are not handed on, and a learned state only where it is gone back to: it gets a gradient.
        learned = self.initial_hidden is not None and reset is not None
        fresh = self.initial_state(inputs.shape[1]) if learned else State(state.hidden[:0])
        hidden, cells = [], []
        for layer, weights in enumerate(self.rnn.all_weights):
            if layer and dropout is not None:
                inputs = dropout(inputs, layer)
            inputs, last, last_cell = recurrent_layer(
                self.kind,
                inputs,
                state.hidden[layer],
                None if state.cell is None else state.cell[layer],
                Weights(*weights),
                save=choose_save(self.save),
                reset=reset,
                fresh=(_layer(fresh.hidden, layer), _layer(fresh.cell, layer)),
            )
            hidden.append(last)
            cells.append(last_cell)
        cell = None if state.cell is None else torch.stack([one for one in cells if one is not None])
        return inputs, State(torch.stack(hidden), cell)

    def _torchs(
        self, inputs: Tensor, state: State, dropout: WindowDropout | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        native = self.kernel == "torch" and inputs.is_cuda
        streams, steps = inputs.shape[1], len(inputs)
        pieces = None if reset is None else cut(reset, steps)
        if pieces is not None:
            fresh = self.initial_state(streams)
            state = State(
                pieces.enter(state.hidden, fresh.hidden),
                None if state.cell is None or fresh.cell is None else pieces.enter(state.cell, fresh.cell),
            )
        # Layers go one by one where something is done between them; else all in one call, the faster way on a GPU.
        together = dropout is None
        weights: list[Any] = self.rnn._flat_weights if together else self.rnn.all_weights
        groups = [(weights, slice(None))] if together else [(one, slice(i, i + 1)) for i, one in enumerate(weights)]
        states = []
        with torch.backends.cudnn.flags(enabled=False) if native else nullcontext():
            for layer, (group, layers) in enumerate(groups):
                if layer and dropout is not None:
                    inputs = dropout(inputs, layer)
                part = state.map(lambda tensor, layers=layers: tensor[layers].contiguous())  # type: ignore[misc]
                inputs, after = self._call(inputs, part, group, pieces, steps)
                states.append(after)
        last = states[0] if together else _joined(states)
        return inputs, last if pieces is None else last.map(lambda tensor: tensor[:, pieces.last])

    def _call(
        self, inputs: Tensor, state: State, weights: list[Tensor], pieces: Pieces | None, steps: int
    ) -> tuple[Tensor, State]:
        """Torch's function on some layers; cuDNN wants contiguous states."""
        function: Any = {"lstm": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[
            self.kind
        ]
        hx = state.hidden if state.cell is None else (state.hidden, state.cell)
        # has_biases, num_layers, dropout, train, bidirectional; batch_first only without packing.
        options = (True, len(weights) // 4, 0.0, self.training, False)
        if pieces is None:
            outputs, *after = function(inputs, hx, weights, *options, False)
        else:
            packed, *after = function(pieces.pack(inputs), pieces.batch_sizes, hx, weights, *options)
            outputs = pieces.unpack(packed, steps)
        return outputs, State(*after)


def _layer(state: Tensor | None, layer: int) -> Tensor | None:
    """One layer of a state, None where there is none."""
    return state[layer] if state is not None and len(state) else None


def _joined(states: list[State]) -> State:
    """The states of single layers as that of the stack."""
    cells = [state.cell for state in states if state.cell is not None]
    return State(torch.cat([state.hidden for state in states]), torch.cat(cells) if cells else None)
