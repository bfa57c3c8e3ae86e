"""What the kernel tells of processes, each from one look: tests look while processes come and go."""

from __future__ import annotations

from pathlib import Path


def stat_of(pid: int) -> list[str]:
    """The fields behind the name in /proc/PID/stat, from the state on; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    return stat_of(pid)[:1] not in ([], ["Z"], ["X"])


def parent_of(pid: int) -> int | None:
    return int(fields[1]) if (fields := stat_of(pid)) else None


def children_of(pid: int) -> list[int]:
    """By whom they name as their parent: which of its threads has started a child changes when a thread ends."""
    names = (entry.name for entry in Path("/proc").iterdir())
    return sorted(int(name) for name in names if name.isdecimal() and parent_of(int(name)) == pid)
