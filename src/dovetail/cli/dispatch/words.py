"""What the commands of the level have in common: files that are not to be overwritten."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli.common import check_writable
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite


def check_outputs(outputs: dict[str, Path | None], force: bool, *inputs: Path | None) -> None:
    """Before long work: whether its results have a place of their own to go to."""
    wanted = {flag: path for flag, path in outputs.items() if path is not None}
    refuse_overwrite(wanted.values(), inputs)
    for flag, path in wanted.items():
        if path.is_file() and not force:
            raise InputError(f"{flag} {path}: exists; give --force to replace it")
    check_writable(*wanted.values())


def file_of(source: str | None) -> Path | None:
    """The file of `file.py:name`."""
    return Path(source.rpartition(":")[0]) if source and ".py:" in source else None
