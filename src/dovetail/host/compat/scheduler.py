"""The older scheduler's decisions exactly: queues of new and of pending requests, growth once, two cores at least.

It serves for comparison (`--profile legacy`). What hung or ended the older program is an error here, or is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Failed,
    Finished,
    Instruction,
    Reject,
    Resize,
    Start,
    Stimulus,
)
from dovetail.core.tasks import TaskGraph
from dovetail.host.compat.grants import Threads, always_attend, max_prop, strict
from dovetail.host.cores import choose
from dovetail.host.curves import curve
from dovetail.host.gpus import never_fits
from dovetail.host.options import HostOptions
from dovetail.host.program import RUNNING, TASK, WAITING, Ask, Program

LEVELS = 5  # priorities
PLANS, ASSIGNS = ("fcfs", "priority"), ("strict", "max_prop", "always_attend")
_OPTIONS = {"plan", "assign", "profile", "max_cores"}


class _Container:
    """A program with the threads that its user asked for and those that it has."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.asked: Threads = (1, program.ask.cores - 1)
        self.has: Threads = (0, 0)
        self.grown = False
        self.target: int | None = None  # an update that waits

    @property
    def level(self) -> int:
        return min(max(self.program.priority, 0), LEVELS - 1)


class LegacyScheduler:
    """Plans fcfs and priority (without preemption), with strict, always_attend and max_prop."""

    def __init__(self, cores: int, graphs: Mapping[str, TaskGraph], options: HostOptions) -> None:
        if options.plan not in PLANS or options.assign not in ASSIGNS:
            raise InputError(
                f"the legacy profile knows fcfs and priority with strict, always_attend and max_prop, "
                f"found {options.title}"
            )
        usual = HostOptions()
        for name in HostOptions.__struct_fields__:
            if name not in _OPTIONS and getattr(options, name) != getattr(usual, name):
                raise InputError(f"the legacy profile knows no {name}: the older scheduler had nothing of the kind")
        self._total, self._graphs, self._options = cores, graphs, options
        self._levels = LEVELS if options.plan == "priority" else 1
        self._most = options.max_cores or 16
        self._new: list[_Container] = []
        self._pending: list[_Container] = []
        self._all: dict[str, _Container] = {}
        self._running: dict[str, _Container] = {}  # in the order of their starts
        self._count = 0
        self._leaked = 0  # cores that it believes to be in use
        self._out: list[Instruction] = []

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        self._out = []
        ended = [s for s in stimuli if isinstance(s, Finished | Failed)]
        for end in ended:
            self._ended(end, now)
        for stimulus in stimuli:
            if isinstance(stimulus, Arrived):
                self._arrived(stimulus, now)
            elif isinstance(stimulus, Asked) and stimulus.what == "resize" and stimulus.value is not None:
                self._update(stimulus.job, int(stimulus.value), now)
        if ended and self._free:
            self._grow(now)
        factor = self._factor()
        for queue in (self._pending, self._new):
            self._try(queue, factor, now)
        if self._free:
            self._grow(now)
        return self._out

    def close(self, now: float) -> list[Instruction]:
        why = "the older scheduler never starts it: it needs two cores, and reserves no more than are asked for"
        if self._leaked:
            why = f"the older scheduler never starts it: it counts {self._leaked} cores as used that nobody has"
        return [Reject(job, why) for job in self._all]

    @property
    def _free(self) -> int:
        return self._total - self._leaked - sum(sum(container.has) for container in self._running.values())

    def _choose(self, program: Program, cores: int) -> tuple[int, ...]:
        held = (container.program.cores for container in self._running.values())
        return choose(set(range(self._total)).difference(*held), program.cores, cores)

    # --- what happened ----------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float) -> None:
        if event.fault:
            self._out.append(Reject(event.job, event.fault))
            return
        ask = Ask.of(event.job, event.facts)
        if ask.gpus:
            self._out.append(Reject(event.job, never_fits((), ask)))
            return
        if ask.after or ask.after_any or ask.begin_s or ask.group:
            raise InputError(f"{event.job}: the older scheduler knows no dependencies, no times to begin and no groups")
        kind = self._graphs[event.of].tasks[0].kind
        self._count += 1
        program = Program(event.job, kind, self._count, ask, event.sizes[0], curve(ask.curve), now)
        self._all[event.job] = container = _Container(program)
        self._new.append(container)

    def _ended(self, end: Finished | Failed, now: float) -> None:
        container = self._running.pop(end.job)
        program = container.program
        program.cores = ()
        self._pending = [c for c in self._pending if c is not container]
        if isinstance(end, Finished):
            del self._all[end.job]
            self._out.append(Complete(end.job))
            return
        program.left, program.state, program.ready_s = program.size, WAITING, now  # from scratch
        container.has, container.grown = (0, 0), False
        self._new.append(container)

    def _update(self, job: str, cores: int, now: float) -> None:
        container = self._running.get(job)
        if self._options.assign == "max_prop":
            raise InputError(
                f"[{now:.2f}s] update of {job}: the older scheduler ends with an error at an update "
                "under max_prop; leave it out, or use the default profile"
            )
        if container is None:
            return  # it kept such a request for ever
        delta = cores - sum(container.has)
        if delta < 0:
            self._resize(container, (container.has[0], container.has[1] + delta), "update", now)
            container.asked = container.has
        elif delta:
            container.target = cores
            self._new.append(container)

    # --- what to do -------------------------------------------------------------------------------

    def _factor(self) -> float:
        """What is asked for over what is free; of priorities, only at the less urgent of the first levels in use."""
        waiting = [*self._pending, *self._new]
        if self._levels > 1 and waiting:
            firsts = [min((c.level for c in queue), default=0) for queue in (self._new, self._pending)]
            waiting = [c for c in waiting if c.level == max(firsts)]
        asked = sum(sum(c.asked) for c in waiting)
        return asked / self._free if asked and self._free else 1.0

    def _try(self, queue: list[_Container], factor: float, now: float) -> None:
        """Each in order, whoever is refused is passed over: new ones become pending, also when nothing is left."""
        if not self._free:
            return
        for container in sorted(queue, key=lambda c: c.level if self._levels > 1 else 0):
            if container.program.state == RUNNING:
                done = self._try_update(container, now)
            else:
                done = self._try_start(container, factor, now)
            if done or queue is self._new:
                queue.remove(container)
            if not done and queue is self._new:
                self._refuse(container)

    def _refuse(self, container: _Container) -> None:
        if sum(container.asked) > self._total:
            del self._all[container.program.id]
            why = f"asks for {sum(container.asked)} cores, the machine has {self._total}"
            self._out.append(Reject(container.program.id, why))
        else:
            self._pending.append(container)

    def _grant(self, asked: Threads, factor: float) -> Threads | None:
        if self._options.assign == "max_prop":
            return max_prop(asked, self._free, factor, self._most)
        available = min(sum(asked), self._free)
        return (strict if self._options.assign == "strict" else always_attend)(asked, available)

    def _try_start(self, container: _Container, factor: float, now: float) -> bool:
        granted = self._grant(container.asked, factor)
        if granted is None:
            return False
        program, cores = container.program, sum(granted)
        program.cores = self._choose(program, cores)
        program.since, program.state, container.has = now, RUNNING, granted
        why = f"{granted[0]}+{granted[1]} of {sum(container.asked)} asked"
        if self._options.assign == "max_prop":
            why += f", factor {factor:.3f}"
        self._running[program.id] = container
        run_s = program.run_s(cores)
        self._out.append(Start(program.id, TASK, program.kind, program.cores, program.ready_s, run_s, why))
        return True

    def _try_update(self, container: _Container, now: float) -> bool:
        delta = (container.target or 0) - sum(container.has)
        granted = self._grant((0, delta), 1.0) if delta > 0 else (0, 0)
        if granted is None:
            return False
        container.target = None
        if sum(granted):
            has = (container.has[0] + granted[0], container.has[1] + granted[1])
            self._resize(container, has, "update", now)
            container.asked = container.has
        return True

    def _grow(self, now: float) -> None:
        """Oldest first up to the request; under max_prop an equal share for each that has not grown yet, of which the
        older scheduler counts all that one may ever have if it is more than that. With priorities, nobody grows unless
        who started last is of the least urgent that run."""
        running = list(self._running.values())
        if not running or (self._levels > 1 and running[-1].level < max(container.level for container in running)):
            return
        free = left = self._free
        step, grown = max(1, free // len(running)), 0
        for container in running:
            inter, intra = container.has
            if self._options.assign != "max_prop":
                more = charged = min(sum(container.asked) - inter - intra, left)
                why = "oldest first, up to its request"
            else:
                more = 0 if container.grown or left <= 0 else min(step, self._most - intra)
                charged = step if more == step else self._most
                why = f"equal share {step}, once"
            if more > 0:
                container.grown = True
                left -= charged
                grown += more
                self._resize(container, (inter, intra + more), f"grows by {more}: {why}", now)
        self._leaked += free - grown - max(left, 0)

    def _resize(self, container: _Container, has: Threads, why: str, now: float) -> None:
        program, container.has = container.program, has
        program.catch_up(now)
        program.cores = self._choose(program, sum(has))
        self._out.append(Resize(program.id, TASK, program.cores, program.run_s(sum(has)), why))
