"""The recorded runs of Pollux's and Sia's simulators, run again by their rules and compared figure by figure.

    python -m bench.cluster_goodput                     the short sets, some 2 minutes; prints JSON
    python -m bench.cluster_goodput --all               also 160 jobs with imagenet among them
    python -m bench.cluster_goodput --only t4x64/philly-tiny
    python -m bench.cluster_goodput --only mixed64/philly-tiny-1/pollux --seeds 8
    python -m bench.cluster_goodput --ahead t4x64/philly-short-7 mixed64/philly-tiny-4
    python -m bench.cluster_goodput --decide            whole decisions about 2,000 jobs on 10,000 accelerators

`t4x64` runs by the measured profiles. `mixed64` has two types without a profile here: their steps take what seven
fitted numbers say, so its rows compare a model with a profile. Accelerator hours are whole rounds, the last one too:
nobody else can have the accelerators before it is over. A figure is within its tolerance, or better (fewer seconds, no
more accelerator hours), or neither. A policy that draws (`pollux`) runs with several seeds, and its figures are means.
`--ahead` runs `sia` and `goodput_lookahead` on workloads at hand instead, on all if none is named (15 minutes):
average, P99 (the value at index floor(0.99 n)) and longest completion time and accelerator hours of the second over
the first.
`--decide` lets all jobs of philly-p come at once, over and over, and times what `sia` and `goodput_lookahead` do in the
first six rounds: CPU milliseconds of each. Fits of the policy are in it, those that jobs make of their steps are not.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from bench import show
from dovetail.cluster.compat import SIA
from dovetail.cluster.inputs.scenario import LoadedScenario, load
from dovetail.cluster.rounding.records import CHANGED, KEPT, MOVED
from dovetail.cluster.simulate import TimedPolicy, run
from dovetail.cluster.virtual_time import RoundsInVirtualTime
from dovetail.core import registry
from dovetail.core.events import Rows

SHARED = Path(__file__).parents[1] / "../shared"
GOLDEN = Path(os.environ.get("DOVETAIL_GOLDEN", SHARED / "golden")).resolve() / "cluster/sia"
TRACES = Path(os.environ.get("DOVETAIL_TRACES", SHARED / "traces")).resolve() / "sia"
CLUSTERS: dict[str, dict[str, Any]] = {
    "t4x64": {"cluster": "aws=64", "per_server": 4},
    "mixed64": {
        "cluster": "aws=24,dgx-ext=16,rtx=24",
        "per_server": "aws=4,dgx-ext=8,rtx=8",
        "throughput_params": GOLDEN / "throughput_params.csv",
    },
}
POLICIES = {"sia": ("sia", 60.0), "pollux": ("pollux", 60.0), "gavel": ("max_sum_throughput_perf", 360.0)}
TOLERANCE = {  # average JCT and makespan, accelerator hours, restarts
    "sia": (0.05, 0.10, 0.15),
    "pollux": (0.10, 0.10, 0.15),
    "gavel": (0.05, 0.05, 0.05),
}
SHORT = ("philly-tiny", "philly-short")


class WholeRounds:
    """Accelerator hours in whole rounds, restarts, and ends of jobs, of a run that it watches."""

    def __init__(self, round_s: float) -> None:
        self._round_s = round_s
        self._held: dict[int, tuple[int, float]] = {}  # accelerators, and since when they are counted
        self._begun: set[int] = set()
        self.hours, self.restarts = 0.0, 0
        self.ends_s: dict[int, float] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Rows) and event.of == "started":
                columns = event.columns
                for job, devices, why in zip(columns["id"], columns["devices"], columns["why"], strict=True):
                    since_s = max(self._held[job][1], t) if job in self._held else t
                    self._held[job] = (len(devices), since_s)
                    if why not in (KEPT, CHANGED, MOVED):
                        self.restarts += job in self._begun
                        self._begun.add(job)
            elif isinstance(event, Rows) and event.of == "stopped":
                for job in event.columns["id"]:
                    width, since_s = self._held.pop(int(job))
                    until_s = max(ceil(t / self._round_s - 1e-9) * self._round_s, since_s)
                    self.hours += width * (until_s - since_s) / 3600
                    self._held[int(job)] = (width, until_s)  # what follows in this round is counted
            elif isinstance(event, Rows) and event.of == "completed":
                columns = event.columns
                self.ends_s |= dict(zip(map(int, columns["id"]), map(float, columns["at_s"]), strict=True))


def recorded() -> Iterator[dict[str, str]]:
    """Runs whose workload is at hand and whose policy is known here, with one solver for all."""
    with (GOLDEN / "results.csv").open() as file:
        for row in csv.DictReader(file):
            known = POLICIES[row["policy"]][0] in registry.names("cluster")
            if known and row["solver"] != "GLPK_MI" and (TRACES / "workloads" / row["set"]).is_dir():
                yield row


def loaded(row: dict[str, str]) -> LoadedScenario:
    trace = TRACES / "workloads" / row["set"] / f"workload-{row['workload']}.csv"
    return load(profiles=TRACES / "profiles", trace=trace, **CLUSTERS[row["cluster"]])


def every_workload() -> list[str]:
    """All that can be run: jobs of Pollux's own workloads ask for more of a type than the three types have."""
    sets = [("t4x64", of) for of in (*SHORT, "philly-p", "pollux")] + [("mixed64", of) for of in (*SHORT, "philly-p")]
    return [f"{cluster}/{of}-{number}" for cluster, of in sets for number in range(1, 9)]


