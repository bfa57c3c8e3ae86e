"""The service behind the daemon: keeps programs, decides through the scheduler, carries out, and answers questions.

What must survive is in the store before it is acted on: a program before it arrives, a step before it is carried out.
After a restart the recorded steps are replayed, and what the programs have come to meanwhile is found out from the
executors.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dovetail.core.errors import DovetailError, ReplayError
from dovetail.core.events import Complete, Failed, Finished, Reject, Settled
from dovetail.core.loop.engine import serve
from dovetail.core.service.store import Store, StoreError
from dovetail.host.live.answers import Answers
from dovetail.host.live.executors import NotNowError
from dovetail.host.live.hooks import Hooks
from dovetail.host.live.samples import Samples
from dovetail.host.live.setup import HostSetup
from dovetail.host.live.upkeep import Upkeep
from dovetail.host.live.user_requests import UserRequests
from dovetail.host.simulate import machine

_SAMPLE_EVERY_S = 1.0
_FULL_RETRY_S = 1.0


class Service(UserRequests, Answers):
    """One daemon's programs. Every public method may be called from any thread."""

    def __init__(self, folder: Path, setup: HostSetup, store: Store) -> None:
        super().__init__(folder, setup, store)
        self._identity = _identity(folder)
        self._samples = Samples(self._inbox, self._control, self._gpus)
        self._closing = threading.Event()
        self._upkeep = Upkeep(self._inbox, self._book, self.now)
        self._hooks = Hooks(folder, self._hook_ran)
        for step in store.steps():  # before anybody can ask
            self._status.step(*step)
        for job in self._status.rows.keys() - self._book.specs.keys():
            del self._status.rows[job]  # it was cleaned away
        # Whoever comes from now on puts its arrival in itself, before we run too.
        self._unheard = sorted(self._book.specs.keys() - self._status.rows.keys(), key=_by_number)

    def run(self) -> None:
        """Serve until `close`; the programs run on."""
        with self._lock:
            rows = list(self._status.rows.values())
        for row in rows:
            if row.wanted:
                self._reconciler.adopt(row.program, row.wanted, row.devices, row.why, row.gpus)
            elif row.closed_s is not None:
                self._run_hook(row.program)  # unless it was run
        self._tidy()
        self._inbox.put_first([self._book.specs[job].arrival(job, self.setup.cores) for job in self._unheard])
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
                self._store.steps(),
            )
        except ReplayError as error:
            raise DovetailError(
                f"{self.folder}: another version of Dovetail decided on the programs that are open there, and this one "
                "would decide otherwise: let that one go on, or end them with its `dovetail host down --cancel`; "
                "with --state elsewhere this one begins anew"
            ) from error
        finally:
            self._closing.set()
            self._keep()
            self._reconciler.close()
            self._hooks.close()
            sampler.join()
            self._control.close_all()
            for executor in self._executors.all():
                executor.close()
            self._inbox.release()

    def close(self) -> None:
        self._closing.set()
        self._inbox.close()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Keep a step, and the ends in it, before it is carried out. While the disk is full, nothing is decided.
        That programs have come to their cores is kept with what comes next, or within a second."""
        with self._lock:
            self._unkept.append((n, t, events))
        if all(type(event) is Settled for event in events):
            self._status.steps = n
            return
        while not self._keep():
            if self._closing.is_set():
                raise StoreError(self.trouble)
            self._closing.wait(_FULL_RETRY_S)
        with self._lock:
            self._status.step(n, t, events)
            for event in events:
                if type(event) is Finished or type(event) is Failed:
                    self._reconciler.kept(event.job)
                elif type(event) is Complete or type(event) is Reject:
                    self._run_hook(event.job)
                    for waiter in self._waiters:
                        waiter.ended(event.job)
        if self._unseen:
            with self._seen:
                self._unseen.difference_update(map(id, events))
                self._seen.notify_all()

    def _run_hook(self, job: str) -> None:
        with self._lock:
            spec = self._book.specs.get(job)  # none, if it was cleaned away already
            if spec is not None and spec.hook and not self._book.ends[job].hooked:
                self._hooks.run(spec, self.describe(self._status.rows[job]))

    def _hook_ran(self, job: str) -> None:
        with self._lock:  # it may be cleaned away meanwhile
            self._book.note_hook(job)

    def _tidy(self) -> None:
        with self._lock:
            keep = {self._book.run_name(row.program) for row in self._status.rows.values() if row.wanted}
            images = {spec.image for spec in self._book.specs.values()}
        for image in images:
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
                kept = not self._unkept or self._keep()
            if not kept:
                continue
            for executor in self._executors.all():
                executor.replace_stuck()
            self._reconciler.clean()
            self._upkeep.look(rows)
            self._samples.look(filter(None, (self._reconciler.attempt(row.program) for row in rows)))


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
