"""What a live run measured, from its journal: rates, loads, and how large its nodes really were, so that the same run
can be simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Grew, Observed, Reject, Start
from dovetail.core.findings import Findings
from dovetail.core.journal import Reader
from dovetail.core.rates import ANY, PREFILL, Rate, RateTable, Switch
from dovetail.workflow.capacity import GONE
from dovetail.workflow.check.live import LiveRules
from dovetail.workflow.check.starts import StartRules
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.learning import Key, Learning, Place
from dovetail.workflow.inputs.costs import speeds_at_once

_LEAST_S = 1e-6  # that a node takes: files know none that take nothing


class _Seen(Struct):
    """A call that finished: where, beside how many, its work at the configuration's speed, and what it took."""

    place: Place | None
    at_once: int
    work_s: float
    took_s: float


class _Witness(Learning):
    """Keeps all that it sees, not the last few samples alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: dict[Key, _Seen] = {}
        self.loads: dict[tuple[str, str, str], list[float]] = {}

    def run_seen(self, key: Key, place: Place | None, at_once: int, work_s: float, took_s: float) -> None:
        self.calls[key] = _Seen(place, at_once, work_s, took_s)

    def load_seen(self, previous: str, place: Place, seconds: float) -> None:
        for before in (previous, ANY):
            self.loads.setdefault((before, *place), []).append(seconds)


class LiveMeasurements:
    """Follows the journal of a live run. `left_out` says what of it no simulation will tell."""

    def __init__(self, reader: Reader) -> None:
        self._facts = facts = WorkflowFacts.of(reader.header, reader.path)
        if not facts.live:
            raise InputError(f"{reader.path}: expected the journal of a live run: what is simulated measures nothing")
        self.arrived: dict[str, tuple[float, Arrived]] = {}
        self.grown: dict[str, dict[str, Grew]] = {}
        self._closed: dict[str, Reject | Complete] = {}
        self._without: dict[Key, float] = {}  # nodes that need no GPU, and what they took
        self._failed = self._gone = 0
        rules = StartRules(reader.header, facts, Findings(), _Witness)
        witness = rules.learning
        assert isinstance(witness, _Witness)
        self._witness, followers = witness, (LiveRules(reader.header, rules, Findings()), rules)
        began: dict[Key, float] = {}
        for n, t, events in reader.steps():
            for follower in followers:
                follower.step(n, t, events)
            for event in events:
                self._see(t, event, began)
        self._joined = len(rules.pool) - len(reader.header.pool)
        self.table = self._measure()

    def _see(self, t: float, event: Any, began: dict[Key, float]) -> None:
        if isinstance(event, Arrived):
            self.arrived[event.job] = (t, event)
        elif isinstance(event, Grew):
            self.grown.setdefault(event.job, {})[event.task] = event
        elif isinstance(event, Reject | Complete):
            self._closed[event.job] = event
        elif isinstance(event, Start) and not event.devices:
            began[event.job, event.task] = t
        elif isinstance(event, Finished) and (event.job, event.task) in began:
            self._without[event.job, event.task] = t - began.pop((event.job, event.task))
        elif isinstance(event, Failed):
            self._failed += 1
        elif isinstance(event, Observed):
            self._gone += event.what == GONE

    # --- rates ------------------------------------------------------------------------------------

    def _measure(self) -> RateTable:
        paces: dict[Place, dict[int, list[float]]] = {}
        for call in self._witness.calls.values():
            if call.place is not None and call.work_s and call.took_s:
                paces.setdefault(call.place, {}).setdefault(call.at_once, []).append(call.work_s / call.took_s)
        rates: list[Rate] = []
        for place, known in sorted(paces.items()):
            rates += self._rates(place, {n: median(values) for n, values in sorted(known.items())}, known)
        loads = sorted(self._witness.loads.items())
        # what loads took in all is what the run had to pay: their mean, where single ones are looked up by the median
        return RateTable(rates, [Switch(to, fmean(s), old, device, "measured") for (old, to, device), s in loads])

    def _rates(self, place: Place, known: dict[int, float], values: Mapping[int, list[float]]) -> Iterable[Rate]:
        (model, device), width = place, self._facts.models[place[0]].width
        base, _, shares, reads = self._witness.told(place)
        most = max(known, key=lambda n: (len(values[n]), -n))
        alone = known.get(1) or known[most] / shares[min(most, len(shares)) - 1]
        slowest = alone
        yield Rate(model, device, base * alone, width, "", "measured")
        for at_once, value in known.items():
            if at_once > 1:
                slowest = min(slowest, value)
                yield Rate(model, device, base * slowest, width, "", "measured", "", at_once)
        if reads is not None:
            yield Rate(model, device, reads * alone, width, "", "measured", PREFILL)

    def _speed(self, call: _Seen) -> float | None:
        """How fast one alone is there, times its share beside the others: what turns what it took into its size."""
        if call.place is None:
            return None
        (model, device), slots = call.place, self._facts.models[call.place[0]].slots
        points = self.table.at_once(model, device, width=self._facts.models[model].width)
        if slots and len(points) > 1:
            return speeds_at_once(points, slots)[min(call.at_once, slots) - 1]
        _, _, shares, _ = self._witness.told(call.place)
        return points[1] * shares[min(call.at_once, len(shares)) - 1] if points else None

    # --- requests ---------------------------------------------------------------------------------

    def size_s(self, job: str, task: str, otherwise: float) -> float:
        """Seconds at speed 1 that a node really was, by what it took; as it was expected, if it never finished."""
        if (job, task) in self._without:
            return max(self._without[job, task], _LEAST_S)
        call = self._witness.calls.get((job, task))
        speed = None if call is None else self._speed(call)
        return otherwise if call is None or speed is None else max(call.took_s * speed, _LEAST_S)

    def is_told(self, job: str) -> bool:
        """Whether a simulation can tell of a request: it was not cancelled, nor given up by what had failed."""
        closed = self._closed.get(job)
        return isinstance(closed, Complete) or (isinstance(closed, Reject) and bool(closed.queue))

    def growth(self, job: str) -> dict[str, Grew]:
        """What the ends of a request's nodes added, as large as it really was."""
        return {
            task: replace(
                event, sizes=tuple(self.size_s(job, t.name, s) for t, s in zip(event.tasks, event.sizes, strict=True))
            )
            for task, event in self.grown.get(job, {}).items()
        }

    @property
    def left_out(self) -> list[str]:
        requests = sum(not self.is_told(job) for job in self.arrived)
        found = [
            (requests, "requests that were cancelled, given up or not closed"),
            (self._failed, "attempts that failed"),
            (self._gone, "times that GPUs were gone"),
            (self._joined, "GPUs that joined"),
        ]
        return [f"left out: {count} {what}" for count, what in found if count]