def ahead(name: str) -> dict[str, Any]:
    """Of a run such as `t4x64/philly-tiny-1`: figures under `goodput_lookahead` over those under `sia`."""
    cluster, _, workload = name.partition("/")
    of, _, number = workload.rpartition("-")
    jobs = loaded({"cluster": cluster, "set": of, "workload": number})
    arrival_s = {job.id: job.arrival_s for job in jobs.setup.jobs}
    figures: dict[str, list[float]] = {}
    for policy in ("sia", "goodput_lookahead"):
        watch = WholeRounds(60.0)
        found = run(jobs.setup, jobs.policy(policy, {}), replace(SIA, round_s=60.0), name=policy, observers=[watch])
        times = sorted(end - arrival_s[job] for job, end in watch.ends_s.items())
        figures[policy] = [found.figures.avg_jct_s, times[int(0.99 * len(times))], watch.hours, times[-1]]
    names, (sia, ours) = ("avg_jct_s", "p99_jct_s", "gpu_h", "longest_jct_s"), figures.values()
    ratios = {name: round(b / a, 3) for name, a, b in zip(names, sia, ours, strict=True)}
    holds = ours[0] < sia[0] and ours[1] < sia[1] and ours[2] <= sia[2] + 1e-9  # sums of whole minutes
    return {"ratio": ratios, "holds": holds} | {
        policy: dict(zip(names, (round(value, 1) for value in row), strict=True)) for policy, row in figures.items()
    }


def decide(policy: str, count: int = 2000, rounds: int = 6) -> list[float]:
    """CPU milliseconds of a policy's first decisions about so many jobs on 10,000 accelerators of three types."""
    rows = [row for path in sorted(TRACES.glob("workloads/philly-p/*.csv")) for row in csv.DictReader(path.open())]
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        with trace.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            for at, row in enumerate(islice(cycle(rows), count)):
                writer.writerow(row | {"name": f"{row['application']}-{at}", "time": 0})
        cluster = CLUSTERS["mixed64"] | {"cluster": "aws=4000,dgx-ext=2000,rtx=4000"}
        jobs = load(profiles=TRACES / "profiles", trace=trace, **cluster)
    timed = TimedPolicy(jobs.policy(policy, {}))
    simulation = RoundsInVirtualTime(jobs.setup, timed, replace(SIA, round_s=60.0))
    simulation.take_up(jobs.setup, ())
    found = []
    for _ in range(rounds):
        before = timed.cpu_s
        simulation.turn()
        found.append(round(1000 * (timed.cpu_s - before), 1))
    return found


