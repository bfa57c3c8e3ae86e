"""What the parts of a service share: its programs, what is known of them, and who acts on them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dovetail.core.events import Asked, Failed, Finished, Reject
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store, StoreError
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.control import Control
from dovetail.host.live.executors.table import ExecutorTable
from dovetail.host.live.gpus import GpuWatch
from dovetail.host.live.loop_inbox import LoopInbox
from dovetail.host.live.reconciler import Reconciler
from dovetail.host.live.setup import HostSetup
from dovetail.host.live.specs import Spec
from dovetail.host.live.status import State
from dovetail.host.metrics import Programs, ProgramStatus


class EndWaiter:
    """Somebody who waits until none of these programs is left; woken once, and not at the end of each."""

    def __init__(self, left: set[str]) -> None:
        self.left = left
        self.none_left = threading.Event()

    def ended(self, job: str) -> None:
        self.left.discard(job)
        if not self.left:
            self.none_left.set()


class ServiceState:
    """All of it; and how steps get into the store."""

    def __init__(self, folder: Path, setup: HostSetup, store: Store) -> None:
        self.folder = folder
        self.setup = setup
        self.trouble = ""
        self._store = store
        self.now = LastingClock(store, store.last_s())
        self._book = ProgramBook(folder, store)
        self._lock = threading.RLock()
        self._seen = threading.Condition()
        self._unseen: set[int] = set()
        self._unkept: list[tuple[int, float, Sequence[Any]]] = []  # steps that are not in the store yet
        self._waiters: list[EndWaiter] = []
        self._inbox = LoopInbox()
        self._executors = ExecutorTable(setup, self._inbox)
        self._status = Programs(setup.cores)
        self._control = Control()
        self._gpus = GpuWatch(setup.policies.gpus)
        self._edits: dict[int, Spec] = {}  # what programs are to be, by the request that is not heard yet
        self._reconciler = Reconciler(self._inbox, self._book, self._executors, self._control, setup.cpus, setup.gpus)

    def _keep(self) -> bool:
        """Keep all steps that are not kept yet; False if that cannot be done now."""
        edited: list[Asked] = []
        try:
            with self._lock:
                with self._book.together():
                    for n, t, events in self._unkept:
                        self._store.step(n, t, events)
                        for event in events:
                            if type(event) is Finished or type(event) is Failed:
                                self._book.keep_end(event.job)
                            elif type(event) is Asked and self._is_edit(event, events):
                                self._book.put(event.job, self._edits[id(event)])
                                edited.append(event)
                self._unkept = []
                for event in edited:
                    self._book.specs[event.job] = self._edits.pop(id(event))
        except StoreError as error:
            self.trouble = f"{error}; nothing is decided until there is room"
            with suppress(OSError):  # the log is most likely on the same disk
                print(self.trouble, file=sys.stderr, flush=True)
            return False
        self.trouble = ""
        return True

    def _is_edit(self, event: Asked, events: Sequence[Any]) -> bool:
        """In the step in which it is heard: an edit counts if the program waits then, as the scheduler has it too."""
        if id(event) not in self._edits:
            return False
        row = self._status.rows.get(event.job)
        failed = any(isinstance(e, Failed) and e.job == event.job for e in events)
        closed = any(isinstance(e, Reject) and e.job == event.job for e in events)
        return (row is None or row.status == "waiting" or failed) and not closed


def state_of(row: ProgramStatus) -> State:
    """In a user's words: what can never run here is refused when it is submitted, so what is rejected has failed."""
    return row.status if row.status != "rejected" else "cancelled" if row.cancelled else "failed"
