"""Large values of runs, each in a file of its own: whoever writes one keeps nobody else waiting."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from dovetail.core.service.store import StoreError


class ValueFiles:
    """A folder for each run. A file that was not told of to the store, as its process was killed, goes with its run.

    >>> import tempfile
    >>> files = ValueFiles(Path(tempfile.mkdtemp()) / "values")
    >>> name = files.write("run 7", b"large")
    >>> files.read(name)
    b'large'
    >>> files.forget("run 7")
    >>> files.folder.is_dir(), (files.folder / name).exists()
    (True, False)
    """

    def __init__(self, folder: Path, sync: bool = False) -> None:
        self.folder, self._sync = folder, sync

    def write(self, run: str, data: bytes) -> str:
        """Keep this for a run; gives its name. With `sync` it is on the disk then. Raises `StoreError`."""
        name = f"{_of(run)}/{secrets.token_hex(8)}"
        path = self.folder / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
                if self._sync:
                    file.flush()
                    os.fsync(file.fileno())
            if self._sync:
                for folder in (path.parent, self.folder, self.folder.parent):
                    _sync_names(folder)
        except OSError as error:
            self.drop(name)
            raise StoreError(f"{path}: cannot keep a value: {error.strerror}") from error
        return name

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise StoreError(f"{self.folder / name}: cannot read a value: {error.strerror}") from error

    def drop(self, name: str) -> None:
        """If the disk lets it go; else it goes with its run."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def forget(self, run: str) -> None:
        shutil.rmtree(self.folder / _of(run), ignore_errors=True)

    def keep_only(self, runs: Iterable[str]) -> None:
        """Nobody else is known any more."""
        known = {_of(run) for run in runs}
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)


def _sync_names(folder: Path) -> None:
    """Files that were made in a folder are found there after a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _of(run: str) -> str:
    """A run may have any name."""
    return sha256(run.encode(errors="surrogatepass")).hexdigest()[:32]
