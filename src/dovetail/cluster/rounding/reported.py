"""What processes of jobs say they have done, where leases are carried out for real: steps, what is saved, failures.

A lease has an epoch, one more than the last one of its job unless the job stays where it is. Of a job, nothing counts
that a process of an earlier epoch says after one of a later epoch has spoken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.events import Rows


class JobReport(Struct):
    """Steps done in all as it is known, those that are saved, and what was done when the lease began."""

    done: float = 0.0
    saved: float = 0.0
    began: float = 0.0
    epoch: int = 0  # of its last lease
    heard: int = 0  # of the process that spoke last
    told: float = 0.0  # by that one
    failures: int = 0
    saved_then: float = 0.0  # at its last failure
    new: bool = True  # it comes in this step, perhaps with what it did before

    def heeds(self, epoch: int, steps: float) -> bool:
        """Whether what a process of this epoch says is news."""
        there = self.heard <= epoch and (1 <= epoch <= self.epoch or self.new)
        return there and (epoch > self.heard or steps >= self.told)


class ReportedWork:
    """Follows the reports of open jobs, by id."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobReport] = {}

    def arrive(self, ids: Iterable[int]) -> None:
        self.jobs |= {int(job): JobReport() for job in ids}

    def leave(self, ids: Iterable[int]) -> None:
        for job in ids:
            self.jobs.pop(job, None)

    def current(self, rows: Rows, known: bool = True) -> Rows | None:
        """What is said of jobs that are there (or are not), less what comes too late: from processes of earlier epochs,
        or of less than the same one said before."""
        ids, epochs, steps = (rows.columns.get(name) for name in ("id", "epoch", "steps"))
        assert ids is not None
        kept = [i for i, job in enumerate(ids) if (job in self.jobs) == known]
        if epochs is not None and known:
            kept = [i for i in kept if self.jobs[ids[i]].heeds(epochs[i], inf if steps is None else steps[i])]
        if len(kept) == len(ids):
            return rows
        return some_of(rows, kept) if kept else None

    def progress(self, job: int, epoch: int, steps: float, saved: float) -> JobReport:
        """A process of a job has come so far. One that began again with what was saved has done less than before."""
        report = self.jobs[job]
        if steps < report.began:
            report.began = min(report.saved, steps)
        report.done = report.told = steps
        report.saved = max(report.saved, saved)
        report.heard, report.epoch = epoch, max(report.epoch, epoch)
        return report

    def settle(self, ids: Iterable[int]) -> None:
        """These jobs have come, with what they had to say."""
        for job in ids:
            self.jobs[job].new = False

    def begin(self, job: int, stays: bool) -> int:
        """A lease begins, perhaps where the last one was; its epoch."""
        report = self.jobs[job]
        report.began = report.done
        report.epoch += not stays
        return report.epoch

    def stop(self, ids: Sequence[int], lost: bool) -> list[float]:
        """Leases are over: the steps that they brought. What was not saved may be lost."""
        found = []
        for job in ids:
            report = self.jobs[job]
            if lost:
                report.done = min(report.done, report.saved)
            found.append(max(report.done - report.began, 0.0))
            report.began = report.done
        return found

    def keep(self, ids: Iterable[int]) -> None:
        """Jobs that count no steps have left something new: they do not fail in a row."""
        for job in ids:
            self.jobs[job].failures = 0

    def fail(self, job: int) -> int:
        """A process of a job failed: how many have in a row, with nothing saved in between."""
        report = self.jobs[job]
        report.failures = 1 if report.saved > report.saved_then else report.failures + 1
        report.saved_then = report.saved
        return report.failures


def some_of(rows: Rows, places: Sequence[int]) -> Rows:
    """Some of these rows.

    >>> some_of(Rows("cancelled", {"id": [3, 4, 5]}), [0, 2]).columns
    {'id': [3, 5]}
    """
    columns: dict[str, Any] = {name: [column[i] for i in places] for name, column in rows.columns.items()}
    return Rows(rows.of, columns, rows.decided)
