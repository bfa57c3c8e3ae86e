"""How a round is decided: a state machine without a clock, from rows of what happened to rows of what is decided.

`virtual_time` drives it in simulations. `scheduler_for` builds it again from a journal, to decide the same anew.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from dovetail.cluster.bounds import fastest
from dovetail.cluster.header import facts_of, policy_of, rules_of, setup_of
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Ints, Policy
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.admission import admit
from dovetail.cluster.rounding.ahead import NextRound, successors
from dovetail.cluster.rounding.changes import Changes
from dovetail.cluster.rounding.leases import Leases
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.phases import Phases
from dovetail.cluster.rounding.replayed import RecordedRounds, ReplayedRounds
from dovetail.cluster.rounding.reported import ReportedWork
from dovetail.cluster.rounding.running import RunningJobs
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader

# What is acted on at once, and does not begin a round: what happens to jobs, and what changes about the cluster.
_LEARNED = ("learned", "learned_pairs")
_OF_JOBS = ("completed", "phase", "failed", "lapsed", "progress", "kept", "exited", "cancelled")
_OF_CLUSTER = (
    "mended",
    "drained",
    "undrained",
    "joined",
    "kinds",
    "learned",
    "learned_pairs",
    "costs",
    "policy",
    "saved",
)
_INSIDE = (*_OF_JOBS, *_OF_CLUSTER)
_NEWS = {"started", "stopped", "planned", "arrived", "completed", "cancelled", "mended", "undrained", "due"}
_AT_ONCE = 100_000  # rounds
_LATE = 0.2  # of a round: one that begins later than that begins anew, and is not cut short


class Rounds(RunningJobs):
    """What is remembered between decisions: jobs and what they are owed, leases, and when the next round is due.

    Whoever drives it says what happened and what time it is, calls it when a round is due, and writes what it answers.
    """

    def __init__(self, setup: ClusterSetup, policy: Policy, rules: RoundRules, reported: bool = False) -> None:
        """Where leases are carried out for real, work is what is `reported` of jobs; else it is what rates give."""
        if reported and (not rules.inside or setup.in_phases):
            raise InputError("a live run acts inside rounds, and its jobs have no phases")
        tunes = getattr(policy, "elastic", False)
        phases: Phases | None = None
        if setup.in_phases:
            adaptive = None if setup.adaptive is None else setup.adaptive.with_restarts(rules.restart_s)
            wide_as_others = getattr(policy, "wide_as_others", False)
            phases = Phases(setup.types, setup.per_server, adaptive, tunes, setup.phased, wide_as_others)
        mechanism = Mechanism(
            policy,
            setup.types,
            setup.counts,
            setup.rates(),
            setup.throughputs.pairs,
            rules,
            random.Random(setup.seed + 5),
            setup.entities,
            kinds=setup.throughputs.kinds,
            phases=phases,
        )
        restarts_s = setup.restarts_s(rules.restart_s)
        if restarts_s is not None and restarts_s.max() >= rules.round_s and not (tunes and setup.adaptive):
            raise InputError(
                f"a restart of {restarts_s.max():g} s in rounds of {rules.round_s:g} s: jobs that take turns would "
                "never work; expected longer rounds"
            )
        work, per_server = ReportedWork() if reported else None, setup.per_server.tolist()
        leases = Leases(mechanism, per_server, setup.throughputs.spread, restarts_s, work)
        super().__init__(mechanism, leases, rules, phases, work)
        self._changes = Changes(mechanism, leases, per_server)
        self._runs = None if reported else fastest(setup, policy)[0] > 0  # live, a job waits for accelerators to join
        self._asked: dict[int, int] = {}  # kinds that jobs came with, where policies may change
        self._reverting = False
        self._leaving: set[int] = set()  # jobs that were told to leave when the round is over
        self._early: list[Rows] = []  # reports of jobs that arrive in this step
        self.now = -inf  # when it was last told of something
        self.rounds = 0

    @property
    def busy(self) -> bool:
        """Whether a job is there that is not done."""
        return len(self.jobs) > len(self._done)

    @property
    def idle(self) -> bool:
        """Whether jobs are there, and none of them runs."""
        return self.busy and not self._leases.held

    @property
    def plan_s(self) -> float:
        """When the next round is to be decided, if that is before it begins."""
        if self.rules.decide_at == 1 or self._next is not None or not self.busy:
            return inf
        return max(self.next_round_s - (1 - self.rules.decide_at) * self.rules.round_s, self.now)

    @property
    def next_s(self) -> float:
        """When something is due: the next round, or to decide it."""
        return min(self.plan_s, self.next_round_s) if self.busy else inf

    @property
    def ends_s(self) -> float:
        """Until when leases last that were not told to end sooner."""
        return self.next_round_s + (self.rules.round_s if self._next is not None else 0.0)

    def due(self, now: float) -> list[Rows]:
        """What is due now, as a live loop tells it."""
        return [] if now < self.next_s else [records.due("round" if now >= self.next_round_s else "plan")]

    def lapsed(self, now: float, leaves: bool = False) -> list[Rows]:
        """Leases that have ended because nobody came in time to renew them, as a live loop tells it; all of them, now,
        if the service `leaves`."""
        if leaves:
            over = dict.fromkeys(self._leases.held, now)
        elif now <= self.next_round_s + _LATE * self.rules.round_s:
            return []
        else:
            ends = {job: self.next_round_s if job in self._leaving else self.ends_s for job in self._leases.held}
            over = {job: end_s for job, end_s in ends.items() if end_s < now}
        return [records.lapsed(list(over), list(over.values()))] if over else []

    # --- what happened in, what is decided out ----------------------------------------------------------

    def handle(self, happened: Sequence[Rows], now: float) -> list[Rows]:
        """What is to be written of this instant, in order: what happened, and what is `decided` about it.

        Jobs that end, devices that fail and come back are acted on at once. Without them, a round begins if it is due;
        else new prices are seen, and jobs that arrive are taken in, and may have what is free. Who may have what is
        free is decided once, when all of this instant is known; where a round is due now, by that.
        """
        found: list[Rows] = []
        self.now = now
        at_once = [rows for rows in happened if rows.of in _INSIDE]
        rest = [rows for rows in happened if rows.of not in _INSIDE]
        due = now >= self.next_round_s or not self.rules.inside
        if len(rest) == 1 and rest[0].of == "prices":  # they are seen at once, and no reason for a round
            due = now >= self.next_round_s and self.busy
        begins = due and (bool(rest) or not at_once)
        freed: set[int] = set()  # types that have free accelerators, for whoever waits
        if self._failing:
            self._failing = set()
        for rows in at_once:
            if rows.of == "failed":
                self._failing.update(rows.columns["device"])
        for rows in at_once:
            freed |= self._see(rows, now, found)
        if self._reverting:
            self._revert()
        if not happened and now < self.next_round_s and now >= self.plan_s:
            self._plan(now, found)
        elif begins:
            self._round(rest, now, found)
        elif rest or now < self.next_round_s:
            self._inside(freed, rest, now, found)
        self._leaving &= self._leases.held.keys()
        self._early.clear()
        self._homeless.clear()
        if self.rules.spares and self.rules.inside and any(rows.of in _NEWS for rows in found):
            self._spare(found)
        return found

    def _spare(self, found: list[Rows]) -> None:
        """Tell who should be kept ready from now on, if that is new."""
        leases, jobs = self._leases, self.jobs
        leaving = self._leaving | leases.on_drained()
        spares = successors(jobs, leases, self._waiting_for, self.ends_s, leaving)
        if spares != leases.spares:
            leases.spares = spares
            places = [list(devices) for devices in spares.values()]
            epochs = None if self._reported is None else [self._reported.jobs[job].epoch + 1 for job in spares]
            found.append(records.spares(list(spares), places, epochs))

    def _see(self, rows: Rows, now: float, found: list[Rows]) -> set[int]:
        """Act on what happened at once; the types on which there is room for others now."""
        if rows.of in _OF_CLUSTER:
            new = self._changes.see(rows, now)
            if new is not None:
                found.append(new)
                self._change(rows.of, now, found)
            return set()
        if rows.of == "failed":
            self._fail(rows.columns["device"], now, found)
            return set()
        if rows.of == "phase":
            self._advance(rows, now, found)
            return set()
        if rows.of == "lapsed":
            self._lapse(rows, now, found)
            return set()
        if self._reported is None:
            return self._finish(rows, now, found)
        if rows.of == "progress" and (early := self._reported.current(rows, known=False)) is not None:
            self._early.append(early)
        known = self._reported.current(rows)
        if known is None:
            return set()
        if rows.of == "progress":
            self._progress(known, now, found)
            return set()
        if rows.of == "kept":
            self._reported.keep(known.columns["id"])
            found.append(known)
            return set()
        return self._exit(known, now, found) if rows.of == "exited" else self._finish(known, now, found)

    def close(self, now: float) -> list[Rows]:
        """The run is over: leases that still run end here, so that figures count them."""
        found: list[Rows] = []
        self._leases.stop(now, np.flatnonzero(self.jobs.on >= 0), found)
        return found

    def pass_over(self, until_s: float) -> None:
        """Nothing will happen before then: rounds that would change nothing are not gone through."""
        if self._leases.held:
            quiet = self._quiet_rounds(until_s)
            self.rounds += quiet
            self.next_round_s += quiet * self.rules.round_s
        elif until_s < inf and not self._done and self._next is None and self.mechanism.standstill:
            passed, self.next_round_s = last_before(until_s, self.next_round_s, self.rules.round_s)
            self.rounds += passed
            self.mechanism.shuffle(passed)

    def _quiet_rounds(self, until_s: float) -> int:
        """How many rounds would change nothing: everybody runs where all of its share is, and nothing happens."""
        mechanism, jobs = self.mechanism, self.jobs
        if mechanism.outdated or mechanism.policy.agnostic or mechanism.every_round:
            return 0
        if self._phases is not None and self._phases.tunes:
            return 0
        if self._done or self._leases.scattered or len(mechanism.pairs) or np.count_nonzero(jobs.on < 0):
            return 0
        if self._next is not None and (self._next.changed or self._next.places):
            return 0
        if not (jobs.share[np.arange(len(jobs)), jobs.on] > 1 - 1e-9).all():
            return 0
        until_s = min(float(jobs.finish_s.min()), until_s)
        return max(int((until_s - self.next_round_s) / self.rules.round_s), 0) if until_s < inf else 0

    # --- rounds -------------------------------------------------------------------------------------------

    def _round(self, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        """Settle accounts, choose who runs next, and move whoever must move."""
        mechanism, late_s = self.mechanism, now - self.next_round_s
        keeps_pace = 0 < late_s <= _LATE * self.rules.round_s and self.busy  # a live loop is never quite in time
        self._begun = now
        if self._reported is not None and self.idle and not keeps_pace and late_s > 0:
            self.mechanism.pass_over(self.next_round_s, now)  # no service was there
        found += [rows for rows in happened if rows.of == "due"]
        self._see_prices(happened, found)
        self._settle(now)
        self._resting.clear()
        self._arrive(happened, now, found)
        leaving = self._leaving | self._leases.on_drained()
        if self._next is None:
            self._ask(now, found)
            self._leases.apply(now, mechanism.choose(), found, leaving & self._leases.held.keys())
        else:
            plan, self._next = self._next, None
            choice = plan.choice(self.jobs)
            if plan.changed:  # since then, jobs came, ended or failed
                choice = mechanism.choose(choice)
            self._leases.apply(now, choice, found, leaving & self._leases.held.keys(), plan.places)
        self._leaving.clear()
        self._leases.ahead.clear()
        if not self._leases.held and mechanism.outdated:
            mechanism.hurry()  # nobody runs: only new shares can help
            self._ask(now, found)
            self._leases.apply(now, mechanism.choose(), found)
        if self._phases is not None and self._phases.tunes:
            self._tune(now, found)
        self._waiting = [None] * len(self._waiting)
        self.rounds += 1
        self.next_round_s = (self.next_round_s if keeps_pace else now) + self.rules.round_s
        self._ends.only((self.jobs.finish_s <= self.next_round_s).nonzero()[0])

    def _ask(self, now: float, found: list[Rows]) -> None:
        """Ask the policy if it is time. Who is to have another width stops, and starts again when it is chosen."""
        rows = self._new_shares(now, found)
        if len(rows):
            self._leases.stop(now, rows[self.jobs.on[rows] >= 0], found)
            self.mechanism.resize(rows)

    def _new_shares(self, now: float, found: list[Rows]) -> Ints:
        """Ask the policy if it is time; those who are to have another width."""
        mechanism, jobs = self.mechanism, self.jobs
        try:
            asked = mechanism.update(now)
        except (Exception, SystemExit) as error:  # of a policy that may be anybody's
            if self._reported is None:
                raise
            asked = False  # a service goes on with the shares that there are, and asks again in the next round
            kind = "" if isinstance(error, DovetailError) else f"{type(error).__name__}: "
            found.append(records.undecided(f"{kind}{error}"))
        if asked:
            if mechanism.envy is not None:
                found.append(Rows("envy", {"share": [mechanism.envy]}, True))
            if mechanism.runs_as is not None and mechanism.elastic and len(mechanism.runs_as) == len(jobs):
                return np.flatnonzero(mechanism.runs_as != jobs.kind)
            if self._reported is not None and not mechanism.elastic:
                return self._as_asked()
        return np.zeros(0, dtype=np.int64)

    def _as_asked(self) -> Ints:
        """Jobs are to have the widths that they came with; those that have others, from an elastic policy."""
        asked = np.array([self._asked[job] for job in self.jobs.id.tolist()], dtype=np.int64)
        self.mechanism.runs_as = asked
        return np.flatnonzero(asked != self.jobs.kind)

    def _revert(self) -> None:
        """An elastic policy was here before: who does not run is as wide as it came, and the others soon will be."""
        rows = self._as_asked()
        idle = self.jobs.on[rows] < 0
        self.mechanism.resize(rows[idle])
        self._reverting = not idle.all()

    # --- the next round, decided ahead ----------------------------------------------------------------------

    def _plan(self, now: float, found: list[Rows]) -> None:
        """Decide the next round, with accounts as they will be when it begins if nothing happens until then."""
        mechanism, jobs, leases, at_s = self.mechanism, self.jobs, self._leases, self.next_round_s
        self._settle(at_s)
        rows = self._new_shares(at_s, found)
        if len(rows):
            self._leaving.update(jobs.id[rows[jobs.on[rows] >= 0]].tolist())
            mechanism.resize(rows)
        choice = mechanism.choose()
        leaving = (self._leaving | leases.on_drained()) & leases.held.keys()
        self._next = NextRound.of(jobs, choice, leases.rehearse(at_s, choice, leaving))
        self._leaving |= self._next.places.keys() & leases.held.keys()
        if self._next.places:
            leases.ahead |= self._next.places
            found.append(self._next.told(mechanism, self._reported))

    def _change(self, of: str, now: float, found: list[Rows]) -> None:
        """Something has changed about the cluster: what was decided ahead may not be possible, or not be meant."""
        if of in _LEARNED:
            self._leases.reckon(now)
        if of == "policy" and not self.mechanism.elastic:
            self._reverting = True
            self._revert()
        if self._next is not None and of not in ("kinds", "costs", "saved"):
            self._next.changed = True
            if of == "policy":
                self._plan(now, found)

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
            self._waiting = [None] * len(self._waiting)  # it holds positions

    def _arrive(self, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        for rows in happened:
            if rows.of == "arrived":
                admitted = admit(rows, self._runs, now)
                found += admitted.records
                if admitted.columns["id"]:
                    self.mechanism.arrive(admitted.columns)
                    if self._next is not None:
                        self._next.changed = True
                    if self._reported is not None:
                        self._reported.arrive(admitted.columns["id"])
                        self._asked |= zip(admitted.columns["id"], admitted.columns["kind"], strict=True)
                        stays = zip(admitted.columns["id"], admitted.columns.get("stays", ()), strict=False)
                        self._leases.homes |= {job: () for job, only_there in stays if only_there}
                        for early in self._early:
                            if (known := self._reported.current(early)) is not None:
                                self._progress(known, now, found)
                        self._reported.settle(admitted.columns["id"])
                    if self._phases is not None:
                        self._phases.arrive(admitted.columns)
                        if self._phases.tunes:
                            self.mechanism.begin_narrow(len(admitted.columns["id"]))

    def _tune(self, now: float, found: list[Rows]) -> None:
        """Jobs that stay where they are choose their batch by what they have learned in the last round."""
        assert self._phases is not None
        ids = self._phases.retuned(self.jobs.id[self._working(now)].tolist())
        if ids:
            self._leases.change(now, self._leases.rows(ids), found)

    # --- inside a round -----------------------------------------------------------------------------------

    def _inside(self, freed: set[int], rest: Sequence[Rows], now: float, found: list[Rows]) -> None:
        """Who may have what is free now: jobs that lost their devices first, then who waits for what others left, then
        who comes. A strict policy is asked, once."""
        homeless: list[int] = []
        if self._homeless:
            rows = self._leases.rows(sorted(self._homeless)).tolist()
            homeless = [row for row in rows if self.jobs.on[row] < 0 and row not in self._done]
        strict = self.mechanism.policy.strict
        if homeless and not strict:
            self._let_in(homeless, now, found)
        if freed and not strict:
            self._refill(freed, now, found)
        came = range(0)
        if rest:
            first = len(self.jobs)
            self._see_prices(rest, found)
            self._arrive(rest, now, found)
            came = range(first, len(self.jobs))
        if strict and (homeless or came or (freed and self.rules.inside)):
            self._redo(now, found)
        elif came:
            self._let_in(came, now, found)
        for each in rest:
            if each.of == "due":
                found.append(each)
                if now >= self.plan_s:
                    self._plan(now, found)

    def _let_in(self, rows: Sequence[int], now: float, found: list[Rows]) -> None:
        """These jobs have nothing: each may have what is free on the type that is fastest for it."""
        mechanism, jobs = self.mechanism, self.jobs
        for row in rows:
            speed = mechanism.rates[jobs.kind[row]]
            for j in np.argsort(-speed, kind="stable").tolist():
                if speed[j] > 0 and self._leases.devices.free[j] >= jobs.width[row]:
                    self._start(now, np.array([row]), np.array([j]), records.FREE, found)
                    break

    def _refill(self, types: set[int], now: float, found: list[Rows]) -> None:
        """Accelerators of these types are free inside a round."""
        if not self.rules.inside:
            return
        if self._next is not None:
            self._begin_early(self._next, now, found)
        for j in sorted(types):
            self._fill(now, j, found)

    def _redo(self, now: float, found: list[Rows]) -> None:
        """A strict policy must be asked before anything may start."""
        planned, self._next = self._next, None
        self._settle(now)
        self._ask(now, found)
        self._leases.apply(now, self.mechanism.choose(), found)
        self._ends.only(np.flatnonzero(np.isfinite(self.jobs.finish_s)))
        if planned is not None:
            self._leaving -= set(self.jobs.id[self.jobs.since_s == now].tolist())
            self._plan(now, found)


def last_before(until_s: float, first_s: float, round_s: float) -> tuple[int, float]:
    """Of rounds one after the other, the last one that begins before then: how many come before it, and when it begins,
    to the last digit as if they were gone through; no more than can be reckoned with at once.

    >>> last_before(86400.0, 360.0, 360.0), last_before(1.0, 0.1, 0.3), last_before(0.1, 0.1, 0.3)
    ((238, 86040.0), (2, 0.7), (0, 0.1))
    """
    count = max(ceil((until_s - first_s) / round_s) - 1, 0)
    if first_s.is_integer() and float(round_s).is_integer():
        return count, first_s + count * round_s
    begins = np.cumsum(np.append(first_s, np.full(min(count + 1, _AT_ONCE), round_s)))
    passed = max(int(begins.searchsorted(until_s)) - 1, 0)
    return passed, float(begins[passed])


def scheduler_for(reader: Reader, policy: Policy | None = None) -> ReplayedRounds | RecordedRounds:
    """The state machine that a journal's decisions came from, at the journal's beginning; the policy is the one that
    the header names, unless it is given."""
    facts = facts_of(reader.header)
    if facts.mode == "summary":
        raise InputError(f"{reader.path}: a summary holds no leases: there is nothing to decide again")
    live = facts.clock == "live"
    rounds = Rounds(setup_of(reader.header), policy or policy_of(reader.header), rules_of(reader.header), live)
    return RecordedRounds(rounds) if live else ReplayedRounds(rounds, reader, facts.window)
