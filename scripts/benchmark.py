"""Measure speed, memory, long windows, predictions of memory and the trainer, beside other ways to train.

python scripts/benchmark.py quick=true
python scripts/benchmark.py 'works=[characters]' 'cells=[lstm,gru]' loss_windows=200 json_path=speed.json
python scripts/benchmark.py 'what=[memory,grid,windows,plan]' png_path=memory.png
python scripts/benchmark.py 'what=[overhead]'
"""

from pathlib import Path
from typing import Any

from tbptt.benchmark import grid, memory, overhead, plan, speed, text, windows
from tbptt.benchmark.options import Options
from tbptt.benchmark.report import chart
from tbptt.build import build, command, compose_recipe
from tbptt.errors import check_choice
from tbptt.run import write_json

MEASURED = {
    module.__name__.rpartition(".")[2]: module for module in (speed, memory, grid, windows, plan, overhead, text)
}


@command("benchmark")
def main(recipe: dict[str, Any], _folder: Path) -> None:
    """Print a table of each kind, and write the rows as JSON and a chart where paths are given."""
    options = Options.read(recipe, lambda overrides, folder: build(compose_recipe(overrides), folder))
    for what in recipe["what"]:
        check_choice("what", what, tuple(MEASURED))
    rows, panels = [], []
    for what in recipe["what"]:
        found = MEASURED[what].rows(options)
        print(f"\n{MEASURED[what].table(found)}\n", flush=True)
        rows += found
        panels += MEASURED[what].panels(found)
    if recipe["json_path"]:
        write_json(Path(recipe["json_path"]), {"rows": rows})
    if recipe["png_path"]:
        print(chart(Path(recipe["png_path"]), panels))


if __name__ == "__main__":
    main()
