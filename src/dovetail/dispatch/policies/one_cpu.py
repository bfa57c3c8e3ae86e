"""Devices that are all of one CPU: one call, or all of them together, by what runs took and what they cost.

Whatever they do is paid with the same CPU's time, so one call is what counts unless all together have shown to end
clearly sooner at about the same cost. That is found out in the first three runs: sizes, together, one call. Who lost is
looked at again seldom, and a look is given up as soon as it costs too much.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from dovetail.dispatch.policies.base import CALLS, DEARER, DeviceState
from dovetail.dispatch.policies.floor import FIRST, Floor, Took, Way, rate_of, usual

_CLEARLY = 0.9  # of the time of one call: else that is preferred
_WORTH = 0.75  # of it: what promises less is not tried
_TRIES = 2  # for a way whose time may have been a disturbance
_AS_CHEAP = 1.1  # times the CPU time of one call: trying it again costs nothing
_CALLED_S = 10.0  # a batch that takes no longer is done with one call, to know what that costs
_REST = 16  # runs until who lost is looked at again; then twice as many
_SOON = 2  # such runs at first, if all together cost hardly more: a busy machine may have been the reason
_LONG_S = 0.02  # of one call: shorter ones cost too much in chunks before that shows
_LONGEST_REST = 256


@dataclass
class OneCpuFloor(Floor):
    """As Floor, for devices that share a CPU."""

    ran: int = 0
    looked_at: int = 0  # the run of the latest look
    rest: int = _SOON
    is_look: bool = False  # the way that was chosen last has not shown what it costs, or lost

    searched = 1

    def choose(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool = True) -> Way:
        self.is_look = False
        way = super().choose(states, items, once, copied)
        called = [took for known, took in self._took(items).items() if known.whole]
        one_s = min(took.charged_s for took in called[0]) if called and self.is_look else 0.0
        for state in states:
            state.frugal, state.one_s = way.counts, one_s
        return way

    def _best(self, states: Sequence[DeviceState], items: int, once: Collection[int], copied: bool) -> Way:
        able = [i for i, state in enumerate(states) if state.alive]
        together, runs = Way(tuple(able)), dict(self._took(items))
        one = self._one_call(states, items, [i for i in able if i in once], runs)
        if one is None:
            return together
        first = states[one.serving[0]]
        # That chunks are in each other's way does not make one call dearer.
        one_s = _least_s(runs[one], items) if one in runs else first.hoped_s(items) / max(first.factor, 1.0)
        hoped_s = self._shared_out(states, items, {i: rate_of(states[i], items) for i in able}).wall_s
        promises = hoped_s < _WORTH * one_s
        if one not in runs:
            early = self.runs < FIRST and together not in runs and promises
            spent_s = min((run.cpu_s for run in runs.get(together, ())), default=inf) * items
            return together if early or min(one_s, spent_s) > _CALLED_S else one
        known, least_s = runs.get(together, []), min(run.cpu_s for run in runs[one])
        cost = 1.0
        if known and least_s:  # a short one is dear now and then, where threads get memory anew: that is too often
            cost = (usual(known).cpu_s if one_s >= _LONG_S else max(run.cpu_s for run in known)) / least_s
        better = bool(known) and cost <= DEARER and _least_s(known, items) < _CLEARLY * one_s
        if better:
            again = len(runs[one]) < _TRIES and runs[one][0].wall_s > DEARER * runs[one][0].charged_s
        else:  # it may have been disturbed; to try it again costs nothing then
            again = promises and len(known) == 1 and cost <= _AS_CHEAP
        charged_s = min(run.charged_s for run in runs[one])
        may_look = better or (promises and self._is_cheap_to_see(states, charged_s, items))
        soon = bool(known) and not better and cost <= DEARER and one_s >= _LONG_S
        rest = self.rest if soon else max(self.rest, _REST)
        if not again and may_look and self.ran - self.looked_at >= rest:
            self.looked_at, self.rest = self.ran, min(2 * rest, _LONGEST_REST)
            self.is_look, again = not better, True
        self.decided = not again
        return together if better != again else one

    def _one_call(
        self, states: Sequence[DeviceState], items: int, once: Sequence[int], runs: dict[Way, list[Took]]
    ) -> Way | None:
        """The way to do it with one call, if there is one: as before, or on who promises to be fastest."""
        ways = [Way((i,), whole=True) for i in once if states[i].limit >= items]
        return min(ways, key=lambda way: (way not in runs, states[way.serving[0]].hoped_s(items)), default=None)

    def _is_cheap_to_see(self, states: Sequence[DeviceState], one_s: float, items: int) -> bool:
        """Whether the small calls of a look cost a small share of one call, before that shows."""
        for state in states:
            state.one_s = one_s
        return sum(state.more_s(items) for state in states) <= CALLS * one_s * items

    def ended(self, way: Way, items: int, wall_s: float, cpu_s: float = 0.0, probed: bool = False) -> None:
        self.ran += 1
        super().ended(way, items, wall_s, cpu_s, probed)

    def passed(self, runs: int) -> None:
        self.ran += runs

    def is_sure(self, way: Way, items: int) -> bool:
        return len(self._took(items).get(way, ())) >= _TRIES


def _least_s(runs: Sequence[Took], items: int) -> float:
    """Whatever else a machine does only adds to what a run takes."""
    return min(run.wall_s for run in runs) * items
