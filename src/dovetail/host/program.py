"""A program as the scheduler knows it: what it asked for, how it stands, and how far it has come."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Asked, Observed
from dovetail.core.tasks import Task, TaskGraph
from dovetail.host.curves import LINEAR, SpeedUp, curve, learned

TASK = "run"  # a program is a job of one task
CORE = "core"  # the type of all devices here
WAITING, RUNNING, PAUSED = "waiting", "running", "paused"
GpuPause = Literal["hold", "release"]
Stopping = Literal["", "cancel", "requeue", "limit"]  # what a program that is being stopped is stopped for


def program_graph(kind: str, cores: int) -> TaskGraph:
    """The graph of a program: one task on any number of the machine's cores."""
    return TaskGraph(kind, [Task(TASK, kind, 1, 1, cores)], [])


def group_limit(event: object) -> tuple[str, int | None] | None:
    """How many of a group somebody says may run at once (None: all of them), or nothing. In earlier journals it was
    observed: heard sooner than what had come before.

    >>> group_limit(Asked("", "group", facts={"group": "sweep", "parallel": 2}))
    ('sweep', 2)
    """
    match event:
        case (
            Asked(what="group", facts={"group": str() as group, "parallel": int() | None as parallel})
            | Observed(what="group", facts={"group": str() as group, "parallel": int() | None as parallel})
        ):
            return group, parallel
    return None


class Ask(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an arrival's facts say of a program.

    `cores` is what it asks for, `least` and `most` what it can live with. Priority 0 is the most urgent. `memory_mib`
    is its own also while it is paused. It waits for the programs in `after` to be completed, and for those in
    `after_any` to end in whatever way; it starts at `begin_s` at the earliest. An attempt may run for `limit_s`, and is
    followed by another `retries` times if it fails. One that is not `malleable` keeps as many cores as it started with.
    Of each of its `gpus`, of a type if that is given, it needs `gpu_mem_mib`, or all; paused it holds or releases them.
    Of a `group` at most `parallel` run at once, as whoever came last and said a number has it.
    """

    cores: int
    least: int = 1
    most: int | None = None
    priority: int = 0
    curve: str = LINEAR
    memory_mib: int = 0
    after: tuple[str, ...] = ()
    limit_s: float | None = None
    retries: int = 0
    malleable: bool = True
    gpus: int = 0
    gpu_mem_mib: int | None = None
    gpu_type: str = ""
    gpu_pause: GpuPause = "hold"
    after_any: tuple[str, ...] = ()
    begin_s: float = 0.0
    group: str = ""
    parallel: int | None = None

    @classmethod
    def of(cls, job: str, facts: dict[str, Any]) -> Ask:
        try:
            ask = msgspec.convert(facts, cls)
        except msgspec.ValidationError as error:
            from dovetail.core.files.document import explain  # reads formats: not needed until something is wrong

            keys, message = explain(error, cls)
            raise InputError(f"{job}: {'.'.join(map(str, keys)) + ': ' if keys else ''}{message}") from None
        if not 1 <= ask.least <= max(ask.cores, 1) or ask.cores < 1 or (ask.most is not None and ask.most < ask.least):
            raise InputError(f"{job}: expected 1 <= least <= cores and least <= most, found {facts}")
        if ask.gpus < 0 or (ask.gpu_mem_mib is not None and ask.gpu_mem_mib < 1):
            raise InputError(f"{job}: expected 0 or more gpus and a positive gpu_mem_mib, found {facts}")
        if ask.parallel is not None and (ask.parallel < 1 or not ask.group):
            raise InputError(f"{job}: parallel: expected a number from 1 on, and a group, found {facts}")
        if not ask.begin_s < inf:
            raise InputError(f"{job}: begin_s: found {ask.begin_s}, expected a time that comes")
        return ask


class Program:
    """`cores` are those it holds, `had` those it held last, `gpus` those that its attempt began on. `left` is the work
    still to do, in seconds on one core, as of `since`; `turn_s` is when its turn began, `queued_s` when it last began
    to wait, `place` where it stands then, or in which order turns began. `rank` is the urgency with which it last
    started. `may_run`: it waits, and nothing but others keeps it from running; the first `met` of those that were to be
    completed before it have been."""

    __slots__ = (
        "arrived_s",
        "ask",
        "asked",
        "attempts",
        "begin_s",
        "cores",
        "curve",
        "deferred",
        "gpus",
        "had",
        "held",
        "id",
        "kind",
        "least",
        "left",
        "may_run",
        "met",
        "most",
        "place",
        "priority",
        "queued_s",
        "rank",
        "rates",
        "ready_s",
        "seq",
        "service_s",
        "since",
        "size",
        "state",
        "stop_why",
        "stopping",
        "turn_s",
    )

    def __init__(self, id: str, kind: str, seq: int, ask: Ask, size: float, curve: SpeedUp, now: float) -> None:
        self.id, self.kind, self.seq, self.ask, self.size, self.curve = id, kind, seq, ask, size, curve
        self.asked, self.least, self.most, self.priority = ask.cores, ask.least, ask.cores, ask.priority
        self.arrived_s = self.ready_s = self.queued_s = self.since = self.turn_s = now
        self.left, self.service_s = size, 0.0
        self.state, self.held, self.deferred, self.stop_why = WAITING, False, "", ""
        self.may_run, self.met = False, 0
        self.stopping: Stopping = ""
        self.cores: tuple[int, ...] = ()
        self.had: tuple[int, ...] = ()
        self.gpus: tuple[int, ...] = ()
        self.place, self.attempts, self.rank, self.begin_s = seq, 0, ask.priority, ask.begin_s
        self.rates: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<{self.id} {self.state} on {list(self.cores)}>"

    def bound(self, asked: int, cores: int, min_cores: int, max_cores: int | None) -> None:
        """Set what it may have of so many cores if it asks for so many, within the bounds of all."""
        most = min(cores if self.ask.most is None else self.ask.most, max_cores or cores)
        self.asked = asked = max(asked, self.ask.least)
        self.least = min(max(self.ask.least, min_cores), asked)
        self.most = max(min(most, cores), self.least)
        if max_cores is not None or self.ask.most is not None:
            self.asked = max(min(asked, self.most), self.least)

    def run_s(self, cores: int) -> float:
        """How long it still takes on so many cores."""
        return self.left / self.curve.speed(cores)

    def ends_s(self, cores: int, now: float) -> float:
        """When it is expected to end with so many cores; never, if its size is not known."""
        if not self.size:
            return inf
        return (self.since if self.state == RUNNING else now) + self.run_s(len(self.cores) or cores)

    def ran_s(self, now: float) -> float:
        """How long it has run in all."""
        return self.service_s + (now - self.since if self.state == RUNNING else 0.0)

    def catch_up(self, now: float) -> None:
        """Count what it did since its last change."""
        if self.state == RUNNING:
            self.service_s += now - self.since
            self.left = max(self.left - self.curve.speed(len(self.cores)) * (now - self.since), 0.0)
        self.since = now

    def learn(self, cores: int, rate: float, now: float) -> None:
        """How fast it is on so many cores, measured."""
        self.catch_up(now)
        self.rates[cores] = rate
        self.curve = curve(learned(self.ask.curve, self.rates))
