"""A class's total time, divided among its jobs, equally or by what they want; shared time as few pairs of jobs."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.classes import Classes
from dovetail.cluster.optimise.demands import DemandProgram, Supply
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import DIGITS, rounded, within_limits
from dovetail.cluster.optimise.windows import divide
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem


def equally(problem: Problem, classes: Classes, program: ShareProgram, *, value: float | None, why: str) -> Allocation:
    """Every job of a class gets the same share of everything that its class was given."""
    total, options = program.settled, program.options
    alone = np.zeros((len(program.size), len(problem.counts)))
    alone[program.single_at] = total[program.single]
    alone = rounded(alone[program.at] / classes.count[:, None])
    some_shared = len(program.single) < len(total)
    paired = np.flatnonzero((options.b >= 0) & (total > 10.0**-DIGITS)) if some_shared else program.single[:0]
    if not len(paired):
        # On classes, not jobs: the same limits, and fewer numbers.
        alone /= np.maximum(np.add.reduce(alone, axis=1, keepdims=True), 1.0)
        used = (classes.count * problem.width[classes.first]) @ alone
        if np.count_nonzero(used > problem.counts):
            alone *= np.minimum(problem.counts / np.maximum(used, 1e-300), 1.0)
        return Allocation(share=alone[classes.of], value=value, why=why)
    slot_class = np.full(len(program.size), -1)
    slot_class[program.at] = np.arange(len(program.at))
    a, b = slot_class[options.a[paired]], slot_class[options.b[paired]]
    shared: dict[tuple[int, int], Floats] = {}
    for left, right, on, time in zip(
        a.tolist(), b.tolist(), options.type[paired].tolist(), total[paired].tolist(), strict=True
    ):
        shared.setdefault((left, right), np.zeros(len(problem.counts)))[on] += time
    members = classes.members()
    pairs, pair_share = pair_up([(members[left], members[right], time) for (left, right), time in shared.items()])
    share, pair_share = within_limits(problem, alone[classes.of], pairs, pair_share)
    return Allocation(share=share, pairs=pairs, pair_share=pair_share, value=value, why=why)


def by_demand(
    problem: Problem, program: DemandProgram, supplies: list[Supply], want: Floats, *, value: float, why: str
) -> Allocation | Ints:
    """Every job gets what it wants or more; or the jobs that want too much of the time that their class shares.

    A job cannot be its own neighbour, so it can have at most half of what its class shares with itself. Who would need
    more must become a class of its own.
    """
    options = program.options
    share = np.zeros((problem.jobs, len(problem.counts)))
    sides: dict[int, list[tuple[Ints, Floats]]] = {}
    greedy: list[int] = []
    for jobs, supply in zip(program.members, supplies, strict=True):
        given = divide(supply.rate, supply.time, want[jobs])
        for column, option in enumerate(supply.option.tolist()):
            if options.b[option] < 0:
                share[jobs, options.type[option]] = given[:, column]
                continue
            if options.a[option] == options.b[option]:
                greedy += jobs[given[:, column] > supply.time[column] / 2 + 1e-9].tolist()
            sides.setdefault(option, []).append((jobs, given[:, column]))
    if greedy:
        return np.array(greedy)
    found = [(*_beside(*side), int(options.type[option])) for option, side in sides.items()]
    if not found:
        share, _ = within_limits(problem, share)
        return Allocation(share=share, value=value, why=why)
    code = np.concatenate([pair for pair, _, _ in found]) @ [problem.jobs, 1]
    code, where = np.unique(code, return_inverse=True)
    pairs = np.stack(np.divmod(code, problem.jobs), axis=1)
    pair_share = np.zeros((len(pairs), len(problem.counts)))
    on = np.concatenate([np.full(len(part), number) for _, part, number in found])
    np.add.at(pair_share, (where, on), np.concatenate([part for _, part, _ in found]))
    share, pair_share = within_limits(problem, share, pairs, pair_share)
    return Allocation(share=share, pairs=pairs, pair_share=pair_share, value=value, why=why)


def _beside(left: tuple[Ints, Floats], right: tuple[Ints, Floats] | None = None) -> tuple[Ints, Floats]:
    """Two sides laid along a line, or one side folded in the middle: who lies beside whom, and how long."""
    jobs, ends = left[0], np.cumsum(left[1])
    others, other_ends, half = jobs, ends - ends[-1] / 2, ends[-1] / 2
    if right is not None:
        others, other_ends, half = right[0], np.cumsum(right[1]), min(ends[-1], right[1].sum())
    cuts = np.unique(np.concatenate([[0.0, half], ends, other_ends]).clip(0.0, half))
    middle = (cuts[:-1] + cuts[1:]) / 2
    mine = np.minimum(np.searchsorted(ends, middle), len(jobs) - 1)
    theirs = np.minimum(np.searchsorted(other_ends, middle), len(others) - 1)
    pairs = np.stack([jobs[mine], others[theirs]], axis=1)
    long = (np.diff(cuts) > 1e-12) & (pairs[:, 0] != pairs[:, 1])
    return np.sort(pairs[long], axis=1), np.diff(cuts)[long]


def pair_up(shared: list[tuple[Ints, Ints, Floats]]) -> tuple[Ints, Floats]:
    """Pairs of jobs, and their shares, so that every job of a class gets an equal part of what its class shares.

    >>> pairs, share = pair_up([(np.array([0, 1]), np.array([2, 3, 4]), np.array([1.2]))])
    >>> pairs.tolist(), share.round(9).ravel().tolist()
    ([[0, 2], [0, 3], [1, 3], [1, 4]], [0.4, 0.2, 0.2, 0.4])
    """
    found = [_in_a_circle(left) if left is right else _along(left, right) for left, right, _ in shared]
    parts = [part[:, None] * time for (_, part), (_, _, time) in zip(found, shared, strict=True)]
    one, other = np.concatenate([pair for pair, _ in found]).T
    first, second = np.minimum(one, other), np.maximum(one, other)
    order = np.argsort(first * (int(second.max()) + 1) + second)  # no pair is there twice
    return np.stack([first[order], second[order]], axis=1), np.concatenate(parts)[order]


def _along(left: Ints, right: Ints) -> tuple[Ints, Floats]:
    """Both sides laid along the same line: who lies beside whom, and how much of the line."""
    a, b = len(left), len(right)
    others = np.arange(b, a * b, b)
    cuts = np.sort(np.concatenate((np.arange(0, a * b + 1, a), others[others % a > 0])))
    pairs = np.stack([left[cuts[:-1] // b], right[cuts[:-1] // a]], axis=1)
    return pairs, np.diff(cuts) / (a * b)


def _in_a_circle(jobs: Ints) -> tuple[Ints, Floats]:
    """Everybody beside its two neighbours."""
    count = len(jobs)
    if count == 2:
        return jobs[None, :], np.ones(1)
    return np.stack([jobs, np.roll(jobs, -1)], axis=1), np.full(count, 1 / count)
