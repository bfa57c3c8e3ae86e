"""What happens to running jobs inside a round: they end, fail, report, lapse; whoever waits takes what is free."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from dovetail.cluster.policies.base import Ints
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.ahead import NextRound
from dovetail.cluster.rounding.ends import ExpectedEnds
from dovetail.cluster.rounding.leases import NOBODY, HeldLease, Ids, Leases
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.phases import Phases
from dovetail.cluster.rounding.reported import ReportedWork
from dovetail.cluster.rules import RoundRules
from dovetail.core.events import Rows

_NEVER = "its command cannot be started on any node"


class RunningJobs:
    """Jobs with their leases, when they are expected to end, and who waits for what becomes free.

    It acts on what happens to jobs without asking the policy; `found` gets what is to be written of it.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        leases: Leases,
        rules: RoundRules,
        phases: Phases | None,
        reported: ReportedWork | None,
    ) -> None:
        """Where leases are carried out for real, work is what is `reported` of jobs."""
        self.rules, self.mechanism, self._leases = rules, mechanism, leases
        self._phases, self._reported = phases, reported
        self.jobs = mechanism.jobs  # the table, to be read
        self._ends = ExpectedEnds(self.jobs)
        self._done: list[int] = []  # positions of jobs that ended in this round
        self._resting: set[int] = set()  # jobs whose processes failed in this round
        self._homeless: set[int] = set()  # jobs whose devices failed in this step
        self._failing: set[int] = set()  # devices that fail in this step: nothing begins there
        self._waiting: list[list[int] | None] = [None] * len(mechanism.types)  # by type, the first in rank last
        self._next: NextRound | None = None
        self._begun = 0.0  # when this round began; work is saved then
        self.next_round_s = -inf

    def leases(self) -> dict[int, HeldLease]:
        """The leases that run, by job."""
        return self._leases.running()

    def drained(self) -> set[int]:
        """The accelerators that are to be left."""
        return self._leases.devices.drained

    def next_end_s(self) -> float:
        """When the next job is expected to end."""
        return self._ends.next_s()

    def ending(self, now: float) -> list[Rows]:
        """What is expected to happen now: jobs end, or reach the end of a phase."""
        ids = self._ends.take(now)
        going_on = [] if self._phases is None else [job for job in ids if self._phases.ongoing(job)]
        done = [job for job in ids if job not in going_on] if going_on else ids
        found = [records.completed(done, [now] * len(done))] if done else []
        return [*found, records.phase(going_on)] if going_on else found

    def _waiting_for(self, j: int) -> list[int]:
        """Who may have what becomes free of a type inside this round, the first in rank first."""
        jobs, waiting = self.jobs, self._waiting[j]
        if waiting is None:
            idle = jobs.on < 0
            idle[self._done] = False
            ranked = self.mechanism.ranked(j, idle).tolist()
        else:
            ranked = waiting[::-1]
        elsewhere = self._resting if self._next is None else self._resting | self._next.places.keys()
        return [
            row for row in ranked if jobs.on[row] < 0 and jobs.steps_left[row] > 0 and jobs.id[row] not in elsewhere
        ]

    def _working(self, now: float) -> Ints:
        """Jobs that run and have done some work there."""
        return np.flatnonzero((self.jobs.on >= 0) & (self.jobs.ready_s < now))

    def _advance(self, over: Rows, now: float, found: list[Rows]) -> None:
        """Jobs have reached the end of a phase: they go on where they are, at another rate. Who loses its devices now
        loses work, and has not come that far."""
        assert self._phases is not None
        ids = [job for job in over.columns["id"] if not self._fails(job)]
        if not ids:
            return
        found.append(records.phase(ids))
        self._phases.learn(ids)
        self._ends.add(self._leases.change(now, self._leases.rows(ids), found, set(ids)))

    def _fails(self, job: int) -> bool:
        """Whether a job runs where a device fails in this step."""
        return not self._failing.isdisjoint(self._leases.held.get(job, ()))

    def _finish(self, ended: Rows, now: float, found: list[Rows]) -> set[int]:
        """Jobs end now, or are cancelled; who was beside goes on alone. The types on which there is room now."""
        rows = self._leases.rows(ended.columns["id"]).tolist()
        return self._vacate(rows, now, found, then=[ended], over=rows)

    def _vacate(
        self, rows: list[int], now: float, found: list[Rows], then: list[Rows], over: Sequence[int], lost: bool = False
    ) -> set[int]:
        """The leases of those who run are over, and of some that was all; who was beside goes on alone, unless its
        devices fail now."""
        jobs, leases = self.jobs, self._leases
        rows = [row for row in rows if jobs.on[row] >= 0]
        types = {int(jobs.on[row]) for row in rows}
        others = [int(jobs.id.searchsorted(jobs.beside[row])) for row in rows if jobs.beside[row] >= 0]
        alone = [row for row in others if row not in rows and not self._fails(int(jobs.id[row]))]
        places = jobs.on[alone]
        kept = {int(jobs.id[row]) for row in alone}
        for stops, saved_s in ((rows, self._begun), (alone, None)) if lost else ((rows + alone, None),):
            leases.stop(now, np.array(stops, dtype=np.int64), found, kept, saved_s)
        leases.complete(over)
        found += then
        self._done += over
        if self._reported is not None:
            self._reported.leave(jobs.id[over].tolist())
        if self._next is not None:
            self._next.changed = True
        if alone:
            self._start(now, np.array(alone), places, records.KEPT, found, kept)
        return types

    def _progress(self, told: Rows, now: float, found: list[Rows]) -> None:
        """Jobs have come so far: what they have left is counted on from here."""
        assert self._reported is not None
        found.append(told)
        keys = (told.columns[key] for key in ("id", "epoch", "steps", "saved"))
        done = [self._reported.progress(job, *rest).done for job, *rest in zip(*keys, strict=True)]
        rows = self._leases.rows(told.columns["id"])
        self.jobs.steps_left[rows] = np.maximum(self.jobs.steps[rows] - done, 0.0)
        self.jobs.ready_s[rows] = np.maximum(self.jobs.ready_s[rows], now)

    def _exit(self, told: Rows, now: float, found: list[Rows]) -> set[int]:
        """Processes of jobs are gone: what they did not save is lost, and they wait for the next round. One that fails
        again and again with nothing saved in between is given up."""
        assert self._reported is not None
        reports = self._reported.jobs
        found.append(told)
        pairs = list(zip(told.columns["id"], told.columns["epoch"], strict=True))
        finals = told.columns.get("final") or [False] * len(pairs)
        often = [job for job, _ in pairs if self._reported.fail(job) >= self.rules.failures]
        never = [job for (job, _), final in zip(pairs, finals, strict=True) if final]
        hopeless = sorted({*often, *never})
        gone = [job for job, epoch in pairs if epoch == reports[job].epoch or job in hopeless]
        self._resting.update(gone)
        why = f"its processes failed {self.rules.failures} times with nothing saved in between"
        whys = [_NEVER if job in never else why for job in hopeless]
        then = [records.given_up(hopeless, whys)] if hopeless else []
        rows, over = self._leases.rows(gone).tolist(), self._leases.rows(hopeless).tolist()
        return self._vacate(rows, now, found, then, over, lost=True)

    def _lapse(self, told: Rows, now: float, found: list[Rows]) -> None:
        """Leases ended without anybody to renew them, and nobody is charged for the time since; who was beside goes on
        alone. If nobody has one, the next round is due."""
        leases, jobs = self._leases, self.jobs
        found.append(told)
        ends: dict[int, float] = dict(zip(told.columns["id"], told.columns["at_s"], strict=True))
        for job in sorted(ends, key=lambda job: (ends[job], job)):
            row = leases.rows([job])
            beside = int(jobs.beside[row[0]])
            leases.stop(ends[job], row, found)
            if beside >= 0 and beside not in ends and not self._fails(beside):
                other = leases.rows([beside])
                on = jobs.on[other]
                leases.stop(now, other, found, {beside})
                self._start(now, other, on, records.KEPT, found, {beside})
        if self._next is not None:
            self._next.changed = True
        if not leases.held:
            self._next, self.next_round_s = None, max(ends.values())

    def _start(self, now: float, rows: Ints, on: Ints, why: int, found: list[Rows], kept: Ids = NOBODY) -> None:
        """Begin leases of jobs that run alone, and expect their ends."""
        self._leases.begin(now, rows, on, None, why, found, kept)
        self._ends.add(rows)

    def _begin_early(self, plan: NextRound, now: float, found: list[Rows]) -> None:
        """Who is to begin alone with the next round begins now if its place is free already."""
        jobs, leases = self.jobs, self._leases
        for job, places in plan.places.items():
            row = int(jobs.id.searchsorted(job))
            on, beside = plan.on[job]
            waits = row < len(jobs) and jobs.id[row] == job and jobs.on[row] < 0 and row not in self._done
            if places and waits and beside < 0 and job not in self._resting and leases.devices.all_free(places):
                leases.begin(now, np.array([row]), np.array([on]), None, records.FREE, found, plan={job: places})
                self._ends.add(np.array([row]))

    def _fill(self, now: float, j: int, found: list[Rows]) -> None:
        """Devices of a type are free inside a round: whoever ranks highest there and waits may have them."""
        jobs, mechanism = self.jobs, self.mechanism
        waiting = self._waiting[j]
        if waiting is None:
            idle = jobs.on < 0
            idle[self._done] = False
            waiting = self._waiting[j] = mechanism.ranked(j, idle)[::-1].tolist()
        chosen = []
        taken: set[int] = set()
        free = self._leases.devices.free[j]
        elsewhere = self._resting if self._next is None else self._resting | self._next.places.keys()
        while free > 0 and waiting:
            row = waiting.pop()
            if elsewhere and int(jobs.id[row]) in elsewhere:
                continue
            home = self._leases.home(int(jobs.id[row]))
            if not self._leases.devices.all_free(home) or not taken.isdisjoint(home):
                continue  # it can go on only where somebody else is
            if jobs.on[row] < 0 and jobs.steps_left[row] > 0 and jobs.width[row] <= free:
                taken.update(home)
                chosen.append(row)
                free -= int(jobs.width[row])
        if chosen:
            rows, on = np.array(chosen), np.full(len(chosen), j)
            self._leases.begin(now, rows, on, None, records.FREE, found, plan=self._leases.spares)
            self._ends.add(rows)

    def _fail(self, failed: Sequence[int], now: float, found: list[Rows]) -> None:
        """Devices go down. Jobs on them lose what they did since this round began, or did not save."""
        leases = self._leases
        for device in failed:
            if device in leases.devices.down:
                continue
            holders = leases.holders(device)
            if leases.devices.usable(device):
                self.mechanism.add_accelerators(leases.devices.type_of[device], -1)
            leases.devices.fail(device)
            found.append(Rows("failed", {"device": [device], "jobs": [holders]}))
            leases.stop(now, leases.rows(holders), found, saved_s=self._begun)
            self._homeless.update(holders)
            if self._next is not None:
                self._next.changed = True
