"""The offline optimiser: the best of several list schedules, improved by local search, as a plan that can be followed.

It simulates candidates with the same scheduler and engine that will carry the plan out, so what it promises is what
comes. The budget is a number of simulated schedules, which keeps results reproducible; a limit in seconds can be added.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.engine import simulate
from dovetail.core.events import Arrived, Start
from dovetail.core.executor import SimExecutor
from dovetail.core.metrics import Metrics
from dovetail.core.policy_source import REQUIRED
from dovetail.core.registry import create, listing
from dovetail.workflow.policies.base import ListPolicy, OpenRequest, ReadyNode, View, Window, WorkflowPolicy
from dovetail.workflow.scheduler import WorkflowScheduler

Objective = Literal["makespan", "mean"]
NodeKey = tuple[str, str]


class PlannedStarts(Struct):
    """Nodes in the order in which they start, each with its window, and what that gives."""

    starts: list[tuple[NodeKey, Window]]
    value: float
    origin: str


class _Ranked(ListPolicy):
    """Greedy by given ranks."""

    def __init__(self, ranks: dict[NodeKey, float], hysteresis: float) -> None:
        super().__init__(hysteresis=hysteresis)
        self.ranks = ranks

    def rank(self, node: ReadyNode, view: View) -> float:
        return self.ranks[node.request.id, node.name]


class _Tail(ListPolicy):
    """Longest remaining path first."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return -node.tail_s


class _Order:
    """Notes who starts when and where."""

    def __init__(self) -> None:
        self.starts: list[tuple[NodeKey, Window]] = []
        self.times: dict[NodeKey, float] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Start:
                key = (event.job, event.task)
                self.starts.append((key, event.devices))
                self.times[key] = t


class _Search:
    """Simulates one policy after another on the same requests, and keeps the best."""

    def __init__(
        self, view: View, requests: Sequence[OpenRequest], objective: Objective, budget: int, budget_s: float | None
    ):
        self._view = view
        self._graphs = {request.graph.name: request.graph for request in requests}
        self._arrivals = [
            (0.0, Arrived(request.id, request.graph.name, tuple(request.sizes), facts=dict(request.facts)))
            for request in requests
        ]
        self._objective = objective
        self._left = budget
        self._until = None if budget_s is None else time.monotonic() + budget_s
        self.best: PlannedStarts | None = None
        self.times: dict[NodeKey, float] = {}

    @property
    def spent(self) -> bool:
        return self._left <= 0 or (self._until is not None and time.monotonic() >= self._until)

    def attempt(self, policy: WorkflowPolicy, origin: str) -> bool:
        """Simulate; True if this is the best so far."""
        self._left -= 1
        old = self._view
        view = View(old.pool, old.models, old.costs, old.rates, old.forecast)
        metrics, order = Metrics(old.pool), _Order()
        scheduler = WorkflowScheduler(view, self._graphs, policy)
        simulate(scheduler, old.pool, self._graphs, self._arrivals, SimExecutor(), [metrics, order])
        figures = metrics.figures()
        value = figures.makespan_s if self._objective == "makespan" else figures.response_s.mean
        if self.best is not None and value >= self.best.value:
            return False
        self.best = PlannedStarts(order.starts, value, origin)
        self.times = order.times
        return True


def optimise(
    view: View,
    requests: Sequence[OpenRequest],
    objective: Objective = "makespan",
    schedules: int = 200,
    budget_s: float | None = None,
    seed: int = 0,
) -> PlannedStarts:
    """The best plan found for requests that are all there at the start; never worse than the default policy's."""
    search = _Search(view, requests, objective, schedules, budget_s)
    search.attempt(create("workflow", "dovetail"), "dovetail")
    listed = [one for one in listing("workflow", ["turn"]) if one.traits["turn"]]
    turns = [one.name for one in sorted(listed, key=lambda p: p.traits["turn"]) if REQUIRED not in one.options.values()]
    candidates: list[tuple[str, WorkflowPolicy]] = [(name, create("workflow", name)) for name in turns]
    candidates += [(f"dovetail, patience {p}", create("workflow", "dovetail", {"patience": p})) for p in (100, 1000)]
    candidates += [(f"longest path, hysteresis {h}", _Tail(hysteresis=h)) for h in (0, 8, 40, 200, 1000)]
    for origin, policy in candidates:
        if search.spent:
            break
        search.attempt(policy, origin)
    _improve(search, random.Random(seed))
    assert search.best is not None
    return search.best


def _improve(search: _Search, rng: random.Random) -> None:
    """Local search over ranks: move a node, swap two, or move a whole request; keep what is better."""
    assert search.best is not None
    ranks = dict(search.times)
    keys = list(ranks)
    hysteresis = 0.0
    span = max(ranks.values(), default=0.0)
    while not search.spent and len(keys) > 1:
        trial = dict(ranks)
        weight = rng.choice((hysteresis, 0.0, 1.0, 8.0, 40.0))
        move = rng.random()
        a, b = rng.sample(keys, 2)
        if move < 0.4:
            trial[a], trial[b] = trial[b], trial[a]
        elif move < 0.7:
            trial[a] = trial[b] - 1e-6
        else:
            shift = rng.uniform(-span, span) / 4
            for key in keys:
                if key[0] == a[0]:
                    trial[key] += shift
        if search.attempt(_Ranked(trial, weight), "local search"):
            ranks, hysteresis = trial, weight
