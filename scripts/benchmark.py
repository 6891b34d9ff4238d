"""Measure what the trainer costs beside a plain torch loop, both in one run and in turn.

python scripts/benchmark.py
python scripts/benchmark.py quick=true
python scripts/benchmark.py 'works=[characters]' 'models=[gru,rnn]' rounds=9 json_path=overhead.json
"""

from pathlib import Path
from typing import Any

from tbptt.benchmark import overhead, table
from tbptt.build import build, command, compose_recipe
from tbptt.run import write_json


@command("benchmark")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Print a table, and write the rows as JSON where a path is given."""
    rounds, windows = recipe["rounds"], recipe["windows"]
    if recipe["quick"]:
        rounds, windows = 3, {work: number // 2 for work, number in windows.items()}
    rows = []
    for work in recipe["works"]:
        for model in recipe["models"]:
            print(f"{work}, {model}: {rounds} rounds of {windows[work]} windows ...", flush=True)
            rows.append(
                overhead(work, model, rounds, windows[work], lambda overrides, to: build(compose_recipe(overrides), to))
            )
    print(table(rows))
    if recipe["json_path"]:
        write_json(Path(recipe["json_path"]), {"rows": rows})


if __name__ == "__main__":
    main()
