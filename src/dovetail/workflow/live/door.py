"""Who is let in: bounded queues, and the promise that nobody waits longer than was said."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from itertools import islice
from math import inf
from typing import NamedTuple

from dovetail.core.service.refusals import BusyError
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy
from dovetail.workflow.live.settings import LiveSettings

_MEASURED = 64  # departures from the queue that its speed is measured by
_ENOUGH = 8  # departures after which the measurement counts
_OWN_MEASURED, _OWN_ENOUGH = 8, 3  # the same for those of one workflow
_LEAST_RETRY_S = 1.0
_INSTANT_S = 1e-6
_UNTRIED = 0.7  # of the speed that estimates promise, until it is measured
_MARGIN = 0.8  # of the longest wait: what is guessed at the door may be wrong by the rest


class _Waiting(NamedTuple):
    tenant: str
    workflow: str
    work_s: float  # GPU-seconds, as estimated
    longest_s: float  # of one node
    since_s: float
    started_before: int  # of its workflow


class _Queue:
    """Those of one workflow: how many wait, how many have started, and how long the last ones waited for how many."""

    def __init__(self) -> None:
        self.waiting = self.started = 0
        self.work_s = 0.0
        self.left: deque[tuple[float, int]] = deque(maxlen=_OWN_MEASURED)

    def wait_s(self, gpus: int) -> float:
        if len(self.left) < _OWN_ENOUGH:
            return self.work_s / gpus
        return self.waiting * sum(seconds for seconds, _ in self.left) / sum(starts for _, starts in self.left)


class Door:
    """Counts who waits: from the acceptance of a request until something of it has started, or it has ended.

    A queue's speed is measured by the time from one departure to the next while others wait; until enough were seen, by
    the seconds that requests are estimated to take, shared out over the GPUs. Those of one workflow may wait longer
    than others, so their own pace counts too: how long the last of them waited, for as many as started meanwhile; one
    that was ended for its wait counts as well.

    Whoever was let in is not to be overtaken for ever. The one who waits longest starts, whatever the order, when all
    who wait have: nobody is let in who would make that too late for him. Not safe for several threads at once.
    """

    def __init__(self, settings: LiveSettings, tenancy: Tenancy | None, gpus: int) -> None:
        self._settings, self._tenancy = settings, tenancy or Tenancy()
        self._gpus = max(gpus, 1)  # a pool may be without any, and what needs none goes on
        shared = self._tenancy.sharing.max_queue
        self.limit = settings.max_queue if shared is None else min(settings.max_queue, shared)
        self._waiting: dict[str, _Waiting] = {}
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)  # by workflow
        self._by_tenant: Counter[str] = Counter()
        self._intervals: deque[float] = deque(maxlen=_MEASURED)
        self._started: deque[float] = deque(maxlen=_MEASURED)  # GPU-seconds of those who departed so
        self._busy: deque[float] = deque(maxlen=_MEASURED)  # until when the nodes that started may take
        self._left_s: float | None = None  # when the last one left others behind

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: count for tenant, count in self._by_tenant.items() if count}

    def interval_s(self, now: float) -> float:
        """How long it takes from one departure to the next, while others wait: a standstill counts as it lasts."""
        if len(self._intervals) >= _ENOUGH:
            mean_s = sum(self._intervals) / len(self._intervals)
            return mean_s if self._left_s is None else max(mean_s, (now - self._left_s) / _MEASURED)
        work = [each.work_s for each in self._waiting.values()]
        return sum(work) / len(work) / self._gpus if work else 0.0

    def wait_s(self, now: float, workflow: str | None = None) -> float:
        """How long one that comes now will wait, as far as is known: any, or one of this workflow."""
        wait_s = len(self._waiting) * self.interval_s(now)
        own = None if workflow is None else self._queues.get(workflow)
        return wait_s if own is None else max(wait_s, own.wait_s(self._gpus))

    def last_s(self, now: float, work_s: float = 0.0, longest_s: float = 0.0) -> float:
        """How long the one who came first will have waited when all have started who wait now, one more with them."""
        first = next(iter(self._waiting.values()), None)
        if first is None:
            return 0.0
        pace = _UNTRIED * self._gpus
        if len(self._intervals) >= _ENOUGH:  # what models need to be loaded, and how far estimates are off, is in it
            measured = sum(self._started) / max(sum(self._intervals), _INSTANT_S)
            pace = min(float(self._gpus), max(measured, _INSTANT_S))
        left_s = sum(queue.work_s for queue in self._queues.values()) - first.work_s + work_s
        longest = max((each.longest_s for each in islice(self._waiting.values(), 1, None)), default=0.0)
        busy_s = max(longest_s, longest, *(ends_s - now for ends_s in self._busy), 0.0)
        return now - first.since_s + (busy_s * self._gpus + left_s) / pace

    def check(
        self, tenant: str, now: float, workflow: str | None = None, work_s: float = 0.0, longest_s: float = 0.0
    ) -> None:
        """Turn a request away if its queue is full, or if it, or who waits already, would wait too long."""
        most = self._settings.max_wait_s
        own = self._tenancy.rule(tenant or NOBODY).max_queue
        retry_s = max(self.interval_s(now), _LEAST_RETRY_S)
        if self.waiting >= self.limit:
            raise BusyError(f"{self.waiting} requests wait, and max_queue is {self.limit}", retry_s)
        if self._by_tenant[tenant] >= (inf if own is None else own):
            why = f"{self._by_tenant[tenant]} requests of tenant {tenant or NOBODY!r} wait, and its max_queue is {own}"
            raise BusyError(why, retry_s)
        if (wait_s := self.wait_s(now, workflow)) > _MARGIN * most:
            why = f"it would wait some {wait_s:.3g} s, and max_wait_s is {most:g}"
            raise BusyError(why, max(wait_s - _MARGIN * most, retry_s))
        if (last_s := self.last_s(now, work_s, longest_s)) > _MARGIN * most:
            why = f"who came first would wait some {last_s:.3g} s if more were let in, and max_wait_s is {most:g}"
            raise BusyError(why, max(last_s - _MARGIN * most, retry_s))

    def enter(
        self, run: str, tenant: str, work_s: float, workflow: str = "", now: float = 0.0, longest_s: float = 0.0
    ) -> None:
        queue = self._queues[workflow]
        self._waiting[run] = _Waiting(tenant, workflow, work_s, longest_s, now, queue.started)
        self._by_tenant[tenant] += 1
        queue.waiting += 1
        queue.work_s += work_s

    def leave(self, run: str, now: float, started: bool) -> None:
        """Something of a request has started, or it has ended without."""
        found = self._waiting.pop(run, None)
        if found is None:
            return
        self._by_tenant[found.tenant] -= 1
        queue, waited_s = self._queues[found.workflow], now - found.since_s
        queue.waiting -= 1
        queue.work_s = queue.work_s - found.work_s if queue.waiting else 0.0
        queue.started += started
        if started or waited_s > _MARGIN * self._settings.max_wait_s:
            queue.left.append((waited_s, max(queue.started - found.started_before, 1)))
        if started:
            if self._left_s is not None:
                self._intervals.append(now - self._left_s)
                self._started.append(found.work_s)
            self._left_s = now
            self._busy.append(now + found.longest_s)
        if not self._waiting:
            self._left_s = None
