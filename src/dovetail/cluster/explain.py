"""What happened to one job and why: its leases, its waits and who held what it could have used, from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.cluster.check import LeaseChecker
from dovetail.cluster.header import ClusterFacts, facts_of, rules_of
from dovetail.cluster.metrics import metrics_for
from dovetail.cluster.narrate import JobStory, JobWait, LeaseStory, TypeThen
from dovetail.cluster.rounding.schema import sound_steps
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Rows
from dovetail.core.findings import Findings
from dovetail.core.journal import Ended, Reader
from dovetail.core.run import Account

_SHOWN = 5  # holders and overtakers that are named


def explain(reader: Reader, job: str) -> JobStory:
    """The story of a job, by its number or its name, or by both as a frame of the run has them."""
    facts = facts_of(reader.header, reader.path)
    rules_of(reader.header, reader.path)  # what the checker refuses is not explained
    teller, metrics, checker = _Teller(facts, job), metrics_for(facts), LeaseChecker(facts, Findings())
    for n, t, events in sound_steps(reader, len(facts.types)):
        checker.step(n, t, events)
        if checker.unsound:
            raise InputError(f"{reader.path}: step {n}: {checker.unsound} (`dovetail check` finds more)")
        teller.step(n, t, events)
        metrics.step(n, t, events)
    story = teller.story
    if story is None:
        known = f"jobs 0 to {teller.last}" if teller.last >= 0 else "no job"
        hint = did_you_mean(job, teller.names)
        raise InputError(f"{reader.path}: there is no job {job!r}; {known} arrived{hint}")
    story.rho = metrics.rho_of(story.job)
    return story


def account(reader: Reader, job: str, task: str | None = None) -> Account:
    """The same in words; `task` is one of its leases."""
    if task is not None:
        raise InputError(f"{reader.path}: a job of a cluster is told as a whole; found task {task!r}")
    story = explain(reader, str(job))
    course = []
    for from_s, to_s, what, where, why in story.course():
        until = "" if to_s is None else f"{to_s:.2f}"
        course.append(f"{from_s:.2f} to {until} s: {what}{f' on {where}' if where else ''}: {why}")
    return Account("\n".join([*story.opening(), *course, *story.closing()]), [story])


class _Teller:
    """Follows a run; keeps who holds which devices, and everything about one job."""

    def __init__(self, facts: ClusterFacts, wanted: str) -> None:
        self._facts = facts
        self._wanted = wanted.strip().removeprefix("job ")
        self._held: dict[int, tuple[int, tuple[int, ...]]] = {}  # type and devices by job
        self._down: set[int] = set()
        self._usable: list[int] = []
        self._running: LeaseStory | None = None
        self._waiting: JobWait | None = None
        self._failed: dict[int, int] = {}  # devices that fail now, by the jobs that lose them
        self.story: JobStory | None = None
        self.names: set[str] = set()
        self.last = -1

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._failed.clear()
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
        self._waiting = JobWait(from_s=began_s, types=types, first=[])
        story.waits.append(self._waiting)

    def _then(self, j: int) -> TypeThen:
        holders = [job for job, (on, _) in self._held.items() if on == j]
        first = sum(self._facts.counts[:j])
        count = self._facts.counts[j]
        down = sum(first <= device < first + count for device in self._down)
        taken = {device for job in holders for device in self._held[job][1]} - self._down
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
        for i, (job, name) in enumerate(zip(ids, names, strict=True)):
            if self.story is None and self._wanted in (str(job), name, f"{job} {name}"):
                self._arrive(i, job, name, columns)

    def _arrive(self, i: int, job: int, name: str, columns: dict[str, Any]) -> None:
        kind = columns["kind"][i]
        model, width = self._facts.kinds[kind]
        counts = self._facts.counts
        self._usable = [j for j, rate in enumerate(self._facts.alone[kind]) if rate > 0 and counts[j] >= width]
        self.story = JobStory(
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
        )

    def _see_started(self, t: float, columns: dict[str, Any]) -> None:
        ids = columns["id"]
        besides = columns.get("beside") or [-1] * len(ids)
        prices = columns.get("setup_s") or [self._facts.restart_s] * len(ids)
        rows = zip(ids, columns["on"], columns["devices"], besides, columns["why"], prices, strict=True)
        for job, on, devices, beside, why, price_s in rows:
            self._held[job] = (on, tuple(devices))
            if self.story is not None and job == self.story.job:
                lease = LeaseStory(
                    from_s=t,
                    type=self._facts.types[on],
                    devices=tuple(devices),
                    why=self._facts.why[why],
                    setup_s=price_s,
                    beside=beside if beside >= 0 else None,
                )
                self._begin(t, self.story, lease)
            elif self._waiting is not None and self.story is not None and on in self._usable:
                self._waiting.others += 1
                self._waiting.later += job > self.story.job
                if len(self._waiting.first) < _SHOWN:
                    self._waiting.first.append(job)

    def _begin(self, t: float, story: JobStory, lease: LeaseStory) -> None:
        if self._waiting is not None:
            self._waiting.to_s, self._waiting = t, None
        elif not story.leases and t > story.arrived_s:
            why = "it arrived inside a round, and was seen when that was over"
            story.waits.append(JobWait(from_s=story.arrived_s, to_s=t, types=[], first=[], why=why))
        elif story.leases and story.leases[-1].to_s == t:
            before = story.leases[-1]
            before.end = "only its company changed" if before.devices == lease.devices else "it moved"
            if len(before.devices) != len(lease.devices):
                before.end = f"its width became {len(lease.devices)}"
        story.leases.append(lease)
        self._running = lease

    def _see_stopped(self, t: float, columns: dict[str, Any]) -> None:
        for job, steps in zip(columns["id"], columns["steps"], strict=True):
            self._held.pop(job, None)
            if self._running is not None and self.story is not None and job == self.story.job:
                lease, self._running = self._running, None
                lease.to_s, lease.steps = t, steps
                failed = self._failed.get(job)
                lease.end = "others' turn" if failed is None else f"accelerator {failed} failed"

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
