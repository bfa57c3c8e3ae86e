"""Every figure of a run, computed from its journal and nothing else: follow a run, or feed a recorded one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Failed,
    Finished,
    Grew,
    Pause,
    Prepare,
    PrepareEnded,
    Reject,
    Resize,
    Resume,
    Settled,
    Start,
)
from dovetail.core.journal.preloads import Preloads
from dovetail.core.resources import Pool


class Spread(Struct, frozen=True):
    """A distribution in five numbers; percentiles interpolate linearly between order statistics."""

    mean: float
    median: float
    p99: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        import numpy as np  # what only asks for help need not wait for it

        x = np.asarray(values)
        median, p99 = np.percentile(x, [50, 99])
        return cls(float(x.mean()), float(median), float(p99), float(x.min()), float(x.max()))


class DeviceFigures(Struct, frozen=True):
    """A device counts as busy while it is set up or runs, whichever place in the window it has."""

    id: int
    executions: int
    busy_s: float
    setup_s: float
    utilisation: float


class Figures(Struct, frozen=True):
    """`task_wait_s` is the time that tasks were ready or paused, `service_s` the time that they ran; `device_s` counts
    every second of every device that was held."""

    arrived: int
    completed: int
    rejected: int
    late: int
    tasks: int
    failures: int
    makespan_s: float
    switches: int
    switch_time_s: float
    loads: int
    load_time_s: float
    response_s: Spread
    task_wait_s: Spread
    task_response_s: Spread
    devices: list[DeviceFigures]
    kinds: dict[str, int]
    service_s: Spread
    pauses: int = 0
    resizes: int = 0
    paused_s: float = 0.0
    grown: int = 0  # tasks that the ends of others added
    preloads: int = 0
    preloads_used: int = 0  # of which a task found something: it was resident there, or soon

    @property
    def device_s(self) -> float:
        return sum(d.busy_s for d in self.devices)

    @property
    def utilisation(self) -> float:
        return sum(d.utilisation for d in self.devices) / len(self.devices) if self.devices else 0.0


def recount(figures: Figures) -> dict[str, float]:
    """The figures under the names that a summary gives them."""
    names = ("arrived", "completed", "rejected", "late", "tasks", "failures", "makespan_s", "switches", "switch_time_s")
    response = figures.response_s
    return {
        **{name: getattr(figures, name) for name in (*names, "loads", "load_time_s", "utilisation")},
        "avg_request_s": response.mean,
        "median_request_s": response.median,
        "p99_request_s": response.p99,
        "min_request_s": response.min,
        "max_request_s": response.max,
        "avg_wait_s": figures.task_wait_s.mean,
        "p99_wait_s": figures.task_wait_s.p99,
    }


class _Running:
    """A task that was started: its devices since its last change (none: it is paused), and what went before."""

    __slots__ = ("began", "devices", "replaces", "service_s", "setup_s", "since", "start", "wait")

    def __init__(self, t: float, start: Start, devices: tuple[int, ...], wait: int) -> None:
        self.began, self.start, self.wait, self.replaces = t, start, wait, start.replaces
        self.since, self.devices, self.service_s = t, devices, 0.0
        self.setup_s: float | None = None  # as it was counted, if it was


class _Sharing:
    """Tasks that share devices: since when, with what set-up, and how many there are."""

    __slots__ = ("setup_s", "since", "tasks")

    def __init__(self, since: float, setup_s: float) -> None:
        self.since, self.setup_s, self.tasks = since, setup_s, 1


class Metrics:
    """Follows a run step by step. Keeps some bytes per job and task, and nothing of what is done with.

    Of a run that makes no sense it counts what does: an end of what never began is passed over.
    """

    def __init__(self, pool: Pool, *, from_first_arrival: bool = False) -> None:
        """The length of a run, and the use of devices, count from its first arrival or from 0 s."""
        self._arrived: dict[str, tuple[float, float | None]] = {}
        self._running: dict[tuple[str, str], _Running] = {}
        self._batches: dict[int, int] = {}  # how many tasks of each batch run
        self._shared: dict[tuple[int, ...], _Sharing] = {}  # devices with slots, while any is taken
        self._counts = {"arrived": 0, "completed": 0, "rejected": 0, "late": 0, "failures": 0}
        self._switches, self._switch_s, self._loads, self._load_s = 0, 0.0, 0, 0.0
        self._from_first_arrival = from_first_arrival
        self._first_s = inf
        self._ended_s = 0.0
        self._response, self._wait, self._task_response, self._service = (array("d") for _ in range(4))
        self._pauses, self._resizes, self._paused_s = 0, 0, 0.0
        self._busy: list[float] = []
        self._setup: list[float] = []
        self._executions: list[int] = []
        self._extend(len(pool))
        self._kinds: dict[str, int] = {}
        self._grown = self._preloads = self._used = 0
        self._ahead: Preloads[tuple[float, Prepare]] = Preloads()  # when they began

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is Start:
                self._start(t, event)
            elif kind is Finished:
                self._finish(t, event, True)
            elif kind is Arrived:
                self._counts["arrived"] += 1
                self._first_s = min(self._first_s, t)
                self._arrived[event.job] = (t, event.due_s)
            elif kind is Complete:
                self._complete(t, event)
            elif kind is Failed:
                self._counts["failures"] += 1
                self._finish(t, event, False)
            elif kind is Reject:
                self._counts["rejected"] += 1
                self._arrived.pop(event.job, None)
            elif kind is Pause or kind is Resume or kind is Resize:
                self._change(t, event)
            elif kind is Grew:
                self._grown += len(event.tasks)
            elif kind is Added:
                self._extend(len(event.devices))
            elif kind is Settled:
                self._settle(t, event)
            elif kind is Prepare or kind is PrepareEnded:
                self._prepare(t, event)

    def _extend(self, devices: int) -> None:
        self._busy += [0.0] * devices
        self._setup += [0.0] * devices
        self._executions += [0] * devices

    def _complete(self, t: float, event: Complete) -> None:
        self._ended_s = max(self._ended_s, t)
        self._counts["completed"] += 1
        if event.job in self._arrived:
            arrived, due = self._arrived.pop(event.job)
            self._counts["late"] += due is not None and t - arrived > due
            self._response.append(t - arrived)

    def _start(self, t: float, start: Start) -> None:
        run = self._running[start.job, start.task] = _Running(t, start, self._known(start.devices), len(self._wait))
        self._wait.append(t - start.ready_s)
        if start.batch:
            before = self._batches.get(start.batch, 0)
            self._batches[start.batch] = before + 1
            if before:
                return
        elif start.slots and self._joins(t, start):
            return
        if self._ahead and self._finds_prepared(t, run):
            self._set_up(run, start.setup_s)
        elif start.replaces is not None or start.setup_s:
            self._switches += start.replaces is not None
            self._loads += start.replaces is None
            self._set_up(run, start.setup_s)

    def _set_up(self, run: _Running, setup_s: float) -> None:
        """Count a set-up as so long, whatever it was counted as before."""
        more_s, run.setup_s = setup_s - (run.setup_s or 0.0), setup_s
        self._spend(more_s, run.replaces)

    def _spend(self, setup_s: float, replaces: str | None) -> None:
        if replaces is not None:
            self._switch_s += setup_s
        else:
            self._load_s += setup_s

    def _prepare(self, t: float, order: Prepare | PrepareEnded) -> None:
        if isinstance(order, PrepareEnded):
            ended = self._ahead.end(order)
            if ended is not None and not ended[1]:
                self._end_preparing(t, *ended[0])
            return
        self._preloads += 1
        self._switches += order.replaces is not None
        self._loads += order.replaces is None
        self._ahead.begin(order, (t, order))

    def _end_preparing(self, t: float, began: float, order: Prepare) -> None:
        """It is over, or a task goes on with it: its devices were set up so far."""
        self._spend(t - began, order.replaces)
        for device in self._known(order.devices):
            self._busy[device] += t - began
            self._setup[device] += t - began

    def _finds_prepared(self, t: float, run: _Running) -> bool:
        """Whether a task goes on with what was being prepared for its kind, and counts its rest."""
        found = self._ahead.find(run.start)
        if found is None:
            return False
        self._used += found.used
        if found.under_way:
            began, order = found.kept
            self._end_preparing(t, began, order)
            run.replaces = order.replaces
        return found.under_way

    def _settle(self, t: float, event: Settled) -> None:
        """A set-up was seen to be over: it took as long as it did."""
        run = self._running.get((event.job, event.task))
        if run is not None and run.setup_s is not None:
            self._set_up(run, t - run.began)
            if run.start.slots and run.start.devices in self._shared:
                self._shared[run.start.devices].setup_s = t - run.began

    def _joins(self, t: float, start: Start) -> bool:
        """Whether others share these devices already, and set them up."""
        sharing = self._shared.get(start.devices)
        if sharing is None:
            self._shared[start.devices] = _Sharing(t, start.setup_s)
            return False
        sharing.tasks += 1
        return True

    def _known(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """The devices that exist: of others nothing can be counted."""
        return devices if all(0 <= d < len(self._busy) for d in devices) else ()

    def _change(self, t: float, event: Pause | Resume | Resize) -> None:
        run = self._running.get((event.job, event.task))
        if run is None:
            return
        self._pass(t, run)
        run.devices = () if isinstance(event, Pause) else self._known(event.devices)
        self._pauses += isinstance(event, Pause)
        self._resizes += isinstance(event, Resize)

    def _pass(self, t: float, run: _Running) -> None:
        """Time passes for a task since its last change: its devices were busy, or it waited."""
        past_s, run.since = t - run.since, t
        if run.devices or not run.start.devices:
            run.service_s += past_s
        else:
            self._paused_s += past_s
            self._wait[run.wait] += past_s
        for device in run.devices:
            self._busy[device] += past_s

    def _finish(self, t: float, event: Finished | Failed, good: bool) -> None:
        run = self._running.pop((event.job, event.task), None)
        if run is None:
            return
        start = run.start
        self._ended_s = max(self._ended_s, t)
        if good:
            self._kinds[start.kind] = self._kinds.get(start.kind, 0) + 1
            self._task_response.append(t - start.ready_s)
        counts = not start.batch or self._leave(start.batch)  # the devices of a batch are busy once
        if start.slots and not start.batch:
            counts = False
            self._vacate(t, start.devices)
        if counts:
            self._pass(t, run)
        else:
            run.service_s = t - run.began
        self._service.append(run.service_s)
        setup_s = start.setup_s if run.setup_s is None else run.setup_s
        setup_s = setup_s if good else min(setup_s, t - run.began)
        for device in self._known(start.devices):
            self._executions[device] += good
            if counts:
                self._setup[device] += setup_s

    def _vacate(self, t: float, devices: tuple[int, ...]) -> None:
        """A slot is free; with the last one the devices are, which were busy once for all."""
        sharing = self._shared[devices]
        sharing.tasks -= 1
        if not sharing.tasks:
            del self._shared[devices]
            for device in self._known(devices):
                self._busy[device] += t - sharing.since
                self._setup[device] += min(sharing.setup_s, t - sharing.since)

    def _leave(self, batch: int) -> bool:
        """Whether the batch's last task has ended; until then its devices are busy."""
        left = self._batches.pop(batch, 1) - 1
        if left:
            self._batches[batch] = left
        return not left

    def figures(self) -> Figures:
        begins_s = self._first_s if self._from_first_arrival else 0.0
        span = max(self._ended_s - begins_s, 0.0)
        devices = [
            DeviceFigures(i, self._executions[i], busy, self._setup[i], busy / span if span else 0.0)
            for i, busy in enumerate(self._busy)
        ]
        return Figures(
            **self._counts,
            tasks=sum(self._kinds.values()),
            makespan_s=span,
            switches=self._switches,
            switch_time_s=self._switch_s,
            loads=self._loads,
            load_time_s=self._load_s,
            response_s=Spread.of(self._response),
            task_wait_s=Spread.of(self._wait),
            task_response_s=Spread.of(self._task_response),
            devices=devices,
            kinds=dict(sorted(self._kinds.items())),
            service_s=Spread.of(self._service),
            pauses=self._pauses,
            resizes=self._resizes,
            paused_s=self._paused_s,
            grown=self._grown,
            preloads=self._preloads,
            preloads_used=self._used,
        )
