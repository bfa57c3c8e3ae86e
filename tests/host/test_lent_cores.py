"""Idle cores that `strict` lends to programs that say they can use them, on a live host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.cli import main
from tests.host.live import Daemon, bound, until

STEPS = """
import os, time
from dovetail.host import agent
agent.on_change(lambda cores: print(cores, flush=True))
while not os.path.exists("go"):
    agent.step()
    time.sleep(0.01)
"""
WAITS = "while [ ! -e next ]; do sleep 0.02; done"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """The default, on two processors."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("there is one processor only")
    with Daemon(tmp_path / "state", cpus=tuple(cpus)) as daemon:
        daemon.up()
        yield daemon


@pytest.mark.parametrize("words", [(sys.executable, "-c", STEPS), ("sh", "-c", WAITS.replace("next", "go"))])
def test_a_program_is_lent_a_core_until_somebody_can_start_on_it(
    daemon: Daemon, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """One that takes part in it is told; one that does not loses it all the same."""
    takes_part = words[0] == sys.executable
    able = daemon.submit(*words, cores=1, most=2)[0]
    until(lambda: daemon.row(able)["actual"] == 2 and (not takes_part or daemon.log(able) == "2\n"))
    assert daemon.row(able)["why"] == "2, of which 1 lent while idle"
    other = daemon.submit("sh", "-c", WAITS)[0]
    until(lambda: bool(bound(daemon.processes(other))))
    until(lambda: not takes_part or daemon.log(able) == "2\n1\n")
    of_able, of_other = (bound(daemon.processes(job)) for job in (able, other))
    assert (len(of_able), len(of_other), len(of_able | of_other)) == (1, 1, 2)
    (daemon.folder / "next").touch()
    until(lambda: daemon.row(able)["actual"] == 2 and (not takes_part or daemon.log(able) == "2\n1\n2\n"))
    assert len(bound(daemon.processes(able))) == 2
    (daemon.folder / "go").touch()
    rows = daemon.wait()
    assert {(row["state"], row["attempts"]) for row in rows.values()} == {("completed", 1)}
    assert rows[able]["resizes"] == 2
    daemon.ask_once("journal", path=str(tmp_path / "run.jsonl"))
    assert main(["check", str(tmp_path / "run.jsonl")]) == 0


def test_lent_cores_are_given_back_through_a_killed_daemon(daemon: Daemon) -> None:
    able = daemon.submit(sys.executable, "-c", STEPS, cores=1, most=2)[0]
    until(lambda: daemon.log(able) == "2\n")
    daemon.kill()
    daemon.up()
    other = daemon.submit("sh", "-c", WAITS)[0]
    until(lambda: bool(bound(daemon.processes(other))))
    until(lambda: len(bound(daemon.processes(able))) == 1)
    (daemon.folder / "next").touch()
    (daemon.folder / "go").touch()
    assert {row["state"] for row in daemon.wait().values()} == {"completed"}
