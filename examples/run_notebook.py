"""Runs the cells of a notebook in order, without Jupyter: ``run_notebook.py tour.ipynb``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args(argv).notebook
    names: dict[str, object] = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(c for c in cells if c["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"{path.name} cell {number}", "exec"), names)


if __name__ == "__main__":
    main()
