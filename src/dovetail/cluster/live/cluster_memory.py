"""What a live cluster remembers: jobs, nodes, what was learned and who decides; kept in a store, or followed from the
rows of the journal."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.cluster.live.checkpoints import JobFolder
from dovetail.cluster.live.jobs import JobStatus, JobTable, SubmittedJob
from dovetail.cluster.live.learned import Knowledge, LearnedTable, NumberRecord
from dovetail.cluster.live.measures import LeaseMeasures
from dovetail.cluster.live.nodes import KnownNode, NodeTable
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.rounding import records
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.service.access import own_folder
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store
from dovetail.version import __version__

STORE = "cluster.db"
JOB, NODE = "job", "node"  # kinds of things in the store
LEARNED = ("kinds", "learned", "learned_pairs", "costs")
_OUT = {
    "failed": ("down", True),
    "mended": ("down", False),
    "drained": ("drained", True),
    "undrained": ("drained", False),
}


class ChosenPolicy(Struct, frozen=True):
    """Who decides, by name."""

    name: str
    options: dict[str, Any] = {}


class ClusterMemory:
    """All that is known: from the journal, or from the store, which has what came before it and how jobs ended."""

    def __init__(
        self,
        folder: Path,
        rules: RoundRules,
        settings: ClusterSettings,
        entities: Mapping[str, float],
        types: Sequence[str],
    ) -> None:
        self.folder, self.settings, self.rules, self.entities = folder, settings, rules, dict(entities)
        own_folder(folder)
        for part in ("jobs", "journals"):
            (folder / part).mkdir(exist_ok=True, mode=0o700)
        if not (folder / STORE).exists() and any((folder / "jobs").iterdir()):
            raise InputError(
                f"{folder}: {STORE} is gone, but jobs/ holds the checkpoints of its jobs; expected both: move jobs/ "
                "aside, or name another folder"
            )
        self._power = settings.durability == "power"
        self.store = Store(folder / STORE, "full" if self._power else "normal")
        self.now = LastingClock(self.store)  # seconds since the service first began
        self.began_s = self.now()
        self.nodes = NodeTable(node for _, node, _ in self.store.things(NODE, KnownNode, dict))
        known_types = self.store.get("types", list) or []
        self.types = tuple(dict.fromkeys([*known_types, *types, *self.nodes.types()]))
        self.knowledge = Knowledge.of(self.store.get("learned", list[NumberRecord]) or [])
        self.submitted: dict[int, SubmittedJob] = {}
        self._ended: set[int] = set()  # jobs whose end is in the store
        self._oldest: list[int] = []  # the same as a heap
        self.policy = ChosenPolicy("")  # who decides now
        self._forget()
        self.last = max(self.submitted, default=0)  # the number of the last job

    def _forget(self) -> None:
        """What was gone through of a journal is not known any more."""
        self.jobs = JobTable(self.types)
        self.learned = LearnedTable(self.types, self.knowledge, self.settings.learn_above, self.settings.learn_weight)
        self.measures = LeaseMeasures(self.jobs, self.learned, self.rules.round_s)
        self._joined = 0  # accelerators that the journal knows of
        self.down: set[int] = set()  # accelerators that failed
        self.drained: set[int] = set()
        self._read_store()

    def _read_store(self) -> None:
        """What is known of jobs without the journal."""
        for _, job, status in self.store.things(JOB, SubmittedJob, JobStatus):
            self.submitted[job.id] = job
            if status is None:
                self.jobs.add(job, str(self.folder_of(job.id)))
            else:
                self.jobs.put(status)
                if not status.open:
                    self._ended.add(job.id)
        self._oldest = sorted(self._ended)
        self.store.set("types", list(self.types))

    def folder_of(self, job: int) -> Path:
        return self.folder / "jobs" / str(job)

    @property
    def decided_by(self) -> str:
        """What decides, in short: the same as long as the past may be decided again."""
        known = [__version__, msgspec.to_builtins(self.rules), self.types, self.entities]
        return hashlib.sha256(msgspec.json.encode(known)).hexdigest()

    # --- the journal ------------------------------------------------------------------------------------------

    def _recall(self, t: float, rows: Sequence[Any]) -> None:
        """A step that was recorded before the service was started."""
        for each in rows:
            if isinstance(each, Rows) and each.of == "arrived":
                for job in each.columns["id"]:
                    if job in self.submitted and job in self._ended:  # the journal tells of its end
                        self.jobs.add(self.submitted[job], str(self.folder_of(job)))
        self._note(t, rows)

    def _note(self, t: float, rows: Sequence[Any]) -> list[JobStatus]:
        """What a step tells of jobs, nodes and the policy."""
        ended = self.jobs.step(t, rows)
        self._note_cluster(rows)
        for status in ended:
            self.measures.forget(status.id)
        return ended

    def _note_cluster(self, rows: Sequence[Any]) -> None:
        for each in rows:
            if not isinstance(each, Rows):
                continue
            if each.of in LEARNED:
                self.learned.recall(each)
            elif each.of == "joined":
                self._joined = max(each.columns["device"]) + 1
            elif each.of == "policy":
                self.policy = ChosenPolicy(each.columns["name"][0], each.columns["options"][0])
            elif each.of in _OUT:
                state, out = _OUT[each.of]
                numbers = {int(device) for device in each.columns["device"]}
                setattr(self, state, getattr(self, state) | numbers if out else getattr(self, state) - numbers)

    def _keep_ends(self, ended: Sequence[JobStatus], learned: bool) -> None:
        if not ended and not learned:
            return
        with self.store.together():
            for status in ended:
                self.store.note(JOB, job_name(status.id), status)
            if learned:
                self.store.set("learned", self.knowledge.plain())
            for job in {status.id for status in ended} - self._ended:
                self._ended.add(job)
                heapq.heappush(self._oldest, job)
            while len(self._oldest) > self.settings.keep_jobs:
                job = heapq.heappop(self._oldest)
                self.store.drop(JOB, job_name(job))
                self._ended.discard(job)
                self.submitted.pop(job, None)
                self.jobs.drop(job)

    def most_of(self, types: Sequence[str]) -> int:
        """The most accelerators that there are of one of these types, or of any."""
        there = [known.node.counts for known in self.nodes.nodes.values() if known.here]
        return max((sum(counts.get(on, 0) for counts in there) for on in types or self.types), default=0)

    # --- what the machine has not heard of --------------------------------------------------------------------

    def _joins(self, known: KnownNode) -> list[Rows]:
        """A node's accelerators, if the journal does not know of them; each type in it is a server."""
        if known.first < self._joined:
            return []
        devices = known.node.devices
        servers = list(dict.fromkeys(device.type for device in devices))
        before = self.nodes.servers_before(known)
        rows = [
            records.joined(
                list(known.numbers),
                [self.types.index(device.type) for device in devices],
                [before + servers.index(device.type) for device in devices],
            )
        ]
        if not known.here:
            rows.append(records.failed(list(known.numbers)))
        if known.drained:
            rows.append(records.drained(list(known.numbers)))
        self._joined = known.numbers.stop
        return rows

    def _differences(self, known: KnownNode) -> list[Rows]:
        """What became of a node that the journal has not heard of. That one is back, its agent says."""
        numbers, rows = set(known.numbers), []
        if not known.here and numbers - self.down:
            rows.append(records.failed(sorted(numbers - self.down)))
        if known.drained and numbers - self.drained:
            rows.append(records.drained(sorted(numbers - self.drained)))
        if not known.drained and numbers & self.drained:
            rows.append(records.undrained(sorted(numbers & self.drained)))
        return rows

    def _arrival(self, job: SubmittedJob) -> list[Rows]:
        """A job comes, or comes again with what it has saved."""
        spec, status = job.spec, self.jobs.jobs[job.id]
        widths = [spec.width, *spec.widths]
        rows = self.learned.add(spec.kind, widths, spec.types, spec.rates)
        columns: dict[str, Any] = {
            "id": [job.id],
            "kind": [self.learned.place(spec.kind, spec.width, widths)],
            "steps": [spec.steps],
            "name": [spec.title],
            "weight": [spec.weight],
        }
        if spec.deadline_s is not None:
            late_s = 0.0 if status.arrived_s is None else self.now() - status.arrived_s
            columns["due_s"] = [spec.deadline_s - late_s]
        if spec.checkpoint == "pause":
            columns["stays"] = [True]
        if self.entities:
            columns["entity"] = [list(self.entities).index(spec.entity)]
        rows.append(Rows("arrived", columns))
        kept = JobFolder(self.folder_of(job.id))
        if epoch := kept.fence:
            rows.append(records.progress([job.id], [epoch], [kept.saved], [kept.saved]))
        return rows


def job_name(job: int) -> str:
    """Jobs in the store are in the order of their numbers."""
    return f"{job:012d}"
