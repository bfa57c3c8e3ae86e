"""The host scheduler: a state machine that follows programs and cores and lets policies choose. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any, NamedTuple

from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Defer,
    Failed,
    Finished,
    Instruction,
    Measured,
    Pause,
    Reject,
    Resize,
    Resume,
    Settled,
    Start,
    Stimulus,
    Stop,
    WakeAt,
)
from dovetail.core.journal import Header, Reader
from dovetail.core.loop.engine import Scheduler
from dovetail.core.resources import devices_text
from dovetail.core.tasks import TaskGraph
from dovetail.host.admission import FAR, Admission
from dovetail.host.compat.scheduler import LegacyScheduler
from dovetail.host.cores import choose
from dovetail.host.curves import curve
from dovetail.host.gpus import GpuLedger, never_fits
from dovetail.host.options import HostOptions, host_options
from dovetail.host.policies import Assignment, Planning, make
from dovetail.host.policies.base import MachineView
from dovetail.host.policies.base import count as count_of
from dovetail.host.program import PAUSED, RUNNING, TASK, WAITING, Ask, Program, Stopping, group_limit
from dovetail.host.waiting import WaitingPrograms, waits_for


class Policies(NamedTuple):
    """Who goes first, and how many cores each gets."""

    plan: Planning
    assign: Assignment

    @classmethod
    def named(cls, options: HostOptions) -> Policies:
        return cls(make(options.plan, Planning), make(options.assign, Assignment))


class HostScheduler:
    """Programs are jobs of one task. What they ask for stands in the facts of their arrival (`Ask`).

    What users ask for later comes as `Asked`: "pause", "resume", "resize", "priority", "cancel", "requeue", "begin" (at
    another time) or, of one that waits, "edit" (to what the facts say), and of nobody "group" (how many of one may run
    at once); how fast a running one was seen to be as `Measured`.
    """

    def __init__(
        self,
        cores: int,
        graphs: Mapping[str, TaskGraph],
        options: HostOptions | None = None,
        policies: Policies | None = None,
    ) -> None:
        self.options = options or HostOptions()
        self._graphs = graphs
        self._plan, self._assign = policies or Policies.named(self.options)
        self.view = MachineView(cores, self.options)
        self.view.shrinks = self._assign.shrinks if self.options.shrink is None else self.options.shrink
        self.programs: dict[str, Program] = {}
        self._waiting = WaitingPrograms()
        self._running: dict[str, Program] = {}  # in the order of their starts
        self._begun: dict[str, Program] = {}  # these, and those that are paused or being stopped
        self._done: set[str] = set()
        self._gone: set[str] = set()
        self._lost: list[str] = []  # who was rejected and may have been waited for
        self._seq, self._places = count(), count()
        self._wakes: set[float] = set()
        self._next_begin_s = inf  # of those that wait for their time
        self._out: list[Instruction] = []

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        self._out = []
        if stimuli and all(type(stimulus) is Settled for stimulus in stimuli):
            return self._out  # what was decided is so: nothing to decide about
        for stimulus in stimuli:
            if type(stimulus) is Finished:
                self._finished(stimulus.job)
            elif type(stimulus) is Failed:
                self._failed(stimulus, now)
            elif type(stimulus) is Arrived:
                self._arrived(stimulus, now)
            elif (said := group_limit(stimulus)) is not None:
                self._limit(*said)
            elif type(stimulus) is Asked:
                self._asked(stimulus, now)
            elif type(stimulus) is Measured and stimulus.job in self.programs:
                self.programs[stimulus.job].learn(stimulus.width, stimulus.rate, now)
        self._reject_orphans()
        self._stop_overdue(now)
        self._decide(now)
        return self._out

    def close(self, now: float) -> list[Instruction]:
        """What is left can never run: its user paused it, or it waits for something that will not come."""
        out: list[Instruction] = []
        for program in self.programs.values():
            why = "its user paused it and never resumed it" if program.held else "nothing lets it start any more"
            out.append(Reject(program.id, why))
        self.programs.clear()
        return out

    # --- what happened ----------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float) -> None:
        problem, ask = event.fault, None
        if not problem:
            try:
                ask = Ask.of(event.job, event.facts)
                speed_up = curve(ask.curve)
            except InputError as error:
                problem = str(error)
        if ask is None or problem:
            self._reject(event.job, problem)
            return
        kind = self._graphs[event.of].tasks[0].kind
        program = Program(event.job, kind, next(self._seq), ask, event.sizes[0], speed_up, now)
        self._bound(program, ask.cores)
        if ask.parallel is not None:  # which counts, whatever comes of the program
            self._limit(ask.group, ask.parallel)
        if problem := self._lost_before(ask) or self._never_fits(program):
            self._reject(event.job, problem)
            return
        self.programs[event.job] = program
        self._enqueue(program, now)

    def _lost_before(self, ask: Ask) -> str:
        """Why what it waits for can never come, or nothing."""
        for other in (*ask.after, *ask.after_any):
            if other not in self.programs and other not in self._done:
                if other not in self._gone:
                    return f"waits for {other}, which is not known"
                if other in ask.after:
                    return f"waits for {other}, which was not completed"
        return ""

    def _never_fits(self, program: Program) -> str:
        """Why this machine can never run it, or nothing."""
        total, need = self.options.memory_mib, program.ask.memory_mib
        if program.least > self.view.cores or self._too_wide(program):
            least = program.asked if self._too_wide(program) else program.least
            return f"needs {count_of(least)}, the machine has {self.view.cores}"
        if total is not None and need > total:
            return f"needs {need} MiB, the machine has {total} MiB"
        return never_fits(self.options.gpus, program.ask)

    def _limit(self, group: str, parallel: int | None) -> None:
        """So many of a group may run at once from now on, or all; who runs goes on."""
        if parallel is None:
            self.view.limits.pop(group, None)
        else:
            self.view.limits[group] = parallel

    def _bound(self, program: Program, asked: int) -> None:
        program.bound(asked, self.view.cores, self.options.min_cores, self.options.max_cores)

    def _too_wide(self, program: Program) -> bool:
        """Whether it insists on more cores than there are."""
        probe = MachineView(self.view.cores, self.options)
        return program.asked > self.view.cores and not self._assign.take(program, probe)

    def _finished(self, job: str) -> None:
        program = self._leave(job)
        if program is not None:
            self._forget(program)
            self._done.add(job)
            self._out.append(Complete(job))

    def _failed(self, event: Failed, now: float) -> None:
        program = self._leave(event.job)
        if program is None:
            return
        requeued = program.stopping == "requeue"
        program.attempts += not requeued
        again = requeued or (not program.stopping and program.attempts <= program.ask.retries)
        if not again:
            self._forget(program)
            tries = f" {program.attempts} times" if program.ask.retries else ""
            why = program.stop_why or f"failed{tries}: {event.why}"
            self._reject(event.job, why, cancelled=program.stopping == "cancel")
            return
        program.left, program.service_s, program.had = program.size, 0.0, ()
        program.stopping = program.stop_why = ""
        program.state, program.ready_s = WAITING, now
        if not program.ask.malleable:
            self._bound(program, program.ask.cores)
        self._enqueue(program, now)

    def _leave(self, job: str) -> Program | None:
        """A program has ended: its cores are free."""
        program = self.programs.get(job)
        if program is not None:
            self._running.pop(job, None)
            self._begun.pop(job, None)
            program.cores = program.gpus = ()
        return program

    def _forget(self, program: Program) -> None:
        """It is closed."""
        del self.programs[program.id]
        self._waiting.leave(program)

    def _asked(self, event: Asked, now: float) -> None:
        program = self.programs.get(event.job)
        if program is None:
            return
        self._waiting.look_again(program)
        match event.what, event.value:
            case "pause", _:
                program.held = True
                if program.state == RUNNING and not program.stopping:
                    self._pause(program, now, "its user asked for it")
                    program.deferred = "held"
            case "resume", _ if program.held:
                program.held = False
                self._enqueue(program, now)
            case "priority", float() | int() as value:
                program.priority = program.rank = int(value)
            case "resize", float() | int() as value if value >= 1:
                if program.ask.malleable or program.state == WAITING:
                    program.deferred = ""
                    self._bound(program, min(int(value), self.view.cores))
            case "begin", float() | int() as value:
                program.begin_s = value
            case "edit", _ if program.state == WAITING:
                self._edit(program, event.facts)
            case "cancel", _:
                self._end(program, "cancel", "cancelled by its user", now)
            case "requeue", _ if not program.stopping:
                self._end(program, "requeue", "its user puts it back into the queue", now)

    def _edit(self, program: Program, facts: dict[str, Any]) -> None:
        """Another request in the place of the one that it came with; it keeps its place and its speed-up, and its
        tries count anew."""
        program.ask = ask = Ask.of(program.id, facts | {"curve": program.ask.curve})
        program.priority, program.rank, program.begin_s = ask.priority, ask.priority, ask.begin_s
        program.deferred, program.attempts, program.met = "", 0, 0
        self._bound(program, ask.cores)
        if ask.parallel is not None:
            self._limit(ask.group, ask.parallel)
        if problem := self._never_fits(program):
            self._forget(program)
            self._reject(program.id, problem)

    def _end(self, program: Program, how: Stopping, why: str, now: float) -> None:
        """Stop a program that was started; one that was not is gone at once, or stays where it is."""
        if program.state == WAITING:
            program.held = False
            if how != "requeue":
                self._forget(program)
                self._reject(program.id, why, cancelled=how == "cancel")
            return
        program.catch_up(now)
        if not program.stopping:
            self._out.append(Stop(program.id, TASK, why))
        program.stopping, program.stop_why, program.held = how, why, False
        self._running.pop(program.id, None)

    def _reject(self, job: str, why: str, cancelled: bool = False) -> None:
        self._gone.add(job)
        self._lost.append(job)
        self._out.append(Reject(job, why, cancelled))

    def _reject_orphans(self) -> None:
        """Whoever waits for something that failed fails with it."""
        while lost := set(self._lost):
            self._lost.clear()
            for program in [p for p in self.programs.values() if not lost.isdisjoint(p.ask.after)]:
                failed = next(other for other in program.ask.after if other in lost)
                self._forget(program)
                self._reject(program.id, f"waits for {failed}, which was not completed")

    def _stop_overdue(self, now: float) -> None:
        for program in list(self._running.values()):
            limit = program.ask.limit_s
            if limit is not None and program.ran_s(now) >= limit - 1e-9:
                self._end(program, "limit", f"ran for its limit of {limit:g} s", now)

    def _enqueue(self, program: Program, now: float) -> None:
        program.queued_s, program.place, program.deferred = now, next(self._places), ""
        self._waiting.look_again(program)

    # --- what to do -------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        view = self.view
        self._look(now)
        ended = self._plan.over(view)
        for program in ended:
            program.turn_s = now
        over = list(ended) if view.waiting else []
        admission = self._admit(over)
        while alone := [p for p in admission.short_pauses() if p in over and p.ask.group in view.limits]:
            for program in alone:  # nobody takes its turn: then it has its group's place, and others see that
                over.remove(program)
                program.place = next(self._places)
            self._look(now)
            admission = self._admit(over)
        for program in admission.starts:
            program.place = next(self._places)
            view.waiting.remove(program)
        admission.forget_short_pauses()
        for program, why in admission.pauses:
            self._pause(program, now, why)
        self._carry(admission, now)
        waits = admission.waits
        for program in self._waiting.to_tell((self.programs[job] for job in waits), (p for p, _ in admission.pauses)):
            self._defer(program, *waits.get(program.id, FAR))
        self._ask_to_be_woken(now)

    def _look(self, now: float) -> None:
        """What policies see before anything is decided."""
        view, begun = self.view, self._begun.values()
        view.now = now
        self._next_begin_s = inf
        view.waiting, view.by_arrival = self._waiting.ready(lambda p: self._look_at(p, now)), True
        view.running = list(self._running.values())
        view.widths = {p.id: len(p.cores) for p in view.running}
        view.held = sum(len(p.cores) for p in begun if p.stopping)
        view.memory_mib = sum(p.ask.memory_mib for p in begun)
        view.gpus = GpuLedger(self.options.gpus, begun if self.options.gpus else ())
        view.count_members(begun)

    def _admit(self, over: Sequence[Program]) -> Admission:
        """Who starts and who is paused, if the turns of these are over."""
        admission = Admission(self.view, self._plan, self._assign)
        for program in over:
            admission.pause(program, f"its turn of {self.options.quantum_s:g} s is over")
        admission.run()
        return admission

    def _look_at(self, program: Program, now: float) -> bool:
        """Whether nothing but others can keep it waiting; if something else does, it is told so."""
        if program.state == RUNNING or program.stopping:
            return False
        if program.held:
            self._defer(program, "held", "its user paused it")
            return False
        if program.begin_s > now:
            self._next_begin_s = min(self._next_begin_s, program.begin_s)
            self._defer(program, f"begin {program.begin_s}", f"begins at {program.begin_s:.2f} s at the earliest")
            return False
        left = waits_for(self._awaited(program))
        if left:
            self._defer(program, "after", left)
        return not left

    def _awaited(self, program: Program) -> Iterator[str]:
        """Whom it waits for, of those that it named; who has ended does so for good, and is not looked at again."""
        after, after_any = program.ask.after, program.ask.after_any
        while program.met < len(after) and after[program.met] in self._done:
            program.met += 1
        yield from (after[i] for i in range(program.met, len(after)) if after[i] not in self._done)
        yield from (name for name in after_any if name in self.programs)

    def _defer(self, program: Program, code: str, why: str) -> None:
        """Say why it waits, when that changes."""
        self._waiting.told(program, code == FAR[0])
        if program.deferred != code:
            program.deferred = code
            self._out.append(Defer(program.id, TASK, why))

    def _pause(self, program: Program, now: float, why: str) -> None:
        program.catch_up(now)
        program.state, program.had = PAUSED, program.cores
        program.cores = ()
        del self._running[program.id]
        self._enqueue(program, now)
        self._out.append(Pause(program.id, TASK, why))

    def _carry(self, admission: Admission, now: float) -> None:
        """From the decided widths to orders: who shrinks goes first, then who starts, then who grows."""
        widths, started = self.view.widths, {p.id for p in admission.starts}
        free = set(range(self.view.cores)).difference(*(p.cores for p in self._begun.values()))
        old = [p for p in self.view.running if p.id not in started]
        for program in old:
            if widths[program.id] < len(program.cores):
                self._resize(program, widths[program.id], free, now)
        for program in admission.starts:
            program.gpus = admission.gpus[program.id]
            self._start(program, widths[program.id], free, now)
        for program in old:
            if widths[program.id] > len(program.cores):
                self._resize(program, widths[program.id], free, now)

    def _resize(self, program: Program, cores: int, free: set[int], now: float) -> None:
        program.catch_up(now)
        why = f"{'shrinks' if cores < len(program.cores) else 'grows'} to {self._why(program, cores)}"
        program.cores = choose(free, program.cores, cores)
        self._out.append(Resize(program.id, TASK, program.cores, program.run_s(cores), why))

    def _start(self, program: Program, cores: int, free: set[int], now: float) -> None:
        why, run_s = self._why(program, cores), program.run_s(cores)
        why += f", GPU{'s' * (len(program.gpus) > 1)} {devices_text(program.gpus)}" if program.gpus else ""
        program.cores = choose(free, (), cores, program.had)
        program.since = program.turn_s = now
        program.rank = self.view.urgency(program)
        program.deferred = ""
        if not program.ask.malleable:
            program.asked = program.least = program.most = cores
        if program.state == PAUSED:
            self._out.append(Resume(program.id, TASK, program.cores, run_s, why))
        else:
            ready_s, gpus = program.ready_s, program.gpus
            self._out.append(Start(program.id, TASK, program.kind, program.cores, ready_s, run_s, why, gpus=gpus))
        program.state = RUNNING
        self._waiting.look_again(program)
        program.had = program.cores
        self._running[program.id] = self._begun[program.id] = program

    def _why(self, program: Program, cores: int) -> str:
        return self._assign.reason(program, cores, self.view)

    def _ask_to_be_woken(self, now: float) -> None:
        self.view.running = list(self._running.values())
        times = [self._plan.look_s(self.view), self.view.next_age_s()]
        limits = [(p, p.ask.limit_s) for p in self.view.running]
        times += [now + limit_s - p.ran_s(now) for p, limit_s in limits if limit_s is not None]
        times.append(None if self._next_begin_s == inf else self._next_begin_s)
        at_s = min((t for t in times if t is not None), default=None)
        self._wakes = {t for t in self._wakes if t > now}
        if at_s is not None and at_s > now and not any(t <= at_s for t in self._wakes):
            self._wakes.add(at_s)
            self._out.append(WakeAt(at_s))


def make_scheduler(
    cores: int, graphs: Mapping[str, TaskGraph], options: HostOptions, policies: Policies | None = None
) -> HostScheduler | LegacyScheduler:
    """The scheduler of a profile."""
    if options.profile == "legacy":
        return LegacyScheduler(cores, graphs, options)
    return HostScheduler(cores, graphs, options, policies)


def options_of(header: Header) -> HostOptions:
    """The options of a recorded run."""
    try:
        return host_options(header.options)
    except InputError as error:
        raise InputError(f"not a usable header: options: {error}") from None


def scheduler_for(reader: Reader) -> Scheduler:
    """The scheduler that decided a recorded run, as its header describes it: fed the same stimuli, it decides again."""
    return make_scheduler(len(reader.header.pool), reader.header.build_graphs(), options_of(reader.header))
