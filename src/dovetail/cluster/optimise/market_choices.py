"""What every job of a market chooses at given prices, and how far prices can move before it would choose otherwise.

A job's progress on a type costs what the type's accelerators do; from idling it goes to the type that costs least for
its progress, from there on to a faster one, and so on, as long as progress is worth it. So it needs no more than two
types (idling counts as one). What progress is worth falls from bend to bend: of its logarithm, and where its promise
is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    tied: Bools  # by job and type: whether it would do as well in the place of `second`

    def share(self, longer_s: float = 0.0) -> Floats:
        """By job and type, if the longest job has so much more left."""
        share, job = np.zeros(self.tied.shape), np.arange(len(self.part))
        part = self.part - self.eased * longer_s
        share[job, self.first] = 1 - part
        share[job, self.second] += part
        return share[:, 1:]


class Bidders:
    """The jobs of a market."""

    def __init__(self, market: Market) -> None:
        self.market, self.jobs = market, np.arange(len(market.width))
        self.gain = np.zeros((len(self.jobs), len(market.counts) + 1))
        np.copyto(self.gain[:, 1:], market.gain, where=market.able)
        best = self.gain.argmax(axis=1)
        fastest = self.gain[self.jobs, best]
        runs = fastest > 0
        saves = np.where(runs, market.saves_s[self.jobs, best - 1], 1.0)
        self.whole_s = saves / np.where(runs, fastest, 1.0)  # of all its progress
        self.reach = np.minimum(fastest, 1 - market.progress)
        self.least_s = max(float((market.left_s - self.whole_s * self.reach).max(initial=0.0)), 0.0)
        self.weight = market.weight / len(self.jobs)
        self.late = market.late_costs * self.whole_s
        self.promised = market.must_save_s / self.whole_s

    def bids(self) -> Floats:
        """What each could get at most."""
        grown = worth(self.market.progress + self.reach) - worth(self.market.progress)
        bids: Floats = self.weight * grown + self.late * np.minimum(self.promised, self.reach)
        return bids

    def choose(self, price: Floats, longest_s: float) -> MarketChoices:
        """At these prices of the types, if the longest job has so much left."""
        cost = np.zeros(self.gain.shape)
        cost[:, 1:] = self.market.width[:, None] * price
        first, second, slope, level, held = self._walk(cost, longest_s)
        jobs, mixed = self.jobs, level > 0
        second, low = np.where(mixed, second, first), self.gain[jobs, first]
        high, low_cost, high_cost = self.gain[jobs, second], cost[jobs, first], cost[jobs, second]
        level, rise = np.where(mixed, level, low), np.where(mixed, high - low, 1.0)
        before, after = self._slope(level - NUDGE), self._slope(level + NUDGE)
        slope = np.where(mixed, slope, np.maximum(after, slope))
        below = low[:, None] - self.gain
        steps = np.where(mixed[:, None], below / rise[:, None], 0.0)
        margin = slope[:, None] * below - (low_cost[:, None] - cost)  # by which another type would be worse
        with np.errstate(divide="ignore", invalid="ignore"):
            away = margin / (np.abs(steps) * high_cost[:, None] + np.abs(1 + steps) * low_cost[:, None] + cost)
            bend = np.minimum(np.where(held, np.inf, before) - slope, slope - after) * rise / (low_cost + high_cost)
        tied = (mixed & ~held)[:, None] & (margin <= TIE * self.market.width[:, None]) & (self.gain > level[:, None])
        tied[jobs, second] = False
        away[tied] = away[jobs, first] = away[jobs, second] = np.inf
        distance = np.minimum(np.nan_to_num(away, nan=0.0).min(axis=1), np.where(mixed, np.nan_to_num(bend), np.inf))
        spare_s = longest_s - self.market.left_s + self.whole_s * level
        return MarketChoices(
            first=first,
            second=second,
            part=np.where(mixed, (level - low) / rise, 0.0),
            distance=distance,
            distance_s=np.where(held, self.whole_s * self._to_bend(level, low, high), spare_s),
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
            reached = gain[going, here]
            rise = gain[going] - reached[:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                steep = np.where(rise > 0, (cost[going] - cost[going, here][:, None]) / rise, np.inf)
            to = steep.argmin(axis=1)
            least = steep[row, to]
            free = self._wanted(going, least)
            wish = np.where(least < np.inf, np.maximum(free, must[going]), -np.inf)
            all_of_it = wish >= gain[going, to]
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

    def _slope(self, at: Floats) -> Floats:
        """What more progress is worth there."""
        part = np.searchsorted(POINTS, self.market.progress + at, side="right") - 1
        slope: Floats = np.append(SLOPES, -np.inf)[np.maximum(part, 0)] * self.weight
        return slope + np.where(at < self.promised, self.late, 0.0)

    def _to_bend(self, level: Floats, low: Floats, high: Floats) -> Floats:
        """How far progress is from where its worth or its cost bends."""
        reached = self.market.progress + level
        at = np.searchsorted(POINTS, reached, side="right")
        bend = np.minimum(reached - POINTS[np.maximum(at - 1, 0)], np.append(POINTS, np.inf)[at] - reached)
        to_bend: Floats = np.minimum.reduce([bend, np.abs(self.promised - level), level - low, high - level])
        return to_bend
