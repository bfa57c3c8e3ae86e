"""Who runs what, and when that changes: a state machine without I/O. Events and the time in, actions out.

A host is dead when its process ends, its connection breaks or its heartbeats stop; while it loads, which may keep it
from any, when its machine says that it is stopped. It is slow when its recent median
of compute times is well above what its plan says, calibrated by what it measured at first: a profile that is wrong by
a constant factor is no reason to act. Both lead to a new plan for the hosts that are left, if it is worth the change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from statistics import median

from msgspec import Struct

from dovetail.pipeline.plan import Infeasible, Plan, Stage

# --- events: what happened ------------------------------------------------------------------------


class Joined(Struct, frozen=True):
    """A process has connected."""

    host: str


class Prepared(Struct, frozen=True):
    """A process holds its layers and its connections."""

    host: str
    generation: int


class Lived(Struct, frozen=True):
    """A heartbeat, with the seconds that each microbatch took to compute since the last."""

    host: str
    generation: int = 0
    compute_s: tuple[float, ...] = ()


class Stirred(Struct, frozen=True):
    """The machine says that a process is there and not stopped."""

    host: str


class Lost(Struct, frozen=True):
    """A process is gone."""

    host: str
    why: str


class Broke(Struct, frozen=True):
    """A connection between stages broke, seen from one end; most often because the other end's process is gone."""

    host: str
    generation: int
    why: str


class Erred(Struct, frozen=True):
    """The layers themselves cannot run; they could nowhere else."""

    host: str
    why: str


class Delivered(Struct, frozen=True):
    """So many microbatches have come out, in order; `done` if it is only known by them that there are no more."""

    count: int
    done: bool = False


Event = Joined | Prepared | Lived | Stirred | Lost | Broke | Erred | Delivered

# --- actions: what to do --------------------------------------------------------------------------


class LaunchHosts(Struct, frozen=True):
    """Start a process for each of these hosts."""

    hosts: tuple[str, ...]


class Halt(Struct, frozen=True):
    """Stop feeding the present layout: it will be replaced, and why."""

    why: str


class Assign(Struct, frozen=True):
    """Tell every host of the plan its layers and connections."""

    generation: int
    plan: Plan


class Feed(Struct, frozen=True):
    """All are ready: send what has not come out yet."""

    generation: int


class Kill(Struct, frozen=True):
    """Give a host up, and why."""

    host: str
    why: str


class FinishRun(Struct, frozen=True):
    """The end; `why` is empty if everything came out."""

    why: str = ""


Action = LaunchHosts | Halt | Assign | Feed | Kill | FinishRun


class Patience(Struct, frozen=True, kw_only=True):
    """When to take a process for dead or slow, and when a new plan is worth a change."""

    heartbeat_limit_s: float = 5.0
    loading: float = 6.0  # times that limit while a process loads its layers on a machine that does not tell of it
    start_limit_s: float = 300.0  # until it has loaded them
    slow_factor: float = 1.5  # 0: never
    gain: float = 1.1  # how many times faster a new plan must be to replace one that has only become slow
    window: int = 8  # microbatches of a median
    warm_up: int = 3  # microbatches of a layout that are not counted
    attempts: int = 3  # layouts in a row that may break without delivering anything


class Pace(Struct):
    """What is known of the pace of a host."""

    recent: deque[float]
    calibration: float | None = None  # measured / planned, when it was first measured
    seen: int = 0
    suspect: bool = False  # the last window was slow: what the next one says, counts
    known_factor: float = 1.0  # how much slower than that it is taken to be


Replan = Callable[[frozenset[str], dict[str, float]], Plan | Infeasible]


