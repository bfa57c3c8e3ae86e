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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core.engine import serve
from dovetail.core.errors import DovetailError, InputError, ReplayError, did_you_mean
from dovetail.core.events import Asked, Failed, Finished, Measured
from dovetail.core.inbox import Inbox
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store, StoreError
from dovetail.host.gpus import never_fits
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.control import Control
from dovetail.host.live.executors import NotNowError
from dovetail.host.live.executors.table import ExecutorTable
from dovetail.host.live.gpus import GpuWatch
from dovetail.host.live.rates import rate_table
from dovetail.host.live.reconciler import Attempt, Reconciler
from dovetail.host.live.samples import Samples
from dovetail.host.live.setup import HostSetup, write_journal
from dovetail.host.live.specs import Spec
from dovetail.host.live.status import LiveProgram, State
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
        self._inbox = Inbox()
        self._status = Programs(setup.cores)
        self._control = Control()
        self._gpus = GpuWatch(setup.policies.gpus)
        self._samples = Samples(self._inbox, self._control, self._gpus)
        self._closing = threading.Event()
        self._reconciler = Reconciler(self._inbox, self._book, self._executors, self._control, setup.cpus, setup.gpus)

    # --- the loop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `close`; the programs run on."""
        history = list(self._store.steps())
        for step in history:
            self._status.step(*step)
        for row in self._status.rows.values():
            if row.wanted:
                self._reconciler.adopt(row.program, row.wanted, row.devices, row.why, row.gpus)
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
                with self._store.together():
                    self._store.step(n, t, events)
                    for event in events:
                        if isinstance(event, Finished | Failed):
                            self._book.keep_end(event.job)
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
        with self._seen:
            self._unseen.difference_update(map(id, events))
            self._seen.notify_all()

    def _tidy(self) -> None:
        keep = {self._book.run_name(row.program) for row in self._status.rows.values() if row.wanted}
        for image in {spec.image for spec in self._book.specs.values()}:
            with suppress(NotNowError):  # an engine that does not answer now is tidied up at the next start
                self._executors.get(image).tidy(keep)
        for left in (self.folder / "runs").iterdir():
            if left.name not in keep:
                shutil.rmtree(left, ignore_errors=True)

    def _sample(self) -> None:
        """Every second: what programs use, and whether the folder is still ours."""
        while not self._closing.wait(_SAMPLE_EVERY_S):
            if _identity(self.folder) != self._identity:
                with suppress(OSError):
                    print(f"{self.folder} was removed or replaced; the daemon ends", file=sys.stderr, flush=True)
                self.close()
                return
            with self._lock:
                rows = self._status.open()
            self._samples.look(filter(None, (self._reconciler.attempt(row.program) for row in rows)))

    # --- requests -------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, array: int | None = None) -> list[str]:
        """Keep a program, or an array of them, and let it arrive; gives their numbers."""
        spec.check(self.setup.cores)
        if never := never_fits(self.setup.policies.gpus, spec.ask(self.setup.cores)):
            raise InputError(f"gpus: {never}")
        executor = self._executors.get(spec.image)
        executor.reach(spec.image)  # if there is no engine or no image, say so now
        if lacks := executor.lacks([name for name in LIMITS if getattr(spec, name) is not None]):
            raise InputError(lacks)
        with self._lock:
            added = self._book.add(spec, array)
            self._inbox.extend([each.arrival(job, self.setup.cores) for job, each in added.items()])
        return list(added)

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
        if closed and len(jobs) == 1:
            raise InputError(f"program {job} is {_state(closed[job])}; it cannot be changed any more")
        if what == "resize" and len(jobs) == 1 and self._is_rigid(job):
            raise InputError(f"program {job} is rigid: it keeps the cores that it started with")
        asked = [Asked(each, what, value) for each in jobs if each not in closed]
        with self._seen:
            self._unseen.update(map(id, asked))
        self._inbox.extend(asked)
        with self._seen:
            if not self._seen.wait_for(lambda: self._unseen.isdisjoint(map(id, asked)), _ANSWER_LIMIT_S):
                raise DovetailError(self.trouble or f"{what} of {job} was not decided yet; it will be")
        return [each.job for each in asked]

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
            why=row.why,
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
            log=str(self._book.log_of(job)),
            gpus=tuple(self._gpus.gpus[gpu].number or 0 for gpu in row.gpus),
            peak_mib=max((each.peak_mib or 0.0 for each in ends.exits), default=0.0),
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

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        programs = self.listing()
        on: dict[int, list[str]] = {}
        for program in programs:
            for gpu in program.gpus:
                on.setdefault(gpu, []).append(program.id)
        states = [program.state for program in programs if program.arrived_s is not None]
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
        found = []
        for _, t, events in self._store.steps():
            for event in events:
                if getattr(event, "job", "") == job:
                    devices = getattr(event, "devices", None)
                    cores = None if devices is None else [self.setup.cpus[device] for device in devices]
                    why = getattr(event, "why", "") or getattr(event, "what", "")
                    if isinstance(event, Measured):
                        why = f"{event.rate:g} per second on {event.width}"
                    found.append({"t": t, "what": type(event).__struct_config__.tag, "cores": cores, "why": why})
        return found

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
