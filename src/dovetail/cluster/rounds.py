"""How a round is decided: a state machine without a clock, from rows of what happened to rows of what is decided.

`virtual_time` drives it in simulations. `scheduler_for` builds it again from a journal, to decide the same anew.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np

from dovetail.cluster.bounds import fastest
from dovetail.cluster.header import facts_of, policy_of, rules_of, setup_of
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Ints, Policy
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.admission import admit
from dovetail.cluster.rounding.ends import ExpectedEnds
from dovetail.cluster.rounding.leases import NOBODY, Ids, Leases
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.phases import Phases
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError, ReplayError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader

_INSIDE = ("completed", "phase", "failed", "mended")  # what is acted on at once, and does not begin a round


class Rounds:
    """What is remembered between decisions: jobs and what they are owed, leases, and when the next round is due.

    Whoever drives it says what happened and what time it is, calls it when a round is due, and writes what it answers.
    """

    def __init__(self, setup: ClusterSetup, policy: Policy, rules: RoundRules) -> None:
        self.rules = rules
        tunes = getattr(policy, "elastic", False)
        self._phases: Phases | None = None
        if setup.in_phases:
            adaptive = None if setup.adaptive is None else setup.adaptive.with_restarts(rules.restart_s)
            self._phases = Phases(setup.types, setup.per_server, adaptive, tunes, setup.phased)
        self.mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.rates(),
            setup.throughputs.pairs,
            rules,
            random.Random(setup.seed + 5),
            setup.entities,
            kinds=setup.throughputs.kinds,
            phases=self._phases,
        )
        restarts_s = setup.restarts_s(rules.restart_s)
        if restarts_s is not None and restarts_s.max() >= rules.round_s and not (tunes and setup.adaptive):
            raise InputError(
                f"a restart of {restarts_s.max():g} s in rounds of {rules.round_s:g} s: jobs that take turns would "
                "never work; expected longer rounds"
            )
        self.jobs = self.mechanism.jobs  # the table, to be read
        self._leases = Leases(self.mechanism, setup.per_server.tolist(), setup.throughputs.spread, restarts_s)
        self._ends = ExpectedEnds(self.jobs)
        self._runs = fastest(setup, policy)[0] > 0
        self._done: list[int] = []  # positions of jobs that ended in this round
        self._waiting: list[Iterator[int] | None] = []
        self._begun = 0.0  # when this round began; work is saved then
        self.next_round_s = -inf
        self.rounds = 0

    def __getstate__(self) -> dict[str, Any]:
        """For a checkpoint, between two rounds."""
        return self.__dict__ | {"_waiting": []}

    @property
    def busy(self) -> bool:
        """Whether a job is there that is not done."""
        return len(self.jobs) > len(self._done)

    @property
    def idle(self) -> bool:
        """Whether jobs are there, and none of them runs."""
        return self.busy and not self._leases.held

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

    # --- what happened in, what is decided out ----------------------------------------------------------

    def handle(self, happened: Sequence[Rows], now: float) -> list[Rows]:
        """What is to be written of this instant, in order: what happened, and what is `decided` about it.

        Jobs that end, devices that fail and come back are acted on at once. Without them, a round begins if it is due;
        else jobs that arrive are taken in, and may have what is free.
        """
        found: list[Rows] = []
        at_once = [rows for rows in happened if rows.of in _INSIDE]
        for rows in at_once:
            if rows.of == "completed":
                self._finish(rows, now, found)
            elif rows.of == "phase":
                self._advance(rows, now, found)
            elif rows.of == "failed":
                self._fail(rows.columns["device"], now, found)
            else:
                self._mend(rows, found)
        rest = [rows for rows in happened if rows.of not in _INSIDE]
        due = now >= self.next_round_s or not self.rules.inside
        if due and (rest or not at_once):
            self._round(rest, now, found)
        elif rest:
            self._take_in(rest, now, found)
        return found

    def close(self, now: float) -> list[Rows]:
        """The run is over: leases that still run end here, so that figures count them."""
        found: list[Rows] = []
        self._leases.stop(now, np.flatnonzero(self.jobs.on >= 0), found)
        return found

    def pass_over(self, until_s: float) -> None:
        """Nothing will happen before then: rounds that would change nothing are not gone through."""
        quiet = self._quiet_rounds(until_s)
        self.rounds += quiet
        self.next_round_s += quiet * self.rules.round_s

    def _quiet_rounds(self, until_s: float) -> int:
        """How many rounds would change nothing: everybody runs where all of its share is, and nothing happens."""
        mechanism, jobs = self.mechanism, self.jobs
        if mechanism.outdated or mechanism.policy.agnostic or mechanism.every_round:
            return 0
        if self._phases is not None and self._phases.tunes:
            return 0
        if self._done or self._leases.scattered or len(mechanism.pairs) or np.count_nonzero(jobs.on < 0):
            return 0
        if not (jobs.share[np.arange(len(jobs)), jobs.on] > 1 - 1e-9).all():
            return 0
        until_s = min(float(jobs.finish_s.min()), until_s)
        return max(int((until_s - self.next_round_s) / self.rules.round_s), 0) if until_s < inf else 0

    # --- rounds -------------------------------------------------------------------------------------------

    def _round(self, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        """Settle accounts, choose who runs next, and move whoever must move."""
        mechanism = self.mechanism
        self._begun = now
        self._see_prices(happened, found)
        self._settle(now)
        self._arrive(happened, now, found)
        self._ask(now, found)
        self._leases.apply(now, mechanism.choose(), found)
        if not self._leases.held and mechanism.outdated:
            mechanism.hurry()  # nobody runs: only new shares can help
            self._ask(now, found)
            self._leases.apply(now, mechanism.choose(), found)
        if self._phases is not None and self._phases.tunes:
            self._tune(now, found)
        self._waiting = [None] * len(mechanism.types)
        self.rounds += 1
        self.next_round_s = now + self.rules.round_s
        self._ends.only((self.jobs.finish_s <= self.next_round_s).nonzero()[0])

    def _ask(self, now: float, found: list[Rows]) -> None:
        """Ask the policy if it is time. Who is to have another width stops, and starts again when it is chosen."""
        mechanism, jobs = self.mechanism, self.jobs
        if not mechanism.update(now):
            return
        if mechanism.envy is not None:
            found.append(Rows("envy", {"share": [mechanism.envy]}, True))
        if mechanism.elastic and mechanism.runs_as is not None and len(mechanism.runs_as) == len(jobs):
            rows = np.flatnonzero(mechanism.runs_as != jobs.kind)
            self._leases.stop(now, rows[jobs.on[rows] >= 0], found)
            mechanism.resize(rows)

    def _see_prices(self, happened: Sequence[Rows], found: list[Rows]) -> None:
        for rows in happened:
            if rows.of == "prices":
                found.append(rows)
                self.mechanism.see_prices(np.asarray(rows.columns["price"], dtype=np.float64))

    def _settle(self, now: float) -> None:
        """Credit running jobs with the time that they had, and forget those that are done."""
        self._leases.credit(now)
        if self._phases is not None:
            self._phases.learn(self.jobs.id[self._working(now)].tolist())
        if self._done:
            gone = np.zeros(len(self.jobs), dtype=np.bool_)
            gone[self._done] = True
            self._done = []
            self.mechanism.leave(gone)

    def _arrive(self, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        for rows in happened:
            if rows.of == "arrived":
                admitted = admit(rows, self._runs, now)
                found += admitted.records
                if admitted.columns["id"]:
                    self.mechanism.arrive(admitted.columns)
                    if self._phases is not None:
                        self._phases.arrive(admitted.columns)
                        if self._phases.tunes:
                            self.mechanism.begin_narrow(len(admitted.columns["id"]))

    def _working(self, now: float) -> Ints:
        """Jobs that run and have done some work there."""
        return np.flatnonzero((self.jobs.on >= 0) & (self.jobs.ready_s < now))

    def _tune(self, now: float, found: list[Rows]) -> None:
        """Jobs that stay where they are choose their batch by what they have learned in the last round."""
        assert self._phases is not None
        ids = self._phases.retuned(self.jobs.id[self._working(now)].tolist())
        if ids:
            self._leases.change(now, self._leases.rows(ids), found)

    # --- inside a round -----------------------------------------------------------------------------------

    def _take_in(self, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        """Jobs that come inside a round take what is free on the type that is fastest for them."""
        mechanism, jobs, first = self.mechanism, self.jobs, len(self.jobs)
        self._see_prices(happened, found)
        self._arrive(happened, now, found)
        if len(jobs) == first:
            return
        if mechanism.policy.strict:
            self._redo(now, found)
            return
        for row in range(first, len(jobs)):
            speed = mechanism.rates[jobs.kind[row]]
            for j in np.argsort(-speed, kind="stable").tolist():
                if speed[j] > 0 and self._leases.devices.free[j] >= jobs.width[row]:
                    self._start(now, np.array([row]), np.array([j]), records.FREE, found)
                    break

    def _advance(self, over: Rows, now: float, found: list[Rows]) -> None:
        """Jobs have reached the end of a phase: they go on where they are, at another rate."""
        assert self._phases is not None
        found.append(over)
        ids = over.columns["id"]
        self._phases.learn(ids)
        self._ends.add(self._leases.change(now, self._leases.rows(ids), found, set(ids)))

    def _finish(self, completed: Rows, now: float, found: list[Rows]) -> None:
        """Jobs end now; who was beside goes on alone, and free devices go to whoever waits."""
        jobs, leases = self.jobs, self._leases
        rows = leases.rows(completed.columns["id"]).tolist()
        types = {int(jobs.on[row]) for row in rows}
        others = [int(jobs.id.searchsorted(jobs.beside[row])) for row in rows if jobs.beside[row] >= 0]
        alone = [row for row in others if row not in rows]
        places = jobs.on[alone]
        kept = {int(jobs.id[row]) for row in alone}
        leases.stop(now, np.array(rows + alone), found, kept)
        leases.complete(rows)
        found.append(completed)
        self._done += rows
        if alone:
            self._start(now, np.array(alone), places, records.KEPT, found, kept)
        if not self.rules.inside:
            return
        if self.mechanism.policy.strict:
            self._redo(now, found)
            return
        for j in sorted(types):
            self._fill(now, j, found)

    def _start(self, now: float, rows: Ints, on: Ints, why: int, found: list[Rows], kept: Ids = NOBODY) -> None:
        """Begin leases of jobs that run alone, and expect their ends."""
        self._leases.begin(now, rows, on, None, why, found, kept)
        self._ends.add(rows)

    def _fill(self, now: float, j: int, found: list[Rows]) -> None:
        """Devices of a type are free inside a round: whoever ranks highest there and waits may have them."""
        jobs, mechanism = self.jobs, self.mechanism
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
            self._start(now, np.array(chosen), np.full(len(chosen), j), records.FREE, found)

    def _redo(self, now: float, found: list[Rows]) -> None:
        """A strict policy must be asked before anything may start."""
        self._settle(now)
        self._ask(now, found)
        self._leases.apply(now, self.mechanism.choose(), found)
        self._ends.only(np.flatnonzero(np.isfinite(self.jobs.finish_s)))

    def _fail(self, failed: Sequence[int], now: float, found: list[Rows]) -> None:
        """Devices go down, and the jobs on them lose what they did since this round began."""
        leases = self._leases
        for device in failed:
            holders = leases.holders(device)
            leases.devices.fail(device, held=bool(holders))
            self.mechanism.add_accelerators(leases.devices.type_of[device], -1)
            found.append(Rows("failed", {"device": [device], "jobs": [holders]}))
            leases.stop(now, leases.rows(holders), found, saved_s=self._begun)

    def _mend(self, mended: Rows, found: list[Rows]) -> None:
        found.append(mended)
        for device in mended.columns["device"]:
            self._leases.devices.mend(device)
            self.mechanism.add_accelerators(self._leases.devices.type_of[device], 1)


class ReplayedRounds:
    """Decides a recorded run again.

    Rounds in which nothing was decided are not in the journal: they are gone through on the way to what is.
    """

    hears = decides = (Rows,)

    def __init__(self, rounds: Rounds, reader: Reader, window: tuple[int, int] | None) -> None:
        self._rounds = rounds
        self._arrivals: deque[float] = deque()
        self._outages: deque[float] = deque()
        for _, t, events in reader.rows():
            for rows in events:
                if isinstance(rows, Rows) and rows.of == "arrived":
                    self._arrivals.append(min(rows.columns["at_s"]))
                elif isinstance(rows, Rows) and rows.of in ("failed", "mended"):
                    self._outages.append(t)
        self._price_until = inf
        self._open = set(range(*window)) if window else None

    def handle(self, happened: Sequence[Any], now: float) -> list[Rows]:
        """What is decided about what was seen."""
        seen = [rows for rows in happened if isinstance(rows, Rows) and not rows.decided]
        if not seen and self._open is not None and not self._open:
            return _as_read(self._rounds.close(now))
        self._catch_up(now, any(rows.of in _INSIDE for rows in seen))
        for rows in seen:
            if rows.of == "arrived":
                self._arrivals.popleft()
            elif rows.of in ("failed", "mended"):
                self._outages.popleft()
            elif rows.of == "prices":
                self._price_until = rows.columns.get("until_s", [inf])[0]
        found = self._rounds.handle(seen, now)
        for rows in found:
            if self._open is not None and rows.of in ("completed", "rejected"):
                self._open.difference_update(np.asarray(rows.columns["id"]).tolist())
        return _as_read([rows for rows in found if rows.decided])

    def close(self, now: float) -> list[Rows]:
        return self.handle([], now)

    def _catch_up(self, now: float, inside: bool) -> None:
        """Go through the rounds that come before this instant; one that is due now is not one of them."""
        rounds = self._rounds
        while rounds.busy and (rounds.next_round_s < now or (rounds.next_round_s == now and not inside)):
            coming = (queue[0] for queue in (self._arrivals, self._outages) if queue)
            rounds.pass_over(min(*coming, self._price_until, inf))
            if rounds.next_round_s >= now and not inside:
                return
            at = rounds.next_round_s
            if unseen := rounds.handle([], at):
                raise ReplayError(f"at {at} s nothing is recorded, and {unseen} is decided now")


def scheduler_for(reader: Reader, policy: Policy | None = None) -> ReplayedRounds:
    """The state machine that a journal's decisions came from, at the journal's beginning; the policy is the one that
    the header names, unless it is given."""
    facts = facts_of(reader.header)
    if facts.mode == "summary":
        raise InputError(f"{reader.path}: a summary holds no leases: there is nothing to decide again")
    rounds = Rounds(setup_of(reader.header), policy or policy_of(reader.header), rules_of(reader.header))
    return ReplayedRounds(rounds, reader, facts.window)


def _as_read(found: list[Rows]) -> list[Rows]:
    """Rows as they are read from a journal: lists in the place of arrays."""
    return msgspec.json.decode(msgspec.json.encode(found, enc_hook=lambda column: column.tolist()), type=list[Rows])
