"""The control folder: a program reaches its target at a step, and says so."""

from __future__ import annotations

import os
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dovetail.host import agent
from dovetail.host.agent import SOCKET_FILE, TARGET_FILE, Agent
from dovetail.host.live.control import Control, CoreTarget
from tests.host.live import until


@pytest.fixture
def control() -> Iterator[Control]:
    control = Control()
    yield control
    control.close_all()


Make = Callable[..., Agent]


@pytest.fixture
def make() -> Iterator[Make]:
    """Agents of program a."""
    made: list[Agent] = []

    def make(folder: Path, *adapters: Callable[[int], None]) -> Agent:
        made.append(Agent(str(folder), "a", adapters))
        return made[-1]

    yield make
    for program in made:
        program.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Longer than a socket's address may be."""
    return tmp_path / ("long" * 40) / "control"


def test_outside_of_a_run_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(agent.FOLDER, raising=False)
    monkeypatch.setattr(agent, "_agent", None)
    assert agent.step() is None


def test_a_target_is_taken_up_at_the_next_step_and_acknowledged(control: Control, folder: Path, make: Make) -> None:
    control.open("a", str(folder.parent))
    applied: list[int] = []
    program = make(folder, applied.append)
    control.tell("a", [0, 1])
    assert program.step() == 2
    until(lambda: (line := control.line("a")) is not None and line.hello is not None)
    gen = control.tell("a", [1])
    assert applied == [2], "nothing changes between steps"
    waiter = threading.Thread(target=lambda: reached.append(control.wait("a", gen, 60)))
    reached: list[bool] = []
    waiter.start()
    assert program.step() == 1
    waiter.join(60)
    assert reached == [True]
    assert applied == [2, 1]
    line = control.line("a")
    assert line is not None
    assert (line.threads, line.acknowledged) == (1, gen)
    assert line.answered_s is not None


def test_without_an_agent_nobody_waits(control: Control, folder: Path) -> None:
    control.open("a", str(folder.parent))
    assert not control.wait("a", control.tell("a", [0]), 1000)


def test_one_that_does_not_step_holds_nobody_up_for_long(control: Control, folder: Path, make: Make) -> None:
    control.open("a", str(folder.parent))
    program = make(folder)
    program.step()
    until(lambda: (line := control.line("a")) is not None and line.hello is not None)
    assert not control.wait("a", control.tell("a", [0]), 0.05)


def test_the_folder_of_one_that_has_ended_is_anothers(control: Control, folder: Path, make: Make) -> None:
    first, second = folder.parent, folder.parent.with_name("second")
    control.open("a", str(first))
    control.tell("a", [0, 1])
    make(folder).step()
    until(lambda: (line := control.line("a")) is not None and line.hello is not None)
    (first / "claim").write_text("who ran it")
    (first / "words").write_text("what it left")
    control.close("a", reuse=True)
    assert not first.exists()
    control.open("b", str(second))
    gen = control.tell("b", [1])
    assert sorted(path.name for path in second.iterdir()) == ["claim.spare", "control"]  # a file that says nothing
    line = control.line("b")
    assert line is not None
    assert (line.hello, line.acknowledged) == (None, 0)
    assert make(second / "control").step() == 1
    until(lambda: line.acknowledged == gen)
    (second / "control" / "its own").write_text("left behind")
    control.close("b", reuse=True)
    control.open("c", str(first))
    assert not (first / "control" / "its own").exists()


def test_who_is_to_be_told_what_the_folder_says_is_told_without_writing(
    control: Control, folder: Path, make: Make
) -> None:
    first, second, third = folder.parent, folder.parent.with_name("second"), folder.parent.with_name("third")
    for run, home, cpus in (("a", first, [0, 1]), ("b", second, [1])):
        control.open(run, str(home), cpus)
        control.tell(run, cpus)
    target = (second / "control" / "target.json").stat().st_ino
    control.close("b", reuse=True)
    control.close("a", reuse=True)
    assert control.has_spare([1])
    control.open("c", str(third), [1])  # the folder of the one that had the same processors, though not the last
    gen = control.tell("c", [1])
    assert (third / "control" / "target.json").stat().st_ino == target
    line = control.line("c")
    assert line is not None
    assert make(third / "control").step() == 1
    until(lambda: line.acknowledged == gen)
    assert control.tell("c", [1]) == gen + 1  # its own target is another matter
    assert not control.has_spare([1])


