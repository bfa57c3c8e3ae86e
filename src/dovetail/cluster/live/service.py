"""The service of a live cluster: takes training jobs, and tells what becomes of them. A job is on disk before it is
accepted; what follows is the loop's business (`service_loop.py`)."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cluster.explain import account
from dovetail.cluster.inputs.csv_rows import LEAST_WEIGHT, MOST_WEIGHT
from dovetail.cluster.live.cluster_memory import ChosenPolicy
from dovetail.cluster.live.jobs import JobState, JobStatus, SubmittedJob
from dovetail.cluster.live.nodes import ClusterNode, ClusterNodeStatus
from dovetail.cluster.live.service_loop import TIMELINE, ClusterLoop, NodeCarrier
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.specs import JobSpec, job_spec, of_several
from dovetail.cluster.live.wire import ProcessEvent, TrainingCommand
from dovetail.cluster.policies import make
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError, InputError, did_you_mean, within
from dovetail.core.journal import Reader
from dovetail.core.registry import names, options_of
from dovetail.core.results.run import Account
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.core.service.store import StoreError

_ANSWER_LIMIT_S = 60.0
_BUSY_RETRY_S = 5.0
_LONGEST_KEY = 200
_LOOK_S = 0.2  # at logs that somebody follows
_BLOCK = 1 << 16


class ClusterService:
    """Training jobs on wall-clock time. Every public method may be called from any thread, between `start` and `close`.

    `carrier` is given the loop, and makes what carries leases out. Without `nodes` those are there that were.
    """

    def __init__(
        self,
        folder: Path,
        carrier: Callable[[ClusterLoop], NodeCarrier],
        *,
        nodes: Iterable[ClusterNode] | None = (),
        types: Sequence[str] = (),
        policy: str | None = None,
        options: Mapping[str, Any] | None = None,
        rules: RoundRules | None = None,
        settings: ClusterSettings | None = None,
        entities: Mapping[str, float] | None = None,
        log: LogLines | None = None,
    ) -> None:
        settings = settings or ClusterSettings()
        if (wrong := settings.problem()) is not None:
            raise InputError(f"live.{wrong}")
        for name, weight in (entities or {}).items():
            wanted = f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            within(f"the weight of entity {name!r}", weight, wanted, LEAST_WEIGHT, MOST_WEIGHT)
        chosen = None if policy is None else live_policy(policy, options)
        rules = msgspec.structs.replace(
            rules or RoundRules(), decide_at=settings.decide_at, spares=settings.spares, failures=settings.failures
        )
        there = list(nodes or ())
        named = dict.fromkeys([*types, *(device.type for node in there for device in node.devices)])
        self.folder, self.log = folder, log or LogLines()
        self._loop = loop = ClusterLoop(folder, chosen, rules, settings, entities or {}, [*named], self.log)
        self.settings, self.now, self._lock = settings, loop.now, loop.lock
        self._there, self._changing = there, threading.Lock()
        if nodes is None:
            self._there = [each.node for each in loop.nodes.nodes.values() if each.here]
        try:
            loop.executor = carrier(loop)
        except BaseException:
            loop.shut()
            raise
        self._draining = self._closed = False
        self._no_room = ""
        self._keys = {job.key: job.id for job in loop.submitted.values() if job.key is not None}
        self._thread = threading.Thread(target=loop.run, name="cluster service", daemon=True)

    def start(self) -> ClusterService:
        """Go on with what is open, and take jobs; returns when the past has been gone through."""
        try:
            self.nodes_are(self._there)
        except BaseException:
            self.close()
            raise
        self._thread.start()
        self._loop.ready.wait()
        if self.failed:
            self.close()
            raise DovetailError(self.trouble)
        return self

    def __enter__(self) -> ClusterService:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trouble(self) -> str:
        """Why nothing is decided: for now, or if it has `failed` for good."""
        return self._loop.trouble or self._no_room

    @property
    def failed(self) -> bool:
        return self._loop.failed

    # --- jobs ---------------------------------------------------------------------------------------------------

    def submit(self, job: Any, key: str | None = None) -> int:
        """Take a job, a `JobSpec` or its keys; gives its number when it is kept on disk. The same key with the same
        content is the same job. Raises `BusyError`, `DrainingError`, `ConflictError` or another `InputError`."""
        spec, loop = self._checked(job), self._loop
        if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
            raise InputError(f"key: expected 1 to {_LONGEST_KEY} printable characters, found {key[:80]!r}")
        with self._lock:
            known = None if key is None else self._keys.get(key)
            if known is not None and known in loop.submitted:  # else it is forgotten with its job
                if loop.submitted[known].digest != _digest(spec):
                    raise ConflictError(f"key: it is that of job {known}, which is another one")
                return known
            (number,) = self._take([spec], key)
            if key is not None:
                self._keys[key] = number
            return number

    def submit_all(self, jobs: Iterable[Any]) -> list[int]:
        """Take jobs, all of them or none; what is wrong with one is told with its place among them."""
        specs = []
        for i, job in enumerate(jobs):
            with of_several(i):
                specs.append(self._checked(job))
        with self._lock:
            return self._take(specs)

    def _checked(self, job: Any) -> JobSpec:
        spec = job_spec(job)
        spec.check(self._loop.types, self._loop.entities)
        return spec

    def _take(self, specs: Sequence[JobSpec], key: str | None = None) -> list[int]:
        """Keep jobs that were looked at, all or none; gives their numbers."""
        self._let_in(len(specs))
        loop, jobs = self._loop, list[SubmittedJob]()
        for number, spec in enumerate(specs, loop.last + 1):
            digest = _digest(spec)
            if spec.checkpoint == "pause" and len(spec.types) != 1:
                spec = msgspec.structs.replace(spec, types=(self._type_to_stay_on(spec, jobs),))
            jobs.append(SubmittedJob(id=number, spec=spec, digest=digest, key=key, created=time.time()))
        try:
            loop.accept(jobs)
        except StoreError as error:
            self._no_room = f"{error}; no job is taken until there is room"
            raise DrainingError(self._no_room) from error
        self._no_room = ""
        return [job.id for job in jobs]

    def _type_to_stay_on(self, spec: JobSpec, beside: Sequence[SubmittedJob]) -> str:
        """A command that is paused goes on only where it was. The type that has most for it, of those it can run on."""
        loop = self._loop
        known = [*(loop.submitted[each.id] for each in loop.jobs.open()), *beside]
        bound = Counter(each.spec.types for each in known)
        counts = dict(zip(loop.types, loop.rounds.mechanism.counts.tolist(), strict=True))

        def worth(name: str) -> tuple[bool, float]:
            return counts[name] >= spec.width, spec.rates.get(name, 1.0) * counts[name] / (1 + bound[(name,)])

        return max(spec.types or loop.types, key=worth)

    def _let_in(self, many: int) -> None:
        loop = self._loop
        if self._draining or not loop.ready.is_set() or loop.closing.is_set():
            raise DrainingError("the service takes no more jobs: it is about to end")
        if loop.trouble:
            raise DrainingError(loop.trouble)
        if len(loop.jobs.leases) + many > self.settings.max_open:
            raise BusyError(f"{self.settings.max_open} jobs may be open (live.max_open)", _BUSY_RETRY_S)

    def cancel(self, job: int) -> JobStatus:
        """Ask a job to end; what it runs is stopped. One that has ended stays as it is."""
        with self._lock:
            if self._loop.jobs.find(job).open:
                self._loop.cancel(job)
            return self.status(job)

    def status(self, job: int) -> JobStatus:
        with self._lock:
            return self._told(job)

    def _told(self, job: int) -> JobStatus:
        status = self._loop.jobs.told(job, self.now())
        if status.state == "waiting" and job in self._loop.submitted:
            spec = self._loop.submitted[job].spec
            most = self._loop.most_of(spec.types)
            if min(spec.widths or (spec.width,)) > most:
                status.why = (
                    f"no type has {spec.width} accelerators that it could have (at most {most}): it waits for nodes"
                )
        return status

    def jobs(self, state: JobState | None = None, after: int | None = None, limit: int = 50) -> list[JobStatus]:
        """The last jobs, those that came last first; `after` a job: those that came before it."""
        with self._lock:
            table = self._loop.jobs
            newest = (each for each in reversed(table.jobs.values()) if after is None or each.id < after)
            found = islice((each for each in newest if state in (None, each.state)), limit)
            return [self._told(each.id) for each in found]

    def wait(self, job: int, timeout_s: float | None = None) -> JobStatus:
        """Wait for a job to end; gives its status then, or when the time is over."""
        with self._lock:
            self._loop.jobs.find(job)
            self._loop.changed.wait_for(lambda: not self._loop.jobs.find(job).open or self.failed, timeout_s)
            if self.failed and self._loop.jobs.find(job).open:
                raise DovetailError(self.trouble)
            return self.status(job)

    def explain(self, job: int) -> Account:
        """Why a job waited and where it ran, from the journal that is being written."""
        with self._lock:
            status = self._loop.jobs.find(job)
        if status.arrived_s is None:
            return Account(f"job {job} is {status.state}; no journal tells of it yet.", [])
        return account(Reader(self.journal()), str(job))

    def timeline(self, job: int) -> list[ProcessEvent]:
        """What the processes of a job went through, and when: launch, import, load, first step, save, exit."""
        self.status(job)
        file = self._loop.folder_of(job) / TIMELINE
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return [msgspec.json.decode(line, type=ProcessEvent) for line in lines]

    def log_files(self, job: int, rank: int = 0) -> list[Path]:
        """What the processes of a rank of a job have written, one file for each lease, in order."""
        self.status(job)
        logs = self._loop.folder_of(job) / "logs"
        return sorted(logs.glob(f"*.{rank}.log"), key=lambda path: int(path.name.partition(".")[0]))

    def logs(self, job: int, rank: int = 0, follow: bool = False, tail: int | None = None) -> Iterator[bytes]:
        """What a rank of a job has written, in pieces, over all its leases; the last so many lines of it. Those who
        `follow` get what comes until the job has ended."""
        at = self.log_begin(job, rank, tail)
        while True:
            piece, at, over = self.log_piece(job, rank, at)
            if piece:
                yield piece
            elif over or not follow:
                return
            else:
                with self._lock:
                    self._loop.changed.wait(_LOOK_S)

    def log_begin(self, job: int, rank: int = 0, tail: int | None = None) -> int:
        """Where the last so many lines begin of what a rank has written, in bytes over all its leases."""
        return 0 if tail is None else _tail_begins(self.log_files(job, rank), tail)

    def log_piece(self, job: int, rank: int, at: int) -> tuple[bytes, int, bool]:
        """What a rank has written from there on, or some of it, where that ends, and whether more cannot come."""
        over = not self.status(job).open or self._loop.closing.is_set() or self.failed
        before = 0
        for path in self.log_files(job, rank):
            size = path.stat().st_size
            if at < before + size:
                with path.open("rb") as file:
                    file.seek(at - before)
                    piece = file.read(_BLOCK)
                return piece, at + len(piece), over
            before += size
        return b"", at, over

    # --- the cluster ----------------------------------------------------------------------------------------------

    def change_policy(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Let another policy decide from the next decision on; returns when that is kept."""
        chosen = live_policy(name, options)
        with self._lock:
            self._loop.change(chosen)
            self._await(lambda: self._loop.policy == chosen, "the policy")

    def drain(self, node: str) -> None:
        """Lease nothing more on a node; who is there leaves when the round is over."""
        self._drain(node, True)

    def undrain(self, node: str) -> None:
        self._drain(node, False)

    def _drain(self, name: str, drained: bool) -> None:
        with self._lock:
            nodes = self._loop.nodes.nodes
            if name not in nodes:
                raise InputError(f"node: found {name!r}, expected a node{did_you_mean(name, nodes)}")
            numbers = set(nodes[name].numbers)
            self._loop.drain(name, drained)
            self._await(lambda: numbers <= self._loop.drained if drained else not numbers & self._loop.drained, name)

    def _await(self, seen: Callable[[], bool], what: str) -> None:
        """Until the loop has kept it."""
        self._loop.changed.wait_for(lambda: seen() or self.failed, _ANSWER_LIMIT_S)
        if not seen():
            raise DovetailError(self.trouble or f"{what}: it was not decided yet; it will be")

    def nodes_are(self, there: Iterable[ClusterNode]) -> None:
        """These nodes are there, and no others."""
        loop, here = self._loop, {node.ray_id or node.name: node for node in there}
        with self._changing:  # and the executor is told outside of the loop's lock: its threads wait for that
            with self._lock:
                known = [each.node for each in loop.nodes.nodes.values() if each.here]
                lost = [node.name for node in known if (node.ray_id or node.name) not in here]
                for name in lost:
                    loop.go(name)
                for name in loop.unused.keys() - loop.nodes.nodes.keys() - {node.name for node in here.values()}:
                    del loop.unused[name]
                found = [each for node in here.values() if (each := loop.come(node)) is not None]
            for name in lost:
                loop.executor.lose_node(name)
            for each in found:
                loop.executor.add_node(each.node, each.numbers)

    def nodes(self) -> list[ClusterNodeStatus]:
        """All nodes, and who runs on them."""
        with self._lock:
            loop = self._loop
            on = {device: job.id for job in loop.jobs.open() for device in job.devices}
            new = [
                ClusterNodeStatus(
                    name=name, address="", here=True, drained=False, types={}, down=False, jobs=[], unused=types
                )
                for name, types in loop.unused.items()
                if name not in loop.nodes.nodes
            ]
            return new + [
                ClusterNodeStatus(
                    name=name,
                    address=known.node.address,
                    here=known.here,
                    drained=known.drained,
                    types=known.node.counts,
                    down=any(number in loop.down for number in known.numbers),
                    jobs=[on.get(number) for number in known.numbers],
                    unused=loop.unused.get(name, {}),
                    trouble=loop.unwell.get(name, ""),
                )
                for name, known in loop.nodes.nodes.items()
            ]

    def journal(self) -> Path:
        """The journal that is being written."""
        assert self._loop.journal is not None
        return self._loop.journal.path

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        with self._lock:
            loop = self._loop
            return {
                "pid": os.getpid(),
                "folder": str(self.folder),
                "policy": loop.policy.name,
                "options": loop.policy.options,
                "round_s": loop.rules.round_s,
                "uptime_s": self.now() - loop.began_s,
                "draining": self._draining,
                "trouble": self.trouble,
                "jobs": {state: count for state, count in loop.jobs.states().items() if count},
                "types": list(loop.types),
                "journal": str(loop.journal.path) if loop.journal is not None else "",
                "steps": loop.steps,
                "learned": loop.knowledge.told(),
            }

    def top(self) -> dict[str, Any]:
        """The service at this moment: nodes and who runs there, and who waits the longest."""
        with self._lock:
            waiting = sorted((job for job in self._loop.jobs.open() if job.state == "waiting"), key=lambda job: job.id)
            running = [job for job in self._loop.jobs.open() if job.state == "running"]
            told = self._loop.jobs.told
            return self.about() | {
                "nodes": self.nodes(),
                "running": [told(job.id, self.now()) for job in running],
                "waiting": [told(job.id, self.now()) for job in waiting[:20]],
            }

    def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        with self._lock:
            loop = self._loop
            usable = [
                (device.type, number not in loop.down and number not in loop.drained)
                for known in loop.nodes.nodes.values()
                for number, device in zip(known.numbers, known.node.devices, strict=True)
            ]
            return loop.telemetry.text(loop.jobs, usable)

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self, limit_s: float | None = None) -> bool:
        """Take no more jobs, and wait until all that is open has ended; True if it has."""
        with self._lock:
            self._draining = True
            self._loop.changed.wait_for(lambda: not any(self._loop.jobs.open()) or self.failed, limit_s)
            return not any(self._loop.jobs.open())

    def close(self, leave: bool = False) -> None:
        """End the service. What runs goes on, and is found again at the next start; agents that are to `leave` end it,
        and themselves."""
        if self._closed:
            return
        self._closed = True
        self._loop.close(leave)
        if self._thread.ident is not None:
            self._thread.join()
        self._loop.executor.close(leave)
        self._loop.shut()


