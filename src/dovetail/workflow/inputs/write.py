"""Configurations and requests as files, in the format that their suffix names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.core.files.output import atomic_write, written_whole
from dovetail.core.files.reading import yaml_text
from dovetail.workflow.choices import FileFormat

_SUFFIXES: dict[str, FileFormat] = {".json": "json", ".jsonl": "jsonl", ".yaml": "yaml", ".yml": "yaml"}


def file_format(path: Path) -> FileFormat:
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: what format? name it .yaml, .json or .jsonl, or give --file-format")
    return _SUFFIXES[path.suffix]


def output_paths(
    config: str | os.PathLike[str], requests: str | os.PathLike[str] | None, force: bool
) -> tuple[Path, Path | None]:
    """Where a configuration and requests go, if they can be written there and may be."""
    out, rows = as_path(config, "config"), None if requests is None else as_path(requests, "requests")
    for path in (out,) if rows is None else (out, rows):
        file_format(path)
        if path.is_file() and not force:
            raise InputError(f"{path}: exists already; --force writes over it")
    return out, rows


def write_config(path: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Write a configuration, as YAML or JSON by the file's suffix."""
    path = as_path(path, "path")
    if file_format(path) == "yaml":
        atomic_write(path, yaml_text(msgspec.to_builtins(config)))
    else:
        atomic_write(path, msgspec.json.format(msgspec.json.encode(config)) + b"\n")


def write_requests(
    rows: Iterable[Mapping[str, Any]], path: Path, format: FileFormat, metadata: Mapping[str, Any] | None = None
) -> int:
    """Write rows as they come, whatever their number; the file appears when it is whole. Returns how many there were.

    `metadata` heads a JSON or YAML file: give what `generate` was given, and the file tells how to make it
    again. JSON lines have no place for it.
    """
    count = 0
    with written_whole(path) as file:
        file.write(_head(format, msgspec.to_builtins(metadata)))
        for row in rows:
            file.write(_body(format, row, count))
            count += 1
        if format == "json":
            file.write(b"\n]}\n")
        elif format == "yaml" and not count:
            file.write(b" []\n")
    return count


def _head(format: FileFormat, metadata: dict[str, Any] | None) -> bytes:
    if format == "json":
        given = b'"metadata":' + msgspec.json.encode(metadata) + b",\n" if metadata else b""
        return b"{" + given + b'"requests":['
    if format == "yaml":
        return (_yaml({"metadata": metadata}) if metadata else b"") + b"requests:"
    return b""


def _body(format: FileFormat, row: Mapping[str, Any], before: int) -> bytes:
    if format == "json":
        return (b",\n" if before else b"\n") + msgspec.json.encode(row)
    if format == "yaml":
        return (b"" if before else b"\n") + _yaml([row])
    return msgspec.json.encode(row) + b"\n"


def _yaml(data: Any) -> bytes:
    return yaml_text(data).encode()
