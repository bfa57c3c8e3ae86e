"""A program as the checker recounts it: what it has, what it may have, how far it is, and since when it waits."""

from __future__ import annotations

from typing import Any

from dovetail.core.events import Arrived, Asked, Failed, Finished, Measured, Pause, Resize, Resume, Start, Stop
from dovetail.host.curves import curve
from dovetail.host.options import HostOptions
from dovetail.host.program import PAUSED, RUNNING, WAITING, Ask, Program


class ProgramState(Program):
    """A program that has arrived and is not closed, by the records alone: it can be shown to a policy."""

    __slots__ = ("_machine", "_options", "failures")

    def __init__(self, event: Arrived, seq: int, now: float, options: HostOptions, machine: int) -> None:
        ask = Ask.of(event.job, event.facts)
        super().__init__(event.job, event.of, seq, ask, event.sizes[0], curve(ask.curve), now)
        self._options, self._machine = options, machine
        self.failures = 0
        self._bound(ask.cores)

    def _bound(self, asked: int) -> None:
        options, machine, ask = self._options, self._machine, self.ask
        self.least = min(max(ask.least, options.min_cores), asked)
        self.most = max(min(ask.most or machine, options.max_cores or machine, machine), self.least)
        limited = ask.most is not None or options.max_cores is not None
        self.asked = max(min(asked, self.most) if limited else asked, self.least)

    def follow(self, event: Any, place: int, now: float) -> None:
        """Something happened to it, or was decided; `place` is the end of the queue."""
        match event:
            case Start() | Resume() | Resize():
                if not isinstance(event, Resize):
                    self.turn_s = now
                self.catch_up(now)
                self.cores, self.state = event.devices, RUNNING
                if isinstance(event, Start):  # one that does not exist is found elsewhere
                    self.gpus = tuple(gpu for gpu in event.gpus if 0 <= gpu < len(self._options.gpus))
                if not self.ask.malleable and isinstance(event, Start):
                    self.asked = self.least = self.most = len(event.devices)
            case Pause():
                self.catch_up(now)
                self.had, self.cores, self.state = self.cores, (), PAUSED
                self._queue(place, now)
            case Stop():
                self.catch_up(now)
                self.stopping = "cancel"
            case Finished() | Failed():
                self.failures += isinstance(event, Failed) and not self.stopping
                self.left, self.service_s, self.stopping, self.cores, self.had = self.size, 0.0, "", (), ()
                self.gpus = ()
                self.state, self.ready_s = WAITING, now
                self._queue(place, now)
                if not self.ask.malleable:
                    self._bound(self.ask.cores)
            case Measured():
                self.learn(event.width, event.rate, now)
            case Asked():
                self._hear(event, place, now)

    def _queue(self, place: int, now: float) -> None:
        self.place, self.queued_s = place, now

    def _hear(self, event: Asked, place: int, now: float) -> None:
        match event.what, event.value:
            case "pause", _:
                self.held = True
            case "resume", _ if self.held:
                self.held = False
                self._queue(place, now)
            case "begin", float() | int() as value:
                self.begin_s = value
            case "edit", _ if self.state == WAITING:
                self.ask = ask = Ask.of(self.id, event.facts | {"curve": self.ask.curve})
                self.priority, self.begin_s, self.failures = ask.priority, ask.begin_s, 0
                self._bound(ask.cores)
            case "cancel" | "requeue", _:
                self.held = False
            case "priority", float() | int() as value:
                self.priority = int(value)
            case "resize", float() | int() as value if self.ask.malleable or self.state == WAITING:
                self._bound(max(min(int(value), self._machine), self.ask.least))
