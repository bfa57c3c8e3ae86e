"""Run the notebooks of `examples/notebooks` and keep what they show, or with `--check` only see that they run.

python -m tools.notebooks --check examples/notebooks/workflow.ipynb
"""

from __future__ import annotations

import argparse
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def executed(path: Path) -> Any:
    """The notebook with fresh outputs; it runs in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=300, startup_timeout=300, kernel_name="python3", resources=where, record_timing=False
    ).execute()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def shown(notebook: Any) -> list[list[str]]:
    """What each cell of code shows: the kinds of its outputs. What is printed comes in one piece or in several."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = [
        [kind for output in cell.outputs for kind in sorted(output.get("data", {output.output_type: ""}))]
        for cell in cells
    ]
    return [[kind for kind, _ in groupby(each)] for each in kinds]


def pictures(notebook: Any) -> int:
    """How many drawings there are."""
    text = nbformat.writes(notebook)
    return len(re.findall(r"<svg ", text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the kept outputs are of another kind"
    )
    given = parser.parse_args()
    failed = 0
    for path in given.notebooks:
        try:
            fresh = executed(path.resolve())
        except CellExecutionError as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
            continue
        if not given.check:
            nbformat.write(fresh, path)
        elif shown(fresh) != shown(nbformat.read(path, as_version=4)):
            print(f"{path}: shows something else than what it was kept with: run make notebooks", file=sys.stderr)
            failed += 1
        print(f"{path}: {len(fresh.cells)} cells, {pictures(fresh)} pictures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
