"""Who holds which device, and which tasks run as one batch: by the checker's own books."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.events import Start
from dovetail.core.findings import Findings


class Holder:
    """A task that runs, or is paused (without devices)."""

    __slots__ = ("devices", "start", "t")

    def __init__(self, t: float, start: Start) -> None:
        self.t = t
        self.start = start
        self.devices: tuple[int, ...] = ()


class _Batch:
    __slots__ = ("first", "left", "t")

    def __init__(self, t: float, first: Start) -> None:
        self.t = t
        self.first = first
        self.left = 0


class Holders:
    """What is taken stands in the books even where it is a fault: what is given up later must be found there."""

    def __init__(self, devices: int, faults: Findings) -> None:
        self._faults = faults
        self._holders: list[list[Holder]] = [[] for _ in range(devices)]
        self._batches: dict[int, _Batch] = {}
        self._closed_batches: set[int] = set()

    def look(self, t: float, start: Start, who: str) -> bool:
        """Whether what a start names exists; that it is free is checked on the way."""
        together = self._joins(t, start, who) if start.batch else False
        return self.are_free(t, start.devices, who, start.batch if together else 0)

    def are_free(self, t: float, devices: Sequence[int], who: str, batch: int = 0) -> bool:
        """Whether devices exist, with a fault if one of them is held, but by others of the same batch."""
        holders, good = self._holders, True
        if len(set(devices)) != len(devices):
            self._faults.add("device", who, f"a device is named twice in {list(devices)}")
            good = False
        clash = False
        for device in devices:
            if not 0 <= device < len(holders):
                self._faults.add("device", who, f"found device {device}, expected 0 to {len(holders) - 1}")
                good = False
                continue
            for other in holders[device]:
                if not clash and not (batch and other.start.batch == batch):
                    clash = True
                    name = f"{other.start.job}/{other.start.task}"
                    message = f"takes device {device} at {t} s, which {name} holds since {other.t} s"
                    self._faults.add("overlap", who, message)
        return good

    def _joins(self, t: float, start: Start, who: str) -> bool:
        """Whether a task of a batch runs as one with the others of it."""
        batch = self._batches.get(start.batch)
        if batch is None:
            if start.batch in self._closed_batches:
                self._faults.add("batch", who, f"batch {start.batch} ended before")
            batch = self._batches[start.batch] = _Batch(t, start)
        batch.left += 1
        first = batch.first
        for name, found, expected in (
            ("at", t, batch.t),
            ("on", list(start.devices), list(first.devices)),
            ("as", start.kind, first.kind),
            ("replacing", start.replaces, first.replaces),
            ("with setup_s", start.setup_s, first.setup_s),
            ("with run_s", start.run_s, first.run_s),
        ):
            if found != expected:
                message = f"found batch {start.batch} {name} {found}, but its first task is {name} {expected}"
                self._faults.add("batch", who, message)
                return False
        return True

    def take(self, run: Holder, devices: tuple[int, ...]) -> None:
        """Give it these devices."""
        run.devices = devices
        for device in devices:
            if 0 <= device < len(self._holders):
                self._holders[device].append(run)

    def give_up(self, run: Holder) -> None:
        """Take its devices away."""
        for device in run.devices:
            if 0 <= device < len(self._holders):
                self._holders[device].remove(run)
        run.devices = ()

    def release(self, run: Holder) -> None:
        """It has ended."""
        self.give_up(run)
        if run.start.batch:
            batch = self._batches[run.start.batch]
            batch.left -= 1
            if not batch.left:
                del self._batches[run.start.batch]
                self._closed_batches.add(run.start.batch)
