"""Programs as processes: with control groups where they can be had, and always without."""

from __future__ import annotations

import fcntl
import marshal
import os
import queue
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from dovetail.core import cgroups
from dovetail.core.service import shim
from dovetail.host.agent import FOLDER
from dovetail.host.live.executors import TOO_MUCH_MEMORY, ExecutorError, Exit, NotNowError, ProgramLaunch, proc
from dovetail.host.live.executors.process import ProcessExecutor
from tests.host.live import PATIENCE_S, end_all, stands_still, until

NAME = f"dovetail-test-{os.getpid()}"
SPIN = "import os\nprint('up', flush=True)\nwhile True: os.getpid()"


class Workshop:
    """An executor, its ends, and launches in a folder of their own."""

    def __init__(self, folder: Path, groups: bool) -> None:
        self.folder, self.groups = folder, groups
        self.ends: queue.Queue[tuple[str, Exit]] = queue.Queue()
        self._made: list[ProcessExecutor] = []
        self.executor = self.another()

    def another(self) -> ProcessExecutor:
        made = ProcessExecutor(lambda run, end: self.ends.put((run, end)), name=NAME, groups=self.groups)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Leave nothing behind."""
        end_all(self.folder, NAME if self.groups else "")
        for executor in self._made:
            if not executor.closed:
                executor.close()

    def launch(self, run: str, *command: str, cpus: tuple[int, ...] | None = None) -> ProgramLaunch:
        return ProgramLaunch(
            run=run,
            command=command,
            cpus=cpus or (min(os.sched_getaffinity(0)),),
            folder=str(self.folder / run),
            log=str(self.folder / f"{run}.log"),
            cwd=str(self.folder),
            env=dict(os.environ),
        )

    def start(self, run: str, *command: str, cpus: tuple[int, ...] | None = None) -> ProgramLaunch:
        launch = self.launch(run, *command, cpus=cpus)
        self.executor.start(launch)
        return launch

    def end(self) -> Exit:
        return self.ends.get(timeout=PATIENCE_S)[1]

    def log(self, run: str) -> str:
        return (self.folder / f"{run}.log").read_text()


@pytest.fixture(params=[True, False], ids=["groups", "signals"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    if request.param:
        parents = cgroups.find_parents(NAME)
        if parents is None:
            pytest.skip("control groups cannot be made here")
    shop = Workshop(tmp_path, request.param)
    yield shop
    shop.close()


def test_a_program_runs_in_its_folder_and_its_end_is_told(shop: Workshop) -> None:
    launch = shop.start("a", "sh", "-c", "pwd; echo words >&2; exit 3")
    outcome = shop.end()
    assert (outcome.code, outcome.signal) == (3, None)
    assert shop.log("a").split() == [str(shop.folder), "words"]
    shop.executor.clean(launch)


@pytest.mark.parametrize(
    ("command", "cwd", "why"),
    [
        (("no-such-program",), None, "cannot run no-such-program: No such file"),
        (("true",), "/no/such/folder", "cannot enter its folder /no/such/folder"),
        (("no" + "\N{GREEK SMALL LETTER ALPHA}" * 300,), None, "cannot run no\N{GREEK SMALL LETTER ALPHA}"),
        (("yes" + "\N{GREEK SMALL LETTER ALPHA}" * 300,), None, "cannot run yes\N{GREEK SMALL LETTER ALPHA}"),
    ],
)
def test_what_cannot_be_started_says_why(shop: Workshop, command: tuple[str, ...], cwd: str | None, why: str) -> None:
    launch = shop.launch("a", *command)
    shop.executor.start(msgspec.structs.replace(launch, cwd=cwd) if cwd else launch)
    outcome = shop.end()
    assert outcome.why.startswith(why)
    assert outcome.code is None


def test_a_program_ignores_no_signal_because_its_parent_does(shop: Workshop) -> None:
    shop.start("a", "grep", "SigIgn", "/proc/self/status")
    assert shop.end().good
    ignored = int(shop.log("a").split()[1], 16)
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1] == []


def test_the_parent_of_a_program_holds_nothing_that_the_daemon_writes_to(shop: Workshop) -> None:
    launch = shop.start("a", "sleep", "1000")
    with open(f"{launch.folder}/claim", "rb") as file:
        parent = msgspec.json.decode(file.read())["pid"]
    held = [os.readlink(f"/proc/{parent}/fd/{number}") for number in (0, 1, 2)]
    assert held[::2] == [os.devnull] * 2
    assert held[1] not in [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
    assert held[1].startswith("pipe:")  # its own line to the executor


def test_who_need_not_wait_is_told_when_it_runs_and_then_of_its_end(shop: Workshop) -> None:
    told: queue.Queue[object] = queue.Queue()
    shop.executor._ended = lambda run, end: told.put(end.code)
    for run in ("a", "b"):
        assert shop.executor.start_soon(shop.launch(run, "sh", "-c", "echo once; exit 3"), told.put)
        assert [told.get(timeout=PATIENCE_S) for _ in range(2)] == [True, 3]
        assert shop.log(run) == "once\n"


def test_who_need_not_wait_is_told_if_nobody_can_start_it(shop: Workshop) -> None:
    shop.start("a", "true")
    assert shop.end().good
    spawner = shop.executor._spawner._process
    assert spawner is not None
    spawner.send_signal(signal.SIGSTOP)
    told: queue.Queue[bool] = queue.Queue()
    launch = shop.launch("b", "sh", "-c", "echo once")
    shop.executor.start_soon(launch, told.put)
    shop.executor.replace_stuck()
    assert told.empty()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.host.live.executors.spawner._STUCK_LIMIT_S", 0.0)
        shop.executor.replace_stuck()
    assert told.get(timeout=PATIENCE_S) is False

    def starts() -> bool:
        try:
            shop.executor.start(launch)
        except NotNowError:  # who is asked may still be the one that was killed
            return False
        return True

    until(starts)
    assert shop.end().good
    assert shop.log("b") == "once\n"


def test_the_groups_of_one_that_has_ended_are_anothers(shop: Workshop) -> None:
    """With its own processors, and counted from nothing; but not if they limited or froze somebody."""
    if "cpuset" not in (shop.executor._parents or {}):
        pytest.skip("without control groups of version 1")
    cpus = sorted(os.sched_getaffinity(0))
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    first = shop.start("a", sys.executable, "-c", busy, cpus=tuple(cpus))
    assert shop.end().good
    (vacant,) = shop.executor._vacant
    shop.executor.clean(first)
    assert vacant.exist()
    vacant.freeze(True)  # a pause that comes too late
    second = shop.start("b", "sleep", "1000", cpus=(cpus[-1],))
    groups = shop.executor._runs["b"].groups
    assert groups is not None
    assert shop.executor.find(second).state == "running"
    assert shop.executor.find(second).cpus == {cpus[-1]}
    with pytest.raises(FileNotFoundError):  # whoever still means the first one does nothing to the second
        vacant.set_cpus(cpus)
    with pytest.raises(FileNotFoundError):
        vacant.freeze(True)
    used = shop.executor.usage("b")
    assert used is not None
    assert used.cpu_s < 0.2
    assert len(groups.processes()) == 1
    shop.executor.pause("b")
    shop.executor.stop("b", 0.0)
    shop.end()
    assert shop.executor._vacant == []
    shop.executor.clean(second)
    assert not groups.exist()


def test_who_starts_programs_may_be_killed_and_they_run_on(shop: Workshop) -> None:
    os.mkfifo(shop.folder / "go")
    shop.start("a", "sh", "-c", "read line < go; exit 3")
    spawner = shop.executor._spawner._process
    assert spawner is not None
    spawner.kill()
    spawner.wait()
    shop.start("b", "true")
    assert shop.ends.get(timeout=PATIENCE_S)[0] == "b"
    (shop.folder / "go").write_text("\n")
    assert shop.end().code == 3


def test_who_starts_programs_may_be_killed_each_time_it_is_begun(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not begun has not failed: it is tried again."""

    def killed() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        dead.append(ours)
        return ours

    dead: list[socket.socket] = []
    launch = shop.launch("a", "sh", "-c", "echo once")
    with monkeypatch.context() as patch:
        patch.setattr(shop.executor._spawner, "_begin", killed)
        with pytest.raises(NotNowError, match="a is not started yet: what starts programs has ended"):
            shop.executor.start(launch)
    for each in dead:
        each.close()
    shop.executor.start(launch)
    assert shop.end().good
    assert shop.log("a") == "once\n"


