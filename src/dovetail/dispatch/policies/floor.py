"""Which devices a batch is best done with: all, those that are fast, or the best one with a single call.

Sizes and shares follow from curves; this does not. It compares what runs really took, so whatever misleads the curves,
a batch never stays slower than one plain call on the best device. Who loses is looked at again now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import median_low
from typing import NamedTuple

from dovetail.dispatch.policies.base import CALLS, DEARER, DeviceState

_KEPT = 3  # runs, of which the median counts
_FIRST = 2  # runs that go to finding sizes, if need be
_TRIES = 2  # for a way that seems to lose
_CLEARLY = 0.95  # of the time with fewer devices of one CPU, or fewer calls there: else those are preferred
_AT_ALL = 0.98  # the same where devices are not of one CPU, and nothing is lost by using them
_WORTH = 0.75  # of the time of one call on the same CPU: what promises less is not even tried
_MAYBE = 1.5  # times the best device's time for one call, by the curves: that of others is tried too
_SLOW = 0.25  # of the fastest device's rate: one below may well cost more than it brings
_DOUBT = 1.3  # times what the curves say: such a run is repeated
_SHORT_S = 1.0  # a batch that takes no longer is tried in every way, whatever that costs
_EARLY_S = 0.01  # a batch that takes no longer is done with one call in its second run
_CALLED_S = 10.0  # a batch of one CPU that takes no longer is done with one call, to know what that costs
_SHARE = 0.03  # of the time, for a look at ways that lost
_REST = 16  # runs between two such looks at one way
_FIRST_CUTS = 4  # chunks that overlap: so many are tried first
_MOST_CUTS = 64
_LARGER = 4  # times the largest chunk that was measured: no chunk is larger
_DEAR_ONCE = 1.5  # times the best time: a number of chunks that took more is not tried again
_HOPE = 0.97  # of the best time, which another number of chunks may take
_BUSY = 0.05  # of a call's time on the CPU: one that is less of it there waits for something else


def charged_s(cpu_s: float, wall_s: float) -> float:
    """What a call took: of the CPU where it only waited for that, for whatever else runs there adds to the time."""
    return min(cpu_s, wall_s) if cpu_s > _BUSY * wall_s else wall_s


class Took(NamedTuple):
    """Seconds of a run, and of the CPU for it, per item."""

    wall_s: float
    cpu_s: float = 0.0

    def of(self, items: int) -> Took:
        return Took(self.wall_s * items, self.cpu_s * items)

    @property
    def charged_s(self) -> float:
        """As a chunk is charged."""
        return charged_s(self.cpu_s, self.wall_s)


class Way(NamedTuple):
    """Devices that serve; `whole`: the only one does all with one call. Without `counts` it is for finding sizes.

    `cuts`: into how many chunks that overlap an accelerator's share is cut; 0: as its curve says.
    """

    serving: tuple[int, ...]
    whole: bool = False
    counts: bool = True
    cuts: int = 0

    def told(self, names: Sequence[str]) -> str:
        """As a report says it."""
        if self.whole:
            return f"one call on {names[self.serving[0]]}"
        who = "all devices" if len(self.serving) == len(names) else f"only {', '.join(names[i] for i in self.serving)}"
        return f"{who}, {self.cuts} overlapping chunks" if self.cuts else who


ONE_CALL = Way((0,), whole=True)


@dataclass
class Floor:
    """What batches of one form took, by their size (as a power of two) and by way.

    `shared`: all devices are of one CPU, whose time is spent for all that they do.
    """

    shared: bool = False
    took: dict[int, dict[Way, list[Took]]] = field(default_factory=dict)
    credit_s: float = 0.0  # time that looking at ways that lost may cost
    runs: int = 0
    decided: bool = False  # nothing was left to try when a way was chosen last
    looked: dict[Way, int] = field(default_factory=dict)  # the run in which each way that lost was looked at last
    unjoinable: bool = False  # results were refused: one call must not hide that in some runs
    join_s: float = 0.0  # of the CPU per item, for putting the results of several chunks together

    def choose(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool = True) -> Way:
        """How to do a batch of so many items; the states are set accordingly.

        `once`: who may do it with one call; `copied`: it must be brought to the accelerators.
        """
        self.decided = False
        way = self._best(states, items, once, copied)
        is_bound, is_tried = way.counts and not way.whole and self.runs >= _FIRST, way in self._took(items)
        self.runs += 1
        for i, state in enumerate(states):
            state.one_s, state.tried = state.one_s * is_bound, is_tried
            state.out, state.whole = i not in way.serving, way.whole and i in way.serving
            state.frugal, state.cuts = self.shared and way.counts, way.cuts if state.slots > 1 else 0
        return way

    def _best(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool) -> Way:
        if (
            self.unjoinable
            or any(state.curve is None or state.size is not None for state in states)
            or (self.runs < (1 if self.shared else _FIRST) and not all(state.measured for state in states))
        ):
            return Way(tuple(range(len(states))), counts=False)
        runs = dict(self._took(items))  # another run may end meanwhile
        took = {way: _usual(known).of(items) for way, known in runs.items()}
        planned = self._affordable(self._planned(states, items, once, runs, copied), took, runs, items)
        one = next(iter(planned))
        may_look = self._bound(states, one, took.get(one, planned[one]), items)
        if not may_look:
            planned = {way: plan for way, plan in planned.items() if way.whole or way in runs}
        expected = {way: took.get(way, plan).wall_s for way, plan in planned.items()}
        best = _least(expected, self._clearly)
        called = any(way.whole for way in runs)
        if self.shared and not called and expected[best] <= _CALLED_S and one.whole:
            # All is compared with one call, whatever the curves say of it; what is dear is tried before.
            early = self.runs < _FIRST and best not in runs and expected[one] > _EARLY_S
            return best if early and expected[best] < _WORTH * expected[one] else one
        able = {way.serving for way in planned}
        for way, once_tried in runs.items():  # the first run with chunks of a size pays for their memory
            near = once_tried[0].wall_s * items <= _DEAR_ONCE * expected[best]
            if copied and way.cuts and len(once_tried) == 1 and way.serving in able and near:
                return way
        for way, plan in planned.items():
            if not way.whole and not may_look:
                continue
            known = runs.get(way, ())
            near = plan.wall_s <= (2 * len(states) if self.shared else _DOUBT) * expected[best]
            floor = way.whole and near and (way in runs or not called)
            promises = plan.wall_s < (self._clearly if way in runs or not self.shared else _WORTH) * expected[best]
            if plan.wall_s <= _SHORT_S and (floor or promises):
                doubtful = not known or min(known).wall_s * items > _DOUBT * plan.wall_s
                if len(known) < _TRIES and doubtful:
                    return way
        for way in sorted(expected, key=lambda way: len(runs.get(way, ()))):
            more_s, hope_s = expected[way] - expected[best], planned[way].wall_s
            if way.cuts or (self.shared and not way.whole and (hope_s >= _CLEARLY * expected[best] or not may_look)):
                continue
            if 0 < more_s <= self.credit_s and self.runs - self.looked.get(way, 0 if self.shared else -_REST) >= _REST:
                self.credit_s -= more_s
                self.looked[way] = self.runs
                return way
        self.decided = True
        return best

    def _bound(self, states: Sequence[DeviceState], one: Way, took: Took, items: int) -> bool:
        """Tell the devices of one CPU what one call takes; False if a look could cost much before that shows."""
        if not self.shared or not one.whole:
            return True
        for state in states:
            state.one_s = took.charged_s / items
        calls_s = sum(state.more_s(items) for state in states)
        return self.runs < _FIRST or calls_s <= CALLS * took.charged_s

    def _planned(
        self,
        states: Sequence[DeviceState],
        items: int,
        once: Collection[int],
        runs: dict[Way, list[Took]],
        copied: bool,
    ) -> dict[Way, Took]:
        """The ways that a batch can be done, the simplest first, and what the curves say that they take."""
        able = [i for i, state in enumerate(states) if state.alive]
        alone = {i: states[i].hoped_s(items) for i in able}
        rates = {i: max(items / alone[i], states[i].best / states[i].seconds(states[i].best)) for i in able}
        fast = tuple(i for i in able if rates[i] >= _SLOW * max(rates.values()))
        calls = [i for i in able if i in once and states[i].limit >= items]
        calls.sort(key=alone.__getitem__)
        tried = {way.serving[0] for way in runs if way.whole}
        calls = [i for i in calls if i in tried or alone[i] <= _MAYBE * alone[calls[0]]]
        # That chunks are in each other's way on a CPU does not make one call dearer.
        once_s = {i: alone[i] / (max(states[i].factor, 1.0) if self.shared else 1.0) for i in calls}
        ways = {Way((i,), whole=True): Took(once_s[i], once_s[i]) for i in calls}
        for serving in (fast, tuple(able)):
            wall_s = items / sum(rates[i] for i in serving)
            busy_s = [_busy_s(states[i], wall_s * rates[i]) for i in serving]
            plan = Took(max(busy_s) + self.join_s * items, sum(busy_s) + self.join_s * items)
            cuts = _cuts(serving, states, items, runs) if copied else []
            ways |= {Way(serving, cuts=k): plan for k in cuts} or {Way(serving): plan}
            if cuts and (new := Way(serving, cuts=cuts[-1])) not in runs and (cuts[1:] or len(serving) == 1):
                known = [_usual(took).wall_s * items for way, took in runs.items() if way.serving == serving]
                hope_s = _HOPE * min(known, default=min(once_s.values(), default=plan.wall_s))
                ways[new] = Took(hope_s, hope_s)
        return ways

    @property
    def _clearly(self) -> float:
        return _CLEARLY if self.shared else _AT_ALL

    def _affordable(
        self, planned: dict[Way, Took], took: dict[Way, Took], runs: dict[Way, list[Took]], items: int
    ) -> dict[Way, Took]:
        """The ways that cost little more of the CPU than one call does."""
        one = next(iter(planned))
        if not self.shared or not one.whole:
            return planned
        # Whatever else a machine does only adds to what a call costs.
        least_s = min((run.cpu_s for run in runs.get(one, ())), default=planned[one].cpu_s / items) * items
        most_s = DEARER * least_s
        return {way: plan for way, plan in planned.items() if way == one or took.get(way, plan).cpu_s <= most_s}

    def _took(self, items: int) -> dict[Way, list[Took]]:
        return self.took.setdefault(items.bit_length(), {})

    def ended(self, way: Way, items: int, wall_s: float, cpu_s: float = 0.0, probed: bool = False) -> None:
        """A run took so long; `probed`: chunks were done one at a time, unless their number was given."""
        self.credit_s += _SHARE * wall_s
        if not way.counts or (probed and not way.whole and not way.cuts):
            return
        took = self._took(items)
        took[way] = [*took.get(way, ()), Took(wall_s / items, cpu_s / items)][-_KEPT:]

    def is_sure(self, way: Way, items: int) -> bool:
        """Whether this way has shown more than once what it takes, and no other has shown to be better."""
        took = {each: _usual(runs).wall_s for each, runs in dict(self._took(items)).items()}
        least_s = self._clearly * took.get(way, 0.0)
        return len(self._took(items).get(way, ())) > 1 and all(each_s >= least_s for each_s in took.values())

    def why(self, way: Way, items: int, names: Sequence[str]) -> str:
        """The way, and what is known of the others, as a report says it."""
        took = {other: _usual(runs).of(items) for other, runs in dict(self._took(items)).items() if other != way}
        others = (f"{other.told(names)} took {each.wall_s:.3g} s" for other, each in took.items())
        return "; ".join([way.told(names), *others])


def _usual(runs: Sequence[Took]) -> Took:
    return Took(median_low(run.wall_s for run in runs), median_low(run.cpu_s for run in runs))


def _least(expected: dict[Way, float], clearly: float) -> Way:
    """The way that takes least; a later one must be clearly better."""
    best = next(iter(expected))
    for way in expected:
        if expected[way] < clearly * expected[best]:
            best = way
    return best


def _cuts(
    serving: tuple[int, ...], states: Sequence[DeviceState], items: int, runs: dict[Way, list[Took]]
) -> list[int]:
    """The best number of chunks that was tried where chunks overlap, and then the next one to try, if any.

    Four times as many as long as that gains, then those between; fewer if one call is as good.
    """
    cut = [states[i] for i in serving if states[i].slots > 1 and states[i].curve is not None]
    least = max((items / (_LARGER * state.curve.sizes[-1]) for state in cut if state.curve), default=_MOST_CUTS + 1)
    every = {way: _usual(known).wall_s for way, known in runs.items() if way.cuts}
    took = {way.cuts: wall_s for way, wall_s in every.items() if way.serving == serving}
    if not took:
        first = min(every, key=every.__getitem__).cuts if every else _FIRST_CUTS
        first = max(first, 1 << (ceil(least) - 1).bit_length())
        return [first] if first <= _MOST_CUTS else []
    best = min(took, key=took.__getitem__)
    one_s = min((_usual(known).wall_s for way, known in runs.items() if way.whole), default=inf)
    if took[best] > _AT_ALL * one_s:
        tries = [best // 2]
    else:
        tries = [4 * best, 2 * best, best // 2] if best == max(took) else [2 * best, best // 2]
    new = [k for k in tries if k not in took and max(least, 2) <= k <= _MOST_CUTS]
    return [best, *new[:1]]


def _busy_s(state: DeviceState, share: float) -> float:
    """How long a device is busy with its share of a batch, in one call or in several."""
    if state.slots > 1:
        return state.overlapped(share)[1]
    calls = ceil(share / state.best)
    return min(state.seconds(share), calls * state.seconds(share / calls))
