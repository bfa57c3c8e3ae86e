"""Service, agent and worker killed or stopped for three rounds: no job lost, none run twice at once, and at most one
round of work repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dovetail import cluster
from dovetail.testing.cluster.witness import read_witness
from tests.waiting import until

ROOT = Path(__file__).parents[3]
ROUND_S, RATE, STEPS = 1.5, 40, 160
SERVE = f"""import signal, sys
from dovetail import cluster
live = {{"silence": 2.0, "grace": 1.0, "kill_after": 0.3}}
with cluster.serve(types={{"a": 2}}, round_s={ROUND_S}, state=sys.argv[1], live=live) as served:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("up", flush=True)
    signal.pause()
"""


class Served:
    """A service in a process of its own, which can be stopped, killed and started again."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.start()

    def start(self) -> None:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.state)],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        self.client = cluster.connect(self.state)

    def end(self, number: int) -> None:
        with self.process:
            self.process.send_signal(number)


def found(*words: str) -> list[int]:
    """The processes that have all of these in their command line."""
    here = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if all(word in line for word in words):
                here.append(int(entry.name))
    return here


def agents() -> list[int]:
    return found("dovetail.cluster.live.agent", os.environ["TMPDIR"])


def stop_for_three_rounds(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3 * ROUND_S)  # which is what is tried here: no event tells that rounds have passed
    os.kill(pid, signal.SIGCONT)


def stop_service(served: Served) -> None:
    stop_for_three_rounds(served.process.pid)


def kill_service(served: Served) -> None:
    served.end(signal.SIGKILL)
    served.start()


def stop_agent(served: Served) -> None:
    stop_for_three_rounds(agents()[0])


def kill_agent(served: Served) -> None:
    os.kill(agents()[0], signal.SIGKILL)


def kill_worker(served: Served) -> None:
    def one_is_killed() -> bool:
        for pid in found("testing.cluster.paced", str(served.state))[-1:]:
            with suppress(ProcessLookupError):  # it has just ended: there will be others
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    until(one_is_killed)


def steps_in(traces: Sequence[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in traces if path.exists())


def have_done(traces: Sequence[Path], steps: int) -> bool:
    return steps_in(traces) > steps


@pytest.mark.parametrize(
    "faults",
    [(stop_service,), (stop_agent,), (kill_agent, kill_service, kill_worker)],
    ids=["service stopped", "agent stopped", "all killed"],
)
def test_nothing_is_lost_or_run_twice(faults: tuple[Callable[[Served], None], ...], tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        traces = [tmp_path / f"trace-{i}" for i in range(3)]
        jobs = []
        for trace in traces:
            words = [sys.executable, "-m", "dovetail.testing.cluster.paced", "--steps", str(STEPS)]
            words += ["--rates", f"a={RATE}", "--trace", str(trace)]
            spec = {"command": words, "steps": STEPS, "model": "m", "rates": {"a": float(RATE)}}
            jobs.append(served.client.submit(spec))
        for fault in faults:
            so_far = steps_in(traces)
            until(partial(have_done, traces, so_far + 40))
            fault(served)
        states = [served.client.wait(job) for job in jobs]
        assert [(state.state, state.done) for state in states] == [("completed", STEPS)] * 3
        for job, trace in zip(jobs, traces, strict=True):
            witness = read_witness(trace, tmp_path / "jobs" / str(job))
            assert witness.faults(STEPS) == []
            assert all(lost.seconds < ROUND_S * 1.05 for lost in witness.lost({"a": RATE}))
    finally:
        served.end(signal.SIGTERM)