def live_policy(name: Any, options: Mapping[str, Any] | None = None) -> ChosenPolicy:
    """A policy by its name, which a restart must find again."""
    if not isinstance(name, str):
        raise InputError(f"policy: expected its name, or FILE.py:NAME, found {name!r}: a restart must find it again")
    made, given = make(name, options), dict(options or {})
    if name in names("cluster") and "scales" in options_of("cluster", name) and getattr(made, "elastic", False):
        given.setdefault("scales", True)  # who says widths may have them, with an application or without
    return ChosenPolicy(name, given)


def _digest(spec: JobSpec) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()


def training_command(loop: ClusterLoop, job: int) -> TrainingCommand:
    """What a job runs, wherever it does."""
    spec = loop.submitted[job].spec
    return TrainingCommand(
        words=spec.full_command(),
        folder=str(loop.folder_of(job)),
        cwd=spec.folder,
        env=spec.env | {"DOVETAIL_MODEL": spec.kind},
        checkpoint=spec.checkpoint,
        total_steps=int(spec.steps),
        most_mib=loop.settings.job_mib,
        types=spec.types,
    )


def _tail_begins(files: Sequence[Path], lines: int) -> int:
    """Where the last so many lines of several files begin, in bytes from the first one's begin; read from the end."""
    sizes = [path.stat().st_size for path in files]
    left = lines + 1  # line breaks, the last line's own among them
    for i in reversed(range(len(files))):
        with files[i].open("rb") as file:
            end = sizes[i]
            while end > 0:
                begin = max(0, end - _BLOCK)
                file.seek(begin)
                block = file.read(end - begin)
                at = len(block)
                while left and (at := block.rfind(b"\n", 0, at)) >= 0:
                    left -= 1
                if not left:
                    return sum(sizes[:i]) + begin + at + 1
                end = begin
    return 0
