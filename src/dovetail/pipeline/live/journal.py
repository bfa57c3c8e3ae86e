"""A live run as a journal: stages and links are devices, a microbatch is a work that visits them in turn.

A microbatch that a change of plan interrupts is rejected with the reason, and arrives again under the new plan. Clocks
of several machines agree only so far, and a killed process takes its last notes with it: what was seen is therefore
fitted to what must hold (one microbatch at a time on a device, nothing before it was ready), by as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.engine import Guard
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Header, Observer, TaskGraphRecord, Writer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.pipeline.live.jobs import RunOptions, hosts_at
from dovetail.pipeline.live.recorder import DATA_HOST, LayoutRecord, Recorder
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.words import WORDS

_INSTANT_S = 1e-9  # the least that anything takes
_STIMULI = (Finished, Failed, Arrived)
Stamped = tuple[float, Any]
Seen = tuple[dict[int, float], dict[int, float]]  # by microbatch: begun, done


class Spot(Struct, frozen=True):
    """A place on a microbatch's way. `senders` and `receivers` take turns; a stage has no receivers."""

    name: str
    type: str
    seconds: float  # as planned
    senders: list[str]
    receivers: list[str]

    def device(self, number: int) -> str:
        sender = self.senders[number % len(self.senders)]
        return f"{sender} to {self.receivers[number % len(self.receivers)]}" if self.receivers else sender

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(self.device(n) for n in range(len(self.senders) * max(len(self.receivers), 1))))


def way(plan: Plan) -> list[Spot]:
    """Stages and links in turn, from the data host and back to it."""
    groups = [hosts_at(stage) for stage in plan.stages]
    spots = [_link([DATA_HOST], groups[0], plan.enter_s)]
    for stage, here, after in zip(plan.stages, groups, [*groups[1:], [DATA_HOST]], strict=True):
        spots.append(Spot(" + ".join(here), stage.type, stage.compute_s * len(here), here, []))
        spots.append(_link(here, after, stage.send_s * min(len(here), len(after))))
    return spots


def _link(senders: list[str], receivers: list[str], seconds: float) -> Spot:
    return Spot(f"{senders[0]} to {receivers[0]}", "link", seconds, senders, receivers)


def shape_name(generation: int) -> str:
    return "microbatch" if generation == 1 else f"microbatch (plan {generation})"


def work_name(generation: int, number: int) -> str:
    """
    >>> work_name(1, 6), work_name(2, 6)
    ('microbatch 7', 'microbatch 7 (plan 2)')
    """
    return f"microbatch {number + 1}" + (f" (plan {generation})" if generation > 1 else "")


