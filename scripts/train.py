"""Train a recurrent language model.

python scripts/train.py model=lstm data=word
python scripts/train.py model=gru data=char bptt.window=100
python scripts/train.py data=word data.path=text.txt trainer.max_epochs=10
python scripts/train.py -m model=gru,lstm optimizer.lr=1e-3,3e-3
python scripts/train.py resume=last trainer.max_epochs=20
"""

from pathlib import Path
from typing import Any

from tbptt.build import build, command
from tbptt.run import train


@command("train")
def main(recipe: dict[str, Any], folder: Path) -> Any:
    """Train as the recipe says, in `folder`; a sweeper gets the validation loss."""
    return train(build(recipe, folder))["val/loss"]


if __name__ == "__main__":
    main()
