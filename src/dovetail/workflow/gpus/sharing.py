"""Several nodes of one model at once on one window (continuous batching): the more there are, the slower is each.

All that share a window go equally fast, so what one has done since it came is what every other has done since then.
Work is therefore counted once for the window, in seconds that one alone would need there; a node ends when the window's
work has grown by its own. Joining, leaving and the next end cost a heap's logarithm, whatever the number of nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from msgspec.structs import replace

from dovetail.core.events import Arrived, Asked, Failed, Finished, Observed, Order, Start, Stimulus
from dovetail.core.loop.agenda import TotalOrder
from dovetail.core.loop.executor import SimExecutor

Window = tuple[int, ...]
FIRST_TOKEN = "first token"
TOKENS = "tokens"  # how many a node has read and written, where that is counted


class SharedWindow:
    """A window that nodes of one model share. `shares` is the speed of each at 1, 2, ... at once, of one alone 1.

    >>> window = SharedWindow((1.0, 0.5), ready_s=10.0)
    >>> window.join(0.0), window.join(14.0)  # the load is over at 10 s, so 4 s of work are done when the second joins
    (0.0, 4.0)
    >>> window.when(5.0)  # one second more, at half the speed
    16.0
    """

    __slots__ = ("at_s", "count", "done_s", "ready_s", "shares")

    def __init__(self, shares: Sequence[float], ready_s: float) -> None:
        self.shares = shares
        self.ready_s = self.at_s = ready_s  # when the model is loaded, and up to when work is counted
        self.done_s = 0.0
        self.count = 0

    def join(self, now: float) -> float:
        """One more; gives the work that the window has done before."""
        self._pass(now)
        self.count += 1
        return self.done_s

    def leave(self, now: float) -> None:
        self._pass(now)
        self.count -= 1

    def reach(self, done_s: float, now: float, leaving: int) -> None:
        """So much work is done, and so many leave."""
        self.done_s, self.at_s = done_s, now
        self.count -= leaving

    def when(self, done_s: float) -> float:
        """When so much work is done, if nobody joins or leaves."""
        return self.at_s + (done_s - self.done_s) / self.shares[self.count - 1]

    def _pass(self, now: float) -> None:
        if now > self.at_s:
            if self.count:
                self.done_s += (now - self.at_s) * self.shares[self.count - 1]
            self.at_s = now


class _Running:
    """A window of the executor's: what is to come, by the work done until then, and what of it is on the agenda."""

    __slots__ = ("announced", "coming", "window")

    def __init__(self, window: SharedWindow) -> None:
        self.window = window
        self.coming: list[tuple[float, int, Stimulus]] = []
        self.announced: list[tuple[float, int, Stimulus]] = []


class SharingExecutor(SimExecutor):
    """Carries out nodes that share windows, and tells first tokens; everything else as the simulated executor does.

    `shares` tells, of a model on a window, the speed of each at 1, 2, ... at once, of one alone 1.
    """

    def __init__(
        self, shares: Callable[[str, Window], Sequence[float]], seed: int, noise: float, failure_rate: float
    ) -> None:
        super().__init__(seed, noise, failure_rate)
        self._shares = shares
        self._windows: dict[Window, _Running] = {}
        self._where: dict[tuple[str, str], Window] = {}
        self._order = count()

    def carry(self, orders: Sequence[Order], now: float) -> None:
        joined: dict[Window, None] = {}
        for order in orders:
            if isinstance(order, Start) and order.slots:
                self._join(order, now)
                joined[order.devices] = None
                continue
            super().carry([order], now)
            if isinstance(order, Start) and order.first_s is not None:
                end_s, end = self._coming[order.job, order.task]
                begin_s = now + order.setup_s
                for first_s, token in _first_token(order, end_s - begin_s, end):
                    self._agenda.push(begin_s + first_s, token)
        for window in joined:
            self._announce(self._windows[window])

    def _join(self, order: Start, now: float) -> None:
        running = self._windows.get(order.devices)
        if running is None:
            window = SharedWindow(self._shares(order.kind, order.devices), now + order.setup_s)
            running = self._windows[order.devices] = _Running(window)
        window = running.window
        done_s = window.join(now)
        share = window.shares[window.count - 1]
        self._where[order.job, order.task] = order.devices
        end_s, end = self.start(order, -order.setup_s)  # as if its run began at 0 s
        for at_s, stimulus in (*_first_token(order, end_s, end), (end_s, end)):
            heapq.heappush(running.coming, (done_s + at_s * share, next(self._order), stimulus))

    def _announce(self, running: _Running) -> None:
        """Only what comes next is on the agenda: whoever joins or leaves changes when the rest comes."""
        coming = running.coming
        for entry in running.announced:
            self._agenda.cancel(entry[2])
            heapq.heappush(coming, entry)
        running.announced = []
        done_s = coming[0][0]
        at_s = max(running.window.at_s, running.window.when(done_s))
        while coming and coming[0][0] == done_s:
            _, order, stimulus = heapq.heappop(coming)
            stimulus = replace(stimulus)  # the agenda tells what was cancelled by its identity
            running.announced.append((done_s, order, stimulus))
            self._agenda.push(at_s, stimulus)

    def taken(self, stimuli: Iterable[Stimulus], now: float) -> None:
        """These have come from the agenda: those who shared a window with what ended go faster."""
        came: dict[Window, int] = {}
        for stimulus in stimuli:
            if type(stimulus) is Observed:
                window = self._where.get((stimulus.facts["job"], stimulus.facts["task"]))
                ends = 0
            elif type(stimulus) is Finished or type(stimulus) is Failed:
                window = self._where.pop((stimulus.job, stimulus.task), None)
                ends = 1
            else:
                continue
            if window is not None:
                came[window] = came.get(window, 0) + ends
        for window, ended in came.items():
            running = self._windows[window]
            running.window.reach(running.announced[0][0], now, ended)
            running.announced = []
            if running.coming:
                self._announce(running)
            else:
                del self._windows[window]


def _first_token(order: Start, end_s: float, end: Stimulus) -> list[tuple[float, Stimulus]]:
    """The first token and when it comes, in a run that ends after `end_s`; nothing if there is none until then."""
    if order.first_s is None:
        return []
    whole_s = 2 * end_s if type(end) is Failed else end_s  # a failing run is cut off half-way
    first_s = order.first_s * (whole_s / order.run_s if order.run_s else 1.0)
    if type(end) is Failed and first_s >= end_s:
        return []
    return [(first_s, Observed(FIRST_TOKEN, {"job": order.job, "task": order.task}))]


class SharingAgenda(TotalOrder):
    """Tells the executor what has come: only then does it know what comes next."""

    def __init__(self, arrivals: Iterable[tuple[float, Arrived | Asked]], executor: SharingExecutor) -> None:
        super().__init__(arrivals)
        self._executor = executor

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        popped = super().pop()
        if popped is not None:
            now, stimuli = popped
            self._executor.taken(stimuli, now)
        return popped
