"""Live pipeline runs without processes: microbatches pass through a plan in virtual time, and the real supervisor and
journal see them as they would see real ones, with hosts that die or slow down and clocks that are off."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.replan import replanner
from dovetail.pipeline.live.results import ResultCounter
from dovetail.pipeline.live.supervisor import (
    Assign,
    Delivered,
    Event,
    Feed,
    FinishRun,
    Halt,
    Joined,
    Kill,
    LaunchHosts,
    Lived,
    Lost,
    Prepared,
    Supervisor,
)
from dovetail.pipeline.live.wire import Offset, Visit
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.route import DATA_HOST, Route

_BUFFERS = 2
_KILLED = "its process was ended by SIGKILL"


def even_plan(hosts: int, replicas: int = 1, layers: int = 6) -> Plan:
    """A plan for alike hosts `h0`, `h1`, ... and layers of one second each."""
    names = [f"h{i}" for i in range(hosts)]
    device = DeviceClass(name="t", type="t", hosts=names, bw_mbps=1.0, mem_mib=100.0, time_s=[1.0] * layers)
    problem = Pipeline(
        model="m",
        layers=layers,
        mem_mib=[1.0] * layers,
        cut_bytes=[80_000] * (layers + 1),
        classes=[device],
        batch_size=1,
        dtype="torch.float32",
    )
    found = plan(problem, "throughput", Constraints(replicas=replicas))
    assert isinstance(found, Plan)
    return found


class _Trip(Struct):
    """A microbatch on its way, in true time."""

    number: int
    fed_s: float
    visits: list[tuple[float, float]]


class PlayedRun:
    """Plays a run to its end when it is made.

    `deaths` are hosts that are killed when so many microbatches have come out, `slow` those that take so many times as
    long from then on, `silent` those that say nothing more; clocks differ by up to `skew_s`, and the estimate of that
    is wrong by up to `error_s`.
    """

    def __init__(
        self,
        path: Path | None,
        made: Plan,
        total: int = 12,
        *,
        seed: int = 0,
        deaths: Mapping[int, str] | None = None,
        slow: Mapping[int, tuple[str, float]] | None = None,
        silent: Mapping[int, str] | None = None,
        skew_s: float = 0.0,
        error_s: float = 0.0,
        options: RunOptions | None = None,
    ) -> None:
        self._rng = random.Random(seed)
        self._deaths, self._slow, self._total = dict(deaths or {}), dict(slow or {}), total
        self._silent = dict(silent or {})
        self._skew_s, self._error_s = skew_s, error_s
        self._now_s = 1000.0
        self._factor: dict[str, float] = {}
        self._clock_s: dict[str, float] = {DATA_HOST: 0.0}
        self._alive: set[str] = set()
        self._plan, self._generation, self._fed, self._count = made, 1, 0, 0
        self._lost: list[str] = []
        self.why: str | None = None
        self.plans: dict[int, Plan] = {}  # those that were carried out, by generation
        options = options or RunOptions()
        self._limit_s = options.patience.heartbeat_limit_s
        problem = made.problem
        hosts = [host for c in problem.classes for host in c.hosts] if problem else made.hosts
        carried = {host: Carrier("t", "cpu", "a processor", "mapped") for host in hosts}
        self.counter = ResultCounter()
        self.journal = RunJournal(path, made, total, options, carried, [self.counter], lambda: self._now_s)
        self._supervisor = Supervisor(made, total, replanner(made), options.patience)
        self._turn([])
        while self.why is None:
            self._layout()
        self.journal.over(self._fed, self.why, self._lost)
        self.journal.end()
        self.journal.close()

    def _turn(self, events: list[Event]) -> bool:
        """Tell the supervisor, and do what it says; whether the present layout goes on."""
        actions = self._supervisor.handle(events, self._now_s)
        self.journal.turn(self._now_s, events, actions)
        more: list[Event] = []
        for action in actions:
            self._now_s += self._rng.uniform(0.001, 0.01)
            if isinstance(action, LaunchHosts):
                more += [Joined(host) for host in action.hosts]
                for host in action.hosts:
                    self._join(host)
            elif isinstance(action, Assign):
                self._plan, self._generation = action.plan, action.generation
                self.plans[action.generation] = action.plan
                more += [Prepared(host, action.generation) for host in action.plan.hosts]
            elif isinstance(action, Feed):
                self.journal.open()
                if self._fed:
                    self.journal.over(self._fed, "halted", self._lost)
                self._fed, self._lost = action.generation, []
            elif isinstance(action, Kill):
                self._lost.append(action.host)
            elif isinstance(action, FinishRun):
                self.why = action.why
        goes_on = not any(isinstance(action, Halt | FinishRun) for action in actions)
        return self._turn(more) and goes_on if more else goes_on

    def _join(self, host: str) -> None:
        self._alive.add(host)
        clock_s = self._clock_s[host] = self._rng.uniform(-self._skew_s, self._skew_s)
        if not self._skew_s:
            self.journal.joined(host, Offset(), "a processor")
            return
        wrong_s = self._rng.uniform(-self._error_s, self._error_s)
        self.journal.joined(host, Offset(-clock_s + wrong_s, self._error_s, shared=False), "a processor")

    def _layout(self) -> None:
        """Microbatches go through the present plan, until it is halted or all have come out."""
        trips = self._trips()
        fed = 0
        for trip in trips:
            end_s = trip.visits[-1][1]
            while fed < len(trips) and trips[fed].fed_s < end_s:
                self.journal.fed(self._generation, trips[fed].number, trips[fed].fed_s)
                fed += 1
            self._now_s = end_s
            self.journal.delivered(self._generation, trip.number, self._seen(trip, self._plan))
            self._count += 1
            self._now_s += self._rng.uniform(1e-5, 1e-3)
            generation, made = self._generation, self._plan
            events: list[Event] = [Delivered(self._count)]
            if (dead := self._deaths.pop(self._count, None)) in self._alive and dead is not None:
                self._alive.discard(dead)
                events.append(Lost(dead, _KILLED))
            if self._count in self._slow:
                self._factor.update([self._slow.pop(self._count)])
                trips[fed:] = []  # what is not fed yet is slower
            quiet = self._silent.pop(self._count, None)
            self._alive.discard(quiet or "")
            if not self._turn([*events, *self._beats(trip)]) or (quiet and not self._wait()):
                self._interrupt(generation, made, trips[:fed], dead)
                return

    def _wait(self) -> bool:
        """Time passes in which only the others give signs of life, and then nothing happens at all."""
        self._now_s += 0.9 * self._limit_s
        beats: list[Event] = [Lived(host, self._generation) for host in self._plan.hosts if host in self._alive]
        goes_on = self._turn(beats)
        self._now_s += 0.2 * self._limit_s
        return self._turn([]) and goes_on

    def _beats(self, trip: _Trip) -> list[Event]:
        beats: list[Event] = []
        for x, stage in enumerate(self._plan.stages):
            host = stage.hosts[trip.number % len(stage.hosts)]
            start_s, end_s = trip.visits[2 * x + 1]
            for other in stage.hosts:
                if other in self._alive:
                    seconds = (end_s - start_s,) if other == host else ()
                    beats.append(Lived(other, self._generation, seconds))
        return beats

    def _interrupt(self, generation: int, made: Plan, fed: list[_Trip], dead: str | None) -> None:
        """What is on its way is known as far as somebody who is alive has told it."""
        for trip in fed:
            if trip.number < self._count:
                continue
            over = sum(end_s < self._now_s for _, end_s in trip.visits)
            told = self._seen(trip, made)[:over]
            if dead is not None:
                told = told[: self._rng.randint(0, len(told))]
            self.journal.passed(generation, trip.number, told)

    def _trips(self) -> list[_Trip]:
        stations = Route.connected(self._plan, {}).stations
        free_s: dict[str, float] = {}
        trips: list[_Trip] = []
        out_s = 0.0
        for number in range(self._count, self._total):
            first = stations[0].device(number)
            before = trips[-_BUFFERS].visits[1][0] if len(trips) >= _BUFFERS else 0.0  # when its buffer became free
            t = fed_s = max(self._now_s, free_s.get(first, 0.0), before)
            visits = []
            for i, station in enumerate(stations):
                device = station.device(number)
                start_s = max(t, free_s.get(device, 0.0))
                factor = self._factor.get(device, 1.0)
                t = start_s + factor * (1.0 if i % 2 else 0.02) * self._rng.uniform(0.9, 1.1)
                if i + 1 == len(stations):  # the data host takes them in order
                    t = out_s = max(t, out_s + 1e-4)
                free_s[device] = t
                visits.append((start_s, t))
            trips.append(_Trip(number, fed_s, visits))
        return trips

    def _seen(self, trip: _Trip, made: Plan) -> list[Visit]:
        """Its visits on the clocks of those who were visited."""
        stages = made.stages
        seen = []
        for i, (start_s, end_s) in enumerate(trip.visits):
            x = i // 2
            host = stages[x].hosts[trip.number % len(stages[x].hosts)] if x < len(stages) else DATA_HOST
            shift_s = self._clock_s[host]
            bits = 0 if i % 2 else 32
            seen.append(Visit(start_s + shift_s, end_s + shift_s, bits, 80_000 if bits else 0))
        return seen
