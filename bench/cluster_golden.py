"""The recorded runs of the older simulator, run again by its rules and compared figure by figure. Prints JSON.

    python -m bench.cluster_golden                 all runs but those at the scale of the paper
    python -m bench.cluster_golden --paper         those, too
    python -m bench.cluster_golden --only medium

Policies without a linear program must give the same printed digits. Of the others the older results depend on which of
many optimal allocations its interior-point solver happened to return, so makespan may differ by 2 % and the average
completion time by 5 % (15 % where only the makespan is optimised).
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from bench import show
from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.metrics import ClusterResult
from dovetail.cluster.simulate import run

SHARED = Path(__file__).parents[1] / "../shared"
GOLDEN = Path(os.environ.get("DOVETAIL_GOLDEN", SHARED / "golden")).resolve() / "cluster"
TRACES = Path(os.environ.get("DOVETAIL_TRACES", SHARED / "traces")).resolve() / "gavel"
EXACT = ("fifo_perf", "isolated", "allox")
EXPLAINED = {
    "fifo": "the older one gives more jobs to a type than it has accelerators; ours does not",
    "gandiva": "pairs are drawn at random, from another generator state",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", action="store_true", help="also the runs at the scale of the paper")
    parser.add_argument("--only", default="", help="only runs whose names begin so")
    arguments = parser.parse_args()
    rows = {}
    for name, row in recorded().items():
        if not name.startswith(arguments.only) or (name.startswith("paper") and not arguments.paper):
            continue
        rows[name] = compare(name, row)
        print(name, rows[name], file=sys.stderr)
    verdicts = [row["verdict"] for row in rows.values()]
    show({"runs": rows, "verdicts": {v: verdicts.count(v) for v in sorted(set(verdicts))}})


def recorded() -> dict[str, dict[str, str]]:
    """Runs that ended well, with one solver for all, on traces that are at hand."""
    with (GOLDEN / "runs.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    return {
        name: row
        for name, row in rows.items()
        if not row["error"] and not name.startswith(("solver_", "authors_")) and "_CLARABEL" not in name
    }


def scenario_of(command: str) -> tuple[str, Scenario]:
    """The policy and the scenario that an old command line means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-t", dest="trace")
    parser.add_argument("-p", dest="policy")
    parser.add_argument("-c", dest="cluster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-l", dest="lam", type=float)
    parser.add_argument("-s", type=int)
    parser.add_argument("-e", type=int)
    parser.add_argument("--num_gpus_per_server", default="")
    parser.add_argument("--throughputs_file", default="simulation_throughputs.json")
    parser.add_argument("--assign_SLOs", action="store_true")
    given, _ = parser.parse_known_args(shlex.split(command)[2:])
    window = None if given.s is None or given.lam == 0 else (given.s, given.e)
    trace = None
    if given.trace:
        trace = next(path for path in TRACES.rglob(Path(given.trace).name))
    return given.policy, Scenario(
        cluster=given.cluster,
        per_server=given.num_gpus_per_server,
        throughputs=TRACES / Path(given.throughputs_file).name,
        trace=trace,
        lam_s=given.lam or 0.0,
        jobs=given.e - given.s if given.lam == 0 else None,
        window=window,
        deadlines=given.assign_SLOs,
        seed=given.seed,
    )


def simulate(name: str, command: str) -> tuple[str, ClusterResult]:
    policy, scenario = scenario_of(command)
    loaded = load(scenario)
    rules = GAVEL
    if "minreset0" in name:
        from msgspec.structs import replace

        rules = replace(GAVEL, allocate_every_s=0.0)
    return policy, run(loaded.setup, loaded.policy(policy), rules, compat=True)


def compare(name: str, row: dict[str, str]) -> dict[str, Any]:
    policy, outcome = simulate(name, row["command"])
    figures = outcome.figures
    makespan_s, avg_jct_s = float(row["makespan_s"]), float(row["avg_jct_s"])
    found = {
        "makespan_percent": round(100 * (figures.makespan_s / makespan_s - 1), 3),
        "avg_jct_percent": round(100 * (figures.avg_jct_s / avg_jct_s - 1), 3),
        "cpu_s": round(outcome.cpu_s, 3),
        "recorded_cpu_s": float(row["cpu_s"]),
    }
    same = round(figures.makespan_s, 3) == makespan_s and round(figures.avg_jct_s, 3) == avg_jct_s
    jct_limit = 15.0 if policy.startswith("min_total_duration") else 5.0
    near = abs(found["makespan_percent"]) <= 2.0 and abs(found["avg_jct_percent"]) <= jct_limit
    if same:
        verdict = "equal"
    elif near and policy not in EXACT:
        verdict = "near"
    else:
        verdict = f"differs: {EXPLAINED[policy]}" if policy in EXPLAINED else "differs"
    return found | {"verdict": verdict}


if __name__ == "__main__":
    main()
