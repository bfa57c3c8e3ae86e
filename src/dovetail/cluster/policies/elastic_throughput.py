"""Elastic throughput: jobs get the widths and types that are worth most together, by rates that do not change."""

from __future__ import annotations

from math import inf

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.configurations import choose
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.core.registry import policy
from dovetail.solve import LinearProgram

FEW = 500  # classes of alike jobs that one integer program counts
_GAP = 1e-6  # of the total, where there are more


@policy("elastic_throughput", level="cluster")
class ElasticThroughput:
    """Every job has one width on one type; the sum of weight x (rate over its least rate)^power is as large as can be.

    A small `power` spreads accelerators over many jobs, 1 gives most steps in total. Nothing is known of batches: what
    a larger one costs in progress per step must be in the rates of the wider kinds. A job may have any width that its
    model has rates for, whatever it asked for; a change costs a restart. Who had a place keeps it if the counts allow.
    Where jobs are of more than 500 classes, its reason says how much less than the best the sum may be, if it may.
    """

    agnostic, packs, strict, elastic = False, False, False, True

    def __init__(self, power: float = 0.5) -> None:
        if not 0 < power <= 1:
            raise ValueError(f"power is {power:g}, expected more than 0 and at most 1")
        self._power = power
        self._last: dict[int, tuple[int, int]] = {}  # by id: kind and type

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        scaled = np.arange(len(problem.rates))[:, None] if problem.scaled is None else problem.scaled
        widths = np.zeros(len(problem.rates), dtype=np.int64)
        widths[problem.kind] = problem.width
        widths = widths if problem.kind_width is None else problem.kind_width
        model = np.where(scaled >= 0, scaled, len(scaled)).min(axis=1)[problem.kind]
        most = problem.most_width
        classes = group(model, most, problem.weight)
        of, kind, on, gain = self._choices(problem, classes, scaled, widths)
        if not len(of):
            return nothing(problem, "no job runs on any type")
        if len(classes.count) <= FEW:
            count, total = _best_counts(of, on, gain, widths[kind], classes.count, problem.counts)
            bound = total
        else:
            count, total, bound = _by_prices(of, on, gain, widths[kind], classes.of, problem.counts)
        chosen = self._hand_out(problem, classes, of, kind, on, count)
        share, runs_as = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
        for job, (as_kind, at) in chosen.items():
            share[job, at], runs_as[job] = 1.0, as_kind
        self._last = {int(problem.ids[job]): place for job, place in chosen.items()}
        why = f"{len(chosen)} of {problem.jobs} jobs run, worth {total:.6g}"
        if bound - total > _GAP * total:
            why += f", at most {bound - total:.2g} less than could be"
        return Allocation(share=share, kind=runs_as, value=total, why=why)

    def _choices(
        self, problem: Problem, classes: Classes, scaled: Ints, widths: Ints
    ) -> tuple[Ints, Ints, Ints, Floats]:
        """Every way to run a job of each class: class, kind, type, and what it is worth."""
        kinds = scaled[problem.kind[classes.first]]
        known = kinds >= 0
        rates = np.where(known[:, :, None], problem.rates[kinds], 0.0)
        rates = np.where(widths[kinds][:, :, None] > problem.counts, 0.0, rates)
        rates[widths[kinds] > problem.most_width[classes.first][:, None]] = 0.0
        of, choice, on = np.nonzero(rates > 0)
        rate = rates[of, choice, on]
        least = np.full(len(kinds), inf)
        np.minimum.at(least, of, rate)
        gain: Floats = problem.weight[classes.first][of] * (rate / least[of]) ** self._power
        return of, kinds[of, choice], on, gain

    def _hand_out(
        self, problem: Problem, classes: Classes, of: Ints, kind: Ints, on: Ints, count: Ints
    ) -> dict[int, tuple[int, int]]:
        """Which job gets which place: who had it last keeps it, then the oldest take what is left."""
        chosen: dict[int, tuple[int, int]] = {}
        taken: list[dict[tuple[int, int], int]] = [{} for _ in classes.count]
        for c in np.flatnonzero(count > 0).tolist():
            taken[of[c]][int(kind[c]), int(on[c])] = int(count[c])
        order, ends = np.argsort(classes.of, kind="stable").tolist(), np.cumsum(classes.count).tolist()
        for places, begin, end in zip(taken, [0, *ends], ends, strict=False):
            waiting = []
            for job in order[begin:end] if places else ():
                had = self._last.get(int(problem.ids[job]))
                if had is not None and places.get(had, 0):
                    places[had] -= 1
                    chosen[job] = had
                else:
                    waiting.append(job)
            left = [place for place, many in places.items() for _ in range(many)]
            chosen.update(zip(waiting, left, strict=False))
        return chosen


def _best_counts(of: Ints, on: Ints, gain: Floats, width: Ints, size: Ints, counts: Ints) -> tuple[Ints, float]:
    """How many jobs of each class to run in each way: one integer program."""
    lp = LinearProgram(maximise=True, gap=1e-6 * float(gain.max()), node_limit=1000)
    lp.add_rows(np.full(len(counts), -inf), counts.astype(np.float64))
    lp.add_rows(np.full(len(size), -inf), size.astype(np.float64))
    rows = np.stack([on, len(counts) + of], axis=1).ravel()
    values = np.stack([width.astype(np.float64), np.ones(len(of))], axis=1).ravel()
    nothing = np.zeros(len(of))
    starts = np.arange(0, 2 * len(of), 2)
    upper = np.minimum(size[of], counts[on] // width).astype(np.float64)
    lp.add_columns(cost=gain, lower=nothing, upper=upper, starts=starts, rows=rows, values=values)
    lp.set_integer(np.arange(len(of)))
    total = lp.solve().value
    return np.round(lp.values()).astype(np.int64), total


def _by_prices(
    of: Ints, on: Ints, gain: Floats, width: Ints, class_of: Ints, counts: Ints
) -> tuple[Ints, float, float]:
    """How many jobs of each class to run in each way, job by job at prices of the types; what that is worth, and
    what no plan can exceed."""
    widest = int(width.max()) + 1
    ways, way = np.unique(on * widest + width, return_inverse=True)
    option = np.full((int(class_of.max()) + 1, len(ways)), -1)
    better = np.argsort(gain, kind="stable")  # the last one stays
    option[of[better], way[better]] = better
    saving = np.where(option >= 0, gain[option], -inf)
    plan = choose(saving, ways // widest, ways % widest, counts, of=class_of, gap=_GAP)
    runs = np.flatnonzero(plan.choice >= 0)
    count = np.bincount(option[class_of[runs], plan.choice[runs]], minlength=len(of))
    return count, plan.saved, plan.bound