class History:
    """Turns what a recorder noted into the events of a run, layout by layout."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.ways = {layout.generation: way(layout.plan) for layout in recorder.layouts}
        kinds: dict[str, str] = {}
        for spots in self.ways.values():
            kinds.update({device: spot.type for spot in spots for device in spot.devices})
        self.devices = list(kinds)
        self._ids = {device: i for i, device in enumerate(kinds)}
        self.pool = Pool(
            tuple(Device(i, kind) for i, kind in enumerate(kinds.values())),
            {kind: DeviceType(kind) for kind in kinds.values()},
        )
        self.shapes = {shape_name(g): _shape(g, spots) for g, spots in self.ways.items()}
        self._free_s: dict[str, float] = {}
        self._out_s = 0.0  # when the last microbatch came out

    def steps(self) -> Iterator[tuple[int, float, list[Any]]]:
        """Steps as the engine would have made them: what was seen at an instant, then what was decided."""
        events = [event for layout in self._recorder.layouts for event in self._layout(layout)]
        events.sort(key=lambda stamped: stamped[0])
        for n, (t, group) in enumerate(groupby(events, key=lambda stamped: stamped[0]), start=1):
            here = sorted((event for _, event in group), key=_rank)
            yield n, t, here

    def _layout(self, layout: LayoutRecord) -> list[Stamped]:
        spots = self.ways[layout.generation]
        seen = [self.seen(layout.generation, spot) for spot in spots]
        fed = sorted(seen[0][0])
        done = [number for number in fed if number in seen[-1][1]]
        events: list[Stamped] = []
        latest_s = layout.end_s or 0.0
        for number in done:
            end_s = self._completed(layout, number, seen, events)
            latest_s = max(latest_s, end_s)
        for number in sorted(set(fed) - set(done)):
            self._interrupted(layout, number, seen, latest_s, events)
        return events

    def seen(self, generation: int, spot: Spot) -> Seen:
        """By microbatch, when it was begun at a place and when it was done there, as far as anyone noted it."""
        starts: dict[int, float] = {}
        ends: dict[int, float] = {}
        for host in spot.senders:
            for number, span in self._recorder.column(generation, host, "s" if spot.receivers else "c").index().items():
                starts[number] = span[0]
                if not spot.receivers:
                    ends[number] = span[1]
        for host in spot.receivers:
            for number, span in self._recorder.column(generation, host, "r").index().items():
                ends[number] = span[0]
        return starts, ends

    def _arrive(self, layout: LayoutRecord, number: int, t: float, events: list[Stamped]) -> str:
        spots, name = self.ways[layout.generation], work_name(layout.generation, number)
        sizes = tuple(spot.seconds for spot in spots)
        events.append((t, Arrived(name, shape_name(layout.generation), sizes)))
        return name

    def _start(self, spot: Spot, name: str, number: int, ready_s: float, t: float, events: list[Stamped]) -> None:
        devices = (self._ids[spot.device(number)],)
        events.append((t, Start(name, spot.name, spot.name, devices, ready_s, spot.seconds, "first in, first out")))

    def _completed(self, layout: LayoutRecord, number: int, seen: list[Seen], events: list[Stamped]) -> float:
        ready_s = seen[0][0][number]
        name = self._arrive(layout, number, ready_s, events)
        for i, (spot, (starts, ends)) in enumerate(zip(self.ways[layout.generation], seen, strict=True)):
            device = spot.device(number)
            start_s = max(starts.get(number, ready_s), ready_s, self._free_s.get(device, 0.0))
            end_s = ends.get(number)
            if end_s is None:  # its note was lost: it ended no later than what followed began
                later = (begun[number] for begun, _ in seen[i + 1 :] if number in begun)
                end_s = next(later, start_s)
            end_s = max(end_s, start_s + _INSTANT_S)
            if i + 1 == len(seen):
                end_s = self._out_s = max(end_s, self._out_s + _INSTANT_S)
            self._start(spot, name, number, ready_s, start_s, events)
            events.append((end_s, Finished(name, spot.name)))
            self._free_s[device] = ready_s = end_s
        events.append((ready_s, Complete(name)))
        return ready_s

    def _interrupted(
        self, layout: LayoutRecord, number: int, seen: list[Seen], halt_s: float, events: list[Stamped]
    ) -> None:
        ready_s = min(seen[0][0][number], halt_s)
        name = self._arrive(layout, number, ready_s, events)
        why = layout.why or "the run ended"
        for spot, (starts, ends) in zip(self.ways[layout.generation], seen, strict=True):
            device = spot.device(number)
            start_s = max(starts.get(number, halt_s), ready_s, self._free_s.get(device, 0.0))
            if start_s >= halt_s:
                break
            self._start(spot, name, number, ready_s, start_s, events)
            end_s = max(ends.get(number, halt_s), start_s + _INSTANT_S)
            self._free_s[device] = ready_s = min(end_s, halt_s)
            if end_s >= halt_s:
                events.append((halt_s, Failed(name, spot.name, why)))
                break
            events.append((end_s, Finished(name, spot.name)))
        events.append((halt_s, Reject(name, why)))


def _rank(event: Any) -> int:
    """What was seen comes before what was decided, and a device is freed before it is taken."""
    kinds = (Finished, Failed, Arrived, Complete, Reject, Start)
    return kinds.index(type(event))


def _shape(generation: int, spots: list[Spot]) -> TaskGraph:
    names = [spot.name for spot in spots]
    return TaskGraph(shape_name(generation), [Task(name, name) for name in names], pairwise(names))


def record(
    recorder: Recorder, options: RunOptions, path: Path | None, facts: dict[str, Any]
) -> tuple[History, Figures]:
    """The figures of a run from its journal, which is written if a path is given."""
    history = History(recorder)
    metrics = Metrics(history.pool)
    if path is None:
        _follow(history, [metrics])
        return history, metrics.figures()
    plans = [layout.plan for layout in recorder.layouts]
    header = Header(
        level="pipeline",
        words=WORDS,
        policy=plans[0].method if plans else "",
        options={"buffers": options.buffers},
        mode="live",
        pool=history.pool,
        graphs=tuple(map(TaskGraphRecord.of, history.shapes.values())),
        facts={"devices": history.devices, **facts},
    )
    with Writer(path, header) as writer:
        n, t = _follow(history, [metrics, writer])
        figures = metrics.figures()
        writer.end(n + 1, t, recount(figures))
    return history, figures


def _follow(history: History, observers: list[Observer]) -> tuple[int, float]:
    """Let observers see the run; a step that the engine would not allow is an error, and is not written."""
    guard = Guard(history.pool, history.shapes)
    n, t = 0, 0.0
    for n, t, events in history.steps():
        for event in events:
            if isinstance(event, _STIMULI):
                guard.see(event, t)
            else:
                guard.allow(event, t)
        for observer in observers:
            observer.step(n, t, events)
    return n, t
