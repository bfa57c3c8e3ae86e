"""Writes a journal while a run goes on, or goes on with one that broke off."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dovetail.core.errors import InputError, PolicyError, cannot_write
from dovetail.core.journal.records import Ended, Header, decode_event, decode_stamp

_BUFFER = 1 << 20


def _plain(value: Any) -> Any:
    """A NumPy number as a number, an array as a list: whoever computes with arrays need not convert what it decides."""
    numpy = sys.modules.get("numpy")  # who has not imported it has no such numbers
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{value!r} is not a number")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_lines = msgspec.json.Encoder(enc_hook=_plain).encode_lines


class Writer:
    """Appends steps to a file. With `resume`, it first proves that what stands there is how this run begins.

    A journal is determined by its inputs, so one that was cut anywhere is a prefix of the whole. It is compared as the
    run goes, and stays as it is until it has been proven to its last byte.
    """

    def __init__(self, path: Path, header: Header, resume: bool = False) -> None:
        self.path = path
        self._buffer = bytearray()
        self._failed: InputError | None = None
        try:
            self._proving = resume and path.exists()
            plain = not path.exists() or path.is_file()
            self._file: BinaryIO = path.open("r+b" if path.is_file() else "wb")
        except OSError as error:
            raise cannot_write(path, error) from error
        if plain and not _lock(self._file):
            self._file.close()
            raise InputError(f"{path}: another run is writing it; give this one another --out folder")
        if plain and not self._proving:
            self._file.truncate()
        if not self._put(_encode(header) + b"\n"):
            self._file.close()
            raise InputError(f"{path}: cannot resume: its header differs from this run's (inputs, pool or policy)")

    @classmethod
    def reopen(cls, path: Path, size: int) -> Writer:
        """Go on behind the first `size` bytes of a journal: what a checkpoint knows of. The rest is cut off."""
        writer = cls.__new__(cls)
        writer.path, writer._buffer, writer._failed, writer._proving = path, bytearray(), None, False
        try:
            writer._file = path.open("r+b")
        except OSError as error:
            raise cannot_write(path, error) from error
        if not _lock(writer._file):
            writer._file.close()
            raise InputError(f"{path}: another run is writing it; give this one another --out folder")
        if writer._file.seek(0, 2) < size:
            writer._file.close()
            raise InputError(f"{path}: cannot resume: it is shorter than the checkpoint says")
        writer._file.truncate(size)
        writer._file.seek(size)
        return writer

    def written(self) -> int:
        """How many bytes the journal has, all of them on their way to the disk."""
        self.flush()
        return self._file.tell()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        stamp = b'{"n":%d,"t":%b,' % (n, _encode(float(t)))
        try:
            lines = _encode_lines(events)
            # Text within JSON has no line breaks of its own, so every brace after one begins an event.
            lines = (b"\n" + lines).replace(b"\n{", b"\n" + stamp)[1:]
            if b"null" in lines:  # JSON has no numbers that are none: they may have become what cannot be read
                for line in lines.splitlines():
                    decode_stamp(line), decode_event(line)
        except (TypeError, NotImplementedError, ValueError) as error:
            raise PolicyError(f"{self.path}: step {n} at {t} s cannot be written: {error}") from error
        if not self._put(lines):
            raise InputError(f"{self.path}: cannot resume: step {n} at {t} s differs from the recorded one")
        if len(self._buffer) > _BUFFER:
            self.flush()

    def _put(self, lines: bytes) -> bool:
        """Write, or compare while there is something to compare with; False if it differs."""
        if self._proving:
            found = self._file.read(len(lines))
            if found == lines:
                return True
            if not lines.startswith(found):
                return False
            self._proving = False  # it ends here: go on behind its last byte
            lines = lines[len(found) :]
        self._buffer += lines
        return True

    def flush(self) -> None:
        lines, self._buffer = self._buffer, bytearray()  # what cannot be written is not tried twice
        if not lines:
            return
        if self._failed is not None:
            raise self._failed
        try:
            self._file.write(lines)
            self._file.flush()
        except OSError as error:
            self._failed = cannot_write(self.path, error)  # nothing may follow a line that is not whole
            raise self._failed from error

    def sync(self) -> None:
        """What was flushed is on the disk, and outlives a power cut, when this returns."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def end(self, n: int, t: float, summary: dict[str, Any]) -> None:
        self.step(n, t, [Ended(summary)])
        if self._proving and self._file.read(1):
            raise InputError(f"{self.path}: cannot resume: it goes on after the end of this run")

    def close(self) -> None:
        try:
            self.flush()
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(file: BinaryIO) -> bool:
    """Whether the file is ours alone until it is closed; where files cannot be locked it is taken to be."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True
