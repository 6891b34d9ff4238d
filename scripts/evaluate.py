"""Score a text with a trained model: nats per token, perplexity, bits. The checkpoint knows all about it.

python scripts/evaluate.py checkpoint=runs/.../checkpoints/best.ckpt
python scripts/evaluate.py checkpoint=... part=validation
python scripts/evaluate.py checkpoint=... path=other.txt
"""

from pathlib import Path
from typing import Any

import tbptt
from tbptt.build import command
from tbptt.evaluate import corpus_part, evaluate_text
from tbptt.text import read_text


@command("evaluate")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Print one line of numbers."""
    loaded = tbptt.load(recipe["checkpoint"], recipe["device"])
    if recipe["path"] is None:
        text, name = corpus_part(loaded.recipe["data"], recipe["part"], loaded.corpus["sha256"])
    else:
        name = str(recipe["path"])
        text = read_text("path", name, recipe["encoding"] or loaded.recipe["data"]["encoding"])
    sizes = {"batch_size": recipe["batch_size"], "window_steps": recipe["window"]}
    loss = evaluate_text(loaded.model, loaded.vocabulary, text, **sizes)
    print(
        f"{name}: {loss.tokens:,} tokens scored, {loss.nats:.6f} nats per token, "
        f"perplexity {loss.perplexity:.4f}, {loss.bits:.6f} bits per token"
    )


if __name__ == "__main__":
    main()
