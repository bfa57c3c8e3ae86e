"""What tasks waited for: every second between ready and start is charged once, so that the parts sum to the whole.

A task waits from when it is ready until it starts. Its waiting is charged to its kind, and within that to what the
devices that it then got did meanwhile: run other work, set something up, or stand idle. Of several devices each counts
for an equal part. A task without devices waits for none: its waiting is counted as idle.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from msgspec import Struct


class Waited(Struct):
    """The waiting of one kind of task, in seconds, and what it was for. `devices` is the most that a task of it had."""

    kind: str
    tasks: int = 0
    running_s: float = 0.0
    setup_s: float = 0.0
    idle_s: float = 0.0
    devices: int = 0

    @property
    def total_s(self) -> float:
        return self.running_s + self.setup_s + self.idle_s


class _History:
    """The stretches in which a device was in use, one after the other, with sums over all before each."""

    __slots__ = ("ends", "ran_s", "ready", "set_up_s", "starts")

    def __init__(self) -> None:
        self.starts, self.ready, self.ends = array("d"), array("d"), array("d")
        self.ran_s, self.set_up_s = array("d", [0.0]), array("d", [0.0])

    def add(self, start_s: float, ready_s: float, end_s: float) -> None:
        """A stretch of set-up and running; what overlaps an earlier one counts once."""
        start_s = max(start_s, self.ends[-1]) if self.ends else start_s
        if end_s <= start_s:
            return
        ready_s = min(max(ready_s, start_s), end_s)
        self.starts.append(start_s)
        self.ready.append(ready_s)
        self.ends.append(end_s)
        self.ran_s.append(self.ran_s[-1] + end_s - ready_s)
        self.set_up_s.append(self.set_up_s[-1] + ready_s - start_s)

    def until(self, t: float) -> tuple[float, float]:
        """Seconds of running and of set-ups before an instant."""
        i = len(self.starts) - 1  # what is asked for is mostly now
        if i >= 0 and t < self.starts[i]:
            i = bisect_right(self.starts, t) - 1
        if i < 0:
            return 0.0, 0.0
        ready_s = self.ready[i]
        ran_s = self.ran_s[i] + max(min(t, self.ends[i]) - ready_s, 0.0)
        return ran_s, self.set_up_s[i] + min(t, ready_s) - self.starts[i]


class Waits:
    """Follows a run: is told of stretches of use as they end, and of starts.

    >>> waits = Waits()
    >>> waits.used((0,), 0.0, 2.0, 5.0)  # a set-up until 2, then a task until 5
    >>> waits.start("llm", (0,), ready_s=1.0, t=7.0)
    >>> waits.kinds
    [Waited(kind='llm', tasks=1, running_s=3.0, setup_s=1.0, idle_s=2.0, devices=1)]
    """

    def __init__(self) -> None:
        self._devices: dict[int, _History] = {}
        self._kinds: dict[str, Waited] = {}

    @property
    def kinds(self) -> list[Waited]:
        """Those that waited longest first."""
        return sorted(self._kinds.values(), key=lambda kind: (-kind.total_s, kind.kind))

    def used(self, devices: Iterable[int], start_s: float, ready_s: float, end_s: float) -> None:
        for device in devices:
            if device not in self._devices:
                self._devices[device] = _History()
            self._devices[device].add(start_s, ready_s, end_s)

    def start(
        self, kind: str, devices: tuple[int, ...], ready_s: float, t: float, in_use_since_s: float | None = None
    ) -> None:
        """A task starts at `t`. Devices that it shares may have been in use for a while, and still are."""
        waited = self._kinds.get(kind)
        if waited is None:
            waited = self._kinds[kind] = Waited(kind)
        waited.tasks += 1
        waited.devices = max(waited.devices, len(devices))
        wait_s = max(t - ready_s, 0.0)
        if not wait_s:
            return
        running_s = setup_s = 0.0
        for device in devices:
            history = self._devices.get(device)
            before, after = (history.until(ready_s), history.until(t)) if history else ((0.0, 0.0), (0.0, 0.0))
            running_s += (after[0] - before[0]) / len(devices)
            setup_s += (after[1] - before[1]) / len(devices)
        if devices and in_use_since_s is not None:
            running_s += max(t - max(in_use_since_s, ready_s), 0.0)
        setup_s = min(max(setup_s, 0.0), wait_s)  # differences of sums are off by their last digits
        running_s = min(max(running_s, 0.0), wait_s - setup_s)
        waited.setup_s += setup_s
        waited.running_s += running_s
        waited.idle_s += wait_s - setup_s - running_s
