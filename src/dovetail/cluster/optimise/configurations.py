"""One configuration (so many accelerators of one type) for every job, or none: the plan that saves most.

An integer program with one row per type and one choice per job. Prices of the types (Lagrange multipliers) give a bound
and tell most choices; what is left undecided is settled exactly, by counting where types are small, else by HiGHS.
"""

from __future__ import annotations

from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.turns import in_turn
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram

Bools = NDArray[np.bool_]
_STEPS, _SHARPER, _SHARP = 60, 0.4, 0.02  # of the search for prices
_GOLDEN = 0.6180339887498949  # steps of so much cover all of 0 to 1 evenly
_COUNTABLE = 4_000_000  # entries of the tables that are filled, where counting decides
_BRANCHABLE = 3_000  # choices left open, where branch and bound does; of more the plan that was found is given
_MANY = 1_000  # jobs: of more, configurations that none of them may have are left out
_NEVER = -200.0  # the logarithm of what is as good as nothing: less is a number that processors are slow with
_TINY = 1e-12


class ConfigurationPlan(NamedTuple):
    """The configuration of every job, -1 for none; what that saves, and what no plan can exceed."""

    choice: Ints
    saved: float
    bound: float


def choose(
    saving: Floats,
    on: Ints,
    width: Ints,
    counts: Ints,
    *,
    of: Ints | None = None,
    gap: float = 0.0,
    prices: Floats | None = None,
) -> ConfigurationPlan:
    """What jobs save in configurations (columns) is to be largest; only what saves something is used.

    Jobs save as the row says that they are `of`, by default each as its own. `on` and `width` are the type of every
    configuration and how many accelerators of it. The plan is the best, or proven to be within `gap` of it (relative).
    `prices` are where to begin, and are changed to where it ended.

    >>> plan = choose(np.array([[1.0, 1.5], [0.9, 1.6]]), np.array([0, 0]), np.array([1, 2]), np.array([3]))
    >>> plan.choice.tolist(), plan.saved
    ([0, 1], 2.6)
    """
    of = np.arange(len(saving)) if of is None else of
    many = np.bincount(of, minlength=len(saving))
    saving = np.where((saving > _TINY) & (width <= counts[on]) & (many > 0)[:, None], saving, -inf)
    if len(of) > _MANY and not (used := (saving > -inf).any(axis=0)).all():
        plan = choose(saving[:, used], on[used], width[used], counts, of=of, gap=gap, prices=prices)
        return plan._replace(choice=np.append(np.flatnonzero(used), -1)[plan.choice])
    if not len(of) or not len(on) or saving.max() == -inf:
        return ConfigurationPlan(np.full(len(of), -1), 0.0, 0.0)
    first = saving.argmax(axis=1)
    runs = np.take_along_axis(saving, first[:, None], 1)[:, 0] > 0
    if (np.bincount(on[first[runs]], (width[first] * many)[runs], len(counts)) <= counts).all():  # all have the best
        choice = np.where(runs, first, -1)[of]
        return ConfigurationPlan(choice, _total(saving, of, choice), _total(saving, of, choice))
    if len(counts) == 1 and len(of) * len(on) * int(counts[0] + 1) <= _COUNTABLE:
        return _count_one(saving[of], width, int(counts[0]))
    price = np.zeros(len(counts)) if prices is None else prices
    bound, likely = _price(saving, many, on, width, counts, price)
    reduced = saving - price[on] * width
    choice = _fill(saving, reduced, likely, of, on, width, counts)
    saved = _total(saving, of, choice)
    if bound - saved > gap * abs(saved) + 1e-9:
        best = np.maximum(reduced.max(axis=1), 0.0)
        lost = best[:, None] - reduced  # how much below the bound any plan is that has this
        open_columns, open_wait = bound - lost > saved + _TINY, bound - best > saved + _TINY
        better = _settle(saving, of, open_columns, open_wait, on, width, counts, gap * saved)
        if better is not None and better.saved > saved:
            choice, saved = better.choice, better.saved
        bound = saved if better is None else max(saved, min(bound, better.bound))
    return ConfigurationPlan(choice, saved, max(bound, saved))


def _total(saving: Floats, of: Ints, choice: Ints) -> float:
    runs = np.flatnonzero(choice >= 0)
    return float(saving[of[runs], choice[runs]].sum())


