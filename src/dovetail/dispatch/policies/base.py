"""What a chunk-size policy is and what it sees. Policies are pure: no clock, no device, no chance of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import Protocol

from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.size_search import UNLIMITED, SizeSearch

DECLINE = 0  # the others finish it sooner; ask again whenever a chunk ends
WAIT = -1  # full; ask again when one of this device's own chunks ends

_PROBE = 0.4  # of the time that is left: no measurement may take longer
_NEW = 0.1  # least weight of the newest observation
_FAR = 0.4  # a time this far off, as a logarithm, is no noise: the device has changed


@dataclass(slots=True, eq=False)
class DeviceState:
    """What is known of one device during a run: its curve, how far it is off, and what it is busy with."""

    name: str
    curve: Curve | None = None
    size: int | None = None  # as the user asked; None: to be found
    capacity: int | None = None  # items that may be under way
    priority: float = 1.0
    slots: int = 1  # chunks it can hold at once, so that copies and computing overlap
    search: SizeSearch | None = None
    settled: bool = True  # no sizes are left to try
    limit: int = UNLIMITED  # the largest chunk that fits in its memory, as far as is known
    factor: float = 1.0  # actual time / time by the curve
    spread: float = 0.03  # how much its times are off, as a share of them
    mean_s: float = 0.0  # of recent chunks; a short one tells little about a long one
    seen: int = 0  # chunks observed
    window: list[tuple[float, float]] = field(default_factory=list)  # overlapped chunks: seconds, and by the curve
    begun_s: float = 0.0  # when it began what it is doing
    busy_until_s: float = 0.0  # when it is expected to be free
    load: int = 0
    chunks: int = 0
    alive: bool = True
    away: bool = False  # busy with another batch
    probing: bool = False  # what it is doing is a measurement

    def __post_init__(self) -> None:
        if self.curve is None and self.size is None and self.search is None:
            self.search, self.settled = SizeSearch(accelerator=self.slots > 1), False

    def seconds(self, size: float) -> float:
        """How long this device is expected to take for so many items."""
        return self.factor * self.curve.seconds(size) if self.curve else 0.0

    def free_s(self, now_s: float) -> float:
        """When the device will be free; what is overdue, the more so the later it already is."""
        due_s = self.busy_until_s
        if due_s > now_s or not self.chunks:
            return due_s if due_s > now_s else now_s
        return now_s + 2 * (now_s - due_s) + 0.05 * (due_s - self.begun_s)

    def observed(self, size: int, seconds: float) -> None:
        """A chunk took so long: averaged in, unless it is so far off that the device must have changed."""
        self.seen += 1
        if self.search is not None and (self.probing or self.slots == 1) and self.search.wants(size, seconds):
            self.probing = False
            self.search.add(size, seconds)
            self.curve = self.search.curve()
            if self.search.settled:
                self.search, self.settled, self.seen, self.factor = None, True, 0, 1.0
            return
        if self.curve is None:
            self.curve = Curve([(size, seconds)])
        planned_s = self.curve.seconds(size)
        if self.slots > 1:  # which of several chunks in flight ends when is chance; what they take together is not
            self.window.append((seconds, planned_s))
            if len(self.window) < self.slots:
                return
            seconds, planned_s = map(sum, zip(*self.window, strict=True))
            self.window = []
        ratio = max(seconds, 1e-9) / (planned_s or 1e-9)
        off = abs(log(ratio / self.factor))
        if off > _FAR:
            self.factor = ratio
            return
        self.mean_s = max(seconds, self.mean_s + 0.2 * (seconds - self.mean_s))
        self.spread += 0.2 * seconds / self.mean_s * (off - self.spread)
        self.factor += max(_NEW, 1 / (self.seen + 2)) * (ratio - self.factor)

    @property
    def best(self) -> int:
        """The size of a chunk while plenty is left."""
        if self.size:
            size = self.size
        elif self.curve is not None:
            size = self.curve.best
        else:
            size = self.search.size if self.search else 1
        return int(max(1, min(size, self.limit)))

    def known(self, curve: Curve, further: int | None) -> None:
        """Begin with a curve from before; `further` is the size to measure next, if it had not settled."""
        self.curve = curve
        if further is None:
            self.search, self.settled = None, True
        elif self.search is not None:
            self.search.resume(curve.points, further)

    def fork(self) -> DeviceState:
        """What is known of the device, for another batch: idle, in service."""
        asked = self.name, self.curve, self.size, self.capacity, self.priority, self.slots
        return DeviceState(
            *asked, self.search, self.settled, self.limit, self.factor, self.spread, self.mean_s, self.seen
        )

    def lower_limit(self, limit: int) -> None:
        """Chunks above this do not fit in the device's memory."""
        self.limit = max(1, min(self.limit, limit))
        if self.search is not None:
            self.search.limit(self.limit)
            self.settled = self.search.settled or self.size is not None


class View:
    """What a policy decides on: the clock's reading, the items that nobody has yet, and the devices."""

    __slots__ = ("devices", "now_s", "remaining", "total")

    def __init__(self, devices: list[DeviceState], total: float) -> None:
        self.devices = devices
        self.total = total
        self.remaining: float = total
        self.now_s = 0.0


class Policy(Protocol):
    """Asked whenever a device is free: how many items it takes, DECLINE or WAIT. More than is left means all of it."""

    def next(self, device: int, view: View) -> int: ...


def probe(device: int, view: View) -> int:
    """The next size to measure on a device that is not known yet; DECLINE when too little is left for it.

    One chunk at a time, alone on its device: it decides about the next size.
    """
    me = view.devices[device]
    size = DECLINE if me.search is None else _to_measure(me, me.search, view)
    return WAIT if me.chunks and (me.probing or size != DECLINE) else size


def _to_measure(me: DeviceState, search: SizeSearch, view: View) -> int:
    size = int(min(search.size, me.limit))
    alive = sum(state.alive for state in view.devices)
    if size <= view.remaining and (alive == 1 or view.remaining == inf):
        return size
    if alive == 1:
        return int(view.remaining) if me.slots == 1 and search.is_new(int(view.remaining)) else DECLINE
    if me.curve is None:
        return int(max(1, min(size, -(-view.remaining // (2 * alive)))))
    rate = sum(state.curve.rate / state.factor for state in view.devices if state.alive and state.curve is not None)
    for smaller in (size, size // 2):
        if me.seconds(smaller) < _PROBE * view.remaining / rate and search.is_new(smaller):
            return smaller
    return DECLINE


def pull_rates(view: View) -> list[float]:
    """Items per second of each live device at its best size; one that is not known counts as the mean of the others."""
    known = [state.curve.rate / state.factor if state.curve and state.factor > 0 else 0.0 for state in view.devices]
    found = [rate for rate in known if rate]
    mean = sum(found) / len(found) if found else 1.0
    return [(rate or mean) * state.alive for rate, state in zip(known, view.devices, strict=True)]
