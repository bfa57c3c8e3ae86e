"""The service behind the daemon: keeps programs, decides through the scheduler, carries out, and answers questions.

What must survive is in the store before it is acted on: a program before it arrives, a step before it is carried out.
After a restart the recorded steps are replayed, and what the programs have come to meanwhile is found out from the
executors.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core.engine import serve
from dovetail.core.errors import DovetailError, InputError, ReplayError, did_you_mean
from dovetail.core.events import Asked, Complete, Failed, Finished, Observed, Reject, Settled
from dovetail.core.inbox import Inbox
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store, StoreError
from dovetail.host.gpus import never_fits
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.control import Control
from dovetail.host.live.executors import NotNowError
from dovetail.host.live.executors.table import ExecutorTable
from dovetail.host.live.gpus import GpuWatch
from dovetail.host.live.hooks import Hooks
from dovetail.host.live.past import past_of
from dovetail.host.live.rates import rate_table
from dovetail.host.live.reconciler import Attempt, Reconciler
from dovetail.host.live.samples import Samples
from dovetail.host.live.setup import HostSetup, write_journal
from dovetail.host.live.specs import Spec
from dovetail.host.live.status import LiveProgram, State
from dovetail.host.live.upkeep import Upkeep
from dovetail.host.metrics import Programs, ProgramStatus
from dovetail.host.simulate import machine

_SAMPLE_EVERY_S = 1.0
_FULL_RETRY_S = 1.0
_ANSWER_LIMIT_S = 30.0
LIMITS = ("cpu_quota", "io_weight", "nice")  # of a program, which not every executor can keep
ASKS = {"pause": False, "resume": False, "resize": True, "priority": True, "cancel": False, "requeue": False}


class Service:
    """One daemon's programs. Every public method may be called from any thread."""

    def __init__(self, folder: Path, setup: HostSetup, store: Store) -> None:
        self.folder = folder
        self.setup = setup
        self.trouble = ""
        self._identity = _identity(folder)
        self._store = store
        self.now = LastingClock(store, store.last_s())
        self._book = ProgramBook(folder, store)
        self._executors = ExecutorTable(setup)
        self._lock = threading.RLock()
        self._seen = threading.Condition()
        self._unseen: set[int] = set()
        self._ended = threading.Condition()
        self._inbox = Inbox()
        self._status = Programs(setup.cores)
        self._control = Control()
        self._gpus = GpuWatch(setup.policies.gpus)
        self._samples = Samples(self._inbox, self._control, self._gpus)
        self._closing = threading.Event()
        self._edits: dict[int, Spec] = {}  # what programs are to be, by the request that is not heard yet
        self._upkeep = Upkeep(self._inbox, self._book, self.now)
        self._hooks = Hooks(folder, self._book.note_hook)
        self._reconciler = Reconciler(self._inbox, self._book, self._executors, self._control, setup.cpus, setup.gpus)

    # --- the loop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `close`; the programs run on."""
        history = list(self._store.steps())
        for step in history:
            self._status.step(*step)
        for job in self._status.rows.keys() - self._book.specs.keys():
            del self._status.rows[job]  # it was cleaned away
        for row in self._status.rows.values():
            if row.wanted:
                self._reconciler.adopt(row.program, row.wanted, row.devices, row.why, row.gpus)
            elif row.closed_s is not None:
                self._run_hook(row.program)  # unless it was run
        self._tidy()
        for job in sorted(self._book.specs.keys() - self._status.rows.keys(), key=_by_number):
            self._inbox.put(self._book.specs[job].arrival(job, self.setup.cores))
        sampler = threading.Thread(target=self._sample, name="usage", daemon=True)
        sampler.start()
        try:
            serve(
                self.setup.scheduler(),
                machine(self.setup.cores),
                self.setup.graphs(),
                self._inbox,
                self._reconciler,
                self.now,
                [self],
                history,
            )
        except ReplayError as error:
            raise DovetailError(
                f"{self.folder}: another version of Dovetail decided on the programs that are open there, and this one "
                "would decide otherwise: let that one go on, or end them with its `dovetail host down --cancel`; "
                "with --state elsewhere this one begins anew"
            ) from error
        finally:
            self._closing.set()
            self._reconciler.close()
            self._hooks.close()
            sampler.join()
            self._control.close_all()
            for executor in self._executors.all():
                executor.close()

    def close(self) -> None:
        self._closing.set()
        self._inbox.close()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Keep a step, and the ends in it, before it is carried out. While the disk is full, nothing is decided."""
        while True:
            try:
                with self._store.together(waits=not all(type(event) is Settled for event in events)):
                    self._store.step(n, t, events)
                    for event in events:
                        if isinstance(event, Finished | Failed):
                            self._book.keep_end(event.job)
                    self._keep_edits(events)
                break
            except StoreError as error:
                if self._closing.is_set():
                    raise
                self.trouble = f"{error}; nothing is decided until there is room"
                with suppress(OSError):  # the log is most likely on the same disk
                    print(self.trouble, file=sys.stderr, flush=True)
                self._closing.wait(_FULL_RETRY_S)
        self.trouble = ""
        with self._lock:
            self._status.step(n, t, events)
        for event in events:
            if isinstance(event, Finished | Failed):
                self._reconciler.kept(event.job)
            elif isinstance(event, Complete | Reject):
                self._run_hook(event.job)
        if self._unseen:
            with self._seen:
                self._unseen.difference_update(map(id, events))
                self._seen.notify_all()
        if any(isinstance(event, Complete | Reject) for event in events):
            with self._ended:
                self._ended.notify_all()

    def _run_hook(self, job: str) -> None:
        with self._lock:
            spec = self._book.specs.get(job)  # none, if it was cleaned away already
            if spec is not None and spec.hook and not self._book.ends[job].hooked:
                self._hooks.run(spec, self.describe(self._status.rows[job]))

    def _tidy(self) -> None:
        keep = {self._book.run_name(row.program) for row in self._status.rows.values() if row.wanted}
        for image in {spec.image for spec in self._book.specs.values()}:
            with suppress(NotNowError):  # an engine that does not answer now is tidied up at the next start
                self._executors.get(image).tidy(keep)
        for left in (self.folder / "runs").iterdir():
            if left.name not in keep:
                shutil.rmtree(left, ignore_errors=True)

    def is_gone(self) -> bool:
        """Whether the folder is ours no more, which is told."""
        if _identity(self.folder) == self._identity:
            return False
        with suppress(OSError):
            print(f"{self.folder} was removed or replaced; the daemon ends", file=sys.stderr, flush=True)
        return True

    def _sample(self) -> None:
        """Every second: what programs use, and whether the folder is still ours."""
        while not self._closing.wait(_SAMPLE_EVERY_S):
            if self.is_gone():
                self.close()
                return
            with self._lock:
                rows = self._status.open()
            self._upkeep.look(rows)
            self._samples.look(filter(None, (self._reconciler.attempt(row.program) for row in rows)))

    # --- requests -------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, array: int | None = None) -> list[str]:
        """Keep a program, or an array of them, and let it arrive; gives their numbers."""
        return self._submit([spec], array, spec.key)

    def submit_all(self, specs: list[Spec], key: str = "") -> list[str]:
        """Keep programs that may wait for each other (+0 in `after` is the first of them): all of them, or none."""
        return self._submit([replace(spec, key=key) for spec in specs], None, key)

    def _submit(self, specs: list[Spec], array: int | None, key: str) -> list[str]:
        for spec in specs:
            self._check(spec)
        for image in {spec.image for spec in specs}:
            self._executors.get(image).reach(image)  # if there is no engine or no image, say so now
        now, wall = self.now(), time.time()
        with self._lock:
            if jobs := self._book.same(key, specs, array):
                return jobs
            added = self._book.add([spec.at(now, wall) for spec in specs], array)
            self._inbox.extend([each.arrival(job, self.setup.cores) for job, each in added.items()])
        return list(added)

    def _check(self, spec: Spec) -> None:
        """Refuse what can never run here."""
        spec.check(self.setup.cores)
        there = self.setup.policies.memory_mib
        if spec.memory_mib is not None and there is not None and spec.memory_mib > there:
            raise InputError(f"memory_mib: found {spec.memory_mib}, expected 1 to {there}, which is what there is")
        if never := never_fits(self.setup.policies.gpus, spec.ask(self.setup.cores)):
            raise InputError(f"gpus: {never}")
        limits = [name for name in LIMITS if getattr(spec, name) is not None]
        if lacks := self._executors.get(spec.image).lacks(limits):
            raise InputError(lacks)

    def retry(self, jobs: tuple[str, ...] = ()) -> dict[str, str]:
        """Let what failed come once more under new numbers: of these, or of all that were not tried again yet."""
        with self._lock:
            tried = {spec.again_of for spec in self._book.specs.values()}
            named = [each for job in jobs for each in self._book.named(job)]
            rows = self._status.rows
            failed = [each for each, row in rows.items() if row.status == "rejected" and (not jobs or each in named)]
            if jobs and not failed:
                raise InputError(f"{', '.join(jobs)}: has not failed; requeue begins programs again in whatever state")
            return self._again(job for job in failed if job not in tried or jobs)

    def _again(self, jobs: Iterable[str]) -> dict[str, str]:
        names = self._book.again(jobs)
        self._inbox.extend([self._book.specs[new].arrival(new, self.setup.cores) for new in names.values()])
        return names

    def edit(self, job: str, changes: dict[str, Any]) -> list[str]:
        """Change what a waiting program is, or all of an array that wait; gives those that were changed."""
        if "command" in changes and len(self._book.named(job)) > 1:
            raise InputError(f"{job} is an array: its programs differ by their index only")
        asked, now, wall = [], self.now(), time.time()
        timed = not changes.keys().isdisjoint(("begin", "delay_s"))
        for each in self._book.named(job):
            spec = self._book.specs[each].edited(changes)
            self._check(spec)
            spec = spec.at(now, wall) if timed else spec
            asked.append(Asked(each, "edit", facts=spec.facts(self.setup.cores)))
            self._edits[id(asked[-1])] = spec
        self._hear(asked, f"edit of {job}")
        kept = [event.job for event in asked if self._edits.pop(id(event), None) is None]
        if not kept:
            raise InputError(f"{job} does not wait any more; only waiting programs can be edited")
        return kept

    def _keep_edits(self, events: Sequence[Any]) -> None:
        """In the step in which it is heard: an edit counts if the program waits then, as the scheduler has it too."""
        for event in events:
            if isinstance(event, Asked) and event.what == "edit" and id(event) in self._edits:
                row = self._status.rows.get(event.job)
                failed = any(isinstance(e, Failed) and e.job == event.job for e in events)
                closed = any(isinstance(e, Reject) and e.job == event.job for e in events)
                if (row is None or row.status == "waiting" or failed) and not closed:
                    self._book.specs[event.job] = spec = self._edits.pop(id(event))
                    self._book.put(event.job, spec)

    def clean(self, jobs: tuple[str, ...] = (), completed: bool = False) -> list[str]:
        """Forget programs that have ended, of these or all, or only those that were completed, and their logs. The
        journal keeps what happened to them."""
        with self._lock:
            named = {each for job in jobs for each in self._book.named(job)}
            gone = [
                job
                for job, row in self._status.rows.items()
                if row.closed_s is not None
                and (not jobs or job in named)
                and (not completed or row.status == "completed")
            ]
            self._book.forget(gone)
            for job in gone:
                del self._status.rows[job]
        return gone

    def group(self, name: str, parallel: int | None = None) -> None:
        """Let so many of a group run at once from now on, or all."""
        if parallel is not None and parallel < 1:
            raise InputError(f"parallel: found {parallel}, expected 1 or more")
        self._hear([Observed("group", {"group": name, "parallel": parallel})], f"limit of {name}")

    def ask(self, job: str, what: str, value: float | None = None) -> list[str]:
        """Let the scheduler hear a request about a program, or all of an array; returns when it is kept."""
        if what not in ASKS:
            raise InputError(f"cannot {what} a program{did_you_mean(what, ASKS)}")
        if ASKS[what] != (value is not None):
            raise InputError(f"{what}: expected {'a number' if ASKS[what] else 'no number'}, found {value}")
        if what == "resize" and value is not None and not 1 <= value <= self.setup.cores:
            raise InputError(f"resize: found {value:g} cores, expected 1 to {self.setup.cores}")
        if what == "priority" and value is not None and not value >= 0:
            raise InputError(f"priority: found {value:g}, expected 0 (most urgent) or more")
        jobs = self._book.named(job)
        closed = {each: row for each in jobs if (row := self._status.rows.get(each)) and row.closed_s is not None}
        if closed and what == "requeue":
            with self._lock:
                new = list(self._again(closed).values())
            return [*new, *(each for job in jobs if job not in closed for each in self.ask(job, what))]
        if closed and len(jobs) == 1:
            raise InputError(f"program {job} is {_state(closed[job])}; it cannot be changed any more")
        if what == "resize" and len(jobs) == 1 and self._is_rigid(job):
            raise InputError(f"program {job} is rigid: it keeps the cores that it started with")
        asked = [Asked(each, what, value) for each in jobs if each not in closed]
        self._hear(asked, f"{what} of {job}")
        return [each.job for each in asked]

    def _hear(self, asked: Sequence[Asked | Observed], what: str) -> None:
        """Let the scheduler hear of something; returns when that is kept."""
        with self._seen:
            self._unseen.update(map(id, asked))
        self._inbox.extend(asked)
        with self._seen:
            if not self._seen.wait_for(lambda: self._unseen.isdisjoint(map(id, asked)), _ANSWER_LIMIT_S):
                raise DovetailError(self.trouble or f"{what} was not decided yet; it will be")

    def _is_rigid(self, job: str) -> bool:
        row = self._status.rows.get(job)
        return not self._book.specs[job].malleable and row is not None and row.status != "waiting"

    # --- questions ----------------------------------------------------------------------------------------------

    def listing(self) -> list[LiveProgram]:
        """Every program: what was asked, what ought to be, and what is."""
        with self._lock:
            coming = [
                LiveProgram(id=job, name=spec.name, why="has just arrived", cores=spec.cores)
                for job, spec in self._book.specs.items()
                if job not in self._status.rows
            ]
            return [*map(self.describe, self._status.rows.values()), *coming]

    def describe(self, row: ProgramStatus) -> LiveProgram:
        """All that is known of a program."""
        job, now = row.program, self.now()
        ends, (service_s, core_s) = self._book.ends[job], row.until(now)
        told = LiveProgram(
            id=job,
            name=self._book.specs[job].title,
            state=_state(row),
            why=_by_the_clock(row, self._book.specs[job].begin_s - now),
            cores=int(row.asks["cores"]),
            desired=len(row.devices),
            priority=int(row.asks["priority"]),
            attempts=row.attempts,
            pauses=row.pauses,
            resizes=row.resizes,
            arrived_s=row.arrived_s,
            first_run_s=row.first_run_s,
            waiting_s=row.waited_s(now),
            service_s=service_s,
            total_s=None if row.started_s is None else (row.closed_s or now) - row.started_s,
            turnaround_s=None if row.closed_s is None else row.closed_s - row.arrived_s,
            core_s=core_s,
            cpu_s=ends.cpu_s,
            exit=str(ends.exits[-1]) if ends.exits else "",
            exit_codes=tuple(
                each.code if each.code is not None else each.signal and -each.signal for each in ends.exits
            ),
            log=self._book.log_of(job),
            gpus=tuple(self._gpus.gpus[gpu].number or 0 for gpu in row.gpus),
            peak_mib=max((each.peak_mib or 0.0 for each in ends.exits), default=0.0),
            group=self._book.specs[job].group,
            again_of=self._book.specs[job].again_of,
        )
        attempt = self._reconciler.attempt(job)
        return told if attempt is None else replace(told, **self._of_attempt(attempt, told))

    def _of_attempt(self, attempt: Attempt, told: LiveProgram) -> dict[str, Any]:
        """What is, of an attempt that has begun."""
        found: dict[str, Any] = {"actual": len(attempt.has), "cpus": tuple(sorted(attempt.has))}
        swapped = attempt.usage.swap_mib if attempt.usage else 0.0
        seen = [attempt.trouble, f"{swapped:.0f} MiB are swapped out" if swapped >= 1 else ""]
        found["why"] = "; ".join(filter(None, [told.why, *seen]))
        if attempt.usage is not None:
            used = attempt.usage
            found |= {"cpu_s": told.cpu_s + used.cpu_s, "memory_mib": used.memory_mib, "swap_mib": used.swap_mib}
            found |= {"peak_mib": max(told.peak_mib, used.peak_mib), "gpu_memory_mib": attempt.gpu_mib}
        line = self._control.line(attempt.run)
        if line is not None and line.hello is not None:
            found |= {"threads": line.threads, "step": line.progress.step, "rate": line.progress.rate}
            found |= {"acknowledged": line.acknowledged >= line.gen, "answered_s": line.answered_s}
        return found

    def wait(self, jobs: tuple[str, ...] = (), within_s: float = 0.0) -> tuple[int, list[str]]:
        """Return when these have ended, or all, or after so many seconds: how many have, and the first that has not."""
        with self._lock:
            names = [each for job in jobs for each in self._book.named(job)] or list(self._book.specs)
        left = names[::-1]

        def ended() -> bool:
            while left and self._is_closed(left[-1]):
                left.pop()
            return not left

        with self._ended:
            self._ended.wait_for(ended, within_s)
        return sum(map(self._is_closed, names)), left[:-2:-1]

    def _is_closed(self, job: str) -> bool:
        row = self._status.rows.get(job)
        return job not in self._book.specs if row is None else row.closed_s is not None

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        with self._lock:
            states = [_state(row) for row in self._status.rows.values()]
            programs = [self.describe(row) for row in self._status.open()]
        on: dict[int, list[str]] = {}
        for program in programs:
            for gpu in program.gpus:
                on.setdefault(gpu, []).append(program.id)
        return {
            "pid": os.getpid(),
            "folder": str(self.folder),
            "cpus": list(self.setup.cpus),
            "options": self.setup.options,
            "steps": self._status.steps,
            "programs": {state: states.count(state) for state in sorted(set(states))},
            "paused_memory_mib": sum(program.memory_mib for program in programs if program.state == "paused"),
            "trouble": self.trouble,
            "gpus": self._gpus.status(on),
        }

    def past(self, job: str) -> list[dict[str, Any]]:
        """What happened to a program, and what was decided about it and why."""
        self._book.named(job)
        return past_of(job, self._store.steps(), self.setup.cpus)

    def rates(self, path: str) -> int:
        """Write what was measured of the programs as a table of rates; gives the number of its entries."""
        table = rate_table(self._store.steps(), {job: spec.title for job, spec in self._book.specs.items()})
        table.write(Path(path))
        return len(table.rates) + len(table.switches)

    def journal(self, path: str) -> int:
        """Write what has happened so far as a journal; gives the number of steps."""
        return write_journal(Path(path), self.setup, self._store.steps(), self.idle())

    def idle(self) -> bool:
        with self._lock:
            return not self._status.open() and len(self._book.specs) == len(self._status.rows)


def _state(row: ProgramStatus) -> State:
    """In a user's words: what can never run here is refused when it is submitted, so what is rejected has failed."""
    return row.status if row.status != "rejected" else "cancelled" if row.cancelled else "failed"


def _by_the_clock(row: ProgramStatus, begins_in_s: float) -> str:
    """Why it waits or how it ended; the scheduler knows no time of day."""
    if row.status != "waiting" or begins_in_s <= 0:
        return row.why
    return f"begins at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(time.time() + begins_in_s))} at the earliest"


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which folder it is, whatever its name; None if there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _by_number(job: str) -> list[int]:
    """
    >>> sorted(["10", "9.10", "9.2"], key=_by_number)
    ['9.2', '9.10', '10']
    """
    return [int(number) for number in job.split(".")]