def _price(saving: Floats, many: Ints, on: Ints, width: Ints, counts: Ints, price: Floats) -> tuple[float, Floats]:
    """Prices at which as much is wanted as there is: Newton's steps, jobs less and less undecided between choices.

    Gives the bound, and by configuration how likely it is of those between which the jobs of a row cannot decide."""
    types = np.zeros((len(counts), len(on)))
    types[on, np.arange(len(on))] = width
    squares = types * width
    least, found, saving = inf, price.copy(), np.ascontiguousarray(saving.T)  # by configuration: the fewer go outside
    weight, size, most = saving, many.astype(np.float64), float(saving.max())
    blur, last = most / 4, most * _SHARP / int(many.sum())
    for _ in range(_STEPS):
        reduced = saving - (price @ types)[:, None]
        best = np.maximum(reduced.max(axis=0), 0.0)
        value = float(best @ size + price @ counts)
        weight = reduced - best  # in place from here on: there are many, and memory is what takes time
        weight /= blur
        np.exp(np.maximum(weight, _NEVER, out=weight), out=weight)
        weight /= weight.sum(axis=0) + np.exp(np.maximum(-best / blur, _NEVER))
        wants = types @ weight
        slope = counts - wants @ size
        if value < least:
            least, found = value, price.copy()
        curve = (wants * size) @ wants.T / -blur
        curve.flat[:: len(counts) + 1] += squares @ (weight @ size) / blur * (1 + 1e-6) + _TINY
        held = (price <= 0) & (slope > 0)
        if held.any():
            curve[held], curve[:, held], slope[held] = 0.0, 0.0, 0.0
            curve[held, held] = 1.0
        move = np.linalg.solve(curve, -slope)
        price[:] = np.maximum(price + np.minimum(np.maximum(move, -blur), blur), 0.0)
        if blur <= last:
            break
        if np.abs(move).max() <= blur:
            blur = max(blur * _SHARPER, last)
    price[:] = found
    return least, weight


def _fill(saving: Floats, reduced: Floats, likely: Floats, of: Ints, on: Ints, width: Ints, counts: Ints) -> Ints:
    """Jobs choose by prices while there is room, those first who lose most otherwise; then whatever still saves more.

    Jobs that cannot decide are spread over their choices as these are likely."""
    two = np.sort(np.concatenate([reduced, np.zeros((len(reduced), 1))], axis=1), axis=1)[:, -2:]
    order = np.argsort((two[:, 0] - two[:, 1])[of], kind="stable")
    spread = np.arange(1, len(of) + 1) * _GOLDEN % 1.0
    row = of[order]
    drawn = np.zeros(len(of), dtype=np.int64)
    for so_far in np.cumsum(likely, axis=0):
        drawn += so_far[row] <= spread
    wish = np.where(drawn < len(on), drawn, -1)

    def instead(jobs: Ints, room: Bools) -> Ints:
        left = np.where(room, reduced[row[jobs]], -inf)
        at = left.argmax(axis=1)
        return np.where(left[np.arange(len(jobs)), at] < -_TINY, -1, at)

    choice, free = np.full(len(of), -1), counts.copy()
    choice[order] = in_turn(wish, on, width, free, instead)
    return _improved(saving, of, choice, on, width, free)


def _improved(saving: Floats, of: Ints, choice: Ints, on: Ints, width: Ints, free: Ints) -> Ints:
    """What single jobs still gain by another choice, the largest gain first, of equals the first job."""
    saved = np.column_stack([saving, np.zeros(len(saving))])  # the last one is to wait
    there, taken = np.append(on, -1), np.append(width, 0)

    def first(jobs: Ints, row: Ints, rows: int) -> tuple[Ints, Ints, Floats]:
        """Of all that save and have the same the first one: which, its row, and what it gains."""
        heads = np.full((rows, len(there)), -1)
        heads[row[::-1], choice[jobs[::-1]]] = jobs[::-1]
        heads = heads[heads >= 0]
        return heads, of[heads], saving[of[heads]] - saved[of[heads], choice[heads]][:, None]

    head, row, gain = first(np.arange(len(of)), of, len(saving))
    while True:
        room = np.where(there[:, None] == on, taken[:, None], 0) + free[on]
        may = np.where((width <= room)[choice[head]], gain, -inf)
        most = may.max()
        if most <= _TINY:
            return choice
        best = np.flatnonzero((may == most).any(axis=1))
        best = best[head[best].argmin()]
        job, at = int(head[best]), int(may[best].argmax())
        if choice[job] >= 0:
            free[on[choice[job]]] += width[choice[job]]
        choice[job] = at
        free[on[at]] -= width[at]
        others = row != of[job]
        same = np.flatnonzero(of == of[job])
        changed = first(same, np.zeros_like(same), 1)
        head, row, gain = (
            np.concatenate([old[others], new]) for old, new in zip((head, row, gain), changed, strict=True)
        )


