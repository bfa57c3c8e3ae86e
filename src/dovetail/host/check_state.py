"""What a checker knows of a program by books of its own: what it has, what it may have, and where it stands in line."""

from __future__ import annotations

from math import floor
from typing import Any

from dovetail.core.events import Asked, Failed, Finished, Pause, Resize, Resume, Start, Stop
from dovetail.host.curves import RATE, SpeedUp, curve, learned
from dovetail.host.options import HostOptions
from dovetail.host.program import Ask


class ProgramState:
    """A program that has arrived and is not closed. `fixed` is the number of cores that a rigid one started with,
    `place` and `queued_s` tell since when it waits, `ran_s` how long its attempt has run."""

    def __init__(self, ask: Ask, seq: int, now: float) -> None:
        self.ask, self.asked, self.priority = ask, ask.cores, ask.priority
        self.seq = self.place = seq
        self.queued_s = self.since_s = now
        self.has = self.fixed = self.failures = 0
        self.ran_s = 0.0
        self.begun = self.held = self.stopping = False
        self.rates: dict[int, float] = {}

    @property
    def curve(self) -> SpeedUp:
        """Its speed-up, as it is known by now."""
        return curve(learned(self.ask.curve, self.rates))

    def follow(self, event: Any, place: int, now: float, cores: int) -> None:
        """Something happened to it, or was decided; `place` is the end of the queue."""
        self.ran_s += now - self.since_s if self.has else 0.0
        self.since_s = now
        match event:
            case Start() | Resume() | Resize():
                self.ran_s = 0.0 if isinstance(event, Start) else self.ran_s
                self.has, self.begun = len(event.devices), True
                self.fixed = self.fixed or (0 if self.ask.malleable else self.has)
            case Pause():
                self.has, self.place, self.queued_s = 0, place, now
            case Stop():
                self.stopping = True
            case Finished() | Failed():
                self.failures += isinstance(event, Failed) and not self.stopping
                self.has, self.fixed, self.place, self.queued_s = 0, 0, place, now
                self.asked = self.asked if self.ask.malleable else self.ask.cores
                self.begun = self.stopping = False
            case Asked():
                self._hear(event, place, now, cores)

    def _hear(self, event: Asked, place: int, now: float, cores: int) -> None:
        match event.what, event.value:
            case "pause", _:
                self.held = True
            case "resume", _ if self.held:
                self.held, self.place, self.queued_s = False, place, now
            case "cancel" | "requeue", _:
                self.held = False
            case "priority", float() | int() as value:
                self.priority = int(value)
            case what, float() | int() as rate if what.startswith(RATE):
                self.rates[int(what.removeprefix(RATE))] = rate
            case "resize", float() | int() as value if not self.fixed:
                self.asked = max(min(int(value), cores), self.ask.least)

    def bounds(self, options: HostOptions, cores: int) -> tuple[int, int, int]:
        """The fewest cores that it may have, what it asks for, and the most."""
        if self.fixed:
            return self.fixed, self.fixed, self.fixed
        least = min(max(self.ask.least, options.min_cores), self.asked)
        most = max(min(self.ask.most or cores, options.max_cores or cores, cores), least)
        asked = min(self.asked, most) if self.ask.most or options.max_cores else self.asked
        if options.assign in ("strict", "always_attend"):
            most = max(min(most, asked), least)
        return least, max(asked, least), most

    def aged(self, options: HostOptions, now: float) -> int:
        step_s = options.age_step_s
        return 0 if step_s is None else floor((now - self.queued_s) / step_s + 1e-9)

    def is_of_age(self, options: HostOptions, now: float) -> bool:
        """Whether it has waited so long that nobody behind it may start."""
        return self.aged(options, now) > max(self.priority, 0)

    def turn(self, options: HostOptions, now: float) -> tuple[float, ...] | None:
        """Who has the least goes first; None for a planning that is not known here."""
        if options.plan == "rr":
            return (self.place,)
        if options.plan == "fcfs":
            return (self.seq,)
        urgency = max(self.priority - self.aged(options, now), min(self.priority, 0))
        return (urgency, self.seq) if options.plan == "priority" else None
