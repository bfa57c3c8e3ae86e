"""The data host's side of one layout: feeds the first stage, and takes what the last one gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue

from dovetail.pipeline.live.jobs import FedWork
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.links import Inlet, Outlet
from dovetail.pipeline.live.quantise import decode, encode
from dovetail.pipeline.live.supervisor import Broke, Delivered, Erred, Event
from dovetail.pipeline.live.wire import Items
from dovetail.pipeline.route import DATA_HOST


class Flow:
    """Two threads. What has come out when it is stopped is `delivered`; all else must be fed to the next layout."""

    def __init__(
        self,
        generation: int,
        first: int,
        work: FedWork,
        outlets: Sequence[Outlet],
        inlets: Sequence[Inlet],
        journal: RunJournal,
        events: SimpleQueue[Event],
    ) -> None:
        """`first` is the number of the first microbatch; what happens goes to `events`."""
        self.delivered = first
        self._generation, self._first, self._work = generation, first, work
        self._outlets, self._inlets = outlets, inlets
        self._journal, self._events = journal, events
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in (self._feed, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._work.interrupt()
        ends: list[Inlet | Outlet] = [*self._outlets, *self._inlets]
        for end in ends:
            end.close()
        for thread in self._threads:
            thread.join()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except OSError as error:
            if not self._stopped:
                self._events.put(Broke(DATA_HOST, self._generation, str(error)))
        except Exception as error:
            if not self._stopped:
                self._events.put(Erred(DATA_HOST, f"{type(error).__name__}: {error}"))

    def _feed(self) -> None:
        for number in count(self._first):
            given = self._work.inputs(number)
            if given is None:
                return
            value, step = given
            self._journal.fed(self._generation, number, time.monotonic())
            heads, buffers = encode(value)
            items = Items(self._generation, number, not isinstance(value, tuple), heads, step=step)
            self._outlets[number % len(self._outlets)].send(items, buffers)

    def _collect(self) -> None:
        for number in count(self._first):
            if self._work.done or number == self._work.total:
                return
            inlet = self._inlets[number % len(self._inlets)]
            items, buffers = inlet.take(self._generation, number)
            visits = [*items.visits, inlet.visit(items, buffers)]
            inlet.free()
            self._work.deliver(number, decode(items.heads, buffers, items.single))
            self._journal.delivered(self._generation, number, visits)
            self.delivered = number + 1
            self._events.put(Delivered(number + 1, self._work.done))
