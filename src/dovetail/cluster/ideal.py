"""Shares carried out exactly: no rounds, no restarts, every job works at its allotted speed until something changes.

What a policy would give if the mechanism cost nothing: the yardstick for the mechanism.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf

import numpy as np

from dovetail.cluster import records
from dovetail.cluster.bounds import fastest
from dovetail.cluster.inputs.setup import ClusterSetup, JobKinds
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.rounding.admission import admit
from dovetail.cluster.rounding.envy import envy
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Observer

_INSTANT = 1e-12  # relative: who ends within it ends together


class IdealSimulation:
    """Runs a setup; the policy is asked whenever a job comes or goes or a price changes."""

    def __init__(self, setup: ClusterSetup, policy: Policy, observers: Sequence[Observer] = ()) -> None:
        self._setup = setup
        self._policy = policy
        self._observers = observers
        weights = np.array(list(setup.entities.values())) if setup.entities else None
        self._mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.rates(),
            setup.throughputs.pairs,
            RoundRules(),
            random.Random(setup.seed),
            weights,
            setup.throughputs.kinds,
        )
        self._runs = fastest(setup, policy)[0] > 0
        self._kinds = JobKinds(setup)
        self._jobs = iter(setup.jobs)
        self._next = next(self._jobs, None)
        self._open = set(range(*setup.window)) if setup.window else None
        self._price_until = -inf
        self.allocations = 0
        self.steps = 0
        self.now = 0.0

    def run(self) -> None:
        jobs = self._mechanism.jobs
        while (self._next is not None or len(jobs)) and self._open != set():
            events: list[Rows] = []
            if not len(jobs) and self._next is not None:
                self.now = max(self.now, self._next.arrival_s)
            if self.now >= self._price_until:
                self._price_until = self._setup.prices.next_change(self.now)
                events.append(Rows("prices", {"price": self._setup.prices.price_at(self.now)}))
            self._arrive(events)
            if len(jobs):
                self._flow(events)
            self.steps += 1
            for observer in self._observers:
                observer.step(self.steps, self.now, events)

    def _arrive(self, events: list[Rows]) -> None:
        arrived: list[Job] = []
        while self._next is not None and self._next.arrival_s <= self.now:
            arrived.append(self._next)
            self._next = next(self._jobs, None)
        if arrived:
            found = admit(arrived, self._kinds, self._runs, self.now)
            events += found.events
            if self._open is not None:
                self._open.difference_update(found.closed)
            self._mechanism.arrive(found.jobs, found.kinds, [self._kinds.entity(job) for job in found.jobs])

    def _flow(self, events: list[Rows]) -> None:
        """Let time pass until a job ends, one comes, or a price changes."""
        mechanism, jobs = self._mechanism, self._mechanism.jobs
        problem = mechanism.problem(self.now, self._setup.prices.price_at(self.now))
        found = self._policy.allocate(problem)
        if fault := found.fault(problem):
            raise DovetailError(f"the policy gave an allocation that cannot be carried out: {fault}")
        self.allocations += 1
        envied = envy(problem, found)
        if envied is not None:
            events.append(Rows("envy", {"share": [envied]}))
        width = jobs.width if found.kind is None or problem.kind_width is None else problem.kind_width[found.kind]
        # A policy that does not tell types apart may give time on one that is too small for a wide job.
        found.share = np.where(width[:, None] <= problem.counts, found.share, 0.0)
        if len(found.pairs):
            fits = width[found.pairs[:, 0], None] <= problem.counts
            found.pair_share = np.where(fits, found.pair_share, 0.0)
        speed = found.throughput(problem)
        ends = self.now + np.divide(jobs.steps_left, speed, out=np.full(len(jobs), inf), where=speed > 0)
        until = min(float(ends.min()), self._next.arrival_s if self._next is not None else inf, self._price_until)
        if until == inf:
            raise InputError(f"job {jobs.id[0]} can never run on this cluster under this policy")
        passed = until - self.now
        done = ends <= until + _INSTANT * (1 + until)
        jobs.steps_left[:] = np.where(done, 0.0, np.maximum(jobs.steps_left - passed * speed, 0.0))
        used = (width[:, None] * found.share).sum(axis=0)
        if len(found.pairs):
            used = used + (jobs.width[found.pairs[:, 0]][:, None] * found.pair_share).sum(axis=0)
        events.append(Rows("used", {"accelerator_s": used * passed}))
        self.now = until
        if done.any():
            events.append(records.completed(jobs.id[done], np.full(int(done.sum()), until)))
            if self._open is not None:
                self._open.difference_update(jobs.id[done].tolist())
            mechanism.leave(done)
