"""Control groups as files of both versions, in a folder in the place of the kernel's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dovetail.core import cgroups
from dovetail.core.cgroups import Groups
from dovetail.core.errors import InputError

CONTROLLERS = ("cpuset", "freezer", "memory")


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
    entrance = "cgroup.procs" if version == 2 else "tasks"
    assert entrances == tuple(str(parent / "program" / entrance) for parent in parents.values())
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


def test_nobody_is_given_groups_while_somebody_binds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has opened the file before they get another name would bind the next program."""
    parents = {name: tmp_path / name for name in CONTROLLERS[:2]}
    for parent in parents.values():
        parent.mkdir()
        (parent / "cpuset.mems").write_text("0")
    groups = Groups(parents, "first")
    groups.make([0, 1])
    write = cgroups._write
    refused: list[BaseException] = []

    def written_late(path: str, text: str) -> None:
        monkeypatch.setattr(cgroups, "_write", write)
        with open(path, "w") as file:
            with pytest.raises(OSError, match="first") as error:
                groups.renewed("second", [0, 1])
            refused.append(error.value)
            file.write(text)

    monkeypatch.setattr(cgroups, "_write", written_late)
    groups.set_cpus([3])
    assert len(refused) == 1
    assert groups.cpus() == {3}
    second, _ = groups.renewed("second", [0, 1])
    assert second.cpus() == {0, 1}
    with pytest.raises(FileNotFoundError):
        groups.set_cpus([3])


def test_processors_that_could_not_be_set_are_set_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {name: tmp_path / name for name in CONTROLLERS[:2]}
    for parent in parents.values():
        parent.mkdir()
        (parent / "cpuset.mems").write_text("0")
    groups = Groups(parents, "first")
    groups.make([0, 1])

    def refused(path: str, text: str) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "_write", refused)
        with pytest.raises(PermissionError):
            groups.set_cpus([3])
    assert groups.renewed("second", [3])[0].cpus() == {3}


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


def test_who_is_inside(groups: Groups, tmp_path: Path, version: int) -> None:
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


# --- where groups are ------------------------------------------------------------------------------

V1 = {name: Path("ours") for name in ("cpuset", "freezer")}


def test_a_process_has_a_group_for_each_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("12:cpuset:/a/b\n3:cpu,cpuacct:/c\n0::/d:e\n")
    found = cgroups.own_groups(f"..{tmp_path}")
    assert found == {"cpuset": Path("a/b"), "cpu": Path("c"), "cpuacct": Path("c"), "": Path("d:e")}


@pytest.mark.parametrize("own", [{"": Path("above/mine")}, {**V1, "cpuacct": Path("ours"), "": Path("above")}])
def test_the_groups_of_a_process_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Path]
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "own_groups", lambda pid: own)
    at = tmp_path / ("cpuacct/ours" if "cpuacct" in own else "above/mine")
    at.mkdir(parents=True)
    (at / "cpu.stat").write_text("usage_usec 1500000\n")
    (at / "cpuacct.usage").write_text("1500000000\n")
    assert cgroups.groups_of(7).cpu_s() == 1.5


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("memory", [True, False])
def test_folders_of_version_1_take_over_the_processors_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    tree(tmp_path, {f"{name}/ours/dovetail/cgroup.procs": "" for name in V1})
    tree(tmp_path, {"cpuset/ours/cpuset.cpus": "0-3", "cpuset/ours/cpuset.mems": "0", "memory/ours/x": ""})
    monkeypatch.setattr(cgroups, "own_groups", lambda: V1 | ({"memory": Path("ours")} if memory else {}))
    found = cgroups.find_parents("dovetail", tmp_path)
    expected = [*V1, "memory"] if memory else [*V1]
    assert found == {name: tmp_path / name / "ours/dovetail" for name in expected}
    assert (tmp_path / "cpuset/ours/dovetail/cpuset.cpus").read_text() == "0-3"
    assert (tmp_path / "cpuset/ours/dovetail/cpuset.mems").read_text() == "0"
    assert memory == (tmp_path / "memory/ours/dovetail").exists()
    (tmp_path / "freezer/ours/dovetail/cgroup.procs").unlink()  # nothing may be put there
    assert cgroups.find_parents("dovetail", tmp_path) is None


