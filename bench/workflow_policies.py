"""Policies against families of workloads: who is best at what, and by how much the others are worse. Prints JSON.

    python -m bench.workflow_policies                     every policy and simple rule, every family, four draws each
    python -m bench.workflow_policies --only dear --policies dovetail static --draws 2 --table -

Figures are mean, P99 and maximum response, makespan, share of late requests (families with deadlines) and the mean
response by weight (families with weights). A ratio is to the best of all in the same draw; a family's best is in bold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from msgspec.structs import replace

from bench import show
from dovetail.core import registry
from dovetail.core.events import Arrived, Complete
from dovetail.core.parallel import run_all
from dovetail.core.registry import written_options
from dovetail.testing.workflow.families import WorkloadFamily, load_family, read_families
from dovetail.testing.workflow.simple_rules import RULES
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.simulate import run

FAMILIES = Path(__file__).parent / "workflow_families.toml"
FIGURES = ("mean", "p99", "max", "makespan", "late", "weighted")
Cell = tuple[WorkloadFamily, int, str]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=Path, default=FAMILIES, help="file of families")
    parser.add_argument("--only", nargs="+", default=[""], help="families whose name begins so")
    parser.add_argument("--policies", nargs="+", help="by default all that work online, and the simple rules")
    parser.add_argument("--judge", default=DEFAULT_POLICY, help="the policy whose ratios are summed up")
    parser.add_argument("--draws", type=int, default=4, help="of each family")
    parser.add_argument("--first", type=int, default=1, help="seed of the first draw")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests: less to see whether it works")
    parser.add_argument("--jobs", type=int, help="processes; by default one per core")
    parser.add_argument("--table", help="write the table here as Markdown; - is the standard error")
    parser.add_argument("--rows", type=Path, help="write every run's figures here as JSON lines")
    given = parser.parse_args()
    families = [f for f in read_families(given.families) if f.name.startswith(tuple(given.only))]
    families = [replace(f, requests=max(10, round(f.requests * given.share))) for f in families]
    draws = range(given.first, given.first + given.draws)
    cells = [(f, seed, policy) for f in families for seed in draws for policy in given.policies or rivals()]
    rows = run_all(measure, cells, given.jobs)
    if given.rows:
        given.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if given.table:
        text = "\n".join(table(rows))
        sys.stderr.write(f"{text}\n") if given.table == "-" else Path(given.table).write_text(f"{text}\n")
    judged = judge(rows, given.judge)
    show({"families": len(families), "draws": given.draws, "policies": summary(rows), "above_5_percent": judged})


def rivals() -> list[str]:
    """Every built-in policy that works without knowing the future, and every simple rule."""
    known = [p.name for p in registry.listing("workflow", ["plans_ahead"]) if not p.traits["plans_ahead"]]
    return [*known, *RULES]


class _Weighted:
    """The mean response of a run, each request counted by its weight."""

    def __init__(self) -> None:
        self.arrived: dict[str, tuple[float, float]] = {}
        self.weights = self.total = 0.0

    def step(self, n: int, t: float, events: Iterable[Any]) -> None:
        for event in events:
            if type(event) is Arrived:
                self.arrived[event.job] = (t, event.weight)
            elif type(event) is Complete:
                at_s, weight = self.arrived.pop(event.job)
                self.weights += weight
                self.total += weight * (t - at_s)


def measure(cell: Cell) -> Row:
    """One run of a policy, with options after its name: `srpt,ageing=0.5`."""
    family, seed, policy = cell
    name, options = written_options(policy)
    problem = load_family(family, seed)
    weighted = _Weighted()
    began = time.process_time()
    figures = run(problem, RULES.get(name, name), options=options, journal=False, observers=[weighted]).figures
    assert figures.completed == family.requests
    row = {
        "family": family.name,
        "seed": seed,
        "policy": policy,
        "mean": figures.response_s.mean,
        "p99": figures.response_s.p99,
        "max": figures.response_s.max,
        "makespan": figures.makespan_s,
        "switches": figures.switches,
        "cpu_s": time.process_time() - began,
    }
    if family.due:
        row["late"] = (1 + figures.late) / family.requests  # so that a ratio exists where nobody is late
    if family.heavy:
        row["weighted"] = weighted.total / weighted.weights
    return row


# --- what it comes to -----------------------------------------------------------------------------


def ratios(rows: Sequence[Row], figure: str) -> dict[tuple[str, str], list[float]]:
    """WorkloadFamily and policy: the ratio to the best in each draw."""
    best: dict[tuple[str, int], float] = {}
    for row in rows:
        if figure in row:
            at = row["family"], row["seed"]
            best[at] = min(row[figure], best.get(at, row[figure]))
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if figure in row:
            found.setdefault((row["family"], row["policy"]), []).append(row[figure] / best[row["family"], row["seed"]])
    return found


def summary(rows: Sequence[Row]) -> dict[str, Row]:
    """Policy: for each figure the geometric mean and the worst of its ratios, and how many are within 5 %."""
    found: dict[str, Row] = {}
    for figure in FIGURES:
        values: dict[str, list[float]] = {}
        for (_, policy), some in ratios(rows, figure).items():
            values.setdefault(policy, []).extend(some)
        for policy, some in values.items():
            found.setdefault(policy, {})[figure] = {
                "ratio": round(geometric_mean(some), 3),
                "worst": round(max(some), 3),
                "within_5_percent": sum(value <= 1.05 for value in some),
                "of": len(some),
            }
    return found


def judge(rows: Sequence[Row], policy: str) -> Row:
    """Where a policy is more than 5 % worse than the best, by figure: family and mean ratio, the worst first."""
    found: Row = {}
    for figure in FIGURES:
        means = {of: geometric_mean(some) for (of, name), some in ratios(rows, figure).items() if name == policy}
        worst = sorted(((round(value, 3), of) for of, value in means.items() if value > 1.05), reverse=True)
        found[figure] = {of: value for value, of in worst}
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """Policy x family: mean / P99 / max / makespan (/ late or weighted mean), each over the best; the best in bold."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [f"| family | figure | {' | '.join(policies)} |", "|" + "---|" * (len(policies) + 2)]
    for family in dict.fromkeys(row["family"] for row in rows):
        for figure in FIGURES:
            known = ratios([row for row in rows if row["family"] == family], figure)
            means = [geometric_mean(known[family, policy]) for policy in policies] if known else []
            if means:
                cells = [f"**{m:.2f}**" if m == min(means) else f"{m:.2f}" for m in means]
                lines.append(f"| {family} | {figure} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
