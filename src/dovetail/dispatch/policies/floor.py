"""Which devices a batch is best done with: all, those that are fast, or the best one with a single call.

Sizes and shares follow from curves; this does not. It compares what runs really took, so whatever misleads the curves,
a batch never stays slower than one plain call on the best device. Who loses is looked at again now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import ClassVar, NamedTuple

from dovetail.dispatch.policies.base import DeviceState

_KEPT = 3  # runs, of which the median counts
FIRST = 2  # runs that go to finding sizes, if need be
_TRIES = 2  # for a way that seems to lose
_AT_ALL = 0.98  # of the time with fewer devices, or fewer calls: else those are preferred
_MAYBE = 1.5  # times the best device's time for one call, by the curves: that of others is tried too
_SLOW = 0.25  # of the fastest device's rate: one below may well cost more than it brings
_DOUBT = 1.3  # times what the curves say: such a run is repeated
_SHORT_S = 1.0  # a batch that takes no longer is tried in every way, whatever that costs
_SHARE = 0.03  # of the time, for a look at ways that lost
_REST = 16  # runs between two such looks at one way
_SOON = 4  # if it was better in one of its last runs
_AS_BEFORE = 3  # runs that are done like the one before when nothing was left to try
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
    """What batches of one form took, by their size (as a power of two) and by way."""

    took: dict[int, dict[Way, list[Took]]] = field(default_factory=dict)
    credit_s: float = 0.0  # time that looking at ways that lost may cost
    runs: int = 0  # for which a way was chosen
    decided: bool = False  # nothing was left to try when a way was chosen last
    looked: dict[Way, int] = field(default_factory=dict)  # the run in which each way that lost was looked at last
    as_before: dict[int, tuple[Way, int]] = field(default_factory=dict)  # by size: the way, and for how many more runs
    unjoinable: bool = False  # results were refused: one call must not hide that in some runs
    join_s: float = 0.0  # of the CPU per item, for putting the results of several chunks together
    searched: ClassVar[int] = FIRST  # runs that may go to finding sizes

    def choose(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool = True) -> Way:
        """How to do a batch of so many items; the states are set accordingly.

        `once`: who may do it with one call; `copied`: it must be brought to the accelerators.
        """
        self.decided = False
        is_open = (
            self.unjoinable
            or any(state.curve is None or state.size is not None for state in states)
            or (self.runs < self.searched and not all(state.measured for state in states))
        )
        if is_open:
            way = Way(tuple(range(len(states))), counts=False)
        else:
            way = self._as_before(states, items, once, copied) or self._best(states, items, once, copied)
        self.runs += 1
        for i, state in enumerate(states):
            state.out, state.whole = i not in way.serving, way.whole and i in way.serving
            state.cuts = way.cuts if state.slots > 1 else 0
        return way

    def _as_before(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool) -> Way | None:
        """The way of the run before, if that was not to find something out: to compare all of them takes a while."""
        way, left = self.as_before.pop((size := items.bit_length()), (None, 0))
        if way is None or not all(states[i].alive for i in way.serving) or (way.cuts and not copied):
            return None
        if way.whole and not (way.serving[0] in once and states[way.serving[0]].limit >= items):
            return None
        if left > 1:
            self.as_before[size] = way, left - 1
        self.decided = True
        return way

    def _best(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool) -> Way:
        runs = dict(self._took(items))  # another run may end meanwhile
        took = {way: usual(known).of(items) for way, known in runs.items()}
        planned = self._planned(states, items, once, runs, copied)
        expected = {way: took.get(way, plan).wall_s for way, plan in planned.items()}
        best = _least(expected)
        called = any(way.whole for way in runs)
        able = {way.serving for way in planned}
        for way, once_tried in runs.items():  # the first run with chunks of a size pays for their memory
            near = once_tried[0].wall_s * items <= _DEAR_ONCE * expected[best]
            if copied and way.cuts and len(once_tried) == 1 and way.serving in able and near:
                return way
        for way, plan in planned.items():
            known = runs.get(way, ())
            floor = way.whole and plan.wall_s <= _DOUBT * expected[best] and (way in runs or not called)
            if expected[best] <= _SHORT_S and _is_new_without_some(way, states, runs):
                return way
            if plan.wall_s <= _SHORT_S and (floor or plan.wall_s < _AT_ALL * expected[best]):
                doubtful = not known or min(known).wall_s * items > _DOUBT * plan.wall_s
                if len(known) < _TRIES and doubtful:
                    return way
        for way in sorted(expected, key=lambda way: len(runs.get(way, ()))):
            more_s, rest = expected[way] - expected[best], _REST
            known = runs.get(way, ())
            if known and min(known).wall_s * items < _AT_ALL * expected[best]:
                more_s, rest = min(more_s, self.credit_s), _SOON  # it was better: it may have been disturbed since
            if not way.cuts and 0 < more_s <= self.credit_s and self.runs - self.looked.get(way, -_REST) >= rest:
                self.credit_s -= more_s
                self.looked[way] = self.runs
                return way
        self.decided = True
        if len(runs.get(best, ())) >= _TRIES:
            self.as_before[items.bit_length()] = best, _AS_BEFORE
        return best

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
        rates = {i: rate_of(states[i], items) for i in able}
        fast = tuple(i for i in able if rates[i] >= _SLOW * max(rates.values()))
        calls = [i for i in able if i in once and states[i].limit >= items]
        calls.sort(key=alone.__getitem__)
        tried = {way.serving[0] for way in runs if way.whole}
        calls = [i for i in calls if i in tried or alone[i] <= _MAYBE * alone[calls[0]]]
        ways = {Way((i,), whole=True): Took(alone[i]) for i in calls}
        for serving in dict.fromkeys((fast, tuple(able))):
            plan = self._shared_out(states, items, {i: rates[i] for i in serving})
            cuts = _cuts(serving, states, items, runs) if copied else []
            ways |= {Way(serving, cuts=k): plan for k in cuts} or {Way(serving): plan}
            if cuts and (new := Way(serving, cuts=cuts[-1])) not in runs and (cuts[1:] or len(serving) == 1):
                known = [usual(took).wall_s * items for way, took in runs.items() if way.serving == serving]
                hope_s = _HOPE * min(known, default=min((alone[i] for i in calls), default=plan.wall_s))
                ways[new] = Took(hope_s)
        return ways

    def _shared_out(self, states: Sequence[DeviceState], items: int, rates: dict[int, float]) -> Took:
        """What the curves say that some devices take, each with a share by its rate."""
        wall_s = items / sum(rates.values())
        return Took(max(_busy_s(states[i], wall_s * rate) for i, rate in rates.items()) + self.join_s * items)

    def _took(self, items: int) -> dict[Way, list[Took]]:
        return self.took.setdefault(items.bit_length(), {})

    def ended(self, way: Way, items: int, wall_s: float, cpu_s: float = 0.0, probed: bool = False) -> None:
        """A run took so long; `probed`: chunks were done one at a time, unless their number was given."""
        self.credit_s += _SHARE * wall_s
        if not way.counts or (probed and not way.whole and not way.cuts):
            return
        took = self._took(items)
        if way in took and wall_s > _DOUBT * usual(took[way]).of(items).wall_s:
            self.as_before.pop(items.bit_length(), None)
        took[way] = [*took.get(way, ()), Took(wall_s / items, cpu_s / items)][-_KEPT:]

    def passed(self, runs: int) -> None:
        """So many runs were made of which nothing is told."""

    def is_sure(self, way: Way, items: int) -> bool:
        """Whether this way has shown more than once what it takes, and no other has shown to be better."""
        took = {each: usual(runs).wall_s for each, runs in dict(self._took(items)).items()}
        least_s = _AT_ALL * took.get(way, 0.0)
        return len(self._took(items).get(way, ())) > 1 and all(each_s >= least_s for each_s in took.values())

    def why(self, way: Way, items: int, names: Sequence[str]) -> str:
        """The way, and what is known of the others, as a report says it."""
        took = {other: usual(runs).of(items) for other, runs in dict(self._took(items)).items() if other != way}
        others = (f"{other.told(names)} took {each.wall_s:.3g} s" for other, each in took.items())
        return "; ".join([way.told(names), *others])


def usual(runs: Sequence[Took]) -> Took:
    """The median, or the lesser of two."""
    middle = (len(runs) - 1) // 2
    return Took(sorted(run.wall_s for run in runs)[middle], sorted(run.cpu_s for run in runs)[middle])


def rate_of(state: DeviceState, items: int) -> float:
    """Items per second that a device may reach with so many."""
    return max(items / state.hoped_s(items), state.best / state.seconds(state.best))


def _least(expected: dict[Way, float]) -> Way:
    """The way that takes least; a later one must be better."""
    best = next(iter(expected))
    for way in expected:
        if expected[way] < _AT_ALL * expected[best]:
            best = way
    return best


def _is_new_without_some(way: Way, states: Sequence[DeviceState], runs: dict[Way, list[Took]]) -> bool:
    """Whether an accelerator was not tried yet without the others, cut in any way or with one call: its curve, measured
    beside them, does not tell how fast it is when the host's memory and cores are its own."""
    alone = len(way.serving) < len(states) and any(states[i].slots > 1 for i in way.serving)
    return alone and not any(known.serving == way.serving and known.whole == way.whole for known in runs)


def _cuts(
    serving: tuple[int, ...], states: Sequence[DeviceState], items: int, runs: dict[Way, list[Took]]
) -> list[int]:
    """The best number of chunks that was tried where chunks overlap, and then the next one to try, if any.

    Four times as many as long as that gains, then those between; fewer if one call is as good.
    """
    cut = [states[i] for i in serving if states[i].slots > 1 and states[i].curve is not None]
    least = max((items / (_LARGER * state.curve.sizes[-1]) for state in cut if state.curve), default=_MOST_CUTS + 1)
    every = {way: usual(known).wall_s for way, known in runs.items() if way.cuts}
    took = {way.cuts: wall_s for way, wall_s in every.items() if way.serving == serving}
    if not took:
        first = min(every, key=every.__getitem__).cuts if every else _FIRST_CUTS
        first = max(first, 1 << (ceil(least) - 1).bit_length())
        return [first] if first <= _MOST_CUTS else []
    best = min(took, key=took.__getitem__)
    one_s = min((usual(known).wall_s for way, known in runs.items() if way.whole), default=inf)
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
