"""A run of a batch, real or simulated, as a journal: every chunk is a work of one part on its device.

A device may hold several chunks at once and be at one of them: a chunk's time runs from the end of the one before, and
until then it waits. Nothing is noted during a run but the rows of its log; the journal is made of them at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.engine import Guard
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Header, TaskGraphRecord, Writer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.dispatch.bounds import peak_rate
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.policies.base import ChunkPolicy
from dovetail.dispatch.scheduler import ChunkRow
from dovetail.dispatch.words import WORDS

LIVE, SIMULATED = "live", "simulated"
PART = "call"
_FIRST, _AGAIN, _COPY = "chunk", "retry", "copy"
_LOST = "another device was first"
_INSTANT_S = 1e-9  # the least that anything takes
_SHAPES = {kind: TaskGraph(kind, [Task(PART, kind)], []) for kind in (_FIRST, _AGAIN, _COPY)}
Stamped = tuple[float, Any]


class RecordedRun(Struct, frozen=True, kw_only=True):
    """What a journal tells of. `items`: of the batch, None if nobody knew; `peaks`: items/s, 0 if not known."""

    policy: str
    mode: str
    devices: list[str]
    peaks: list[float]
    items: int | None
    rows: Sequence[ChunkRow]
    begun_s: float = 0.0
    ended_s: float
    options: dict[str, Any] = {}
    seed: int = 0
    facts: dict[str, Any] = {}


def write(path: Path, run: RecordedRun) -> Figures:
    """Write the journal of a run, and give its figures; what the engine would not allow is an error."""
    header = _header(run)
    shapes, metrics = header.build_graphs(), Metrics(header.pool)
    guard, steps = Guard(header.pool, shapes), list(_steps(run))
    for n, t, events in steps:
        for event in events:
            guard.see(event, t) if isinstance(event, Arrived | Finished | Failed) else guard.allow(event, t)
        metrics.step(n, t, events)
    figures = metrics.figures()
    with Writer(path, header) as writer:
        for step in steps:
            writer.step(*step)
        writer.end(len(steps) + 1, steps[-1][1] if steps else 0.0, recount(figures))
    return figures


def record_simulated(
    path: Path,
    devices: Sequence[SimDevice],
    items: int,
    policy: str,
    rows: Sequence[ChunkRow],
    makespan_s: float,
    options: Mapping[str, Any] | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Figures:
    """Write the journal of a simulated run."""
    run = RecordedRun(
        policy=policy,
        mode=SIMULATED,
        devices=[device.name for device in devices],
        peaks=[peak_rate(device.curve, items) / device.slower for device in devices],
        items=items,
        rows=rows,
        ended_s=makespan_s,
        options=dict(options or {}),
        seed=seed,
        facts={"noise": noise, "slower": {device.name: device.slower for device in devices}},
    )
    return write(path, run)


def name_of(policy: ChunkPolicy) -> str:
    """A policy's name in files.

    >>> from dovetail.dispatch.policies.finish_together import FinishTogether
    >>> name_of(FinishTogether())
    'finish_together'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(policy).__name__).lower()


def gaps(ranges: Sequence[tuple[int, int]], items: int) -> list[tuple[int, int]]:
    """What ranges leave out of so many items.

    >>> gaps([(4, 6), (0, 3)], 8)
    [(3, 4), (6, 8)]
    """
    found, at = [], 0
    for start, stop in sorted([*ranges, (items, items)]):
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    return found


def _header(run: RecordedRun) -> Header:
    done = [(row.start, row.stop) for row in run.rows if row.state == "done"]
    items = max((stop for _, stop in done), default=0) if run.items is None else run.items
    facts = {"devices": run.devices, "items": items, "missing": gaps(done, items), **run.facts}
    if run.peaks and all(run.peaks):
        facts["peaks"] = run.peaks
        bound_s = sum(stop - start for start, stop in done) / sum(run.peaks)
        exact = run.mode == SIMULATED and not run.facts.get("noise")
        if exact or bound_s <= run.ended_s - run.begun_s:  # by luck, or if it was measured low, a peak is surpassed
            facts["bound_makespan_s"] = bound_s
    return Header(
        level="dispatch",
        words=WORDS,
        policy=run.policy,
        options=run.options,
        mode=run.mode,
        seed=run.seed,
        pool=Pool(
            tuple(Device(i, name) for i, name in enumerate(run.devices)),
            {name: DeviceType(name) for name in run.devices},
        ),
        graphs=tuple(map(TaskGraphRecord.of, _SHAPES.values())),
        facts=facts,
    )


def _steps(run: RecordedRun) -> Iterator[tuple[int, float, list[Any]]]:
    """What happened at each instant, in the order in which the engine would have seen it."""
    events = sorted(_events(run), key=lambda stamped: (stamped[0], _rank(stamped[1])))
    for n, (t, group) in enumerate(groupby(events, key=lambda stamped: stamped[0]), start=1):
        yield n, t, [event for _, event in group]


def _rank(event: Any) -> int:
    """A device is freed before it is taken, and what was seen comes before what was decided."""
    return (Finished, Failed, Arrived, Complete, Reject, Start).index(type(event))


def _events(run: RecordedRun) -> Iterator[Stamped]:
    first_s = min((row.begun_s for row in run.rows), default=run.begun_s)
    zero_s = min(first_s, run.begun_s)  # a resumed run has rows of the one before
    end_s = run.ended_s - zero_s
    free_s = [0.0] * len(run.devices)
    names: dict[str, int] = {}
    began: dict[tuple[int, int], float] = {}
    for row in run.rows:
        began[row.start, row.stop] = min(row.begun_s, began.get((row.start, row.stop), row.begun_s))
    for row in sorted(run.rows, key=lambda row: (row.ended_s, row.begun_s)):
        taken_s = row.begun_s - zero_s
        start_s = max(taken_s, free_s[row.device])
        stop_s = max(row.ended_s - zero_s, start_s + _INSTANT_S)
        if row.state != "done":  # nobody waited for it
            stop_s = min(stop_s, max(end_s, start_s + _INSTANT_S))
            if start_s > end_s:
                continue
        free_s[row.device] = stop_s
        name = f"items {row.start} to {row.stop} on {run.devices[row.device]}"
        names[name] = names.get(name, 0) + 1
        name += f" ({names[name]})" if names[name] > 1 else ""
        copy = row.begun_s > began[row.start, row.stop]
        yield from _chunk(name, row, taken_s, start_s, stop_s, copy, run.policy)


def _chunk(
    name: str, row: ChunkRow, taken_s: float, start_s: float, stop_s: float, copy: bool, policy: str
) -> Iterator[Stamped]:
    kind, why = _FIRST, f"{policy}: {row.stop - row.start} items"
    if row.attempt > 1:
        kind, why = _AGAIN, "another device failed on it"
    elif copy:
        kind, why = _COPY, "the one that has it is late"
    facts = {"start": row.start, "stop": row.stop, "attempt": row.attempt}
    yield taken_s, Arrived(name, kind, (stop_s - start_s,), facts=facts)
    yield start_s, Start(name, PART, kind, (row.device,), taken_s, stop_s - start_s, why)
    if row.state == "done":
        yield stop_s, Finished(name, PART)
        yield stop_s, Complete(name)
    else:
        failure = _LOST if row.state == "lost" else row.state
        yield stop_s, Failed(name, PART, failure)
        yield stop_s, Reject(name, failure)
