"""The witness of a live run: what is seen is written while it goes on, at the times at which it was seen.

Stages and links are devices, a microbatch is a job that visits them in turn. A microbatch that a change of plan
interrupts is rejected with the reason, and arrives again under the new plan. What a killed process had not told is
lost, and is not made up: its microbatches are those that were rejected, and the reason says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.events import Added, Arrived, Complete, Finished, Observed, Reject, Start
from dovetail.core.journal import Clock, Header, Observer
from dovetail.core.journal.recorder import Recorder, host_clock
from dovetail.core.metrics import Metrics, recount
from dovetail.core.results.charts import as_fact
from dovetail.core.tasks import TaskGraphRecord
from dovetail.pipeline.explain import curves
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.supervisor import Action, Assign, Event
from dovetail.pipeline.live.turns import decided, observed
from dovetail.pipeline.live.wire import Offset, Visit
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.route import DATA_HOST, LINK, Route, make_pool
from dovetail.pipeline.words import WORDS

_WHY = "first in, first out"


def graph_name(generation: int) -> str:
    return "microbatch" if generation == 1 else f"microbatch (plan {generation})"


def job_name(generation: int, number: int) -> str:
    """
    >>> job_name(1, 6), job_name(2, 6)
    ('microbatch 7', 'microbatch 7 (plan 2)')
    """
    return f"microbatch {number + 1}" + (f" (plan {generation})" if generation > 1 else "")


_Key = tuple[int, int]  # generation and number of a microbatch


class _Life(Struct):
    """A microbatch on its way: when it was fed, how many visits are noted, and when it was given up."""

    fed_s: float
    noted: int = 0
    until_s: float = inf


class RunJournal:
    """Any thread may tell it something. Times that it is given are on this host's monotonic clock, or, in visits, on
    that of whoever was visited; what it writes counts from the moment at which the first microbatch can be fed.

    The header is written before anything is started, and made anew, before any record, if clocks or devices turn out to
    be others than could be known then. What led to the first microbatch is written when that can be fed, at its own
    times, which are before 0.
    """

    def __init__(
        self,
        path: Path | None,
        plan: Plan,
        total: int | None,
        options: RunOptions,
        carried: Mapping[str, Carrier],
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._plan, self._observers, self._clock_s = path, plan, observers, clock
        self._carriers = dict(carried)
        self._origin_s: float | None = None
        self._lock = threading.Lock()
        self._offsets: dict[str, Offset] = {DATA_HOST: Offset()}
        self._early: list[tuple[float, list[Any]]] = []
        self._plans: dict[int, Plan] = {}
        self._routes: dict[int, Route] = {}
        route = self._route(1, plan)
        self.ids = {name: i for i, name in enumerate(route.devices)}  # of the devices, by name
        self._open: dict[_Key, _Life] = {}
        self._rejected: dict[_Key, _Life] = {}
        self._metrics = Metrics(route.pool)
        self._recorder = self._record(self._header(route, total, options))

    # --- the start --------------------------------------------------------------------------------

    def joined(self, host: str, offset: Offset, device: str) -> None:
        """A process says which clock and which device it has."""
        with self._lock:
            self._offsets[host] = offset
            carrier = self._carriers.get(host)
            if carrier is not None and self._origin_s is None:
                self._carriers[host] = msgspec.structs.replace(carrier, name=device)
            facts = {"host": host, "device": device, "offset_s": offset.offset_s, "error_s": offset.error_s}
            self._note(self._clock_s(), [Observed("device", facts)])

    def open(self) -> None:
        """The first microbatch can be fed, if that has not been said: time counts from now."""
        with self._lock:
            if self._origin_s is None:
                self._begin(self._clock_s())

    def _header(self, route: Route, total: int | None, options: RunOptions) -> Header:
        asked = {} if total is None else {"microbatches": total}
        header = Header(
            level="pipeline",
            words=WORDS,
            policy=self._plan.method,
            options=asked | {"buffers": options.buffers},
            mode="live",
            pool=route.pool,
            graphs=(TaskGraphRecord.of(route.graph(graph_name(1))),),
            order="written",
            facts={
                "model": self._plan.model,
                "asked": total,
                "devices": list(route.devices),
                "lanes": self._lanes(route),
                "without": self._absent(),
                "plan": msgspec.to_builtins(self._plan),
                "patience": options.patience,
            }
            | as_fact(curves(self._plan)),
        )
        return self._with_hardware(header)

    def _with_hardware(self, header: Header) -> Header:
        """The header with what is known of clocks and devices."""
        hardware: dict[str, list[str]] = {}
        for carrier in self._carriers.values():
            hardware.setdefault(carrier.type, []).append(carrier.hardware)
        one_host = all(offset.shared for offset in self._offsets.values())
        told = {kind: "; ".join(dict.fromkeys(names)) for kind, names in hardware.items() if kind in header.pool.types}
        return msgspec.structs.replace(
            header,
            clock=self._clock(),
            hardware=told | {LINK: "TCP on this host" if one_host else "TCP between hosts"},
            facts=header.facts | {"hosts": dict(self._carriers)},
        )

    def _record(self, header: Header) -> Recorder:
        return Recorder(self._path, header, [self._metrics, *self._observers])

    def _begin(self, origin_s: float) -> None:
        self._origin_s = origin_s
        if (header := self._with_hardware(self._recorder.header)) != self._recorder.header:
            self._recorder.close()
            self._recorder = self._record(header)
        for at_s, events in self._early:
            self._note(at_s, events)
        self._early.clear()

    def _clock(self) -> Clock:
        """Two stamps are wrong against each other by the errors of both hosts at most."""
        errors = sorted((o.error_s for o in self._offsets.values() if not o.shared), reverse=True)
        return Clock("measured offset", sum(errors[:2])) if errors else host_clock()

    def _absent(self) -> list[str]:
        problem = self._plan.problem
        known = [host for c in problem.classes for host in c.hosts] if problem else []
        return [host for host in known if host not in self._carriers]

    def _route(self, generation: int, plan: Plan) -> Route:
        types = {host: carrier.type for host, carrier in self._carriers.items()}
        self._plans[generation] = plan
        return self._routes.setdefault(generation, Route.connected(plan, types))

    def _lanes(self, route: Route) -> dict[str, list[int]]:
        return {station.name: [self.ids[device] for device in station.devices] for station in route.stations}

    # --- what the supervisor does -----------------------------------------------------------------

    def turn(self, now_s: float, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """What the supervisor was told and decided, at its own time."""
        with self._lock:
            noted = [*observed(events, bool(actions)), *map(decided, actions)]
            if noted:
                self._note(now_s, noted)
            for action in actions:
                if isinstance(action, Assign) and action.generation > 1:
                    self._add(now_s, action)

    def _add(self, now_s: float, action: Assign) -> None:
        """Devices and the graph of another plan join the run."""
        route = self._route(action.generation, action.plan)
        new = {name: kind for name, kind in route.devices.items() if name not in self.ids}
        first = len(self.ids)
        self.ids |= {name: first + i for i, name in enumerate(new)}
        pool = make_pool(list(new.values()))
        added = Added(
            f"plan {action.generation}",
            tuple(msgspec.structs.replace(device, id=first + device.id) for device in pool.devices),
            pool.types,
            (TaskGraphRecord.of(route.graph(graph_name(action.generation))),),
        )
        lanes = {"graph": graph_name(action.generation), "lanes": self._lanes(route), "devices": list(new)}
        self._note(now_s, [added, Observed("devices", lanes)])

    # --- what microbatches do ---------------------------------------------------------------------

    def fed(self, generation: int, number: int, at_s: float) -> None:
        """The data host has a microbatch ready to send."""
        with self._lock:
            key = (generation, number)
            self._open[key] = _Life(at_s)
            facts = {"number": number + 1, "plan": generation}
            sizes = self._routes[generation].seconds
            self._note(at_s, [Arrived(job_name(*key), graph_name(generation), sizes, facts=facts)])

    def passed(self, generation: int, number: int, visits: Sequence[Visit]) -> None:
        """What has become of a microbatch so far; of this, what was not known is noted."""
        with self._lock:
            key = (generation, number)
            life = self._open.get(key) or self._rejected.get(key)
            if life is not None:  # else it has come out, and all is known
                self._pass(key, life, visits)

    def delivered(self, generation: int, number: int, visits: Sequence[Visit]) -> None:
        """A microbatch has come out."""
        with self._lock:
            key = (generation, number)
            self._pass(key, self._open[key], visits)
            self._note(self._at(key, len(visits) - 1, visits[-1].end_s), [Complete(job_name(*key))])
            del self._open[key]

    def _pass(self, key: _Key, life: _Life, visits: Sequence[Visit]) -> None:
        route, job = self._routes[key[0]], job_name(*key)
        for i in range(life.noted, len(visits)):
            visit, station = visits[i], route.stations[i]
            start_s, end_s = self._at(key, i, visit.start_s), self._at(key, i, visit.end_s)
            if start_s >= life.until_s:  # a stage went on with what had been given up: seen, but no pass of the run
                vain = {"job": job, "task": station.name, "from_s": self._since(start_s)}
                self._note(end_s, [Observed("in vain", vain)])
                continue
            ready_s = self._since(self._at(key, i - 1, visits[i - 1].end_s) if i else life.fed_s)
            device = self.ids[station.device(key[1])]
            start = Start(job, station.name, station.name, (device,), ready_s, station.seconds, _WHY)
            sent = [Observed("transfer", {"task": station.name, "bits": visit.bits, "bytes": visit.size})]
            self._note(start_s, [start])
            self._note(end_s, [*(sent if visit.bits else []), Finished(job, station.name)])
        life.noted = max(life.noted, len(visits))

    def _at(self, key: _Key, i: int, stamp_s: float) -> float:
        """When that was, on our clock. Who receives or computes stamps; the last one is the data host."""
        generation, number = key
        stages = self._plans[generation].stages
        x = i // 2
        host = stages[x].hosts[number % len(stages[x].hosts)] if x < len(stages) else DATA_HOST
        return stamp_s + self._offsets[host].offset_s

    # --- the end ----------------------------------------------------------------------------------

    def over(self, generation: int, why: str, lost: Sequence[str] = ()) -> None:
        """A layout is over: what is still on its way in it will not come out."""
        if lost:
            why += f"; what {', '.join(lost)} did at the last is not known"
        with self._lock:
            now_s = self._clock_s()
            for key in [key for key in self._open if key[0] == generation]:
                self._note(now_s, [Reject(job_name(*key), why)])
                self._rejected[key] = life = self._open.pop(key)
                life.until_s = now_s

    def end(self) -> None:
        """The run came to its end, whatever that was."""
        with self._lock:
            self._begin_late()
            self._recorder.end(self._since(self._clock_s()), recount(self._metrics.figures()))

    def flush(self) -> None:
        """Send what was noted on its way to the disk now; it is, at the latest with the first note after a moment."""
        self._recorder.flush()

    def close(self) -> None:
        with self._lock:
            self._begin_late()
            self._recorder.close()

    def _begin_late(self) -> None:
        """Of a run that never fed anything, what led to that."""
        if self._origin_s is None:
            self._begin(self._early[0][0] if self._early else self._clock_s())

    def _since(self, at_s: float) -> float:
        assert self._origin_s is not None
        return at_s - self._origin_s

    def _note(self, at_s: float, events: list[Any]) -> None:
        if self._origin_s is None:
            self._early.append((at_s, events))
        else:
            self._recorder.note(at_s - self._origin_s, *events)
