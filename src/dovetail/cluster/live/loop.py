"""Rounds on wall-clock time: what happens comes in from any thread, what is decided is written, then carried out.

The loop wakes when the next round is to be decided and when it begins. After a restart the recorded steps are followed,
which must be decided as they were, and the run goes on behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from threading import TIMEOUT_MAX, Condition
from typing import Any, Protocol

from dovetail.cluster.rounding.leases import HeldLease
from dovetail.cluster.rounding.replayed import as_read
from dovetail.cluster.rounds import Rounds
from dovetail.core.errors import ReplayError
from dovetail.core.events import Rows
from dovetail.core.journal import Observer
from dovetail.core.loop.engine import OnwardClock

_STAMPED = ("arrived", "completed")  # what says when it happened, and may leave that to the loop


class RoundExecutor(Protocol):
    """Carries leases out. Nothing here may block; what comes of it is put into the loop's inbox."""

    def carry(self, rows: Sequence[Rows], now: float, ends_s: float) -> None:
        """All rows of one step in order, of every step, seen and decided. Leases last until `ends_s`, except those of
        jobs that the last `planned` names: they end with this round, and begin again where it says, if it does."""
        ...

    def restore(self, leases: Mapping[int, HeldLease], now: float, ends_s: float, drained: Iterable[int]) -> None:
        """After a restart: the leases that run as far as it is known, by job, and accelerators that are to be left.
        Find them again, and report what ended meanwhile."""
        ...

    def close(self) -> None: ...


class RowsInbox:
    """Where what happens comes in, from any thread. What came since it was last looked at goes out together.

    >>> inbox = RowsInbox()
    >>> inbox.put(Rows("cancelled", {"id": [7]}))
    >>> inbox.close()
    >>> [rows.of for rows in inbox.take(None) or ()], inbox.take(None)
    (['cancelled'], None)
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[Rows] = []
        self._closed = self.leaves = False

    def put(self, *rows: Rows) -> None:
        """Add what happened; together if they are given together."""
        with self._changed:
            self._waiting += rows
            self._changed.notify()

    def close(self, leave: bool = False) -> None:
        """Nothing more will be taken once it is empty; then leases end, if those who carry them out are to `leave`."""
        with self._changed:
            self._closed, self.leaves = True, leave
            self._changed.notify()

    def take(self, timeout_s: float | None) -> list[Rows] | None:
        """Everything that has come in, at the latest after so many seconds; None if it is closed and empty."""
        with self._changed:
            limit_s = None if timeout_s is None else min(timeout_s, TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._waiting or self._closed, limit_s)
            taken, self._waiting = self._waiting, []
            return taken if taken or not self._closed else None


class LiveLoop:
    """One step at a time: see, decide, write, carry out."""

    def __init__(
        self,
        rounds: Rounds,
        executor: RoundExecutor,
        clock: Callable[[], float],
        observers: Sequence[Observer] = (),
        inbox: RowsInbox | None = None,
        n: int = 0,
    ) -> None:
        """`clock` tells seconds since the service first began, and goes on over restarts; if it is set back, time goes
        on here from where it was. Observers see a step before it is carried out: what they keep outlives it. A machine
        that was kept after step `n` goes on from there."""
        self.rounds, self.executor, self.observers = rounds, executor, observers
        self.inbox = inbox or RowsInbox()
        self.n, self.now = n, max(rounds.now, 0.0)
        self._clock = clock

    def follow(self, history: Iterable[tuple[int, float, Sequence[Any]]]) -> None:
        """Go through the steps that were recorded before a restart; decided now, they must be the same."""
        for self.n, self.now, events in history:
            rows = [event for event in events if isinstance(event, Rows)]
            seen, recorded = [each for each in rows if not each.decided], [each for each in rows if each.decided]
            found = as_read([each for each in self.rounds.handle(seen, self.now) if each.decided])
            if found != recorded:
                raise ReplayError(
                    f"step {self.n} at {self.now} s: {found} was decided now, {recorded} when it was recorded"
                )

    def run(self) -> None:
        """Until the inbox is closed. Leases that run then are not ended, unless the service leaves; they go on until
        they are found again, or end themselves when nobody renews them."""
        onward = OnwardClock(self._clock, self.now)
        self.executor.restore(self.rounds.leases(), onward(), self.rounds.ends_s, self.rounds.drained())
        while True:
            next_s = self.rounds.next_s
            taken = self.inbox.take(None if next_s == inf else max(next_s - onward(), 0.0))
            self.now = onward()
            if taken is None:
                break
            seen = [self._stamped(rows) for rows in taken]
            happened = [*self.rounds.lapsed(self.now), *seen, *self.rounds.due(self.now)]
            if happened:
                self.step(happened)
        if self.inbox.leaves and (over := self.rounds.lapsed(self.now, leaves=True)):
            self.step(over)

    def step(self, happened: Sequence[Rows]) -> None:
        """What happened by now, decided, written and carried out."""
        rows = self.rounds.handle(happened, self.now)
        if not rows:
            return
        self.n += 1
        for observer in self.observers:
            observer.step(self.n, self.now, rows)
        self.executor.carry(rows, self.now, self.rounds.ends_s)

    def _stamped(self, rows: Rows) -> Rows:
        if rows.of not in _STAMPED or "at_s" in rows.columns:
            return rows
        return Rows(rows.of, rows.columns | {"at_s": [self.now] * len(rows.columns["id"])}, rows.decided)