def test_who_starts_programs_may_be_killed_before_it_has_read_what_it_is_asked(shop: Workshop) -> None:
    shop.start("a", "true")
    assert shop.end().good
    spawner, line = shop.executor._spawner._process, shop.executor._spawner._line
    assert spawner is not None
    assert line is not None
    _stop(spawner.pid)
    launch = shop.launch("b", "sh", "-c", "echo once")
    with ThreadPoolExecutor() as pool:
        started = pool.submit(shop.executor.start, launch)
        until(lambda: _unread(line))
        spawner.kill()
        with pytest.raises(NotNowError, match="b is not started yet"):
            started.result()
    shop.executor.start(launch)
    assert shop.end().good
    assert shop.log("b") == "once\n"


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (process := proc.read(pid)) is not None and process.state == "T")


def _unread(line: socket.socket) -> bool:
    """Whether something was sent there that nobody has read."""
    return fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4)) != bytes(4)


def test_who_starts_programs_may_be_stopped_and_is_replaced(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(shop.folder / "go")
    shop.start("a", "sh", "-c", "read line < go; exit 3")
    spawner = shop.executor._spawner._process
    assert spawner is not None
    _stop(spawner.pid)
    launch = shop.launch("b", "true")
    with monkeypatch.context() as patch:
        patch.setattr("dovetail.host.live.executors.spawner._STUCK_LIMIT_S", 0.01)
        with pytest.raises(NotNowError, match="b is not started yet"):
            shop.executor.start(launch)
    shop.executor.start(launch)
    assert shop.ends.get(timeout=PATIENCE_S)[0] == "b"
    (shop.folder / "go").write_text("\n")
    assert shop.end().code == 3


def test_who_starts_programs_may_be_stopped_while_many_are_asked_for(shop: Workshop) -> None:
    """More than its line holds: nobody waits for that, and who was not heard is asked for again."""
    shop.start("a", "true")
    assert shop.end().good
    spawner = shop.executor._spawner._process
    assert spawner is not None
    _stop(spawner.pid)
    told: queue.Queue[bool] = queue.Queue()
    env = dict(os.environ) | {"MUCH": "x" * 8000}
    launches = [msgspec.structs.replace(shop.launch(f"b{n}", "sh", "-c", "echo once"), env=env) for n in range(40)]

    def ask() -> int:
        begun = 0
        for launch in launches:
            with suppress(NotNowError):
                begun += shop.executor.start_soon(launch, told.put)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dovetail.host.live.executors.spawner._STUCK_LIMIT_S", 0.0)
            shop.executor.replace_stuck()
        return begun

    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        try:
            begun = asked.result(timeout=PATIENCE_S)
        finally:
            spawner.kill()  # so that nobody waits for it, whatever has come
    assert 0 < begun < len(launches)
    assert [told.get(timeout=PATIENCE_S) for _ in range(begun)] == [False] * begun
    spawner.wait()
    for launch in launches:
        shop.executor.start(launch)
    assert all(shop.end().good for _ in launches)
    assert {shop.log(launch.run) for launch in launches} == {"once\n"}


def test_who_can_wait_for_room_in_the_line_is_started_as_soon_as_there_is_some(shop: Workshop) -> None:
    shop.start("a", "true")
    assert shop.end().good
    spawner = shop.executor._spawner._process
    assert spawner is not None
    _stop(spawner.pid)
    told: queue.Queue[bool] = queue.Queue()
    env = dict(os.environ) | {"MUCH": "x" * 8000}
    begun, is_full = 0, False
    while not is_full:
        launch = msgspec.structs.replace(shop.launch(f"b{begun}", "true"), env=env)
        try:
            begun += shop.executor.start_soon(launch, told.put)
        except NotNowError:
            is_full = True
    with ThreadPoolExecutor() as pool:
        started = pool.submit(shop.executor.start, launch)
        spawner.send_signal(signal.SIGCONT)
        started.result(timeout=PATIENCE_S)
    assert [told.get(timeout=PATIENCE_S) for _ in range(begun)] == [True] * begun
    assert all(shop.end().good for _ in range(begun + 1))


def test_what_a_parent_says_is_whole_though_an_earlier_one_said_more(tmp_path: Path) -> None:
    """In a file that was another's, too."""
    for name in shim.KEPT:
        (tmp_path / f"{name}{shim.SPARE}").write_bytes(b"x" * 5000)
    kept = shim.begin(str(tmp_path))
    for each in kept:
        each.say(b'{"code": 0}')
        os.close(each.file)
    assert msgspec.json.decode((tmp_path / shim.CLAIM).read_bytes())["pid"] == os.getpid()
    for name in (shim.PROGRAM, shim.EXIT):
        assert msgspec.json.decode((tmp_path / name).read_bytes()) == {"code": 0}


def test_a_parent_that_cannot_begin_says_why(shop: Workshop) -> None:
    shop.groups = False  # which would find that out sooner
    launch = shop.launch("a", "true", cpus=(4095,))
    with pytest.raises(ExecutorError, match=r"cannot start a: OSError: .*Invalid argument"):
        shop.another().start(launch)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("pages", range(6))
def test_a_program_for_which_the_disk_has_no_room_is_not_begun(shop: Workshop, pages: int) -> None:
    disk = shop.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        launch = msgspec.structs.replace(shop.launch("a", "sh", "-c", "echo once"), folder=str(disk / "a"))
        filler = disk / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True)
        os.truncate(filler, filler.stat().st_size - 4096 * pages)
        try:
            shop.executor.start(launch)
        except (OSError, NotNowError):
            assert not Path(launch.log).exists()
            assert set(os.listdir(disk / "a")) <= {"launch", "launch.part"}
            filler.unlink()
            shop.executor.start(launch)
        assert shop.end().code == 0
        assert shop.log("a") == "once\n"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_an_attempt_is_started_once(shop: Workshop) -> None:
    launch = shop.start("a", "sh", "-c", "echo once; sleep 0.2")
    shop.executor.start(launch)
    assert shop.end().good
    shop.executor.start(launch)  # its end is told again, but nothing runs
    assert shop.end().good
    assert shop.log("a") == "once\n"


