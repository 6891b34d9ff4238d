"""Write text with a trained model. The checkpoint knows all about it.

python scripts/sample.py checkpoint=runs/.../checkpoints/best.ckpt prompt="The file" length=100
python scripts/sample.py checkpoint=... temperature=0.5 seed=3
echo "The file" | python scripts/sample.py checkpoint=... prompt_path=-
"""

import sys
from pathlib import Path
from typing import Any

import tbptt
from tbptt.build import command


def read_prompt(recipe: dict[str, Any]) -> str:
    """The prompt from the command line, a file, or standard input."""
    path = recipe["prompt_path"]
    if path is None:
        return str(recipe["prompt"])
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise tbptt.UserError(f"prompt_path={path} must be a UTF-8 text file: {error}") from error


def printable(text: str) -> str:
    """A text with escapes for what standard output cannot write: lone surrogates, or all that ASCII has not."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


@command("sample")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Print the prompt and what the model writes after it."""
    loaded = tbptt.load(recipe["checkpoint"], recipe["device"])
    prompt = read_prompt(recipe)
    options = {name: recipe[name] for name in ("length", "temperature", "top_k", "allow_unknown", "seed")}
    text = tbptt.sample(loaded.model, loaded.vocabulary, prompt=prompt, **options)
    between = " " if loaded.vocabulary.level == "word" and prompt and not prompt[-1].isspace() else ""
    print(printable(prompt + between + text))


if __name__ == "__main__":
    main()
