"""What happened to one job and why: its leases, its waits and who held what it could have used, from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.cluster.check import readable_steps
from dovetail.cluster.header import ClusterFacts, facts_of, rules_of
from dovetail.cluster.metrics import metrics_for
from dovetail.cluster.narrate import BEFORE, CHOSEN, JobParts, JobStory, JobWait, LeaseStory, TypeThen, WentFirst
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.devices import Devices
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Rows
from dovetail.core.journal import Ended, Reader
from dovetail.core.results.run import Account

_SHOWN = 5  # holders and overtakers that are named
_NO_SERVICE = "there was no service to decide anything"


def explain(reader: Reader, job: str) -> JobStory:
    """The story of a job, by its number or its name, or by both as a frame of the run has them."""
    facts = facts_of(reader.header, reader.path)
    rules_of(reader.header, reader.path)  # what the checker refuses is not explained
    teller, metrics = _Teller(facts, job), metrics_for(facts)
    for n, t, events in readable_steps(reader, facts):
        teller.step(n, t, events)
        metrics.step(n, t, events)
    story = teller.story
    if story is None:
        known = f"jobs 0 to {teller.last}" if teller.last >= 0 else "no job"
        hint = did_you_mean(job, teller.names)
        raise InputError(f"{reader.path}: there is no job {job!r}; {known} arrived{hint}")
    story.rho = metrics.rho_of(story.job)
    story.parts = _parts(story, teller.best_s)
    return story


def _parts(story: JobStory, best_s: float | None) -> JobParts | None:
    """Where its time went: waits, restarts, what failures cost, and work."""
    if story.completed_s is None or story.brief:
        return None
    held_s = sum((lease.to_s or lease.from_s) - lease.from_s for lease in story.leases)
    restarts_s = sum(lease.start_s for lease in story.leases)
    lost_s = sum(lease.lost_s for lease in story.leases)
    work_s = held_s - restarts_s - lost_s
    parts = JobParts(waits_s=story.waited_s, restarts_s=restarts_s, lost_s=lost_s, work_s=work_s)
    if best_s is not None:
        parts.best_s = min(best_s, work_s)  # rounding
        parts.slower_s = work_s - parts.best_s
    return parts


def account(reader: Reader, job: str, task: str | None = None) -> Account:
    """The same in words; `task` is one of its leases."""
    if task is not None:
        raise InputError(f"{reader.path}: a job of a cluster is told as a whole; found task {task!r}")
    story = explain(reader, str(job))
    course = []
    for from_s, to_s, what, where, why in story.course():
        until = "now" if to_s is None and story.live else f"{'' if to_s is None else f'{to_s:.2f}'} s"
        course.append(f"{from_s:.2f} to {until}: {what}{f' on {where}' if where else ''}: {why}")
    return Account("\n".join([*story.opening(), *course, *story.closing()]), [story])


class _Teller:
    """Follows a run; keeps who holds which devices, and everything about one job."""

    def __init__(self, facts: ClusterFacts, wanted: str) -> None:
        self._facts = facts = facts.own()
        self._devices = Devices(facts.counts, facts.per_server)
        self._wanted = wanted.strip().removeprefix("job ")
        self._held: dict[int, tuple[int, tuple[int, ...]]] = {}  # type and devices by job
        self._begun: dict[int, int] = {}  # why leases began that began now, by job
        self._ahead: dict[int, tuple[int, int, float, float]] = {}  # who has what it waits for: type, why, since, many
        self._gone: dict[tuple[int, int], dict[int, float]] = {}  # by type and why: accelerator-seconds of jobs
        self._entity: dict[int, str] = {}
        self._beside: dict[int, int] = {}
        self._kind: dict[int, int] = {}
        self._names = list(facts.entities)
        self._steady = facts.applications is None and not facts.phased  # rates do not change as jobs go
        self.best_s: float | None = None  # of its work, where rates do not change
        self._down: set[int] = set()
        self._drained: set[int] = set()
        self._exited: dict[int, str] = {}  # why processes of jobs are gone now
        self._lapsed: set[int] = set()  # whose leases ended before now
        self._usable: list[int] = []
        self._running: LeaseStory | None = None
        self._cut = False  # the job's last lease was ended by something that failed
        self._waiting: JobWait | None = None
        self._failed: dict[int, int] = {}  # devices that fail now, by the jobs that lose them
        self.story: JobStory | None = None
        self.names: set[str] = set()
        self.last = -1

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._begun.clear()
        self._failed.clear()
        self._exited.clear()
        self._lapsed.clear()
        for event in events:
            if isinstance(event, Rows):
                handler = getattr(self, f"_see_{event.of}", None)
                if handler is not None:
                    handler(t, event.columns)
            elif isinstance(event, Ended) and self.story is not None:
                self._end(t, self.story)
        if self.story is not None:
            self._settle(t, self.story)

    def _end(self, t: float, story: JobStory) -> None:
        """The run is over: what ended with it did not end for others."""
        story.ended_s, story.cut_s = t, None
        if story.completed_s is None and story.leases and story.leases[-1].to_s == t:
            story.leases[-1].end = "the run ended"
            story.waits = [wait for wait in story.waits if wait.from_s < t]

    def _settle(self, t: float, story: JobStory) -> None:
        """This instant is over: if the job has nothing now, a wait begins."""
        if story.ended_s is None:
            story.cut_s = t
        closed = story.completed_s is not None or story.rejected_why
        if closed or self._running is not None or self._waiting is not None or story.brief or story.ended_s is not None:
            return
        types = [self._then(j) for j in self._usable]
        began_s = story.arrived_s if not story.leases else t
        self._waiting = JobWait(from_s=began_s, types=types, first=[], rests=story.job in self._exited)
        story.waits.append(self._waiting)
        self._gone.clear()
        for job, (on, devices) in self._held.items():
            if on in self._usable:
                self._ahead[job] = (on, self._begun.get(job, BEFORE), t, self._many(job, devices))

    def _many(self, job: int, devices: tuple[int, ...]) -> float:
        """Accelerators of a job; of those that it shares, half."""
        return len(devices) * (0.5 if self._beside.get(job, -1) >= 0 else 1.0)

    def _pass(self, t: float, job: int) -> None:
        """What a job had that was ahead of this one is over."""
        if (ahead := self._ahead.pop(job, None)) is not None:
            on, why, since_s, many = ahead
            held = self._gone.setdefault((on, why), {})
            held[job] = held.get(job, 0.0) + (t - since_s) * many

    def _close(self, t: float, wait: JobWait) -> None:
        """A wait is over: who had what the job could have used, by type and reason, the most first."""
        assert self.story is not None
        wait.to_s = t
        for job in list(self._ahead):
            self._pass(t, job)
        own = self._entity.get(self.story.job, "")
        wait.went_first = [
            WentFirst(
                type=self._facts.types[on],
                reason=CHOSEN if why == records.ROUND and self._facts.why[why] == records.CHOSEN else why,
                jobs=sorted(held, key=lambda job: -held[job]),
                entities=sorted({name for job in held if (name := self._entity.get(job, "")) and name != own}),
                own=[job for job in held if own and self._entity.get(job) == own],
                later=sum(job > self.story.job for job in held),
                accelerator_s=sum(held.values()),
            )
            for (on, why), held in self._gone.items()
            if any(seconds > 0 for seconds in held.values())
        ]
        wait.went_first.sort(key=lambda each: -each.accelerator_s)

    def _then(self, j: int) -> TypeThen:
        holders = [job for job, (on, _) in self._held.items() if on == j]
        count = self._facts.counts[j]
        down = sum(self._devices.type_of[device] == j for device in self._down | self._drained)
        taken = {device for job in holders for device in self._held[job][1]} - self._down - self._drained
        return TypeThen(
            type=self._facts.types[j],
            count=count,
            free=count - down - len(taken),
            down=down,
            holders=sorted(holders)[:_SHOWN],
            held_by=len(holders),
        )

    def _see_arrived(self, t: float, columns: dict[str, Any]) -> None:
        ids = columns["id"]
        names = columns.get("name") or [""] * len(ids)
        self.last = max(self.last, *ids)
        self.names.update(filter(None, names))
        self._kind.update(zip(ids, columns["kind"], strict=True))
        if self._names and "entity" in columns:
            self._entity.update(zip(ids, (self._names[at] for at in columns["entity"]), strict=True))
        for i, (job, name) in enumerate(zip(ids, names, strict=True)):
            if self.story is None and self._wanted in (str(job), name, f"{job} {name}"):
                self._arrive(i, job, name, columns)
            elif self.story is not None and name and name == self._wanted != str(self.story.job):
                self.story.namesakes.append(job)

    def _arrive(self, i: int, job: int, name: str, columns: dict[str, Any]) -> None:
        kind = columns["kind"][i]
        model, width = self._facts.kinds[kind]
        self._usable = self._fitting(kind)
        if self._steady and self._facts.fastest and self._facts.fastest[kind] > 0:
            self.best_s = columns["steps"][i] / self._facts.fastest[kind]
        self.story = JobStory(
            entity=self._entity.get(job, ""),
            job=job,
            name=name,
            model=model,
            width=width,
            steps=columns["steps"][i],
            arrived_s=columns["at_s"][i],
            weight=columns["weight"][i] if "weight" in columns else 1.0,
            due_s=columns["due_s"][i] if "due_s" in columns else None,
            leases=[],
            waits=[],
            brief=self._facts.mode == "summary",
            live=self._facts.clock == "live",
        )

    def _fitting(self, kind: int) -> list[int]:
        """Types that can run a kind."""
        counts, (_, width) = self._facts.counts, self._facts.kinds[kind]
        return [j for j, rate in enumerate(self._facts.alone[kind]) if rate > 0 and counts[j] >= width]

    def _see_started(self, t: float, columns: dict[str, Any]) -> None:
        ids = columns["id"]
        besides = columns.get("beside") or [-1] * len(ids)
        prices = columns.get("setup_s") or [self._facts.restart_s] * len(ids)
        rows = zip(ids, columns["on"], columns["devices"], besides, columns["why"], prices, strict=True)
        for job, on, devices, beside, why, price_s in rows:
            self._held[job], self._begun[job] = (on, tuple(devices)), why
            self._beside[job] = beside
            if self.story is not None and job == self.story.job:
                lease = LeaseStory(
                    from_s=t,
                    type=self._facts.types[on],
                    devices=tuple(devices),
                    why=self._facts.why[why],
                    setup_s=price_s,
                    beside=beside if beside >= 0 else None,
                )
                self._kind[job] = columns["kind"][ids.index(job)] if "kind" in columns else self._kind[job]
                self._begin(t, self.story, lease)
            elif self._waiting is not None and self.story is not None and on in self._usable:
                self._ahead[job] = (on, why, t, self._many(job, tuple(devices)))
                self._waiting.others += 1
                self._waiting.later += job > self.story.job
                if len(self._waiting.first) < _SHOWN:
                    self._waiting.first.append(job)

    def _begin(self, t: float, story: JobStory, lease: LeaseStory) -> None:
        if self._waiting is not None:
            self._close(t, self._waiting)
            self._waiting = None
        elif not story.leases and t > story.arrived_s:
            why = "it arrived inside a round, and was seen when that was over"
            story.waits.append(JobWait(from_s=story.arrived_s, to_s=t, types=[], first=[], why=why))
        elif story.leases and story.leases[-1].to_s == t and not self._cut:
            before = story.leases[-1]
            changed = lease.why == records.WHY_IN_PHASES[records.CHANGED]
            stays = "its batch or its phase changed" if changed else "only its company changed"
            before.end = stays if before.devices == lease.devices else "it moved"
            if len(before.devices) != len(lease.devices):
                before.end = f"its width became {len(lease.devices)}"
        story.leases.append(lease)
        self._running = lease

    def _see_stopped(self, t: float, columns: dict[str, Any]) -> None:
        for job, steps, to_s in zip(columns["id"], columns["steps"], columns["to_s"], strict=True):
            self._held.pop(job, None)
            self._pass(to_s, job)
            if self._running is not None and self.story is not None and job == self.story.job:
                lease, self._running = self._running, None
                lease.to_s, lease.steps = to_s, steps
                failed = self._failed.get(job)
                self._cut = failed is not None or job in self._exited
                lease.end = "others' turn" if failed is None else f"accelerator {failed} failed"
                if job in self._exited:
                    lease.end = f"its process failed ({self._exited[job]})"
                if failed is not None:
                    lease.lost_s = self._lost_s(job, lease)
                if job in self._lapsed:
                    lease.end = "there was no service to renew it"
                    if to_s < t:
                        self.story.waits.append(JobWait(from_s=to_s, to_s=t, types=[], first=[], why=_NO_SERVICE))

    def _lost_s(self, job: int, lease: LeaseStory) -> float:
        """What a failure cost: time of work whose steps were not kept."""
        assert lease.to_s is not None
        worked_s = max(lease.to_s - lease.from_s - lease.setup_s, 0.0)
        rate = self._rate(job, lease)
        known = rate and self._steady and self._facts.clock != "live"
        return max(worked_s - lease.steps / rate, 0.0) if known else 0.0

    def _rate(self, job: int, lease: LeaseStory) -> float:
        facts, kind, on = self._facts, self._kind[job], self._facts.types.index(lease.type)
        if lease.beside is not None:
            return 0.0 if facts.pairs is None else facts.pairs[kind][self._kind[lease.beside]][on]
        return (facts.spread if self._devices.servers(lease.devices) > 1 else facts.alone)[kind][on]

    def _see_completed(self, t: float, columns: dict[str, Any]) -> None:
        if self.story is not None and self.story.job in columns["id"]:
            self.story.completed_s = columns["at_s"][columns["id"].index(self.story.job)]
            if self.story.leases:
                self.story.leases[-1].end = "it was done"

    def _see_rejected(self, t: float, columns: dict[str, Any]) -> None:
        if self.story is not None and self.story.job in columns["id"]:
            self.story.rejected_why = columns["why"][columns["id"].index(self.story.job)]

    def _see_failed(self, t: float, columns: dict[str, Any]) -> None:
        for device, jobs in zip(columns["device"], columns["jobs"], strict=True):
            self._down.add(device)
            self._failed |= dict.fromkeys(jobs, device)

    def _see_mended(self, t: float, columns: dict[str, Any]) -> None:
        self._down.difference_update(columns["device"])

    # --- of live runs ---------------------------------------------------------------------------------------

    def _see_exited(self, t: float, columns: dict[str, Any]) -> None:
        self._exited |= zip(columns["id"], columns["why"], strict=True)

    def _see_lapsed(self, t: float, columns: dict[str, Any]) -> None:
        self._lapsed.update(columns["id"])

    def _see_given_up(self, t: float, columns: dict[str, Any]) -> None:
        self._see_rejected(t, columns)

    def _see_cancelled(self, t: float, columns: dict[str, Any]) -> None:
        self._see_rejected(t, {"id": columns["id"], "why": ["it was cancelled"] * len(columns["id"])})

    def _see_drained(self, t: float, columns: dict[str, Any]) -> None:
        self._drained.update(columns["device"])

    def _see_undrained(self, t: float, columns: dict[str, Any]) -> None:
        self._drained.difference_update(columns["device"])

    def _see_joined(self, t: float, columns: dict[str, Any]) -> None:
        self._facts.learn("joined", columns)
        self._devices.join(columns["device"], columns["on"], columns["server"])
        self._look_again()

    def _see_kinds(self, t: float, columns: dict[str, Any]) -> None:
        self._facts.learn("kinds", columns)

    def _see_learned(self, t: float, columns: dict[str, Any]) -> None:
        self._facts.learn("learned", columns)
        self._look_again()

    def _look_again(self) -> None:
        """What the job can run on may have become more."""
        if self.story is not None:
            self._usable = self._fitting(self._kind[self.story.job])
