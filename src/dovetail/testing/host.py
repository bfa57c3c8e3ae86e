"""Random workloads and options, and whether a run of them keeps every rule: for the tests and the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from dovetail.core.check import Check
from dovetail.core.events import Arrived, Asked
from dovetail.core.executor import SimExecutor
from dovetail.core.findings import Finding, Findings
from dovetail.core.journal import Ended
from dovetail.host.check import HostRules
from dovetail.host.options import HostOptions
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import HostOutcome, Workload, header, run

PLANS = ("fcfs", "priority", "rr")
ASSIGNS = ("strict", "max_prop", "always_attend", "efficient")
_CURVES = ("linear", "linear", "amdahl:0.9", "table:1=100,2=55,4=30,8=28", "fit+:1=100,2=60,4=40,8=45")


def random_workload(dice: Random, asks: bool = True) -> Workload:
    """Some programs on a small machine; with `asks` also resizes, pauses and other wishes of their users."""
    cores = dice.randint(1, 16)
    arrivals: list[tuple[float, Arrived | Asked]] = []
    names: list[str] = []
    now = 0.0
    for i in range(dice.randint(1, dice.choice((8, 12, 40)))):
        now += dice.choice((0.0, 0.0, 1.0, dice.uniform(0, 30)))
        if asks and names and dice.random() < 0.15:
            arrivals.append((now, _wish(dice, dice.choice(names), cores)))
            continue
        arrivals.append((now, _program(dice, f"p{i}", names, cores, asks)))
        names.append(f"p{i}")
    arrivals += [(now + 1.0, Asked(name, "resume")) for name in names]  # nobody stays paused for ever
    return Workload(cores, tuple(arrivals), {"program": program_graph("program", cores)})


def _program(dice: Random, name: str, names: list[str], cores: int, asks: bool) -> Arrived:
    asked = dice.randint(1, cores)
    least = dice.randint(1, asked) if dice.random() < 0.3 else 1
    ask = Ask(
        asked,
        least,
        dice.choice((None, None, max(asked, least))),
        dice.randrange(5),
        dice.choice(_CURVES),
        memory_mib=dice.randint(0, 600),
        after=(dice.choice(names),) if asks and names and dice.random() < 0.1 else (),
        limit_s=dice.uniform(5, 200) if asks and dice.random() < 0.1 else None,
        retries=dice.randrange(3),
        malleable=dice.random() < 0.8,
    )
    return Arrived(name, "program", (dice.choice((60.0, dice.uniform(1, 500))),), facts=msgspec.to_builtins(ask))


def _wish(dice: Random, name: str, cores: int) -> Asked:
    what = dice.choice(("resize", "resize", "pause", "resume", "priority", "cancel", "requeue"))
    return Asked(name, what, {"resize": dice.randint(1, cores), "priority": dice.randrange(5)}.get(what))


def random_options(dice: Random, plan: str, assign: str) -> HostOptions:
    """The two policies, with whatever else can be chosen."""
    return HostOptions(
        plan=plan,
        assign=assign,
        preemptive=dice.random() < 0.5,
        victim=dice.choice(("longest", "smallest")),
        quantum_s=dice.choice((5.0, 30.0)),
        age_step_s=dice.choice((None, 7.0, 60.0)),
        overtaking=dice.choice(("none", "first-fit", "backfill")),
        first=dice.choice(("admission", "growth")),
        shrink=dice.choice((None, None, True, False)),
        min_cores=dice.choice((1, 1, 2)),
        max_cores=dice.choice((None, None, 8)),
        memory_mib=dice.choice((None, None, 1000)),
    )


def verify(
    workload: Workload, options: HostOptions, executor: SimExecutor | None = None
) -> tuple[HostOutcome, list[Finding]]:
    """Run, and check by every rule while it runs."""
    faults = Findings()
    first = header(workload.cores, workload.graphs, options)
    rules = HostRules(first, faults)
    check = Check(first, faults, [rules])
    outcome = run(workload, options, [check], executor)
    check.step(outcome.steps + 1, outcome.end_s, [Ended(outcome.totals.as_dict())])
    check.finish()
    rules.finish()
    return outcome, faults.first


def cases(seed: int, count: int) -> Iterator[tuple[Random, Workload, HostOptions]]:
    """Random workloads, each with the next of all combinations of policies."""
    pairs = [(plan, assign) for plan in PLANS for assign in ASSIGNS]
    for i in range(count):
        dice = Random(f"{seed} {i}")
        yield dice, random_workload(dice, asks=dice.random() < 0.7), random_options(dice, *pairs[i % len(pairs)])


def describe(workload: Workload, options: HostOptions) -> dict[str, Any]:
    """A case, for whoever has to find out what is wrong with it."""
    return {"options": options.as_dict(), "cores": workload.cores, "arrivals": [*workload.arrivals]}
