"""The store: what was kept is there after a kill, whole or not at all."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, WakeAt
from dovetail.core.service.store import _TABLES, Store, StoreError


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:
        store.set("number", 3)
        store.put("program", "a", {"cores": 1})
        store.note("program", "a", {"pid": 7})
        store.put("program", "a", {"cores": 2})
        store.put("program", "b", {"cores": 4})
        store.step(1, 0.5, [Arrived("a", "program", (0.0,), facts={"cores": 1}), WakeAt(3.0)])
    with Store(tmp_path / "state.db") as store:
        assert store.get("number", int) == 3
        assert {path.stat().st_mode & 0o77 for path in tmp_path.glob("state.db*") if path.suffix != ".lock"} == {0}
        assert store.get("nothing", int) is None
        assert list(store.things("program", dict, dict)) == [("a", {"cores": 2}, {"pid": 7}), ("b", {"cores": 4}, None)]
        assert list(store.steps()) == [(1, 0.5, [Arrived("a", "program", (0.0,), facts={"cores": 1}), WakeAt(3.0)])]
        store.drop("program", "b")
        assert [name for name, _, _ in store.things("program", dict, dict)] == ["a"]


def test_many_steps_are_read_page_by_page(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:
        with store.together():
            for n in range(1, 1202):
                store.step(n, float(n), [WakeAt(n + 0.5)])
        read = []
        for n, t, events in store.steps():
            if n == 1:
                store.step(2000, 2000.0, [WakeAt(2001.0)])  # what comes meanwhile is not of this reading
            read.append((n, t, events))
        assert read == [(n, float(n), [WakeAt(n + 0.5)]) for n in range(1, 1202)]


def test_changes_made_together_are_kept_together(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:

        def half() -> None:
            with store.together():
                store.set("number", 1)
                store.put("program", "a", {})
                raise KeyError

        with pytest.raises(KeyError):
            half()
        assert store.get("number", int) is None
        assert list(store.things("program", dict, dict)) == []


def test_a_step_is_kept_once(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:
        store.step(1, 0.0, [WakeAt(1.0)])
        with pytest.raises(StoreError, match="cannot keep the state"):
            store.step(1, 0.0, [WakeAt(2.0)])
        assert [events for _, _, events in store.steps()] == [[WakeAt(1.0)]]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db"), pytest.raises(InputError, match="another process has it open"):
        Store(tmp_path / "state.db")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("these are words, not a database\n" * 100)
    with pytest.raises(InputError, match="not a store"):
        Store(tmp_path / "state.db")


def test_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:
        store.put("value", "7", {"data": bytes(300_000)})
        assert store.find("value", "7", dict[str, bytes]) == {"data": bytes(300_000)}
        ((size,),) = store._rows("select length(desired) from things")
        assert size < 300_100


def test_a_store_of_the_first_version_goes_on_as_it_was(tmp_path: Path) -> None:
    """It holds things as JSON, bytes among them as base64."""
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as old:
        for table in _TABLES.split(";"):
            old.execute(table)
        old.execute("insert into things values ('value', '7', '{\"data\":\"aGVsbG8=\"}', '{\"pid\":3}')")
        old.execute("pragma user_version=1")
    old.close()
    for _ in range(2):
        with Store(path) as store:
            store.put("value", "8", {"data": b"there"})
            found = {
                name: (wanted["data"], known) for name, wanted, known in store.things("value", dict[str, bytes], dict)
            }
            assert found == {"7": (b"hello", {"pid": 3}), "8": (b"there", None)}


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "state.db") as store:
        store._db.execute("pragma user_version=99")
    with pytest.raises(InputError, match="store version 99"):
        Store(tmp_path / "state.db")


_COUNT = """
import sys
from pathlib import Path
from dovetail.core.service.store import Store
with Store(Path(sys.argv[1])) as store:
    n = store.get("number", int) or 0
    while True:
        n += 1
        with store.together():
            store.set("number", n)
            store.put("program", str(n), {"n": n})
        print(n, flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_said(tmp_path: Path) -> None:
    path, said = tmp_path / "state.db", 0
    for lines in (1, 7, 20):
        child = subprocess.Popen([sys.executable, "-c", _COUNT, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout:
            for _ in range(lines):
                said = int(child.stdout.readline())
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with Store(path) as store:
            kept = store.get("number", int)
            assert kept is not None
            assert kept >= said
            assert len(list(store.things("program", dict, dict))) == kept
