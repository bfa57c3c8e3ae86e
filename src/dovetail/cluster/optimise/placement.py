"""Jobs placed one after another, each on one type for all of its time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dovetail.cluster.optimise.classes import group
from dovetail.cluster.optimise.turns import in_turn
from dovetail.cluster.policies.base import Floats, Ints, Problem


class Placement:
    """Who was given which type, and what is left of every type."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._counts: list[int] = problem.counts.tolist()
        self.free: list[int] = self._counts.copy()
        self.type_of: dict[int, int] = {}  # by position
        self._width: list[int] = problem.width.tolist()
        self._kind: list[int] = problem.kind.tolist()
        # By kind: the types that it runs on, the fastest first, of equals the first.
        order, runs = np.argsort(-problem.rates, axis=1, kind="stable").tolist(), (problem.rates > 0).sum(axis=1)
        self._fastest: list[list[int]] = [each[:many] for each, many in zip(order, runs.tolist(), strict=True)]

    def has_room(self, job: int, on: int) -> bool:
        """Whether a type has enough accelerators left for a job."""
        return self.free[on] >= self._width[job]

    def fits(self, job: int) -> list[int]:
        """The types that have enough accelerators left for a job."""
        width = self._width[job]
        return [on for on, free in enumerate(self.free) if free >= width]

    def never_runs(self, job: int) -> bool:
        """Whether no type would do, even if all of it were free: nobody should wait for such a job."""
        width = self._width[job]
        return not any(self._counts[on] >= width for on in self._fastest[self._kind[job]])

    def fastest(self, job: int) -> int | None:
        """The type with room on which a job runs fastest (the first of equals), if it runs on any."""
        width, free = self._width[job], self.free
        for on in self._fastest[self._kind[job]]:
            if free[on] >= width:
                return on
        return None

    def put(self, job: int, on: int) -> None:
        """Give a job a type, in the place of the one that it had."""
        if (before := self.type_of.get(job)) is not None:
            self.free[before] += self._width[job]
        self.free[on] -= self._width[job]
        self.type_of[job] = on

    def put_in_turn(self, jobs: Ints, on: Ints) -> None:
        """Place jobs that have none, in this order, on these types; who does not fit is passed over."""
        width, free = self.problem.width[jobs], np.array(self.free)
        fits = np.flatnonzero(width <= free[on])
        if not len(fits):
            return
        sizes = group(width[fits])
        widths = width[fits][sizes.first]
        wish = on[fits] * len(widths) + sizes.of
        taken = in_turn(wish, np.arange(len(free)).repeat(len(widths)), np.tile(widths, len(free)), free)
        runs = fits[taken >= 0]
        self.type_of.update(zip(jobs[runs].tolist(), on[runs].tolist(), strict=True))
        self.free[:] = free.tolist()

    def put_fastest(self, jobs: Iterable[int]) -> None:
        """Place jobs in this order where they run fastest; who does not fit is passed over."""
        left = sum(self.free)
        for job in jobs:
            if left <= 0:
                return
            on = self.fastest(job)
            if on is not None:
                self.put(job, on)
                left -= self._width[job]

    def share(self) -> Floats:
        share, many = np.zeros((self.problem.jobs, len(self.free))), len(self.type_of)
        share[np.fromiter(self.type_of, np.int64, many), np.fromiter(self.type_of.values(), np.int64, many)] = 1.0
        return share
