"""What live runs teach: how fast models really are, and how long their loads take. No I/O, no clock.

The rate table of a live run begins as the configuration's and follows what is seen. The scheduler learns while it
decides; the checker learns the same from the journal, with the same class, and so knows what was to be expected of each
start.

* A model's **pace** on a type of GPU is the work of a call (its seconds at the speed that the configuration tells) over
  the seconds that it took, from `Settled` (or its start, if nothing had to be loaded) to `Finished`. Where tokens are
  told, the work is that of the tokens there were. Calls that share a window count for the number that were there at
  once on average, so that the speed of each at 2, 3, ... at once is learned too.
* A **load** is the time from a start to its `Settled`, or from `Prepare` to `PrepareEnded`, by what left the GPU; where
  a pair was not seen often enough, by the model alone (`from: "*"`). Of two in the middle the shorter one counts: the
  first load of a process brings its libraries along, and a model that seems dear is not loaded again to show that it is
  not.

Each number is the median of the last `RECENT` samples, and counts from `FEW_RUNS` or `FEW_LOADS` of them on; it takes
the place of the one before only if it differs by more than `NOTICED`. Nothing is learned from failures, from windows of
unlike GPUs, from loads of adapters, nor from loads that partly hide behind runs (`costs.overlap`).

A call that runs longer than was expected is expected to run on for its spread times what it has had; so is a load.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.events import Start
from dovetail.core.rates import ANY, PREFILL, Rate, RateTable, Switch
from dovetail.core.resources import Pool
from dovetail.workflow.inputs.costs import CostRules, ModelCost, window_shares

RECENT = 31
FEW_RUNS, FEW_LOADS = 5, 2
NOTICED = 0.01
LEAST_SPREAD, USUAL_SPREAD = 0.1, 0.5  # of what runs on for longer than expected: at least, and while nobody knows
Key = tuple[str, str]
Place = tuple[str, str]  # a model, and a type of GPU


class RecentSamples:
    """The last few numbers of one thing.

    >>> samples = RecentSamples()
    >>> for number in (2.0, 9.0, 2.2, 1.8):
    ...     samples.add(number)
    >>> samples.count, samples.median, round(samples.spread, 3)
    (4, 2.1, 0.141)
    """

    __slots__ = ("_order", "_sorted")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, number: float) -> None:
        if len(self._order) == RECENT:
            self._sorted.remove(self._order.popleft())
        self._order.append(number)
        insort(self._sorted, number)

    @property
    def count(self) -> int:
        return len(self._sorted)

    @property
    def median(self) -> float:
        return _median(self._sorted)

    @property
    def lower_median(self) -> float:
        return self._sorted[(len(self._sorted) - 1) // 2]

    @property
    def spread(self) -> float:
        """Of single numbers, relative to the median: that of a normal distribution with as wide a middle."""
        median = self.median
        return 1.4826 * _median(sorted([abs(number - median) for number in self._sorted])) / median if median else 0.0


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class LearnedRate(Struct, frozen=True):
    """A number that was learned, and how: `what` is a pace (of so many at once) or a load (of what left)."""

    what: str
    model: str
    device: str
    value: float
    spread: float
    samples: int


class LoadCase(Struct, frozen=True):
    """A load, as its price is looked up: in the place of what, and what of its time is not its own."""

    previous: str
    extra_s: float = 0.0


class _Call:
    """A call that runs. `work_s` is what it takes alone at the speed that the configuration tells."""

    __slots__ = ("began_s", "busy", "case", "settled_s", "shared", "start", "work_s")

    def __init__(self, start: Start, now: float, work_s: float, case: LoadCase | None) -> None:
        self.start, self.began_s, self.work_s, self.case = start, now, work_s, case
        self.settled_s: float | None = None if start.setup_s else now
        self.shared: _Shared | None = None
        self.busy = 0.0  # what the window's clock of calls showed when it began


class _Shared:
    """A window that calls share: how many, their number summed over time, and when its model is loaded."""

    __slots__ = ("at_s", "began_s", "busy", "count", "loaded", "ready_s", "settled")

    def __init__(self, now: float, setup_s: float) -> None:
        self.at_s = self.began_s = now
        self.ready_s, self.settled = now + setup_s, not setup_s
        self.count, self.busy, self.loaded = 0, 0.0, 0.0

    def settle(self, now: float) -> None:
        if not self.settled:
            self.loaded = self.change(now, 0)
            self.settled, self.ready_s = True, now

    def change(self, now: float, calls: int) -> float:
        self.busy += self.count * (now - self.at_s)
        self.at_s, self.count = now, self.count + calls
        return self.busy


class Learning:
    """Follows starts and ends, and keeps `table` up to date: the scheduler's own, which begins as the given one."""

    def __init__(self, pool: Pool, models: Mapping[str, ModelCost], costs: CostRules, table: RateTable) -> None:
        self.table = table
        self._given = RateTable(table.rates.values(), table.switches.values())
        self._models, self._loads = models, not costs.overlap
        self._adapters = {name for name, model in models.items() if model.adapter_of}
        self._calls: dict[Key, _Call] = {}
        self._batches: dict[int, int] = {}
        self._shared: dict[tuple[int, ...], _Shared] = {}
        self._paces: dict[Place, float] = {}
        self._runs: dict[Place, dict[int, RecentSamples]] = {}
        self._switches: dict[tuple[str, str, str], RecentSamples] = {}
        self._known: dict[Place, tuple[float, dict[int, float], list[float], float | None]] = {}
        self._on: dict[int, _Call] = {}  # the last one on each GPU
        self.extend(pool)

    def extend(self, pool: Pool) -> None:
        """The pool is this one now."""
        self._types, self._speed = [d.type for d in pool.devices], {t: kind.speed for t, kind in pool.types.items()}

    # --- what happens -----------------------------------------------------------------------------

    def started(self, now: float, start: Start, share: float, case: LoadCase | None) -> None:
        """A start, the speed of each on its window beside those who are there (alone 1), and what it must load."""
        if not start.devices:
            return
        place = self._place(start.kind, start.devices)
        pace = 1.0 if place is None else self._paces.get(place, 1.0)
        call = self._calls[start.job, start.task] = _Call(start, now, start.run_s * share * pace, case)
        self._on |= dict.fromkeys(start.devices, call)
        if start.slots:
            shared = self._shared.get(start.devices)
            if shared is None:
                shared = self._shared[start.devices] = _Shared(now, start.setup_s)
            call.shared = shared
            call.busy = shared.change(now, 1)
        elif start.batch:
            self._batches[start.batch] = self._batches.get(start.batch, 0) + 1

    def settled(self, now: float, key: Key) -> str | None:
        """A model is loaded and its call begins: the model, if what its load takes is another number now."""
        call = self._calls.get(key)
        if call is None:
            return None
        call.settled_s = now
        if call.shared is not None:
            call.shared.settle(now)
        return self._loaded(call.case, self._place(call.start.kind, call.start.devices), now - call.began_s)

    def prepared(self, model: str, gpus: Sequence[int], took_s: float, case: LoadCase | None) -> str | None:
        """A model was loaded ahead of need: the model, if what its load takes is another number now."""
        return self._loaded(case, self._place(model, gpus), took_s)

    def _loaded(self, case: LoadCase | None, place: Place | None, took_s: float) -> str | None:
        if case is None or place is None or not self._loads or place[0] in self._adapters:
            return None
        seconds = max(0.0, took_s - case.extra_s)
        self.load_seen(case.previous, place, seconds)
        changed = [self._load(previous, place, seconds) for previous in (case.previous, ANY)]
        return place[0] if any(changed) else None

    def counted(self, key: Key, expected: Sequence[int], facts: Mapping[str, Any], size_s: float) -> None:
        """So many tokens were expected to be read and written, in a size of so many seconds; so many were."""
        call, told = self._calls.get(key), [n for n in (facts.get("input"), facts.get("output")) if type(n) is int]
        if call is None or not expected[1] or not size_s or len(told) < 2 or min(told) < 0:
            return
        prefill_s = self._models[call.start.kind].prefill_s
        each_s = max(0.0, size_s - expected[0] * prefill_s) / expected[1]
        call.work_s *= (told[0] * prefill_s + told[1] * each_s) / size_s

    def ended(self, now: float, key: Key, good: bool) -> str | None:
        """A call has ended: the model, if it is faster or slower than was known."""
        call = self._calls.pop(key, None)
        if call is None:
            return None
        start, last, at_once = call.start, True, 1.0
        if call.shared is not None:
            busy = call.shared.change(now, -1)
            begins_s = self._begin_s(call)
            at_once = (busy - max(call.busy, call.shared.loaded)) / (now - begins_s) if now > begins_s else 1.0
            if not call.shared.count:
                del self._shared[start.devices]
        elif start.batch:
            last = self._leave_batch(start.batch)
        place, begins_s = self._place(start.kind, start.devices), self._begin_s(call)
        if not good or begins_s > now:
            return None
        number = min(max(1, round(at_once)), max(1, self._models[start.kind].slots))
        self.run_seen(key, place, number, call.work_s, now - begins_s)
        if not last or place is None or not call.work_s or begins_s == now:
            return None
        samples = self._runs.setdefault(place, {}).setdefault(number, RecentSamples())
        samples.add(call.work_s / (now - begins_s))
        return start.kind if self._learn_pace(place) else None

    def run_seen(self, key: Key, place: Place | None, at_once: int, work_s: float, took_s: float) -> None:
        """A call has finished. For those who want to keep more than a few samples."""

    def load_seen(self, previous: str, place: Place, seconds: float) -> None:
        """A model was loaded. For those who want to keep more than a few samples."""

    def _begin_s(self, call: _Call) -> float:
        """When its run began; never, if its model was to be loaded and nobody said when that was."""
        if call.settled_s is not None:
            return call.settled_s
        if call.shared is not None and call.shared.settled:
            return max(call.began_s, call.shared.ready_s)
        return inf

    def _leave_batch(self, batch: int) -> bool:
        """Whether it was the last one of it."""
        self._batches[batch] -= 1
        if not self._batches[batch]:
            del self._batches[batch]
            return True
        return False

    # --- what is known ----------------------------------------------------------------------------

    def _place(self, model: str, gpus: Sequence[int]) -> Place | None:
        types = {self._types[gpu] for gpu in gpus}
        return (model, types.pop()) if len(types) == 1 else None

    def loading_s(self, window: tuple[int, ...], now: float) -> float:
        """What is left of the load of a window that calls share."""
        shared = self._shared.get(window)
        if shared is None or shared.settled:
            return 0.0
        return max(shared.ready_s - now, USUAL_SPREAD * (now - shared.began_s) if now > shared.ready_s else 0.0)

    def overrun_s(self, gpu: int, now: float) -> float:
        """How long what should have left a GPU by now is expected to go on."""
        call = self._on[gpu]
        place = self._place(call.start.kind, call.start.devices)
        samples = None if place is None else self._runs.get(place, {}).get(1)
        spread = samples.spread if samples is not None and samples.count >= FEW_RUNS else USUAL_SPREAD
        return max(LEAST_SPREAD, spread) * (now - call.began_s)

    def known(self) -> list[LearnedRate]:
        """All that was learned, with its spread."""
        found = []
        for (model, device), paces in sorted(self._runs.items()):
            for at_once, samples in sorted(paces.items()):
                if samples.count >= FEW_RUNS:
                    what = "pace" if at_once == 1 else f"pace at {at_once} at once"
                    found.append(LearnedRate(what, model, device, samples.median, samples.spread, samples.count))
        for (previous, model, device), samples in sorted(self._switches.items()):
            if samples.count >= FEW_LOADS:
                what = f"load after {previous}" if previous else "load"
                found.append(LearnedRate(what, model, device, samples.lower_median, samples.spread, samples.count))
        return found

    def _load(self, previous: str, place: Place, seconds: float) -> bool:
        model, device = place
        key = (previous, model, device)
        samples = self._switches.setdefault(key, RecentSamples())
        samples.add(seconds)
        before = self.table.switches.get(key)
        if samples.count < FEW_LOADS or (before is not None and not _differs(samples.lower_median, before.seconds)):
            return False
        self.table.switches[key] = Switch(model, samples.lower_median, previous, device, "measured")
        return True

    def _learn_pace(self, place: Place) -> bool:
        """Write down how fast a model is, of one alone and of several at once, if that has changed."""
        known = {n: s.median for n, s in sorted(self._runs[place].items()) if s.count >= FEW_RUNS}
        if not known:
            return False
        (model, device), width = place, self._models[place[0]].width
        base, points, shares, reads = self.told(place)
        alone = known.get(1)
        if alone is None:  # by the number at once that was seen most, and what the configuration says of that
            most = max(known, key=lambda n: (self._runs[place][n].count, -n))
            alone = known[most] / shares[min(most, len(shares)) - 1]
        pace = {n: rate / base * alone for n, rate in points.items()} | known | {1: alone}
        slowest, changed = inf, False
        for at_once, value in sorted(pace.items()):
            slowest = min(slowest, value)
            changed = self._rate(Rate(model, device, base * slowest, width, "", "measured", "", at_once)) or changed
        if changed:
            at = self._paces[place] = self.table.rates[model, device, width, "", "", 1].rate / base
            if reads is not None:
                self.table.put(Rate(model, device, reads * at, width, "", "measured", PREFILL))
        return changed

    def told(self, place: Place) -> tuple[float, dict[int, float], list[float], float | None]:
        """What the configuration tells of a model on a type: its rate, that of each at several at once, their shares of
        one alone, and its rate of reading."""
        if place not in self._known:
            (name, device), model, given = place, self._models[place[0]], self._given
            base = given.rate(name, device, model.width) or self._speed[device]
            points = given.at_once(name, device, width=model.width) or {1: base}
            shares = window_shares(model, [points]) if model.slots else [1.0]
            self._known[place] = (base, points, shares, given.per_s(name, device, PREFILL, model.width))
        return self._known[place]

    def _rate(self, rate: Rate) -> bool:
        before = self.table.rates.get((rate.kind, rate.device, rate.width, "", "", rate.concurrency))
        if before is not None and not _differs(rate.rate, before.rate):
            return False
        self.table.put(rate)
        return True


def _differs(one: float, other: float) -> bool:
    return abs(one - other) > NOTICED * other
