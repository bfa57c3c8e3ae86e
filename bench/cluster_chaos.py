"""A live cluster while something is killed every second. Prints JSON.

    python -m bench.cluster_chaos                        a minute, agents of this machine
    python -m bench.cluster_chaos --minutes 10 --ray     on the nodes of a Ray cluster, which are killed too

What is killed, at random, with SIGKILL: a training process, its parent, an agent, a node (its agent and all that runs
there; of Ray, the node as well, which comes back), the service (which is started again on the same folder), Ray's head
(a new one is started, and nodes join it). Agent or service are stopped, too, and go on three rounds later.

Every job must complete exactly once, the journals be valid as they were written, and nothing may be left running. Jobs
write down each step that they do, and their checkpoints which lease did which: in the end each step must be there once,
no lease may begin behind a checkpoint or do a step when a later one has begun, and what was done and is not in the last
checkpoint is the work that was lost: of one lease never more than a round.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench._chaos import (
    MARK,
    KilledService,
    command_of,
    environ_of,
    left_running,
    new_folder,
    options,
    send,
    started,
    tell,
    valid_journals,
)
from bench.cluster_live import job
from dovetail import cluster
from dovetail.cluster.live.client import ClusterClient
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.testing.cluster.witness import read_witness
from tests.ray_nodes import RayNodes, ray_nodes

TYPES = {"a100": 2, "v100": 2, "k80": 2}
NODES = ("first", "second")  # of Ray, each with one accelerator of each type
ROUND_S = 3.0
BEHIND = 0.25  # of a round: what a process may do between the moment to save and the save, on a busy machine
JOB_EVERY_S = 10.0
_LOOK_S = 0.1  # for somebody to kill
AWAY_S = 4.0  # a node, or Ray's head
MODELS = ("resnet", "language", "translation", "recommendation")
JOB, AGENT, SHIM = "testing.cluster.paced", "dovetail.cluster.live.agent", "core/service/shim.py"
OURS = (JOB, AGENT, SHIM, "dovetail cluster serve", "ray_driver")


class Chaos:
    """Kills something at a time."""

    def __init__(self, service: KilledService[ClusterClient], nodes: RayNodes | None, seed: int) -> None:
        self.service, self.random, self.kills = service, random.Random(seed), Counter[str]()
        self.hit: dict[tuple[int, int], str] = {}  # by job and epoch: what of it was killed first
        self._nodes = nodes
        self._kinds: dict[str, tuple[float, Callable[[], bool]]] = {
            "process": (30, lambda: any(self._kill("process", pid) for pid in self._some(JOB))),
            "parent": (2, lambda: any(self._kill("parent", pid) for pid in self._some(SHIM))),
            "agent": (3, lambda: any(map(send, self._some(AGENT)))),
            "node": (1, self._node),
            "service": (1.5, service.kill),
            "stopped agent": (0.5, lambda: any(map(self._stop, self._some(AGENT)))),
            "stopped service": (0.5, lambda: self._stop(service.pid)),
        }
        if nodes is not None:
            self._kinds["head"] = (0.5, lambda: self._of_ray(self._lose_head))
        self._ray = ThreadPoolExecutor(1)  # a node takes a while to come back
        self._away: Future[None] | None = None
        self._timers: list[threading.Timer] = []

    def once(self, until_s: float) -> None:
        """If nobody is there of what was drawn, a process as soon as there is one: others come back slowly as it is."""
        what = self.random.choices([*self._kinds], weights=[weight for weight, _ in self._kinds.values()])[0]
        while time.monotonic() < until_s:
            for each in dict.fromkeys([what, "process", "parent"]):
                if self._kinds[each][1]():
                    self.kills[each] += 1
                    return
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Whoever was stopped goes on, and all nodes are there."""
        for timer in self._timers:
            timer.join()
        self._ray.shutdown()
        if self._away is not None:
            self._away.result()

    def _some(self, word: str) -> list[int]:
        found = sorted(started(self.service.folder, word))
        return self.random.sample(found, len(found))

    def _kill(self, what: str, pid: int) -> bool:
        """A process of a job, or its parent."""
        run = re.search(r"/runs/(\d+)\.(\d+)/\d+", command_of(pid) + environ_of(pid))
        if run is None or not send(pid):
            return False
        self.hit.setdefault((int(run[1]), int(run[2])), what)
        return True

    def _stop(self, pid: int) -> bool:
        """For three rounds."""
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            self._timers.append(threading.Timer(3 * ROUND_S, _go_on, [handle]))
            self._timers[-1].start()
            return True
        return False

    def _node(self) -> bool:
        """An agent and all that it runs; of Ray, a node as well."""
        if self._nodes is not None and not self._of_ray(self._lose_node):
            return False
        for agent in self._some(AGENT):
            folder = command_of(agent).split()[-1:]
            if send(agent):
                for pid in self._some(SHIM) + self._some(JOB):
                    if folder and f"{folder[0]}/" in command_of(pid) + environ_of(pid):
                        self._kill("node", pid)
                return True
        return False

    def _of_ray(self, lose: Callable[[], None]) -> bool:
        """Unless somebody is away already."""
        if self._away is not None:
            if not self._away.done():
                return False
            self._away.result()
        self._away = self._ray.submit(lose)
        return True

    def _lose_node(self) -> None:
        assert self._nodes is not None
        name = self.random.choice(NODES)
        self._nodes.kill(name)
        time.sleep(AWAY_S)
        add_nodes(self._nodes, name)

    def _lose_head(self) -> None:
        assert self._nodes is not None
        self._nodes.kill_head()
        time.sleep(AWAY_S)
        self._nodes.restart()
        add_nodes(self._nodes, *NODES)


