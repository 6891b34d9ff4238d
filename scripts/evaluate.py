"""Score a text with a trained model: nats per token, perplexity, bits. The checkpoint knows all about it.

python scripts/evaluate.py checkpoint=runs/.../checkpoints/best.ckpt
python scripts/evaluate.py checkpoint=... part=validation
python scripts/evaluate.py checkpoint=... path=other.txt
"""

from pathlib import Path
from typing import Any

import tbptt
from tbptt.build import command
from tbptt.evaluate import evaluate_tokens, other_text, trained_part


@command("evaluate")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Print one line of numbers."""
    loaded = tbptt.load(recipe["checkpoint"], recipe["device"])
    if recipe["path"] is None:
        tokens, borders, name = trained_part(loaded, recipe["part"])
    else:
        tokens, borders, name = other_text(loaded, recipe["path"], recipe["encoding"])
    sizes = {"batch_size": recipe["batch_size"], "window_steps": recipe["window"]}
    loss = evaluate_tokens(loaded.model, tokens, borders, **sizes)
    print(
        f"{name}: {loss.tokens:,} tokens scored, {loss.nats:.6f} nats per token, "
        f"perplexity {loss.perplexity:.4f}, {loss.bits:.6f} bits per token"
    )


if __name__ == "__main__":
    main()
