"""Devices with a process each: equal results, errors and hooks from there, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError

torch: Any = pytest.importorskip("torch")

from dovetail.dispatch import Device, Dispatcher  # noqa: E402
from dovetail.dispatch.derivatives.batched import Derivatives  # noqa: E402
from dovetail.dispatch.live.packing import Receiver, Sender  # noqa: E402
from dovetail.dispatch.live.processes import ProcessWorker, SharedCursor  # noqa: E402

TWO = [Device("a", where="cpu", threads=1), Device("b", where="cpu", threads=1)]
FUNCTIONS = """
import os, signal, threading, time
import torch

def scaled(batch):
    return {"y": batch["x"] * batch["scale"], "process": torch.full((len(batch["x"]),), os.getpid())}

def picky(x):
    if len(x) > 4:
        raise MemoryError("too many")
    if (x == 13).any():
        raise ValueError("thirteen")
    return x + 1

def deadly(x):
    if (x < 0).any():
        os.kill(os.getpid(), signal.SIGKILL)
    if "doomed" in os.environ:
        note("doomed")
        time.sleep(0.2)  # so that it has a second chunk too
        os.kill(os.getpid(), signal.SIGKILL)
    while "NOTES" in os.environ and not os.path.exists(os.environ["NOTES"]):
        time.sleep(0.01)  # until the other one has begun
    return x + 1

def grows(x):
    return x.repeat(1, 1000)

def told(batch):
    return {"y": batch["x"] * batch["by"].factor}

def typed(batch):
    return type(batch["n"]).__name__

def wordy(batch):
    return {"y": batch["x"] + 1, "words": "w" * 1_000_000, "odd": threading.Lock() if (batch["x"] == 7).any() else None}

class By:
    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return True

def graded(x):
    return x + float(torch.is_grad_enabled())

def doom(device):
    if device.name == "a":
        os.environ["doomed"] = "yes"

def note(device):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{getattr(device, 'name', device)} {os.getpid()}\\n")

def pull(cursor, answers):
    from dovetail.dispatch import Dispatcher
    with Dispatcher(torch.sqrt, "cpu", sizes=5, cache=False) as dispatcher:
        found = list(dispatcher.stream(torch.arange(1000.0), ordered=False, cursor=cursor))
    answers.put([(piece.start, piece.stop, piece.value.tolist()) for piece in found])
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module that the processes can import too."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions_in_processes.py").write_text(FUNCTIONS)
    sys.path.insert(0, str(folder))
    try:
        yield __import__("functions_in_processes")
    finally:
        sys.path.remove(str(folder))


def dispatcher(function: Any, devices: Any = TWO, **options: Any) -> Any:
    return Dispatcher(function, devices, **{"backend": "process", "cache": False, "sizes": 3, **options})


