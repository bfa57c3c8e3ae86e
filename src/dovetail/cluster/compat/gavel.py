"""The older simulator's clock: rounds that end with their last job, whole steps, no restarts, idle gaps billed.

It serves for comparison with results that were made by Gavel; `virtual_time` is the one to trust.
"""

from __future__ import annotations

import random
from math import inf
from typing import NamedTuple

import numpy as np

from dovetail.cluster.compat.all_pairs import AllPairs
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Floats, Ints, Policy
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.stimuli import NeverDoneError
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.virtual_time import VirtualTime
from dovetail.core.events import Rows


class _OldRound(NamedTuple):
    """A round under way: positions of jobs, the type each runs on, who is beside it, its steps and its end."""

    rows: Ints
    on: Ints
    beside: Ints
    steps: Floats
    finish_s: Floats


_NOTHING = _OldRound(*(np.zeros(0, dtype=np.int64),) * 3, np.zeros(0), np.zeros(0))
_FAILURES = 5  # in a row, after which a job is dropped


class GavelSimulation(VirtualTime):
    """Runs a setup by the old rules; a turn is a round."""

    def __init__(self, setup: ClusterSetup, policy: Policy, rules: RoundRules) -> None:
        mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.throughputs.alone,
            setup.throughputs.pairs,
            rules,
            random.Random(setup.seed + 5),
            kinds=setup.throughputs.kinds,
            resizes=False,
            pairs=AllPairs,
            shows_rounds=False,
        )
        if mechanism.pair_rates is not None:  # its policies had them in single precision, its clock did not
            mechanism.seen_pair_rates = mechanism.pair_rates.astype(np.float32).astype(np.float64)
        super().__init__(setup, mechanism)
        self._rules = rules
        self._round_end = 0.0
        self._running = _NOTHING
        self._failures: dict[int, int] = {}

    def turn(self) -> None:
        """The end of a round and the beginning of the next one."""
        mechanism, stimuli = self.mechanism, self.stimuli
        ended: list[Rows] = []
        if len(self._running.rows):
            begun, self._round_end = self._round_end, float(self._running.finish_s.max())
            self.now = self._round_end
            ended = self._complete(begun)
        elif stimuli.arrival_s < inf:
            self.now = max(self.now, stimuli.arrival_s)
        elif not mechanism.outdated:
            raise NeverDoneError(f"job {mechanism.jobs.id[0]} can never run on this cluster")
        else:
            mechanism.hurry()  # nothing runs and nothing comes: only new shares can help
        prices, arrived = stimuli.prices(self.now), stimuli.arrivals(self.now)
        for rows in prices:
            mechanism.see_prices(rows.columns["price"])
        for rows in arrived:
            mechanism.arrive(rows.columns)
        mechanism.update(self.now)
        if self.now == 0.0:
            mechanism.hurry()  # its clock takes an allocation at 0 s for none
        self._start()
        self.rounds_begun += bool(len(self._running.rows))
        self.tell([*prices, *ended, *arrived])  # a round is billed at the prices of its end

    def _start(self) -> None:
        """Give everybody who was chosen a whole number of steps; newcomers without a share only keep others out."""
        jobs = self.mechanism.jobs
        choice = self.mechanism.choose()
        with_share = jobs.allotted & ((choice.beside < 0) | jobs.allotted[choice.beside])
        rows = ((choice.on >= 0) & with_share).nonzero()[0]
        on, beside = choice.on[rows], choice.beside[rows]
        rate = self.mechanism.speed[rows, on]
        paired = len(self.mechanism.pairs) > 0 and bool((beside >= 0).any())
        if paired:
            assert self.mechanism.pair_rates is not None
            together = self.mechanism.pair_rates[jobs.kind[rows], jobs.kind[np.maximum(beside, 0)], on]
            rate = np.where(beside >= 0, together, rate)
        steps = np.minimum(np.trunc(rate * self._rules.round_s), jobs.steps_left[rows])
        finish = self.now + steps / rate
        if paired:  # both members of a pair end with the later one
            at = np.full(len(jobs), -1)
            at[rows] = np.arange(len(rows))
            finish = np.where(beside >= 0, np.maximum(finish, finish[at[beside]]), finish)
        self._running = _OldRound(rows, on, beside, steps, finish)
        jobs.on[:] = -1
        jobs.on[rows] = on

    def _complete(self, begun: float) -> list[Rows]:
        jobs, running = self.mechanism.jobs, self._running
        order = np.argsort(-running.finish_s, kind="stable")
        rows, on, beside = running.rows[order], running.on[order], running.beside[order]
        steps, finish = running.steps[order], running.finish_s[order]
        seconds = finish - begun
        alone = beside < 0
        partner = beside
        if np.count_nonzero(alone) == len(alone):
            self.mechanism.receive(rows, on, seconds)
        else:
            self.mechanism.receive(rows[alone], on[alone], seconds[alone])
            first = ~alone & (rows < beside)
            self.mechanism.receive_pairs(rows[first], beside[first], on[first], seconds[first])
            partner = np.where(alone, -1, jobs.id[np.maximum(beside, 0)])
        ids, dropped = jobs.id[rows], []
        if self._failures or not self.mechanism.narrow:
            width = jobs.width[rows]
            failed = (width > 1) & (steps < width)  # too few steps to give every accelerator one
            steps = np.where(failed, 0.0, steps)
            dropped = self._drop(ids[failed], ids[~failed])
        jobs.done[rows] += steps
        jobs.steps_left[rows] = left = jobs.steps[rows] - jobs.done[rows]
        ended = (left <= 0).nonzero()[0]
        events = [records.stopped(ids, on, partner, begun, finish, steps)]
        if not len(ended) and not dropped:
            return events
        gone = np.zeros(len(jobs), dtype=np.bool_)
        gone[rows[ended]] = True
        if len(ended):
            events.append(records.completed(ids[ended], finish[ended]))
        if dropped:
            gone |= np.isin(jobs.id, dropped)
            events.append(records.rejected(np.array(dropped), f"failed {_FAILURES} times in a row"))
        self.mechanism.leave(gone)
        return events

    def _drop(self, failed: Ints, fine: Ints) -> list[int]:
        """Jobs that have failed too often. It happens to wide ones with fewer steps left than accelerators."""
        if not len(failed) and not self._failures:
            return []
        for job in fine.tolist():
            self._failures.pop(job, None)
        for job in failed.tolist():
            self._failures[job] = self._failures.get(job, 0) + 1
        if len(failed):
            self.mechanism.doubt()
        dropped = [job for job, count in self._failures.items() if count == _FAILURES]
        for job in dropped:
            del self._failures[job]
        return dropped
