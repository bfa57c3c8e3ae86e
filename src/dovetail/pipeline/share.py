"""A share of the processor for one process, through a control group of its own (version 1 or 2)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from dovetail.core.errors import InputError

_PERIOD_US = 20_000  # short, so that a stage runs evenly slower and not in bursts
_ROOT = Path("/sys/fs/cgroup")


class Share:
    """Limits a process to a number of cores' worth of time, from now on; `release` when the process has ended."""

    def __init__(self, pid: int, cores: float) -> None:
        if not 0.05 <= cores <= 4096:
            raise InputError(f"share: expected cores from 0.05, found {cores:g}")
        quota_us = max(int(cores * _PERIOD_US), 1000)
        first = _ROOT / "cpu" if (_ROOT / "cpu" / "cpu.cfs_quota_us").exists() else None
        self.group = (first or _ROOT / _own_group()) / f"dovetail-{pid}"
        _sweep(self.group.parent)
        try:
            self.group.mkdir(exist_ok=True)  # a process of this number may have left one
            if first:
                (self.group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self.group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (self.group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            (self.group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.release()
            raise InputError(
                f"share: the processor cannot be shared out here ({self.group}: {error.strerror}); "
                "it takes a control group that may be written, most often as root"
            ) from None

    def release(self) -> None:
        """Remove the group. What still runs in it is set free first."""
        for _ in range(20):  # the kernel takes a moment to count out a process that has just ended
            try:
                for pid in (self.group / "cgroup.procs").read_text().split():
                    (self.group.parent / "cgroup.procs").write_text(pid)
                self.group.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return


def _sweep(parent: Path) -> None:
    """Remove the groups of processes that are gone: who was to release them may have been killed."""
    for group in parent.glob("dovetail-*"):
        pid = group.name.removeprefix("dovetail-")
        if pid.isdecimal() and not Path("/proc", pid).exists():
            with suppress(OSError):  # somebody else was faster, or something still runs in it
                group.rmdir()


def _own_group() -> str:
    """The version 2 group of this process, from its root."""
    for line in Path("/proc/self/cgroup").read_text().splitlines() if os.path.exists("/proc/self/cgroup") else []:
        number, _, path = line.split(":", 2)
        if number == "0":
            return path.strip("/")
    return ""