@pytest.mark.parametrize("delegated", [True, False])
def test_folders_of_version_2_stand_beside_a_group_that_holds_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delegated: bool
) -> None:
    own = "service/daemon" if delegated else "service"
    tree(tmp_path, {"service/cgroup.subtree_control": "cpu cpuset", "service/cgroup.procs": ""})
    tree(tmp_path, {"service/dovetail/cgroup.procs": "", "service/dovetail/cgroup.subtree_control": ""})
    if delegated:
        tree(tmp_path, {f"{own}/cgroup.type": "domain"})
    monkeypatch.setattr(cgroups, "own_groups", lambda: {"": Path(own)})
    assert cgroups.find_parents("dovetail", tmp_path) == {"": tmp_path / "service/dovetail"}
    for group in ("service", "service/dovetail"):
        assert (tmp_path / group / "cgroup.subtree_control").read_text() == "+memory"  # the last that was asked for
        (tmp_path / group / "cgroup.procs").rename(tmp_path / group / "kept")
        assert cgroups.find_parents("dovetail", tmp_path) is None
        (tmp_path / group / "kept").rename(tmp_path / group / "cgroup.procs")
    (tmp_path / "service/cgroup.subtree_control").unlink()
    assert cgroups.find_parents("dovetail", tmp_path) is None


def test_only_groups_of_programs_that_are_gone_are_removed(tmp_path: Path) -> None:
    parents = {name: tmp_path / name for name in ("cpuset", "freezer")}
    for name in ("gone", "kept"):
        for parent in parents.values():
            (parent / name).mkdir(parents=True)
    tree(tmp_path, {"cpuset/busy/process": ""})
    cgroups.remove_empty(parents, {"kept"})
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")) == [
        "cpuset/busy",
        "cpuset/kept",
        "freezer/kept",
    ]
    (tmp_path / "freezer/kept").rmdir()
    cgroups.remove_parents(parents)
    assert [path.name for path in tmp_path.iterdir()] == ["cpuset"]


def test_a_group_is_removed_once_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_FREEZE_LIMIT_S", 0.0)
    groups = Groups({"": tmp_path}, "program")
    groups.remove()  # it is not there
    (tmp_path / "program").mkdir()
    assert groups.exist()
    groups.remove()
    assert not groups.exist()
    tree(tmp_path, {"program/process": ""})
    with pytest.raises(TimeoutError, match="it does not leave its control group within 0 s"):
        groups.remove()


# --- a share of a processor -----------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "quota"), [(0.05, 1000), (0.2, 4000), (3.0, 60000)])
def test_a_share_is_a_quota_of_each_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, cores: float, quota: int
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_FREEZE_LIMIT_S", 0.0)
    monkeypatch.setattr(cgroups, "own_groups", lambda: {"": Path("ours")})
    above = tmp_path / ("cpu" if version == 1 else "ours")
    tree(above, {"cpu.cfs_quota_us": "-1"} if version == 1 else {"cgroup.type": "domain"})
    ended = subprocess.Popen(["true"])
    ended.wait()
    for left in (ended.pid, os.getpid()):
        (above / f"dovetail-{left}").mkdir()
    share = cgroups.CpuShare(4711, cores)
    assert share.group == above / "dovetail-4711"
    if version == 1:
        assert (share.group / "cpu.cfs_period_us").read_text() == "20000"
        assert (share.group / "cpu.cfs_quota_us").read_text() == str(quota)
    else:
        assert (share.group / "cpu.max").read_text() == f"{quota} 20000"
    assert (share.group / "cgroup.procs").read_text() == "4711"
    assert not (above / f"dovetail-{ended.pid}").exists()
    assert (above / f"dovetail-{os.getpid()}").exists()
    share.release()
    assert (above / "cgroup.procs").read_text() == "4711"  # it is set free


