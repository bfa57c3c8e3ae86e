"""The loop of a live cluster: what must survive is on disk before it is acted on, and is found again after a restart.

A step of the journal is written before it is carried out. Every so many lines a snapshot of the machine is taken: a
restart goes on from it, decides again what came after, and must decide the same. Where it does not, by another version
or other rules, a new journal begins, in which open jobs arrive anew with what they have saved.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cluster.checkpoint import keep, recall
from dovetail.cluster.header import facts_of, header, policy_of, rules_of, setup_of
from dovetail.cluster.inputs.choices import DEFAULT
from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.live.cluster_memory import JOB, LEARNED, NODE, ChosenPolicy, ClusterMemory, job_name
from dovetail.cluster.live.jobs import SubmittedJob
from dovetail.cluster.live.loop import LiveLoop, RoundExecutor, RowsInbox
from dovetail.cluster.live.measures import LeaseMeasures
from dovetail.cluster.live.nodes import ClusterNode, KnownNode, without
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.telemetry import ClusterTelemetry
from dovetail.cluster.live.wire import LeaseState, NodeTrouble, ProcessEvent
from dovetail.cluster.metrics import closing, metrics_for
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError, InputError, ReplayError
from dovetail.core.events import Rows
from dovetail.core.journal import Header, Reader, Step
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.service_journal import ServiceJournal, last_line, whole_bytes
from dovetail.core.service.store import StoreError

_FULL_RETRY_S = 1.0
TIMELINE = "timeline.jsonl"  # in a job's folder


class NodeCarrier(RoundExecutor, Protocol):
    """Carries leases out, on nodes that come and go."""

    def add_node(self, node: ClusterNode, numbers: range) -> None: ...

    def lose_node(self, name: str) -> None: ...

    def close(self, leave: bool = False) -> None: ...


class JournalRecord(Struct):
    """The journal that is being written: when it began, in seconds since the service did, and by which rules."""

    number: int
    began_s: float
    decided_by: str


class ClusterLoop(ClusterMemory):
    """What a service remembers, and the thread that changes it. What several threads look at is under `lock`."""

    def __init__(
        self,
        folder: Path,
        policy: ChosenPolicy | None,
        rules: RoundRules,
        settings: ClusterSettings,
        entities: Mapping[str, float],
        types: Sequence[str],
        log: LogLines,
    ) -> None:
        super().__init__(folder, rules, settings, entities, types)
        self.log, self.telemetry = log, ClusterTelemetry()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.inbox = RowsInbox()
        self.executor: NodeCarrier
        self.journal: ServiceJournal | None = None
        self._wanted = policy or self.store.get("policy", ChosenPolicy)
        self._snapshot_at = 0  # lines of the journal then; -1 while one is asked for
        self.unused: dict[str, dict[str, int]] = {}  # by node: accelerators of types that came later
        self.unwell: dict[str, str] = {}  # by node: why no process can be started there
        self.resumed_at = 0  # the step of the snapshot that this process began with
        self.ready, self.closing = threading.Event(), threading.Event()
        self.trouble = ""
        self.failed = False  # for good: nothing is decided any more
        self.steps = 0

    # --- from the beginning, or where it was left --------------------------------------------------------------

    def run(self) -> None:
        try:
            loop = self._resume() or self._begin()
            with self.lock:
                self._take_up()
                self.ready.set()
                self.changed.notify_all()
            loop.run()
        except Exception as error:
            self.failed = True
            self.trouble = f"the service has ended: {type(error).__name__}: {error}"
            self.log.write("service failed", why=self.trouble, trace=traceback.format_exc())
        finally:
            self.ready.set()
            with self.lock:
                self.changed.notify_all()

    def _resume(self) -> LiveLoop | None:
        """The journal that was being written, decided again; None if there is none that can go on."""
        record = self.store.get("journal", JournalRecord)
        if record is None or not self._path(record.number).exists():
            return None
        if record.decided_by != self.decided_by:
            self.log.write("new journal", why="another version, other rules or other types decide now")
            self._glean(record)
            return None
        if b'"k":"ended"' in last_line(self._path(record.number))[:200]:
            return None
        journal = loop = None
        try:
            journal = ServiceJournal(self._path(record.number), None, self._power)
            first = self._machine(journal.reader)
            rounds, after = self._from_snapshot(record) or (first, 0)
            loop = self._loop(rounds, record, after)
            loop.follow(self._history(journal, after))
        except (DovetailError, OSError, ValueError) as error:
            torn = isinstance(error, ReplayError) and loop is not None and journal and journal.drop_step(loop.n)
            self.log.write("torn step" if torn else "new journal", why=f"{type(error).__name__}: {error}")
            if journal is not None:
                journal.close()
            self._forget()
            if torn:  # a step that was not written whole was not carried out
                return self._resume()
            self._glean(record)
            return None
        if journal.lines > self.settings.journal_lines and not any(self.jobs.open()):
            journal.close()
            return None
        self.journal = journal
        return loop

    def _glean(self, record: JournalRecord) -> None:
        """What a journal that cannot go on tells of jobs, as far as it can be read."""
        self.jobs.base_s = record.began_s
        with suppress(DovetailError, OSError, ValueError, KeyError):
            for _, t, rows in Reader(self._path(record.number)).rows():
                self._recall(t, rows)
        self.jobs.interrupt()

    def _history(self, journal: ServiceJournal, after: int) -> Iterator[Step]:
        for n, t, rows in journal.history():
            if n > after:
                yield n, t, rows
                self._recall(t, rows)
            else:
                self._note_cluster(rows)

    def _begin(self) -> LiveLoop:
        """A new journal, in which what is open arrives anew, with what it has saved."""
        last = self.store.get("journal", JournalRecord)
        number = 1 if last is None else last.number + 1
        while whole_bytes(self._path(number)):  # else somebody was killed before its header was written
            number += 1
        record = JournalRecord(number, self.now(), self.decided_by)
        self.policy = self._wanted or ChosenPolicy(DEFAULT)
        self.journal = ServiceJournal(self._path(number), self._header(), self._power)
        with self.store.together():
            self.store.set("journal", record)
            self.store.set("policy", self.policy)
            for status in self.jobs.jobs.values():
                if status.open or status.id not in self._ended:
                    self.store.note(JOB, job_name(status.id), status)
        self._forget()
        return self._loop(self._machine(self.journal.reader), record)

    def _machine(self, reader: Reader) -> Rounds:
        """The machine at the beginning of a journal."""
        first = reader.header
        self.policy = ChosenPolicy(first.policy, {k: v for k, v in first.options.items() if k != "rules"})
        self.learned.packs = make(self.policy.name, self.policy.options).packs
        self.jobs.why = tuple(first.facts.get("why", ()))
        return Rounds(setup_of(first), policy_of(first), rules_of(first), reported=True)

    def _header(self) -> Header:
        """The first line of a journal: all types, of which accelerators join, and no kind of job yet."""
        nothing = np.zeros((0, len(self.types)))
        most = [max([1, *(node.node.counts.get(kind, 0) for node in self.nodes.nodes.values())]) for kind in self.types]
        setup = ClusterSetup(
            counts=np.zeros(len(self.types), dtype=np.int64),
            per_server=np.array(most, dtype=np.int64),
            throughputs=Throughputs(self.types, [], nothing, nothing),
            prices=constant(self.types, {}),
            jobs=(),
            entities=self.entities,
        )
        policy = make(self.policy.name, self.policy.options)
        return header(setup, policy, self.policy.name, self.policy.options, self.rules, "changes", "live")

    def _loop(self, rounds: Rounds, record: JournalRecord, n: int = 0) -> LiveLoop:
        self.rounds, self._record = rounds, record
        self.jobs.base_s = record.began_s
        return LiveLoop(rounds, self.executor, lambda: self.now() - record.began_s, [self], self.inbox, n)

    def _path(self, number: int) -> Path:
        return self.folder / "journals" / f"{number:06d}.jsonl"

    def _take_up(self) -> None:
        """The past is known: put the store right by it, and tell the machine what it has not heard of."""
        told = [status for status in self.jobs.jobs.values() if not status.open and status.id not in self._ended]
        self._keep(lambda: self._keep_ends(told, learned=False))  # killed between the journal and the store
        rows: list[Rows] = []
        for known in self.nodes.nodes.values():
            rows += self._joins(known) or self._differences(known)
        for status in [*self.jobs.open()]:
            if status.id not in self.jobs.leases:
                rows += self._arrival(self.submitted[status.id])
            if self.submitted[status.id].cancel:
                rows.append(records.cancelled([status.id]))
        if self._wanted is not None and self._wanted != self.policy:
            rows += self._change(self._wanted)
        self.tell(*rows)

    # --- steps ------------------------------------------------------------------------------------------------

    def tell(self, *rows: Rows) -> None:
        """Let the machine hear of something."""
        if rows:
            self.inbox.put(*rows)

    def step(self, n: int, t: float, rows: Sequence[Any]) -> None:
        """Keep a step, and the ends in it, before it is carried out. While the disk is full, nothing is decided."""
        journal = self.journal
        assert journal is not None
        with self.lock:
            self._keep(lambda: journal.step(n, t, rows))
            ended, learned = self._note(t, rows), any(each.of in LEARNED[1:] for each in rows)
            self.telemetry.step(rows, ended, self.types)
            for status in ended:
                if status.state == "given_up":
                    self.log.write("job given up", job=status.id, name=status.name, why=status.why)
            self._keep(lambda: self._keep_ends(ended, learned))
            self.steps = n
            for each in rows:  # who came with the wish for its end: that was heard before it was there
                if each.of == "arrived":
                    early = [
                        job for job in each.columns["id"] if self.submitted[job].cancel and job in self.jobs.leases
                    ]
                    self.tell(*([records.cancelled(early)] if early else []))
            if any(each.of == "saved" for each in rows):
                self._snapshot(n)
            elif self._snapshot_at >= 0 and journal.lines - self._snapshot_at >= self.settings.snapshot_lines:
                self._snapshot_at = -1
                self.tell(records.saved())
            self.changed.notify_all()

    def _keep(self, write: Callable[[], None]) -> None:
        """Write until it is written: what is not kept may not be done."""
        while True:
            try:
                write()
                break
            except (StoreError, InputError) as error:
                if self.closing.is_set():
                    raise
                if not self.trouble:
                    self.log.write("cannot keep", why=str(error))
                self.trouble = f"{error}; nothing is decided until there is room"
                self.changed.wait(_FULL_RETRY_S)
        if self.trouble:
            self.log.write("can keep again", was=self.trouble)
        self.trouble = ""

    # --- snapshots --------------------------------------------------------------------------------------------

    def _snapshot(self, n: int) -> None:
        """Keep the machine as it is after this step. One that cannot be kept is only missed by a restart."""
        assert self.journal is not None
        self._snapshot_at = self.journal.lines
        try:
            keep(self.folder / "snapshot", (self._record.number, self.decided_by, n, self.rounds, self.jobs))
        except (OSError, DovetailError) as error:
            self.log.write("no snapshot", why=str(error))

    def _from_snapshot(self, record: JournalRecord) -> tuple[Rounds, int] | None:
        """The machine as it was kept, and after which step; None if there is none of this journal."""
        path = self.folder / "snapshot"
        if not path.exists():
            return None
        try:
            number, decided_by, n, rounds, jobs = recall(path, make(self.policy.name, self.policy.options))
        except (DovetailError, ValueError, TypeError) as error:
            self.log.write("no snapshot", why=str(error))
            return None
        if (number, decided_by) != (record.number, self.decided_by):
            return None
        for job, status in self.jobs.jobs.items():
            if job not in jobs.jobs:
                jobs.put(status)
        self.jobs, self.resumed_at = jobs, n
        self.measures = LeaseMeasures(jobs, self.learned, self.rules.round_s)
        return rounds, n

    # --- requests -----------------------------------------------------------------------------------------------

    def accept(self, jobs: Sequence[SubmittedJob]) -> None:
        """Keep jobs, all or none, and let them arrive."""
        with self.store.together():
            for job in jobs:
                self.store.put(JOB, job_name(job.id), job)
        for job in jobs:
            self.submitted[job.id] = job
            self.last = job.id
            self.jobs.add(job, str(self.folder_of(job.id)))
            self.tell(*self._arrival(job))

    def cancel(self, job: int) -> None:
        """Keep the wish, and let the machine hear of it."""
        record = self.submitted[job]
        if not record.cancel:
            self.store.put(JOB, job_name(job), replace(record, cancel=True))
            record.cancel = True
        self.tell(records.cancelled([job]))

    def change(self, policy: ChosenPolicy) -> None:
        """Another policy decides from the next decision on."""
        self.store.set("policy", policy)
        self.tell(*self._change(policy))

    def _change(self, policy: ChosenPolicy) -> list[Rows]:
        packs = make(policy.name, policy.options).packs
        pairs = self.learned.all_pairs() if packs and not self.learned.packs else []
        return [*pairs, records.policy(policy.name, policy.options)]

    def drain(self, name: str, drained: bool) -> None:
        known = self.nodes.nodes[name]
        known.drained = drained
        self.store.put(NODE, name, known)
        numbers = list(known.numbers)
        self.tell(records.drained(numbers) if drained else records.undrained(numbers))

    def come(self, node: ClusterNode) -> KnownNode | None:
        """A node is there; what it has of types that this journal cannot have is not used. None if that is all."""
        new_types = {name: count for name, count in node.counts.items() if name not in self.types}
        if new_types:
            node = without(node, new_types)
        here = [each for each in self.nodes.nodes.values() if each.here]
        known, new = self.nodes.come(node) if node.devices else (None, False)
        name = known.node.name if known is not None else node.name
        if new_types and self.unused.get(name) != new_types:
            why = "of types that are new: restart the service to use them"
            self.log.write("accelerators not used", node=name, accelerators=new_types, why=why)
        self.unused |= {name: new_types} if new_types else {}
        if known is None:
            return None
        for changed in (*(each for each in here if not each.here), known):
            self.store.put(NODE, changed.node.name, changed)
        if new and self.ready.is_set():
            self.tell(*self._joins(known))
        self.log.write("node here", node=known.node.name, accelerators=known.node.counts)
        return known

    def go(self, name: str) -> None:
        known = self.nodes.go(name)
        self.unused.pop(name, None)
        if known is not None:
            self.store.put(NODE, name, known)
            self.log.write("node gone", node=name)

    def watch(self, message: LeaseState | NodeTrouble | ProcessEvent, at_s: float) -> None:
        """What the executor hears from agents: what processes went through is kept, and what it teaches is told."""
        if isinstance(message, NodeTrouble):
            self.unwell[message.node] = message.why
            self.log.write("node in trouble" if message.why else "node well again", node=message.node, why=message.why)
            return
        if isinstance(message, ProcessEvent):
            with suppress(OSError), (self.folder_of(message.job) / TIMELINE).open("ab") as file:
                file.write(msgspec.json.encode(message) + b"\n")
        with self.lock:
            if isinstance(message, ProcessEvent) and message.name == "hello":
                self.jobs.greeted(message.job)
            self.tell(*self.measures.see(message))

    def close(self, leave: bool = False) -> None:
        """End the loop. What is open is kept, and goes on at the next start; if agents are to `leave`, leases end."""
        self.closing.set()
        self.inbox.close(leave)

    def shut(self) -> None:
        """After the loop has ended: a journal in which nothing is open ends here, and the next start begins another."""
        if self.journal is not None:
            if self.submitted and not self.failed and self.journal.lines and not any(self.jobs.open()):
                with suppress(DovetailError, OSError):  # then it goes on
                    self._end(self.journal)
            self.journal.close()
        self.store.close()

    def _end(self, journal: ServiceJournal) -> None:
        metrics = metrics_for(facts_of(journal.reader.header))
        for n, t, rows in Reader(journal.path).rows():
            metrics.step(n, t, rows)
        journal.end(closing(metrics))
