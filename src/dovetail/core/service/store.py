"""Durable state of a live service: what ought to be, what is, and everything that happened, in one SQLite file.

Each change is one transaction of a write-ahead log: a process that is killed at any moment leaves the state before it
or the state after it. One process at a time may have a store open.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.journal import Recorded

T = TypeVar("T")
_events = msgspec.json.Decoder(list[Recorded]).decode
VERSION = 2  # things as MessagePack, which holds bytes as they are; before as JSON
_PAGE = 500
_TABLES = """
create table about (name text primary key, value blob not null) without rowid;
create table things (kind text, name text, desired blob not null, actual blob,
    primary key (kind, name)) without rowid;
create table steps (n integer primary key, t real not null, events blob not null);
"""


class StoreError(DovetailError):
    """The state could not be kept: most often because the disk is full."""


class Store:
    """A service's memory. Values are whatever msgspec can encode; the caller names the type when it reads.

    What is kept outlives the process in any case. With `synchronous` full it outlives a power cut too, each change
    waiting for the disk; with normal a power cut may take the last changes, but never a part of one.

    >>> import tempfile
    >>> with Store(Path(tempfile.mkdtemp()) / "state.db") as store:
    ...     store.put("program", "7", {"cores": 2})
    ...     store.note("program", "7", {"pid": 300})
    ...     list(store.things("program", dict, dict))
    [('7', {'cores': 2}, {'pid': 300})]
    """

    def __init__(self, path: Path, synchronous: Literal["full", "normal"] = "full") -> None:
        self.path = path
        self._lock = threading.RLock()
        self._held = _hold(path)
        try:
            path.touch(mode=0o600)  # for its user alone, as are the files that SQLite puts beside it
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute(f"pragma synchronous={synchronous}")
            version = self._db.execute("pragma user_version").fetchone()[0]
        except sqlite3.Error as error:
            self._held.close()
            raise InputError(f"{path}: not a store: {error}") from error
        if version > VERSION:
            self.close()
            raise InputError(f"{path}: store version {version}; this Dovetail reads up to {VERSION}")
        if not version:
            version = VERSION
            with self.together():
                for table in _TABLES.split(";"):
                    self._db.execute(table)
                self._db.execute(f"pragma user_version={VERSION}")
        codec: Any = msgspec.json if version == 1 else msgspec.msgpack
        self._encode, self._decode = codec.encode, codec.decode

    @contextmanager
    def together(self) -> Iterator[None]:
        """All changes within are one: all of them are kept, or none."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            try:
                self._db.execute("begin immediate")
                yield
                self._db.execute("commit")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise StoreError(f"{self.path}: cannot keep the state: {error}") from error
                raise

    def _do(self, statement: str, *values: Any) -> None:
        with self._lock:
            if self._db.in_transaction:  # whose errors are its own
                self._db.execute(statement, values)
                return
        with self.together():
            self._db.execute(statement, values)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: cannot read the state: {error}") from error

    # --- facts about the whole ------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        self._do("insert or replace into about values (?, ?)", name, msgspec.json.encode(value))

    def get(self, name: str, type: type[T]) -> T | None:
        rows = self._rows("select value from about where name = ?", name)
        return msgspec.json.decode(rows[0][0], type=type) if rows else None

    # --- things: what each ought to be, and what it is --------------------------------------------------

    def put(self, kind: str, name: str, desired: Any) -> None:
        """What a thing ought to be; what it is stays as noted."""
        self._do(
            "insert into things values (?, ?, ?, null) on conflict do update set desired = excluded.desired",
            kind,
            name,
            self._encode(desired),
        )

    def note(self, kind: str, name: str, actual: Any) -> None:
        """What a thing is; with None, that this is not known."""
        known = None if actual is None else self._encode(actual)
        self._do("update things set actual = ? where kind = ? and name = ?", known, kind, name)

    def find(self, kind: str, name: str, desired: type[T]) -> T | None:
        """What one thing ought to be; None if there is none."""
        rows = self._rows("select desired from things where kind = ? and name = ?", kind, name)
        return self._decode(rows[0][0], type=desired) if rows else None

    def things(self, kind: str, desired: type[T], actual: type[Any]) -> Iterator[tuple[str, T, Any]]:
        """All things of a kind, by name; `actual` is None for one of which nothing was noted."""
        for name, wanted, found in self._rows(
            "select name, desired, actual from things where kind = ? order by name", kind
        ):
            known = None if found is None else self._decode(found, type=actual)
            yield name, self._decode(wanted, type=desired), known

    def under(self, kind: str, prefix: str, desired: type[T]) -> Iterator[tuple[str, T]]:
        """The things of a kind whose names begin so, by name: what each ought to be."""
        query = "select name, desired from things where kind = ? and name >= ? and name < ? order by name"
        for name, wanted in self._rows(query, kind, prefix, prefix + "\U0010ffff"):
            yield name, self._decode(wanted, type=desired)

    def drop(self, kind: str, name: str) -> None:
        self._do("delete from things where kind = ? and name = ?", kind, name)

    # --- steps: everything that happened ------------------------------------------------------------------

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Keep a step of the loop: as an observer, before it is carried out."""
        self._do("insert into steps values (?, ?, ?)", n, t, msgspec.json.encode(events))

    def steps(self) -> Iterator[tuple[int, float, list[Recorded]]]:
        """All steps that there are now, as a journal's reader gives them; read in pages, so that nobody waits long."""
        n, last = 0, self.last_step()
        query = "select n, t, events from steps where n > ? and n <= ? order by n limit ?"
        while rows := self._rows(query, n, last, _PAGE):
            for n, t, events in rows:
                yield n, t, _events(events)

    def last_step(self) -> int:
        """The number of the last step; 0 if there is none."""
        number: int = self._rows("select coalesce(max(n), 0) from steps")[0][0]
        return number

    def last_s(self) -> float:
        """When the last step was; 0 if there is none."""
        at_s: float = self._rows("select coalesce(max(t), 0) from steps")[0][0]
        return at_s

    def forget_steps(self) -> None:
        self._do("delete from steps")

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._held.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(path: Path) -> Any:
    """Lock a file beside the store, which the kernel lets go when the process ends, however it ends."""
    try:
        file = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(f"{path}: another process has it open; only one may use this folder") from None
    return file
