"""What fairness costs: policies with more or less tolerance between tenants' turns. Prints JSON; `--table` for people.

    python -m bench.workflow_tenants [--draws 5] [--table]

Four tenants of weights 4, 2, 1, 1 send as much each, together 1.3 times what four GPUs can do; each asks mostly for two
of eight models of its own. Fairness is Jain's index of what tenants got over what they were entitled to while they
competed; the tolerance is what the file calls `sharing.tolerance_s`.
"""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import Any

from bench import show
from dovetail import workflow
from dovetail.workflow.inputs.seeded_random import SeededRandom

GPUS, REQUESTS, LOAD, MEAN_S = 4, 800, 1.3, 6.0
WEIGHTS = {"ann": 4.0, "bob": 2.0, "cy": 1.0, "dee": 1.0}
TOLERANCES = {"0": 0.0, "15": 15.0, "60": 60.0, "240": 240.0, "off": 1e12}
POLICIES = ("baseline", "srpt", "dovetail")
FIGURES = ("jain", "avg_request_s", "p99_request_s", "switches", "makespan_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5, help="workloads that the figures are means of")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests: less to see whether it works")
    parser.add_argument("--table", action="store_true", help="rows of a Markdown table in the place of JSON")
    given = parser.parse_args()
    requests = max(10, round(REQUESTS * given.share))
    found = {
        policy: {name: _means(policy, s, given.draws, requests) for name, s in TOLERANCES.items()}
        for policy in POLICIES
    }
    if not given.table:
        show({"requests": requests, "draws": given.draws, "policies": found})
        return
    for policy, rows in found.items():
        for name, row in rows.items():
            values = (
                f"{row['jain']:.3f} | {row['avg_request_s']:.1f} | {row['p99_request_s']:.1f} | {row['switches']:.0f}"
            )
            print(f"| `{policy}` | {name} | {values} | {row['makespan_s']:.0f} |")


def _means(policy: str, tolerance_s: float, draws: int, requests: int) -> dict[str, float]:
    runs = [workflow.run(_problem(seed, tolerance_s, requests), policy, journal=False).metrics for seed in range(draws)]
    return {key: fmean(run[key] for run in runs) for key in FIGURES}


def _problem(seed: int, tolerance_s: float, requests: int) -> workflow.WorkflowProblem:
    rng = SeededRandom(seed)
    models = [f"m{i}" for i in range(2 * len(WEIGHTS))]
    config: dict[str, Any] = {
        "models": {m: {"memory_gb": 14, "gpus_required": 1, "load_time_seconds": 5} for m in models},
        "workflows": {m: {"nodes": [{"id": "run", "model": m}]} for m in models},
        "tenants": {name: {"weight": weight} for name, weight in WEIGHTS.items()},
        "sharing": {"tolerance_s": tolerance_s},
    }
    at_s, rows = 0.0, []
    for i in range(requests):
        at_s += rng.exponential(MEAN_S / (LOAD * GPUS))
        sender = rng.between(0, len(WEIGHTS) - 1)
        own = rng.random() < 0.8
        model = models[2 * sender + rng.between(0, 1)] if own else rng.choice(models)
        rows.append(
            {
                "request_id": f"r{i}",
                "workflow_id": model,
                "timestamp": at_s,
                "tenant": list(WEIGHTS)[sender],
                "node_execution_times": {"run": 0.1 + rng.exponential(MEAN_S)},
            }
        )
    return workflow.load(config, rows, gpus=GPUS, mode="online")


if __name__ == "__main__":
    main()