def test_results_errors_and_hooks(functions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that two living processes do; they start once, since that takes them a second."""
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    x = torch.arange(40.0)
    with dispatcher(functions.scaled, init=functions.note, teardown=functions.note) as scaled:
        found = scaled.run({"x": x, "scale": torch.tensor([3.0])})
        assert torch.equal(found["y"], 3 * x)
        assert os.getpid() not in found["process"]
        ours = {worker.pid for worker in scaled.pool.workers}
        assert set(found["process"].tolist()) <= ours
        pool = scaled.pool
        picky = Dispatcher(functions.picky, pool=pool, cache=False, sizes=8, retries=0)
        assert torch.equal(picky.run(x[14:]), x[14:] + 1)  # halved until it fits
        outcome = picky.attempt(x)
        assert isinstance(outcome.failures[0].error, ValueError)
        with pytest.raises(ValueError, match="thirteen"):
            outcome.unwrap()
        assert torch.equal(Dispatcher(functions.grows, pool=pool, cache=False).run(x[:, None])[:, 7], x)
        graded = Dispatcher(functions.graded, pool=pool, cache=False, sizes=4)
        with torch.no_grad():
            assert torch.equal(graded.run(x), x)
        assert torch.equal(graded.run(x), x + 1)
        module = torch.nn.Linear(1, 1)
        linear = Dispatcher(module, pool=pool, cache=False, sizes=7)
        assert torch.equal(linear.run(x[:, None]), module(x[:, None]).detach())
        with torch.no_grad():
            module.weight.add_(1)
        assert torch.equal(linear.run(x[:, None]), module(x[:, None]).detach())  # the change has reached the processes
        local = Dispatcher(lambda x: x + 5, pool=pool, cache=False, on_error="skip")
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "cloudpickle", None)
            failures = local.attempt(x).failures
        assert len(failures) == 14  # none was done by the function that the processes had before
        assert all(isinstance(failure.error, InputError) for failure in failures)
        assert "define it at the top level of a module, or pip install cloudpickle" in str(failures[0].error)
        pytest.importorskip("cloudpickle")
        assert torch.equal(local.run(x), x + 5)
    assert {line.split()[0] for line in notes.read_text().splitlines()} == {"a", "b"}
    assert {int(line.split()[1]) for line in notes.read_text().splitlines()} == ours
    assert all(not alive(pid) for pid in ours)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_derivatives_in_processes() -> None:
    x = torch.rand(10, 3, dtype=torch.float64)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2, dtype=torch.float64), torch.nn.Tanh())
    with Derivatives(module, TWO[:1], sizes=4, cache=False, backend="process") as derivatives:
        expected = torch.func.vmap(torch.func.jacrev(module))(x)
        assert torch.allclose(derivatives.jacobian(x), expected)


def test_ranges_of_a_process_that_dies_move(functions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    x = torch.arange(60.0)
    with dispatcher(functions.deadly, init=functions.doom, capacities=6, backup=False) as deadly:
        outcome = deadly.attempt(x)
        assert torch.equal(outcome.unwrap(), x + 1)
        lost = [row for row in outcome.report.rows if "a: its process was ended by SIGKILL" in row.state]
        assert lost
        assert {outcome.report.devices[row.device].name for row in lost} == {"a"}


def test_all_processes_die_and_the_next_run_has_new_ones(functions: Any) -> None:
    x = torch.arange(12.0)
    with dispatcher(functions.deadly, TWO[:1]) as deadly:
        assert torch.equal(deadly.run(x), x + 1)
        before = deadly.pool.workers[0].pid
        outcome = deadly.attempt(x - 20)
        assert outcome.failures
        assert "a: its process was ended by SIGKILL" in str(outcome.failures[0].error)
        assert torch.equal(deadly.run(x), x + 1)
        assert deadly.pool.workers[0].pid != before


def test_a_new_process_is_initialised_too(functions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv("NOTES", str(notes))
    x = torch.arange(12.0)
    with dispatcher(functions.deadly, TWO[:1], init=functions.note) as deadly:
        deadly.run(x)
        first = deadly.pool.workers[0].pid
        assert deadly.attempt(x - 20).failures
        deadly.run(x)
        assert notes.read_text().split() == ["a", str(first), "a", str(deadly.pool.workers[0].pid)]


def test_what_is_no_tensor_goes_as_it_is_now(functions: Any) -> None:
    """Things that changed unseen or cannot be sent, messages too long for a pipe, functions with their variables."""
    x = torch.arange(12.0)
    with dispatcher(functions.told, TWO[:1], reduce=list) as told:
        batch = {"x": x, "by": functions.By(2.0), "n": 1}
        assert torch.equal(told.run(batch)[3]["y"], 2 * x[9:])
        batch["by"].factor = 5.0
        assert torch.equal(told.run(batch)[3]["y"], 5 * x[9:])
        wide = {**batch, "x": x[:, None].expand(12, 100)}
        assert "pickle" in str(told.attempt({**wide, "lock": threading.Lock()}).failures[0].error)
        assert torch.equal(told.run(wide)[3]["y"], 5 * wide["x"][9:])
        typed = Dispatcher(functions.typed, pool=told.pool, sizes=3, reduce=list, cache=False)
        for n in (1, True, 1.0):
            assert typed.run({"x": x, "n": n}) == [type(n).__name__] * 4

        wordy = Dispatcher(functions.wordy, pool=told.pool, sizes=3, reduce=list, on_error="skip", cache=False)
        outcome = wordy.attempt({"x": x, "words": "w" * 1_000_000})
        assert outcome.missing == [(6, 9)]  # it cannot be sent back
        assert [len(part["words"]) for part in wordy.run({"x": x[:6], "words": "w" * 1_000_000})] == [1_000_000] * 2

        pytest.importorskip("cloudpickle")
        factor = 2
        local = Dispatcher(lambda x: x * factor, pool=told.pool, sizes=3, cache=False)
        assert torch.equal(local.run(x), 2 * x)
        factor = 3
        assert torch.equal(local.run(x), 3 * x)


def test_one_batch_over_processes_of_ones_own(functions: Any) -> None:
    context = multiprocessing.get_context("spawn")
    cursor, answers = SharedCursor(1000), context.Queue()
    tasks = [context.Process(target=functions.pull, args=(cursor, answers)) for _ in range(2)]
    for task in tasks:
        task.start()
    pieces = sorted(answers.get(timeout=900) + answers.get(timeout=900))
    for task in tasks:
        task.join()
    assert [start for start, _, _ in pieces] == list(range(0, 1000, 5))
    assert [value for *_, values in pieces for value in values] == torch.arange(1000.0).sqrt().tolist()


def test_parcels() -> None:
    sender, receiver = Sender(), Receiver()
    for tree in (
        {"a": torch.rand(3, 2), "b": (torch.tensor(7), [torch.zeros(0, 3), torch.tensor([True, False])]), "c": "text"},
        {"a": torch.rand(3, 2), "b": (torch.tensor(8), [torch.zeros(0, 3), torch.tensor([True, True])]), "c": "text"},
        torch.rand(1000, 7).t(),
        torch.rand(4, 3)[:, 1],
        torch.zeros(2, dtype=torch.bfloat16),
        torch.ones(1).expand(5),
    ):
        found = receiver.receive(sender.send(tree))
        assert repr(found) == repr(tree)
    assert sender.send(torch.ones(5)) is None  # all as before but for the values
    sender.repeat()
    assert torch.equal(Receiver().receive(sender.send(torch.ones(5))), torch.ones(5))  # says everything again
    sender.close()
    assert torch.equal(found, torch.ones(1).expand(5))  # the receiver may still read


def test_worker_stops_before_it_started() -> None:
    worker = ProcessWorker(TWO[0])
    worker.stop()
    assert worker.collect() == []


STARTING = """
import os, sys, time
from dovetail.dispatch import Device, Dispatcher

if __name__ == "__mp_main__":  # in the process of a device, before it is ready
    print("starting", flush=True)
    while not os.path.exists(sys.argv[1]):  # the interrupt, if it reaches this, comes here
        time.sleep(0.01)

if __name__ == "__main__":
    import torch

    try:
        with Dispatcher(torch.sin, [Device("a", where="cpu")], backend="process", sizes=4, cache=False) as dispatcher:
            dispatcher.run(torch.rand(8))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_an_interrupt_while_processes_start_is_that_of_the_caller_alone(tmp_path: Path) -> None:
    script, go_on = tmp_path / "starting.py", tmp_path / "go_on"
    script.write_text(STARTING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, str(script), str(go_on)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        go_on.touch()
        out, errors = process.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert out == "interrupted\n"
    assert errors == ""
    assert process.returncode == 0
