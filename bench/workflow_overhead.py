"""What a live call costs beyond the model: an emulated one that takes no time, or a given one. Prints JSON.

    python -m bench.workflow_overhead

engine: commands and reports of one worker process, without scheduler or service: one call after the other, and many at
once. service: from `submit` to the end of the run, through book, scheduler, journal, executor and worker process.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles
from typing import Any

from bench import show
from dovetail import workflow
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import Answer, Loaded, ModelCall, Report
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.specs import model_specs


def problem(slots: int, call_s: float) -> workflow.WorkflowProblem:
    model = {
        "memory_gb": 1,
        "gpus_required": 1,
        "load_time_seconds": 0.01,
        "inference_time_mean": call_s or 0.001,
        "max_concurrency": slots,
        "concurrency_curve": [1.0] * slots,
        "source": {"emulated": {"load_s": 0.0, "call_s": call_s}},
    }
    return workflow.load({"models": {"m": model}, "workflows": {}}, [], gpus=1, mode="online")


def engine_alone(given: argparse.Namespace) -> dict[str, Any]:
    engine, heard = LocalGpuEngine(emulated_gpus(1)), SimpleQueue[Report]()
    engine.start(model_specs(problem(given.slots, given.call_s).system), heard.put)
    try:
        engine.load(0, "m", (0,))
        while not isinstance(heard.get(), Loaded):
            pass

        def make(count: int, at_once: int) -> float:
            began_s, sent = time.perf_counter(), 0
            for done in range(-at_once, count):
                if done >= 0:
                    while not isinstance(heard.get(), Answer):
                        pass
                if sent < count:
                    engine.call(0, ModelCall(id=str(sent), model="m", inputs={"prompt": "x"}))
                    sent += 1
            return time.perf_counter() - began_s

        make(100, 1)
        return {
            "round_trip_ms": round(1e3 * make(given.calls, 1) / given.calls, 3),
            "calls_per_s": round(given.calls / make(given.calls, given.slots)),
        }
    finally:
        engine.close()


def through_the_service(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    engine = LocalGpuEngine(emulated_gpus(1))
    log = LogLines(io.StringIO())
    with WorkflowService.over(problem(given.slots, given.call_s), engine, folder, log=log) as service:

        def ask(_: int) -> float:
            began_s = time.perf_counter()
            ended = service.wait(service.submit(RunRequest(workflow="m", input={"prompt": "x"})))
            assert ended.state == "completed", ended
            return time.perf_counter() - began_s

        for _ in range(100):
            ask(0)
        alone = [ask(0) for _ in range(given.calls)]
        with ThreadPoolExecutor(given.slots) as clients:
            began_s = time.perf_counter()
            at_once = list(clients.map(ask, range(given.calls)))
            took_s = time.perf_counter() - began_s
    return {
        "added_ms": _spread(alone, given.call_s),
        "calls_per_s": round(given.calls / took_s),
        "added_ms_at_once": _spread(at_once, given.call_s),
    }


def _spread(seconds: list[float], call_s: float) -> dict[str, float]:
    found = {"median": median(seconds), "p99": quantiles(seconds, n=100)[-1]}
    return {name: round(1e3 * (value - call_s), 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=16, help="calls at once")
    parser.add_argument("--call-s", type=float, default=0.0, help="seconds of a call")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"engine": engine_alone(given), "service": through_the_service(Path(folder), given)}
    show({"calls": given.calls, "at_once": given.slots, "call_s": given.call_s, **found})


if __name__ == "__main__":
    main()
