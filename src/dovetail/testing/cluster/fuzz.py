"""Random small clusters that try everything at once, each run under every policy and handed to the checker.

A case depends on its number alone, so that a fault found in thousands of them can be looked at again.
"""

from __future__ import annotations

from math import inf
from operator import attrgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from dovetail.cluster.bounds import fastest
from dovetail.cluster.check import check_journal
from dovetail.cluster.inputs.prices import Prices
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.metrics import ClusterResult
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Floats, Policy
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core import registry
from dovetail.core.errors import DovetailError

_CLOSE = 1e-6


class ClusterCase(NamedTuple):
    """A workload and the rules that it is run by."""

    setup: ClusterSetup
    rules: RoundRules

    @property
    def jobs(self) -> list[Job]:
        return list(self.setup.jobs)


def random_case(seed: int) -> ClusterCase:
    """The case of this number: jobs of all widths, some that fit nowhere, on servers that fail, by either rule.

    >>> random_case(7).jobs == random_case(7).jobs
    True
    """
    rng = Random(seed)
    types = rng.randint(1, 3)
    counts = [rng.randint(1, 6) for _ in range(types)]
    per_server = [rng.choice((1, 2, 4)) for _ in range(types)]
    throughputs = _throughputs(rng, types)
    entities = {f"e{i}": rng.choice((1.0, 2.0)) for i in range(rng.randint(1, 3))} if rng.random() < 0.3 else {}
    jobs = _jobs(rng, throughputs, list(entities))
    setup = ClusterSetup(
        counts=np.array(counts),
        per_server=np.array(per_server),
        throughputs=throughputs,
        prices=_prices(rng, types),
        jobs=jobs,
        window=_window(rng, len(jobs)),
        entities=entities,
        outages=_outages(rng, counts) if rng.random() < 0.4 else [],
        seed=seed,
    )
    case = ClusterCase(setup, _rules(rng))
    if rng.random() < 0.3:
        setup.restarts, setup.restarts_ahead = _restarts(rng, throughputs), _restarts(rng, throughputs)
    return case


def _restarts(rng: Random, throughputs: Throughputs) -> Floats:
    """Seconds of a start by kind and type, some as they always are."""
    found: Floats = np.array([rng.choice((np.nan, rng.uniform(0.0, 50.0))) for _ in range(throughputs.alone.size)])
    return found.reshape(throughputs.alone.shape)


def _throughputs(rng: Random, types: int) -> Throughputs:
    """A few models at a few widths: faster if wider, slower if spread; some do not run on some type, or on any."""
    kinds = [
        (f"m{i}", width)
        for i in range(rng.randint(1, 4))
        for width in sorted({1, *rng.sample((2, 3, 4, 7), rng.choice((0, 0, 1, 2)))})
    ]
    alone = np.zeros((len(kinds), types))
    for at, (_, width) in enumerate(kinds):
        for j in range(types):
            alone[at, j] = 0.0 if rng.random() < 0.15 else rng.uniform(0.5, 20) * width**0.8
    spread = alone * np.array([[rng.uniform(0.3, 1.1) if width > 1 else 1.0] for _, width in kinds])
    pairs: Floats | None = None
    if rng.random() < 0.6:
        pairs = np.zeros((len(kinds), len(kinds), types))
        for a, (_, width) in enumerate(kinds):
            for b in range(a, len(kinds)):
                for j in range(types):
                    if kinds[b][1] == width and alone[a, j] > 0 and alone[b, j] > 0 and rng.random() < 0.8:
                        pairs[a, b, j] = alone[a, j] * rng.uniform(0.3, 0.95)
                        pairs[b, a, j] = alone[b, j] * rng.uniform(0.3, 0.95) if a != b else pairs[a, b, j]
    return Throughputs(tuple(f"t{j}" for j in range(types)), kinds, alone, spread, pairs)


def _jobs(rng: Random, throughputs: Throughputs, entities: list[str]) -> list[Job]:
    """Arrivals with ties and gaps, some without a step to do, some heavier, some due."""
    at_once, narrow, weights, due = (rng.random() < chance for chance in (0.2, 0.3, 0.3, 0.3))
    now_s, jobs = 0.0, []
    known = [kind for kind in throughputs.kinds if kind[1] == 1 or not narrow]
    for i in range(rng.randint(1, 14)):
        model, width = rng.choice(known)
        if not at_once and rng.random() < 0.8:
            now_s += rng.choice((0.0, 60.0, rng.expovariate(1 / 300), rng.expovariate(1 / 5000)))
        jobs.append(
            Job(
                id=i,
                model=model,
                width=width,
                steps=rng.choice((0.0, 600.0, 10 ** rng.uniform(1, 5), 10 ** rng.uniform(1, 5))),
                arrival_s=now_s,
                weight=rng.choice((1.0, 5.0)) if weights else 1.0,
                due_s=rng.uniform(0, 20_000) if due and rng.random() < 0.7 else None,
                entity=rng.choice(entities) if entities else "",
            )
        )
    return jobs