def leave_spares(folder: Path) -> dict[str, int]:
    """As a program that has ended leaves its folder to another: the files by name."""
    found = {}
    for name in shim.KEPT:
        spare = folder / (name + shim.SPARE)
        spare.write_bytes(b'{"code": 7, "pid": 1, "start": 1, "boot": "another"}'.ljust(1024))
        found[name] = spare.stat().st_ino
    return found


def test_the_files_of_one_that_has_ended_are_anothers(shop: Workshop) -> None:
    launch = shop.launch("a", "sh", "-c", "exit 3")
    folder = Path(launch.folder)
    folder.mkdir()
    spares = leave_spares(folder)
    assert shop.executor.find(launch).state == "absent"
    shop.executor.start(launch)
    assert shop.end().code == 3
    assert {name: (folder / name).stat().st_ino for name in shim.KEPT} == spares
    assert sorted(os.listdir(folder)) == sorted(shim.KEPT)
    assert msgspec.json.decode((folder / "claim").read_bytes())["boot"] == shim.boot_id()
    found = shop.executor.find(launch)
    assert found.exit is not None
    assert found.exit.code == 3


def test_an_environment_that_no_packet_holds_goes_by_a_file(shop: Workshop) -> None:
    launch = shop.launch("a", "sh", "-c", "echo ${#LONG}")
    many = {f"LONG{i}": "x" * 60_000 for i in range(4)}
    shop.executor.start(msgspec.structs.replace(launch, env=launch.env | many | {"LONG": "x" * 100_000}))
    assert shop.end().good
    assert shop.log("a") == "100000\n"