def test_a_folder_whose_target_somebody_else_has_written_is_not_used_again(control: Control, folder: Path) -> None:
    control.open("a", str(folder.parent), [1])
    control.tell("a", [1])
    (folder / "target.json").write_text('{"gen":7,"cores":8,"cpus":[1],"intra":1}')
    control.close("a", reuse=True)
    assert not control.has_spare([1])
    assert list(folder.parent.parent.iterdir()) == []


def test_a_restarted_daemon_counts_on_and_hears_what_was_reached(folder: Path, make: Make) -> None:
    first, second = Control(), Control()
    try:
        first.open("a", str(folder.parent))
        program = make(folder)
        gen = first.tell("a", [0, 1])
        program.step()
        first.close_all()
        second.open("a", str(folder.parent))
        newer = second.tell("a", [0])
        assert newer > gen

        def reached() -> bool:
            program._send({"progress": {}})  # so that it finds out that the line is broken
            program.step()
            line = second.line("a")
            return line is not None and line.acknowledged == newer

        until(reached)
    finally:
        second.close_all()


def test_numpy_is_left_alone_where_it_began_with_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes them takes longer to load than many a program to start."""
    asked: list[int] = []
    limits = types.SimpleNamespace(threadpool_limits=asked.append)
    monkeypatch.setattr("dovetail.host.agent.importlib.import_module", lambda name: limits)
    monkeypatch.setitem(sys.modules, "numpy", types.ModuleType("numpy"))
    monkeypatch.delitem(sys.modules, "threadpoolctl", raising=False)
    for name in agent.NUMPY_THREADS:
        monkeypatch.setenv(name, "2")
    agent.set_numpy(2)
    assert asked == []
    agent.set_numpy(1)
    monkeypatch.setitem(sys.modules, "threadpoolctl", types.ModuleType("threadpoolctl"))
    agent.set_numpy(2)
    assert asked == [1, 2]


def test_an_old_target_is_not_taken_up_again(folder: Path, make: Make) -> None:
    folder.mkdir(parents=True)
    applied: list[int] = []
    program = make(folder, applied.append)
    for gen, cores in ((2, 2), (1, 1), (2, 4)):
        part = folder / "part"
        part.write_bytes(msgspec.json.encode(CoreTarget(gen, cores, tuple(range(cores)))))
        part.rename(folder / TARGET_FILE)
        program.step()
    assert applied == [2]


def test_nonsense_on_the_socket_drops_the_line_only(control: Control, folder: Path, make: Make) -> None:
    control.open("a", str(folder.parent))
    with socket.socket(socket.AF_UNIX) as line:
        agent.connect(line, str(folder))
        line.sendall(b"nonsense\n")
        line.settimeout(60)
        assert line.recv(100) == b""
    program = make(folder)
    program.step()
    until(lambda: (line := control.line("a")) is not None and line.hello is not None)


def test_the_target_file_says_it_all(control: Control, folder: Path) -> None:
    control.open("a", str(folder.parent))
    control.tell("a", [0, 3], within_s=5)
    target = msgspec.json.decode((folder / TARGET_FILE).read_bytes(), type=CoreTarget)
    assert (target.gen, target.cores, target.cpus, target.intra) == (1, 2, (0, 3), 2)
    assert target.deadline is not None
    assert os.stat(folder / SOCKET_FILE).st_mode & 0o777 == 0o600


def test_keras_counts_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the interface of Keras, which is not installed everywhere."""
    keras = types.ModuleType("keras")
    keras.callbacks = types.SimpleNamespace(Callback=object)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", keras)
    counted = Agent()
    monkeypatch.setattr(agent, "_agent", counted)
    counted._folder = "/no/such/folder"
    callback = agent.keras_callback()
    callback.on_train_batch_end(0, {"loss": 1.0})
    callback.on_train_batch_end(1)
    assert counted.steps == 2
