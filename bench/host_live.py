"""The live host: kills, overheads, resizes and throughput, as counts and ratios within one run. Prints JSON.

    python -m bench.host_live                  everything, some minutes on two cores
    python -m bench.host_live kills resizes    only these parts

kills: a daemon is killed 50 times at random moments while 200 short programs run; each must run exactly once.
overheads: start, pause and resize through the executors, over the same operation done by hand.
containers: the same in containers, over the same calls of the Docker SDK (--docker ADDRESS --image IMAGE).
resizes: how long a program takes to take up a new number of cores, over one of its steps: from when the target is
written, and from the user's request, as seen by somebody who asks every 20 ms; its busy threads after that.
short: `true` by the daemon, --programs times: the daemon's own processor time for each, that of all which it starts for
it too, and how many a second; beside each by a process of its own.
sharing: six training programs on two cores, each policy's throughput over that of all six at once without control.
ways: batches of programs by the daemon and as people run them: all at once, `parallel -j`, one by one, `make -j`.
fidelity: CPU-bound programs under every planning, simulated over live.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import _host_ways, show
from dovetail.core import cgroups
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.host.live.client import Client
from dovetail.host.live.executors import ProgramLaunch, proc
from dovetail.host.live.executors.docker import OWNER, DockerExecutor
from dovetail.host.live.executors.process import ProcessExecutor
from dovetail.host.options import HostOptions
from dovetail.host.scheduler import make_scheduler
from tests.host.live import Daemon, bound, busy_threads, until

EXAMPLES = Path(__file__).parents[1] / "examples" / "host"
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
WAIT = "import time; print('up', flush=True); time.sleep(1000)"


def main() -> None:
    parts = {"kills": kills, "overheads": overheads, "containers": containers, "resizes": resizes, "sharing": sharing}
    parts |= {"short": short, "ways": ways, "fidelity": fidelity}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all by default")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60, help="of each training program")
    parser.add_argument("--scale", type=float, default=1.0, help="of the programs of ways and fidelity")
    parser.add_argument("--repeats", type=int, default=2, help="of ways")
    parser.add_argument("--families", nargs="*", default=(), help="of the programs of ways; all by default")
    parser.add_argument("--docker", help="address of an engine; by default from the environment")
    parser.add_argument("--image", default="busybox")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"processors": list(CPUS)}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.parts or parts:
            print(f"{name} ...", file=sys.stderr, flush=True)
            found[name] = parts[name](Path(folder) / name, arguments)
            print(json.dumps(found[name]), file=sys.stderr, flush=True)
    show(found)


def kills(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    daemon = Daemon(folder, options={"assign": "always_attend"})
    daemon.up()
    rng = random.Random(0)
    words = f"echo $DOVETAIL_PROGRAM >> {folder}/done; sleep 0.05"
    works = daemon.submit("sh", "-c", words, array=arguments.programs)
    while_running = 0
    for _ in range(arguments.kills):
        time.sleep(rng.uniform(0, 0.8))
        daemon.kill()
        while_running += len((folder / "done").read_text().split()) < len(works)
        daemon.up(wait=False)
    until(daemon._answers)
    rows = daemon.wait(patience_s=600)
    done = (folder / "done").read_text().split()
    same = replays(daemon, folder / "run.jsonl")
    daemon.clean_up()
    return {
        "kills": arguments.kills,
        "kills_while_programs_were_left": while_running,
        "programs": len(works),
        "completed": sum(row["state"] == "completed" for row in rows.values()),
        "run_exactly_once": sum(done.count(work) == 1 for work in works),
        "journal_replays_to_the_same_instructions": same,
    }


def replays(daemon: Daemon, path: Path) -> bool:
    daemon.ask_once("journal", path=str(path))
    reader = Reader(path)
    options = HostOptions(**reader.header.options)
    scheduler = make_scheduler(reader.header.facts["cores"], reader.header.build_graphs(), options)
    return all(decided == recorded for _, _, decided, recorded in replay(scheduler, reader))


# --- overheads ------------------------------------------------------------------------------------------


def timed(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def overheads(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for groups in (True, False):
        if groups and cgroups.find_parents("dovetail-bench") is None:
            continue
        found["control groups" if groups else "signals and affinity"] = _overheads(folder / str(groups), groups)
    return found


def _overheads(folder: Path, groups: bool, rounds: int = 15) -> dict[str, Any]:
    folder.mkdir(parents=True)
    executor = ProcessExecutor(lambda *_: None, name="dovetail-bench", groups=groups)
    ours: dict[str, list[float]] = {"start": [], "pause": [], "resize": []}
    raw: dict[str, list[float]] = {name: [] for name in ours}
    for i in range(rounds):
        run = f"r{i}"
        log = folder / f"{run}.log"
        log.touch()
        launch = ProgramLaunch(
            run=run,
            command=(sys.executable, "-c", WAIT),
            cpus=CPUS,
            folder=str(folder / run),
            log=str(log),
            cwd="/",
            env=dict(os.environ),
        )
        ours["start"].append(timed(lambda launch=launch, log=log: _started(executor, launch, log)))  # type: ignore[misc]
        child, seconds = _by_hand()
        raw["start"].append(seconds)
        ours["pause"].append(timed(lambda run=run: executor.pause(run)))  # type: ignore[misc]
        raw["pause"].append(timed(lambda child=child: _stop_by_hand(child.pid)))  # type: ignore[misc]
        executor.resume(run)
        ours["resize"].append(timed(lambda run=run: executor.resize(run, CPUS[:1])))  # type: ignore[misc]
        raw["resize"].append(timed(lambda child=child: _bind_by_hand(child.pid)))  # type: ignore[misc]
        executor.stop(run, 0)
        executor.clean(launch)
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    executor.close()
    return _ratios(ours, raw)


def _ratios(ours: dict[str, list[float]], raw: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "ratio": round(median(ours[name]) / median(raw[name]), 2),
            "ours_ms": round(1e3 * median(ours[name]), 3),
            "by_hand_ms": round(1e3 * median(raw[name]), 3),
        }
        for name in ours
    }


def _started(executor: ProcessExecutor, launch: ProgramLaunch, log: Path) -> None:
    executor.start(launch)
    while not log.stat().st_size:
        time.sleep(0.0005)


def _by_hand() -> tuple[subprocess.Popen[bytes], float]:
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child, time.perf_counter() - began


def _stop_by_hand(pid: int) -> None:
    os.killpg(pid, signal.SIGSTOP)
    while (found := proc.read(pid)) is not None and found.state != "T":
        time.sleep(0.0001)


def _bind_by_hand(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), CPUS[:1])


# --- containers -------------------------------------------------------------------------------------------


def containers(folder: Path, arguments: argparse.Namespace, rounds: int = 12) -> dict[str, Any]:
    try:
        executor = DockerExecutor(lambda *_: None, "bench", arguments.docker)
        executor.reach()
        executor._client.images.get(arguments.image)
    except Exception as error:
        return {"left_out": str(error)}
    ours: dict[str, list[float]] = {"start": [], "pause": [], "resume": [], "resize": []}
    raw: dict[str, list[float]] = {name: [] for name in ours}
    words, one = ("sh", "-c", "while true; do sleep 1; done"), cgroups.cpu_list(CPUS[:1])
    for i in range(rounds):
        run = f"r{i}"
        (folder / run).mkdir(parents=True)
        launch = ProgramLaunch(
            run=run,
            command=words,
            cpus=CPUS,
            folder=str(folder / run),
            log=str(folder / f"{run}.log"),
            cwd="",
            image=arguments.image,
        )
        ours["start"].append(timed(partial(executor.start, launch)))
        ours["pause"].append(timed(partial(executor.pause, run)))
        ours["resume"].append(timed(partial(executor.resume, run)))
        ours["resize"].append(timed(partial(executor.resize, run, CPUS[:1])))
        executor.clean(launch)
        began = time.perf_counter()
        container = executor._client.containers.create(
            arguments.image,
            list(words),
            network_mode="none",
            cpuset_cpus=cgroups.cpu_list(CPUS),
            labels={OWNER: "bench"},
        )
        container.start()
        raw["start"].append(time.perf_counter() - began)
        raw["pause"].append(timed(container.pause))
        raw["resume"].append(timed(container.unpause))
        raw["resize"].append(timed(partial(container.update, cpuset_cpus=one)))
        container.remove(force=True)
    executor.close()
    return _ratios(ours, raw)


# --- resizes ----------------------------------------------------------------------------------------------


def resizes(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    daemon = Daemon(folder, cpus=CPUS, options={"assign": "always_attend"})
    daemon.up()
    found = {}
    for example in ("torch_steps.py", "numpy_steps.py"):
        work = daemon.submit(sys.executable, str(EXAMPLES / example), "1000000", cores=2)[0]
        until(lambda work=work: daemon.row(work).get("rate"))  # type: ignore[misc]
        late, answered, right = [], [], []
        for cores in (1, 2) * 8:
            step_s = 1 / daemon.row(work)["rate"]
            began = time.monotonic()
            daemon.ask("resize", work, cores)
            until(lambda work=work, cores=cores: daemon.row(work).get("threads") == cores)  # type: ignore[misc]
            late.append((time.monotonic() - began) / step_s)
            answered.append(daemon.row(work)["answered_s"] / step_s)
            until(lambda work=work, cores=cores: len(bound(daemon.processes(work))) == cores)  # type: ignore[misc]
            right.append(busy_threads(daemon.processes(work), 1.0) == cores)
            time.sleep(1.5)  # so that the program tells its new rate
        daemon.ask("cancel", work)
        daemon.wait([work])
        found[example] = {
            "steps_from_target_to_answer_median": round(median(answered), 2),
            "steps_from_target_to_answer_most": round(max(answered), 2),
            "steps_from_request_to_answer_median": round(median(late), 2),
            "busy_threads_equal_target": f"{sum(right)} of {len(right)}",
        }
    daemon.clean_up()
    return found


# --- short programs ---------------------------------------------------------------------------------------


def short(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's own time is its threads', not its children's, which start and follow each program."""
    found = {}
    for groups in (True, False):
        with Daemon(folder / str(groups), cpus=CPUS, options={}, groups=groups) as daemon:
            daemon.up()
            daemon.wait(daemon.submit("true", array=20))
            with Client(daemon.folder) as client:
                pid = client.about().pid
                used, used_by_all, began = _own_cpu_s(pid), _host_ways.cpu_s(pid), time.monotonic()
                client.wait(*client.submit("true", array=arguments.programs))
                took_s = time.monotonic() - began
            found["control groups" if groups else "signals and affinity"] = {
                "daemon_ms_each": round(1e3 * (_own_cpu_s(pid) - used) / arguments.programs, 2),
                "all_ms_each": round(1e3 * (_host_ways.cpu_s(pid) - used_by_all) / arguments.programs, 2),
                "programs_per_s": round(arguments.programs / took_s),
            }
    began_s = time.process_time()
    took_s, used_s = _host_ways.by_hand(_host_ways.parallel, [("true",)] * arguments.programs, len(CPUS))
    own_s = time.process_time() - began_s
    return found | {
        "by_a_pool_of_threads": {
            "programs_per_s": round(arguments.programs / took_s),
            "all_ms_each": round(1e3 * (used_s + own_s) / arguments.programs, 2),
        }
    }


