"""The host's default beside what people do, in virtual time: batches on 2 and 8 cores. Prints JSON.

    python -m bench.host_rivals

What people do is counted kindly: programs that share cores lose nothing by it, and no core is idle while a thread waits
for one. A program that runs with more threads than it gains from uses processor time all the same, which is what was
measured: four torch programs on two cores, all at once with two threads each, took 15.3 s where this counts 16.3 s.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from bench import show
from dovetail.core.events import Arrived
from dovetail.host.curves import curve
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import host_options
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import run

# Seconds on one core and on two, from four programs two at a time and one by one (docs/host-live.md).
TORCH = "table:1=4.85,2=4.07"
# Programs of one thread; whose threads gain nothing, little, or all that they could.
KINDS: dict[str, tuple[str, bool]] = {
    "one thread": ("amdahl:0", True),
    "flat": ("amdahl:0", False),
    "torch": (TORCH, False),
    "linear": ("linear", False),
}
CORES = (2, 8)


class Rival(NamedTuple):
    """A program of a batch: when it comes, its seconds on one core, how it scales, whether it has one thread."""

    at_s: float
    work_s: float
    curve: str
    alone: bool = False


class Result(NamedTuple):
    """What a way made of a batch."""

    makespan_s: float
    mean_turnaround_s: float


def families(cores: int) -> dict[str, list[Rival]]:
    """Batches by name. Those of an even number fill the cores to the end; of others, one is left alone."""
    rng = random.Random(cores)
    found: dict[str, list[Rival]] = {}
    for name, how in KINDS.items():
        found[f"{name}, equal, even"] = [Rival(0.0, 4.85, *how)] * (4 * cores)
        found[f"{name}, equal, one more"] = [Rival(0.0, 4.85, *how)] * (4 * cores + 1)
        short, long = [Rival(0.0, 0.5, *how)] * (8 * cores), [Rival(0.0, 3.0, *how)] * cores
        found[f"{name}, short then long"] = [*short, *long]
        found[f"{name}, long then short"] = [*long, *short]
        at_s, coming = 0.0, []
        for _ in range(20 * cores):  # three quarters of what the cores can do
            at_s += rng.expovariate(0.75 * cores / 3.0)
            coming.append(Rival(at_s, rng.choice((0.5, 3.0, 5.5)), *how))
        found[f"{name}, over time"] = coming
    return found


def in_pool(programs: Sequence[Rival], cores: int, at_a_time: int, threads: int) -> Result:
    """So many at a time, in the order of their arrivals, with so many threads each; the kernel shares the cores."""
    coming, now, ends = sorted(programs, key=lambda p: p.at_s), 0.0, [0.0]
    active: list[tuple[list[float], Rival, int]] = []  # what is left of each, and its threads
    turnarounds: list[float] = []
    while coming or active:
        while coming and coming[0].at_s <= now and len(active) < at_a_time:
            first = coming.pop(0)
            active.append(([first.work_s], first, 1 if first.alone else threads))
        share = min(1.0, cores / max(sum(own for *_, own in active), 1))
        speeds = [share * curve(program.curve).speed(own) for _, program, own in active]
        next_end = min((left[0] / speed for (left, *_), speed in zip(active, speeds, strict=True)), default=inf)
        next_at = coming[0].at_s - now if coming and len(active) < at_a_time else inf
        passed = min(next_end, next_at)
        now += passed
        for (left, *_), speed in zip(active, speeds, strict=True):
            left[0] -= passed * speed
        over = [each for each in active if each[0][0] <= 1e-9]
        active = [each for each in active if each[0][0] > 1e-9]
        turnarounds += [now - program.at_s for _, program, _ in over]
        ends += [now] * bool(over)
    return Result(ends[-1], sum(turnarounds) / len(turnarounds))


def by_people(programs: Sequence[Rival], cores: int) -> dict[str, Result]:
    return {
        "all at once": in_pool(programs, cores, len(programs), cores),
        "parallel -j": in_pool(programs, cores, cores, 1),
        "one by one": in_pool(programs, cores, 1, cores),
        "make -j": in_pool(programs, cores, cores, cores),
    }


def by_us(
    programs: Sequence[Rival], cores: int, options: dict[str, Any] | None = None, most: int | None = None
) -> Result:
    """Simulated, each asking for one core, as `submit` has it if nothing is said; or saying that it can use `most`."""
    arrivals = tuple(
        (p.at_s, Arrived(str(i), "p", (p.work_s,), facts=msgspec.to_builtins(Ask(1, most=most, curve=p.curve))))
        for i, p in enumerate(sorted(programs, key=lambda p: p.at_s))
    )
    totals = run(Workload(cores, arrivals, {"p": program_graph("p", cores)}), host_options(options or {})).totals
    return Result(totals.makespan_s, totals.mean_turnaround_s)


def compare(cores: int, options: dict[str, Any] | None = None, able: bool = False) -> dict[str, dict[str, float]]:
    """By family: the best of what people do over ours, in makespan and in mean turnaround; above 1 ours is ahead. With
    `able` every program says that it can use all cores, also those that cannot."""
    found = {}
    for name, programs in families(cores).items():
        theirs, ours = by_people(programs, cores), by_us(programs, cores, options, cores if able else None)
        found[name] = {
            "makespan": round(min(each.makespan_s for each in theirs.values()) / ours.makespan_s, 3),
            "turnaround": round(min(each.mean_turnaround_s for each in theirs.values()) / ours.mean_turnaround_s, 3),
        }
    return found


WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "default": ({}, False),
    "default, --most": ({}, True),
    "max_prop": ({"assign": "max_prop"}, False),
    "efficient": ({"assign": "efficient"}, False),
    "rr": ({"plan": "rr", "quantum_s": 0.25}, False),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = {name: {str(cores): compare(cores, *how) for cores in CORES} for name, how in WAYS.items()}
    worst = {
        figure: {
            name: {
                kind: min(
                    ratio[figure]
                    for each in by_cores.values()
                    for family, ratio in each.items()
                    if family.startswith(f"{kind},")
                )
                for kind in KINDS
            }
            for name, by_cores in found.items()
        }
        for figure in ("makespan", "turnaround")
    }
    show({"worst_makespan": worst["makespan"], "worst_turnaround": worst["turnaround"], "by_cores": found})


if __name__ == "__main__":
    main()
