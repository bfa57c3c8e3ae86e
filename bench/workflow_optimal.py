"""Policies against the exact optimum on random small cases: how much longer their makespans are. Prints JSON.

    python -m bench.workflow_optimal                      a hundred cases, some minutes
    python -m bench.workflow_optimal --cases 10 --policies baseline --table -

The optimum is CP-SAT's (the extra `exact`), or the best that it found in the time it was given; where it proved none, a
ratio is to its best, and how far that is from its bound is said beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench import show
from dovetail.core.parallel import run_all
from dovetail.testing.workflow.small_cases import small_case
from dovetail.workflow import optimum, run
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.policies.optimise import Optimise

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--policies", nargs="+", default=[DEFAULT_POLICY, "baseline", "heft"], help="beside optimise")
    parser.add_argument("--time-limit-s", type=float, default=30.0, help="how long CP-SAT may search a case")
    parser.add_argument("--jobs", type=int, help="processes; by default one per core")
    parser.add_argument("--table", help="write the table here as Markdown; - is the standard error")
    parser.add_argument("--rows", type=Path, help="write every case's figures here as JSON lines")
    given = parser.parse_args()
    policies = ["optimise", *[name for name in given.policies if name != "optimise"]]
    cells = [(seed, policies, given.time_limit_s) for seed in range(given.first, given.first + given.cases)]
    rows = run_all(measure, cells, given.jobs)
    if given.rows:
        given.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if given.table:
        text = "\n".join(table(rows, policies))
        sys.stderr.write(f"{text}\n") if given.table == "-" else Path(given.table).write_text(f"{text}\n")
    proven = [row for row in rows if row["optimal"]]
    gaps = [row["best_s"] / row["bound_s"] for row in rows if not row["optimal"]]
    show(
        {
            "cases": len(rows),
            "proven": len(proven),
            "worst_gap_of_the_others": round(max(gaps, default=1.0) - 1, 4),
            "lower_bound": _summary([row["lower_s"] / row["best_s"] for row in rows], least=True),
            "policies": {name: _summary([row["policies"][name] for row in rows]) for name in policies},
        }
    )


def measure(cell: tuple[int, Sequence[str], float]) -> Row:
    """One case: its optimum, its bounds, and each policy's makespan over the optimum."""
    seed, policies, time_limit_s = cell
    problem = small_case(seed)
    policy = Optimise()
    makespans = {name: run(problem, name, journal=False).figures.makespan_s for name in policies if name != "optimise"}
    makespans["optimise"] = run(problem, policy, journal=False).figures.makespan_s
    best = optimum(problem, time_limit_s, policy.plan.starts if policy.plan is not None else None)
    best_s = min(best.value_s, *makespans.values())  # ours is not rounded up to ticks
    return {
        "seed": seed,
        "nodes": len(best.starts),
        "gpus": str(problem.gpus),
        "best_s": best_s,
        "bound_s": best.bound_s,
        "optimal": best.optimal,
        "lower_s": problem.lower_bounds().makespan_s,
        "policies": {name: makespan_s / best_s for name, makespan_s in makespans.items()},
    }


def table(rows: Sequence[Row], policies: Sequence[str]) -> list[str]:
    """A line per policy."""
    lines = ["| policy | geometric mean | worst | at the optimum | within 2 % |", "|---|---|---|---|---|"]
    for name in policies:
        found = _summary([row["policies"][name] for row in rows])
        lines.append(
            f"| `{name}` | {found['mean']:.3f} | {found['worst']:.3f} | {found['reached']} | {found['within 2 %']} |"
        )
    return lines


def _summary(ratios: Sequence[float], least: bool = False) -> Row:
    return {
        "mean": round(geometric_mean(ratios), 4),
        "worst": round(min(ratios) if least else max(ratios), 4),
        "reached": sum(abs(ratio - 1) <= 1e-6 for ratio in ratios),
        "within 2 %": sum(abs(ratio - 1) <= 0.02 for ratio in ratios),
    }


if __name__ == "__main__":
    main()
