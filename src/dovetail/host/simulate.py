"""From requests to figures: a workload on the cores of a machine, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.core.files.document import as_path
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.core.findings import Report
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.loop.engine import simulate as run_engine
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.loop.replay import Agreement, replay_journal
from dovetail.core.metrics import Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.results.run import JournalFile, JournalPath, Run
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.host.bounds import makespan_bound_s
from dovetail.host.check import check_journal
from dovetail.host.export import run_files
from dovetail.host.inputs.parameters import Parameters
from dovetail.host.inputs.workload import Workload
from dovetail.host.metrics import ProgramFigures, Programs, Totals
from dovetail.host.options import HostOptions, Scheduling, host_options
from dovetail.host.policies import Assignment, Planning, pick
from dovetail.host.program import CORE
from dovetail.host.scheduler import Policies, make_scheduler, options_of
from dovetail.host.words import WORDS


class HostOutcome(Struct, frozen=True):
    """What a run came to; `bound_makespan_s` is for the programs that were completed."""

    programs: Programs
    bound_makespan_s: float
    steps: int
    end_s: float

    @property
    def totals(self) -> Totals:
        return self.programs.totals()

    @property
    def rows(self) -> list[ProgramFigures]:
        return [row.figures() for row in self.programs.rows.values()]


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
    policies: Policies | None = None,
) -> HostOutcome:
    """Simulate a workload; `policies` are those of the options, unless they are a user's own."""
    programs = Programs(workload.cores)
    steps, end_s = run_engine(
        make_scheduler(workload.cores, workload.graphs, options, policies),
        machine(workload.cores),
        workload.graphs,
        workload.arrivals,
        executor or SimExecutor(),
        [programs, *observers],
    )
    done = {name for name, row in programs.rows.items() if row.status == "completed"}
    completed = [(t, event) for t, event in workload.arrivals if isinstance(event, Arrived) and event.job in done]
    bound_s = makespan_bound_s(completed, workload.cores)
    return HostOutcome(programs, bound_s, steps, end_s)


class HostRun(Run):
    """A run of programs on the cores of a machine, simulated or live."""

    _policies: Policies | None = None  # a user's own, which no name in the journal leads to
    _inputs: tuple[Path, ...] = ()  # files that it was made of

    @classmethod
    def read(cls, journal: str | PathLike[str]) -> HostRun:
        """A recorded run of this level."""
        found = cls(journal)
        if found.header.level != "host":
            raise InputError(f"{found.journal}: is of the {found.header.level} level, expected host")
        return found

    @cached_property
    def _followed(self) -> Programs:
        found = Programs(len(self.header.pool))
        for step in self._reader.steps():
            found.step(*step)
        return found

    @property
    def programs(self) -> list[ProgramFigures]:
        """Every program: when it came, ran and ended, how long it waited, what it had of the cores."""
        return [row.figures() for row in self._followed.rows.values()]

    @property
    def policy(self) -> str:
        """Planning and assignment in a word."""
        return self.header.policy if self._file.path is not None else str(self.metrics["policy"])

    def check(self, **against: Any) -> Report:
        return super().check(**against) if self._policies is None else check_journal(self.journal, self._policies)

    def replay(self) -> Agreement:
        if self._policies is None:
            return super().replay()
        header = self.header
        cores, graphs = len(header.pool), header.build_graphs()
        return replay_journal(self.journal, make_scheduler(cores, graphs, options_of(header), self._policies))

    def export(self, folder: str | PathLike[str], model: str = "", version: str = "malleable") -> list[Path]:
        """Write the older scheduler's files: gantt_events.txt, scheduler_events.txt and others. `model` and `version`
        are labels in them."""
        place, header = as_path(folder, "folder"), self.header
        files = run_files(self._followed, options_of(header), len(header.pool), model, version)
        written = {place / name: text for name, text in files.items()}
        refuse_overwrite(list(written), [self.journal, *self._inputs])
        for path, text in written.items():
            atomic_write(path, text)
        return list(written)


def simulate(
    workload: Workload,
    plan: str | Planning | type[Planning] | None = None,
    assign: str | Assignment | type[Assignment] | None = None,
    *,
    journal: JournalPath = None,
    **options: Unpack[Scheduling],
) -> HostRun:
    """Simulate programs on the cores of a machine.

    >>> from dovetail.host import load, simulate
    >>> workload = load([{"threads": 8, "work": 960}, {"threads": 8, "work": 960}], cores=16)
    >>> run = simulate(workload, "fcfs", "max_prop")
    >>> run
    <HostRun fcfs+max_prop, 2 of 2 completed, makespan 120 s (0.0 % above the bound)>
    >>> [(program.program, program.turnaround_s) for program in run.programs], run.check().valid
    ([('0', 120.0), ('1', 120.0)], True)

    Parameters
    ----------
    workload
        What `load` gives.
    plan
        Who goes first: fcfs, priority, rr or another from `policies`, file.py:name, or a planning of your own; by
        default as the workload's parameters say, else fcfs.
    assign
        How many cores each gets: strict, max_prop, always_attend, efficient, likewise; by default strict.
    journal
        Write the journal here; without it to a temporary file, which goes with the run; False: nowhere.
    options
        preemptive, victim, quantum, age_step, overtaking, first, shrink, min_cores, max_cores, efficiency, memory_mib,
        gpus ("a100:2:80g,l4:1:24g") and profile: as the options of `dovetail host simulate`.
    """
    if not isinstance(workload, Workload):
        raise InputError(f"workload: expected what load gives, found {workload!r}")
    chosen, policies = chosen_policies(workload.parameters, plan, assign, options)
    return record(workload, chosen, journal, policies)


def chosen_policies(
    parameters: Parameters, plan: Any, assign: Any, given: Scheduling
) -> tuple[HostOptions, Policies | None]:
    """The options with the names of the policies, and the policies themselves if they are a user's own."""
    if unknown := given.keys() - Scheduling.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    plan, assign = (
        parameters.policy if plan is None else plan,
        parameters.assignment_policy if assign is None else assign,
    )
    (plan_name, planning), (assign_name, assignment) = pick(plan, Planning), pick(assign, Assignment)
    most = parameters.max_resources_per_container if assignment.exceeds else None
    limit = {} if most is None or given.get("max_cores") is not None else {"max_cores": most}
    options = host_options({**given, **limit, "plan": plan_name, "assign": assign_name})
    named = isinstance(plan, str) and isinstance(assign, str)
    return options, None if named else Policies(planning, assignment)


def record(
    workload: Workload,
    options: HostOptions,
    journal: JournalPath = None,
    policies: Policies | None = None,
) -> HostRun:
    """Simulate a workload, and write its journal."""
    file = JournalFile(journal)
    if file.path is not None:
        refuse_overwrite([file.path], workload.files)
    first = header(workload.cores, workload.graphs, options)
    figures = Metrics(first.pool)
    with Writer(file.path, first) if file.path is not None else nullcontext() as writer:
        extra: list[Observer] = [figures, writer] if writer is not None else []
        outcome = run(workload, options, extra, policies=policies)
        told: dict[str, Any] = outcome.totals.as_dict() | {"bound_makespan_s": outcome.bound_makespan_s}
        if writer is not None:
            writer.end(outcome.steps + 1, outcome.end_s, recount(figures.figures()) | told)
    rows = msgspec.to_builtins(outcome.rows)
    found = HostRun(file, {"policy": options.title, "cores": workload.cores} | told | {"programs": rows})
    found._followed, found._policies, found._inputs = outcome.programs, policies, workload.files
    return found
