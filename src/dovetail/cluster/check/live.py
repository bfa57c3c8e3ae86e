"""What must hold in a live run beside all that must hold of leases: reports, epochs, plans, accelerators that come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.cluster.check.leases import JobAccount, LeaseChecker, OpenLease
from dovetail.cluster.check.live_accounts import LiveAccounts
from dovetail.cluster.check.live_rounds import LiveRounds, RoundLease
from dovetail.cluster.header import ClusterFacts
from dovetail.cluster.rounding.records import GATHERED, ROUND
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows
from dovetail.core.findings import Findings
from dovetail.core.journal import Header

_ENDS = ("completed", "cancelled", "given_up")


class LiveLeaseChecker(LeaseChecker):
    """Follows a live run."""

    def __init__(self, facts: ClusterFacts, faults: Findings, live: LiveAccounts, rounds: LiveRounds) -> None:
        super().__init__(facts, faults)
        self._live, self._rounds = live, rounds
        self._last = -1  # the number of the last job
        self._many = 0  # jobs that are open
        self._ends: dict[int, float] = {}  # of leases that lapsed
        self._gathered: set[int] = set()
        self._ending: set[int] = set()  # jobs to which something happens in this step
        self._until_round: dict[int, RoundLease] = {}  # what there was when the round began
        rounds.strict = live.strict

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        rows = [event for event in events if isinstance(event, Rows)]
        due = [what for each in rows if each.of == "due" for what in each.columns["what"]]
        lapsed = [each.columns for each in rows if each.of == "lapsed"]
        self._ends = {job: at_s for each in lapsed for job, at_s in zip(each["id"], each["at_s"], strict=True)}
        leaves = bool(self._ends) and set(self._ends.values()) == {t}
        if fault := self._rounds.begin_step(t, due, self._many > 0, leaves):
            self._faults.add("time", f"{t} s", fault)
        self._ending = {job for each in rows if each.of in _ENDS for job in each.columns["id"]} | self._ends.keys()
        self._gathered.clear()
        self._live.begin_step()
        super().step(n, t, events)
        for job in self._live.end_step():
            self._fault("given_up", job, "its processes failed too often, and it was not given up")
        if self._rounds.begun:
            self._compare_round()

    def _expect(self, of: str) -> None:
        begun = self._rounds.begun
        self._rounds.see(of, self._now)
        if self._rounds.begun and not begun:
            self._until_round = self._seen_leases()

    def _seen_leases(self) -> dict[int, RoundLease]:
        return {
            job: RoundLease(lease.devices, lease.from_s, lease.beside >= 0, job in self._gathered)
            for job, lease in self._leases.items()
        }

    def _compare_round(self) -> None:
        """A round must be the one that was planned, and nobody stays on a drained device."""
        held = {job: lease for job, lease in self._seen_leases().items() if job not in self._stayed}
        before = {job: lease for job, lease in self._until_round.items() if job not in self._stayed}
        if fault := self._rounds.compare(self._now, held, before):
            self._faults.add("plan", f"{self._now} s", fault)
        self._ahead.clear()
        for job, lease in self._leases.items():
            if not self._drained.isdisjoint(lease.devices):
                self._fault("drained", job, f"it stays on {list(lease.devices)}, which were drained")

    def _number_fault(self, job: int) -> str:
        last, self._last = self._last, max(job, self._last)
        return "" if job > last else f"it comes after job {last}, expected numbers that grow"

    def _see_arrived(self, columns: dict[str, Any]) -> None:
        super()._see_arrived(columns)
        for job, kind in zip(columns["id"], columns["kind"], strict=True):
            if job in self._jobs:
                self._live.arrive(job, kind)
                self._many += 1

    def _see_started(self, columns: dict[str, Any]) -> None:
        super()._see_started(columns)
        epochs = columns.get("epoch") or [None] * len(columns["id"])
        for job, epoch, why in zip(columns["id"], epochs, columns["why"], strict=True):
            lease = self._leases.get(job)
            if lease is None or job not in self._live.jobs:
                continue
            stays = job in self._stayed
            if fault := self._live.start(job, epoch, stays):
                self._fault("epoch", job, fault)
            if fault := self._live.policy_fault(job, lease.kind, lease.beside, stays):
                self._fault("policy", job, fault)
            if why == GATHERED:
                self._gathered.add(job)
            if self._rounds.begun or stays:
                continue
            if why in (ROUND, GATHERED) and not self._live.strict:
                self._fault("reason", job, "it has its turn, and no round begins")
            if fault := self._rounds.begin_early(job, lease.devices):
                self._fault("plan", job, fault)

    def _see_stopped(self, columns: dict[str, Any]) -> None:
        if not self._rounds.begun and not self._live.strict:
            for job in columns["id"]:
                lease = self._leases.get(job)
                if lease is not None and self._ending.isdisjoint((job, lease.beside)):
                    self._fault("finish", job, "its lease ends inside a round, and nothing happened to it")
        super()._see_stopped(columns)

    def _see_completed(self, columns: dict[str, Any]) -> None:
        super()._see_completed(columns)
        self._leave(columns["id"])

    def _see_rejected(self, columns: dict[str, Any]) -> None:
        super()._see_rejected(columns)
        self._leave(columns["id"])

    def _leave(self, ids: Sequence[int]) -> None:
        self._many -= len(ids)
        self._rounds.forget(ids)

    def _see_lapsed(self, columns: dict[str, Any]) -> None:
        for job, at_s in zip(columns["id"], columns["at_s"], strict=True):
            lease = self._leases.get(job)
            if lease is None or not max(lease.from_s, self._before) <= at_s <= self._now:
                self._fault("finish", job, f"a lease that ended at {at_s} s, when it did not run")
        if not self._leases.keys() - self._ends.keys():
            self._rounds.lapse(max(columns["at_s"]))

    def _end_s(self, job: int) -> float:
        return self._ends.get(job, self._now)

    def _check_steps(self, job: int, lease: OpenLease, steps: float) -> None:
        if fault := self._live.stop(job, steps):
            self._fault("steps", job, fault)

    def _missing(self, job: int, account: JobAccount) -> str:
        """A command may end sooner than it was thought to, but not before it ran."""
        never = not self._live.jobs[job].epoch and account.steps > 0
        return "it was called complete, and never ran" if never else ""

    def _see_failed(self, columns: dict[str, Any]) -> None:
        super()._see_failed(columns)
        self._ending |= self._unlucky
        for job in self._unlucky:
            self._live.lose(job)

    def _see_due(self, columns: dict[str, Any]) -> None:
        self._rounds.due(columns["what"][0], self._now, self._many > 0)
        if self._rounds.begun:
            self._until_round = self._seen_leases()

    def _see_progress(self, columns: dict[str, Any]) -> None:
        for job, epoch, steps, saved in zip(*(columns[k] for k in ("id", "epoch", "steps", "saved")), strict=True):
            if self._open(job, "reported progress") is None:
                continue
            if fault := self._live.progress(job, epoch, steps, saved):
                self._fault("progress", job, fault)

    def _see_kept(self, columns: dict[str, Any]) -> None:
        for job, epoch in zip(columns["id"], columns["epoch"], strict=True):
            if self._open(job, "left something") is None:
                continue
            if fault := self._live.keep(job, epoch):
                self._fault("epoch", job, fault)

    def _see_exited(self, columns: dict[str, Any]) -> None:
        finals = columns.get("final") or [False] * len(columns["id"])
        for job, epoch, final in zip(columns["id"], columns["epoch"], finals, strict=True):
            if self._open(job, "lost its process") is None:
                continue
            if fault := self._live.exit(job, epoch, final):
                self._fault("epoch", job, fault)
            self._rounds.exit(job)
            if self._live.lost(job):
                self._ending.add(job)

    def _see_cancelled(self, columns: dict[str, Any]) -> None:
        self._close(columns["id"], "was cancelled")

    def _see_given_up(self, columns: dict[str, Any]) -> None:
        for job in columns["id"]:
            if job in self._live.jobs and (fault := self._live.give_up(job)):
                self._fault("given_up", job, fault)
        self._close(columns["id"], "was given up")

    def _close(self, ids: Sequence[int], what: str) -> None:
        for job in ids:
            account = self._open(job, what)
            if account is not None:
                account.closed = True
                if job in self._leases:
                    self._fault("running", job, f"it {what} while it ran")
                self._live.leave(job)
                self._leave([job])

    def _see_planned(self, columns: dict[str, Any]) -> None:
        super()._see_planned(columns)
        ids, devices = columns["id"], columns["devices"]
        known = [job for job in ids if self._open(job, "was planned") is not None]
        if any(device >= len(self._holders) for places in devices for device in places):
            self._faults.add("device", f"{self._now} s", "the plan has accelerators that do not exist")
            return
        places = {job: tuple(each) for job, each in zip(ids, devices, strict=True)}
        if fault := self._rounds.make(self._now, places) or self._plan_fault(places, columns):
            self._faults.add("plan", f"{self._now} s", fault)
        epochs = columns.get("epoch") or [0] * len(ids)
        if len(known) == len(ids) and (fault := self._live.plan_fault(ids, devices, epochs)):
            self._faults.add("epoch", f"{self._now} s", fault)

    def _plan_fault(self, places: dict[int, tuple[int, ...]], columns: dict[str, Any]) -> str:
        """Who is to begin has accelerators of one type that can be used, and that nobody keeps."""
        besides = columns.get("beside") or [-1] * len(places)
        taken: dict[int, int] = {}
        for job, on, beside in zip(places, columns["on"], besides, strict=True):
            out = [d for d in places[job] if self._devices.type_of[d] != on or d in self._down or d in self._drained]
            if out:
                return f"job {job} is planned on {out}, which are down or drained, or not of type {on}"
            for device in places[job]:
                stay = self._holders[device] - places.keys() - {beside}
                if stay or taken.setdefault(device, job) not in (job, beside):
                    return f"job {job} is planned on {device}, which is that of {sorted(stay) or taken[device]}"
        return ""

    def _see_drained(self, columns: dict[str, Any]) -> None:
        self._take_out(columns["device"], self._drained, "is drained")

    def _see_undrained(self, columns: dict[str, Any]) -> None:
        self._give_back(columns["device"], self._drained, "is drained no more")

    def _see_joined(self, columns: dict[str, Any]) -> None:
        try:
            if fault := self._facts.learn("joined", columns):
                raise DovetailError(fault)
            self._devices.join(columns["device"], columns["on"], columns["server"])
        except DovetailError as error:
            self._faults.add("device", f"{self._now} s", str(error))
            self.unsound = self.unsound or f"{self._now} s: {error}"
        self._holders += [set() for _ in range(len(self._devices) - len(self._holders))]

    def _learn(self, of: str, columns: dict[str, Any]) -> None:
        if fault := self._facts.learn(of, columns):
            self._faults.add("kind", f"{self._now} s", fault)
            self.unsound = self.unsound or f"{self._now} s: {fault}"

    def _see_kinds(self, columns: dict[str, Any]) -> None:
        self._learn("kinds", columns)

    def _see_learned(self, columns: dict[str, Any]) -> None:
        self._learn("learned", columns)

    def _see_learned_pairs(self, columns: dict[str, Any]) -> None:
        self._learn("learned_pairs", columns)

    def _see_costs(self, columns: dict[str, Any]) -> None:
        self._learn("costs", columns)

    def _see_policy(self, columns: dict[str, Any]) -> None:
        self._live.go_by(columns["name"][0], columns["options"][0])
        self._rounds.strict = self._live.strict

    def close(self, header: Header, torn: bool) -> None:
        """A live run goes on until somebody ends it; what a kill cut off was not carried out."""
        if self.ended:
            super().close(header, torn)
            return
        self._faults.interrupted = True
        self._faults.notes.append("the run had not ended when this was written: what is open is no fault")
