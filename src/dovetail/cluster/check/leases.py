"""Follows a run of leases: who holds which devices, from when on, at which price, and what it brought."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, nan
from operator import itemgetter
from typing import Any

from msgspec import Struct

from dovetail.cluster.header import ClusterFacts
from dovetail.cluster.rounding.devices import Devices
from dovetail.cluster.rounding.phase_accounts import PhaseAccounts
from dovetail.cluster.rounding.records import CHANGED, KEPT, MOVED
from dovetail.core.check.follow import did_not_end
from dovetail.core.events import Rows
from dovetail.core.findings import Findings
from dovetail.core.journal import Ended, Header

_CLOSE = 1e-6  # relative: steps are sums of many leases


class OpenLease(Struct):
    on: int
    devices: tuple[int, ...]
    beside: int
    from_s: float
    restart_s: float
    kind: int
    phased_rate: float | None = None


class JobAccount(Struct):
    kind: int
    steps: float
    arrived_s: float
    done: float = 0.0
    closed: bool = False


class LeaseChecker:
    """Follows a run."""

    def __init__(self, facts: ClusterFacts, faults: Findings, free_moves: bool = False) -> None:
        self._facts = facts = facts.own()
        self._faults = faults
        self._brief = facts.mode == "summary"
        self._devices = Devices(facts.counts, facts.per_server)
        self._jobs: dict[int, JobAccount] = {}
        self._phases = PhaseAccounts(facts.types, facts.kinds, facts.adaptive(), bool(facts.wide_as_others))
        self._tunes = bool(facts.tunes)
        self._leases: dict[int, OpenLease] = {}
        self._holders: list[set[int]] = [set() for _ in range(len(self._devices))]
        self._down: set[int] = set()
        self._drained: set[int] = set()
        self._unlucky: set[int] = set()  # jobs that lost work because a device failed now
        self._left: dict[int, OpenLease] = {}  # where jobs were until now
        self._stayed: set[int] = set()  # of them, those whose leases began anew there
        self._begun: set[int] = set()  # jobs that began elsewhere now
        self._ahead: dict[int, tuple[int, ...]] = {}  # where jobs are to begin, as it was planned
        self._spares: dict[int, tuple[int, ...]] = {}  # and where they would, if others ended
        self._free_moves = free_moves
        self._n, self._now, self._before = 0, -inf, 0.0
        self._prices = facts.prices or []
        self._price_until_s = -inf  # when they change next, by the last row of them
        self.ended = False
        self.unsound = ""  # the first record that refers to what is not there: no figures can be computed from it

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for job in sorted(self._unlucky - self._left.keys()):
            self._fault("finish", job, "it lost an accelerator, and its lease goes on")
        if n <= self._n or (n > self._n + 1 and not self._brief):
            self._faults.add("step", f"step {n}", f"found it after step {self._n}")
        self._n = n
        if not self._now <= t < inf:
            self._faults.add("time", f"step {n}", f"found {t} s after {self._now} s")
        self._before, self._now = max(self._now, 0.0), t
        if self._jobs and t > self._price_until_s and self._facts.clock in ("rounds", "ideal"):
            self._faults.add("price", f"{t} s", f"found no row of prices at {max(self._price_until_s, 0.0)} s")
            self._price_until_s = nan  # once is enough
        self._unlucky.clear()
        self._left.clear()
        self._stayed.clear()
        self._begun.clear()
        for event in events:
            if self.ended:
                self._faults.add("end", f"step {n}", "the run goes on after its end")
            if isinstance(event, Ended):
                self.ended = True
            elif isinstance(event, Rows):
                self._expect(event.of)
                handler = getattr(self, f"_see_{event.of}", None)
                if handler is not None:
                    handler(event.columns)

    def _expect(self, of: str) -> None:
        """Rows of this kind come next."""

    def _fault(self, code: str, job: object, message: str) -> None:
        self._faults.add(code, f"job {job} at {self._now} s", message)

    def _unsound(self, code: str, job: object, message: str) -> None:
        self._fault(code, job, message)
        self.unsound = self.unsound or f"job {job} at {self._now} s: {message}"

    def _open(self, job: int, what: str) -> JobAccount | None:
        account = self._jobs.get(job)
        if account is None:
            self._unsound("arrival", job, f"it {what} before it arrived")
            return None
        if account.closed:
            self._fault("closed", job, f"it {what} after it was completed or rejected")
            return None
        return account

    def _see_arrived(self, columns: dict[str, Any]) -> None:
        keys = (columns[key] for key in ("id", "kind", "steps", "at_s"))
        phases = columns.get("phases") or [()] * len(columns["id"])
        entities = columns.get("entity") or [-1] * len(columns["id"])
        for job, kind, steps, at_s, changes, entity in zip(*keys, phases, entities, strict=True):
            if job in self._jobs:
                self._fault("arrival", job, "it arrived before")
            elif fault := self._number_fault(job):
                self._unsound("arrival", job, fault)
            if not 0 <= kind < len(self._facts.kinds):
                self._unsound("arrival", job, f"there is no kind {kind}")
                continue
            if entity >= len(self._facts.entities):
                self._unsound("arrival", job, f"there is no entity {entity}")
            if at_s > self._now:
                self._fault("arrival", job, f"it is known before its arrival at {at_s} s")
            self._jobs[job] = JobAccount(kind, steps, at_s)
            if fault := self._phases.arrive(job, kind, steps, changes):
                self._unsound("phase", job, fault)

    def _number_fault(self, job: int) -> str:
        expected = len(self._jobs)
        return "" if job == expected else f"expected number {expected}, for jobs are counted as they arrive"

    def _see_phase(self, columns: dict[str, Any]) -> None:
        for job in columns["id"]:
            if self._open(job, "reached the end of a phase") and (
                fault := self._phases.reach(job, leases=not self._brief)
            ):
                self._fault("phase", job, fault)

    def _see_started(self, columns: dict[str, Any]) -> None:
        count = len(columns["id"])
        besides = columns.get("beside") or [-1] * count
        prices = columns.get("setup_s") or [self._facts.restart_s] * count
        kinds = columns.get("kind") or [None] * count
        batches = zip(*(columns.get(key) or [0] * count for key in ("local", "accumulation")), strict=True)
        begun = []
        keys = (columns[key] for key in ("id", "on", "devices", "why"))
        more = (besides, prices, kinds, batches)
        for job, on, devices, why, beside, price_s, other_kind, batch in zip(*keys, *more, strict=True):
            account = self._open(job, "started")
            if account is None:
                continue
            if job in self._leases:
                self._fault("twice", job, "it runs already")
                continue
            if on >= len(self._facts.types):
                self._unsound("device", job, f"there is no type {on}")
                continue
            kind = self._kind(job, account, other_kind)
            width = self._facts.kinds[kind][1]
            if len(devices) != width or len(set(devices)) != len(devices):
                self._fault("width", job, f"it needs {width} devices, found {devices}")
            known = [d for d in devices if 0 <= d < len(self._holders)]
            stays = why in (KEPT, CHANGED) and job in self._left and self._left[job].devices == tuple(devices)
            out = self._down if stays else self._down | self._drained
            wrong = [d for d in devices if d not in known or self._devices.type_of[d] != on or d in out]
            if wrong:
                tell = self._fault if len(known) == len(devices) else self._unsound
                tell("device", job, f"devices {wrong} do not exist, are down or drained, or not of type {on}")
            if beside >= 0 and beside not in self._jobs:
                self._unsound("overlap", job, f"it is beside job {beside}, which has not arrived")
            (self._stayed if stays else self._begun).add(job)
            self._leases[job] = OpenLease(on, tuple(known), beside, self._now, price_s, kind)
            if known:
                self._check_batch(job, self._leases[job], batch)
            self._check_price(job, devices, why, price_s, self._start_s(job, self._leases[job], tuple(devices)))
            begun.append(job)
            for device in known:
                self._holders[device].add(job)
        for job in begun:
            lease = self._leases[job]
            if self._facts.phased:
                lease.phased_rate = self._rate(lease)  # now, because whoever is beside may change its phase
            others = set().union(*(self._holders[d] for d in lease.devices)) - {job}
            allowed = {lease.beside} if lease.beside >= 0 else set()
            if others != allowed:
                self._fault("overlap", job, f"found {sorted(others)} on its devices, expected {sorted(allowed)}")

    def _check_batch(self, job: int, lease: OpenLease, batch: tuple[int, int]) -> None:
        """What a lease says of a batch, of a job that has an application, and its rate with it."""
        shape = self._devices.shape(lease.devices)
        if fault := self._phases.width_fault(job, len(lease.devices), self._tunes):
            self._fault("width", job, fault)
        if fault := self._phases.batch_fault(job, lease.on, shape, *batch, self._tunes):
            self._fault("batch", job, fault)
        elif batch[0]:
            lease.phased_rate = self._phases.rate(job, lease.on, shape, *batch, self._tunes)

    def _kind(self, job: int, account: JobAccount, claimed: int | None) -> int:
        """What a job runs as: another width is fine, another model is not."""
        kinds, kind = self._facts.kinds, self._phases.kind(job, account.kind)
        if claimed is None:
            return kind
        if not 0 <= claimed < len(kinds) or not self._phases.may_run_as(job, account.kind, claimed):
            self._unsound("kind", job, f"it runs as kind {claimed}, expected one of the model {kinds[kind][0]!r}")
            return kind
        return claimed

    def _see_planned(self, columns: dict[str, Any]) -> None:
        self._ahead |= {job: tuple(devices) for job, devices in zip(columns["id"], columns["devices"], strict=True)}
        types = self._devices.type_of
        besides, kinds = (columns.get(name) or [-1] * len(columns["id"]) for name in ("beside", "kind"))
        keys = (columns[name] for name in ("id", "on", "devices"))
        for job, on, devices, beside, kind in zip(*keys, besides, kinds, strict=True):
            for each in {job, beside} - {-1} - self._jobs.keys():
                self._fault("plan", each, "it was planned before it arrived")
            if any(each >= len(types) or types[each] != on for each in devices) or on >= len(self._facts.types):
                self._fault("plan", job, f"it was planned on {devices}, which are not there or not of type {on}")
            if kind >= len(self._facts.kinds):
                self._fault("plan", job, f"it was planned as kind {kind}, which there is not")

    def _see_spares(self, columns: dict[str, Any]) -> None:
        self._spares = {job: tuple(devices) for job, devices in zip(columns["id"], columns["devices"], strict=True)}
        for job, devices in self._spares.items():
            if self._open(job, "was to follow") is None:
                continue
            if job in self._leases:
                self._fault("spare", job, "it runs already")
            if wrong := [device for device in devices if not 0 <= device < len(self._holders)]:
                self._fault("spare", job, f"there are no accelerators {wrong}")

    def _start_s(self, job: int, lease: OpenLease, devices: tuple[int, ...]) -> set[float]:
        """What it may cost to begin. Simulated runs do not tell when a round began: a plan may be of the last one."""
        known = () if job in self._stayed else (self._ahead.pop(job, ()), self._spares.pop(job, ()))
        ahead = devices in known
        which = {ahead} if self._facts.clock == "live" else {ahead, False}
        return {self._facts.start_s(lease.kind, lease.on, each) for each in which}

    def _check_price(self, job: int, devices: Sequence[int], why: int, price_s: float, expected: set[float]) -> None:
        """A start costs a restart, unless the job was there until now and only its company changes."""
        if not 0 <= why < len(self._facts.why):
            self._unsound("reason", job, f"there is no reason {why}")
        was = self._left.get(job)
        if was is not None and why in (KEPT, CHANGED) and was.devices == tuple(devices):
            expected = {0.0}
        elif was is not None and why == MOVED and self._free_moves and self._same_shape(was, self._leases[job]):
            expected = {max(was.from_s + was.restart_s - self._now, 0.0)}
        if price_s not in expected:
            self._fault("restart", job, f"found {price_s} s, expected {' or '.join(map(str, sorted(expected)))} s")

    def _same_shape(self, was: OpenLease, lease: OpenLease) -> bool:
        """Whether a job has as many accelerators of the same type in each server as it had."""
        shapes = [sorted(self._devices.shape(each.devices)) for each in (was, lease)]
        return was.on == lease.on and shapes[0] == shapes[1]

    def _see_stopped(self, columns: dict[str, Any]) -> None:
        keys = ("id", "on", "beside", "from_s", "to_s", "steps")
        for job, on, beside, from_s, to_s, steps in zip(*(columns[key] for key in keys), strict=True):
            account, lease = self._open(job, "stopped"), self._leases.pop(job, None)
            if on >= len(self._facts.types):
                self._unsound("device", job, f"there is no type {on}")
            if lease is None:
                self._fault("finish", job, "it does not run")
                continue
            if (on, beside) != (lease.on, lease.beside):
                found, expected = f"type {on} beside {beside}", f"type {lease.on} beside {lease.beside}"
                self._fault("finish", job, f"found a lease on {found}, expected {expected}")
            for device in lease.devices:
                self._holders[device].discard(job)
            self._left[job] = lease
            end_s = self._end_s(job)
            if from_s != lease.from_s or to_s != end_s:
                self._fault("finish", job, f"found {from_s} to {to_s} s, expected {lease.from_s} to {end_s} s")
            if account is not None:
                account.done += steps
                self._check_steps(job, lease, steps)
                if fault := self._phases.stop(job, account.done):
                    self._fault("phase", job, fault)

    def _end_s(self, job: int) -> float:
        """When a lease ends that is told to end now."""
        return self._now

    def _check_steps(self, job: int, lease: OpenLease, steps: float) -> None:
        """A lease works at its rate after its restart; what it did may be lost if a device failed."""
        held_s, rate = self._now - lease.from_s, self._rate(lease)
        most = rate * max(held_s - lease.restart_s, 0.0)
        least = 0.0 if job in self._unlucky else most
        slack = _CLOSE * max(1.0, most)
        if not least - slack <= steps <= most + slack:
            self._fault("steps", job, f"found {steps} in {held_s} s at {rate} per s")

    def _rate(self, lease: OpenLease) -> float:
        facts = self._facts
        if lease.phased_rate is not None:
            return lease.phased_rate
        if lease.beside >= 0:
            other = self._jobs.get(lease.beside)
            if other is None or facts.pairs is None:
                return 0.0
            return float(facts.pairs[lease.kind][self._phases.kind(lease.beside, other.kind)][lease.on])
        spread = self._devices.servers(lease.devices) > 1
        return float((facts.spread if spread else facts.alone)[lease.kind][lease.on])

    def _see_completed(self, columns: dict[str, Any]) -> None:
        for job, at_s in zip(columns["id"], columns["at_s"], strict=True):
            account = self._open(job, "was called complete")
            if account is None:
                continue
            account.closed = True
            if job in self._leases:
                self._fault("running", job, "it was called complete while it ran")
            if at_s > self._now or (at_s < self._now and self._facts.clock != "gavel"):
                self._fault("finish", job, f"called complete at {at_s} s, written at {self._now} s")
            if self._brief:
                self._check_time(job, account, at_s - account.arrived_s)
            elif fault := self._missing(job, account):
                self._fault("missing", job, fault)

    def _missing(self, job: int, account: JobAccount) -> str:
        """What a job that is called complete lacks."""
        short = abs(account.done - account.steps) > _CLOSE * max(1.0, account.steps)
        return f"it did {account.done} of {account.steps} steps" if short else ""

    def _check_time(self, job: int, account: JobAccount, took_s: float) -> None:
        """Without leases: nobody is done sooner than at its best."""
        fastest = self._facts.fastest
        rate = inf if fastest is None else max(fastest[kind] for kind in self._phases.kinds(job, account.kind))
        if took_s * rate * (1 + _CLOSE) < account.steps:
            self._fault("steps", job, f"found {account.steps} in {took_s} s at most {rate} per s")

    def _see_used(self, columns: dict[str, Any]) -> None:
        """Where shares are carried out exactly: all of a type for all of the time is the most that there is."""
        for name, count, used_s in zip(self._facts.types, self._facts.counts, columns["accelerator_s"], strict=True):
            most_s = count * (self._now - self._before)
            if used_s > most_s * (1 + _CLOSE) + _CLOSE:
                self._faults.add("used", f"{self._now} s", f"found {used_s} s of {name}, expected at most {most_s} s")

    def _see_rejected(self, columns: dict[str, Any]) -> None:
        for job in columns["id"]:
            account = self._open(job, "was rejected")
            if account is not None:
                account.closed = True

    def _see_failed(self, columns: dict[str, Any]) -> None:
        for device, jobs in zip(columns["device"], columns["jobs"], strict=True):
            if not self._take_out([device], self._down, "fails"):
                continue
            for job in sorted(self._holders[device] & self._begun):
                self._fault("device", job, f"it began on accelerator {device}, which fails in this step")
            if not self._brief and sorted(jobs) != sorted(self._holders[device]):
                found = f"found jobs {jobs} that lose accelerator {device}, expected {sorted(self._holders[device])}"
                self._faults.add("finish", f"{self._now} s", found)
            self._unlucky |= self._holders[device]

    def _see_mended(self, columns: dict[str, Any]) -> None:
        self._give_back(columns["device"], self._down, "comes back")

    def _take_out(self, devices: Sequence[int], out: set[int], what: str) -> bool:
        """Nobody may have these devices any more; whether all of them are there, and were not out before."""
        wrong = [device for device in devices if device >= len(self._holders) or device in out]
        for device in wrong:
            there = device < len(self._holders)
            fault = f"accelerator {device} {what}, and {'was out' if there else 'does not exist'}"
            self._faults.add("device", f"{self._now} s", fault)
            self.unsound = self.unsound or ("" if there else f"{self._now} s: {fault}")
        out.update(devices)
        return not wrong

    def _give_back(self, devices: Sequence[int], out: set[int], what: str) -> None:
        for device in devices:
            if device not in out:
                self._faults.add("device", f"{self._now} s", f"accelerator {device} {what}, and was not out")
        out.difference_update(devices)

    def _see_prices(self, columns: dict[str, Any]) -> None:
        """They are what the header says, from when on it says so; by the older rules, from a round's end on."""
        found, where = (columns["price"], (columns.get("until_s") or [inf])[0]), f"{self._now} s"
        if self._now < self._price_until_s:
            self._faults.add("price", where, f"found new prices, expected none before {self._price_until_s} s")
        self._price_until_s = found[1]
        if not self._prices:
            return
        at = max(bisect_right(self._prices, self._now, key=itemgetter(0)), 1)
        expected = self._prices[at - 1][1], self._prices[at][0] if at < len(self._prices) else inf
        if found != expected:
            told = " until ".join(map(str, found)), " until ".join(map(str, expected))
            self._faults.add("price", where, f"found {told[0]} s, expected {told[1]} s")
            self._prices = []  # once is enough

    def close(self, header: Header, torn: bool) -> None:
        """Nothing comes any more."""
        if not self.ended:
            self._faults.interrupted = True
            unfinished = sum(not account.closed for account in self._jobs.values())
            self._faults.add("end", "", did_not_end(header, unfinished, torn))
            return
        for job in self._leases:
            self._fault("running", job, "it still runs at the end")
        first, end = self._facts.window or (0, inf)
        for job, account in self._jobs.items():
            if not account.closed and first <= job < end:
                self._fault("unclosed", job, f"it did {account.done} of {account.steps} steps")
