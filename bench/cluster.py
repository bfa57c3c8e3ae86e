"""The cluster simulator measured: speed, the paper's claims, fleet scale, validity. Prints JSON.

    python -m bench.cluster                     speed and validity
    python -m bench.cluster --part paper        the published comparisons, three seeds each (some 10 minutes on 2 cores)
    python -m bench.cluster --part fleet        a million jobs on 100,000 accelerators of 8 types, enough for all
    python -m bench.cluster --part contended    the same at 95 % of what the accelerators can bear at most, and at 110 %
    python -m bench.cluster_golden              run by run against the older simulator
    python -m bench.cluster_policies            single allocations

`recorded_cpu_s` are the older simulator's (Gavel) on another machine of the same kind; ratios to them are for
orientation. Published figures are those stored in its authors' notebooks.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
from collections.abc import Iterator, Sequence
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from bench import show
from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies.base import Floats
from dovetail.cluster.simulate import run
from dovetail.core.parallel import run_all

TRACES = Path(os.environ.get("DOVETAIL_TRACES", Path(__file__).parents[1] / "../shared/traces")).resolve() / "gavel"
MEASURED = TRACES / "simulation_throughputs.json"
PAPER = Scenario(cluster="36:36:36", throughputs=MEASURED, window=(4000, 5000))
TRACE = Scenario(
    cluster="8:16:24",
    throughputs=MEASURED,
    trace=TRACES / "physical_cluster/max_min_fairness.trace",
)
SPEED = {  # scenario, policy, CPU seconds recorded
    "36:36:36, 4 jobs/h, window 4000 to 4999": (PAPER, 900.0, "max_min_fairness_perf", 131.4),
    "96-job trace, packed makespan": (TRACE, 0.0, "min_total_duration_packed", 30.1),
    "96-job trace, packed water filling": (TRACE, 0.0, "max_min_fairness_water_filling_packed", 8.23),
}
LAS, GAVEL_PERF, GAVEL_SHARING = "max_min_fairness", "max_min_fairness_perf", "max_min_fairness_packed"
PUBLISHED_JCT_H = {LAS: 95.99, GAVEL_PERF: 28.96, GAVEL_SHARING: 19.64}
PUBLISHED_MAKESPAN_H = {  # of the two others in order of arrival nothing is published
    "fifo": 426.6,
    "fifo_moving": None,
    "fifo_perf": None,
    "gandiva": 263.9,
    "min_total_duration_perf": 169.4,
    "min_total_duration_packed": 168.1,
}
PUBLISHED_FTF_H = {"finish_time_fairness": 85.54, "finish_time_fairness_perf": 30.47}
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["speed", "paper", "fleet", "contended", "validity", "all"], default="")
    parser.add_argument("--traces", type=int, default=200, help="random traces for validity")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs of the fleet")
    parser.add_argument("--accelerators", type=int, default=100_000, help="accelerators of the fleet")
    parser.add_argument("--share", type=float, default=1.0, help="of the jobs: less to see whether it works")
    arguments = parser.parse_args()
    parts = {"": ["speed", "validity"], "all": ["speed", "validity", "paper", "fleet", "contended"]}.get(
        arguments.part, [arguments.part]
    )
    result: dict[str, Any] = {}
    for part in parts:
        if part == "speed":
            result["speed"] = speed(arguments.share)
        elif part == "paper":
            result["paper"] = paper(arguments.share)
        elif part == "validity":
            result["validity"] = validity(arguments.traces)
        elif part == "contended":
            result["contended"] = contended(arguments.jobs, arguments.accelerators)
        else:
            result["fleet"] = fleet(arguments.jobs, arguments.accelerators)
    show(result)


def speed(share: float) -> dict[str, Any]:
    """Whole simulations, by the older rules and by ours."""
    rows = {}
    for title, (scenario, lam_s, policy, recorded_s) in SPEED.items():
        row: dict[str, Any] = {"policy": policy, "recorded_cpu_s": recorded_s}
        for rules in ("older", "ours"):
            loaded = load(_with(scenario, lam_s=lam_s, window=_window(scenario, share)))
            made = loaded.policy(policy)
            outcome = run(loaded.setup, made, GAVEL if rules == "older" else None, compat=rules == "older")
            row[f"cpu_s_{rules}_rules"] = round(outcome.cpu_s, 3)
            row[f"ratio_{rules}_rules"] = round(recorded_s / outcome.cpu_s)
        rows[title] = row
    return rows


def _window(scenario: Scenario, share: float) -> tuple[int, int] | None:
    return scenario.window and (round(share * scenario.window[0]), round(share * scenario.window[1]))


def _with(scenario: Scenario, **changes: Any) -> Scenario:
    return Scenario(**{name: getattr(scenario, name) for name in scenario.__struct_fields__} | changes)


def paper(share: float) -> dict[str, Any]:
    """Average completion time, makespan and finish-time fairness beside the published figures, means of three seeds."""
    rate_s, seeds = 3600 / 5.6, SEEDS if share == 1.0 else SEEDS[:1]
    cells = [("jct", p, s, rate_s, share) for p in (*PUBLISHED_JCT_H, *PUBLISHED_FTF_H) for s in seeds]
    cells += [("makespan", p, s, 0.0, share) for p in PUBLISHED_MAKESPAN_H for s in seeds]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell, figures in zip(cells, run_all(paper_cell, cells), strict=True):
        found.setdefault(cell[:2], []).append(figures)
    continuous = {
        policy: _beside([run["avg_jct_h"] for run in found["jct", policy]], published)
        | {"rho_mean": round(fmean(run["rho"] for run in found["jct", policy]), 3)}
        for policy, published in (PUBLISHED_JCT_H | PUBLISHED_FTF_H).items()
    }
    static = {
        policy: _beside([run["makespan_h"] for run in found["makespan", policy]], published)
        for policy, published in PUBLISHED_MAKESPAN_H.items()
    }
    las, perf, sharing = (continuous[p]["mean_h"] for p in (LAS, GAVEL_PERF, GAVEL_SHARING))
    return {
        "average completion time, 36:36:36, 5.6 jobs/h, jobs 4000 to 4999": continuous,
        "LAS over heterogeneity-aware": round(las / perf, 2),
        "LAS over heterogeneity-aware with sharing": round(las / sharing, 2),
        "makespan, 36:36:36, 500 multi-GPU jobs at once": static,
        "FIFO over makespan-aware": {
            what: round(static[policy]["mean_h"] / static["min_total_duration_perf"]["mean_h"], 2)
            for what, policy in {
                "never moved, on a type that is drawn": "fifo",
                "moved to a faster type that is free": "fifo_moving",
                "each on its own fastest type that is free": "fifo_perf",
            }.items()
        },
    }


def paper_cell(cell: tuple[str, str, int, float, float]) -> dict[str, float]:
    what, policy, seed, lam_s, share = cell
    if what == "jct":
        scenario = _with(PAPER, lam_s=lam_s, seed=seed, window=_window(PAPER, share))
    else:  # as published: where the accelerators of a wide job are makes no difference
        jobs = round(500 * share)
        scenario = _with(PAPER, lam_s=0.0, seed=seed, window=None, jobs=jobs, multi_gpu=True, per_server="36:36:36")
    loaded = load(scenario)
    figures = run(loaded.setup, loaded.policy(policy)).figures
    return {"avg_jct_h": figures.avg_jct_s / 3600, "makespan_h": figures.makespan_s / 3600, "rho": figures.rho_mean}


def _beside(values: list[float], published: float | None) -> dict[str, Any]:
    """The mean with half its 95 % confidence interval (t with two degrees of freedom) beside the published figure."""
    half = 4.303 * stdev(values) / sqrt(len(values)) if len(values) > 1 else inf
    return {"mean_h": round(fmean(values), 2), "plus_minus_h": round(half, 2), "published_h": published}


def validity(traces: int) -> dict[str, Any]:
    """Random traces under every policy through the checker."""
    from dovetail.testing.cluster.fuzz import check_seed

    faults = [fault for found in run_all(check_seed, range(traces)) for fault in found]
    return {"traces": traces, "faults": len(faults), "first": faults[:5]}


class _Fixed:
    def __init__(self, types: int) -> None:
        self._prices: Floats = np.ones(types)

    def price_at(self, t: float) -> Floats:
        return self._prices

    def next_change(self, t: float) -> float:
        return inf


WIDTHS, OF_WIDTH, LASTS_S = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05), 8 * 3600.0
KINDS = [(f"m{model}", width) for model in range(26) for width in WIDTHS]


class FleetJobs:
    """So many jobs of 26 models, 1 to 8 wide, of 8 h on average on their best type, a mean gap apart."""

    def __init__(self, jobs: int, gap_s: float, rates: Floats) -> None:
        self._jobs, self._gap_s, self._rates = jobs, gap_s, rates

    def __iter__(self) -> Iterator[Job]:
        tie_break, now_s = random.Random(0), 0.0
        for i in range(self._jobs):
            width = tie_break.choices(range(4), OF_WIDTH)[0]
            model, seconds = tie_break.randrange(26), tie_break.expovariate(1 / LASTS_S)
            best = float(self._rates[4 * model + width].max())
            yield Job(id=i, model=f"m{model}", width=WIDTHS[width], steps=max(1.0, seconds * best), arrival_s=now_s)
            now_s += tie_break.expovariate(1 / self._gap_s)


class Contention:
    """How much of the accelerators is used while jobs arrive, and how many jobs are there at most."""

    def __init__(self, begin_s: float, end_s: float, accelerators: int) -> None:
        self._begin_s, self._end_s, self._accelerators = begin_s, end_s, accelerators
        self._width: list[int] = []  # by id
        self._jobs, self.most_jobs, self._held_s = 0, 0, 0.0

    @property
    def use(self) -> float:
        return self._held_s / (self._accelerators * (self._end_s - self._begin_s))

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for rows in events:
            columns = rows.columns
            if rows.of == "arrived":
                self._width += [KINDS[kind][1] for kind in columns["kind"]]
                self._jobs += len(columns["id"])
                self.most_jobs = max(self.most_jobs, self._jobs)
            elif rows.of == "completed":
                self._jobs -= len(columns["id"])
            elif rows.of == "stopped":
                begin, end = np.maximum(columns["from_s"], self._begin_s), np.minimum(columns["to_s"], self._end_s)
                width = np.array([self._width[job] for job in np.asarray(columns["id"]).tolist()])
                self._held_s += float((width * np.maximum(end - begin, 0.0)).sum())


def fleet(jobs: int, accelerators: int) -> dict[str, Any]:
    """Growth to a million jobs on 100,000 accelerators of 8 types under `max_min_fairness_perf`: at 86 % of what they
    can bear, so that hardly any job waits."""
    rates = fleet_rates()
    return {
        part: _fleet(jobs // share, accelerators // share, 1.9 * LASTS_S / (accelerators // share * 0.85), rates)
        for part, share in (("a hundredth", 100), ("a tenth", 10), ("whole", 1))
    }


def contended(jobs: int, accelerators: int) -> dict[str, Any]:
    """Growth in jobs and in accelerators where jobs compete: at 95 % of the most that any scheduler could bear, and at
    110 %, where the queue grows for as long as jobs arrive."""
    rates = fleet_rates()
    bears = most_jobs_per_s(rates)  # of one accelerator
    sizes = {
        "a hundredth": (jobs // 100, accelerators // 100),
        "ten times its jobs": (jobs // 10, accelerators // 100),
        "ten times its jobs and accelerators": (jobs // 10, accelerators // 10),
        "a tenth at 110 %": (jobs // 10, accelerators // 10),
        "whole": (jobs, accelerators),
        "all jobs on a tenth of the accelerators": (jobs, accelerators // 10),
    }
    found: dict[str, Any] = {}
    for part, (many, on) in sizes.items():
        load = 1.1 if "110" in part else 0.95
        found[part] = _fleet(many, on, 1 / (load * bears * on), rates)
        print(part, found[part], file=sys.stderr, flush=True)
    return found


def fleet_rates() -> Floats:
    tie_break = np.random.default_rng(0)
    one = tie_break.uniform(1, 20, (26, 1)) * tie_break.uniform(0.1, 1, (26, 8))
    found: Floats = np.array([one[model] * width * 0.95 ** np.log2(width) for model in range(26) for width in WIDTHS])
    return found


def most_jobs_per_s(rates: Floats) -> float:
    """Of the fleet's mix, so many jobs per second and accelerator can be borne at most: a linear program over how many
    accelerators of each type work for each kind."""
    from dovetail.solve.lp import LinearProgram

    kinds, types = rates.shape
    steps_per_s = np.tile(OF_WIDTH, 26) / 26 * rates.max(axis=1)  # of each kind, for one job of the mix in LASTS_S
    program = LinearProgram(maximise=True)
    program.add_rows(
        np.append(np.zeros(kinds), np.full(types, -inf)), np.append(np.full(kinds, inf), np.full(types, 1 / types))
    )
    columns, rows, values = kinds * types, [], []
    for kind, (_, width) in enumerate(KINDS):
        for on in range(types):
            rows += [kind, kinds + on]
            values += [float(rates[kind, on]), float(width)]
    starts = [*range(0, 2 * columns, 2), 2 * columns]
    program.add_columns(
        cost=[0.0] * columns + [1.0],
        lower=[0.0] * (columns + 1),
        upper=[inf] * (columns + 1),
        starts=starts,
        rows=[*rows, *range(kinds)],
        values=[*values, *(-steps_per_s).tolist()],
    )
    return program.solve().value / LASTS_S


def _fleet(jobs: int, accelerators: int, gap_s: float, alone: Floats) -> dict[str, Any]:
    from dovetail.cluster.policies import make

    last_s = jobs * gap_s
    contention = Contention(0.3 * last_s, last_s, accelerators)
    setup = ClusterSetup(
        counts=np.full(8, accelerators // 8),
        per_server=np.full(8, 8),
        throughputs=Throughputs(tuple(f"type{j}" for j in range(8)), KINDS, alone, alone * 0.8),
        prices=_Fixed(8),
        jobs=FleetJobs(jobs, gap_s, alone),
    )
    outcome = run(setup, make("max_min_fairness_perf"), observers=[contention])
    figures = outcome.figures
    return {
        "jobs": figures.completed,
        "accelerators": accelerators,
        "rounds": outcome.rounds,
        "leases": figures.leases,
        "utilization": round(figures.utilization, 3),
        "utilization_while_jobs_arrive": round(contention.use, 3),
        "most_jobs_at_once": contention.most_jobs,
        "avg_jct_over_bound": round(figures.avg_jct_s / figures.bound_avg_jct_s, 3),
        "leases_per_cpu_s": round(figures.leases / outcome.cpu_s),
        "allocations_per_policy_s": round(outcome.allocations / outcome.policy_s),
        "cpu_s": round(outcome.cpu_s, 1),
        "policy_s": round(outcome.policy_s, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    main()
