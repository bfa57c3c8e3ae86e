"""What comes from outside, in order of time: arrivals, prices that change, devices that fail and come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from dovetail.cluster.inputs.setup import ClusterSetup, JobKinds, Outage
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.rounding import records
from dovetail.core.errors import InputError
from dovetail.core.events import Rows

_MOST_FAILURES, _LONGEST_IDLE_S = 100_000, 10 * 365 * 86_400.0  # while nobody comes or gets done


class NeverDoneError(InputError):
    """Jobs that will never be done on this cluster, under this policy: there is no use in going on."""


class Stimuli:
    """The stimuli of a setup as rows, and which jobs are still to be measured."""

    def __init__(self, setup: ClusterSetup) -> None:
        self._setup = setup
        self._kinds = JobKinds(setup)
        self._jobs: Iterator[Job] = iter(setup.jobs)
        self._drawn = self._seen = 0
        self._next = self._draw()
        self._open = set(range(*setup.window)) if setup.window else None
        self._outages: Iterator[Outage] = iter(setup.outages)
        self._outages_drawn = self._outages_seen = 0
        self._last_outage_s = -inf
        self._coming: list[tuple[float, int, int, bool]] = []  # when, what, which device, and whether it comes back
        self._down = self._failures = 0
        self.idle_s = 0.0  # since somebody came or got done, while jobs were there and none ran
        self._next_outage = self._draw_outage()
        self._priced = False
        self.price_until = inf  # when prices change next, once they were told

    def _draw(self) -> Job | None:
        job = next(self._jobs, None)
        self._drawn, self._seen = self._drawn + 1, _also_seen(job, self._seen)
        return job

    def _draw_outage(self) -> Outage | None:
        outage = next(self._outages, None)
        self._outages_drawn, self._outages_seen = self._outages_drawn + 1, _outage_seen(outage, self._outages_seen)
        if outage is not None:
            if outage.at_s < self._last_outage_s:
                raise InputError(
                    f"outages: expected them in order of time, found {outage.at_s:g} s after {self._last_outage_s:g} s"
                )
            self._last_outage_s = outage.at_s
        return outage

    def __getstate__(self) -> dict[str, Any]:
        """For a checkpoint: without the setup, which is given again."""
        return self.__dict__ | {"_setup": None, "_kinds": None, "_jobs": None, "_outages": None}

    def take_up(self, setup: ClusterSetup) -> None:
        """Go on with the same setup after a checkpoint was loaded: what was drawn before is passed over."""
        self._setup, self._kinds = setup, JobKinds(setup)
        self._jobs, self._outages = iter(setup.jobs), iter(setup.outages)
        seen = failed = 0
        for _ in range(self._drawn):
            seen = _also_seen(next(self._jobs, None), seen)
        for _ in range(self._outages_drawn):
            failed = _outage_seen(next(self._outages, None), failed)
        for what, same in (("jobs", seen == self._seen), ("failures", failed == self._outages_seen)):
            if not same:
                raise InputError(f"the checkpoint is of another run: its {what} are not these")

    @property
    def arrival_s(self) -> float:
        """When the next job arrives."""
        return inf if self._next is None else self._next.arrival_s

    @property
    def outage_s(self) -> float:
        """When the next device fails or comes back."""
        while self._next_outage is not None and (not self._coming or self._next_outage.at_s <= self._coming[0][0]):
            outage = self._next_outage
            # What is back comes before what fails then; an outage of no time ends after it began.
            back = 2 if outage.until_s == outage.at_s else 0
            for device in outage.devices:
                heappush(self._coming, (outage.at_s, 1, device, outage.until_s < inf))
                if outage.until_s < inf:
                    heappush(self._coming, (outage.until_s, back, device, True))
            self._next_outage = self._draw_outage()
        return self._coming[0][0] if self._coming else inf

    @property
    def awaits_repair(self) -> bool:
        """Whether a device is down that comes back."""
        return self._down > 0

    @property
    def complete(self) -> bool:
        """Whether all jobs that are measured are done."""
        return self._open is not None and not self._open

    def close(self, rows: Sequence[Rows]) -> None:
        """See which jobs are done, or will never be."""
        if (self._failures or self.idle_s) and any(one.of in ("arrived", "completed", "rejected") for one in rows):
            self._failures, self.idle_s = 0, 0.0
        if self._open is not None:
            for one in rows:
                if one.of in ("completed", "rejected"):
                    self._open.difference_update(np.asarray(one.columns["id"]).tolist())

    def arrivals(self, now: float) -> list[Rows]:
        """The jobs that have arrived by now, as one row of columns."""
        arrived: list[Job] = []
        while self._next is not None and self._next.arrival_s <= now:
            arrived.append(self._next)
            self._next = self._draw()
        if not arrived:
            return []
        entities = [self._kinds.entity(job) for job in arrived] if self._setup.entities else None
        phases = [self._kinds.phases(job) for job in arrived] if self._setup.phased else None
        return [records.arrived(arrived, [self._kinds.kind(job) for job in arrived], entities, phases)]

    def prices(self, now: float) -> list[Rows]:
        """The prices, if they have changed."""
        if self._priced and now < self.price_until:
            return []
        self._priced = True
        prices = self._setup.prices
        self.price_until = prices.next_change(now)
        columns: dict[str, Any] = {"price": prices.price_at(now)}
        if self.price_until < inf:
            columns["until_s"] = [self.price_until]
        return [Rows("prices", columns)]

    def outages(self, now: float, busy: bool = True) -> list[Rows]:
        """The devices that have failed or come back by now: what does so at one instant does so together. If that is
        all that happens while jobs are there, for ever, nobody gets done."""
        found: list[Rows] = []
        while self.outage_s <= now:
            _, what, device, returns = heappop(self._coming)
            self._down += int(returns) if what == 1 else -1
            of = "failed" if what == 1 else "mended"
            if not found or found[-1].of != of:
                found.append(Rows(of, {"device": []}))
            found[-1].columns["device"].append(device)
        self._failures += busy and any(rows.of == "failed" for rows in found)
        if self._failures > _MOST_FAILURES or (self._failures and self.idle_s > _LONGEST_IDLE_S):
            waited = f", and none ran for {self.idle_s:,.0f} s" if self.idle_s else ""
            raise NeverDoneError(
                f"cluster: servers failed {self._failures:,} times while no job came or got done{waited}: jobs never "
                "run long enough to keep what they did (failure_s, repair_s)"
            )
        return found


def _outage_seen(outage: Outage | None, before: int) -> int:
    """The same for outages."""
    facts = None if outage is None else (outage.at_s, outage.until_s, outage.devices)
    return crc32(repr(facts).encode(), before)


def _also_seen(job: Job | None, before: int) -> int:
    """A number for the jobs so far: other jobs, another number."""
    if job is None:
        return crc32(b"end", before)
    facts = (job.model, job.width, job.steps, job.arrival_s, job.weight, job.due_s, job.entity, job.phases)
    return crc32(repr(facts).encode(), before)
