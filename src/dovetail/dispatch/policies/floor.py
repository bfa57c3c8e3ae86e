"""Which devices a batch is best done with: all, those that are fast, or the best one with a single call.

Sizes and shares follow from curves; this does not. It compares what runs really took, so whatever misleads the curves,
a batch never stays slower than one plain call on the best device. Who loses is looked at again now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median_low
from typing import NamedTuple

from dovetail.dispatch.policies.base import DeviceState

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
_SHARE = 0.03  # of the time, for a look at ways that lost
_REST = 16  # runs between two such looks at one way
_DEARER = 1.1  # times the CPU time of one call: so much may be spent for an earlier end, and no more


class Took(NamedTuple):
    """Seconds of a run, and of the CPU for it, per item."""

    wall_s: float
    cpu_s: float = 0.0

    def of(self, items: int) -> Took:
        return Took(self.wall_s * items, self.cpu_s * items)


class Way(NamedTuple):
    """Devices that serve; `whole`: the only one does all with one call. Without `counts` it is for finding sizes."""

    serving: tuple[int, ...]
    whole: bool = False
    counts: bool = True

    def told(self, names: Sequence[str]) -> str:
        """As a report says it."""
        if self.whole:
            return f"one call on {names[self.serving[0]]}"
        return "all devices" if len(self.serving) == len(names) else f"only {', '.join(names[i] for i in self.serving)}"


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

    def choose(self, states: Sequence[DeviceState], items: int, once: Collection[int]) -> Way:
        """How to do a batch of so many items; the states are set accordingly. `once`: who may do it with one call."""
        self.decided = False
        way = self._best(states, items, once)
        self.runs += 1
        for i, state in enumerate(states):
            state.out, state.whole = i not in way.serving, way.whole and i in way.serving
            state.frugal = self.shared and way.counts
        return way

    def _best(self, states: Sequence[DeviceState], items: int, once: Collection[int]) -> Way:
        if (
            self.unjoinable
            or any(state.curve is None or state.size is not None for state in states)
            or (self.runs < (1 if self.shared else _FIRST) and not all(state.measured for state in states))
        ):
            return Way(tuple(range(len(states))), counts=False)
        runs = dict(self._took(items))  # another run may end meanwhile
        took = {way: _usual(known).of(items) for way, known in runs.items()}
        planned = self._affordable(_planned(states, items, once, runs), took)
        expected = {way: took.get(way, plan).wall_s for way, plan in planned.items()}
        best = _least(expected, self._clearly)
        called = any(way.whole for way in runs)
        if self.shared and not called and expected[best] <= _SHORT_S and (one := next(iter(planned))).whole:
            return one  # whatever the curves say of it: all is compared with this one
        for way, plan in planned.items():
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
            if self.shared and not way.whole and hope_s >= _CLEARLY * expected[best]:
                continue
            if 0 < more_s <= self.credit_s and self.runs - self.looked.get(way, -_REST) >= _REST:
                self.credit_s -= more_s
                self.looked[way] = self.runs
                return way
        self.decided = True
        return best

    @property
    def _clearly(self) -> float:
        return _CLEARLY if self.shared else _AT_ALL

    def _affordable(self, planned: dict[Way, Took], took: dict[Way, Took]) -> dict[Way, Took]:
        """The ways that cost little more of the CPU than one call does."""
        one = next(iter(planned))
        if not self.shared or not one.whole:
            return planned
        most_s = _DEARER * took.get(one, planned[one]).cpu_s
        return {way: plan for way, plan in planned.items() if way == one or took.get(way, plan).cpu_s <= most_s}

    def _took(self, items: int) -> dict[Way, list[Took]]:
        return self.took.setdefault(items.bit_length(), {})

    def ended(self, way: Way, items: int, wall_s: float, cpu_s: float = 0.0) -> None:
        """A run took so long."""
        self.credit_s += _SHARE * wall_s
        if not way.counts:
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


def _planned(states: Sequence[DeviceState], items: int, once: Collection[int], runs: Iterable[Way]) -> dict[Way, Took]:
    """The ways that a batch can be done, the simplest first, and what the curves say that they take."""
    able = [i for i, state in enumerate(states) if state.alive]
    alone = {i: states[i].hoped_s(items) for i in able}
    rates = {i: max(items / alone[i], states[i].best / states[i].seconds(states[i].best)) for i in able}
    fast = tuple(i for i in able if rates[i] >= _SLOW * max(rates.values()))
    calls = [i for i in able if i in once and states[i].limit >= items]
    calls.sort(key=alone.__getitem__)
    tried = {way.serving[0] for way in runs if way.whole}
    calls = [i for i in calls if i in tried or alone[i] <= _MAYBE * alone[calls[0]]]
    ways = {Way((i,), whole=True): Took(alone[i], alone[i]) for i in calls}
    for serving in (fast, tuple(able)):
        wall_s = items / sum(rates[i] for i in serving)
        busy_s = [_busy_s(states[i], wall_s * rates[i]) for i in serving]
        ways[Way(serving)] = Took(max(busy_s), sum(busy_s))
    return ways


def _busy_s(state: DeviceState, share: float) -> float:
    """How long a device is busy with its share of a batch, in one call or in several."""
    if state.slots > 1:
        return state.overlapped(share)[1]
    calls = ceil(share / state.best)
    return min(state.seconds(share), calls * state.seconds(share / calls))
