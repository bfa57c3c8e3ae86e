"""The cluster in virtual time: rounds decided by the mechanism, arrivals, ends and outages inside rounds."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from dovetail.cluster import records
from dovetail.cluster.bounds import fastest
from dovetail.cluster.inputs.setup import ClusterSetup, JobKinds
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies.base import Floats, Ints, Policy
from dovetail.cluster.rounding.admission import admit
from dovetail.cluster.rounding.leases import NOBODY, Ids, Leases
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Observer


class Simulation:
    """Runs a setup. What happens at one instant is one step for the observers."""

    def __init__(
        self, setup: ClusterSetup, policy: Policy, rules: RoundRules | None = None, observers: Sequence[Observer] = ()
    ) -> None:
        self._setup = setup
        self.rules = rules if rules is not None else RoundRules()
        self._observers = observers
        weights = np.array(list(setup.entities.values())) if setup.entities else None
        self.mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.rates(),
            setup.throughputs.pairs,
            self.rules,
            random.Random(setup.seed + 5),
            weights,
            setup.throughputs.kinds,
        )
        self._leases = Leases(setup, self.mechanism)
        self._kinds = JobKinds(setup)
        self._runs = fastest(setup, policy)[0] > 0
        self._jobs: Iterator[Job] = iter(setup.jobs)
        self._drawn = 0
        self._next = self._draw()
        self._open = set(range(*setup.window)) if setup.window else None
        self._ends: list[tuple[float, int]] = []  # when running jobs finish inside this round
        # Popped from the end. What is back comes before what fails then; an outage of no time ends after it began.
        self._outages = sorted(
            [(o.at_s, 1, d) for o in setup.outages for d in o.devices]
            + [(o.until_s, 2 if o.until_s == o.at_s else 0, d) for o in setup.outages for d in o.devices],
            reverse=True,
        )
        self._done: list[int] = []  # positions of jobs that finished in this round
        self._waiting: list[Iterator[int] | None] = []
        self._price: Floats = np.zeros(0)
        self._price_until = -inf
        self._begun = 0.0  # when this round began; work is saved then
        self.now = 0.0
        self.rounds = 0
        self.steps = 0

    def _draw(self) -> Job | None:
        self._drawn += 1
        return next(self._jobs, None)

    def __getstate__(self) -> dict[str, Any]:
        """For a checkpoint: without the setup, which is given again, and those who watch."""
        return self.__dict__ | {"_setup": None, "_kinds": None, "_jobs": None, "_observers": (), "_waiting": []}

    def take_up(self, setup: ClusterSetup) -> None:
        """Go on with the same setup after a checkpoint was loaded: jobs that were drawn before are passed over."""
        self._setup, self._kinds = setup, JobKinds(setup)
        self._jobs = islice(setup.jobs, self._drawn, None)

    # --- the loop ---------------------------------------------------------------------------------------

    def watched_by(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def run(self, pause: Callable[[], None] = lambda: None) -> None:
        """Run to the end; `pause` is called between any two rounds."""
        while (self._next is not None or len(self.mechanism.jobs)) and self._open != set():
            if not len(self.mechanism.jobs) and self._next is not None:
                self._idle(self._next.arrival_s)
            pause()
            self._begun = self.now
            self._boundary()
            end = self.now + self.rules.round_s
            self._inside(end)
            if len(self.mechanism.jobs) > len(self._done) and self._open != set():
                quiet = self._quiet_rounds(end)
                self.rounds += quiet
                self.now = end + quiet * self.rules.round_s
            else:
                self._settle()
        self._close()

    def _idle(self, until_s: float) -> None:
        """Nobody is here until then; only devices fail and come back."""
        while self._outages and self._outages[-1][0] < until_s:
            self.now = max(self.now, self._outages[-1][0])
            events: list[Rows] = []
            self._fail_or_mend(events)
            self._tell(events)
        self.now = max(self.now, until_s)

    def _quiet_rounds(self, end: float) -> int:
        """How many rounds from here on would change nothing: everybody runs where all of his share is, and nothing
        happens. They are not gone through."""
        mechanism, jobs = self.mechanism, self.mechanism.jobs
        if mechanism.needs_allocation or mechanism.policy.agnostic or mechanism.every_round:
            return 0
        if self._done or self._leases.scattered or len(mechanism.pairs) or np.count_nonzero(jobs.on < 0):
            return 0
        if not (jobs.share[np.arange(len(jobs)), jobs.on] > 1 - 1e-9).all():
            return 0
        arrival = self._next.arrival_s if self._next is not None else inf
        outage = self._outages[-1][0] if self._outages else inf
        until = min(float(jobs.finish_s.min()), arrival, outage, self._price_until)
        return max(int((until - end) / self.rules.round_s), 0) if until < inf else 0

    def _boundary(self) -> None:
        """Settle accounts, choose who runs next, and move whoever must move."""
        events: list[Rows] = []
        self._take_prices(events)
        self._settle()
        self._arrive(events)
        mechanism = self.mechanism
        self._ask(events)
        self._leases.apply(self.now, mechanism.choose(), events)
        if not self._leases.held and mechanism.needs_allocation:
            mechanism.hurry()  # nobody runs: only new shares can help
            self._ask(events)
            self._leases.apply(self.now, mechanism.choose(), events)
        self._waiting = [None] * len(mechanism.types)
        self.rounds += 1
        self._tell(events)
        if not self._leases.held and self._next is None and not self._outages and len(mechanism.jobs):
            raise InputError(f"job {mechanism.jobs.id[0]} can never run on this cluster under this policy")

    def _ask(self, events: list[Rows]) -> None:
        """Ask the policy if it is time. Who is to have another width stops, and starts again when it is chosen."""
        mechanism, jobs = self.mechanism, self.mechanism.jobs
        price = self._price if self.now < self._price_until else self._setup.prices.price_at(self.now)
        if not mechanism.update(self.now, price):
            return
        if mechanism.envy is not None:
            events.append(Rows("envy", {"share": [mechanism.envy]}))
        if mechanism.elastic and mechanism.runs_as is not None and len(mechanism.runs_as) == len(jobs):
            rows = np.flatnonzero(mechanism.runs_as != jobs.kind)
            self._leases.stop(self.now, rows[jobs.on[rows] >= 0], events)
            mechanism.resize(rows)

    def _inside(self, end: float) -> None:
        """Ends, arrivals and outages between two boundaries, in order of time."""
        jobs = self.mechanism.jobs
        soon = (jobs.finish_s <= end).nonzero()[0]
        self._ends = self._ends_of(soon) if len(soon) else []
        while True:
            finish = self._next_end()
            arrival = self._next.arrival_s if self._next is not None else inf
            outage = self._outages[-1][0] if self._outages else inf
            at = min(finish, outage, arrival if self.rules.inside else inf)
            if at > end or (at == end and at not in (finish, outage)):
                return
            self.now = at
            events: list[Rows] = []
            if at == finish:
                self._finish(events)
            elif at == outage:
                self._fail_or_mend(events)
            else:
                self._arrive(events, fill=True)
            self._tell(events)
            if self._open == set():
                return

    def _next_end(self) -> float:
        """When the next job ends; entries of leases that are over or have another rate by now are dropped."""
        jobs = self.mechanism.jobs
        while self._ends:
            at_s, job = self._ends[0]
            row = int(jobs.id.searchsorted(job))
            if row < len(jobs) and jobs.id[row] == job and jobs.finish_s[row] == at_s:
                return at_s
            heapq.heappop(self._ends)
        return inf

    def _tell(self, events: list[Rows]) -> None:
        if events:
            self.steps += 1
            for observer in self._observers:
                observer.step(self.steps, self.now, events)

    def _close(self) -> None:
        """The window is complete: leases that still run end here, so that figures count them."""
        events: list[Rows] = []
        self._leases.stop(self.now, np.flatnonzero(self.mechanism.jobs.on >= 0), events)
        self._tell(events)

    def _take_prices(self, events: list[Rows]) -> None:
        if self.now >= self._price_until:
            prices = self._setup.prices
            self._price, self._price_until = prices.price_at(self.now), prices.next_change(self.now)
            events.append(Rows("prices", {"price": self._price}))
            self.mechanism.needs_allocation = True

    # --- accounts ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Credit running jobs with the time that they had, and forget those that are done."""
        self._leases.credit(self.now)
        if self._done:
            gone = np.zeros(len(self.mechanism.jobs), dtype=np.bool_)
            gone[self._done] = True
            self._done = []
            self.mechanism.leave(gone)

    def _arrive(self, events: list[Rows], fill: bool = False) -> None:
        arrived: list[Job] = []
        while self._next is not None and self._next.arrival_s <= self.now:
            arrived.append(self._next)
            self._next = self._draw()
        if not arrived:
            return
        mechanism = self.mechanism
        found = admit(arrived, self._kinds, self._runs, self.now)
        events += found.events
        if self._open is not None:
            self._open.difference_update(found.closed)
        first = len(mechanism.jobs)
        mechanism.arrive(found.jobs, found.kinds, [self._kinds.entity(job) for job in found.jobs])
        if not fill or not found.jobs:
            return
        if mechanism.policy.strict:
            self._redo(events)
            return
        for row in range(first, len(mechanism.jobs)):
            speed = mechanism.rates[mechanism.jobs.kind[row]]
            for j in np.argsort(-speed, kind="stable").tolist():
                if speed[j] > 0 and self._leases.devices.free[j] >= mechanism.jobs.width[row]:
                    self._start(np.array([row]), np.array([j]), records.FREE, events)
                    break

    # --- inside a round -----------------------------------------------------------------------------------

    def _finish(self, events: list[Rows]) -> None:
        """Jobs end now; who was beside goes on alone, and free devices go to whoever waits."""
        jobs, leases = self.mechanism.jobs, self._leases
        ended: dict[int, None] = {}  # in order, each once
        while self._ends and self._ends[0][0] == self.now:
            _, job = heapq.heappop(self._ends)
            row = int(jobs.id.searchsorted(job))
            if jobs.finish_s[row] == self.now:
                ended[row] = None
        rows = list(ended)
        types = {int(jobs.on[row]) for row in rows}
        others = [int(jobs.id.searchsorted(jobs.beside[row])) for row in rows if jobs.beside[row] >= 0]
        alone = [row for row in others if row not in ended]
        places = jobs.on[alone]
        kept = {int(jobs.id[row]) for row in alone}
        leases.stop(self.now, np.array(rows + alone), events, kept)
        ids = jobs.id[rows]
        jobs.steps_left[rows] = 0.0
        events.append(records.completed(ids, np.full(len(rows), self.now)))
        self._done += rows
        self.mechanism.needs_allocation = True
        if self._open is not None:
            self._open.difference_update(ids.tolist())
        if alone:
            self._start(np.array(alone), places, records.KEPT, events, kept)
        if not self.rules.inside:
            return
        if self.mechanism.policy.strict:
            self._redo(events)
            return
        for j in sorted(types):
            self._fill(j, events)

    def _start(self, rows: Ints, on: Ints, why: int, events: list[Rows], kept: Ids = NOBODY) -> None:
        """Begin leases of jobs that run alone, and see to their ends."""
        self._leases.begin(self.now, rows, on, None, why, events, kept)
        for end in self._ends_of(rows):
            heapq.heappush(self._ends, end)

    def _ends_of(self, rows: Ints) -> list[tuple[float, int]]:
        """When these jobs finish, in order of time."""
        jobs = self.mechanism.jobs
        return sorted(zip(jobs.finish_s[rows].tolist(), jobs.id[rows].tolist(), strict=True))

    def _fill(self, j: int, events: list[Rows]) -> None:
        """Devices of a type are free inside a round: whoever ranks highest there and waits may have them."""
        jobs, mechanism = self.mechanism.jobs, self.mechanism
        waiting = self._waiting[j]
        if waiting is None:
            idle = jobs.on < 0
            idle[self._done] = False
            waiting = self._waiting[j] = iter(mechanism.ranked(j, idle).tolist())
        chosen = []
        free = self._leases.devices.free[j]
        while free > 0:
            row = next(waiting, None)
            if row is None:
                break
            if jobs.on[row] < 0 and jobs.steps_left[row] > 0 and jobs.width[row] <= free:
                chosen.append(row)
                free -= int(jobs.width[row])
        if chosen:
            self._start(np.array(chosen), np.full(len(chosen), j), records.FREE, events)

    def _redo(self, events: list[Rows]) -> None:
        """A strict policy must be asked before anything may start."""
        self._settle()
        mechanism = self.mechanism
        self._ask(events)
        self._leases.apply(self.now, mechanism.choose(), events)
        jobs = mechanism.jobs
        self._ends = self._ends_of(np.flatnonzero(np.isfinite(jobs.finish_s)))

    def _fail_or_mend(self, events: list[Rows]) -> None:
        """A device goes down, and the jobs on it lose what they did since this round began; or it comes back."""
        _, what, device = self._outages.pop()
        leases = self._leases
        j = leases.devices.type_of[device]
        if what != 1:
            leases.devices.mend(device)
            self.mechanism.counts[j] += 1
            events.append(Rows("mended", {"device": [device]}))
        else:
            holders = [job for job, devices in leases.held.items() if device in devices]
            leases.devices.fail(device, held=bool(holders))
            self.mechanism.counts[j] -= 1
            events.append(Rows("failed", {"device": [device], "jobs": [holders]}))
            leases.stop(self.now, leases.rows(holders), events, saved_s=self._begun)
        self.mechanism.needs_allocation = True
