"""The level's own rules over a run: order, turns of devices, buffers, the hardware, and every microbatch once.

They hold for simulations and for real runs. In a real run times are measured, and only what they were to be is held to
the plan; a microbatch that a change of plan interrupted is sent again as another job: its number counts, not its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import Added, Arrived, Complete, Decided, Finished, Observed, Start
from dovetail.core.files.document import explain
from dovetail.core.findings import Findings, Report, check_bounds, close
from dovetail.core.journal import Header, Reader
from dovetail.core.metrics import recount
from dovetail.core.tasks import TaskGraphRecord
from dovetail.pipeline.bounds import makespan_s
from dovetail.pipeline.check.plan import plan_faults, same
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.route import LINK, Route, connected_devices

CODES = core.CODES | {
    "microbatch": "a job without the number of a microbatch that was to be fed",
    "fifo": "a microbatch that overtook another",
    "turn": "a microbatch on a device whose turn it was not",
    "buffer": "more microbatches waiting than there are buffers",
    "seconds": "a stage or link that was to take another time than the plan says",
    "delivery": "a microbatch that came out twice, or before an earlier one",
    "lost": "a microbatch that was to be fed and never came out",
    "hardware": "a host that ran on something else than the header says",
    "name": "a device that is called otherwise than the plan and its route say",
    "plan": "a plan in the header whose figures do not follow from its stages, or those not from its problem",
    "route": "stations, lanes, types or facts in the header that are not those of its plan",
}
LIVE = "live"
_MEASURED = "times were measured: they were not compared with the plan"


class PipelineFacts(Struct):
    """What the level adds to a header: the plan, the names of devices, those that take turns at each stage and link,
    and in a real run what carries each host."""

    plan: Plan | None = None
    model: str | None = None
    asked: int | None = None
    devices: list[str] = []
    lanes: dict[str, list[int]] = {}
    hosts: dict[str, Carrier] = {}
    bound_makespan_s: float | None = None


class _Joined(Struct):
    """What an observation of the kind `device` says."""

    host: str
    device: str


class _Devices(Struct):
    """What an observation of the kind `devices` says: who takes turns in another plan's graph, and what those that are
    new are called."""

    graph: str
    lanes: dict[str, list[int]]
    devices: list[str] = []


class _AssignedStage(Struct):
    hosts: Annotated[list[str], msgspec.Meta(min_length=1)]


class _Microbatch(Struct):
    number: int
    of: str
    sizes: tuple[float, ...]


class PipelineRules:
    """Follows a run that the core's checker finds possible."""

    def __init__(self, header: Header, facts: PipelineFacts, faults: Findings) -> None:
        self._faults, self._facts = faults, facts
        self._live = header.mode == LIVE
        self._graphs = header.build_graphs()
        self._lanes = dict.fromkeys(self._graphs, facts.lanes)
        self._types = [device.type for device in header.pool.devices]
        self._total = _count(header, "microbatches")
        self._buffers = None if self._live else _count(header, "buffers")
        self._open: dict[str, _Microbatch] = {}
        self._sizes: tuple[float, ...] = ()
        self._first = header.graphs[0].name if header.graphs else ""  # of the header's plan; others come with theirs
        self._planned_s: tuple[float, ...] | None = None
        self._last: dict[tuple[str, str, int], int] = {}  # number that started last, by graph, task and device
        self._waiting: dict[tuple[str, int], int] = {}  # how many wait, by graph and task
        self._fed: set[int] = set()
        self._delivered: set[int] = set()
        self._latest = 0
        self._names = list(facts.devices)
        self._assigned: list[list[str]] = []  # the hosts of each stage in the newest plan
        self.ended_early = ""
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrived: self._arrived,
            Start: self._started,
            Finished: self._finished,
            Complete: self._completed,
            Observed: self._observed,
            Decided: self._decided,
        }
        self._check_devices()
        self._check_plan(header)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if (handle := self._handlers.get(type(event))) is not None:
                handle(event)
            elif isinstance(event, Added):
                self._graphs |= {record.name: record.build() for record in event.graphs}
        if self._buffers is not None:
            self._check_buffers(self._buffers)

    # --- microbatches -----------------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> None:
        number = event.facts.get("number")
        most = self._total or number
        if type(number) is not int or not 1 <= number <= (most or 0):
            expected = f"a number from 1 to {self._total}" if self._total else "a number from 1 on"
            self._faults.add("microbatch", event.job, f"found {number!r}, expected {expected}")
        elif event.of in self._graphs:
            self._fed.add(number)
            self._sizes = event.sizes
            self._open[event.job] = _Microbatch(number, event.of, event.sizes)
            if event.of == self._first and self._planned_s is not None:
                self._check_seconds(event.job, event.sizes, self._planned_s)

    def _check_seconds(self, job: str, found: tuple[float, ...], expected: tuple[float, ...]) -> None:
        for i, (took_s, planned_s) in enumerate(zip_longest(found, expected)):
            if not same(took_s, planned_s):
                self._faults.add("seconds", f"{job}, station {i + 1}", f"found {took_s} s, the plan says {planned_s} s")
                return

    def _started(self, start: Start) -> None:
        sent = self._open.get(start.job)
        i = None if sent is None else self._graphs[sent.of].index.get(start.task)
        if sent is None or i is None:
            return  # the core has said so
        who = f"{start.job}/{start.task}"
        # Real replicas of a stage begin when they can; each of them keeps the order.
        key = (sent.of, start.task, start.devices[0] if self._live and start.devices else -1)
        before = self._last.get(key, 0)
        if sent.number <= before:
            self._faults.add("fifo", who, f"started after microbatch {before}")
        self._last[key] = max(sent.number, before)
        if i:
            self._waiting[sent.of, i] = self._waiting.get((sent.of, i), 0) - 1
        if lanes := self._lanes.get(sent.of, {}).get(start.task):
            expected = lanes[(sent.number - 1) % len(lanes)]
            if start.devices != (expected,):
                self._faults.add("turn", who, f"found device {list(start.devices)}, expected {expected}")
        if i < len(sent.sizes) and not same(start.run_s, sent.sizes[i]):
            self._faults.add("seconds", who, f"found {start.run_s} s, expected {sent.sizes[i]} s")

    def _finished(self, event: Finished) -> None:
        sent = self._open.get(event.job)
        i = None if sent is None else self._graphs[sent.of].index.get(event.task)
        if sent is not None and i is not None:
            self._waiting[sent.of, i + 1] = self._waiting.get((sent.of, i + 1), 0) + 1

    def _check_buffers(self, buffers: int) -> None:
        for (of, i), waiting in self._waiting.items():
            tasks, lanes = self._graphs[of].tasks, self._lanes.get(of, {})
            if i >= len(tasks) or waiting <= buffers:
                continue
            owner = tasks[i] if self._is_stage(lanes.get(tasks[i].name, ())) else tasks[i - 1]
            limit = buffers * max(len(lanes.get(owner.name, ())), 1)  # buffers belong to stages
            if waiting > limit:
                self._faults.add("buffer", tasks[i].name, f"{waiting} microbatches wait, expected at most {limit}")

    def _is_stage(self, lanes: Sequence[int]) -> bool:
        return any(0 <= device < len(self._types) and self._types[device] != LINK for device in lanes)

    def _completed(self, event: Complete) -> None:
        sent = self._open.pop(event.job, None)
        if sent is None:
            return
        if sent.number in self._delivered:
            self._faults.add("delivery", event.job, "came out before")
        elif sent.number < self._latest:
            self._faults.add("delivery", event.job, f"came out after microbatch {self._latest}")
        self._delivered.add(sent.number)
        self._latest = max(self._latest, sent.number)

    # --- a real run -------------------------------------------------------------------------------

    def _check_devices(self) -> None:
        """What devices are called, and of which type they are, follows from the plan and what carries its hosts."""
        for device, kind in zip(self._facts.devices, self._types, strict=False):
            carrier = self._facts.hosts.get(device)
            if carrier is not None and kind != carrier.type:
                self._faults.add("hardware", device, f"is called {kind!r}, expected {carrier.type!r}")
        plan = self._facts.plan
        if plan is None or not plan.stages:
            return
        route = Route.connected(plan, {}) if self._live else Route.planned(plan)
        for i, (found, expected) in enumerate(zip_longest(self._facts.devices, route.devices)):
            if found != expected:
                self._faults.add("name", f"device {i}", f"found {found!r}, expected {expected!r}")

    def _check_plan(self, header: Header) -> None:
        """The plan's own figures, and what the header says besides that follows from it."""
        plan = self._facts.plan
        if plan is None:
            return
        for where, message in plan_faults(plan):
            self._faults.add("plan", where, message)
        if not plan.stages or len(set(plan.hosts)) < len(plan.hosts):
            return  # no route leads through such stages
        carried = {host: carrier.type for host, carrier in self._facts.hosts.items()}
        route = Route.connected(plan, carried) if self._live else Route.planned(plan)
        self._planned_s = route.seconds
        graph = route.graph(self._first)
        lanes = {station.name: turns for station, turns in zip(route.stations, route.lanes, strict=True)}
        asked = header.options.get("microbatches")
        for name, found, expected in (
            ("graphs", header.graphs[0] if header.graphs else None, TaskGraphRecord.of(graph)),
            ("facts.lanes", self._facts.lanes, lanes),
            ("pool", self._types, [device.type for device in route.pool.devices]),
            ("policy", header.policy, plan.method),
            ("facts.model", self._facts.model, plan.model),
            ("facts.asked", self._facts.asked, asked),
        ):
            if found != expected:
                self._faults.add("route", name, f"found {found}, expected {expected}")

    def _observed(self, event: Observed) -> None:
        try:
            if event.what == "device":
                self._joined(msgspec.convert(event.facts, _Joined))
            elif event.what == "devices":
                added = msgspec.convert(event.facts, _Devices)
                self._lanes[added.graph] = added.lanes
                self._added(added)
        except msgspec.ValidationError as error:
            self._faults.add("hardware", event.what, f"cannot be read: {error}")

    def _joined(self, joined: _Joined) -> None:
        carrier = self._facts.hosts.get(joined.host)
        if carrier is None:
            self._faults.add("hardware", joined.host, f"ran on {joined.device}; the header does not name it")
        elif carrier.name != joined.device:
            self._faults.add("hardware", joined.host, f"ran on {joined.device!r}, expected {carrier.name!r}")

    def _added(self, added: _Devices) -> None:
        new = [name for name in connected_devices(self._assigned) if name not in self._names]
        if self._assigned and added.devices != new:
            self._faults.add("name", added.graph, f"found {added.devices}, expected {new}")
        self._names += added.devices

    def _decided(self, event: Decided) -> None:
        if event.what == "assign":
            with suppress(msgspec.ValidationError):  # then nothing can be said of names
                stages = msgspec.convert(event.facts.get("stages"), list[_AssignedStage])
                self._assigned = [stage.hosts for stage in stages]
        if event.what == "finish" and event.facts.get("complete") is False:
            self.ended_early = event.why

    # --- the end ----------------------------------------------------------------------------------

    def least_s(self) -> float | None:
        """No makespan of a simulation is below this."""
        if self._live or not self._sizes or len(self._graphs) != 1:
            return None
        ((name, graph),) = self._graphs.items()
        lanes = [max(1, len(self._lanes[name].get(task.name, ()))) for task in graph.tasks]
        return makespan_s(self._sizes, lanes, len(self._fed)) if len(lanes) == len(self._sizes) else None

    def finish(self, ended_s: float) -> None:
        """What only the end can tell."""
        self._faults.nowhere()
        if (least_s := self.least_s()) is not None:
            check_bounds({"bound_makespan_s": least_s}, {"makespan_s": ended_s}, self._faults)
            claimed_s = self._facts.bound_makespan_s
            if (
                claimed_s is not None
                and len(self._fed) == (self._total or len(self._fed))
                and not close(claimed_s, least_s)
            ):
                self._faults.add("bound", "bound_makespan_s", f"found {claimed_s}, expected {least_s}")
        wanted = set(range(1, self._total + 1)) if self._total else self._fed
        if not self.ended_early:
            for number in sorted(wanted - self._delivered):
                what = "was fed" if number in self._fed else "was to be fed"
                self._faults.add("lost", f"microbatch {number}", f"{what}, but never came out")


