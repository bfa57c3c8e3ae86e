"""The next round, decided before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.active import Active
from dovetail.cluster.rounding.leases import Ids, Leases, Plan
from dovetail.cluster.rounding.mechanism import Choice, Mechanism
from dovetail.cluster.rounding.reported import ReportedWork
from dovetail.core.events import Rows


class NextRound(Struct):
    """By id, the type and the job beside it (-1: none), and where those will be who begin; nowhere: they stop."""

    on: dict[int, tuple[int, int]]
    places: Plan
    changed: bool = False  # since it was decided, about jobs or accelerators

    @classmethod
    def of(cls, jobs: Active, choice: Choice, places: Plan) -> NextRound:
        beside = np.where(choice.beside >= 0, jobs.id[choice.beside], -1).tolist()
        return cls(dict(zip(jobs.id.tolist(), zip(choice.on.tolist(), beside, strict=True), strict=True)), places)

    def told(self, mechanism: Mechanism, reported: ReportedWork | None) -> Rows:
        """Who will stop, and who will begin where."""
        ids, jobs = list(self.places), mechanism.jobs
        there = [self.on[job] if self.places[job] else (-1, -1) for job in ids]
        epochs = None if reported is None else [reported.jobs[job].epoch + bool(self.places[job]) for job in ids]
        beside = [other for _, other in there]
        return records.planned(
            ids,
            [on for on, _ in there],
            [list(self.places[job]) for job in ids],
            epochs,
            beside if max(beside) >= 0 else None,
            jobs.kind[jobs.id.searchsorted(ids)].tolist() if mechanism.elastic else None,
        )

    def choice(self, jobs: Active) -> Choice:
        """Who was chosen, of those who are still there."""
        found = Choice(*np.full((2, len(jobs)), -1))
        row_of = dict(zip(jobs.id.tolist(), range(len(jobs)), strict=True))
        for job, (on, beside) in self.on.items():
            if job in row_of:
                found.on[row_of[job]] = on
                found.beside[row_of[job]] = row_of.get(beside, -1)
        return found


def successors(
    jobs: Active, leases: Leases, ranked: Callable[[int], Sequence[int]], until_s: float, leaving: Ids
) -> Plan:
    """Where jobs are expected to end before then, and are not `leaving` anyway, who would follow: of those `ranked` on
    the type, the first that fit."""
    rows = ((jobs.on >= 0) & (jobs.beside < 0) & (jobs.rate > 0)).nonzero()[0]
    rows = rows[[job not in leaving for job in jobs.id[rows].tolist()]] if leaving else rows
    ends_s = jobs.ready_s[rows] + jobs.steps_left[rows] / jobs.rate[rows]
    found: Plan = {}
    waiting: dict[int, list[int]] = {}
    for row in rows[np.argsort(ends_s, kind="stable")][: int((ends_s <= until_s).sum())].tolist():
        j, room = int(jobs.on[row]), leases.held[int(jobs.id[row])]
        if j not in waiting:
            waiting[j] = list(ranked(j))
        for one in waiting[j]:
            job, width = int(jobs.id[one]), int(jobs.width[one])
            if job not in found and 0 < width <= len(room) and leases.home(job) in ((), room[:width]):
                found[job], room = room[:width], room[width:]
    return found
