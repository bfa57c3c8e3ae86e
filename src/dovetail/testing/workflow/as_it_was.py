"""A live run, simulated with what it measured: the scheduler begins with what the live one knew, and learns as that
did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core.events import Arrived, Failed, Finished, Order, Settled, Start
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import simulate
from dovetail.core.metrics import Metrics, recount
from dovetail.workflow import measurements
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.sharing import SharingAgenda, SharingExecutor
from dovetail.workflow.live.measured import LiveMeasurements
from dovetail.workflow.policies.ready import Window
from dovetail.workflow.policies.view import View
from dovetail.workflow.simulate import new_scheduler

SIMULATIONS, SPREAD = 9, 0.05
Key = tuple[str, str]


class AsItWas(SharingExecutor):
    """Lets nodes take what they took live, spread a little, and loads what they took in the mean; tells when a model is
    loaded. What the scheduler expects is its own affair."""

    def __init__(self, work_s: dict[Key, float], there: View, seed: int, spread: float) -> None:
        super().__init__(there.shares_of, seed, spread, 0.0)
        self._work_s, self._there = work_s, there

    def carry(self, orders: Sequence[Order], now: float) -> None:
        for order in orders:
            super().carry([self._really(order, now) if isinstance(order, Start) and order.devices else order], now)

    def _really(self, order: Start, now: float) -> Start:
        there, sharing = self._there, self._windows.get(order.devices)
        ready_s = now + there.residents.setup(order.devices, order.kind) if sharing is None else sharing.window.ready_s
        there.residents.load(order.devices, order.kind)
        if ready_s > now:
            self._agenda.push(ready_s, Settled(order.job, order.task, order.devices))
        run_s = self._work_s[order.job, order.task]
        if order.slots:
            run_s /= there.shares_of(order.kind, order.devices)[0 if sharing is None else sharing.window.count]
        return replace(order, setup_s=max(0.0, ready_s - now), run_s=run_s, first_s=None)


def work_s(reader: Reader, there: View) -> dict[Key, float]:
    """Seconds that each call would have taken alone: what it took, by the speed of each with those beside it."""
    found, began = dict[Key, float](), dict[Key, Start]()
    active: dict[Window, set[Key]] = {}
    before = 0.0
    for _, t, events in reader.steps():
        for window, calls in active.items():
            for key in calls:
                share = there.shares_of(began[key].kind, window)[len(calls) - 1] if began[key].slots else 1.0
                found[key] += share * (t - before)
        before = t
        for event in events:
            if isinstance(event, Finished | Failed):
                active[began.pop((event.job, event.task)).devices].discard((event.job, event.task))
        for event in events:
            if isinstance(event, Start):
                began[event.job, event.task] = event
                found[event.job, event.task] = 0.0
            if isinstance(event, Settled) or (isinstance(event, Start) and not event.setup_s):
                active.setdefault(event.devices, set()).add((event.job, event.task))
    return {key: max(seconds, 1e-6) for key, seconds in found.items()}


def _arrivals(measured: LiveMeasurements) -> Iterator[tuple[float, Arrived]]:
    for job, arrived in sorted(measured.arrived.items(), key=lambda item: item[1][0]):
        if measured.is_told(job):
            yield arrived


def simulations(journal: Path, count: int = SIMULATIONS, spread: float = SPREAD) -> list[dict[str, Any]]:
    """The figures of several simulations of a live run."""
    measured, reader = measurements(journal), Reader(journal)
    header, found = reader.header, []
    facts, graphs = WorkflowFacts.of(header, journal), header.build_graphs()
    for seed in range(count):
        there = View(header.pool, facts.models, facts.costs, measured.table)
        executor, metrics = AsItWas(work_s(reader, there), there, seed, spread), Metrics(header.pool)
        agenda = SharingAgenda(_arrivals(measured), executor)
        simulate(new_scheduler(header), header.pool, graphs, (), executor, [metrics], agenda)
        found.append(recount(metrics.figures()))
    return found
