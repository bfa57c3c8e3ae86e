"""A service of workflows under steady load while something is killed every few seconds. Prints JSON.

    python -m bench.workflow_chaos                   a minute
    python -m bench.workflow_chaos --minutes 10

What is killed, at random: a worker (SIGKILL, or SIGSTOP, which only its silence tells), a model server that a back end
started, a model (it runs out of memory, hangs, dies or falls ill in a load or call), and the service itself (SIGKILL;
it is started again on the same folder). Every request that was accepted must end exactly once, each journal be valid,
and nothing may be left running.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench._chaos import (
    KilledService,
    command_of,
    left_running,
    new_folder,
    options,
    send,
    started,
    tell,
    valid_journals,
)
from dovetail import workflow
from dovetail.core.errors import DovetailError
from dovetail.core.events import Complete, Failed, Reject, Start
from dovetail.core.journal import Reader
from dovetail.core.service.client import ServiceError
from dovetail.workflow.live.client import WorkflowClient

SERVER = Path(__file__).parents[1] / "tests" / "workflow" / "live" / "fake_servers.py"
GPUS = 3
FAULTS = ("load.oom", "load.die", "load.stuck", "call.fail", "call.hang", "call.stuck", "call.die", "call.unhealthy")


def configuration(folder: Path) -> dict[str, Any]:
    """More models than GPUs, one of them behind a server of its own; limits that suit models of milliseconds."""
    emulated = {"load_s": 0.1, "call_s": 0.05, "faults": str(folder / "faults")}
    plain = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.1, "inference_time_mean": 0.05}
    known = ("draft", "judge", "sum")
    models: dict[str, Any] = {name: plain | {"source": {"emulated": emulated}} for name in known}
    models["pair"] = models["sum"] | {"gpus_required": 2}
    command = [sys.executable, str(SERVER), "{port}", "openai", "remote"]
    models["remote"] = plain | {"source": {"url": "http://127.0.0.1:{port}", "command": command, "ready_s": 20}}

    def chain(*names: str) -> dict[str, Any]:
        nodes = [{"id": name, "model": name} for name in names]
        return {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in pairwise(names)]}

    limits = {"silence_s": 4.0, "call_floor_s": 5.0, "load_floor_s": 10.0, "stop_grace_s": 1.0, "load_tries": 10}
    return {
        "models": models,
        "workflows": {"short": chain("draft", "sum"), "long": chain("draft", "judge", "pair"), "far": chain("remote")},
        "costs": {"overhead_s": 0.1},
        "live": {"limits": limits, "retries": 5, "max_wait_s": 300.0},
        "gpus": GPUS,
    }


class Chaos:
    """Kills something every few seconds."""

    def __init__(self, service: KilledService[WorkflowClient], seed: int) -> None:
        self.service, self.random, self.kills = service, random.Random(seed), Counter[str]()
        self._faults = service.folder / "faults"

    def once(self) -> None:
        what = self.random.choices(["worker", "stopped worker", "server", "fault", "service"], weights=[4, 2, 2, 4, 2])[
            0
        ]
        kill: Callable[[], bool] = getattr(self, f"_{what.replace(' ', '_')}")
        self.kills[what] += kill()

    def _service(self) -> bool:
        self.service.kill()
        self.service.wait()
        return True

    def _worker(self, number: int = signal.SIGKILL) -> bool:
        workers = started(self.service.folder, "engines.local import main")
        return bool(workers) and send(self.random.choice(workers), number)

    def _stopped_worker(self) -> bool:
        return self._worker(signal.SIGSTOP)

    def _server(self) -> bool:
        servers = [pid for pid in started(self.service.folder, f"{SERVER}") if "supervise" not in command_of(pid)]
        return bool(servers) and send(self.random.choice(servers), signal.SIGKILL)

    def _fault(self) -> bool:
        (self._faults / f"any.{self.random.choice(FAULTS)}.{sum(self.kills.values())}").touch()
        return True


class Load:
    """Asks for a run so many times a second, each until it is accepted or refused, whoever is killed meanwhile."""

    def __init__(self, service: KilledService[WorkflowClient], per_second: float) -> None:
        self._service, self._pause_s = service, 1 / per_second
        self.accepted: dict[str, str] = {}  # runs by the key that asked for them
        self.refused = 0
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(32)
        self._thread = threading.Thread(target=self._ask_on)
        self._thread.start()

    def _ask_on(self) -> None:
        for number in range(1 << 30):
            if self._closing.wait(self._pause_s):
                return
            self._pool.submit(self._ask, f"key-{number}", ("short", "long", "far", "draft")[number % 4])

    def _ask(self, key: str, name: str) -> None:
        while True:
            try:
                self.accepted[key] = self._service.client().submit(name, {"prompt": f"say {key}"}, key=key)
                return
            except ServiceError as error:
                if error.status == 429:
                    self.refused += 1
                    return
            except DovetailError:
                pass
            time.sleep(0.1)  # it is about to come back

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._pool.shutdown()


def chaos(folder: Path, seconds: float, every_s: float, per_second: float, seed: int) -> dict[str, Any]:
    state, config = folder / "state", folder / "config.json"
    (folder / "faults").mkdir()
    config.write_text(json.dumps(configuration(folder)))
    words = ["workflow", "serve", "--config", str(config), "--state", str(state)]
    service = KilledService(folder, words, lambda: workflow.connect(state))
    load, trouble = Load(service, per_second), Chaos(service, seed)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(trouble.random.uniform(0.5, 1.5) * every_s)
        trouble.once()
    load.close()
    for left in (folder / "faults").iterdir():
        left.unlink()
    client = service.client()
    states = Counter(client.result(run).state for run in load.accepted.values())
    code = service.end()
    still = left_running(folder)
    return {
        "seconds": round(seconds),
        "kills": dict(trouble.kills),
        "kills_in_all": sum(trouble.kills.values()),
        "accepted": len(load.accepted),
        "refused": load.refused,
        "ends": dict(states),
        "exit_code": code,
        "left_running": still,
        **_in_journals(folder, set(load.accepted.values()), len(load.accepted)),
    }


def _in_journals(folder: Path, accepted: set[str], keys: int) -> dict[str, Any]:
    """What all segments of the journal tell together."""
    ends, starts, lost = Counter[str](), 0, 0
    paths = sorted((folder / "state" / "journals").glob("*.jsonl"))
    valid = valid_journals(paths)
    for path in paths:
        for _, _, events in Reader(path).steps():
            for event in events:
                if isinstance(event, Complete | Reject):
                    ends[event.job] += 1
                starts += isinstance(event, Start)
                lost += isinstance(event, Failed) and event.lost
    return {
        "keys_with_a_run_of_their_own": len(accepted) == keys,
        "ended_exactly_once": (once := sum(ends[run] == 1 for run in accepted)),
        "share_ended_exactly_once": once / max(len(accepted), 1),
        "ended_otherwise": sorted(run for run in accepted if ends[run] != 1)[:5],
        "ended_unasked": len(ends.keys() - accepted),
        "calls": starts,
        "calls_lost": lost,
        "journals": len(paths),
        "journals_valid": valid,
        "good": once == len(ends) == keys and valid == len(paths),
    }


def main() -> None:
    parser = options(__doc__, every_s=3.0)
    parser.add_argument("--per-second", type=float, default=6.0, help="requests")
    given = parser.parse_args()
    with new_folder(given.folder) as folder:
        tell(chaos(folder, 60 * given.minutes, given.every, given.per_second, given.seed))


if __name__ == "__main__":
    main()
