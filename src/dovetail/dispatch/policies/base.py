"""What a chunk-size policy is and what it sees. Policies are pure: no clock, no device, no chance of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf, log
from statistics import median
from typing import Protocol

from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.size_search import UNLIMITED, SizeSearch

DECLINE = 0  # the others finish it sooner; ask again whenever a chunk ends
WAIT = -1  # full; ask again when one of this device's own chunks ends

PREFIX = 0.03  # of a batch, in small chunks, shows what it costs to do it in another way
DEARER = 1.25  # times the CPU time of one call: so much may be spent for an earlier end, and no more
_SMALL = 8  # such chunks
_PARTS = 4  # of a device's share, later
CALLS = 0.02  # of what one call takes: so much may the small calls of a look cost; else they are fewer
_PROBE = 0.4  # of the time that is left: no measurement may take longer
_NEW = 0.25  # least weight of the newest observation
_FAR = 0.4  # a time this far off, as a logarithm, is no noise: the device has changed, or was disturbed
_CHECKED = 3  # first chunks, by which a curve from before is judged
_OTHER = 0.7  # a median of theirs this far off, as a logarithm: it is another curve
_NEAR = 64  # times the largest size that was measured
_RECENT = 5  # chunks, of which the median is believed in the next run
_OVERLAP = 0.7  # of a chunk's time alone, which it is thought to take beside others until that is known
_CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # into how many chunks a batch may be cut for it


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
    limit: int = UNLIMITED  # the largest chunk that fits in its memory, as far as is known
    factor: float = 1.0  # actual time / time by the curve
    spread: float = 0.03  # how much its times are off, as a share of them
    mean_s: float = 0.0  # of recent chunks; a short one tells little about a long one
    seen: int = 0  # chunks observed
    recent: list[float] = field(default_factory=list)  # what the factor was for each of the latest chunks
    window: list[tuple[float, float]] = field(default_factory=list)  # overlapped chunks: seconds, and by the curve
    begun_s: float = 0.0  # when it began what it is doing
    busy_until_s: float = 0.0  # when it is expected to be free
    load: int = 0
    chunks: int = 0
    alive: bool = True
    away: bool = False  # busy with another batch
    probing: bool = False  # what it is doing is a measurement
    busy: bool = False  # it has done a chunk of this batch
    out: bool = False  # the batch is done sooner, or as soon, without it
    whole: bool = False  # it does all of the batch in one call
    cuts: int = 0  # into how many chunks its share of the batch is cut, so that they overlap; 0: as its curve says
    frugal: bool = False  # it shares a CPU, and this run is compared with one call: none is made to find sizes
    few: bool = False  # its function is compiled for every size anew
    probed: bool = False  # chunks of this batch were done one at a time, to find sizes
    one_s: float = 0.0  # per item, of one call: the rest of this run is done so if chunks cost much more; 0: it is not

    def __post_init__(self) -> None:
        if self.curve is None and self.size is None and self.search is None:
            self.search = self._new_search()

    def _new_search(self) -> SizeSearch:
        return SizeSearch(accelerator=self.slots > 1, few=self.few)

    @property
    def settled(self) -> bool:
        """Whether no size is to be tried now."""
        return self.search is None or self.search.settled

    @property
    def measured(self) -> bool:
        """Whether a single disturbance cannot have made its curve."""
        return self.curve is not None and (self.search is None or self.search.sure)

    @property
    def serves(self) -> bool:
        """Whether it is in service, and the batch is better done with it."""
        return self.alive and not self.out

    def seconds(self, size: float) -> float:
        """How long this device is expected to take for so many items."""
        return self.factor * self.curve.seconds(size) if self.curve else 0.0

    def call_s(self, size: float) -> float:
        """As its curve says, whatever this run has shown."""
        return self.curve.seconds(size) if self.curve is not None else 0.0

    def more_s(self, total: float) -> float:
        """What a small call costs more than its items in one call with all of them."""
        size = PREFIX * total / _SMALL
        return max(self.call_s(size) - self.one_s * size, 1e-12)

    def watched(self, total: float, devices: int, is_new: bool) -> int:
        """The largest chunk where one call costs least: small ones show soon what they cost, and each costs a call."""
        calls = CALLS * self.one_s * total / self.more_s(total)
        if is_new:
            return ceil(PREFIX * total / min(max(int(calls), devices), _SMALL))
        return ceil(total / devices / min(max(int(2 * calls / devices), 1), _PARTS))

    def hoped_s(self, size: float) -> float:
        """How long it takes for so many items if no call is worse than the best one: times of others may be odd.

        Not too far above what was measured, time may grow as it did last.
        """
        if self.curve is None:
            return 0.0
        sizes, times = self.curve.sizes, self.curve.times
        hoped_s = min(self.curve.seconds(size), size / self.curve.rate)
        if len(sizes) > 1 and sizes[-1] < size <= _NEAR * sizes[-1]:
            step = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            hoped_s = min(hoped_s, times[-1] + step * (size - sizes[-1]))
        return self.factor * hoped_s

    def free_s(self, now_s: float) -> float:
        """When the device will be free; what is overdue, the more so the later it already is."""
        due_s = self.busy_until_s
        if due_s > now_s or not self.chunks:
            return due_s if due_s > now_s else now_s
        return now_s + 2 * (now_s - due_s) + 0.05 * (due_s - self.begun_s)

    def overlapped(self, share: float) -> tuple[float, float]:
        """The size of chunks that do so many items soonest where they overlap, and how long all of them take.

        Alone a chunk takes as long as the curve says; beside others, `factor` of that. So more chunks hide more of the
        copies, and cost more calls.
        """
        assert self.curve is not None
        if self.cuts:
            return share / self.cuts, inf
        beside = min(self.factor, 1.0) if len(self.recent) >= _CHECKED else _OVERLAP
        best, least_s = share, inf
        for chunks in _CUTS:
            total_s = self.curve.seconds(share / chunks) * (1 + beside * (chunks - 1))
            if total_s < least_s:
                best, least_s = share / chunks, total_s
        return min(best, self.best), least_s

    def observed(self, size: int, seconds: float, beside: bool = True) -> None:
        """A chunk took so long: averaged in, unless it is so far off that the device must have changed.

        `beside`: others were under way on this device when it began.
        """
        if self.search is not None and self.search.is_compiling(size):
            return
        self.seen, self.busy = self.seen + 1, True
        if self.search is not None and self.search.bounds:
            self.search.forget_bounds()
            self.curve = self.search.curve()
        if self.search is not None and (self.probing or self.slots == 1) and self.search.wants(size):
            self.probing, self.probed = False, self.slots > 1
            self.search.add(size, seconds / self.factor if self.search.again else seconds)
            self.curve = self.search.curve()
            return
        if self.curve is None:
            self.curve = Curve([(size, seconds)])
        planned_s = self.curve.seconds(size)
        if self.slots > 1 and not beside:
            return  # it hid nothing, and tells nothing of those that do
        if self.slots > 1:  # which of several chunks in flight ends when is chance; what they take together is not
            self.window.append((seconds, planned_s))
            if len(self.window) < self.slots:
                return
            seconds, planned_s = map(sum, zip(*self.window, strict=True))
            self.window = []
        self._drift(max(seconds, 1e-9) / (planned_s or 1e-9), seconds)
        if self.search is not None:
            self.search.worked(seconds)
            if self.search.kept and len(self.recent) >= _CHECKED:
                self._check_kept(self.search)

    def _check_kept(self, search: SizeSearch) -> None:
        """The first chunks show whether a curve from before still holds; if not, sizes are searched for again."""
        search.kept = False
        if abs(log(median(self.recent))) > _OTHER:
            self.search, self.factor, self.recent = self._new_search(), 1.0, []

    def outrun(self, size: int, seconds: float) -> None:
        """Another device did a chunk before this one, which had so long for it: it is at least that slow.

        How much slower nobody knows, so no size has shown to be better than those before.
        """
        curve = self.curve
        if self.search is not None and self.search.is_new(size) and (curve is None or size > curve.sizes[-1]):
            self.search.bound(size, seconds if curve is None else max(seconds, size / curve.rate))
            self.curve = self.search.curve()
        elif self.curve is not None and seconds > self.seconds(size):
            self._drift(seconds / (self.curve.seconds(size) or 1e-9), seconds)

    def _drift(self, ratio: float, seconds: float) -> None:
        self.recent = [*self.recent, ratio][-_RECENT:]
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

    def known(self, curve: Curve) -> None:
        """Begin with a curve from before."""
        self.curve = curve
        if self.search is not None:
            self.search.resume(curve.points)

    def fork(self) -> DeviceState:
        """What is known of the device, for another batch: idle, in service.

        How far it is off its curve is believed if several chunks said so, and forgotten while it gets none.
        """
        asked = self.name, self.curve, self.size, self.capacity, self.priority, self.slots
        recent = self.recent if self.busy else self.recent[1:]
        factor = median(recent) if len(recent) >= _CHECKED else 1.0
        if recent and abs(log(self.factor / factor)) <= _FAR:
            factor = self.factor
        state = DeviceState(*asked, self.search, self.limit, factor, self.spread, self.mean_s, self.seen, recent)
        state.few = self.few
        return state

    def lower_limit(self, limit: int) -> None:
        """Chunks above this do not fit in the device's memory."""
        self.limit = max(1, min(self.limit, limit))
        if self.search is not None:
            self.search.limit(self.limit)


