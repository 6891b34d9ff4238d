"""Write text with a trained model, one token at a time.

Shapes: one stream, so tokens `(1, 1)`, logits `(1, 1, V)`; the state alone is kept, so memory does not grow.
"""

import math

import torch
from torch import Tensor

from tbptt.errors import UserError, check_choice, check_integer, refusal
from tbptt.nn import LanguageModel
from tbptt.state import State
from tbptt.text import Vocabulary

# The prompt goes through the model in pieces of so many tokens: memory does not grow with its length.
PROMPT_STEPS = 1024


def choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """Draw one token, 0-dimensional, from `logits` `(V,)`: softmax(logits / temperature), the likeliest one at 0.

    Logits of -inf are never drawn, and `top_k` keeps the `top_k` largest (more where several are equal).
    """
    if logits.isnan().any() or logits.max() == math.inf:
        raise UserError("the model's output is not finite, so nothing can be drawn from it; train with a lower rate.")
    # Scaled from the largest, so that a tiny temperature leads to the likeliest token and never to inf - inf.
    scores = logits - logits.max()
    if temperature == 0:
        return scores.argmax()
    if top_k is not None and top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf)
    return torch.multinomial(torch.softmax(scores / temperature, 0), 1, generator=generator)[0]


@torch.no_grad()
def sample(
    model: LanguageModel,
    vocabulary: Vocabulary,
    *,
    length: int,
    prompt: str = "",
    temperature: float = 1.0,
    top_k: int | None = None,
    allow_unknown: bool = False,
    seed: int = 0,
) -> str:
    """Return `length` new tokens that continue `prompt`, as text (without the prompt).

    Without a prompt the first token is drawn by how often tokens stand in the training text. The state starts as at the
    start of a text. Nothing outside is touched: own random generator, own state, and the model's mode is put back.

    Args:
        model: a trained language model, on any device.
        vocabulary: its vocabulary.
        length: number of new tokens, 0 or more.
        prompt: text to continue.
        temperature: 0 for the likeliest token always; 1 for the model's own distribution.
        top_k: draw from the `top_k` likeliest only, None for all.
        allow_unknown: let the unknown token be drawn too; else it has probability 0.
        seed: of the random generator.

    Raises:
        UserError: for a number out of range, or a prompt with symbols the vocabulary lacks.
    """
    check_integer("length", length, 0, "it counts the new tokens")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
        raise refusal("temperature", "be a finite number of at least 0", temperature, "0 takes the likeliest token")
    if top_k is not None:
        check_integer("top_k", top_k, 1, "it counts the likeliest tokens to draw from")
    check_choice("allow_unknown", allow_unknown, (True, False))
    check_integer("seed", seed, 0, "it starts the random generator")
    generator = torch.Generator().manual_seed(seed)
    # What may be drawn, as logits to add: 0 or -inf.
    allowed = torch.zeros(len(vocabulary), dtype=torch.float64)
    if vocabulary.has_unknown and not allow_unknown:
        allowed[0] = -math.inf
    tokens = torch.from_numpy(vocabulary.encode(prompt, final_end_of_line=False, key="prompt")).long()
    if not length:
        return ""
    training = model.training
    model.eval()
    try:
        written: list[int] = []
        if not len(tokens):
            written.append(_first(vocabulary, allowed, generator))
            tokens = torch.tensor(written)
        logits, state = _read(model, tokens)
        while len(written) < length:
            token = choose(logits.double().cpu() + allowed, temperature, top_k, generator)
            written.append(int(token))
            logits, state = _read(model, token.view(1), state)
        return vocabulary.decode(written)
    finally:
        model.train(training)


def _first(vocabulary: Vocabulary, allowed: Tensor, generator: torch.Generator) -> int:
    """A first token, by the counts of the training text."""
    counts = torch.tensor(vocabulary.counts, dtype=torch.float64) * allowed.exp()
    if not counts.any():
        raise UserError("prompt must not be empty, since the vocabulary keeps no counts to draw a first token from.")
    return int(torch.multinomial(counts, 1, generator=generator))


def _read(model: LanguageModel, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
    """Logits `(V,)` after `tokens` `(N,)`, and the state there."""
    device = next(model.parameters()).device
    logits = torch.empty(0)
    for piece in torch.split(tokens, PROMPT_STEPS):
        hidden, state = model.hidden(piece.view(-1, 1).to(device), state)
        logits = model.head(hidden[-1, 0])
    return logits, state
