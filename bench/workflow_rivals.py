"""The live service beside its rivals, on the same models, requests and machine. Prints JSON.

    python -m bench.workflow_live rivals                          ours and FIFO swapping
    python -m bench.workflow_live rivals --serve-python PYTHON    and Ray Serve, of an environment of its own:
        python3 -m venv rivals && rivals/bin/pip install "ray[serve]==2.60.0" torch    (PYTHON is rivals/bin/python)

Rivals: Ray Serve with multiplexed models (`ray_serve`: least recently used; `max_ongoing_requests` 64, its loader
yields), models swapped in the order of requests as llama-swap did up to v217 (`fifo`), and by the scheduler that it has
since (`llama_swap`, as of v250, which lets requests for the model that runs pass the others); see `rivals/fifo.py`.
Ours is the service with its default policy. All have two workers with room for one model each, and are warm. Requests
come at random times (Poisson), each for any of the models (`rivals/models.py`). `contended`: eight models, and more
requests than can be answered while models change in the order of requests. `fits`: two models. Loads are counted where
they happen.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct

from bench import show
from bench.rivals.fifo import fifo_swapping
from dovetail import workflow
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.engines.choice import engine_for
from dovetail.workflow.live.protocol import CallFailed, ModelCall
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.specs import model_specs
from dovetail.workflow.problem import WorkflowProblem

HERE = Path(__file__).parent / "rivals"
WORKERS = 2
POINTS = {"contended": (8, 50.0), "fits": (2, 50.0)}  # models, requests per second
Request = tuple[float, str, int]


class Outcome(Struct, frozen=True):
    """Of one trace: seconds of each request, of the whole, and how often a model was loaded."""

    seconds: list[float]
    whole_s: float
    switches: int

    def figures(self) -> dict[str, float]:
        return {
            "switches": self.switches,
            "mean_s": fmean(self.seconds),
            "p99_s": sorted(self.seconds)[int(0.99 * len(self.seconds))],
            "per_second": len(self.seconds) / self.whole_s,
        }


def trace(models: int, per_second: float, count: int, seed: int) -> list[Request]:
    dice, at_s, found = random.Random(seed), 0.0, []
    for n in range(count):
        at_s += dice.expovariate(per_second)
        found.append((at_s, f"m{dice.randrange(models)}", n))
    return found


def warm_up(models: int, import_s: float) -> list[Request]:
    """Every model twice, while workers import torch; and when that is over once more, without haste."""
    begun = [(0.05 * n, f"m{n % models}", n) for n in range(2 * models)]
    return begun + [(import_s * (1 + 0.05 * n), f"m{n}", n) for n in range(models)]


def problem(models: int) -> WorkflowProblem:
    model = {
        "memory_gb": 1,
        "gpus_required": 1,
        "load_time_seconds": 0.25,
        "inference_time_mean": 0.015,
        "source": f"{HERE / 'models.py'}:make",
    }
    known = {f"m{i}": model for i in range(models)}
    flows = {f"w{i}": {"nodes": [{"id": "n", "model": f"m{i}"}]} for i in range(models)}
    costs = {"overhead_s": 0.25, "pcie_gb_s": 1000}
    return workflow.load({"models": known, "workflows": flows, "costs": costs}, [], gpus=WORKERS, mode="online")


def replay(requests: list[Request], ask: Callable[[str, int, Callable[[], None]], None]) -> tuple[list[float], float]:
    """Ask for each when it is due; `ask` is given what to call at its end. Seconds of each, and of the whole."""
    begun, left = time.monotonic(), threading.Semaphore(0)
    seconds = [0.0] * len(requests)

    def ended(n: int, due_s: float) -> None:
        seconds[n] = time.monotonic() - begun - due_s
        left.release()

    for n, (at_s, name, seed) in enumerate(requests):
        time.sleep(max(begun + at_s - time.monotonic(), 0.0))
        ask(name, seed, lambda n=n, at_s=at_s: ended(n, at_s))  # type: ignore[misc]
    for _ in requests:
        left.acquire()
    return seconds, time.monotonic() - begun


def measured(
    warm: list[Request], requests: list[Request], loads: Path, ask: Callable[[str, int, Callable[[], None]], None]
) -> Outcome:
    replay(warm, ask)
    before = len(loads.read_text().splitlines())
    seconds, whole_s = replay(requests, ask)
    return Outcome(seconds, whole_s, len(loads.read_text().splitlines()) - before)


def ours(models: int, warm: list[Request], requests: list[Request], loads: Path, engine: str) -> Outcome:
    carrier, on = engine_for(problem(models), engine, device="cpu")  # type: ignore[arg-type]
    with (
        tempfile.TemporaryDirectory() as folder,
        WorkflowService.over(on, carrier, Path(folder), log=LogLines(io.StringIO())) as service,
    ):

        def ask(name: str, seed: int, then: Callable[[], None]) -> None:
            run = service.submit(RunRequest(workflow=name, input={"seed": seed}))

            def told(event: Any) -> None:
                if event.kind == "completed":
                    then()
                elif event.kind in ("failed", "cancelled"):
                    raise RuntimeError(f"{run} has {event.kind}")

            service.follow(run, told)

        return measured(warm, requests, loads, ask)


def fifo(
    models: int, warm: list[Request], requests: list[Request], loads: Path, engine: str, in_order: bool
) -> Outcome:
    carrier, on = engine_for(problem(models), engine, device="cpu")  # type: ignore[arg-type]
    with fifo_swapping(carrier, model_specs(on.system), in_order=in_order) as rival:
        numbers = iter(range(1 << 30))

        def ask(name: str, seed: int, then: Callable[[], None]) -> None:
            def told(report: Any) -> None:
                if isinstance(report, CallFailed):
                    raise RuntimeError(report.why)
                then()

            rival.ask(ModelCall(id=str(next(numbers)), model=name, inputs={"seed": seed}), told)

        return measured(warm, requests, loads, ask)


def ray_serve(python: str, warm: list[Request], requests: list[Request]) -> Outcome:
    asked = {"workers": WORKERS, "places": 1, "warm_up": warm, "trace": requests}
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    done = subprocess.run(
        [python, str(HERE / "ray_serve.py")],
        input=json.dumps(asked),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return Outcome(**json.loads(done.stdout))


def compare(given: argparse.Namespace, point: str, seed: int) -> dict[str, Outcome]:
    models, per_second = POINTS[point]
    python, engine = given.serve_python, given.engine
    requests, warm, found = trace(models, per_second, given.requests, seed), warm_up(models, given.import_s), {}
    with tempfile.TemporaryDirectory() as folder:
        loads = Path(folder, "loads")
        os.environ["RIVAL_LOADS"] = str(loads)
        loads.touch()
        found["fifo"] = fifo(models, warm, requests, loads, engine, in_order=True)
        found["llama_swap"] = fifo(models, warm, requests, loads, engine, in_order=False)
        if python is not None:
            found["ray_serve"] = ray_serve(python, warm, requests)
        found["ours"] = ours(models, warm, requests, loads, engine)
    return found


def ahead(mine: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """By how many times ours is better; where both have loaded nothing, they are even."""
    return {
        name: (mine[name] / other[name] if name == "per_second" else other[name] / mine[name])
        if mine[name] or other[name]
        else 1.0
        for name in mine
        if mine[name] or not other[name]
    }


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog=sys.argv[0], description=__doc__, formatter_class=plain)
    parser.add_argument("--serve-python", default=os.environ.get("DOVETAIL_SERVE_PYTHON"), help="that has ray[serve]")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="of ours and of FIFO swapping")
    parser.add_argument("--requests", type=int, default=240, help="of a trace")
    parser.add_argument("--import-s", type=float, default=8.0, help="that workers are given to import torch")
    parser.add_argument("--seeds", type=int, default=3, help="how many traces; figures are their means")
    parser.add_argument("--point", choices=[*POINTS], nargs="+", default=[*POINTS])
    given = parser.parse_args()
    answer: dict[str, Any] = {}
    for point in given.point:
        runs = [compare(given, point, seed) for seed in range(given.seeds)]
        means = {
            who: {name: fmean(run[who].figures()[name] for run in runs) for name in runs[0][who].figures()}
            for who in runs[0]
        }
        answer[point] = {**means, "ahead": {who: ahead(means["ours"], means[who]) for who in means if who != "ours"}}
    show(answer)


if __name__ == "__main__":
    main()