_MOST = 10**8  # a count beyond it is no count of microbatches


def _count(header: Header, option: str) -> int | None:
    value = header.options.get(option)
    return value if type(value) is int and 1 <= value <= _MOST else None


def check_journal(path: Path) -> Report:
    """Check a journal of this level."""
    reader, faults = Reader(path), Findings()
    header = core.check_header(reader.header, path)
    try:
        facts = msgspec.convert(header.facts, PipelineFacts)
    except msgspec.ValidationError as error:
        keys, message = explain(error)
        raise InputError(f"{path}:1: facts.{'.'.join(map(str, keys))}: {message}") from None
    rules, live = PipelineRules(header, facts, faults), header.mode == LIVE
    figures = core.check_journal(reader, faults, [rules], exact=not live)
    if not faults.interrupted:
        rules.finish(figures.makespan_s)
    counted = recount(figures)
    if (least_s := rules.least_s() or facts.bound_makespan_s) is not None:
        counted["bound_makespan_s"] = least_s
    notes = [_MEASURED, *_carried(facts)] if live else []
    if rules.ended_early:
        notes.append(f"the run ended early: {rules.ended_early}")
    return Report.of(str(path), "journal", faults, notes, counted)


def _carried(facts: PipelineFacts) -> list[str]:
    """Which hosts ran on other hardware than the plan was made for."""
    others = {host: c for host, c in facts.hosts.items() if host in facts.devices and c.how != "matched"}
    return [f"{host} ran on {carrier.hardware}, planned as {carrier.planned}" for host, carrier in others.items()]
