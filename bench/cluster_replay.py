"""The older simulator's recorded allocations, call by call, through our clock by its rules. Prints a table, and JSON.

    python -m bench.cluster_replay
    python -m bench.cluster_replay --only medium_2-2-2

What is left of a whole run when the policy's answers are the recorded ones is the clock, the ranks and the accounts:
makespan and average completion time must be the recorded ones to the printed digit, rounds and lease counts equal.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import show
from bench.cluster_golden import GOLDEN, scenario_of
from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import load
from dovetail.cluster.policies.base import Allocation, Floats, Policy, Problem
from dovetail.cluster.simulate import run

SHOWN = {
    "makespan_s": 3,
    "avg_jct_s": 3,
    "utilization": 4,
    "total_cost_gcp": 2,
    "rounds": 0,
    "allocations": 0,
}  # digits
HEAD = [(key, "ours", "diff") for key in SHOWN]


class RecordedShares:
    """Gives the recorded shares, at the recorded instants only."""

    def __init__(self, like: Policy, calls: Iterator[dict[str, Any]]) -> None:
        self.agnostic, self.packs, self.strict = like.agnostic, like.packs, like.strict
        self.calls = calls

    def allocate(self, problem: Problem) -> Allocation:
        call = next(self.calls)
        assert call["time"] == problem.now_s
        at = {job: row for row, job in enumerate(problem.ids.tolist())}
        share: Floats = np.zeros((problem.jobs, len(problem.types)))
        pairs, pair_share = [], []
        for key, by_type in call["allocation"].items():
            values = [by_type[name] for name in problem.types]
            if "(" in key:
                pairs.append(sorted(at[int(part)] for part in key.strip("()").split(",")))
                pair_share.append(values)
            else:
                share[at[int(key)]] = values
        if not pairs:
            return Allocation(share=share)
        return Allocation(share=share, pairs=np.array(pairs, dtype=np.int64), pair_share=np.array(pair_share))


def recorded_calls(golden: Path = GOLDEN) -> list[str]:
    """The runs whose calls were recorded, and that ended well."""
    with (golden / "runs.csv").open() as file:
        ended = {row["name"] for row in csv.DictReader(file) if not row["error"]}
    names = [path.name.removeprefix("dump_").removesuffix(".jsonl.gz") for path in (golden / "policy_calls").iterdir()]
    return sorted(name for name in names if name in ended)


def replay(name: str, golden: Path = GOLDEN) -> dict[str, tuple[float, float]]:
    """By figure: what was recorded, and what our clock gives."""
    with (golden / "runs.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["name"] == name)
    policy, scenario = scenario_of(row["command"])
    loaded = load(scenario)
    with gzip.open(golden / f"policy_calls/dump_{name}.jsonl.gz", "rt") as lines:
        calls = map(json.loads, lines)
        outcome = run(loaded.setup, RecordedShares(loaded.policy(policy), calls), GAVEL, compat=True)
        asked = outcome.allocations + len(list(calls))  # it asked once more when all was done
    figures = outcome.figures
    ours = (figures.makespan_s, figures.avg_jct_s, figures.utilization, figures.total_cost, outcome.rounds, asked)
    return {
        key: (float(row[key]), round(float(value), digits))
        for (key, digits), value in zip(SHOWN.items(), ours, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only runs whose names begin so")
    arguments = parser.parse_args()
    rows = {name: replay(name) for name in recorded_calls() if name.startswith(arguments.only)}
    print(f"{'run':58}{''.join(f'{name:>15} {mark:>12} {dash:>5}' for name, mark, dash in HEAD)}", file=sys.stderr)
    for name, row in rows.items():
        cells = [f"{old:15.{SHOWN[key]}f} {new:12.{SHOWN[key]}f} {new - old:5g}" for key, (old, new) in row.items()]
        print(f"{name:58}{''.join(cells)}", file=sys.stderr)
    apart = {key: sum(old != new for old, new in (row[key] for row in rows.values())) for key in SHOWN}
    show({"runs": rows, "replayed": len(rows), "differ_in": apart})


if __name__ == "__main__":
    main()
