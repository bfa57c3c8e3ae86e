"""Control groups of the kernel, version 1 or 2: bind processes to processors, freeze, count and limit them.

Only where they may be made: as root, or in a subtree that was given to the user. Everything is below one own folder.
Memory is limited where the kernel has a controller for it, and not elsewhere.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dovetail.core.errors import InputError
from dovetail.core.resources import devices_text

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("cpuset", "freezer")
_SEEN = (*_NEEDED, "cpuacct")  # of the groups of others
_LIMITS = ("memory", "cpu", "blkio")  # groups that are made for those alone who have a limit there
_NOWHERE = "/nonexistent"
_FREEZE_LIMIT_S = 5.0
_MOST_CPUS = 1 << 16  # of one machine; a slip must not become a set of all numbers
PERIOD_US = 20_000  # of a share: short, so that a process runs evenly slower and not in bursts


def cpu_list(cpus: Sequence[int]) -> str:
    """Processors as the kernel writes them.

    >>> cpu_list([3, 0, 1])
    '0-1,3'
    """
    return devices_text(cpus, ",")


def parse_cpus(text: str) -> frozenset[int]:
    """Processors as the kernel writes them, read.

    >>> sorted(parse_cpus("0-1,3"))
    [0, 1, 3]
    """
    found: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        if int(last or first) >= _MOST_CPUS:
            raise ValueError(f"there are no processors {span}")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def own_groups(pid: int | str = "self") -> dict[str, Path]:
    """The groups of a process by controller; version 2 has the name ""."""
    found = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = Path(path.lstrip("/"))
    return found


def groups_of(pid: int) -> Groups:
    """The groups that a process is in."""
    own = own_groups(pid)
    if "cpuacct" not in own:
        return Groups({"": ROOT / own[""].parent}, own[""].name)
    groups = Groups({}, "")
    groups._at = {name: str(ROOT / name / own[name]) for name in _SEEN}
    return groups


class Groups:
    """The control groups of one program: one folder in version 2, one for each controller in version 1."""

    def __init__(self, parents: dict[str, Path], name: str) -> None:
        self._at = {controller: f"{parent}/{name}" for controller, parent in parents.items()}
        self._version_2 = "" in parents
        self._bound: str | None = None  # the processors that they were last given, if we have done that
        self._binding = threading.Lock()  # while somebody does
        self.renewable = False  # whether another program can have them: they limit nothing, and never froze anybody

    def _file(self, controller: str, name: str) -> Path:
        return Path(self._path(controller, name))

    def _path(self, controller: str, name: str) -> str:
        return f"{self._at.get('' if self._version_2 else controller, _NOWHERE)}/{name}"

    def make(
        self,
        cpus: Sequence[int],
        memory_mib: int | None = None,
        cpu_quota: float | None = None,
        io_weight: int | None = None,
    ) -> tuple[str, ...]:
        """Make them; gives the files that a process of one thread writes a 0 into to enter. The quota is in cores'
        worth of time, the weight from 1 to 10,000, where 100 is everybody's."""
        limits = dict(zip(_LIMITS, (memory_mib, cpu_quota, io_weight), strict=True))
        made = [folder for controller, folder in self._at.items() if limits.get(controller, 0) is not None]
        for folder in made:
            Path(folder).mkdir(exist_ok=True)
        if not self._version_2:
            memory = Path(self._at["cpuset"]).parent / "cpuset.mems"
            self._file("cpuset", "cpuset.mems").write_text(memory.read_text())
        self.set_cpus(cpus)
        limit = self._file("memory", "memory.max" if self._version_2 else "memory.limit_in_bytes")
        if memory_mib is not None and limit.exists():
            limit.write_text(str(memory_mib << 20))
        self._share(cpu_quota, io_weight)
        self.renewable = not self._version_2 and not any(limits.values())
        return self._entries(made)

    def _entries(self, made: Iterable[str]) -> tuple[str, ...]:
        """In version 1 a thread that moves itself alone does not wait until all processors have taken note."""
        return tuple(f"{folder}/{'cgroup.procs' if self._version_2 else 'tasks'}" for folder in made)

    def renewed(self, name: str, cpus: Sequence[int]) -> tuple[Groups, tuple[str, ...]]:
        """They for another program, nobody being inside: that costs a tenth of making and removing some. These here are
        gone then, so that who still means to pause or to bind the program that had them finds nothing. Whoever began to
        before may still do it: then nobody has them any more, and OSError is raised."""
        if not self._binding.acquire(blocking=False):
            raise BlockingIOError(f"{self._at['cpuset']} is being bound")
        try:
            return self._renewed(name, cpus)
        finally:
            self._binding.release()

    def _renewed(self, name: str, cpus: Sequence[int]) -> tuple[Groups, tuple[str, ...]]:
        groups = Groups({}, "")
        groups._at = {each: f"{self._at[each].rpartition('/')[0]}/{name}" for each in _NEEDED}
        groups._bound, groups.renewable = self._bound, True
        for controller in _NEEDED:
            os.rename(self._at[controller], groups._at[controller])
        if not self.renewable:
            for folder in groups._at.values():
                os.rename(folder, f"{folder}.left")
            raise FileNotFoundError(self._at["freezer"])
        if cpu_list(cpus) != groups._bound:
            groups.set_cpus(cpus)
        return groups, groups._entries(groups._at[controller] for controller in _NEEDED)

    def _share(self, cpu_quota: float | None, io_weight: int | None) -> None:
        quota_us = None if cpu_quota is None else max(int(cpu_quota * PERIOD_US), 1000)
        if quota_us is not None and self._version_2:
            self._file("", "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        elif quota_us is not None:
            self._file("cpu", "cpu.cfs_period_us").write_text(str(PERIOD_US))
            self._file("cpu", "cpu.cfs_quota_us").write_text(str(quota_us))
        if io_weight is not None and self._version_2:
            self._file("", "io.weight").write_text(f"default {io_weight}")
            if (of_bfq := self._file("", "io.bfq.weight")).exists():
                of_bfq.write_text(str(min(io_weight, 1000)))
        elif io_weight is not None:  # everybody's depends on the kernel's scheduler: the group above has it
            blkio = Path(self._at["blkio"])
            found = _weight_file(blkio) or blkio / "blkio.weight"
            everybodys = int((blkio.parent / found.name).read_text().split()[-1])
            found.write_text(str(min(max(round(everybodys * io_weight / 100), 10), 1000)))

    def peak_mib(self) -> float:
        """The most memory that it ever had; 0 where nobody counts it."""
        file = self._file("memory", "memory.peak" if self._version_2 else "memory.max_usage_in_bytes")
        with suppress(OSError, ValueError):
            return int(file.read_text()) / 2**20
        return 0.0

    def exist(self) -> bool:
        return all(os.path.isdir(folder) for controller, folder in self._at.items() if controller in ("", *_NEEDED))

    def lacked_memory(self) -> bool:
        """Whether the kernel had to end something because of the limit."""
        file = self._file("memory", "memory.events" if self._version_2 else "memory.oom_control")
        with suppress(OSError, ValueError):
            words = file.read_text().split()
            return int(words[words.index("oom_kill") + 1]) > 0
        return False

    def set_cpus(self, cpus: Sequence[int]) -> None:
        with self._binding:
            self._bound = None
            _write(self._path("cpuset", "cpuset.cpus"), text := cpu_list(cpus))
            self._bound = text

    def cpus(self) -> frozenset[int]:
        return parse_cpus(self._file("cpuset", "cpuset.cpus").read_text())

    def freeze(self, frozen: bool) -> None:
        """Freeze or thaw, and wait until it is so."""
        self.renewable = self.renewable and not frozen
        if self._version_2:
            self._file("", "cgroup.freeze").write_text("01"[frozen])
        else:
            self._file("freezer", "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        _until(lambda: self.frozen() is frozen, "freeze" if frozen else "thaw")

    def frozen(self) -> bool:
        if self._version_2:
            return "frozen 1" in self._file("", "cgroup.events").read_text()
        return self._file("freezer", "freezer.state").read_text().strip() == "FROZEN"

    def cpu_s(self) -> float:
        if self._version_2:
            words = self._file("", "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
        return int(self._file("cpuacct", "cpuacct.usage").read_text()) / 1e9

    def processes(self) -> list[int]:
        with open(self._path("freezer", "cgroup.procs"), "rb", buffering=0) as file:
            return [int(pid) for pid in file.readall().split()]

    def remove(self) -> None:
        for folder in self._at.values():
            with suppress(FileNotFoundError):
                # A process that has just ended is still counted for a moment.
                _until(lambda folder=folder: _removed(Path(folder)), "leave its control group")  # type: ignore[misc]


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _until(true: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + _FREEZE_LIMIT_S
    pause_s = 0.0001
    while not true():
        if time.monotonic() > limit:
            raise TimeoutError(f"it does not {what} within {_FREEZE_LIMIT_S:g} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def find_parents(name: str, root: Path = ROOT) -> dict[str, Path] | None:
    """Where the groups of programs can be made, below a folder of this name; None where they cannot."""
    try:
        own = own_groups()
        if own.keys() >= set(_NEEDED):
            return _version_1(name, root, own)
        return _version_2(name, root / own[""])
    except (OSError, KeyError):
        return None


def _version_1(name: str, root: Path, own: dict[str, Path]) -> dict[str, Path]:
    parents = {}
    for controller in _NEEDED:
        above = root / controller / own[controller]
        parents[controller] = folder = above / name
        folder.mkdir(exist_ok=True)
        if controller == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((above / file).read_text())
        if not os.access(folder / "cgroup.procs", os.W_OK):
            raise PermissionError(folder)
    for controller in _LIMITS:
        with suppress(OSError, KeyError):
            folder = root / controller / own[controller] / name
            folder.mkdir(exist_ok=True)
            parents[controller] = folder
    return parents


def _weight_file(group: Path) -> Path | None:
    return next((file for name in ("blkio.bfq.weight", "blkio.weight") if (file := group / name).exists()), None)


def engine_weight(io_weight: int) -> int | None:
    """What container engines call such a weight, where 100 is everybody's; None where they leave it out. They have
    weights from 10 to 1,000: in version 1 those of a scheduler for which 500 is everybody's, and for no other; in
    version 2 the kernel's own for BFQ, where 100 is everybody's too, else those from 1 to 10,000, evenly."""
    if (ROOT / "blkio").is_dir():
        found = 5.0 * io_weight if any(ROOT.glob("blkio/*/blkio.weight")) else None
    else:
        found = float(io_weight) if any(ROOT.glob("*/io.bfq.weight")) else 10 + (io_weight - 1) * 990 / 9999
    return None if found is None else min(max(round(found), 10), 1000)


def can_limit(parents: dict[str, Path], what: Literal["cpu", "io"]) -> bool:
    """Whether the time, or the weight, of a program's groups below these can be limited."""
    if "" in parents:
        with suppress(OSError):
            return what in (parents[""] / "cgroup.subtree_control").read_text().split()
        return False
    return "cpu" in parents if what == "cpu" else "blkio" in parents and _weight_file(parents["blkio"]) is not None


def _version_2(name: str, own: Path) -> dict[str, Path]:
    """A group that holds processes cannot have controllers for groups below it, so ours is beside the daemon's."""
    above = own.parent if (own / "cgroup.type").exists() else own
    if "cpuset" not in (above / "cgroup.subtree_control").read_text().split():
        (above / "cgroup.subtree_control").write_text("+cpuset")
    folder = above / name
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.subtree_control").write_text("+cpuset")
    for group in (above, folder):
        for controller in ("+cpu", "+io", "+memory"):
            with suppress(OSError):  # there may be no such controller
                (group / "cgroup.subtree_control").write_text(controller)
    if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(above / "cgroup.procs", os.W_OK):
        raise PermissionError(folder)
    return {"": folder}


def remove_empty(parents: dict[str, Path], keep: Container[str]) -> None:
    """Remove the groups of programs that are gone, but for these; the kernel keeps those that have processes."""
    for folder in parents.values():
        for group in folder.glob("*/"):
            if group.name not in keep:
                with suppress(OSError):
                    group.rmdir()


def remove_parents(parents: dict[str, Path]) -> None:
    """Remove the common folder, if no program is left in it."""
    for folder in parents.values():
        with suppress(OSError):
            folder.rmdir()


class CpuShare:
    """Limits a process to a number of cores' worth of time, from now on; `release` when the process has ended."""

    def __init__(self, pid: int, cores: float) -> None:
        if not 0.05 <= cores <= 4096:
            raise InputError(f"share: expected cores from 0.05, found {cores:g}")
        quota_us = max(int(cores * PERIOD_US), 1000)
        version_1 = (ROOT / "cpu" / "cpu.cfs_quota_us").exists()
        parent = ROOT / "cpu" if version_1 else ROOT / own_groups().get("", "")
        self.group = parent / f"dovetail-{pid}"
        for left in parent.glob("dovetail-*"):  # who was to release them may have been killed
            if _names_no_process(left):
                _removed(left)
        try:
            self.group.mkdir(exist_ok=True)  # a process of this number may have left one
            if version_1:
                (self.group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self.group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (self.group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            (self.group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.release()
            raise InputError(
                f"share: the processor cannot be shared out here ({self.group}: {error.strerror}); "
                "it takes a control group that may be written, most often as root"
            ) from None

    def release(self) -> None:
        """Remove the group. What still runs in it is set free first."""
        with suppress(TimeoutError):
            _until(self._released, "leave its control group")

    def _released(self) -> bool:
        with suppress(OSError):
            for pid in (self.group / "cgroup.procs").read_text().split():
                (self.group.parent / "cgroup.procs").write_text(pid)
        return _removed(self.group)


def _names_no_process(group: Path) -> bool:
    pid = group.name.removeprefix("dovetail-")
    return pid.isdecimal() and not Path("/proc", pid).exists()
