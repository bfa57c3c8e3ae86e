"""How long a live service takes to decide, measured inside it. Prints JSON.

    python -m bench.workflow_live decisions

1,000 requests are open at all times, for 100 models on 8 GPUs; nodes end in turn as if models had answered, and for
each request that completes another is sent. What a step costs in all (decided, checked by the guard, written to the
journal and the book) stands beside what deciding alone costs: on the clock, and of the processor (a machine that does
other things, and threads that have the interpreter, show in the former alone).
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, quantiles
from typing import Any
from unittest.mock import patch

from bench import show
from dovetail import workflow
from dovetail.core.events import Finished, Instruction, Order, Start, Stimulus
from dovetail.core.loop.inbox import Inbox
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.protocol import Answer
from dovetail.workflow.live.runs import RunRequest, Runs
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.scheduler import WorkflowScheduler
from tests.waiting import until

MODELS, GPUS = 100, 8


class NoModels:
    """Carries nothing out; `end` lets the oldest start end."""

    def __init__(self, inbox: Inbox, runs: Runs) -> None:
        self.started: list[Start] = []
        self._inbox, self._runs = inbox, runs

    def start(self) -> None: ...

    def close(self) -> None: ...

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None: ...

    def status(self) -> list[dict[str, Any]]:
        return []

    def carry(self, orders: Sequence[Order], now: float) -> None:
        self.started += [order for order in orders if isinstance(order, Start)]

    def end(self) -> None:
        start = self.started.pop(0)
        self._runs.answered(start.job, start.task, Answer(f"{start.job}/{start.task}", {"text": "done"}))
        self._inbox.put(Finished(start.job, start.task))


def configuration() -> dict[str, Any]:
    """Models of different size and speed; each begins a workflow of two nodes."""
    dice = random.Random(0)
    models: dict[str, Any] = {
        f"m{i}": {
            "memory_gb": dice.choice((4, 8, 16)),
            "gpus_required": 1,
            "load_time_seconds": dice.uniform(2, 20),
            "inference_time_mean": dice.uniform(0.5, 5),
        }
        for i in range(MODELS)
    }
    nodes = {
        i: [{"id": "a", "model": f"m{i}"}, {"id": "b", "model": f"m{(7 * i + 1) % MODELS}"}] for i in range(MODELS)
    }
    workflows = {f"w{i}": {"nodes": two, "edges": [{"from": "a", "to": "b"}]} for i, two in nodes.items()}
    return {"models": models, "workflows": workflows}


def decisions(folder: Path, open_runs: int, ends: int, policy: str) -> dict[str, Any]:
    carriers: list[NoModels] = []

    def carrier(inbox: Inbox, runs: Runs) -> NoModels:
        carriers.append(NoModels(inbox, runs))
        return carriers[0]

    problem = workflow.load(configuration(), [], gpus=GPUS, mode="online")
    settings = LiveSettings(max_queue=10 * open_runs, max_wait_s=1e6)
    service = WorkflowService(problem, carrier, folder, settings, policy, log=LogLines(io.StringIO()))
    decided: list[float] = []
    whole: list[float] = []
    cpu_s: list[float] = []

    def handle(scheduler: WorkflowScheduler, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        at = time.thread_time()
        try:
            return handled(scheduler, stimuli, now)
        finally:
            cpu_s.append(time.thread_time() - at)

    moved = threading.Event()  # waited for, not polled: a thread that polls keeps the one that decides waiting

    def observe(seconds: float) -> None:
        decided.append(seconds)
        moved.set()

    service.telemetry.decisions.observe = observe  # type: ignore[method-assign,assignment]
    dice = random.Random(1)
    handled = WorkflowScheduler.handle
    with service, patch.object(WorkflowScheduler, "handle", handle):
        (no_models,) = carriers

        def ask() -> None:
            service.submit(RunRequest(workflow=f"w{dice.randrange(MODELS)}", input={"prompt": "x"}))

        for _ in range(open_runs):
            ask()
        until(lambda: service.about()["queued"] + service.about()["running"] == open_runs)
        until(lambda: len(no_models.started) == GPUS)
        decided.clear()
        cpu_s.clear()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(ends):
            steps = len(decided)
            at = time.perf_counter()
            no_models.end()
            while len(decided) == steps or not no_models.started:
                moved.wait(0.01)
                moved.clear()
            whole.append(time.perf_counter() - at)
            for _ in range(open_runs - len(service._progress.open)):
                ask()
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "decisions": len(decided),
        "decision_ms": _figures(decided),
        "decision_cpu_ms": _figures(cpu_s),
        "end_to_start_ms": _figures(whole),
        "cpu_ms_per_end": round(1e3 * cpu / ends, 3),
        "ends_per_s": round(ends / took, 1),
    }


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    parts = quantiles(seconds, n=100)
    found = {"mean": mean(seconds), "median": parts[49], "p99": parts[98]}
    return {name: round(1e3 * value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=1000)
    parser.add_argument("--ends", type=int, default=2000)
    parser.add_argument("--policies", nargs="+", default=["dovetail", "baseline", "srpt", "deadline"])
    given = parser.parse_args()
    found: dict[str, Any] = {"open": given.open, "models": MODELS, "gpus": GPUS}
    for policy in given.policies:
        with tempfile.TemporaryDirectory() as folder:
            found[policy] = decisions(Path(folder), given.open, given.ends, policy)
    show(found)


if __name__ == "__main__":
    main()