@pytest.mark.parametrize("cores", [0.04, 4097.0])
def test_a_share_that_is_none_is_refused(cores: float) -> None:
    with pytest.raises(InputError, match=rf"share: expected cores from 0.05, found {cores:g}"):
        cgroups.CpuShare(4711, cores)


def test_a_share_where_no_group_can_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "nowhere")
    monkeypatch.setattr(cgroups, "own_groups", dict)
    with pytest.raises(InputError, match=r"cannot be shared out here \(.*dovetail-4711: No such file or directory\)"):
        cgroups.CpuShare(4711, 1.0)


@pytest.mark.parametrize("everybodys", [100, 500])
def test_a_weight_is_a_share_of_everybodys(tmp_path: Path, everybodys: int) -> None:
    """Which is 100 for BFQ, and 500 for the scheduler before it."""
    name = {100: "blkio.bfq.weight", 500: "blkio.weight"}[everybodys]
    tree(tmp_path, {"cpuset/cpuset.mems": "0", f"blkio/{name}": str(everybodys)})
    (tmp_path / "freezer").mkdir()
    parents = {each: tmp_path / each for each in ("cpuset", "freezer", "blkio")}
    for io_weight, share in ((100, 1.0), (50, 0.5), (200, 2.0), (1, 10 / everybodys), (10_000, 1000 / everybodys)):
        file = tmp_path / "blkio" / "a" / name
        tree(tmp_path, {f"blkio/a/{name}": str(everybodys)})
        cgroups.Groups(parents, "a").make([0], None, None, io_weight)
        assert int(file.read_text()) == share * everybodys


@pytest.mark.parametrize(
    ("files", "everybodys", "half", "most"),
    [
        (["blkio/a/blkio.bfq.weight"], None, None, None),
        (["blkio/a/blkio.weight"], 500, 250, 1000),
        (["a/io.bfq.weight", "a/io.weight"], 100, 50, 1000),
        (["a/io.weight"], 20, 15, 1000),
    ],
)
def test_an_engine_is_told_the_weight_that_the_kernel_has_then(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    everybodys: int | None,
    half: int | None,
    most: int | None,
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    tree(tmp_path, dict.fromkeys(files, ""))
    assert [cgroups.engine_weight(weight) for weight in (100, 50, 10_000)] == [everybodys, half, most]


def test_a_quota_and_a_weight_in_either_version(tmp_path: Path) -> None:
    tree(tmp_path, {"two/cgroup.subtree_control": "cpuset cpu io", "one/cpuset/cpuset.mems": "0"})
    tree(tmp_path, {"two/a/io.bfq.weight": "100"})
    tree(tmp_path, {"one/blkio/blkio.bfq.weight": "500", "one/blkio/a/blkio.bfq.weight": "500"})
    two = {"": tmp_path / "two"}
    one = {name: tmp_path / "one" / name for name in ("cpuset", "freezer", "cpu", "blkio")}
    for parents in (one, two):
        for folder in parents.values():
            folder.mkdir(exist_ok=True)
        assert [cgroups.can_limit(parents, what) for what in ("cpu", "io")] == [True, True]
        cgroups.Groups(parents, "a").make([0], None, 1.5, 50)
        assert len(cgroups.Groups(parents, "b").make([0])) == len(set(parents) - {"cpu", "blkio"})
    assert (tmp_path / "two/a/cpu.max").read_text() == "30000 20000"
    assert (tmp_path / "two/a/io.weight").read_text() == "default 50"
    assert (tmp_path / "two/a/io.bfq.weight").read_text() == "50"
    assert (tmp_path / "one/cpu/a/cpu.cfs_quota_us").read_text() == "30000"
    assert (tmp_path / "one/blkio/a/blkio.bfq.weight").read_text() == "250"
    assert not (tmp_path / "one/cpu/b").exists()
    assert not cgroups.can_limit({"cpuset": tmp_path}, "cpu")
    assert not cgroups.can_limit({"blkio": tmp_path}, "io")
