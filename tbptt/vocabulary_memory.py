"""What a vocabulary costs in memory, and which options make it less.

Shapes: embedding `(V, E)`, output `(V, H)` and `(V,)`; logits of a window would be `(T * B, V)`.
"""

from tbptt.memory import MIB, Prediction, Setting

# From so much on for weights, gradients and optimizer, a warning names what helps, if it is most of the model as well.
LARGE_BYTES = 512 * MIB


def vocabulary_lines(setting: Setting, memory: Prediction) -> tuple[str, str]:
    """Say what the vocabulary takes, and, where that is much, what would take less ("" where it is not).

    Args:
        setting: what is trained.
        memory: the prediction for it.
    """
    model = setting.model
    types = len(model.embedding.weight)
    parameters = {id(one): one for one in (model.embedding.weight, *model.head.parameters())}
    own = sum(parameter.nbytes for parameter in parameters.values())
    whole = memory.parts["weights"]
    optimizer = memory.parts["optimizer"] * own // whole
    logits = (setting.steps - setting.context) * setting.streams * types * setting.item
    text = (
        f"{types:,} types: {own / MIB:.1f} MiB of weights, as much for their gradients, {optimizer / MIB:.1f} MiB for "
        f"the optimizer; all logits of a window together would be {logits / MIB:.1f} MiB"
    )
    if 2 * own + optimizer < LARGE_BYTES or 2 * own < whole:
        return text, ""
    helps = "data.max_vocab=20000 or a larger data.min_count (rare words become unknown), data=bpe (nothing is unknown)"
    if model.head.projection.weight is not model.embedding.weight:
        helps += ", model.tie_weights=true (with model.embedding_size=model.hidden_size)"
    return text, (
        f"the vocabulary takes {(2 * own + optimizer) / MIB:.0f} MiB in all, most of what the model takes; "
        f"less would do: {helps}, optimizer=sgd"
    )