def _settle(
    saving: Floats, of: Ints, columns: Bools, wait: Bools, on: Ints, width: Ints, counts: Ints, gap: float
) -> ConfigurationPlan | None:
    """The best plan of what is still open; None if none of it can be carried out."""
    open_count = columns.sum(axis=1) + wait
    if not open_count[of].all():
        return None
    choice, free = np.full(len(of), -1), counts.copy()
    settled = np.flatnonzero(((open_count == 1) & ~wait)[of])
    choice[settled] = columns.argmax(axis=1)[of[settled]]
    np.subtract.at(free, on[choice[settled]], width[choice[settled]])
    if free.min() < 0:
        return None
    undecided = np.flatnonzero((open_count > 1)[of])
    row = of[undecided]
    columns = columns & (width <= free[on])
    left = int(columns.sum(axis=1)[row].sum())
    if not left:
        saved = _total(saving, of, choice)
        return ConfigurationPlan(choice, saved, saved) if wait[row].all() else None
    countable = prod((free + 1).tolist()) * max(left, len(undecided)) <= _COUNTABLE
    if not countable and left > _BRANCHABLE:
        return ConfigurationPlan(choice, -inf, inf)
    solve = _count if countable else _branch
    found = solve(saving[row], columns[row], wait[row], on, width, free, gap)
    if found is None:
        return None
    choice[undecided] = found.choice
    rest = found.bound - found.saved
    saved = _total(saving, of, choice)
    return ConfigurationPlan(choice, saved, saved + rest)


def _count_one(saving: Floats, width: Ints, count: int) -> ConfigurationPlan:
    """The best plan for one type, by dynamic programming over what is left of it."""
    useful = np.flatnonzero((saving > 0).any(axis=0))
    gains = np.concatenate([np.zeros((len(saving), 1)), saving[:, useful]], axis=1)
    before = np.arange(count + 1) - np.concatenate([[0], width[useful]])[:, None]
    below = before < 0
    best, picks = np.zeros(count + 1), []
    for gain in gains:
        value = best[before] + gain[:, None]
        value[below] = -inf
        pick = value.argmax(axis=0)
        best = value.max(axis=0)
        picks.append(pick)
    choice, left = np.full(len(saving), -1), count
    for job in reversed(range(len(saving))):
        at = int(picks[job][left])
        if at:
            choice[job] = useful[at - 1]
            left = int(before[at, left])
    saved = _total(saving, np.arange(len(saving)), choice)
    return ConfigurationPlan(choice, saved, saved)


def _count(
    saving: Floats, columns: Bools, wait: Bools, on: Ints, width: Ints, free: Ints, gap: float
) -> ConfigurationPlan | None:
    """By dynamic programming over what is left of every type."""
    best = np.zeros(tuple((free + 1).tolist()))
    picks = []
    for row, may, idle in zip(saving, columns, wait, strict=True):
        new = best.copy() if idle else np.full_like(best, -inf)
        pick = np.full(best.shape, -1, dtype=np.int16)
        for at in np.flatnonzero(may).tolist():
            low: list[slice] = [slice(None)] * best.ndim
            high = low.copy()
            low[on[at]], high[on[at]] = slice(0, best.shape[on[at]] - int(width[at])), slice(int(width[at]), None)
            value = best[tuple(low)] + row[at]
            better = value > new[tuple(high)]
            np.copyto(new[tuple(high)], value, where=better)
            np.copyto(pick[tuple(high)], at, where=better)
        best = new
        picks.append(pick)
    left, value = free.copy(), float(best[tuple(free.tolist())])
    if value == -inf:
        return None
    choice = np.full(len(saving), -1)
    for job in reversed(range(len(saving))):
        at = int(picks[job][tuple(left.tolist())])
        choice[job] = at
        if at >= 0:
            left[on[at]] -= width[at]
    return ConfigurationPlan(choice, value, value)


def _branch(
    saving: Floats, columns: Bools, wait: Bools, on: Ints, width: Ints, free: Ints, gap: float
) -> ConfigurationPlan | None:
    """By branch and bound."""
    lp = LinearProgram(maximise=True, gap=max(gap, 1e-7), node_limit=500)
    lp.add_rows(np.full(len(free), -inf), free.astype(np.float64))
    lp.add_rows(np.where(wait, -inf, 1.0), np.ones(len(saving)))
    job, at = np.nonzero(columns)
    rows = np.stack([on[at], len(free) + job], axis=1).ravel()
    values = np.stack([width[at].astype(np.float64), np.ones(len(at))], axis=1).ravel()
    zero, starts = np.zeros(len(at)), np.arange(0, 2 * len(at), 2)
    lp.add_columns(cost=saving[job, at], lower=zero, upper=zero + 1, starts=starts, rows=rows, values=values)
    lp.set_integer(np.arange(len(at)))
    if lp.solve().status == "infeasible":
        return None
    chosen = np.flatnonzero(lp.values() > 0.5)
    choice = np.full(len(saving), -1)
    choice[job[chosen]] = at[chosen]
    saved = _total(saving, np.arange(len(saving)), choice)
    return ConfigurationPlan(choice, saved, max(saved, lp.bound()))
