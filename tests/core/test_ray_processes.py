"""The line to the process that speaks with Ray, on one that only pretends to: whatever happens to it, it comes back."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from dovetail.core.service import ray_processes
from dovetail.core.service.ray_messages import ObjectFetched
from dovetail.core.service.ray_processes import RayChange, RayDown, RayProcesses, RayUp
from tests.waiting import PATIENCE_S, until

pytest.importorskip("ray")
DRIVER = """
    import os, sys
    from multiprocessing.connection import Connection
    from dovetail.core.service.ray_messages import KillProcess, Messages, RayReady, RayRefused
    messages = Messages(Connection(int(sys.argv[1])))
    messages.order()
    away = os.path.exists(AWAY)
    messages.send(RayRefused("nobody is there", True) if away else RayReady("127.0.0.1", "gcs", ()))
    while not away:
        try:
            order = messages.order()
        except EOFError:
            break
        if isinstance(order, KillProcess):
            print("it is over", flush=True)
            break
"""


class Line:
    def __init__(self, away: Path) -> None:
        self.away, self.told = away, Queue[RayChange]()
        self.ray = RayProcesses(None, self.told.put)

    def next(self) -> RayChange:
        return self.told.get(timeout=PATIENCE_S)

    def fetch(self, key: str) -> Queue[Any]:
        found = Queue[Any]()
        self.ray.fetch(key, found.put)
        return found


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    away = tmp_path / "away"
    monkeypatch.setattr(ray_processes, "_COMMAND", textwrap.dedent(DRIVER).replace("AWAY", repr(str(away))))
    monkeypatch.setattr(ray_processes, "_AGAIN_S", 0.01)
    made = Line(away)
    try:
        yield made
    finally:
        made.ray.close()


def test_a_driver_whose_files_are_gone_is_started_anew(line: Line) -> None:
    shutil.rmtree(line.ray._folder)
    line.ray.kill("any")
    down = line.next()
    assert isinstance(down, RayDown)
    assert "its driver ended with exit code 0" in down.why
    assert line.next() == RayUp(())


def test_an_error_of_the_system_does_not_end_the_rejoining(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, tried = subprocess.Popen, list[int]()

    def full(*args: Any, **more: Any) -> Any:
        tried.append(1)
        if len(tried) < 3:
            raise OSError(11, "Resource temporarily unavailable")
        return popen(*args, **more)

    monkeypatch.setattr(subprocess, "Popen", full)
    line.ray.kill("any")
    assert line.next() == RayDown("Ray ended its driver: it is over")
    assert line.next() == RayUp(())


def test_who_asks_for_an_object_while_ray_is_away_is_told_so(line: Line) -> None:
    line.away.touch()
    waits = line.fetch("a")
    line.ray.kill("any")
    assert isinstance(line.next(), RayDown)
    assert waits.get(timeout=PATIENCE_S) == ObjectFetched("a", why="Ray ended its driver: it is over")
    until(lambda: line.ray.head_trouble == "nobody is there")
    assert line.fetch("b").get(timeout=PATIENCE_S).why
    line.away.unlink()
    assert line.next() == RayUp(())
    waits = line.fetch("c")
    line.ray.close()
    assert waits.get(timeout=PATIENCE_S) == ObjectFetched("c", why="the service has closed it")
