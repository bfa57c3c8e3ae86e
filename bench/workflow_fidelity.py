"""Live runs beside their simulations: the same requests on real worker processes, and then in virtual time with the
rates that the live journals measured.

python -m bench.workflow_live fidelity
python -m bench.workflow_live fidelity --requests 60 --policies baseline dovetail --arrivals poisson

Models take their time and little else; there are more than fit, and every request is a graph of up to four calls. A
short run before tells the speeds and loads that live runs begin with, for the configuration is wrong about them, as
configurations are; they go on learning, and so does the scheduler of a simulation, which begins with the same
(`dovetail.testing.workflow.as_it_was`): there loads take their means, and calls what they took live. Printed are live
figures over simulated ones, and whether the order of the policies is the same. A shift of a millisecond changes who
goes first, and all that follows: simulations whose times are spread by 2 % differ by up to 14 % in their means where
there is just enough to do.
So the simulated figure is the mean of nine, spread by 5 %, with the least and the largest beside it. A machine that
does other things meanwhile shows in the live figures alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import show
from dovetail import workflow
from dovetail.core.rates import RateTable
from dovetail.journals import check_journal
from dovetail.testing.workflow.as_it_was import simulations
from dovetail.workflow.inputs.seeded_random import SeededRandom

GPUS = 3
POLICIES = ("baseline", "online", "dovetail")
ARRIVALS = ("poisson", "bursty")
FIRST = 60  # requests of a run before, by which speeds and loads are known when the others begin
FIGURES = {"makespan": "makespan_s", "mean": "avg_request_s", "P99": "p99_request_s"}
_NAMES = ("planner", "writer", "critic", "painter", "speaker", "coder", "judge", "ranker")
_WORKFLOWS = (
    ("planner", "writer", "critic"),
    ("planner", "painter"),
    ("coder", "judge", "coder"),
    ("ranker", "writer"),
    ("speaker",),
    ("planner", "coder", "critic", "speaker"),
)


def system() -> dict[str, Any]:
    """Eight models of which each GPU holds one, and six workflows over them."""
    found: dict[str, Any] = {"gpus": GPUS, "models": {}, "workflows": {}, "costs": {"overhead_s": 0.05}}
    for i, name in enumerate(_NAMES):
        load_s, call_s = 0.06 + 0.015 * (i % 4), 0.06 + 0.015 * (i % 3)
        model = {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 0.25, "inference_time_mean": 0.05}
        emulated = {"load_s": load_s, "call_s": call_s, "noise": 0.2}
        found["models"][name] = model | {"source": {"emulated": emulated}}
    for number, names in enumerate(_WORKFLOWS):
        nodes: list[dict[str, Any]] = [{"id": f"n{i}", "model": name} for i, name in enumerate(names)]
        edges = [{"from": f"n{i}", "to": f"n{i + 1}"} for i in range(len(names) - 1)]
        found["workflows"][f"w{number}"] = {"nodes": nodes, "edges": edges}
    return found


def requests(count: int, arrivals: str, per_s: float) -> list[dict[str, Any]]:
    """So many requests, one by one or ten at a time; some workflows are asked for more often than others."""
    rng, now, rows = SeededRandom(7), 0.0, list[dict[str, Any]]()
    burst = 10 if arrivals == "bursty" else 1
    for i in range(count):
        if i % burst == 0:
            now += rng.exponential(burst / per_s)
        of = min(int(rng.exponential(1.8)), len(_WORKFLOWS) - 1)
        rows.append({"request_id": f"r{i}", "workflow_id": f"w{of}", "timestamp": round(now, 3)})
    return rows


def compare(
    folder: Path, config: dict[str, Any], rows: list[dict[str, Any]], policy: str, rates: RateTable
) -> dict[str, Any]:
    """A live run, checked as it was written, and its simulations."""
    journal = folder / f"{policy}.jsonl"
    live = workflow.run_live(workflow.load(config, rows, mode="online", rates=rates), policy, journal=journal)
    simulated = simulations(journal)
    mean = {key: fmean(metrics[key] for metrics in simulated) for key in (*FIGURES.values(), "switches")}
    return {
        "valid": check_journal(journal).valid,
        "replayed": live.replay().difference is None,
        "completed": live.metrics["completed"],
        "live": _told(live.metrics),
        "simulated": _told(mean),
        "simulated_from_to": {
            name: [round(pick(metrics[key] for metrics in simulated) / mean[key], 4) for pick in (min, max)]
            for name, key in FIGURES.items()
        },
        "live_over_simulated": {name: round(live.metrics[key] / mean[key], 4) for name, key in FIGURES.items()},
        "left_out": workflow.measurements(journal).left_out,
    }


def _told(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: round(metrics[key], 4) for name, key in FIGURES.items()} | {"switches": metrics["switches"]}


def fidelity(
    folder: Path,
    count: int = 400,
    policies: tuple[str, ...] = POLICIES,
    arrivals: tuple[str, ...] = ARRIVALS,
    per_s: float = 12.0,
) -> dict[str, Any]:
    """Everything, and by how much the worst of it is off."""
    folder.mkdir(parents=True, exist_ok=True)
    config, found = system(), dict[str, Any]()
    before = workflow.load(config, requests(FIRST, "poisson", per_s), mode="online")
    rates = workflow.rates_of(workflow.run_live(before, "baseline", journal=folder / "before.jsonl"))
    for pattern in arrivals:
        rows = requests(count, pattern, per_s)
        (folder / pattern).mkdir(parents=True, exist_ok=True)
        runs = {policy: compare(folder / pattern, config, rows, policy, rates) for policy in policies}
        by = {side: sorted(policies, key=lambda p: runs[p][side]["mean"]) for side in ("live", "simulated")}
        found[pattern] = {"runs": runs, "order": by, "same_order": by["live"] == by["simulated"]}
    off = {
        name: max(
            abs(run["live_over_simulated"][name] - 1) for pattern in found.values() for run in pattern["runs"].values()
        )
        for name in FIGURES
    }
    return {
        "requests": count,
        "gpus": GPUS,
        "models": len(_NAMES),
        "valid": all(run["valid"] for pattern in found.values() for run in pattern["runs"].values()),
        "same_order": all(pattern["same_order"] for pattern in found.values()),
        "off_at_most": {name: round(value, 4) for name, value in off.items()},
        "predicted_and_measured": [
            [round(run[side][name], 2) for side in ("simulated", "live")]
            for pattern in found.values()
            for run in pattern["runs"].values()
            for name in FIGURES
        ],
        "patterns": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--arrivals", nargs="+", default=ARRIVALS, choices=ARRIVALS)
    parser.add_argument("--per-second", type=float, default=12.0, help="requests")
    parser.add_argument("--folder", type=Path, help="keep journals there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        found = fidelity(folder, given.requests, tuple(given.policies), tuple(given.arrivals), given.per_second)
    show(found)


if __name__ == "__main__":
    main()
