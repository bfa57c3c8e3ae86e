"""The parts of a live loop that last longer than one journal: its inbox, and a scheduler that is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dovetail.core.events import Instruction, Observed, Settled, Stimulus
from dovetail.core.loop.engine import Executor, Scheduler
from dovetail.core.loop.inbox import Inbox
from dovetail.workflow.capacity import NUMBER


class ServiceExecutor(Executor, Protocol):
    """An executor that can be started and ended: the one over an engine, or a test's own."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def status(self) -> list[dict[str, Any]]: ...


class NumberedInbox(Inbox):
    """An inbox that numbers what is observed: whoever reads the journal later misses what is no longer there. A model
    that is loaded counts, and the next observation tells so.

    >>> from dovetail.core.events import Observed, Settled
    >>> inbox = NumberedInbox()
    >>> inbox.put(Observed("back", {"gpus": [0]}), Settled("r", "a"), Observed("gone", {"gpus": [0]}))
    >>> [event.facts[NUMBER] for event in inbox.take() if isinstance(event, Observed)]
    [1, 3]
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        taken = super().take(timeout_s)
        return None if taken is None else [self._numbered(stimulus) for stimulus in taken]

    def _numbered(self, stimulus: Stimulus) -> Stimulus:
        self.seen += isinstance(stimulus, Observed | Settled)
        if isinstance(stimulus, Observed):
            return Observed(stimulus.what, {**stimulus.facts, NUMBER: self.seen})
        return stimulus


class SegmentInbox(NumberedInbox):
    """An inbox whose loop can be made to return while it goes on: what comes then is for the next loop.

    >>> from dovetail.core.events import Woke
    >>> inbox = SegmentInbox()
    >>> inbox.put(Woke())
    >>> inbox.cut()
    >>> inbox.take(), inbox.take()
    (None, [Woke()])
    """

    def __init__(self) -> None:
        super().__init__()
        self._cut = False

    def cut(self) -> None:
        """Let the loop return before it takes anything more; called from within it."""
        self._cut = True

    def put_first(self, stimuli: Iterable[Stimulus]) -> None:
        """What was before all that waits here."""
        with self._changed:
            self._waiting[:0] = stimuli
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        if self._cut:
            self._cut = False
            return None
        return super().take(timeout_s)


class TimedScheduler:
    """A scheduler whose decisions are timed."""

    def __init__(self, scheduler: Scheduler, observe: Callable[[float], None]) -> None:
        self._scheduler, self._observe = scheduler, observe
        self.close = scheduler.close

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        began = time.perf_counter()
        orders = self._scheduler.handle(stimuli, now)
        self._observe(time.perf_counter() - began)
        return orders
