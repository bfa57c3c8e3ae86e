"""From requests to figures: a workload on the cores of a machine, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Asked
from dovetail.core.executor import SimExecutor
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.metrics import Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.host.bounds import makespan_bound_s
from dovetail.host.curves import curve
from dovetail.host.inputs.requests import Request
from dovetail.host.metrics import ProgramFigures, Programs, Totals
from dovetail.host.options import HostOptions
from dovetail.host.program import CORE, Ask, program_graph
from dovetail.host.scheduler import make_scheduler
from dovetail.host.words import WORDS

DEFAULT_WORK = 1000.0  # core-seconds


class Workload(Struct, frozen=True):
    """What arrives, and what is asked for later, in order of time; and the graphs of it."""

    cores: int
    arrivals: tuple[tuple[float, Arrived | Asked], ...]
    graphs: dict[str, TaskGraph]

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        cores: int,
        work: float | None = None,
        curves: Mapping[str, str] | None = None,
        malleable: bool = True,
    ) -> Workload:
        """`work` is for programs of which the file says nothing, in core-seconds; `curves` is by image, "" for all."""
        if cores < 1:
            raise InputError(f"--cores: expected at least 1, found {cores}")
        if work is not None and not 0 < work < float("inf"):
            raise InputError(f"--work: expected core-seconds, found {work}")
        arrivals: list[tuple[float, Arrived | Asked]] = []
        known = curves or {}
        for request in requests:
            if request.kind == "update":
                arrivals.append((request.at_s, Asked(request.id, "resize", request.threads)))
                continue
            text = known.get(request.image, known.get("", "linear"))
            size = next(w for w in (request.work, work, curve(text).base_s, DEFAULT_WORK) if w is not None)
            ask = Ask(request.threads, priority=request.priority, curve=text, malleable=malleable)
            facts = msgspec.to_builtins(ask)
            arrivals.append((request.at_s, Arrived(request.id, request.image or "program", (size,), facts=facts)))
        images = {event.of for _, event in arrivals if isinstance(event, Arrived)}
        return cls(cores, tuple(arrivals), {image: program_graph(image, cores) for image in sorted(images)})


class HostOutcome(Struct, frozen=True):
    """What a run came to; `bound_makespan_s` is for the programs that were completed."""

    totals: Totals
    bound_makespan_s: float
    rows: list[ProgramFigures]
    steps: int
    end_s: float


def machine(cores: int) -> Pool:
    """A machine of so many cores."""
    return Pool(tuple(Device(i, CORE) for i in range(cores)), {CORE: DeviceType(CORE)})


def header(cores: int, graphs: Mapping[str, TaskGraph], options: HostOptions, mode: str = "", **facts: Any) -> Header:
    """A journal's first line; the mode is "live" where times are measured."""
    return Header(
        level="host",
        words=WORDS,
        policy=options.title,
        options=options.as_dict(),
        mode=mode,
        pool=machine(cores),
        graphs=tuple(TaskGraphRecord.of(graph) for graph in graphs.values()),
        facts={"cores": cores, **facts},
    )


def run(
    workload: Workload,
    options: HostOptions,
    observers: Sequence[Observer] = (),
    executor: SimExecutor | None = None,
) -> HostOutcome:
    """Simulate a workload."""
    programs = Programs(workload.cores)
    steps, end_s = simulate(
        make_scheduler(workload.cores, workload.graphs, options),
        machine(workload.cores),
        workload.graphs,
        workload.arrivals,
        executor or SimExecutor(),
        [programs, *observers],
    )
    done = {name for name, row in programs.rows.items() if row.status == "completed"}
    completed = [(t, event) for t, event in workload.arrivals if isinstance(event, Arrived) and event.job in done]
    bound_s = makespan_bound_s(completed, workload.cores)
    rows = [row.figures() for row in programs.rows.values()]
    return HostOutcome(programs.totals(), bound_s, rows, steps, end_s)


def record(
    workload: Workload, options: HostOptions, journal: Path | None, observers: Sequence[Observer] = ()
) -> HostOutcome:
    """Simulate a workload, and write its journal if a path is given."""
    first = header(workload.cores, workload.graphs, options)
    with Writer(journal, first) if journal is not None else nullcontext() as writer:
        figures = Metrics(first.pool)
        extra: list[Observer] = [figures, writer] if writer is not None else []
        outcome = run(workload, options, [*observers, *extra])
        if writer is not None:
            summary = recount(figures.figures()) | outcome.totals.as_dict()
            summary["bound_makespan_s"] = outcome.bound_makespan_s
            writer.end(outcome.steps + 1, outcome.end_s, summary)
    return outcome
