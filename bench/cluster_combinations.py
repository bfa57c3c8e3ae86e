"""Knowing types, choosing batch and width by goodput, sharing accelerators: what do they bring, alone and together?

    python -m bench.cluster_combinations                 all traces, some minutes; prints JSON, and a table on stderr
    python -m bench.cluster_combinations --only gavel    traces whose names begin so

A combination is run by the policies that we have for it, those of one objective side by side; its figures are those of
the one with the lowest average completion time. A combination that a trace has no measurements for is left out, with
the reason: jobs with profiles were never measured in pairs, jobs with measured pairs have no gradient statistics, no
jobs have both, and no pairs were ever measured at several batches. Where a cluster has one type there is nothing to
know of types: policies of either kind count.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

from bench import show
from dovetail.cluster.inputs.scenario import LoadedScenario, load
from dovetail.cluster.study import compare

SHARED = Path(__file__).parents[1] / "../shared"
GOLDEN = Path(os.environ.get("DOVETAIL_GOLDEN", SHARED / "golden")).resolve() / "cluster/sia"
TRACES = Path(os.environ.get("DOVETAIL_TRACES", SHARED / "traces")).resolve()

Combination = tuple[bool, bool, bool]  # knows types, counts goodput, packs
POLICIES: dict[Combination, tuple[str, ...]] = {
    (False, False, False): ("max_min_fairness", "finish_time_fairness"),
    (True, False, False): ("max_min_fairness_perf", "finish_time_fairness_perf"),
    (False, False, True): ("gandiva",),
    (True, False, True): ("max_min_fairness_packed", "finish_time_fairness_packed"),
    (False, True, False): ("pollux",),
    (True, True, False): ("sia", "goodput_lookahead"),
}
PAIRS = {"throughputs": TRACES / "gavel/simulation_throughputs.json"}
PROFILES = {"profiles": TRACES / "sia/profiles"}
T4 = {"cluster": "aws=64", "per_server": 4} | PROFILES
MIXED = {
    "cluster": "aws=24,dgx-ext=16,rtx=24",
    "per_server": "aws=4,dgx-ext=8,rtx=8",
    "throughput_params": GOLDEN / "throughput_params.csv",
} | PROFILES
PHILLY = {which: TRACES / f"sia/workloads/philly-{which}/workload-1.csv" for which in ("tiny", "short")}
GAVEL, SHOCKWAVE = TRACES / "gavel/physical_cluster", TRACES / "shockwave/120_multigpu_dynamic.trace"
CASES: dict[str, dict[str, Any]] = {
    "philly-tiny 1, t4x64": T4 | {"trace": PHILLY["tiny"]},
    "philly-short 1, t4x64": T4 | {"trace": PHILLY["short"]},
    "philly-tiny 1, mixed64": MIXED | {"trace": PHILLY["tiny"]},
    "philly-short 1, mixed64": MIXED | {"trace": PHILLY["short"]},
    "gavel max_min_fairness, 8:16:24": PAIRS | {"cluster": "8:16:24", "trace": GAVEL / "max_min_fairness.trace"},
    "gavel minimize_makespan, 8:16:24": PAIRS | {"cluster": "8:16:24", "trace": GAVEL / "minimize_makespan.trace"},
    "shockwave 120, 32:0:0": PAIRS | {"cluster": "32:0:0", "trace": SHOCKWAVE},
    "shockwave 120, 8:16:24": PAIRS | {"cluster": "8:16:24", "trace": SHOCKWAVE},
}


def named(combination: Combination) -> str:
    words = zip(("types", "goodput", "packing"), combination, strict=True)
    return ", ".join(word for word, has in words if has) or "nothing"


def missing(combination: Combination, case: LoadedScenario) -> str:
    """Why there is nothing to run; nothing if there is."""
    types, goodput, packs = combination
    if goodput and packs:
        return "pairs unmeasured"
    if goodput and case.setup.adaptive is None:
        return "no gradients"
    if packs and case.setup.throughputs.pairs is None:
        return "no rates of pairs"
    return "one type" if types and len(case.setup.counts) == 1 else ""


def found(combination: Combination, case: LoadedScenario) -> dict[str, Any]:
    """The figures of the best policy of a combination, and the average completion times of all."""
    why = missing(combination, case)
    if why:
        return {"missing": why}
    how: dict[str, Any] = {}
    if case.setup.adaptive is not None:  # rounds as in the recorded runs
        how = {"compat": "sia", "interval": 60.0 if combination[1] else 360.0}
    policies = POLICIES[combination]
    if len(case.setup.counts) == 1:  # then all know the same
        policies += POLICIES[(True, *combination[1:])]
    rows = compare(case, policies, **how)
    best = rows.best("avg_jct_s")
    figures = {f"{name}_h": round(best[f"{name}_s"] / 3600, 3) for name in ("avg_jct", "p95_jct", "makespan")}
    every = {row["policy"]: round(row["avg_jct_s"] / 3600, 3) for row in rows}
    return {"policy": best["policy"], **figures, "all": every}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only traces whose names begin so")
    arguments = parser.parse_args()
    either = (False, True)
    combinations = sorted(product(either, either, either), key=lambda each: (sum(each), not each[0], not each[1]))
    print("| trace, cluster |", " | ".join(named(each) for each in combinations), "|", file=sys.stderr)
    print("|---" * (len(combinations) + 1) + "|", file=sys.stderr)
    traces: dict[str, Any] = {}
    for name, case in CASES.items():
        if not name.startswith(arguments.only):
            continue
        loaded = load(**case)
        cells = {named(each): found(each, loaded) for each in combinations}
        there = {which: cell for which, cell in cells.items() if "policy" in cell}
        best = min(there, key=lambda which: there[which]["avg_jct_h"])
        blind_h = there["nothing"]["avg_jct_h"]
        traces[name] = {
            "best": best,
            "saves_percent": round(100 * (1 - there[best]["avg_jct_h"] / blind_h), 1),
            "combinations": cells,
        }
        words = [f"{cell['avg_jct_h']:.3f}" if "policy" in cell else cell["missing"] for cell in cells.values()]
        bold = [f"**{word}**" if which == best else word for which, word in zip(cells, words, strict=True)]
        print("|", " | ".join([name, *bold]), "|", file=sys.stderr)
    least = min(each["saves_percent"] for each in traces.values())
    show({"traces": traces, "least_saved_percent": least})


if __name__ == "__main__":
    main()
