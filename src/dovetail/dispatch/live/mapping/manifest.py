"""What the shards of a folder were made of: they are gone on with only by the same function over the same data."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, cannot_write
from dovetail.core.files.output import written_whole
from dovetail.dispatch.live.mapping.dataset import MANIFEST, ShardRange


class MapManifest(Struct, forbid_unknown_fields=True):
    """Written before the first shard, and again after the last; `complete` says that nothing is missing."""

    function: dict[str, Any]
    dataset: dict[str, Any]
    options: dict[str, Any]
    shards: list[ShardRange] | None
    complete: bool = False
    dovetail: str = "map 1"

    def path(self, out: Path, number: int) -> Path:
        """Where the result of a shard goes."""
        return out / f"{number:06d}.{self.options['to']}"

    def done(self, out: Path) -> set[int]:
        """The shards that are there: a file has its name only when it is whole."""
        suffix = f".{self.options['to']}"
        return {int(path.stem) for path in out.iterdir() if path.suffix == suffix and path.stem.isdecimal()}

    def write(self, out: Path) -> None:
        with written_whole(out / MANIFEST) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
            file.flush()
            os.fsync(file.fileno())  # as the shards: without it they would be nobody's

    def begin(self, out: Path) -> None:
        """Take a folder over: an empty one, or what an earlier run of the same left there."""
        before = _read(out / MANIFEST)
        if before is None:
            if strange := sorted(path.name for path in out.iterdir() if not _temporary(path)):
                raise InputError(f"{out}: expected an empty folder, or shards of an earlier map; found {strange[0]}")
            self.write(out)
        else:
            self._compare(before, out / MANIFEST)
            self.complete, self.shards = before.complete, before.shards
        for path in filter(_temporary, out.iterdir()):  # of a run that was killed
            path.unlink(missing_ok=True)

    def _compare(self, before: MapManifest, path: Path) -> None:
        for part in ("dovetail", "function", "dataset", "options"):
            was, now = plain(getattr(before, part)), plain(getattr(self, part))
            if was != now:
                what = _difference(part, was, now)
                raise InputError(f"{path}: its shards were made otherwise: {what}; name another folder")


def plain(value: Any) -> Any:
    """As it comes back from a file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _difference(part: str, was: Any, now: Any) -> str:
    """What differs, down to the first place where it does.

    >>> _difference("options", {"items": 3, "to": "npy"}, {"items": 4, "to": "npy"})
    'options.items was 3, is 4'
    """
    if isinstance(was, dict) and isinstance(now, dict):
        key = next(key for key in (*now, *was) if was.get(key) != now.get(key))
        return _difference(f"{part}.{key}", was.get(key), now.get(key))
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        i = next(i for i, (one, other) in enumerate(zip(was, now, strict=True)) if one != other)
        return _difference(f"{part}.{i}", was[i], now[i])
    one, other = (f"{len(each)} entries" if isinstance(each, list) else repr(each) for each in (was, now))
    return f"{part} was {one}, is {other}"


def _read(path: Path) -> MapManifest | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MapManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected the manifest of a map: {error}") from None


def _temporary(path: Path) -> bool:
    return path.name.startswith(".dovetail-") and path.suffix == ".tmp"


@contextmanager
def taken(out: Path) -> Iterator[None]:
    """A folder that nobody else maps into meanwhile; a killed process holds it no longer."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise cannot_write(out, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{out}: another map is writing there") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)
