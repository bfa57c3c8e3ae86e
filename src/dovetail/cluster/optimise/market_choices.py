"""What every job of a market chooses at given prices, and how far prices can move before it would choose otherwise.

A job's progress on a type costs what the type's accelerators do; from idling it goes to the type that costs least for
its progress, from there on to a faster one, and so on, as long as progress is worth it. So it needs no more than two
types (idling counts as one). What progress is worth falls from bend to bend: of its logarithm, and where its promise
is kept.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from dovetail.cluster.optimise.market import POINTS, Bools, Market, worth
from dovetail.cluster.policies.base import Floats, Ints

SLOPES = np.diff(worth(POINTS)) / np.diff(POINTS)
TIE = 1e-9  # prices that differ by less are equal
NUDGE = 1e-9  # of a job: nearer than this, a bend is reached


@dataclass(slots=True)
class MarketChoices:
    """By job: a part of its time on `second`, the rest on `first`; 0 is idling, then the types."""

    first: Ints
    second: Ints
    part: Floats
    distance: Floats  # that prices can move, over themselves
    distance_s: Floats  # that what the longest job has left can move
    held: Bools  # whether it makes no more progress than it must, to not become the longest
    eased: Floats  # part of its time that moves back to `first` for a second that the longest has more, if it is held
    slope: Floats  # what more progress is worth
    tied: Bools  # by type and job: whether it would do as well in the place of `second`

    def share(self, longer_s: float = 0.0) -> Floats:
        """By job and type, if the longest job has so much more left."""
        share, job = np.zeros(self.tied.shape[::-1]), np.arange(len(self.part))
        part = self.part - self.eased * longer_s
        share[job, self.first] = 1 - part
        share[job, self.second] += part
        return share[:, 1:]


class Bidders:
    """The jobs of a market; `gain` is by type (0 is idling) and job."""

    def __init__(self, market: Market) -> None:
        self.market, self.jobs = market, np.arange(len(market.width))
        self.gain = np.zeros((len(market.counts) + 1, len(self.jobs)))
        np.copyto(self.gain[1:], market.gain.T, where=market.able.T)
        best = self.gain.argmax(axis=0)
        fastest = self.gain[best, self.jobs]
        runs = fastest > 0
        saves = np.where(runs, market.saves_s[self.jobs, best - 1], 1.0)
        self.whole_s = saves / np.where(runs, fastest, 1.0)  # of all its progress
        self.reach = np.minimum(fastest, 1 - market.progress)
        self.least_s = max(float((market.left_s - self.whole_s * self.reach).max(initial=0.0)), 0.0)
        self.promised = market.must_save_s / self.whole_s
        self._price()

    def _price(self) -> None:
        self.weight = self.market.weight / len(self.jobs)
        self.late = self.market.late_costs * self.whole_s

    def in_unit(self, unit: float) -> Bidders:
        """The same jobs in a market where everything is worth so many times as much."""
        found = copy(self)
        found.market = replace(
            self.market,
            weight=self.market.weight * unit,
            late_costs=self.market.late_costs * unit,
            longest_costs=self.market.longest_costs * unit,
        )
        found._price()
        return found

    def bids(self) -> Floats:
        """What each could get at most."""
        grown = worth(self.market.progress + self.reach) - worth(self.market.progress)
        bids: Floats = self.weight * grown + self.late * np.minimum(self.promised, self.reach)
        return bids

    def choose(self, price: Floats, longest_s: float) -> MarketChoices:
        """At these prices of the types, if the longest job has so much left."""
        cost = np.zeros(self.gain.shape)
        cost[1:] = price[:, None] * self.market.width
        first, second, slope, level, held = self._walk(cost, longest_s)
        jobs, mixed = self.jobs, level > 0
        second, low = np.where(mixed, second, first), self.gain[first, jobs]
        high, low_cost, high_cost = self.gain[second, jobs], cost[first, jobs], cost[second, jobs]
        level, rise = np.where(mixed, level, low), np.where(mixed, high - low, 1.0)
        after = self._slope(slice(None), level + NUDGE)
        slope = np.where(mixed, slope, np.maximum(after, slope))
        steps = low - self.gain
        margin = slope * steps  # by which another type would be worse
        margin -= low_cost - cost
        steps /= rise  # in place from here on: there are many, and memory is what takes time
        steps *= mixed
        away = np.abs(steps) * high_cost
        steps += 1
        away += np.multiply(np.abs(steps, out=steps), low_cost, out=steps)
        away += cost
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(margin, away, out=away)
        tied = (mixed & ~held) & (margin <= TIE * self.market.width) & (self.gain > level)
        tied[second, jobs] = False
        away[np.isnan(away)] = 0.0
        away[tied] = away[first, jobs] = away[second, jobs] = np.inf
        distance, between = away.min(axis=0), np.flatnonzero(mixed)
        before = np.where(held[between], np.inf, self._slope(between, level[between] - NUDGE))
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = np.minimum(before - slope[between], (slope - after)[between]) * rise[between]
            bend /= (low_cost + high_cost)[between]
        distance[between] = np.minimum(distance[between], np.nan_to_num(bend))
        spare_s, bound = longest_s - self.market.left_s + self.whole_s * level, np.flatnonzero(held)
        spare_s[bound] = self.whole_s[bound] * self._to_bend(bound, level[bound], low[bound], high[bound])
        return MarketChoices(
            first=first,
            second=second,
            part=np.where(mixed, (level - low) / rise, 0.0),
            distance=np.nan_to_num(distance),
            distance_s=spare_s,
            held=held,
            eased=np.where(held, 1 / (self.whole_s * rise), 0.0),
            slope=np.maximum(after, 0.0),
            tied=tied,
        )

    def _walk(self, cost: Floats, longest_s: float) -> tuple[Ints, Ints, Floats, Floats, Bools]:
        """From type to type: the last one reached, the one on the way to which progress ends, its cost there, where
        (0 if it is on no way), and whether that is what the longest job's remaining time asks for."""
        gain, jobs = self.gain, len(self.jobs)
        first, second = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
        slope, level, held = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs, dtype=bool)
        must = np.minimum((self.market.left_s - longest_s) / self.whole_s, self.reach)
        going = self.jobs
        while len(going):
            row, here = np.arange(len(going)), first[going]
            reached = gain[here, going]
            every = len(going) == jobs
            rise = (gain if every else gain[:, going]) - reached
            with np.errstate(divide="ignore", invalid="ignore"):
                more = (cost if every else cost[:, going]) - cost[here, going]
                steep = np.where(rise > 0, more / rise, np.inf)
            to = _first_least(steep)
            least = steep[to, row]
            free = self._wanted(going, least)
            wish = np.where(least < np.inf, np.maximum(free, must[going]), -np.inf)
            all_of_it = wish >= gain[to, going]
            between = ~all_of_it & (wish > reached)
            ends, going_on = going[between], going[all_of_it]
            second[ends], slope[ends], level[ends] = to[between], least[between], wish[between]
            held[ends] = (wish > free)[between]
            first[going_on], slope[going_on] = to[all_of_it], least[all_of_it]
            going = going_on
        return first, second, slope, level, held

    def _wanted(self, job: Ints, slope: Floats) -> Floats:
        """Progress, as far as more of it is worth at least this."""
        late = np.minimum(self._until(job, slope - self.late[job]), self.promised[job])
        wanted: Floats = np.maximum(self._until(job, slope), late)
        return wanted

    def _until(self, job: Ints, slope: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.searchsorted(-SLOPES, -slope / self.weight[job], side="right")
        until: Floats = POINTS[parts] - self.market.progress[job]
        return until

    def _slope(self, job: Ints | slice, at: Floats) -> Floats:
        """What more progress is worth there."""
        part = np.searchsorted(POINTS, self.market.progress[job] + at, side="right") - 1
        slope: Floats = np.append(SLOPES, -np.inf)[np.maximum(part, 0)] * self.weight[job]
        return slope + np.where(at < self.promised[job], self.late[job], 0.0)

    def _to_bend(self, job: Ints, level: Floats, low: Floats, high: Floats) -> Floats:
        """How far progress is from where its worth or its cost bends."""
        reached = self.market.progress[job] + level
        at = np.searchsorted(POINTS, reached, side="right")
        bend = np.minimum(reached - POINTS[np.maximum(at - 1, 0)], np.append(POINTS, np.inf)[at] - reached)
        to_bend: Floats = np.minimum.reduce([bend, np.abs(self.promised[job] - level), level - low, high - level])
        return to_bend


def _first_least(values: Floats) -> Ints:
    """By column: the first row of those with the least value; for few rows and many columns."""
    least, found = values[0], np.zeros(values.shape[1], dtype=np.int64)
    for row, own in enumerate(values[1:], start=1):
        found[own < least] = row
        least = np.minimum(least, own)
    return found
