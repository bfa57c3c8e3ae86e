"""Who holds which device, and which tasks run as one batch: by the checker's own count."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dovetail.core.check.clock import Allowance
from dovetail.core.events import Start
from dovetail.core.findings import Findings


class Holder:
    """A task that runs, or is paused (without devices)."""

    __slots__ = ("clashed", "devices", "held_s", "start", "t")

    def __init__(self, t: float, start: Start) -> None:
        self.t = t
        self.start = start
        self.devices: tuple[int, ...] = ()
        self.held_s = t  # since when it has these devices
        self.clashed = False  # an overlap was found for the devices that it has


class _Batch:
    __slots__ = ("first", "left", "t")

    def __init__(self, t: float, first: Start) -> None:
        self.t = t
        self.first = first
        self.left = 0


class _Clash(Struct):
    """A device that two have at once, each since when: a fault if neither can have ended before the other began, as far
    as stamps may be wrong."""

    n: int
    device: int
    who: str
    run: Holder
    other: Holder
    run_s: float
    other_s: float
    slots: int = 0  # all of which others have

    @property
    def since_s(self) -> float:
        return max(self.run_s, self.other_s)


class Holders:
    """What is taken is noted even where it is a fault: what is given up later must be found there."""

    def __init__(self, devices: int, faults: Findings, allowance: Allowance) -> None:
        self._faults = faults
        self._allowance = allowance
        self._holders: list[list[Holder]] = [[] for _ in range(devices)]
        self._clashes: list[_Clash] = []
        self._batches: dict[int, _Batch] = {}
        self._closed_batches: set[int] = set()

    def __len__(self) -> int:
        return len(self._holders)

    def extend(self, devices: int) -> None:
        """So many more devices are there."""
        self._holders += [[] for _ in range(devices)]

    def start(self, n: int, run: Holder, who: str, beside: bool = False) -> bool:
        """Let a task begin. Whether what it names exists; whether that is free is found on the way. What runs `beside`
        others shares their devices from the same instant on, and is otherwise as it likes."""
        batch = run.start.batch if run.start.batch and self._joins(run.t, run.start, who, beside) else 0
        return self.take(n, run.t, run, run.start.devices, who, batch)

    def take(self, n: int, t: float, run: Holder, devices: tuple[int, ...], who: str, batch: int = 0) -> bool:
        """Give it these devices, with a fault if others hold one of them, but for others of the same batch. Whether
        they exist."""
        good = len(set(devices)) == len(devices)
        if not good:
            self._faults.add("device", who, f"a device is named twice in {list(devices)}")
        run.devices, run.held_s, run.clashed = devices, t, False
        for device in devices:
            if not 0 <= device < len(self._holders):
                self._faults.add("device", who, f"found device {device}, expected 0 to {len(self._holders) - 1}")
                good = False
                continue
            sharing = []
            for other in self._holders[device]:
                if run.start.slots and _share(run, other):
                    sharing.append(other)
                elif other is not run and not (batch and other.start.batch == batch):
                    self._clash(_Clash(n, device, who, run, other, t, other.held_s))
            if sharing and len(sharing) >= run.start.slots:
                self._clash(_Clash(n, device, who, run, sharing[0], t, sharing[0].held_s, run.start.slots))
            self._holders[device].append(run)
        return good

    def _clash(self, clash: _Clash) -> None:
        if self._allowance.clock.error_s > 0:
            self._clashes.append(clash)
        else:
            self._overlap(clash)

    def _overlap(self, clash: _Clash) -> None:
        if not clash.run.clashed:
            clash.run.clashed = True
            name = f"{clash.other.start.job}/{clash.other.start.task}"
            message = f"takes device {clash.device} at {clash.run_s} s, which {name} holds since {clash.other_s} s"
            if clash.slots:
                message = f"takes a slot of device {clash.device} at {clash.run_s} s, but all {clash.slots} are taken"
            self._faults.add("slots" if clash.slots else "overlap", clash.who, message, (clash.n, clash.run_s))

    def look(self, t: float) -> None:
        """It is so late: what two have had at once for too long is a fault."""
        late = [clash for clash in self._clashes if self._allowance.exceeded(clash.since_s, t)]
        for clash in late:
            self._clashes.remove(clash)
            self._overlap(clash)

    def _joins(self, t: float, start: Start, who: str, beside: bool) -> bool:
        """Whether a task of a batch runs as one with the others of it."""
        batch = self._batches.get(start.batch)
        if batch is None:
            if start.batch in self._closed_batches:
                self._faults.add("batch", who, f"batch {start.batch} ended before")
            batch = self._batches[start.batch] = _Batch(t, start)
        batch.left += 1
        first = batch.first
        same: list[tuple[str, Any, Any]] = [
            ("at", batch.t if self._allowance.close(t, batch.t) else t, batch.t),
            ("on", list(start.devices), list(first.devices)),
        ]
        if not beside:
            same += [
                ("as", start.kind, first.kind),
                ("replacing", start.replaces, first.replaces),
                ("with setup_s", start.setup_s, first.setup_s),
                ("with run_s", start.run_s, first.run_s),
            ]
        for name, found, expected in same:
            if found != expected:
                message = f"found batch {start.batch} {name} {found}, but its first task is {name} {expected}"
                self._faults.add("batch", who, message)
                return False
        return True

    def give_up(self, t: float, run: Holder) -> None:
        """Take its devices away."""
        for device in run.devices:
            if 0 <= device < len(self._holders) and run in self._holders[device]:  # it may have joined since
                self._holders[device].remove(run)
        run.devices = ()
        for clash in [clash for clash in self._clashes if clash.run is run or clash.other is run]:
            own_s, other_s = clash.run_s, clash.other_s
            if clash.other is run:
                own_s, other_s = other_s, own_s
            if not self._allowance.exceeded(other_s, t):  # it may have ended before the other began
                self._clashes.remove(clash)
                self._allowance.used(t - other_s)
            elif self._allowance.exceeded(own_s, t):  # nor can the other have, which goes on
                self._clashes.remove(clash)
                self._overlap(clash)

    def release(self, t: float, run: Holder) -> None:
        """It has ended."""
        self.give_up(t, run)
        if run.start.batch:
            batch = self._batches[run.start.batch]
            batch.left -= 1
            if not batch.left:
                del self._batches[run.start.batch]
                self._closed_batches.add(run.start.batch)


def _share(run: Holder, other: Holder) -> bool:
    """Whether both hold slots of the same devices, as the same kind."""
    one, two = run.start, other.start
    same = one.slots == two.slots and one.kind == two.kind and one.devices == two.devices
    return same and other is not run and not one.batch