def again(row: dict[str, str], seed: int) -> tuple[dict[str, float], float]:
    """The figures of one run, and the CPU seconds that it took."""
    name, round_s = POLICIES[row["policy"]]
    jobs = loaded(row)
    policy = jobs.policy(name, {"seed": str(seed)} if _draws(name) else {})
    watch = WholeRounds(round_s)
    found = run(jobs.setup, policy, replace(SIA, round_s=round_s), name=name, observers=[watch])
    figures = {
        "avg_jct_s": found.figures.avg_jct_s,
        "makespan_s": found.figures.makespan_s,
        "gpu_h": watch.hours,
        "restarts": float(watch.restarts),
    }
    return figures, found.cpu_s


def _draws(policy: str) -> bool:
    return "seed" in registry.options_of("cluster", policy)


def compare(row: dict[str, str], seeds: int) -> dict[str, Any]:
    """One run again: what it gave (the mean over `seeds`, if its policy draws), what is recorded, how they differ."""
    drawn = range(seeds if _draws(POLICIES[row["policy"]][0]) else 1)
    runs, cpu_s = zip(*(again(row, seed) for seed in drawn), strict=True)
    ours = {name: fmean(figures[name] for figures in runs) for name in runs[0]}
    theirs = {name: float(row[name]) for name in ours}
    times, hours, restarts = TOLERANCE[row["policy"]]
    allowed = dict(zip(ours, (times, times, hours, restarts), strict=True))
    differ = {name: ours[name] / max(theirs[name], 1.0) - 1 for name in ours}
    outside = [name for name in ours if abs(differ[name]) > allowed[name]]
    better = max(differ["avg_jct_s"], differ["makespan_s"], differ["gpu_h"]) <= 1e-6
    return {
        "ours": {name: round(value, 1) for name, value in ours.items()},
        "recorded": theirs,
        "difference_percent": {name: round(100 * value, 1) for name, value in differ.items()},
        "verdict": "within" if not outside else "better" if better else f"outside: {', '.join(outside)}",
        "seeds": [{name: round(value, 1) for name, value in figures.items()} for figures in runs],
        "cpu_s": round(fmean(cpu_s), 1),
        "recorded_cpu_s": float(row["cpu_s"] or 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the runs of 160 jobs")
    parser.add_argument("--only", default="", help="only runs whose names begin so")
    parser.add_argument("--seeds", type=int, default=3, help="of policies that draw")
    parser.add_argument("--ahead", nargs="*", metavar="RUN", help="goodput_lookahead over sia, on these or on all")
    parser.add_argument("--decide", action="store_true", help="time decisions about 2,000 jobs instead")
    arguments = parser.parse_args()
    if arguments.decide:
        show({"cpu_ms": {policy: decide(policy) for policy in ("sia", "goodput_lookahead")}})
        return
    if arguments.ahead is not None:
        runs = {name: ahead(name) for name in arguments.ahead or every_workload()}
        ratios = [run["ratio"] for run in runs.values()]
        mean = {name: round(fmean(ratio[name] for ratio in ratios), 3) for name in ratios[0]}
        show({"runs": runs, "mean": mean, "holds": sum(run["holds"] for run in runs.values()), "of": len(runs)})
        return
    rows: dict[str, Any] = {}
    for row in recorded():
        name = f"{row['cluster']}/{row['set']}-{row['workload']}/{row['policy']} ({row['solver']})"
        if not name.startswith(arguments.only) or (row["set"] not in SHORT and not arguments.all):
            continue
        rows[name] = compare(row, arguments.seeds)
        print(name, rows[name], file=sys.stderr)
    verdicts = [row["verdict"].partition(":")[0] for row in rows.values()]
    show({"runs": rows, "verdicts": {each: verdicts.count(each) for each in ("within", "better", "outside")}})


if __name__ == "__main__":
    main()