class View:
    """What a policy decides on: the clock's reading, the items that nobody has yet, and the devices."""

    __slots__ = ("devices", "done", "now_s", "planned_s", "remaining", "spent_s", "too_dear", "total")

    def __init__(self, devices: list[DeviceState], total: float) -> None:
        self.devices = devices
        self.total = total
        self.remaining: float = total
        self.now_s = 0.0
        self.done, self.spent_s, self.planned_s = 0, 0.0, 0.0  # items, their time, and what is allowed for them
        self.too_dear = False  # it costs too much: the rest is done with one call

    def looked(self, state: DeviceState, items: int, seconds: float) -> None:
        """A chunk took so long in a run that must not cost much more than one call."""
        if not self.too_dear:
            self.done, self.spent_s = self.done + items, self.spent_s + seconds
            one_s = state.one_s * items
            # No call costs more than a small one beside its items; a curve that others were in the way of says so.
            call_s = min(state.call_s(items) - one_s, state.more_s(self.total))
            self.planned_s += DEARER * one_s + max(call_s, 0.0)
            self.too_dear = self.done >= PREFIX * self.total and self.spent_s > self.planned_s

    def whole_s(self, seconds: float) -> float:
        """What a run cost, or would have cost if it had gone on as it began."""
        return max(seconds, self.spent_s * self.total / self.done) if self.too_dear else seconds


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
    serving = sum(state.serves for state in view.devices)
    if size <= view.remaining and (serving == 1 or view.remaining == inf):
        return size
    if serving == 1:
        return int(view.remaining) if me.slots == 1 and search.is_new(int(view.remaining)) else DECLINE
    if not me.measured:
        return int(max(1, min(size, -(-view.remaining // (2 * serving)))))
    rate = sum(state.curve.rate / state.factor for state in view.devices if state.serves and state.curve is not None)
    most_s = _PROBE * view.remaining / rate
    if me.hoped_s(size) < most_s:
        return size
    return size // 2 if search.is_new(size // 2) and me.hoped_s(size // 2) < most_s else DECLINE


def pull_rates(view: View) -> list[float]:
    """Items per second of each live device at its best size; one that is not known counts as the mean of the others."""
    known = [state.curve.rate / state.factor if state.curve and state.factor > 0 else 0.0 for state in view.devices]
    found = [rate for rate in known if rate]
    mean = sum(found) / len(found) if found else 1.0
    return [(rate or mean) * state.serves for rate, state in zip(known, view.devices, strict=True)]
