"""The offline optimiser: the best of several list schedules, improved by local search, as a plan that can be followed.

It simulates candidates with the same scheduler and engine that will carry the plan out, so what it promises is what
comes. The budget is a number of simulated schedules, which keeps results reproducible; a limit in seconds can be added.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_type_hints

from msgspec import Struct

from dovetail.core.events import Arrived, Start
from dovetail.core.loop.engine import simulate
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.metrics import Metrics
from dovetail.core.policy_source import REQUIRED
from dovetail.core.registry import create, find, listing
from dovetail.workflow.bounds import bounds_for
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.optimise.annealing import NodeKey, PlanTimes, Starts, anneal, can_time
from dovetail.workflow.policies.base import ListPolicy, WorkflowPolicy
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode, Window
from dovetail.workflow.policies.view import View
from dovetail.workflow.scheduler import WorkflowScheduler

Objective = Literal["makespan", "mean"]

_PLACED, _FEWEST = 300_000, 200  # nodes, in all the schedules that are tried; schedules


class PlannedStarts(Struct):
    """Nodes in the order in which they start, each with its window, and what that gives."""

    starts: Starts
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


def _as_it_came(request: OpenRequest) -> Arrived:
    due_s = None if request.due_s is None else request.due_s - request.arrived_s
    sizes, facts = tuple(request.sizes), dict(request.facts)
    return Arrived(request.id, request.graph.name, sizes, due_s, request.weight, facts=facts)


class _Search:
    """Simulates one policy after another on the same requests, and keeps the best."""

    def __init__(
        self, view: View, requests: Sequence[OpenRequest], objective: Objective, budget: int, budget_s: float | None
    ):
        self._view = view
        self._graphs = {request.graph.name: request.graph for request in requests}
        self._arrivals = [(each.arrived_s, _as_it_came(each)) for each in requests]
        self._objective = objective
        self._left = budget
        self._until = None if budget_s is None else time.monotonic() + budget_s
        self._completed = 0
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
        if figures.completed < self._completed or (
            figures.completed == self._completed and self.best is not None and value >= self.best.value
        ):
            return False
        self._completed = figures.completed  # one that rejects requests is no better for it
        self.best = PlannedStarts(order.starts, value, origin)
        self.times = order.times
        return True

    def _least(self) -> float:
        """What no plan can be better than."""
        view = self._view
        bounds = bounds_for(view.pool, self._graphs, view.models, view.costs, view.rates)
        for at_s, request in self._arrivals:
            bounds.add(at_s, request)
        lower = bounds.result()
        return lower.makespan_s if self._objective == "makespan" else lower.mean_s

    def anneal(self, requests: Sequence[OpenRequest], rng: random.Random) -> None:
        """Improve the best plan by what is left of the budget."""
        assert self.best is not None
        if self._left <= 0 or len(self.best.starts) < 2:
            return
        times = PlanTimes(self._view, requests, self._objective == "mean")
        value, starts = anneal(times, self.best.starts, rng, self._left, lambda: self.spent, self._least())
        if value < self.best.value:
            self.best = PlannedStarts(starts, value, "annealing")


def optimise(
    view: View,
    requests: Sequence[OpenRequest],
    objective: Objective = "makespan",
    schedules: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
) -> PlannedStarts:
    """The best plan found for requests that are all there at the start; never worse than that of any policy tried.

    Without a number of `schedules` there are as many as place some hundred thousand nodes.
    """
    nodes = sum(len(request.graph.tasks) for request in requests)
    budget = max(_FEWEST, _PLACED // max(nodes, 1)) if schedules is None else schedules
    search = _Search(view, requests, objective, budget, budget_s)
    for origin, policy in candidates():
        search.attempt(policy, origin)
        if search.spent:
            break
    assert search.best is not None
    rng = random.Random(seed)
    if can_time(view):
        search.anneal(requests, rng)
    else:
        _improve(search, rng)
    return search.best


def candidates() -> Iterator[tuple[str, WorkflowPolicy]]:
    """What a plan may start from: the default policy, all others that do not plan ahead, and each with every objective
    that it has; then longest paths first, with more and less dislike of switches."""
    listed = [one for one in listing("workflow", ["turn", "plans_ahead"]) if not one.traits["plans_ahead"]]
    listed = [one for one in listed if REQUIRED not in one.options.values()]
    listed.sort(key=lambda one: (one.name != DEFAULT_POLICY, not one.traits["turn"], one.traits["turn"]))
    for one in listed:
        yield one.name, create("workflow", one.name)
    for one in listed:
        if "objective" in one.options:
            choices = get_args(get_type_hints(find("workflow", one.name).__init__)["objective"])
            for choice in choices:
                if choice != one.options["objective"]:
                    yield f"{one.name}, objective {choice}", create("workflow", one.name, {"objective": choice})
    for weight in (0, 8, 40, 200, 1000):
        yield f"longest path, hysteresis {weight}", _Tail(hysteresis=weight)


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
