"""Work, not time: counts that are the same on a busy machine as on an idle one. Prints JSON.

    python -m bench.work

Calls are those of Python functions, as its profiler counts them, so a count is exact for one version of Python. One per
unit of work that grows says that a loop has become dearer; one that grows with the size, that it is no longer linear.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from bench import show

T = TypeVar("T")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(
            {
                "workflow": workflow(Path(folder)),
                "cluster": cluster(),
                "solve": solve(),
                "pipeline": pipeline(),
                "host": host(),
                "dispatch": dispatch(),
            }
        )


def calls(function: Callable[[], T]) -> tuple[int, T]:
    """How many calls of Python functions it takes, and what comes out."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return counted, result


def workflow(folder: Path) -> dict[str, float]:
    """An overloaded pool of 8 GPUs: calls and bytes of journal per node, and what ten times the requests add."""
    from dovetail.workflow import generate, load, run, synthetic_system

    config = folder / "config.json"
    config.write_bytes(msgspec.json.encode(synthetic_system(1, models=3, workflows=2, max_width=4, max_nodes=4)))
    found: dict[str, float] = {}
    for requests in (200, 2000):
        path = folder / f"{requests}.jsonl"
        generate(config, requests=requests, rate=25.0, seed=1).write(path)
        problem = load(config, path, gpus=8)
        nodes = sum(len(problem.graphs[arrived.of].tasks) for _, arrived in problem.requests.arrivals())
        for policy in ("baseline", "dovetail"):
            run(problem, policy, journal=False)  # what is imported or cached once does not count
            counted, _ = calls(lambda p=problem, n=policy: run(p, n, journal=False))  # type: ignore[misc]
            found[f"{policy}_calls_per_node_{requests}"] = counted / nodes
        journal = folder / f"{requests}.journal"
        run(problem, "baseline", journal=journal)
        found[f"journal_bytes_per_node_{requests}"] = journal.stat().st_size / nodes
    for policy in ("baseline", "dovetail"):
        found[f"{policy}_growth"] = found[f"{policy}_calls_per_node_2000"] / found[f"{policy}_calls_per_node_200"]
    return found


def cluster() -> dict[str, float]:
    """200 generated jobs: calls per round, and how often shares were computed."""
    from dovetail.cluster.inputs.scenario import Scenario, load
    from dovetail.cluster.simulate import run

    def once() -> Any:
        loaded = load(Scenario(cluster="a100=8,l4=16", jobs=200, lam_s=600.0, durations_on="a100"))
        return run(loaded.setup, loaded.policy("max_min_fairness_perf"))

    once()
    counted, outcome = calls(once)
    rounds, allocations = outcome.rounds, outcome.allocations
    return {"calls_per_round": counted / rounds, "allocations_per_job": allocations / 200}


def solve() -> dict[str, float]:
    """Shares of a changing set of jobs: simplex steps when the solver goes on from where it was, over a new start."""
    from bench.cluster_policies import PAPER, changing
    from dovetail.cluster.policies import make
    from dovetail.solve.lp import LinearProgram, Solution

    steps: list[int] = []
    solved = LinearProgram.solve

    def counting(program: LinearProgram) -> Solution:
        found = solved(program)
        steps.append(found.steps)
        return found

    LinearProgram.solve = counting  # type: ignore[method-assign, assignment]
    try:
        kept = make("max_min_fairness_perf")
        for problem in changing(PAPER, 40):
            kept.allocate(problem)
        warm = sum(steps)
        solves_per_call = len(steps) / 40
        steps.clear()
        for problem in changing(PAPER, 40):
            make("max_min_fairness_perf").allocate(problem)
    finally:
        LinearProgram.solve = solved  # type: ignore[method-assign]
    return {"warm_steps_over_cold": warm / sum(steps), "programs_per_allocation": solves_per_call}


def pipeline() -> dict[str, float]:
    """An exact plan over 3 types: calls per layer and device, and what twice the devices add."""
    from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
    from dovetail.pipeline.planner import plan

    layers = 48
    seconds = np.random.default_rng(0).uniform(0.5, 1.5, (3, layers)) * np.array([[1.0], [2.0], [5.0]])

    def problem(devices: int) -> Pipeline:
        classes = [
            DeviceClass(kind, kind, [f"{kind}{i}" for i in range(devices)], 1000.0, 8.0 * layers, seconds[k].tolist())
            for k, kind in enumerate(("large", "middle", "small"))
        ]
        return Pipeline(
            model="model",
            layers=layers,
            mem_mib=[20.0] * layers,
            cut_bytes=[4096] * (layers + 1),
            classes=classes,
            batch_size=8,
            dtype="torch.float32",
        )

    found = {}
    for devices in (4, 8):
        plan(problem(devices))
        found[devices] = calls(lambda d=devices: plan(problem(d)))[0] / (layers * devices * len(seconds))  # type: ignore[misc]
    return {"calls_per_layer_and_device": found[4], "growth": found[8] / found[4]}


def host() -> dict[str, float]:
    """64 programs on 16 cores: calls per program, and throughput over `strict` by a recorded speed-up curve."""
    from bench.host import compared, sixty_four
    from dovetail.host.options import HostOptions
    from dovetail.host.simulate import run

    workload = sixty_four()
    run(workload, HostOptions(plan="fcfs", assign="max_prop"))
    counted, _ = calls(lambda: run(workload, HostOptions(plan="fcfs", assign="max_prop")))
    rows = compared()
    return {
        "calls_per_program": counted / 64,
        "efficient_over_strict": rows["clean fcfs+efficient"]["ratio_to_strict"],
        "max_prop_over_strict": rows["clean fcfs+max_prop"]["ratio_to_strict"],
    }


def dispatch() -> dict[str, float]:
    """Calls per chunk in virtual time, and what the default reaches of the sum of the peak rates, and over NEML2's rule
    at the best sizes."""
    from dovetail.dispatch.inputs.curve_files import SimDevice
    from dovetail.dispatch.inputs.curves import PUBLISHED
    from dovetail.dispatch.simulate import run as simulate

    rates, older = [], []
    for curves in PUBLISHED.values():
        devices = [SimDevice("cuda", curves["cuda"].curve()), SimDevice("cpu", curves["cpu"].curve())]
        sized = [SimDevice(name, curves[name].curve(), size=curves[name].best) for name in ("cuda", "cpu")]
        rates.append(simulate(devices, 100_000, noise=0.1, seed=0).efficiency)
        older.append(simulate(sized, 100_000, "fixed", noise=0.1, seed=0).efficiency)
    small = [SimDevice("cuda", curves["cuda"].curve(), size=1000), SimDevice("cpu", curves["cpu"].curve(), size=1000)]
    simulate(small, 100_000, "fixed")
    counted, done = calls(lambda: simulate(small, 100_000, "fixed"))
    mean, mean_older = (prod(each) ** (1 / len(each)) for each in (rates, older))
    return {
        "calls_per_chunk": counted / done.chunks,
        "percent_of_peak_100000": 100 * mean,
        "over_fixed_100000": round(mean / mean_older, 3),
    }


if __name__ == "__main__":
    main()
