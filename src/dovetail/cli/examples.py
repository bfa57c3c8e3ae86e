"""`dovetail examples`: the files that the documentation speaks of, which come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from dovetail.cli.common import Force, Format, atomic_write, print_json, print_table
from dovetail.core.errors import DovetailError, InputError

app = App(name="examples", help="Bring the example files that the documentation speaks of.")
_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "example_files", _PACKAGE.parents[1] / "examples")  # of a wheel, of a source tree
_LEFT_OUT = ("__pycache__", ".ipynb_checkpoints")


@app.command
def copy(folder: Path = Path("examples"), /, *, force: Force = False, format: Format = "table") -> None:
    """Copy the example files into a folder.

    A file that is there already and differs is not written over, unless --force is given.

    Example: dovetail examples copy examples

    Parameters
    ----------
    folder
        Where they go: examples, if left out, as in the documentation.
    force
        Write over files that differ.
    format
        table or json.
    """
    source = example_folder()
    wanted = {folder / name: (source / name).read_bytes() for name in example_names(source)}
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected a folder")
    changed = [path for path, content in wanted.items() if not path.is_file() or path.read_bytes() != content]
    taken = [path for path in changed if path.exists()]
    if folders := [path for path in taken if path.is_dir()]:
        raise InputError(f"{folders[0]}: is a folder; expected a file, or nothing")
    if taken and not force:
        raise InputError(f"{taken[0]}: exists and differs from the example; --force writes over it")
    for path in changed:
        atomic_write(path, wanted[path])
    if format == "json":
        print_json({"folder": str(folder), "files": [str(path) for path in wanted]})
        return
    print(f"{len(wanted)} files are in {folder}; {folder / 'README.md'} says what they are. For a start:")
    files = f"--config {folder / 'system_config.yaml'} --requests {folder / 'workflow_requests.yaml'}"
    print(f"  dovetail workflow run --gpus 4 {files}")


@app.command(name="list")
def list_(*, format: Format = "table") -> None:
    """List the example files.

    Example: dovetail examples list

    Parameters
    ----------
    format
        table or json.
    """
    source = example_folder()
    names = [str(name) for name in example_names(source)]
    if format == "json":
        print_json(names)
    else:
        print_table(["file", "bytes"], [[name, (source / name).stat().st_size] for name in names])


def example_folder() -> Path:
    """Where they lie: in the package, or beside it in a source tree.

    >>> (example_folder() / "system_config.yaml").is_file()
    True
    """
    for place in _PLACES:
        if (place / "system_config.yaml").is_file():
            return place
    raise DovetailError("the example files are not installed with this package")


def example_names(folder: Path) -> Iterator[Path]:
    """The files below a folder by their names in it, without what running them left there."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not {*path.parts} & {*_LEFT_OUT}:
            yield path.relative_to(folder)
