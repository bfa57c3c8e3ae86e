"""Shares carried out exactly: no rounds, no restarts, every job works at its allotted speed until something changes.

What a policy would give if the mechanism cost nothing: the yardstick for the mechanism.
"""

from __future__ import annotations

import random
from math import inf

import numpy as np

from dovetail.cluster.bounds import fastest
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Policy, ask
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.admission import admit
from dovetail.cluster.rounding.envy import envy
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.stimuli import NeverDoneError
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.virtual_time import VirtualTime
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows

_MORE = 1 + 1e-6  # shares are rounded
_INSTANT = 1e-12  # relative: who ends within it ends together


class IdealSimulation(VirtualTime):
    """The policy is asked whenever a job comes or goes or a price changes."""

    def __init__(self, setup: ClusterSetup, policy: Policy) -> None:
        mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.rates(),
            setup.throughputs.pairs,
            RoundRules(),
            random.Random(setup.seed),
            setup.entities,
            kinds=setup.throughputs.kinds,
            shows_rounds=False,
        )
        super().__init__(setup, mechanism)
        self._runs = fastest(setup, policy)[0] > 0

    def turn(self) -> None:
        """Take in who arrives, and let time pass until a job ends, one comes, or a price changes."""
        if not self.busy:
            self.now = max(self.now, min(self.stimuli.arrival_s, self.stimuli.price_until))
        found = self.stimuli.prices(self.now)
        for rows in found:
            self.mechanism.see_prices(rows.columns["price"])
        for rows in self.stimuli.arrivals(self.now):
            admitted = admit(rows, self._runs, self.now)
            found += admitted.records
            if admitted.columns["id"]:
                self.mechanism.arrive(admitted.columns)
        if self.busy:
            self._flow(found)
        else:
            self.tell(found)

    def _flow(self, happened: list[Rows]) -> None:
        """Ask the policy, and let time pass until a job ends, one comes, or a price changes."""
        mechanism, jobs = self.mechanism, self.mechanism.jobs
        problem = mechanism.problem(self.now)
        found = ask(mechanism.policy, problem)
        mechanism.allocations += 1
        envied = envy(problem, found)
        if envied is not None:
            happened.append(Rows("envy", {"share": [envied]}, True))
        self.tell(happened)
        width = jobs.width if found.kind is None or problem.kind_width is None else problem.kind_width[found.kind]
        # A policy that does not tell types apart may give time on one that is too small for a wide job.
        found.share = np.where(width[:, None] <= problem.counts, found.share, 0.0)
        if len(found.pairs):
            fits = width[found.pairs[:, 0], None] <= problem.counts
            found.pair_share = np.where(fits, found.pair_share, 0.0)
        speed = found.throughput(problem)
        ends = self.now + np.divide(jobs.steps_left, speed, out=np.full(len(jobs), inf), where=speed > 0)
        until = min(float(ends.min()), self.stimuli.arrival_s, self.stimuli.price_until)
        if until == inf:
            raise NeverDoneError(f"job {jobs.id[0]} can never run on this cluster under this policy")
        passed = until - self.now
        done = ends <= until + _INSTANT * (1 + until)
        jobs.steps_left[:] = np.where(done, 0.0, np.maximum(jobs.steps_left - passed * speed, 0.0))
        used = (width[:, None] * found.share).sum(axis=0)
        if len(found.pairs):
            used = used + (jobs.width[found.pairs[:, 0]][:, None] * found.pair_share).sum(axis=0)
        if (used > problem.counts * _MORE).any():
            on = int((used / problem.counts).argmax())
            raise DovetailError(
                f"the policy gave an allocation that cannot be carried out: {used[on]:g} accelerators of type "
                f"{problem.types[on]} at a time, of {problem.counts[on]}"
            )
        events = [Rows("used", {"accelerator_s": used * passed})]
        self.now = until
        if done.any():
            events.append(records.completed(jobs.id[done], np.full(int(done.sum()), until)))
            mechanism.leave(done)
        self.tell(events)
