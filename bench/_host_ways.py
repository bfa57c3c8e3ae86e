"""Ways to run a batch of programs on one machine, measured in turn; and how well a simulation foretells a live run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Any, NamedTuple

import msgspec

from dovetail.core.events import Arrived
from dovetail.host.inputs.workload import Workload
from dovetail.host.live.client import Client
from dovetail.host.live.executors import proc
from dovetail.host.options import host_options
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import run
from tests.host.live import Daemon

EXAMPLES = Path(__file__).parents[1] / "examples" / "host"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BURN = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass"
_LOAD = """
import sys, time, zlib, numpy
packed, a = zlib.compress(bytes(1 << 22), 1), numpy.ones((400, 400))
for _ in range(int(sys.argv[1])):
    time.sleep(0.004)
    zlib.decompress(packed)
    for _ in range(4):
        a @ a
"""
Command = tuple[str, ...]
Ran = tuple[float, float]  # makespan, CPU seconds


def families(scale: float) -> dict[str, list[Command]]:
    """Batches of programs by name."""
    python, many = sys.executable, max(len(os.sched_getaffinity(0)), 2)

    def steps(count: int) -> str:
        return str(max(round(scale * count), 1))

    def burn(seconds: float) -> Command:
        return python, "-c", _BURN, str(scale * seconds)

    return {
        "numpy": [(python, str(EXAMPLES / "numpy_steps.py"), steps(100))] * (2 * many),
        "torch": [(python, str(EXAMPLES / "torch_steps.py"), steps(20))] * (2 * many),
        "loading": [(python, "-c", _LOAD, steps(30))] * (2 * many),
        "short and long": [*[burn(0.5)] * (4 * many), *[burn(3.0)] * many],
    }


# --- as people do it --------------------------------------------------------------------------------------


def at_once(commands: Sequence[Command], cores: int) -> None:
    """All of them, each with as many threads as there are processors."""
    _in_pool(commands, len(commands), None)


def parallel(commands: Sequence[Command], cores: int) -> None:
    """`parallel -j CORES`, one thread each."""
    _in_pool(commands, cores, 1)


def fifo(commands: Sequence[Command], cores: int) -> None:
    """One after the other, each with all threads."""
    _in_pool(commands, 1, cores)


def make(commands: Sequence[Command], cores: int) -> None:
    """`make -j CORES`: so many at a time, each with the threads that it takes of itself."""
    _in_pool(commands, cores, None)


def _in_pool(commands: Sequence[Command], at_a_time: int, threads: int | None) -> None:
    env = {**os.environ, **(dict.fromkeys(_THREADS, str(threads)) if threads else {})}

    def one(command: Command) -> None:
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(one, commands))


def by_hand(way: Callable[[Sequence[Command], int], None], commands: Sequence[Command], cores: int) -> Ran:
    before, began = getrusage(RUSAGE_CHILDREN), time.monotonic()
    way(commands, cores)
    took_s, after = time.monotonic() - began, getrusage(RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- by the daemon ----------------------------------------------------------------------------------------


class Way(NamedTuple):
    """A daemon's options, and how many cores each program asks for; None: as many as there are."""

    options: dict[str, Any]
    cores: int | None


OURS = {
    "ours, as it comes": Way({}, 1),
    "ours, strict, all cores": Way({"assign": "strict"}, None),
    "ours, always_attend": Way({"assign": "always_attend"}, None),
    "ours, max_prop": Way({"assign": "max_prop"}, None),
    "ours, efficient": Way({"assign": "efficient"}, None),
}
ALWAYS = "ours, as it comes"
WIDE = ("numpy", "torch")  # families of programs that can use more than one core, so that there is something to assign
THEIRS = {"all at once": at_once, "parallel -j": parallel, "one by one": fifo, "make -j": make}


def by_daemon(daemon: Daemon, commands: Sequence[Command], cores: int) -> Ran:
    """The time of the daemon counts too, and of all that it starts."""
    with Client(daemon.folder) as client:
        pid = client.about().pid
        used, began = cpu_s(pid), time.monotonic()
        ended = client.wait(*(client.submit(*command, cores=cores)[0] for command in commands))
        took_s = time.monotonic() - began
    assert all(program.state == "completed" for program in ended), ended
    return took_s, cpu_s(pid) - used


def cpu_s(pid: int) -> float:
    """Of a process and of those who live of its descendants; each has that of its children who have ended."""
    return sum(process.cpu_s for process in (proc.read(pid), *proc.family(pid)) if process)