class Supervisor:
    """Keeps `total` microbatches moving through a plan, and through others when hosts die or slow down."""

    def __init__(self, plan: Plan, total: int | None, replan: Replan, patience: Patience) -> None:
        self.plan = plan
        self.generation = 1
        self._total = total
        self._replan = replan
        self._patience = patience
        self._dead: dict[str, str] = {}
        self._beats: dict[str, float] = {}  # last sign of life of those that have joined
        self._stirs: dict[str, float] = {}  # when their machine last said that they were not stopped
        self._launched: dict[str, float] = {}
        self._prepared: set[str] = set()
        self._stage = self._stages()
        self._assigned = self._fed = self._done = False
        self._broken: tuple[float, str] | None = None
        self._count = 0
        self._fruitless = 0  # layouts since something was delivered
        self._paces: dict[str, Pace] = {}

    def handle(self, events: Sequence[Event], now: float) -> list[Action]:
        """What happened since the last call, in order; also call it without events, now and then, the first time to
        start."""
        actions: list[Action] = [] if self._launched else self._advance(now)
        for event in events:
            if self._done:
                return actions
            actions += self._handle(event, now)
        if not self._done:
            actions += self._watch(now)
        return actions

    def _handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, Delivered):
            self._count, self._fruitless = event.count, 0
            all_out = event.done or (self._total is not None and event.count >= self._total)
            return self._finish() if all_out else []
        if isinstance(event, Erred):
            stage = self._stage.get(event.host)
            layers = f" (layers {stage.layers[0]} to {stage.layers[1]})" if stage else ""
            return self._finish(f"{event.host}{layers}: {event.why}")
        if event.host in self._dead:
            return []
        if isinstance(event, Lost):
            return self._bury({event.host: event.why}, now)
        if isinstance(event, Stirred):
            self._stirs[event.host] = now
            return []
        self._beats[event.host] = now
        if isinstance(event, Joined):
            return self._advance(now)
        if event.generation != self.generation:
            return []
        if isinstance(event, Prepared):
            self._prepared.add(event.host)
            return self._advance(now)
        if isinstance(event, Broke):
            self._broken = self._broken or (now, f"{event.host}: {event.why}")
            return []
        return self._measure(event, now)

    # --- getting a layout to run ------------------------------------------------------------------

    def _advance(self, now: float) -> list[Action]:
        """The next step on the way from a plan to a layout that is fed."""
        hosts = self.plan.hosts
        if new := tuple(host for host in hosts if host not in self._launched):
            self._launched.update(dict.fromkeys(new, now))
            return [LaunchHosts(new)]
        if not self._assigned and all(host in self._beats for host in hosts):
            self._assigned = True
            self._launched.update(dict.fromkeys(hosts, now))  # now they may take as long again to load
            return [Assign(self.generation, self.plan)]
        if self._assigned and not self._fed and self._prepared.issuperset(hosts):
            self._fed = True
            self._beats.update(dict.fromkeys(hosts, now))
            return [Feed(self.generation)]
        return []

    def _change(self, plan: Plan, why: str, now: float) -> list[Action]:
        self.plan = plan
        self.generation += 1
        self._stage = self._stages()
        self._prepared.clear()
        self._assigned = self._fed = False
        self._broken = None
        for pace in self._paces.values():
            pace.seen, pace.suspect = 0, False
            pace.recent.clear()
        return [Halt(why), *self._advance(now)]

    def _finish(self, why: str = "") -> list[Action]:
        self._done = True
        return [FinishRun(why)]

    def _stages(self) -> dict[str, Stage]:
        return {host: stage for stage in self.plan.stages for host in stage.hosts}

    # --- death ------------------------------------------------------------------------------------

    def _watch(self, now: float) -> list[Action]:
        """What silence tells."""
        patience, gone = self._patience, {}
        reached = self._prepared if self._assigned else self._beats
        for host in self.plan.hosts:
            limit_s, told = patience.heartbeat_limit_s, "no heartbeat"
            seen_s = self._beats.get(host, now)
            if not self._fed and host in self._stirs:  # it may be too busy for a heartbeat, but not stopped
                seen_s, told = max(self._beats.get(host, -inf), self._stirs[host]), "it was stopped"
            elif not self._fed:
                limit_s *= patience.loading
            if now - seen_s > limit_s:
                gone[host] = f"{told} for {limit_s:g} s"
            elif host not in reached and now - self._launched[host] > patience.start_limit_s:
                gone[host] = f"was not ready after {patience.start_limit_s:g} s"
        if gone:
            return self._bury(gone, now)
        # A broken connection alone: wait a little for news of the process at its other end.
        if self._broken is not None and now - self._broken[0] > patience.heartbeat_limit_s:
            self._fruitless += 1
            why = f"a connection broke: {self._broken[1]}"
            if self._fruitless > self._patience.attempts:
                return self._finish(why)
            return self._change(self.plan, why, now)
        return []

    def _bury(self, gone: dict[str, str], now: float) -> list[Action]:
        self._dead |= gone
        why = "; ".join(f"{host}: {reason}" for host, reason in gone.items())
        kills: list[Action] = [Kill(host, reason) for host, reason in gone.items()]
        if not set(gone) & set(self.plan.hosts):
            return kills
        found = self._replan(frozenset(self._dead), self._factors())
        if isinstance(found, Infeasible):
            return [*kills, *self._finish(f"{why}; no plan is left: {'; '.join(found.reasons)}")]
        return [*kills, *self._change(found, why, now)]

    # --- slowness ---------------------------------------------------------------------------------

    def _measure(self, event: Lived, now: float) -> list[Action]:
        patience, stage = self._patience, self._stage.get(event.host)
        if stage is None or not patience.slow_factor:
            return []
        pace = self._paces.setdefault(event.host, Pace(recent=deque(maxlen=patience.window)))
        for seconds in event.compute_s:
            pace.seen += 1
            if pace.seen > patience.warm_up:
                pace.recent.append(seconds)
        planned_s = stage.compute_s * len(stage.hosts)
        if len(pace.recent) < patience.window or planned_s <= 0:
            return []
        ratio = median(pace.recent) / planned_s
        if pace.calibration is None:
            pace.calibration = ratio
            pace.recent.clear()
            return []
        slower = ratio / pace.calibration
        suspect, pace.suspect = pace.suspect, slower > patience.slow_factor
        if pace.suspect and not suspect:
            pace.recent.clear()  # a window that began before it became slow tells too little
        if not (pace.suspect and suspect):
            return []
        return self._weigh(event.host, pace, slower, now)

    def _weigh(self, host: str, pace: Pace, slower: float, now: float) -> list[Action]:
        """Whether a new plan is worth it for a host that has become slower than the present plan assumes."""
        before = pace.known_factor
        pace.known_factor = before * slower
        found = self._replan(frozenset(self._dead), self._factors())
        stage = self._stage[host]
        present_s = max(self.plan.bottleneck_s, stage.compute_s * slower)
        pace.recent.clear()
        if isinstance(found, Infeasible) or present_s < found.bottleneck_s * self._patience.gain:
            pace.known_factor = before  # looked at again after another window
            return []
        # The new plan knows the host as that much slower, so its calibration stays.
        return self._change(found, f"{host} takes {slower:.2f} times as long as at first", now)

    def _factors(self) -> dict[str, float]:
        return {host: pace.known_factor for host, pace in self._paces.items() if pace.known_factor != 1.0}