@pytest.mark.parametrize("spares", [False, True])
def test_two_shims_for_one_attempt_run_it_once(shop: Workshop, spares: bool) -> None:
    """As when a daemon was killed right after it started one, and the next does not see it yet."""
    launch = shop.launch("a", "sh", "-c", "echo once")
    folder = Path(launch.folder)
    folder.mkdir()
    if spares:
        leave_spares(folder)
    (folder / "launch").write_bytes(marshal.dumps(msgspec.to_builtins(launch) | {"groups": []}))
    words = [sys.executable, "-I", "-S", shim.__file__, str(folder)]
    shims = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [child.wait(PATIENCE_S) for child in shims] == [0] * 8
    assert shop.log("a") == "once\n"
    assert shop.executor.find(launch).exit == msgspec.json.decode((folder / "exit.json").read_bytes(), type=Exit)


def test_a_paused_program_uses_no_processor_and_is_not_dead(shop: Workshop) -> None:
    launch = shop.start("a", sys.executable, "-c", SPIN)
    until(lambda: shop.log("a") == "up\n")
    shop.executor.pause("a")
    until(lambda: stands_still(lambda: shop.executor.usage("a")))  # the kernel may still count its last moment
    before = shop.executor.usage("a")
    assert before is not None
    assert before.memory_mib > 1
    assert shop.executor.find(launch).state == "paused"
    assert shop.ends.empty()
    shop.executor.resume("a")
    until(lambda: (now := shop.executor.usage("a")) is not None and now.cpu_s > before.cpu_s)
    shop.executor.stop("a", 5)
    assert shop.end().signal == signal.SIGTERM


