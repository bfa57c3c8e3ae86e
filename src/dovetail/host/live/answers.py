"""What a service says of itself and of its programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core.journal import Recorded
from dovetail.host.inputs.times import clock_time
from dovetail.host.live.past import past_of
from dovetail.host.live.rates import rate_table
from dovetail.host.live.reconciler import Attempt
from dovetail.host.live.service_state import EndWaiter, ServiceState, state_of
from dovetail.host.live.setup import write_journal
from dovetail.host.live.specs import Spec
from dovetail.host.live.status import LiveProgram
from dovetail.host.metrics import ProgramStatus
from dovetail.host.waiting import waits_for

_FEW = 100  # of those that one waits for: who waits for more is not told anew of each that ends


class Answers(ServiceState):
    """Nothing is changed by a question."""

    def listing(self, jobs: tuple[str, ...] = ()) -> list[LiveProgram]:
        """These programs, or all: what was asked, what ought to be, and what is."""
        with self._lock:
            specs, rows = self._book.specs, self._status.rows
            wanted = {each for job in jobs for each in self._book.named(job)} if jobs else specs.keys() | rows.keys()
            there = [self.describe(row) for job, row in rows.items() if job in wanted]
            coming = [
                LiveProgram(id=job, name=spec.name, why="has just arrived", cores=spec.cores)
                for job, spec in specs.items()
                if job not in rows and job in wanted
            ]
            return [*there, *coming]

    def describe(self, row: ProgramStatus) -> LiveProgram:
        """All that is known of a program."""
        job, now = row.program, self.now()
        ends, (service_s, core_s) = self._book.ends[job], row.until(now)
        told = LiveProgram(
            id=job,
            name=self._book.specs[job].title,
            state=state_of(row),
            why=self._why(row, self._book.specs[job], now),
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

    def _why(self, row: ProgramStatus, spec: Spec, now: float) -> str:
        """Why it waits or how it ended. The scheduler knows no time of day, and says but once for whom one waits."""
        if row.status != "waiting" or row.held:
            return row.why
        wall = time.time()
        begin = wall + spec.begin_s - now if spec.begin is None else spec.begin
        if begin > wall:
            return f"begins at {clock_time(begin)} at the earliest"
        few = len(spec.after) + len(spec.after_any) <= _FEW
        return waits_for(self._awaited(spec)) or row.why if few else row.why

    def _awaited(self, spec: Spec) -> Iterator[str]:
        """Whom a program that waits still waits for; who was cleaned away has ended."""
        rows, specs = self._status.rows, self._book.specs
        for name in spec.after:
            if name in specs and not ((row := rows.get(name)) and row.status == "completed"):
                yield name
        yield from (name for name in spec.after_any if not self._is_closed(name))

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
            waiter = EndWaiter({job for job in names if not self._is_closed(job)})
            self._waiters.append(waiter)
        if waiter.left:
            waiter.none_left.wait(within_s)
        with self._lock:
            self._waiters.remove(waiter)
            left = [job for job in names if job in waiter.left]
        return len(names) - len(left), left[:1]

    def _is_closed(self, job: str) -> bool:
        row = self._status.rows.get(job)
        return job not in self._book.specs if row is None else row.closed_s is not None

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        with self._lock:
            states = [state_of(row) for row in self._status.rows.values()]
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

    def _steps(self) -> Iterator[tuple[int, float, list[Recorded]]]:
        """All that has happened until now."""
        self._keep()
        return self._store.steps()

    def past(self, job: str) -> list[dict[str, Any]]:
        """What happened to a program, and what was decided about it and why."""
        self._book.named(job)
        return past_of(job, self._steps(), self.setup.cpus)

    def rates(self, path: str) -> int:
        """Write what was measured of the programs as a table of rates; gives the number of its entries."""
        with self._lock:
            titles = {job: spec.title for job, spec in self._book.specs.items()}
        table = rate_table(self._steps(), titles)
        table.write(Path(path))
        return len(table.rates) + len(table.switches)

    def journal(self, path: str) -> int:
        """Write what has happened so far as a journal; gives the number of steps."""
        return write_journal(Path(path), self.setup, self._steps(), self.idle())

    def idle(self) -> bool:
        with self._lock:
            return not self._status.open() and len(self._book.specs) == len(self._status.rows)
