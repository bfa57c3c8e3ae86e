"""Rounds out of shares: who runs on which type next, so that in the long run all get what the policy allotted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints, Policy
from dovetail.cluster.rounding.active import Active
from dovetail.cluster.rounding.pairing import Pairs
from dovetail.cluster.rounding.share_accounts import ShareAccounts

_NEVER_HAD = 1e9  # times its share: the rank of a job that has had nothing of a type


class Choice(NamedTuple):
    """The type that every job runs on in a round, or -1, and the position of the job beside it, or -1."""

    on: Ints
    beside: Ints


class Mechanism(ShareAccounts):
    """Ranks jobs by what they are owed, and fills the next round with the first in rank."""

    def go_by(self, policy: Policy) -> None:
        """Who is considered: first those with a share of a type, then anybody for what is left; of a strict policy only
        the former. The older rule fills type after type with anybody, as do policies that do not tell types apart."""
        super().go_by(policy)
        old = self.by_fraction or policy.agnostic
        self._passes: tuple[bool, ...] = (True,) if policy.strict else (False,) if old else (True, False)

    def choose(self, wanted: Choice | None = None) -> Choice:
        """Fill types with the jobs that rank highest on each; a job runs once, on one type. Those that are `wanted`
        somewhere go first, as far as there is room. Who is owed more of a faster type that has room then is there."""
        by_owed = not (self.by_fraction or self.policy.agnostic)
        order = self._fast_first if by_owed else list(range(len(self.types)))
        if self.policy.agnostic:
            self._rng.shuffle(order)
        jobs, runs = self.jobs, self.able
        choice = Choice(*np.full((2, len(runs)), -1))
        left = self.counts.tolist()
        if wanted is not None:
            self._let_in(wanted, choice, left)
        if self.rules.global_queue:
            return self._scan_all(order, choice, left)
        narrow, paired = self.narrow, len(self.pairs) > 0  # read here, for it is looked up with who is able
        free, had = choice.on < 0, left.copy()
        before = choice.on.copy(), choice.beside.copy()
        ranks: list[Floats] = []
        pair_ranks: list[Floats] = []
        for only_allotted in self._passes:
            able = runs & (jobs.share > 0) if only_allotted else runs
            for j in order:
                if not left[j]:
                    continue
                if paired:
                    ranks, pair_ranks = ranks or self._ranks(jobs), pair_ranks or self._ranks(self.pairs)
                    left[j] = self._scan(j, able[:, j], left[j], choice, ranks, pair_ranks)
                    continue
                rows = (able[:, j] & free).nonzero()[0]
                needed = len(rows) if narrow else int(jobs.width[rows].sum())
                if needed > left[j]:
                    ranks = ranks or self._ranks(jobs)
                    rows = rows[np.lexsort([key[:, j][rows] for key in ranks])]
                    rows = rows[: left[j]] if narrow else rows[fitting(jobs.width[rows], left[j])]
                    needed = len(rows) if narrow else int(jobs.width[rows].sum())
                choice.on[rows] = j
                free[rows] = False
                left[j] -= needed
            unsettled = by_owed and only_allotted and any(left)
            if unsettled and self._is_owed_better(able, choice, before[0], left):
                choice.on[:], choice.beside[:], left = *before, had
                if paired:
                    return self._scan_all(order, choice, left)
                self._go_where_owed(able & (before[0] < 0)[:, None], choice, left)
                free = choice.on < 0
        return choice

    def _is_owed_better(self, able: NDArray[np.bool_], choice: Choice, before: Ints, left: list[int]) -> bool:
        """Whether types were filled one after the other so that somebody is not where it is owed more and is faster,
        although there is room: the first type may have whom it owes nothing, and would in every round."""
        rows = (choice.on > before).nonzero()[0]
        on, speed = choice.on[rows], self._speed[rows]
        better = speed > self._speed[rows, on][:, None]
        better &= able[rows] & (self.jobs.width[rows][:, None] <= left)
        at, other = better.nonzero()
        if not at.size:
            return False
        late = self._ranks(self.jobs)[1]
        return bool((late[rows[at], other] < late[rows[at], on[at]]).any())

    def _go_where_owed(self, waiting: NDArray[np.bool_], choice: Choice, left: list[int]) -> None:
        """Everybody goes to the type that owes most, and those for whom there is no room there to the next one."""
        late, share = np.where(waiting, self._ranks(self.jobs)[1], np.inf), self.jobs.share
        width, full = self.jobs.width, True
        while full:
            on, full = np.where(np.isfinite(late).any(axis=1), late.argmin(axis=1), -1), False
            for j, room in enumerate(left):
                rows = (on == j).nonzero()[0]
                if width[rows].sum() > room:
                    rows = rows[np.lexsort((-share[rows, j], late[rows, j]))]
                    late[np.delete(rows, fitting(width[rows], room)), j] = np.inf
                    full = True
        rows = (on >= 0).nonzero()[0]
        choice.on[rows] = on[rows]
        for j in range(len(left)):
            left[j] -= int(width[on == j].sum())

    def shuffle(self, rounds: int) -> None:
        """Go through the chance of rounds in which nobody can be chosen."""
        order = list(range(len(self.types)))
        if self.policy.agnostic and len(order) > 1:
            for _ in range(rounds):
                self._rng.shuffle(order)

    def _let_in(self, wanted: Choice, choice: Choice, left: list[int]) -> None:
        """Choose those who are wanted, on each type whoever is there already first."""
        for j in range(len(left)):
            rows = ((wanted.on == j) & (wanted.beside < np.arange(len(wanted.on)))).nonzero()[0]  # pairs once
            rows = rows[np.argsort(self.jobs.on[rows] != j, kind="stable")]
            rows = rows[fitting(self.jobs.width[rows], left[j])]
            others = wanted.beside[rows]
            paired = others >= 0
            choice.on[rows] = choice.on[others[paired]] = j
            choice.beside[rows] = others
            choice.beside[others[paired]] = rows[paired]
            left[j] -= int(self.jobs.width[rows].sum())

    def ranked(self, j: int, among: NDArray[np.bool_]) -> Ints:
        """Those who could run on a type, the first in rank first."""
        rows = (among & self.able[:, j]).nonzero()[0]
        order: Ints = rows[np.lexsort([key[:, j][rows] for key in self._ranks(self.jobs)])]
        return order

    def _ranks(self, rows: Active | Pairs) -> list[Floats]:
        """Keys by which rows go first if they are small, the most important one last."""
        if not self.by_fraction:
            late = -rows.owed
            if isinstance(rows, Active) and self.rules.restart_s:
                running = (rows.on >= 0).nonzero()[0]
                late[running, rows.on[running]] -= 2 * self.rules.restart_s  # who takes over pays for a restart
            late[rows.share <= 0] = np.inf
            return [-rows.share, late]
        had = rows.received
        fraction = np.divide(had, self.worked, out=np.zeros(had.shape), where=self.worked > 0)
        rank = rows.share * -_NEVER_HAD
        np.divide(-rows.share, fraction, out=rank, where=fraction > 0)
        return [-rows.share, -rows.owed, rank]

    def _scan(
        self,
        j: int,
        able: NDArray[np.bool_],
        left: int,
        choice: Choice,
        ranks: list[Floats],
        pair_ranks: list[Floats],
    ) -> int:
        """One type with pairs among the candidates, one by one; gives what is left of it."""
        a, b, free = self.pairs.a, self.pairs.b, choice.on < 0
        rows = (able & free).nonzero()[0]
        possible = free[a] & free[b] & (self._pair_speed(j) > 0)
        if self.pairs.only_allotted or self.policy.strict:
            possible &= self.pairs.share[:, j] > 0
        together = possible.nonzero()[0]
        keys = [np.concatenate((s[rows, j], p[together, j])) for s, p in zip(ranks, pair_ranks, strict=True)]
        first, second = np.concatenate((rows, a[together])), np.concatenate((rows, b[together]))
        if self.by_fraction:
            keys = [*_births(first, second), *keys]
        order = np.lexsort(keys)
        width = self.jobs.width[first[order]].tolist()
        for i, k, needed in zip(first[order].tolist(), second[order].tolist(), width, strict=True):
            if needed <= left and free[i] and free[k]:
                self._take(i, k, j, free, choice)
                left -= needed
                if not left:
                    break
        return left

    def _scan_all(self, order: list[int], choice: Choice, left: list[int]) -> Choice:
        """All types ranked together: the best row anywhere goes first."""
        jobs, pairs = self.jobs, self.pairs
        free = choice.on < 0
        count, total = len(jobs), len(jobs) + len(pairs)
        speeds = np.concatenate((self.speed, np.stack([self._pair_speed(j) for j in range(len(self.types))], axis=1)))
        ranks, pair_ranks = self._ranks(jobs), self._ranks(pairs)
        keys = [
            np.concatenate([np.concatenate((s[:, j], p[:, j])) for j in order])
            for s, p in zip(ranks, pair_ranks, strict=True)
        ]
        if self.by_fraction:
            alone = np.arange(count)
            births = _births(np.concatenate((alone, pairs.a)), np.concatenate((alone, pairs.b)))
            by_type = np.repeat(np.arange(len(order)), total)
            keys = [*[np.tile(key, len(order)) for key in births], by_type, *keys]
        for at in np.lexsort(keys).tolist():
            j, row = order[at // total], at % total
            i, k = (row, row) if row < count else (int(pairs.a[row - count]), int(pairs.b[row - count]))
            if not (free[i] and free[k] and speeds[row, j] > 0 and jobs.width[i] <= left[j]):
                continue
            share, needed = (jobs.share[i, j], False) if i == k else (pairs.share[row - count, j], pairs.only_allotted)
            if (self.policy.strict or needed) and share <= 0:
                continue
            self._take(i, k, j, free, choice)
            left[j] -= jobs.width[i]
        return choice

    def _take(self, i: int, k: int, j: int, free: NDArray[np.bool_], choice: Choice) -> None:
        choice.on[i] = choice.on[k] = j
        free[i] = free[k] = False
        if i != k:
            choice.beside[i], choice.beside[k] = k, i

    def _pair_speed(self, j: int) -> Floats:
        """The slower of the two speeds of every pair."""
        if self.pair_rates is None or not len(self.pairs):
            return np.zeros(len(self.pairs))
        one, other = self.jobs.kind[self.pairs.a], self.jobs.kind[self.pairs.b]
        slower: Floats = np.minimum(self.pair_rates[one, other, j], self.pair_rates[other, one, j])
        return slower


def _births(first: Ints, second: Ints) -> list[Ints]:
    """Keys for who came first, the more important one last: a pair comes with its second job, after that job alone."""
    return [np.where(first == second, -1, first), second]


def fitting(width: Ints, capacity: int) -> Ints:
    """Who gets in when rows are let in one after another and those that do not fit are passed over.

    >>> fitting(np.array([2, 4, 1, 8, 1]), 5).tolist()
    [0, 2, 4]
    """
    filled = np.cumsum(width)
    first = int(np.searchsorted(filled, capacity, side="right"))
    left = capacity - (int(filled[first - 1]) if first else 0)
    taken = [np.arange(first)]
    at = first
    while left and at < len(width):
        later = np.flatnonzero(width[at:] <= left)
        if not len(later):
            break
        # All that fit one after another from here on, up to the first that does not.
        run = np.cumsum(width[at + later])
        count = int(np.searchsorted(run, left, side="right"))
        taken.append(at + later[:count])
        left -= int(run[count - 1])
        at += int(later[count - 1]) + 1
    return np.concatenate(taken)