def add_nodes(nodes: RayNodes, *names: str) -> None:
    nodes.add(*names, **{f"dovetail__{name}": count / len(NODES) for name, count in TYPES.items()})


def _go_on(handle: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGCONT)
    os.close(handle)


def chaos(folder: Path, seconds: float, every_s: float, seed: int, nodes: RayNodes | None) -> dict[str, Any]:
    state, traces, rng = folder / "state", folder / "traces", random.Random(seed)
    traces.mkdir()
    where = ["--types", ",".join(f"{name}={count}" for name, count in TYPES.items())]
    if nodes is not None:
        where = ["--address", nodes.address]
    words = ["cluster", "serve", *where, "--policy", "max_min_fairness_perf", "--round-s", f"{ROUND_S}"]
    words += ["--state", str(state), "--live", "failures=1000"]  # who is killed has not failed by himself
    service = KilledService(folder, words, lambda: cluster.connect(state))
    trouble = Chaos(service, nodes, seed)
    specs: list[dict[str, Any]] = []
    began_s = time.monotonic()
    with ThreadPoolExecutor(64) as askers:
        asked: list[Future[int]] = []
        while (now := time.monotonic()) < began_s + seconds:
            if now >= began_s + JOB_EVERY_S * len(specs):
                spec = job(rng.choice(MODELS), rng.choice((1, 1, 1, 2)), rng.choice((6, 10, 14)))
                spec["command"] += ["--trace", str(traces / f"{len(specs)}")]
                asked.append(askers.submit(_submit, service, spec, f"job {len(specs)}"))
                specs.append(spec)
            service.revive()
            trouble.once(now + every_s)
            time.sleep(max(now + every_s - time.monotonic(), 0.0))
        trouble.close()
        submitted = [each.result() for each in asked]
    service.wait()
    client, quiet_s = service.client(), time.monotonic()
    states = Counter(client.wait(each).state for each in submitted)
    after_s = time.monotonic() - quiet_s
    code = service.end()
    left = left_running(folder, *OURS)
    return {
        "seconds": round(seconds),
        "round_s": ROUND_S,
        "kills": dict(trouble.kills),
        "kills_in_all": sum(trouble.kills.values()),
        "jobs": len(submitted),
        "ends": dict(states),
        "seconds_after_the_last_kill": round(after_s, 1),
        "starts_of_the_service": service.starts,
        "exit_code": code,
        "left_running": left,
        **_judged(state, traces, dict(zip(submitted, specs, strict=True)), trouble),
    }


def _submit(service: KilledService[ClusterClient], spec: dict[str, Any], key: str) -> int:
    """Until it is kept, whoever is killed meanwhile."""
    while True:
        try:
            return service.client().submit(spec, key=key)
        except DovetailError:
            time.sleep(0.2)  # it is about to come back


def _judged(state: Path, traces: Path, jobs: dict[int, dict[str, Any]], trouble: Chaos) -> dict[str, Any]:
    """What journals, checkpoints and the jobs' own traces tell."""
    paths = sorted((state / "journals").glob("*.jsonl"))
    ends = Counter[int]()
    for path in paths:
        for _, _, events in Reader(path).rows():
            for rows in events:
                if isinstance(rows, Rows) and rows.of == "completed":
                    ends.update(rows.columns["id"])
    once = sum(ends[each] == 1 for each in jobs)
    faults: list[str] = []
    lost, by = Counter[str](), defaultdict[str, list[float]](list)
    for number, (job_id, spec) in enumerate(jobs.items()):
        witness = read_witness(traces / str(number), state / "jobs" / str(job_id))
        faults += [f"job {job_id}: {fault}" for fault in witness.faults(spec["steps"])]
        lost["starts"] += witness.starts
        for work in witness.lost(spec["rates"]):
            lost["steps"] += work.steps
            by[trouble.hit.get((job_id, work.epoch), "otherwise")].append(work.seconds / ROUND_S)
    rounds = [each for losses in by.values() for each in losses]
    valid, kills = valid_journals(paths), sum(trouble.kills.values())
    return {
        "completed_exactly_once": once,
        "share_completed_exactly_once": once / max(len(jobs), 1),
        "journals": len(paths),
        "journals_valid": valid,
        "steps": sum(spec["steps"] for spec in jobs.values()),
        "process_starts": lost["starts"],
        "steps_lost": lost["steps"],
        "faults_in_histories": faults[:20],
        "lost_rounds": {
            **_summed(rounds),
            "per_kill": round(sum(rounds) / max(kills, 1), 3),
            "by": {what: _summed(losses) for what, losses in by.items()},
        },
        "good": once == len(jobs) == sum(ends.values())
        and valid == len(paths)
        and not faults
        and max(rounds, default=0.0) <= 1 + BEHIND,
    }


def _summed(losses: list[float]) -> dict[str, float]:
    return {"leases": len(losses), "sum": round(sum(losses), 2), "most": round(max(losses, default=0.0), 2)}


def main() -> None:
    parser = options(__doc__, every_s=1.0)
    parser.add_argument("--ray", action="store_true", help="on the nodes of a Ray cluster of its own")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(new_folder(given.folder))
        nodes = stack.enter_context(ray_nodes(**{MARK: str(folder)})) if given.ray else None
        if nodes is not None:
            add_nodes(nodes, *NODES)
        tell(chaos(folder, 60 * given.minutes, given.every, given.seed, nodes))


if __name__ == "__main__":
    main()