def test_a_child_that_escapes_one_look_is_stopped_by_the_next() -> None:
    """Born between the listing and its parent's stop: the first look finds its parent stopped, and not the child."""
    looks = iter(["1R", "1T", "1T 2R", "1T 2T 3S", "1T 2T 3T", "1T 2T 3T", "never"])
    seen, above = [], 1 << 22  # no process has a number as large

    def members() -> list[proc.Process]:
        seen.append(next(looks))
        return [proc.Process(above + int(word[0]), word[1], 0, 0.0, 0.0) for word in seen[-1].split()]

    proc.stop(members)
    assert seen[-1] == "1T 2T 3T"
    assert len(seen) == 6


def test_a_paused_program_can_be_stopped(shop: Workshop) -> None:
    shop.start("a", "sleep", "1000")
    shop.executor.pause("a")
    shop.executor.stop("a", 0.1)
    assert shop.end().signal == signal.SIGKILL


def test_all_threads_and_children_move(shop: Workshop) -> None:
    both = tuple(sorted(os.sched_getaffinity(0)))
    if len(both) < 2:
        pytest.skip("there is one processor only")
    threads = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    child = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint('up', flush=True)"
    launch = shop.start("a", sys.executable, "-c", threads + child, cpus=both)
    until(lambda: shop.log("a") == "up\n")
    for wanted in (both[:1], both, both[1:2]):
        shop.executor.resize("a", wanted)
        assert shop.executor.find(launch).cpus == set(wanted)
        for process in shop.executor._runs["a"].members():
            for thread in proc.threads(process.pid):
                assert os.sched_getaffinity(thread) == set(wanted)
    shop.executor.stop("a", 0)
    shop.end()


def test_one_that_ignores_signals_is_killed_with_all_it_left_behind(shop: Workshop) -> None:
    shop.start("a", "sh", "-c", "trap '' TERM; setsid sleep 1000 & echo $!; while true; do sleep 1000; done")
    until(lambda: bool(shop.log("a")))
    left_behind = int(shop.log("a"))
    shop.executor.stop("a", 0.2)
    assert shop.end().signal == signal.SIGKILL
    assert proc.read(left_behind) is None


def test_what_a_program_leaves_behind_ends_with_it(shop: Workshop) -> None:
    shop.start("a", "sh", "-c", "setsid sleep 1000 & echo $!")
    assert shop.end().good
    assert proc.read(int(shop.log("a"))) is None


