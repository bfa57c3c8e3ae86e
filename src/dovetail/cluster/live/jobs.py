"""What becomes of submitted jobs: their states, leases and progress, followed from the rows of a journal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from dovetail.cluster.live.specs import JobSpec
from dovetail.core.errors import InputError
from dovetail.core.events import Rows

JobState = Literal["waiting", "running", "completed", "cancelled", "given_up"]
"""A job that is given up has failed too often without progress; `why` tells how."""

OPEN = ("waiting", "running")
_FRUITLESS = 3  # leases without a step, which is worth a word


class UnknownJobError(InputError):
    """There is no such job."""


class SubmittedJob(Struct, kw_only=True):
    """A job as it is kept: on disk before its submission is confirmed."""

    id: int
    spec: JobSpec
    digest: str
    key: str | None = None
    created: float  # seconds since 1970
    cancel: bool = False  # somebody asked for its end


class JobStatus(Struct, kw_only=True):
    """A job at this moment. Seconds ending in `_s` are those of the service; `created` and `ended` since 1970."""

    id: int
    name: str
    model: str
    state: JobState = "waiting"
    width: int = 1
    steps: float
    done: float = 0.0  # steps, as its processes say
    saved: float = 0.0  # of these, in a checkpoint
    on: str = ""  # the type that it has now
    devices: tuple[int, ...] = ()
    beside: int | None = None  # the job that shares its accelerators
    epoch: int = 0  # of its last lease
    leases: int = 0
    failures: int = 0  # of its processes, in all
    failure: str = ""  # how the last of these went
    why: str = ""  # what was decided last
    weight: float = 1.0
    entity: str = ""
    deadline_s: float | None = None
    created: float
    ended: float | None = None
    arrived_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    served_s: float = 0.0  # with accelerators
    waited_s: float = 0.0  # without, since it came
    fruitless: int = 0  # leases in a row that brought no step, of a job that counts them
    folder: str = ""  # what the service keeps of it: checkpoints and logs
    command: tuple[str, ...] = ()
    runs_in: str = ""  # the folder of the command

    @property
    def open(self) -> bool:
        return self.state in OPEN


class CurrentLease(Struct):
    """Where a job is, or was last, under which epoch and as which kind."""

    kind: int
    epoch: int = 0
    on: int = -1
    beside: int = -1
    since_s: float = 0.0
    holds: bool = False
    spread: bool = False  # over several servers
    worked: bool = False  # it has made a step
    counts: bool = False  # its processes, of this lease or an earlier one, say how far they are
    cut: str = ""  # why it ended before its time
    planned: tuple[int, ...] = ()  # where it is to begin with the next round, as it was told
    spare: tuple[int, ...] = ()  # where it would begin if another job ended
    ahead: bool = False  # whether it began where its process was up already


class JobTable:
    """All jobs that are remembered, by number. Steps are shown to it as they are written, or were."""

    def __init__(self, types: Sequence[str]) -> None:
        self.types = tuple(types)
        self.why: tuple[str, ...] = ()  # reasons of leases, as the journal's header has them
        self.base_s = 0.0  # when the journal began
        self.jobs: dict[int, JobStatus] = {}
        self.leases: dict[int, CurrentLease] = {}  # of jobs that are open
        self._open: dict[int, JobStatus] = {}
        self._ended: dict[JobState, int] = dict.fromkeys(get_args(JobState), 0)
        self._server_of: dict[int, int] = {}  # by accelerator

    def add(self, job: SubmittedJob, folder: str) -> JobStatus:
        spec = job.spec
        status = JobStatus(
            id=job.id,
            name=spec.title,
            model=spec.kind,
            width=spec.width,
            steps=spec.steps,
            weight=spec.weight,
            entity=spec.entity,
            deadline_s=spec.deadline_s,
            created=job.created,
            folder=folder,
            command=spec.full_command(),
            runs_in=spec.folder,
        )
        self.put(status)
        return status

    def put(self, status: JobStatus) -> None:
        """A job as it is known from elsewhere, in the place of what was known of it."""
        self._uncount(status.id)
        self.jobs[status.id] = status
        if status.open:
            self._open[status.id] = status
        else:
            self._ended[status.state] += 1

    def drop(self, job: int) -> None:
        """Remember it no more."""
        self._uncount(job)
        self.jobs.pop(job, None)

    def _uncount(self, job: int) -> None:
        status = self.jobs.get(job)
        if status is not None and self._open.pop(job, None) is None:
            self._ended[status.state] -= 1

    def find(self, job: int) -> JobStatus:
        found = self.jobs.get(job)
        if found is None:
            raise UnknownJobError(f"there is no job {job}")
        return found

    def open(self) -> Iterator[JobStatus]:
        return iter(self._open.values())

    def states(self) -> dict[JobState, int]:
        """How many jobs are in which state."""
        found = Counter(status.state for status in self.open())
        return {state: count + found[state] for state, count in self._ended.items()}

    def greeted(self, job: int) -> None:
        """A process of it has asked for its lease: it counts steps."""
        if (lease := self.leases.get(job)) is not None:
            lease.counts = True

    def interrupt(self) -> None:
        """Nobody is known to run any more."""
        for status in self.open():
            lease = self.leases.get(status.id)
            if lease is not None and lease.holds:
                self._stopped(status, {}, lease.since_s)
        self.leases.clear()

    def told(self, job: int, now_s: float) -> JobStatus:
        """A copy, with the lease that runs counted up to now."""
        status, lease = self.find(job), self.leases.get(job)
        served_s = status.served_s + (now_s - lease.since_s if lease is not None and lease.holds else 0.0)
        until_s = now_s if status.ended_s is None else status.ended_s
        waited_s = 0.0 if status.arrived_s is None else max(until_s - status.arrived_s - served_s, 0.0)
        why = status.why
        if status.open and status.fruitless >= _FRUITLESS:
            why = (
                f"{status.fruitless} leases without a step: its start takes longer than its turn (a longer round helps)"
            )
        return replace(status, served_s=served_s, waited_s=waited_s, why=why)

    def step(self, t: float, rows: Sequence[Any]) -> list[JobStatus]:
        """What was seen and decided at one moment; gives the jobs that ended by it."""
        ended: list[JobStatus] = []
        t += self.base_s
        for each in rows:
            if not isinstance(each, Rows):
                continue
            if each.of == "joined":
                self._server_of |= zip(each.columns["device"], each.columns["server"], strict=True)
            elif each.of == "failed":
                for job in {job for jobs in each.columns["jobs"] for job in jobs}:
                    self._lose(job, "its accelerators went down")
            elif each.of == "spares":
                for lease in self.leases.values():
                    lease.spare = ()
            follow = _FOLLOW.get(each.of)
            if follow is None or "id" not in each.columns:
                continue
            names = list(each.columns)
            for values in zip(*each.columns.values(), strict=True):
                found = dict(zip(names, values, strict=True))
                status = self.jobs.get(int(found["id"]))
                if status is not None and status.open:
                    follow(self, status, found, t)
                    if not status.open:
                        self._open.pop(status.id)
                        self._ended[status.state] += 1
                        ended.append(status)
        if any(each.of == "due" and "round" in each.columns["what"] for each in rows if isinstance(each, Rows)):
            for lease in self.leases.values():
                lease.planned = ()
        return ended

    def _arrived(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        if status.arrived_s is None:
            status.arrived_s = float(row["at_s"]) + self.base_s
        self.leases[status.id] = CurrentLease(int(row["kind"]), status.epoch)

    def _started(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        lease = self.leases[status.id]
        epoch = int(row.get("epoch", lease.epoch + 1))
        if epoch != lease.epoch:
            status.leases += 1
            lease.worked, lease.cut = False, ""
            lease.ahead = tuple(row["devices"]) in (lease.planned, lease.spare)
            lease.planned = lease.spare = ()
        lease.epoch, lease.on, lease.beside = epoch, int(row["on"]), int(row.get("beside", -1))
        lease.kind = int(row.get("kind", lease.kind))
        lease.since_s, lease.holds = t, True
        status.state, status.epoch, status.on = "running", epoch, self.types[lease.on]
        status.devices = tuple(int(device) for device in row["devices"])
        status.beside = lease.beside if lease.beside >= 0 else None
        status.width = len(status.devices)
        lease.spread = len({self._server_of.get(device, 0) for device in status.devices}) > 1
        status.started_s = t if status.started_s is None else status.started_s
        status.why = self.why[int(row["why"])] if int(row["why"]) < len(self.why) else ""

    def _planned(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        self.leases[status.id].planned = tuple(row["devices"])

    def _spares(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        self.leases[status.id].spare = tuple(row["devices"])

    def _stopped(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        lease = self.leases[status.id]
        if lease.holds:
            status.served_s += float(row.get("to_s", t - self.base_s)) + self.base_s - lease.since_s
            if lease.worked:
                status.fruitless = 0
            elif lease.counts and not lease.cut:
                status.fruitless += 1
        lease.holds = False
        status.state, status.on, status.devices, status.beside = "waiting", "", (), None
        status.why = lease.cut or "its turn is over"

    def _progress(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        if float(row["steps"]) > status.done:
            lease = self.leases[status.id]
            status.fruitless, lease.worked, lease.counts = 0, True, True
        status.done, status.saved = float(row["steps"]), max(status.saved, float(row["saved"]))
        status.epoch = max(status.epoch, int(row["epoch"]))

    def _exited(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        status.failures += 1
        status.failure = str(row["why"])
        if int(row["epoch"]) == status.epoch:
            self._lose(status.id, status.failure)

    def _lose(self, job: int, why: str) -> None:
        """Its processes are gone, and what they did not save with them."""
        status = self.jobs.get(job)
        if status is not None and status.open:
            status.done = min(status.done, status.saved)
            self.leases[job].cut = why

    def _end(self, status: JobStatus, state: JobState, t: float, why: str) -> None:
        lease = self.leases.pop(status.id, None)
        if lease is not None and lease.holds:
            status.served_s += t - lease.since_s
        status.state, status.why, status.ended_s, status.ended = state, why, t, time.time()
        status.on, status.devices, status.beside = "", (), None

    def _completed(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        status.done = status.saved = status.steps
        self._end(status, "completed", t, "")

    def _cancelled(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        self._end(status, "cancelled", t, "it was asked for")

    def _given_up(self, status: JobStatus, row: dict[str, Any], t: float) -> None:
        status.done = status.saved
        last = f"; the last time: {status.failure}" if status.failure else ""
        self._end(status, "given_up", t, f"{row['why']}{last}")


_FOLLOW = {
    "arrived": JobTable._arrived,
    "planned": JobTable._planned,
    "spares": JobTable._spares,
    "started": JobTable._started,
    "stopped": JobTable._stopped,
    "progress": JobTable._progress,
    "exited": JobTable._exited,
    "completed": JobTable._completed,
    "cancelled": JobTable._cancelled,
    "given_up": JobTable._given_up,
    "rejected": JobTable._given_up,
}