def _prices(rng: Random, types: int) -> Prices:
    """Some that stay, some that change every now and then."""
    times_s = (0.0,) if rng.random() < 0.7 else (0.0, 1000.0, 4500.0)
    values = np.array([[rng.uniform(0.1, 3) for _ in range(types)] for _ in times_s])
    return Prices(tuple(f"t{j}" for j in range(types)), times_s, values)


def _window(rng: Random, jobs: int) -> tuple[int, int] | None:
    if rng.random() < 0.85:
        return None
    first = rng.randrange(jobs)
    return first, rng.randint(first + 1, jobs)


def _outages(rng: Random, counts: list[int]) -> list[Outage]:
    """Single accelerators and neighbours that go down once or twice, and come back."""
    found, first, total = [], 0, sum(counts)
    while first < total:
        size, now_s = min(rng.choice((1, 1, 2)), total - first), 0.0
        for _ in range(rng.choice((0, 0, 1, 2))):
            now_s += rng.choice((360.0, rng.uniform(0, 5000)))
            back_s = now_s + rng.choice((0.0, 100.0, rng.uniform(1, 5000)))
            found.append(Outage(now_s, back_s, tuple(range(first, first + size))))
            now_s = back_s + 1.0
        first += size
    return sorted(found, key=attrgetter("at_s"))


def _rules(rng: Random) -> RoundRules:
    return RoundRules(
        round_s=rng.choice((60.0, 360.0, 1000.0)),
        priority=rng.choice(("owed", "owed", "fraction")),
        allocate_every_s=rng.choice((0.0, 0.0, 1920.0)),
        restart_s=rng.choice((0.0, 10.0, 45.0)),
        inside=rng.random() < 0.8,
        global_queue=rng.random() < 0.2,
        decide_at=rng.choice((1.0, 1.0, 0.5, 0.25)),
        spares=rng.random() < 0.3,
    )


def policies_for(case: ClusterCase) -> list[str]:
    """All that are registered, but those that refuse wide jobs only where there are none."""
    wide = any(job.width > 1 for job in case.jobs)
    return [name for name in registry.names("cluster") if not (wide and getattr(make(name), "narrow", False))]


def check_seed(seed: int) -> list[str]:
    """What is wrong with a case's runs, under every registered policy; nothing if all is well."""
    with TemporaryDirectory() as folder:
        return check_case(random_case(seed), str(seed), Path(folder) / "run.jsonl")


def check_case(case: ClusterCase, name: str, journal: Path) -> list[str]:
    found = []
    for policy in policies_for(case):
        try:
            faults = check_run(case, policy, journal)
        except DovetailError as error:
            faults = [str(error)]
        except Exception as error:  # one fault must not hide the others
            faults = [f"{type(error).__name__}: {error}"]
        found += [f"case {name}, {policy}: {fault}" for fault in faults]
    return found


def check_run(case: ClusterCase, policy: str, journal: Path) -> list[str]:
    """One policy, with rounds and, in one case of four, without: through the checker, and against the bounds."""
    found = []
    for ideal in (False, True)[: 1 + (case.setup.seed % 4 == 2)]:
        outcome = run(case.setup, make(policy), case.rules, name=policy, journal=journal, ideal=ideal)
        faults = [f"{fault.code}: {fault.where}: {fault.message}" for fault in check_journal(journal).faults]
        faults += _figures(case, make(policy), outcome)
        found += [f"ideal: {fault}" if ideal else fault for fault in faults]
    return found


def _figures(case: ClusterCase, policy: Policy, outcome: ClusterResult) -> list[str]:
    """Every measured job must end, and none sooner than it can."""
    found, setup, figures = [], case.setup, outcome.figures
    best, _ = fastest(setup, policy)
    index = setup.throughputs.index()
    first, end = setup.window or (0, inf)
    for job in case.jobs:
        rate = best[index[job.model, job.width]]
        took_s = outcome.completion_s.get(job.id)
        if took_s is None:
            if rate > 0 and first <= job.id < end:
                found.append(f"job {job.id} never ended")
            continue
        least_s = job.steps / max(float(rate), 1e-300)
        if took_s < least_s * (1 - _CLOSE) - _CLOSE:
            found.append(f"job {job.id} took {took_s} s, at least {least_s} s are needed")
    if setup.window is None and figures.completed + figures.rejected != len(case.jobs):
        found.append(f"{figures.completed} completed and {figures.rejected} rejected of {len(case.jobs)} jobs")
    if not 0 <= figures.utilization <= 1 + _CLOSE:
        found.append(f"utilization is {figures.utilization}")
    if figures.makespan_s < outcome.bound_makespan_s * (1 - _CLOSE):
        found.append(f"makespan {figures.makespan_s} s, bound {outcome.bound_makespan_s} s")
    if figures.avg_jct_s < figures.bound_avg_jct_s * (1 - _CLOSE):
        found.append(f"average JCT {figures.avg_jct_s} s, bound {figures.bound_avg_jct_s} s")
    if figures.envy is not None and not 0 <= figures.envy <= 1:
        found.append(f"envy is {figures.envy}")
    return found
