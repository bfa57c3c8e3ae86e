"""Random workloads and options, and whether a run of them keeps every rule: for the tests and the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from dovetail.core.check import Check
from dovetail.core.events import Arrived, Asked
from dovetail.core.findings import Finding, Findings
from dovetail.core.journal import Ended
from dovetail.core.loop.executor import SimExecutor
from dovetail.host.check import HostRules
from dovetail.host.gpus import GpuDevice
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.policies import Assignment, Planning, names
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import HostOutcome, header, run

PLANS, ASSIGNS = names(Planning), names(Assignment)
_CURVES = ("linear", "linear", "amdahl:0.9", "table:1=100,2=55,4=30,8=28", "fit+:1=100,2=60,4=40,8=45")


def random_workload(rng: Random, asks: bool = True) -> Workload:
    """Some programs on a small machine; with `asks` also resizes, pauses and other wishes of their users."""
    cores = rng.randint(1, 16)
    arrivals: list[tuple[float, Arrived | Asked]] = []
    names: list[str] = []
    limits = {group: rng.randint(1, 3) for group in "gh"} if asks else {}
    now = 0.0
    for i in range(rng.randint(1, rng.choice((8, 12, 40)))):
        now += rng.choice((0.0, 0.0, 1.0, rng.uniform(0, 30)))
        if asks and names and rng.random() < 0.15:
            wish = _wish(rng, rng.choice(names), cores)
            if rng.random() < 0.2:
                came = next(event for _, event in arrivals if isinstance(event, Arrived) and event.job == wish.job)
                wish = Asked(wish.job, "edit", facts=_edited(rng, came.facts, cores))
            arrivals.append((now, wish))
            continue
        program = _program(rng, f"p{i}", names, cores, asks)
        arrivals.append((now, _queued(rng, program, names, now, limits) if asks else program))
        names.append(f"p{i}")
    arrivals += [(now + 1.0, Asked(name, "resume")) for name in names]  # nobody stays paused for ever
    return Workload(cores, tuple(arrivals), {"program": program_graph("program", cores)})


def _program(rng: Random, name: str, names: list[str], cores: int, asks: bool) -> Arrived:
    asked = rng.randint(1, cores)
    least = rng.randint(1, asked) if rng.random() < 0.3 else 1
    ask = Ask(
        asked,
        least,
        rng.choice((None, None, asked, rng.randint(asked, cores))),
        rng.randrange(5),
        rng.choice(_CURVES),
        memory_mib=rng.randint(0, 600),
        after=(rng.choice(names),) if asks and names and rng.random() < 0.1 else (),
        limit_s=rng.uniform(5, 200) if asks and rng.random() < 0.1 else None,
        retries=rng.randrange(3),
        malleable=rng.random() < 0.8,
        gpus=(gpus := rng.choice((0, 0, 0, 1, 1, 2))),
        gpu_mem_mib=rng.choice((None, 100, 400, rng.randint(1, 1100))) if gpus else None,
        gpu_type=rng.choice(("", "", "a100")) if gpus else "",
        gpu_pause=rng.choice(("hold", "release")),
    )
    return Arrived(name, "program", (rng.choice((60.0, rng.uniform(1, 500))),), facts=msgspec.to_builtins(ask))


def _queued(rng: Random, event: Arrived, names: list[str], now: float, limits: dict[str, int]) -> Arrived:
    """The same program, now and then in a group, or after others, or at its time."""
    more: dict[str, Any] = {}
    if names and rng.random() < 0.1:
        more["after_any"] = [rng.choice(names)]
    if rng.random() < 0.1:
        more["begin_s"] = now + rng.choice((0.0, 5.0, rng.uniform(0, 60)))
    if rng.random() < 0.4:
        more["group"] = rng.choice(list(limits))
        more["parallel"] = limits[more["group"]]
    return msgspec.structs.replace(event, facts=event.facts | more)


def _edited(rng: Random, facts: dict[str, Any], cores: int) -> dict[str, Any]:
    asked = rng.randint(1, cores)
    kept = {name: facts[name] for name in ("after", "after_any", "group", "parallel", "begin_s") if name in facts}
    return kept | {"cores": asked, "least": rng.randint(1, asked), "priority": rng.randrange(5)}


def _wish(rng: Random, name: str, cores: int) -> Asked:
    what = rng.choice(("resize", "resize", "pause", "resume", "priority", "cancel", "requeue"))
    return Asked(name, what, {"resize": rng.randint(1, cores), "priority": rng.randrange(5)}.get(what))


def random_options(rng: Random, plan: str, assign: str) -> HostOptions:
    """The two policies, with whatever else can be chosen."""
    return HostOptions(
        plan=plan,
        assign=assign,
        preemptive=rng.random() < 0.5,
        victim=rng.choice(("longest", "smallest")),
        quantum_s=rng.choice((5.0, 30.0)),
        age_step_s=rng.choice((None, 7.0, 60.0)),
        overtaking=rng.choice(("none", "first-fit", "backfill")),
        first=rng.choice(("admission", "growth")),
        shrink=rng.choice((None, None, True, False)),
        min_cores=rng.choice((1, 1, 2)),
        max_cores=rng.choice((None, None, 8)),
        memory_mib=rng.choice((None, None, 1000)),
        gpus=tuple(rng.choices((GpuDevice("NVIDIA A100", 1000), GpuDevice("NVIDIA L4", 400)), k=rng.randrange(4))),
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
        rng = Random(f"{seed} {i}")
        yield rng, random_workload(rng, asks=rng.random() < 0.7), random_options(rng, *pairs[i % len(pairs)])


def describe(workload: Workload, options: HostOptions) -> dict[str, Any]:
    """A case, for whoever has to find out what is wrong with it."""
    return {"options": options.as_dict(), "cores": workload.cores, "arrivals": [*workload.arrivals]}