def _own_cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# --- sharing ----------------------------------------------------------------------------------------------


def sharing(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Whole programs, with all that it takes to start them. Every way gets its own daemon, one after the other."""
    command = (sys.executable, str(EXAMPLES / "torch_steps.py"), str(arguments.steps))
    alone = {cores: _alone(folder / f"alone{cores}", command, cores) for cores in (1, 2)}
    curve = f"table:1={alone[1]:.3f},2={alone[2]:.3f}"
    at_once_s = _at_once(command)
    found: dict[str, Any] = {
        "program_s_on_1_core": round(alone[1], 2),
        "program_s_on_2_cores": round(alone[2], 2),
        "six_at_once_without_control_s": round(at_once_s, 2),
        "throughput_over_that": {},
        "cores_were_shared": 0,
    }
    for assign in ("strict", "max_prop", "always_attend", "efficient"):
        daemon = Daemon(folder / assign, cpus=CPUS, options={"assign": assign})
        daemon.up()
        began = time.monotonic()
        works = daemon.submit(*command, array=6, cores=2, curve=curve, work_s=alone[1])
        while not all(row["state"] == "completed" for row in daemon.rows().values()):
            found["cores_were_shared"] += _shared(daemon, works)
            time.sleep(0.05)
        found["throughput_over_that"][assign] = round(at_once_s / (time.monotonic() - began), 3)
        daemon.clean_up()
    return found


def ways(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    return _host_ways.compare(folder, arguments.scale, arguments.repeats, arguments.families)


def fidelity(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    return _host_ways.fidelity(folder, arguments.scale)


def _alone(folder: Path, command: tuple[str, ...], cores: int) -> float:
    daemon = Daemon(folder, cpus=CPUS)
    daemon.up()
    work = daemon.submit(*command, cores=cores)[0]
    seconds: float = daemon.wait()[work]["service_s"]
    daemon.clean_up()
    return seconds


def _at_once(command: tuple[str, ...]) -> float:
    """As users start them who know nothing of each other: each with as many threads as there are processors."""
    began = time.monotonic()
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(6)]
    for child in children:
        assert child.wait() == 0
    return time.monotonic() - began


def _shared(daemon: Daemon, works: list[str]) -> int:
    has = {work: daemon.processes(work) for work in works}
    first = {work: bound(processes) for work, processes in has.items()}
    pairs = [(a, b) for i, a in enumerate(works) for b in works[:i] if first[a] & first[b]]
    return sum(all(bound(has[a]) & bound(has[b]) for _ in range(5)) for a, b in pairs)


if __name__ == "__main__":
    main()
