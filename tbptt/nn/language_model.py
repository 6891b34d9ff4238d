"""The language model: embedding -> dropout -> core -> dropout -> head.

Shapes, time-major: tokens `(T, B)` int64, hidden `(T, B, H)`, logits `(T, B, V)`, state `(L, B, H)`.
"""

import torch
from torch import Tensor, nn

from tbptt.errors import UserError, check_choice, check_integer
from tbptt.nn.core import Core
from tbptt.nn.dropout import Dropout
from tbptt.nn.head import Head
from tbptt.state import State


class LanguageModel(nn.Module):
    """Predicts the next token of each stream. A plain module: it knows neither text nor trainer.

    Embedding and output weights start uniform in ±0.1, the output bias at zero, the core as torch makes it.

    Args:
        vocab_size: number of tokens `V`.
        cell: "lstm", "gru" or "rnn".
        embedding_size: width `E` of the embedding.
        hidden_size: width `H` of each recurrent layer.
        num_layers: depth `L`.
        dropout: probability on the embedding, between layers and on the output, with one layer too.
        tie_weights: let the output projection share the embedding's weight (Press and Wolf 2017); needs `E == H`.
        learn_initial_state: start texts from a trained state instead of zeros.
        nonlinearity: "tanh" or "relu" for "rnn", None for the others.
        kernel: what computes the recurrence: "auto", "ours", "torch" or "cudnn".
        save: what "ours" keeps for the backward pass: "auto", "gates" or "hidden".

    Raises:
        UserError: for a value out of range or widths that cannot be tied, naming the key.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        cell: str,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        dropout: float,
        tie_weights: bool,
        learn_initial_state: bool,
        nonlinearity: str | None = None,
        kernel: str = "auto",
        save: str = "auto",
    ) -> None:
        super().__init__()
        check_integer("vocab_size", vocab_size, 1, "it counts the distinct tokens")
        check_integer("model.embedding_size", embedding_size, 1, "it is the width of the embedding")
        check_choice("model.tie_weights", tie_weights, (True, False))
        if tie_weights and embedding_size != hidden_size:
            raise UserError(
                f"model.tie_weights=true needs equal widths, but model.embedding_size={embedding_size} and "
                f"model.hidden_size={hidden_size}; make them equal or set model.tie_weights=false."
            )
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.core = Core(
            cell,
            input_size=embedding_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            learn_initial_state=learn_initial_state,
            nonlinearity=nonlinearity,
            kernel=kernel,
            save=save,
        )
        self.dropout = Dropout(dropout)
        self.head = Head(hidden_size, vocab_size)
        if tie_weights:
            self.head.projection.weight = self.embedding.weight

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of a text, for `batch_size` streams."""
        return self.core.initial_state(batch_size)

    def hidden(
        self, tokens: Tensor, state: State | None = None, advance: int | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Outputs `(T, B, H)` of the core for `tokens` `(T, B)`, and the state after `advance` steps (None: all).

        `reset` `(S, B)` marks streams that go back to the initial state before one of the first `S` steps.
        """
        if state is None:
            state = self.initial_state(tokens.shape[1])
        dropout, layers = self.dropout.window(), self.core.rnn.num_layers
        inputs = self.embedding(tokens)
        if dropout is not None:
            inputs = dropout(inputs, 0)
        if advance is None or advance >= len(tokens):
            outputs, after = self.core(inputs, state, dropout, reset)
        elif advance:
            # A core gives its state after the last step only.
            now, later = (None, None) if reset is None else (reset[:advance], reset[advance:])
            first, after = self.core(inputs[:advance], state, dropout, now)
            second, _ = self.core(inputs[advance:], after, None if dropout is None else dropout.at(advance), later)
            outputs = torch.cat([first, second])
        else:
            outputs, _ = self.core(inputs, state, dropout, reset)
            # A copy: a learned initial state shares its memory with weights that an update will change.
            after = state.map(Tensor.clone)
        return outputs if dropout is None else dropout(outputs, layers), after

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits `(T, B, V)` of the token after each of `tokens` `(T, B)`, and the state after the last step."""
        hidden, after = self.hidden(tokens, state)
        return self.head(hidden), after

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        state: State | None = None,
        *,
        reset: Tensor | None = None,
        advance: int | None = None,
    ) -> tuple[Tensor, State]:
        """Mean nats per token of `targets` `(T, B)`, with its gradient, and the state after `advance` steps.

        `tokens` `(C + T, B)` may begin with `C` steps of context, which have no targets but carry gradients.
        Targets that are `IGNORED` do not count. `reset` is as in `hidden`. `advance` is None for the state after the
        last step.
        """
        hidden, after = self.hidden(tokens, state, advance, reset)
        return self.head.loss(hidden if len(hidden) == len(targets) else hidden[-len(targets) :], targets), after

    def nats(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Sum of nats of `targets` `(T, B)` that count, without a gradient, and the state after the last step."""
        hidden, after = self.hidden(tokens, state, reset=reset)
        return self.head.nats(hidden, targets), after
