"""Control groups as files of both versions, in a folder in the place of the kernel's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dovetail.core import cgroups
from dovetail.core.cgroups import Groups

CONTROLLERS = ("cpuset", "freezer", "cpuacct", "memory")


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def groups(tmp_path: Path, version: int) -> Groups:
    """The groups of one program, made on processors 0, 1 and 3."""
    names = [""] if version == 2 else CONTROLLERS
    parents = {name: tmp_path / f"at {name}" for name in names}
    for name, parent in parents.items():
        parent.mkdir()
        (parent / "program").mkdir()
        (parent / "cpuset.mems").write_text("0-1")
        for file in ("memory.max", "memory.limit_in_bytes"):
            if name in ("", "memory"):
                (parent / "program" / file).write_text("max")
    found = Groups(parents, "program")
    entrances = found.make([3, 0, 1], memory_mib=2)
    assert entrances == tuple(str(parent / "program" / "cgroup.procs") for parent in parents.values())
    return found


def content(tmp_path: Path, controller: str, name: str, version: int) -> str:
    return (tmp_path / f"at {controller if version == 1 else ''}" / "program" / name).read_text()


def test_processors_and_memory_are_written_as_the_kernel_reads_them(
    groups: Groups, tmp_path: Path, version: int
) -> None:
    assert groups.exist()
    assert groups.cpus() == {0, 1, 3}
    assert content(tmp_path, "cpuset", "cpuset.cpus", version) == "0-1,3"
    assert content(tmp_path, "memory", "memory.max" if version == 2 else "memory.limit_in_bytes", version) == "2097152"
    if version == 1:
        assert content(tmp_path, "cpuset", "cpuset.mems", version) == "0-1"


def test_freezing_waits_until_it_is_so_or_says_what_does_not_happen(
    groups: Groups, tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "at " / "program" / "cgroup.events"
    if version == 1:
        groups.freeze(True)
        assert groups.frozen()
        groups.freeze(False)
        assert not groups.frozen()
        return
    monkeypatch.setattr(cgroups, "_FREEZE_LIMIT_S", 0.0)
    events.write_text("populated 1\nfrozen 0\n")
    with pytest.raises(TimeoutError, match="it does not freeze"):
        groups.freeze(True)
    assert content(tmp_path, "", "cgroup.freeze", version) == "1"
    events.write_text("populated 1\nfrozen 1\n")
    groups.freeze(True)
    with pytest.raises(TimeoutError, match="it does not thaw"):
        groups.freeze(False)
    assert content(tmp_path, "", "cgroup.freeze", version) == "0"


def test_what_was_used_and_who_is_inside(groups: Groups, tmp_path: Path, version: int) -> None:
    at = tmp_path / ("at " if version == 2 else "at cpuacct") / "program"
    (at / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (at / "cpuacct.usage").write_text("2500000000\n")
    assert groups.cpu_s() == 2.5
    freezer = tmp_path / ("at " if version == 2 else "at freezer") / "program"
    (freezer / "cgroup.procs").write_text("12\n7\n")
    assert groups.processes() == [12, 7]


@pytest.mark.parametrize(("kills", "lacked"), [(0, False), (1, True)])
def test_the_kernel_tells_whether_memory_was_lacking(
    groups: Groups, tmp_path: Path, version: int, kills: int, lacked: bool
) -> None:
    assert not groups.lacked_memory()  # no such file
    at = tmp_path / ("at " if version == 2 else "at memory") / "program"
    for name in ("memory.events", "memory.oom_control"):
        (at / name).write_text(f"oom 3\noom_kill {kills}\n")
    assert groups.lacked_memory() is lacked


def test_a_group_is_left_over_if_no_process_has_its_number() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert cgroups._names_no_process(Path(f"dovetail-{ended.pid}"))
    assert not cgroups._names_no_process(Path(f"dovetail-{os.getpid()}"))
    assert not cgroups._names_no_process(Path("dovetail-service"))