def test_another_daemon_finds_what_the_first_started(shop: Workshop) -> None:
    running = shop.start("running", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 7")
    paused = shop.start("paused", "sleep", "1000")
    ended = shop.start("ended", "sh", "-c", "exit 5")
    shop.executor.pause("paused")
    assert shop.end().code == 5
    second = shop.another()
    assert second.find(paused).state == "paused"
    assert second.find(ended).exit == shop.executor.find(ended).exit
    assert second.find(shop.launch("never", "true")).state == "absent"
    assert second.find(running).state == "running"
    (shop.folder / "go").touch()
    until(lambda: second.find(running).state == "ended")
    found = second.find(running).exit
    assert found is not None
    assert found.code == 7
    second.resume("paused")
    second.stop("paused", 5)
    until(lambda: second.find(paused).state == "ended")


def test_the_end_survives_a_daemon_that_is_gone(shop: Workshop) -> None:
    launch = shop.start("a", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 9")
    shop.executor.close()
    (shop.folder / "go").touch()
    shop.executor = shop.another()
    until(lambda: shop.executor.find(launch).state == "ended")
    found = shop.executor.find(launch).exit
    assert found is not None
    assert found.code == 9


def test_a_killed_shim_leaves_nothing_running(shop: Workshop) -> None:
    launch = shop.start("a", sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)")
    until(lambda: bool(shop.log("a")))
    program = int(shop.log("a"))
    os.kill(shop.executor._runs["a"].shim, signal.SIGKILL)
    outcome = shop.end()
    assert "its parent process was killed" in outcome.why
    until(lambda: (found := proc.read(program)) is None or found.dead)
    assert shop.executor.find(launch).state == "ended"


def test_a_killed_shim_leaves_nobody_running_who_has_left_the_family(shop: Workshop) -> None:
    launch = shop.launch("a", "sh", "-c", "(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000")
    shop.executor.start(msgspec.structs.replace(launch, env=launch.env | {FOLDER: f"{launch.folder}/control"}))
    until(lambda: bool(shop.log("a")))
    left = int(shop.log("a"))
    os.kill(shop.executor._runs["a"].shim, signal.SIGKILL)
    assert "what was left of it was ended" in shop.end().why
    until(lambda: (found := proc.read(left)) is None or found.dead)


def test_what_is_gone_before_it_can_be_killed_is_no_trouble(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for those who end later: whoever waits for ends goes on."""
    shop.start("a", "sleep", "1000")
    kill = os.kill

    def too_late(pid: int, number: int) -> None:
        kill(pid, number)
        raise ProcessLookupError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", too_late)
        kill(shop.executor._runs["a"].shim, signal.SIGKILL)
        assert "its parent process was killed" in shop.end().why
    shop.start("b", "true")
    assert shop.end().good


def test_a_number_used_again_is_not_taken_for_the_program(shop: Workshop) -> None:
    """The claim names a process that lives, but began at another time: it is somebody else's."""
    launch = shop.launch("a", "true")
    Path(launch.folder).mkdir()
    claim = {"pid": os.getpid(), "start": shim.start_time(os.getpid()) + 1, "boot": shim.boot_id()}
    (Path(launch.folder) / "claim").write_bytes(msgspec.json.encode(claim))
    found = shop.executor.find(launch)
    assert found.state == "ended"
    assert found.exit is not None
    assert not found.exit.good


@pytest.mark.parametrize("damage", [b"", b"\0" * 1024, b'{"code": '])
def test_damaged_files_of_an_attempt_are_an_end_and_not_a_daemons(shop: Workshop, damage: bytes) -> None:
    launch = shop.start("a", "sh", "-c", "exit 5")
    assert shop.end().code == 5
    folder, second = Path(launch.folder), shop.another()
    (folder / shim.CLAIM).write_bytes(damage)
    assert second.find(launch).exit == shop.executor.find(launch).exit
    (folder / shim.EXIT).write_bytes(damage)
    found = second.find(launch).exit
    assert found is not None
    assert "how it ended cannot be found out" in found.why


def test_what_cannot_be_read_just_now_is_no_end(shop: Workshop) -> None:
    launch = shop.start("a", "sh", "-c", "exit 5")
    assert shop.end().code == 5
    (Path(launch.folder) / shim.EXIT).unlink()
    (Path(launch.folder) / shim.EXIT).mkdir()
    with pytest.raises(IsADirectoryError):
        shop.another().find(launch)


@pytest.mark.parametrize("damaged", [(shim.CLAIM,), (shim.CLAIM, shim.PROGRAM)], ids=["claim", "both"])
def test_one_whose_parent_cannot_be_told_is_ended_with_all_that_is_left_of_it(
    shop: Workshop, damaged: Sequence[str]
) -> None:
    launch = shop.launch("a", "sh", "-c", "echo $$; exec sleep 1000")
    shop.executor.start(msgspec.structs.replace(launch, env=launch.env | {FOLDER: f"{launch.folder}/control"}))
    until(lambda: bool(shop.log("a")))
    for name in damaged:
        (Path(launch.folder) / name).write_bytes(b"")
    found = shop.another().find(msgspec.structs.replace(launch, env={FOLDER: f"{launch.folder}/control"}))
    assert found.exit is not None
    assert not found.exit.good
    until(lambda: (program := proc.read(int(shop.log("a")))) is None or program.dead)
    shop.end()


def test_a_restarted_machine_is_told(shop: Workshop) -> None:
    launch = shop.launch("a", "true")
    Path(launch.folder).mkdir()
    claim = {"pid": os.getpid(), "start": shim.start_time(os.getpid()), "boot": "another"}
    (Path(launch.folder) / "claim").write_bytes(msgspec.json.encode(claim))
    found = shop.executor.find(launch)
    assert found.exit == Exit(why="the machine was restarted while it ran")


def test_a_quota_a_nice_value_and_a_weight_are_kept_where_they_can_be(shop: Workshop) -> None:
    parents = (cgroups.find_parents(NAME) if shop.groups else None) or {}
    quota, weighs = bool(parents) and cgroups.can_limit(parents, "cpu"), cgroups.can_limit(parents, "io")
    assert (shop.executor.lacks(["nice", "cpu_quota"]) == "") is quota
    assert (shop.executor.lacks(["nice", "io_weight"]) == "") is weighs
    launch = shop.launch("a", sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
    limits = {"cpu_quota": 0.5 if quota else None, "io_weight": 200 if weighs else None}
    launch = msgspec.structs.replace(launch, nice=7, **limits)
    shop.executor.start(launch)
    assert shop.end().good
    assert shop.log("a") == "7\n"
    group = parents.get("cpu", parents.get("", Path())) / "a"
    if quota:
        files = ["cpu.max"] if "" in parents else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        most, period = (int(word) for name in files for word in (group / name).read_text().split())
        assert most == 0.5 * period
    shop.executor.clean(launch)
    assert not quota or not group.exists()


def test_the_time_of_processes_that_have_ended_counts(shop: Workshop) -> None:
    """Of those that the program waited for, and of one that it left to its parent."""
    (shop.folder / "busy.py").write_text("import time\nwhile time.process_time() < 0.2: pass")
    busy = f"{sys.executable} busy.py"
    shop.start("a", "sh", "-c", f"{busy}; (setsid {busy} &); exec sleep 1000")
    until(lambda: (used := shop.executor.usage("a")) is not None and used.cpu_s >= 0.38 and len(used.processes) == 1)
    shop.executor.stop("a", 0.0)
    shop.end()


def test_what_does_not_run_cannot_be_changed(shop: Workshop) -> None:
    with pytest.raises(ExecutorError, match="a does not run"):
        shop.executor.pause("a")


def test_a_program_has_the_memory_that_it_declared_and_no_more(shop: Workshop) -> None:
    """Where the kernel limits it; elsewhere it is counted only, and the program has what it takes."""
    parents = (cgroups.find_parents(NAME) if shop.groups else None) or {}
    limited = "memory" in parents or (parents.get("", Path("/")) / "memory.max").exists()
    for run, take_mib, good in (("small", 1, True), ("large", 400, not limited)):
        launch = shop.launch(run, sys.executable, "-c", f"print(len(b'x' * ({take_mib} << 20)))")
        shop.executor.start(msgspec.structs.replace(launch, memory_mib=100))
        end = shop.end()
        assert end.good is good
        assert end.why == ("" if good else TOO_MUCH_MEMORY)
        shop.executor.clean(launch)