def compare(folder: Path, scale: float, repeats: int, only: Sequence[str]) -> dict[str, Any]:
    """Every family of programs by every way, the ways in turn; the median counts."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    cores, found = len(cpus), dict[str, Any]()
    for name in _THREADS:
        os.environ.pop(name, None)
    daemons = {name: Daemon(folder / name, cpus=cpus, options=way.options) for name, way in OURS.items()}
    for daemon in daemons.values():
        daemon.up()
    try:
        for family, commands in families(scale).items():
            if only and family not in only:
                continue
            by_hand(at_once, commands[:1], cores)  # what is read from disk is in memory from here on
            ran: dict[str, list[Ran]] = {}
            each = [*THEIRS, *(OURS if family in WIDE else [ALWAYS])]
            for repeat in range(repeats):
                for name in each if repeat % 2 == 0 else reversed(each):  # what changes meanwhile meets all alike
                    if name in OURS:
                        took = by_daemon(daemons[name], commands, OURS[name].cores or cores)
                    else:
                        took = by_hand(THEIRS[name], commands, cores)
                    ran.setdefault(name, []).append(took)
                found[family] = _told(ran)
                print(family, found[family], file=sys.stderr, flush=True)
    finally:
        for daemon in daemons.values():
            daemon.clean_up()
    return found


def _told(ran: dict[str, list[Ran]]) -> dict[str, Any]:
    took = {name: median(each[0] for each in runs) for name, runs in ran.items()}
    used = {name: median(each[1] for each in runs) for name, runs in ran.items()}
    best, least = min(took[name] for name in THEIRS), min(used[name] for name in THEIRS)
    ours = [name for name in ran if name in OURS]
    return {
        "makespan_s": {name: round(value, 2) for name, value in took.items()},
        "cpu_s": {name: round(value, 2) for name, value in used.items()},
        "throughput_over_the_best_of_theirs": {name: round(best / took[name], 3) for name in ours},
        "throughput_over_all_at_once": {name: round(took["all at once"] / took[name], 3) for name in ours},
        "least_cpu_of_theirs_over_ours": {name: round(least / used[name], 3) for name in ours},
        "cpu_of_all_at_once_over_ours": {name: round(used["all at once"] / used[name], 3) for name in ours},
    }


# --- fidelity ---------------------------------------------------------------------------------------------

_PLANS: dict[str, dict[str, Any]] = {
    "fcfs": {"plan": "fcfs"},
    "priority": {"plan": "priority", "preemptive": True},
    "rr": {"plan": "rr", "quantum_s": 1.0},
}
_SIZES_S = (3.0, 1.0, 2.0, 1.5, 2.5, 1.0, 0.5, 1.5)


def fidelity(folder: Path, scale: float) -> dict[str, Any]:
    """CPU-bound programs of one core under every planning: mean turnaround and makespan, simulated over live."""
    cpus, found = tuple(sorted(os.sched_getaffinity(0))), dict[str, Any]()
    for name, options in _PLANS.items():
        with Daemon(folder / name, cpus=cpus, options=options) as daemon:
            daemon.up()
            (first,) = daemon.submit(sys.executable, "-c", _BURN, "0.5")
            more_s = daemon.wait([first])[first]["service_s"] - 0.5  # what it takes to start and to end
            sizes = [scale * size for size in _SIZES_S * max(len(cpus) // 2, 1)]
            jobs = {
                daemon.submit(sys.executable, "-c", _BURN, str(size), priority=3 - i % 4, cores=1)[0]: size
                for i, size in enumerate(sizes)
            }
            rows = daemon.wait(list(jobs), 600)
        live = {job: (rows[job]["arrived_s"], rows[job]["turnaround_s"], rows[job]["priority"]) for job in jobs}
        told = _simulated({job: (*live[job], size + more_s) for job, size in jobs.items()}, len(cpus), options)
        mean = sum(turnaround for _, turnaround, _ in live.values()) / len(live)
        end = max(at + turnaround for at, turnaround, _ in live.values()) - min(at for at, *_ in live.values())
        found[name] = {
            "mean_turnaround_simulated_over_live": round(told[0] / mean, 3),
            "makespan_simulated_over_live": round(told[1] / end, 3),
        }
    return found


def _simulated(
    programs: dict[str, tuple[float, float, int, float]], cores: int, options: dict[str, Any]
) -> tuple[float, float]:
    first = min(at for at, *_ in programs.values())
    arrivals = tuple(
        (at - first, Arrived(job, "p", (size,), facts=msgspec.to_builtins(Ask(1, priority=priority))))
        for job, (at, _, priority, size) in programs.items()
    )
    outcome = run(Workload(cores, arrivals, {"p": program_graph("p", cores)}), host_options(options))
    return outcome.totals.mean_turnaround_s, outcome.totals.makespan_s
