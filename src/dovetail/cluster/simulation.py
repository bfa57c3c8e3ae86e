"""The cluster in virtual time: rounds decided by the mechanism, leases on devices, arrivals and ends inside rounds.

A lease is a job's stay on the same accelerators. It begins with a restart (unless the job was there already), works at
the rate of where and beside whom it is, and ends when the job is done, when its turn is over, or when a device fails.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from dovetail.cluster import records
from dovetail.cluster.admission import admit
from dovetail.cluster.bounds import fastest
from dovetail.cluster.devices import Devices
from dovetail.cluster.mechanism import Choice, Mechanism
from dovetail.cluster.problem import Floats, Ints, Policy
from dovetail.cluster.rules import Rules
from dovetail.cluster.setup import Kinds, Setup
from dovetail.cluster.workload import Job
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Observer


class Simulation:
    """Runs a setup. What happens at one instant is one step for the observers."""

    def __init__(
        self, setup: Setup, policy: Policy, rules: Rules | None = None, observers: Sequence[Observer] = ()
    ) -> None:
        self._setup = setup
        self.rules = rules if rules is not None else Rules()
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
        self._spread = setup.throughputs.spread
        self._devices = Devices(setup.counts.tolist(), setup.per_server.tolist())
        self._held: dict[int, tuple[int, ...]] = {}  # devices by job id; two jobs that share hold the same
        self._kinds = Kinds(setup)
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
        self._scattered: set[int] = set()  # wide jobs in more servers than they need
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

    def take_up(self, setup: Setup) -> None:
        """Go on with the same setup after a checkpoint was loaded: jobs that were drawn before are passed over."""
        self._setup, self._kinds = setup, Kinds(setup)
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
        policy = mechanism.policy
        if mechanism.needs_allocation or policy.agnostic or getattr(policy, "every_round", False):
            return 0
        if self._done or self._scattered or len(mechanism.pairs) or not (jobs.on >= 0).all():
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
        self._apply(mechanism.choose(), events)
        if not self._held and mechanism.needs_allocation:
            mechanism.hurry()  # nobody runs: only new shares can help
            self._ask(events)
            self._apply(mechanism.choose(), events)
        self._waiting = [None] * len(self._setup.types)
        self.rounds += 1
        self._tell(events)
        if not self._held and self._next is None and not self._outages and len(mechanism.jobs):
            raise InputError(f"job {mechanism.jobs.id[0]} can never run on this cluster under this policy")

    def _ask(self, events: list[Rows]) -> None:
        """Ask the policy if it is time. Who is to have another width stops, and starts again when it is chosen."""
        mechanism, jobs = self.mechanism, self.mechanism.jobs
        if not mechanism.update(self.now, self._setup.prices.price_at(self.now)):
            return
        if mechanism.envy is not None:
            events.append(Rows("envy", {"share": [mechanism.envy]}))
        if mechanism.elastic and mechanism.runs_as is not None and len(mechanism.runs_as) == len(jobs):
            rows = np.flatnonzero(mechanism.runs_as != jobs.kind)
            self._stop(rows[jobs.on[rows] >= 0].tolist(), events)
            mechanism.resize(rows)

    def _inside(self, end: float) -> None:
        """Ends, arrivals and outages between two boundaries, in order of time."""
        jobs = self.mechanism.jobs
        soon = np.flatnonzero(jobs.finish_s <= end)
        self._ends = sorted(zip(jobs.finish_s[soon].tolist(), jobs.id[soon].tolist(), strict=True))
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
            row = int(np.searchsorted(jobs.id, job))
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
        jobs = self.mechanism.jobs
        running = [int(row) for row in np.flatnonzero(jobs.on >= 0)]
        events: list[Rows] = []
        self._stop(running, events)
        self._tell(events)

    def _take_prices(self, events: list[Rows]) -> None:
        if self.now >= self._price_until:
            prices = self._setup.prices
            self._price_until = prices.next_change(self.now)
            events.append(Rows("prices", {"price": prices.price_at(self.now)}))
            self.mechanism.needs_allocation = True

    # --- accounts ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Credit running jobs with the time that they had, and forget those that are done."""
        mechanism, jobs = self.mechanism, self.mechanism.jobs
        running = np.flatnonzero(jobs.on >= 0)
        if len(running):
            self._credit(running)
        if self._done:
            gone = np.zeros(len(jobs), dtype=np.bool_)
            gone[self._done] = True
            self._done = []
            mechanism.leave(gone)

    def _credit(self, rows: Ints) -> None:
        jobs = self.mechanism.jobs
        seconds = self.now - jobs.credited_s[rows]
        jobs.credited_s[rows] = self.now
        beside = jobs.beside[rows]
        if (beside < 0).all():
            self.mechanism.receive(rows, jobs.on[rows], seconds)
            return
        alone = beside < 0
        self.mechanism.receive(rows[alone], jobs.on[rows[alone]], seconds[alone])
        for row, other, time_s in zip(rows[~alone], self._rows(beside[~alone]), seconds[~alone], strict=True):
            if row < other:
                self.mechanism.receive_pair(int(row), int(other), int(jobs.on[row]), float(time_s))

    def _rows(self, ids: Ints | Sequence[int]) -> Ints:
        """Positions of jobs in the table: ids grow with it."""
        return np.searchsorted(self.mechanism.jobs.id, ids)

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
                if speed[j] > 0 and self._devices.free[j] >= mechanism.jobs.width[row]:
                    self._begin([row], [j], [-1], records.FREE, events)
                    self._watch([row])
                    break

    # --- leases -----------------------------------------------------------------------------------------

    def _apply(self, choice: Choice, events: list[Rows]) -> None:
        """End the leases of those who are not chosen or move, then begin the new ones, wide jobs first."""
        jobs = self.mechanism.jobs
        beside = choice.beside
        if len(self.mechanism.pairs):
            beside = np.where(beside >= 0, jobs.id[np.maximum(beside, 0)], -1)
        changed = (jobs.on != choice.on) | (jobs.beside != beside)
        kept: set[int] = set()
        if changed.any():
            kept = self._kept(choice, changed)
            self._stop(np.flatnonzero(changed & (jobs.on >= 0)).tolist(), events, kept)
        self._gather(events)
        rows = (changed & (choice.on >= 0)).nonzero()[0]
        if not self.mechanism.narrow:
            rows = rows[np.argsort(-jobs.width[rows], kind="stable")]
        self._begin(rows.tolist(), choice.on[rows].tolist(), beside[rows].tolist(), records.ROUND, events, kept)

    def _gather(self, events: list[Rows]) -> None:
        """A wide job that is spread over several servers moves into one that has room by now, if that pays soon."""
        jobs = self.mechanism.jobs
        for job in sorted(self._scattered):
            row = int(self._rows([job])[0])
            j = int(jobs.on[row])
            faster = float(self.mechanism.rates[jobs.kind[row], j]) / max(float(jobs.rate[row]), 1e-300)
            pays = (faster - 1) * self.rules.round_s > self.rules.restart_s
            if pays and self._devices.could_gather(self._held[job]):
                self._stop([row], events)
                self._begin([row], [j], [-1], records.GATHERED, events)

    def _kept(self, choice: Choice, changed: np.ndarray) -> set[int]:
        """Ids of jobs that change company but not place: of two that come together, the first one that was there."""
        jobs = self.mechanism.jobs
        kept: set[int] = set()
        for row in (changed & (jobs.on >= 0) & (jobs.on == choice.on)).nonzero()[0].tolist():
            other = int(choice.beside[row])
            if other < 0 or int(jobs.id[other]) not in kept:
                was = int(jobs.beside[row])
                if was < 0 or was not in kept:
                    kept.add(int(jobs.id[row]))
        return kept

    def _stop(
        self,
        rows: list[int],
        events: list[Rows],
        kept: set[int] | frozenset[int] = frozenset(),
        saved_s: float | None = None,
    ) -> None:
        """End leases. Devices become free unless somebody else, or the same job in other company, stays there.

        Work after `saved_s` is lost."""
        if not rows:
            return
        jobs, now = self.mechanism.jobs, self.now
        at = np.array(rows)
        self._credit(at)
        left = jobs.left(now if saved_s is None else saved_s, at)
        steps = jobs.steps_left[at] - left
        ids = jobs.id[at]
        events.append(
            records.stopped(ids, jobs.on[at], jobs.beside[at], jobs.since_s[at], np.full(len(at), now), steps)
        )
        jobs.steps_left[at] = left
        for job, other in zip(ids.tolist(), jobs.beside[at].tolist(), strict=True):
            self._scattered.discard(job)
            if job in kept:
                continue
            devices = self._held.pop(job)
            if other < 0 or self._held.get(other) != devices:
                self._devices.give(devices)
        jobs.on[at] = -1
        jobs.beside[at] = -1
        jobs.rate[at] = 0.0
        jobs.finish_s[at] = inf

    def _begin(
        self,
        rows: list[int],
        on: list[int],
        beside: list[int],
        why: int,
        events: list[Rows],
        kept: set[int] | frozenset[int] = frozenset(),
    ) -> None:
        """Begin leases; a wide job that finds its devices only in several servers works at the rate for that."""
        if not rows:
            return
        jobs, now = self.mechanism.jobs, self.now
        at, to = np.array(rows), np.array(on)
        rate = self._rates(at, to, beside)
        places: list[tuple[int, ...] | None] = []
        for i, (job, j, width, other) in enumerate(
            zip(jobs.id[at].tolist(), on, jobs.width[at].tolist(), beside, strict=True)
        ):
            devices = self._held.get(job) if job in kept else self._held.get(other) if other >= 0 else None
            if devices is None:
                devices = self._devices.take(j, width)
            places.append(devices)
            if devices is None:
                continue  # a device failed since the choice was made
            self._held[job] = devices
            if width > 1 and other < 0 and self._devices.servers(devices) > 1:
                rate[i] = self._spread[jobs.kind[rows[i]], j]
                if width <= self._setup.per_server[j]:
                    self._scattered.add(job)
        if None in places:
            found = [i for i, devices in enumerate(places) if devices is not None]
            at, to, rate, beside = at[found], to[found], rate[found], [beside[i] for i in found]
            if not found:
                return
        ids = jobs.id[at].tolist()
        # A first start costs as much as a restart: a program and its data must be loaded.
        price_s = [0.0 if job in kept else self.rules.restart_s for job in ids]
        jobs.on[at], jobs.beside[at], jobs.rate[at] = to, beside, rate
        jobs.since_s[at] = jobs.credited_s[at] = now
        jobs.ready_s[at] = ready_s = now + np.array(price_s)
        jobs.finish_s[at] = ready_s + np.divide(jobs.steps_left[at], rate, out=np.full(len(at), inf), where=rate > 0)
        whys = [records.KEPT if job in kept else why for job in ids]
        held = [devices for devices in places if devices is not None]
        kinds = jobs.kind[at] if self.mechanism.elastic else None
        events.append(records.started(ids, to, held, beside, whys, price_s, self.rules.restart_s, kinds))

    def _rates(self, rows: Ints, on: Ints, beside: Sequence[int]) -> Floats:
        """Steps per second of jobs on types, each alone in one server or beside another job."""
        jobs, mechanism = self.mechanism.jobs, self.mechanism
        rate: Floats = mechanism.rates[jobs.kind[rows], on]
        for i, other in enumerate(beside):
            if other >= 0:
                assert mechanism.pair_rates is not None
                rate[i] = mechanism.pair_rates[jobs.kind[rows[i]], jobs.kind[self._rows([other])[0]], on[i]]
        return rate

    # --- inside a round -----------------------------------------------------------------------------------

    def _finish(self, events: list[Rows]) -> None:
        """Jobs end now; who was beside goes on alone, and free devices go to whoever waits."""
        jobs = self.mechanism.jobs
        ended: dict[int, None] = {}  # in order, each once
        while self._ends and self._ends[0][0] == self.now:
            _, job = heapq.heappop(self._ends)
            row = int(self._rows([job])[0])
            if jobs.finish_s[row] == self.now:
                ended[row] = None
        rows = list(ended)
        types = {int(jobs.on[row]) for row in rows}
        others = [int(self._rows([jobs.beside[row]])[0]) for row in rows if jobs.beside[row] >= 0]
        alone = [row for row in others if row not in ended]
        places = jobs.on[alone].tolist()
        kept = {int(jobs.id[row]) for row in alone}
        self._stop(rows + alone, events, kept)
        ids = jobs.id[rows]
        jobs.steps_left[rows] = 0.0
        events.append(records.completed(ids, np.full(len(rows), self.now)))
        self._done += rows
        self.mechanism.needs_allocation = True
        if self._open is not None:
            self._open.difference_update(ids.tolist())
        self._begin(alone, places, [-1] * len(alone), records.KEPT, events, kept)
        self._watch(alone)
        if not self.rules.inside:
            return
        if self.mechanism.policy.strict:
            self._redo(events)
            return
        for j in sorted(types):
            self._fill(j, events)

    def _watch(self, rows: list[int]) -> None:
        jobs = self.mechanism.jobs
        for row in rows:
            heapq.heappush(self._ends, (float(jobs.finish_s[row]), int(jobs.id[row])))

    def _fill(self, j: int, events: list[Rows]) -> None:
        """Devices of a type are free inside a round: whoever ranks highest there and waits may have them."""
        jobs, mechanism = self.mechanism.jobs, self.mechanism
        waiting = self._waiting[j]
        if waiting is None:
            done = np.zeros(len(jobs), dtype=np.bool_)
            done[self._done] = True
            waiting = self._waiting[j] = iter(mechanism.ranked(j, (jobs.on < 0) & ~done).tolist())
        chosen = []
        free = self._devices.free[j]
        while free > 0:
            row = next(waiting, None)
            if row is None:
                break
            if jobs.on[row] < 0 and jobs.steps_left[row] > 0 and jobs.width[row] <= free:
                chosen.append(row)
                free -= int(jobs.width[row])
        if chosen:
            self._begin(chosen, [j] * len(chosen), [-1] * len(chosen), records.FREE, events)
            self._watch(chosen)

    def _redo(self, events: list[Rows]) -> None:
        """A strict policy must be asked before anything may start."""
        self._settle()
        mechanism = self.mechanism
        self._ask(events)
        self._apply(mechanism.choose(), events)
        jobs = mechanism.jobs
        running = np.flatnonzero(np.isfinite(jobs.finish_s))
        self._ends = sorted(zip(jobs.finish_s[running].tolist(), jobs.id[running].tolist(), strict=True))

    def _fail_or_mend(self, events: list[Rows]) -> None:
        """A device goes down, and the jobs on it lose what they did since this round began; or it comes back."""
        _, what, device = self._outages.pop()
        j = int(self._devices.type_of[device])
        if what != 1:
            self._devices.mend(device)
            self.mechanism.counts[j] += 1
            events.append(Rows("mended", {"device": [device]}))
        else:
            holders = [job for job, devices in self._held.items() if device in devices]
            self._devices.fail(device, held=bool(holders))
            self.mechanism.counts[j] -= 1
            events.append(Rows("failed", {"device": [device], "jobs": [holders]}))
            self._stop(self._rows(holders).tolist(), events, saved_s=self._begun)
        self.mechanism.needs_allocation = True
