"""How long a live cluster takes to decide a round about 10,000 submitted jobs whose rates it learns.

python -m bench.cluster_live rounds
python -m bench.cluster_live rounds --jobs 1000 --policies fifo --times 2

26 kinds of jobs on 120 accelerators of three types. In each round rates are measured anew, with 10 % of noise, a
hundredth of the jobs that run ends and as many come; then the next round is planned, and begins. Told are the seconds
of the state machine for a plan and for a beginning, the most over all rounds but the first, and the first one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from time import perf_counter
from typing import Any

import numpy as np

from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.live.learned import Knowledge, LearnedTable
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.events import Rows

TYPES = {"a100": 4.0, "v100": 2.0, "k80": 0.7}  # how fast, at the mean
POLICIES = ("max_min_fairness_perf", "finish_time_fairness_perf", "fifo", "max_min_fairness_packed")
_EACH, _PER_SERVER = 40, 4
_WIDTHS = (1, 2, 4)
_MODELS = 26
_ROUND_S = 360.0


def decisions(policy: str, jobs: int, rounds: int, seed: int = 0) -> dict[str, float]:
    """Seconds that a policy's rounds take to be planned and to begin."""
    rng, types = Random(seed), tuple(TYPES)
    rules = RoundRules(round_s=_ROUND_S, restart_s=5.0, decide_at=0.5)
    machine = Rounds(_cluster(types), make(policy), rules, reported=True)
    learned = LearnedTable(types, Knowledge())
    learned.packs = make(policy).packs
    devices = range(_EACH * len(types))
    on, servers = [d // _EACH for d in devices], [d // _PER_SERVER for d in devices]
    machine.handle([records.joined([*devices], on, servers)], 0.0)
    kinds = [(f"model {k}", _WIDTHS[k % len(_WIDTHS)]) for k in range(_MODELS)]
    rates = [[mean * width**0.9 * rng.uniform(0.5, 2.0) for mean in TYPES.values()] for _, width in kinds]

    def come(first: int, count: int, at_s: float) -> list[Rows]:
        chosen = [rng.randrange(_MODELS) for _ in range(count)]
        found = [rows for k in sorted(set(chosen)) for rows in learned.add(kinds[k][0], [kinds[k][1]])]
        columns: dict[str, Any] = {"id": [*range(first, first + count)], "at_s": [at_s] * count}
        columns["kind"] = [learned.place(*kinds[k]) for k in chosen]
        columns["steps"] = [10 ** rng.uniform(4, 6) for _ in range(count)]
        return [*found, Rows("arrived", columns)]

    machine.handle(come(1, jobs, 0.0), 0.0)
    last, plans, begins = jobs, list[float](), list[float]()
    for _ in range(rounds + 1):
        now = machine.plan_s
        measured = [
            rows
            for k, (model, width) in enumerate(kinds)
            for j in range(len(types))
            for rows in learned.see_rate(learned.place(model, width), j, rates[k][j] * rng.gauss(1.0, 0.1))
        ]
        held = sorted(machine.leases())
        over = rng.sample(held, len(held) // 100 + 1)
        machine.handle([*measured, records.completed(over, [now - 1.0] * len(over))], now - 1.0)
        machine.handle(come(last + 1, len(over), now - 1.0), now - 1.0)
        last += len(over)
        plans.append(_timed(machine, machine.plan_s))
        begins.append(_timed(machine, machine.next_round_s))
    return {
        "plan_s": max(plans[1:]),
        "begin_s": max(begins[1:]),
        "first_plan_s": plans[0],
        "jobs": float(len(machine.jobs)),
    }


def _cluster(types: tuple[str, ...]) -> ClusterSetup:
    none = np.zeros((0, len(types)))
    return ClusterSetup(
        counts=np.zeros(len(types), dtype=np.int64),
        per_server=np.full(len(types), _PER_SERVER),
        throughputs=Throughputs(types, [], none, none),
        prices=constant(types, {}),
        jobs=(),
    )


def _timed(machine: Rounds, now: float) -> float:
    began = perf_counter()
    machine.handle(machine.due(now), now)
    return perf_counter() - began


def measure(policies: Sequence[str], jobs: int, rounds: int) -> dict[str, Any]:
    """Every policy, and the most over all."""
    found = {policy: decisions(policy, jobs, rounds) for policy in policies}
    most = {name: max(each[name] for each in found.values()) for name in ("plan_s", "begin_s", "first_plan_s")}
    return {"jobs": jobs, "most": most, "policies": found}
