"""The guard of all tests against leftovers notices what it should."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leftovers
from tests.leftovers import nothing_left
from tests.waiting import until


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_S", 0.05)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def test_a_process_is_noticed(children: list[subprocess.Popen[bytes]]) -> None:
    def starts() -> None:
        children.append(subprocess.Popen(["sleep", "1000"]))
        until(lambda: Path(f"/proc/{children[0].pid}/environ").read_bytes())  # which comes just after its start

    with pytest.raises(AssertionError, match="left behind: process"), nothing_left():
        starts()


def test_a_process_whose_parent_has_ended_is_noticed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    program = f"import os, subprocess; os.mkfifo({str(fifo)!r}); subprocess.Popen(['cat', {str(fifo)!r}])"
    with pytest.raises(AssertionError, match=r"left behind: process \d+: cat"), nothing_left():
        subprocess.run([sys.executable, "-c", program], check=True)
    fifo.write_text("")  # ends it


def test_a_thread_is_noticed() -> None:
    end = threading.Event()
    with pytest.raises(AssertionError, match="left behind: thread idle"), nothing_left():
        threading.Thread(target=end.wait, name="idle").start()
    end.set()


def test_a_temporary_file_is_noticed() -> None:
    with pytest.raises(AssertionError, match="left behind: file"), nothing_left():
        path = Path(tempfile.mkdtemp())
    path.rmdir()


def test_what_ends_is_not_reported() -> None:
    with nothing_left(), tempfile.TemporaryDirectory():
        subprocess.run([sys.executable, "-c", ""], check=True)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
