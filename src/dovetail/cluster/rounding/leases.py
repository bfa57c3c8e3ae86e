"""Leases: who holds which accelerators, from when on, at which rate, beside whom.

A lease is a job's stay on the same accelerators. It begins with a restart (unless the job was there already), works at
the rate of where and beside whom it is, and ends when the job is done, when its turn is over, or when a device fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from itertools import repeat
from math import inf
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.cluster.goodput.application import NOTHING, Batch, Shape
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.devices import Devices
from dovetail.cluster.rounding.mechanism import Choice, Mechanism
from dovetail.cluster.rounding.reported import ReportedWork
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows

Ids = set[int] | frozenset[int]
Moved = dict[int, tuple[Shape, float]]  # by id: the shape that a job had, seconds that are left of its pause
NOBODY: Ids = frozenset()
Plan = dict[int, tuple[int, ...]]  # by id: where a job will begin; nowhere: it will stop
NO_PLAN: Plan = {}


class HeldLease(Struct, frozen=True):
    """A lease that runs: the type and its accelerators, the job beside it or -1, the epoch, what the job runs as."""

    on: int
    devices: tuple[int, ...]
    beside: int
    epoch: int
    kind: int
    from_s: float


def sorted_shape(shape: Shape) -> Shape:
    """A placement, in whichever order its servers are."""
    return tuple(sorted(shape))


class Leases:
    """Begins and ends leases, and credits jobs with the time that they had.

    Of the table of jobs it writes where they are, since when, at which rate, and what they have left to do.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        per_server: Sequence[int],
        spread: Floats,
        restarts_s: Floats | None = None,
        reported: ReportedWork | None = None,
    ) -> None:
        """`restarts_s` are seconds by whether a start was planned ahead, kind and type, where they are not all the
        rules'. Where work is `reported`, that is what leases bring, and not what their rates would."""
        self._mechanism = mechanism
        self._phases = mechanism.phases
        self._rules = mechanism.rules
        self._per_server = per_server
        self._spread = spread
        self._restarts_s = restarts_s
        self._reported = reported
        self.devices = Devices(mechanism.counts.tolist(), per_server)
        self.held: dict[int, tuple[int, ...]] = {}  # devices by job id; two jobs that share hold the same
        self.ahead: Plan = {}  # where jobs are to begin as it was told, until a round has begun
        self.spares: Plan = {}  # where jobs would begin if others ended
        self.scattered: set[int] = set()  # wide jobs in more servers than they need
        self.homes: Plan = {}  # where jobs were last that can go on only there; nowhere: anywhere
        self._credited_s = -inf  # when all running jobs were credited last

    def rows(self, ids: Ints | Sequence[int]) -> Ints:
        """Positions of jobs in the table: ids grow with it."""
        return self._mechanism.jobs.id.searchsorted(ids)

    # --- accounts ---------------------------------------------------------------------------------------

    def credit(self, now: float) -> None:
        """Credit running jobs with the time that they had since the last time."""
        running = (self._mechanism.jobs.on >= 0).nonzero()[0]
        if len(running):
            self._credit(running, now)
        self._credited_s = now

    def _credit(self, rows: Ints, now: float) -> None:
        mechanism, jobs = self._mechanism, self._mechanism.jobs
        on, beside = jobs.on[rows], jobs.beside[rows]
        seconds = now - jobs.credited_s[rows]
        jobs.credited_s[rows] = now
        alone = beside < 0
        if np.count_nonzero(alone) == len(alone):
            mechanism.receive(rows, on, seconds)
            return
        mechanism.receive(rows[alone], on[alone], seconds[alone])
        shared = (~alone).nonzero()[0]
        others = self.rows(beside[shared])
        once = rows[shared] < others
        shared, others = shared[once], others[once]
        mechanism.receive_pairs(rows[shared], others, on[shared], seconds[shared])

    # --- rounds -----------------------------------------------------------------------------------------

    def apply(
        self, now: float, choice: Choice, events: list[Rows], leaving: Ids = NOBODY, plan: Plan = NO_PLAN
    ) -> None:
        """End the leases of those who are not chosen or move, then begin the new ones, wide jobs first. Those who are
        `leaving` do not stay where they are, and who has a place by the plan gets it if it is free."""
        if self.homes:
            choice, leaving = self._homeward(choice, leaving)
        jobs, paired = self._mechanism.jobs, len(self._mechanism.pairs) > 0
        beside = choice.beside
        if paired:
            beside = np.where(beside >= 0, jobs.id[np.maximum(beside, 0)], -1)
        changed = (jobs.on != choice.on) | (jobs.beside != beside)
        if leaving:
            changed[self.rows(sorted(leaving))] = True
        rows = changed.nonzero()[0]
        was, on = jobs.on[rows], choice.on[rows]
        runs = was >= 0
        kept = self._kept(choice, rows[runs & (was == on)], leaving)
        self.stop(now, rows[runs], events, kept)
        begin = on >= 0
        rows, on = rows[begin], on[begin]
        moved: Moved = {}
        if self._rules.free_moves and self._phases is not None and self._restarts_s is not None and not paired:
            rows, on, moved = self._make_room(now, rows, on, events)
        else:
            self._gather(now, events)
        if not self._mechanism.narrow:
            order = np.argsort(-jobs.width[rows], kind="stable")
            rows, on = rows[order], on[order]
        self.begin(now, rows, on, beside[rows] if paired else None, records.ROUND, events, kept, moved, plan)

    def _homeward(self, choice: Choice, leaving: Ids) -> tuple[Choice, Ids]:
        """Who can go on only where it was, and alone, has its place: whoever stays there moves, or it waits if that
        cannot move either."""
        jobs, on, away = self._mechanism.jobs, choice.on.copy(), set(leaving)
        taken: set[int] = set()
        for row in np.flatnonzero((on >= 0) & (jobs.on < 0) & (choice.beside < 0)).tolist():
            home = set(self.home(int(jobs.id[row])))
            there = [job for job in self.held if not home.isdisjoint(self.held[job])] if home else []
            bound = any(job in self.homes and on[k] >= 0 for job, k in zip(there, self.rows(there), strict=True))
            if bound or not home.isdisjoint(taken):
                on[row] = -1
                continue
            taken |= home
            away.update(there)
        return Choice(on, choice.beside), away

    def home(self, job: int) -> tuple[int, ...]:
        """Where a job was, if it can go on only there and that place is not gone."""
        devices = self.homes.get(job, ())
        return devices if all(self.devices.usable(device) for device in devices) else ()

    def rehearse(self, at_s: float, choice: Choice, leaving: Ids) -> Plan:
        """What `apply` would do then: who would stop or begin where; nothing is changed by it."""
        mechanism, copied = copy(self._mechanism), copy(self)
        mechanism.jobs, mechanism.pairs, mechanism.worked = deepcopy(
            (mechanism.jobs, mechanism.pairs, mechanism.worked)
        )
        copied._mechanism, copied._reported = mechanism, None
        copied._phases = mechanism.phases = None if self._phases is None else self._phases.copied()
        copied.devices, copied.scattered = deepcopy(self.devices), set(self.scattered)
        copied.held, copied.ahead, copied.spares, before = dict(self.held), {}, {}, self.held
        copied.homes = dict(self.homes)
        found: list[Rows] = []
        copied.apply(at_s, choice, found, leaving)
        stopped = {int(job) for rows in found if rows.of == "stopped" for job in rows.columns["id"]}
        begun: Plan = {}
        for rows in found:
            if rows.of == "started":
                for job, why in zip(rows.columns["id"], rows.columns["why"], strict=True):
                    if why in (records.KEPT, records.CHANGED) and copied.held[job] == before.get(job):
                        stopped.discard(job)
                    else:
                        begun[job] = copied.held[job]
        return dict.fromkeys(sorted(stopped - begun.keys()), ()) | begun

    def _make_room(self, now: float, rows: Ints, on: Ints, events: list[Rows]) -> tuple[Ints, Ints, Moved]:
        """Where jobs that begin now, or are scattered, find no whole servers, those that hold parts of servers move too
        if then all fit. Gives all that begin, and of those that move, their shape and what is left of their pauses."""
        jobs = self._mechanism.jobs
        moved: Moved = {}
        for j in sorted({*on.tolist(), *jobs.on[self.rows(sorted(self.scattered))].tolist()}):
            stay, new = np.flatnonzero(jobs.on == j), rows[on == j]
            part = stay[[not self.devices.whole(self.held[job]) for job in jobs.id[stay].tolist()]]
            ids, size = jobs.id[part].tolist(), self._per_server[j]
            if self.scattered.isdisjoint(ids) and self.devices.fit(j, jobs.width[new].tolist(), size):
                continue
            given = [device for job in ids for device in self.held[job]]
            if not self.devices.fit(j, jobs.width[np.concatenate((new, part))].tolist(), size, given):
                continue
            for row, job in zip(part.tolist(), ids, strict=True):
                left_s = max(float(jobs.ready_s[row]) - now, 0.0)
                moved[job] = (sorted_shape(self.devices.shape(self.held[job])), left_s)
            self.stop(now, part, events)
            rows, on = np.concatenate((rows, part)), np.concatenate((on, np.full(len(part), j)))
        return rows, on, moved

    def _kept(self, choice: Choice, stay: Ints, leaving: Ids) -> Ids:
        """Of jobs that change company but not place, the ids of those that keep it: of two that come together, the
        first one that was there."""
        if not len(stay):
            return NOBODY
        jobs = self._mechanism.jobs
        kept: set[int] = set()
        for row in stay.tolist():
            if int(jobs.id[row]) in leaving:
                continue
            other = int(choice.beside[row])
            if other < 0 or int(jobs.id[other]) not in kept:
                was = int(jobs.beside[row])
                if was < 0 or was not in kept:
                    kept.add(int(jobs.id[row]))
        return kept

    def _gather(self, now: float, events: list[Rows]) -> None:
        """A wide job that is spread over several servers moves into one that has room by now, if that pays soon."""
        jobs = self._mechanism.jobs
        for job in sorted(self.scattered - self.homes.keys()):
            row = self.rows([job])
            kind, on = int(jobs.kind[row[0]]), jobs.on[row]
            faster = float(self._mechanism.rates[kind, on[0]]) / max(float(jobs.rate[row[0]]), 1e-300)
            restart_s = self._rules.restart_s if self._restarts_s is None else float(self._restarts_s[0, kind, on[0]])
            pays = (faster - 1) * self._rules.round_s > restart_s
            if pays and self.devices.could_gather(self.held[job]):
                self.stop(now, row, events)
                self.begin(now, row, on, None, records.GATHERED, events)

    # --- single leases ------------------------------------------------------------------------------------

    def stop(
        self, now: float, rows: Ints, events: list[Rows], kept: Ids = NOBODY, saved_s: float | None = None
    ) -> None:
        """End leases. Devices become free unless somebody else, or the same job in other company, stays there.

        Work after `saved_s` is lost."""
        if not len(rows):
            return
        jobs, held = self._mechanism.jobs, self.held
        if self._credited_s != now:
            self._credit(rows, now)
        ids, beside, before = jobs.id[rows], jobs.beside[rows], jobs.steps_left[rows]
        if self._reported is None:
            jobs.steps_left[rows] = left = jobs.left(now if saved_s is None else saved_s, rows)
            brought = before - left
        else:
            brought = np.array(self._reported.stop(ids.tolist(), lost=saved_s is not None))
            done = [self._reported.jobs[job].done for job in ids.tolist()]
            jobs.steps_left[rows] = np.maximum(jobs.steps[rows] - done, 0.0)
        to_s = np.full(len(rows), now)
        events.append(records.stopped(ids, jobs.on[rows], beside, jobs.since_s[rows], to_s, brought))
        if self._phases is not None:
            self._phases.idle(ids.tolist())
        for job, other in zip(ids.tolist(), beside.tolist(), strict=True):
            if job in kept:
                continue
            devices = held.pop(job)
            if job in self.homes:
                self.homes[job] = devices if saved_s is None else ()
            if other < 0 or held.get(other) != devices:
                self.devices.give(devices)
        if self.scattered:
            self.scattered.difference_update(ids.tolist())
        jobs.on[rows] = jobs.beside[rows] = -1
        jobs.rate[rows] = 0.0
        jobs.finish_s[rows] = inf

    def complete(self, rows: Sequence[int]) -> None:
        """These jobs, whose leases have ended, have nothing left to do, whatever rounding says."""
        self._mechanism.jobs.steps_left[rows] = 0.0
        for job in self._mechanism.jobs.id[rows].tolist() if self.homes else ():
            self.homes.pop(job, None)
        if self._phases is not None:
            self._phases.leave(self._mechanism.jobs.id[rows].tolist())

    def change(self, now: float, rows: Ints, events: list[Rows], over: Ids = NOBODY) -> Ints:
        """Jobs have another rate from now on, where they are, as have those beside them; `over` have reached the end of
        a phase. Gives all of them."""
        jobs, phases = self._mechanism.jobs, self._phases
        assert phases is not None
        beside = jobs.beside[rows]
        rows = np.unique(np.concatenate((rows, self.rows(beside[beside >= 0]))))
        on, beside, ids = jobs.on[rows], jobs.beside[rows], jobs.id[rows].tolist()
        self.stop(now, rows, events, set(ids))
        for row, job in zip(rows.tolist(), ids, strict=True):
            if job in over:
                jobs.steps_left[row] = phases.left_after(job, float(jobs.steps[row]))
                phases.advance([job])
                self._mechanism.run_as(row, phases.kind(job))
        self.begin(now, rows, on, beside, records.CHANGED, events, set(ids))
        return rows

    def holders(self, device: int) -> list[int]:
        return [job for job, devices in self.held.items() if device in devices]

    def running(self) -> dict[int, HeldLease]:
        """The leases that run, by job."""
        jobs, epochs = self._mechanism.jobs, {} if self._reported is None else self._reported.jobs
        found = {}
        for job, devices in self.held.items():
            row = int(jobs.id.searchsorted(job))
            on, beside, kind = int(jobs.on[row]), int(jobs.beside[row]), int(jobs.kind[row])
            epoch = epochs[job].epoch if job in epochs else 0
            found[job] = HeldLease(on, devices, beside, epoch, kind, float(jobs.since_s[row]))
        return found

    def on_drained(self) -> Ids:
        """Who must leave when the round is over."""
        drained = self.devices.drained
        return {job for job, devices in self.held.items() if not drained.isdisjoint(devices)} if drained else NOBODY

    # --- what is learned ----------------------------------------------------------------------------------

    def add_kinds(self, spread: Floats) -> None:
        """Kinds become known, with their rates over several servers."""
        self._spread = np.concatenate((self._spread, spread))
        if self._restarts_s is not None:
            usual = np.full((2, *spread.shape), self._rules.restart_s)
            self._restarts_s = np.concatenate((self._restarts_s, usual), axis=1)

    def reckon(self, now: float) -> None:
        """Rates are others than was thought: what running jobs have left is counted on with them."""
        jobs = self._mechanism.jobs
        rows = (jobs.on >= 0).nonzero()[0]
        if self._mechanism.pair_rates is None:  # who still shares, under a policy that does not, soon will not
            rows = rows[jobs.beside[rows] < 0]
        if not len(rows):
            return
        jobs.steps_left[rows] = jobs.left(now, rows)
        jobs.ready_s[rows] = np.maximum(jobs.ready_s[rows], now)
        on, beside = jobs.on[rows], jobs.beside[rows]
        rate = self._rates(rows, on, beside if beside.max() >= 0 else None)
        for i, job in enumerate(jobs.id[rows].tolist()):
            if beside[i] < 0 and self.devices.servers(self.held[job]) > 1:
                rate[i] = self._spread[jobs.kind[rows[i]], on[i]]
        jobs.rate[rows] = rate

    def learn_spread(self, kinds: Ints, on: Ints, rates: Floats) -> None:
        """Kinds have other rates over several servers than was thought."""
        self._spread = self._spread.copy()
        self._spread[kinds, on] = rates

    def price(self, kinds: Ints, on: Ints, seconds: Floats, ahead: Sequence[bool] | None) -> None:
        """To start a job of a kind on a type takes so many seconds, if that was planned ahead or not, or always."""
        if self._restarts_s is None:
            self._restarts_s = np.full((2, *self._spread.shape), self._rules.restart_s)
        which: Any = slice(None) if ahead is None else np.array(ahead, dtype=np.int64)
        self._restarts_s[which, kinds, on] = seconds

    def begin(
        self,
        now: float,
        rows: Ints,
        on: Ints,
        beside: Ints | None,
        why: int,
        events: list[Rows],
        kept: Ids = NOBODY,
        moved: Moved | None = None,
        plan: Plan = NO_PLAN,
    ) -> None:
        """Begin leases beside the jobs with these ids, or alone (-1). A wide job that finds its devices only in several
        servers works at the rate for that."""
        if not len(rows):
            return
        jobs, restart_s = self._mechanism.jobs, self._rules.restart_s
        ids = jobs.id[rows].tolist()
        if beside is not None and beside.max() < 0:
            beside = None
        rate = self._rates(rows, on, beside)
        places = self._places(rows, ids, on.tolist(), beside, rate, kept, plan)
        free_s = self._free_moves(ids, places, moved) if moved else {}
        same = kept | free_s.keys() if free_s else kept
        batches = None if self._phases is None else self._batches(ids, on.tolist(), places, rate, same)
        ahead = self._planned(ids, places, kept)
        # A first start costs as much as a restart: a program and its data must be loaded.
        price_s = np.array([0.0 if job in kept else restart_s for job in ids]) if kept and restart_s else None
        if self._restarts_s is not None:
            changed = np.array([job not in kept for job in ids])
            price_s = self._restarts_s[ahead, jobs.kind[rows], on] * changed
            price_s = np.array([free_s.get(job, price) for job, price in zip(ids, price_s.tolist(), strict=True)])
        ready_s = now + (restart_s if price_s is None else price_s)
        jobs.on[rows], jobs.rate[rows] = on, rate
        jobs.beside[rows] = -1 if beside is None else beside
        jobs.since_s[rows] = jobs.credited_s[rows] = now
        jobs.ready_s[rows] = ready_s
        steps = jobs.steps_left[rows]
        if self._phases is not None:
            total = jobs.steps[rows].tolist()
            steps = steps - [self._phases.left_after(job, of) for job, of in zip(ids, total, strict=True)]
        work_s = np.divide(steps, rate, out=np.full(len(rows), inf), where=rate > 0)
        jobs.finish_s[rows] = ready_s + work_s
        stays = records.CHANGED if why == records.CHANGED else records.KEPT
        whys = [stays if job in kept else why for job in ids] if kept else [why] * len(ids)
        if free_s:
            whys = [records.MOVED if job in free_s else given for job, given in zip(ids, whys, strict=True)]
        kinds = jobs.kind[rows] if self._mechanism.elastic or self._reported is not None else None
        epochs = None if self._reported is None else [self._reported.begin(job, job in kept) for job in ids]
        events.append(records.started(ids, on, places, whys, beside, price_s, kinds, batches, epochs))

    def _planned(self, ids: list[int], places: list[tuple[int, ...]], kept: Ids) -> Ints:
        """Of those who begin, 1 for who was told so ahead, and to begin there."""
        found = np.zeros(len(ids), dtype=np.int64)
        for known in (self.ahead, self.spares):
            for i, (job, there) in enumerate(zip(ids, places, strict=True)):
                if job in known and job not in kept:
                    found[i] |= known.pop(job) == there
        return found

    def _free_moves(self, ids: list[int], places: list[tuple[int, ...]], moved: Moved) -> dict[int, float]:
        """Of jobs that moved, those that have the same shape as before, and what is left of their pauses."""
        found = {}
        for job, devices in zip(ids, places, strict=True):
            if job in moved and sorted_shape(self.devices.shape(devices)) == moved[job][0]:
                found[job] = moved[job][1]
        return found

    def _batches(
        self, ids: list[int], on: list[int], places: list[tuple[int, ...]], rate: Floats, kept: Ids
    ) -> list[Batch] | None:
        """The batches of jobs that have an application, if any has; their rates are those of batch and place."""
        assert self._phases is not None
        batches = []
        for i, (job, j, devices) in enumerate(zip(ids, on, places, strict=True)):
            found = self._phases.place(job, j, self.devices.shape(devices), job not in kept)
            batches.append(NOTHING if found is None else found[0])
            rate[i] = rate[i] if found is None else found[1]
        return batches if any(batch.local for batch in batches) else None

    def _places(
        self, rows: Ints, ids: list[int], on: list[int], beside: Ints | None, rate: Floats, kept: Ids, plan: Plan
    ) -> list[tuple[int, ...]]:
        """Devices for jobs: their own or their company's if they are there, else those of the plan, else free ones. Who
        can go on only where it was has what it had, as far as it is free.
        Sets the rate of a job that is spread over several servers."""
        jobs, held, take = self._mechanism.jobs, self.held, self.devices.take
        planned: Plan = {}
        if self.homes:
            at_home = {job: home for job in ids if job not in kept and (home := self.home(job))}
            planned = self._planned_places(rows, ids, on, beside, kept, at_home)
        if plan:
            plan = {job: places for job, places in plan.items() if job not in planned} if planned else plan
            planned = planned | self._planned_places(rows, ids, on, beside, kept, plan)
        others = repeat(-1) if beside is None else beside.tolist()
        places = []
        for i, (job, j, width, other) in enumerate(zip(ids, on, jobs.width[rows].tolist(), others, strict=False)):
            devices = held.get(job) if job in kept else held.get(other) if other >= 0 else None
            if devices is None:
                devices = planned.get(job) or take(j, width)
            if devices is None:
                raise DovetailError(
                    f"job {job} was to run on {width} accelerators of type {self._mechanism.types[j]}, but only "
                    f"{self.devices.free[j]} are free, which should not happen"
                )
            held[job] = devices
            places.append(devices)
            if width > 1 and other < 0 and self.devices.servers(devices) > 1:
                rate[i] = self._spread[jobs.kind[rows[i]], j]
                if width <= self._per_server[j]:
                    self.scattered.add(job)
        return places

    def _planned_places(
        self, rows: Ints, ids: list[int], on: list[int], beside: Ints | None, kept: Ids, plan: Plan
    ) -> Plan:
        """Of jobs that begin now, the places that they have by the plan, as far as they are free; two that will share
        have the same."""
        others = [-1] * len(ids) if beside is None else beside.tolist()
        found: Plan = {}
        for job, j, width, other in zip(ids, on, self._mechanism.jobs.width[rows].tolist(), others, strict=True):
            devices = plan.get(job, ())
            of_type = len(devices) == width and all(self.devices.type_of[device] == j for device in devices)
            there = job in kept or other in self.held or other in found
            if of_type and devices and not there and self.devices.claim(devices):
                found |= {job: devices} if other < 0 else {job: devices, other: devices}
        return found

    def _rates(self, rows: Ints, on: Ints, beside: Ints | None) -> Floats:
        """Steps per second of jobs on types, each alone in one server or beside another job."""
        jobs, mechanism = self._mechanism.jobs, self._mechanism
        kind = jobs.kind[rows]
        rate: Floats = mechanism.rates[kind, on]
        if beside is not None:
            assert mechanism.pair_rates is not None
            paired = (beside >= 0).nonzero()[0]
            other = jobs.kind[self.rows(beside[paired])]
            rate[paired] = mechanism.pair_rates[kind[paired], other, on[paired]]
        return rate
