"""Workers as processes: what is commanded is reported, whatever dies comes back, and nothing outlives the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import pytest

from dovetail.core.errors import InputError
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus, own_gpus
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    CallFailed,
    Loaded,
    LoadFailed,
    Memory,
    ModelCall,
    Report,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerLost,
    WorkerReady,
)
from tests.processes import is_alive
from tests.waiting import PATIENCE_S, until

R = TypeVar("R")


class Heard:
    """What an engine reports, in order."""

    def __init__(self) -> None:
        self._queue: Queue[Report] = Queue()
        self.passed: list[Report] = []

    def __call__(self, report: Report) -> None:
        self._queue.put(report)

    def next(self, kind: type[R], true: Callable[[R], bool] = lambda _: True) -> R:
        """The next of a kind; what came before it is in `passed`."""
        while True:
            report = self._queue.get(timeout=PATIENCE_S)
            if isinstance(report, kind) and true(report):
                return report
            self.passed.append(report)


@contextmanager
def running(models: dict[str, dict[str, Any]], gpus: int = 1, silence_s: float = 60.0) -> Iterator[tuple[Any, Heard]]:
    engine, heard = LocalGpuEngine(emulated_gpus(gpus), silence_s), Heard()
    served = {name: ServedModel(name=name, source=source, memory_mib=100) for name, source in models.items()}
    engine.start(served, heard)
    try:
        for _ in range(gpus):
            heard.next(WorkerReady)
        yield engine, heard
    finally:
        engine.close()


def emulated(**options: Any) -> dict[str, Any]:
    return {"emulated": options}


def call(id: str, model: str = "m", stream: bool = False, **inputs: Any) -> ModelCall:
    return ModelCall(id=id, model=model, inputs=inputs, stream=stream)


def test_a_model_is_loaded_called_and_unloaded() -> None:
    with running({"m": emulated(token_mean=3, answer="one two three")}) as (engine, heard):
        engine.load(0, "m", (0,))
        assert heard.next(Loaded).memory.device_mib == 100
        engine.call(0, call("1", prompt="a b"))
        answer = heard.next(Answer)
        assert answer == Answer("1", {"text": "one two three"}, read=2, written=3)
        assert heard.passed == [AnswerPiece("1", "", 0)]  # who does not stream is told of the first token alone
        engine.call(0, call("2", stream=True))
        heard.next(Answer)
        assert [piece.text for piece in heard.passed[1:] if isinstance(piece, AnswerPiece)] == ["one", " two", " three"]
        engine.unload(0, "m", False)
        heard.next(Unloaded)
        engine.call(0, call("3"))
        assert heard.next(CallFailed).why == "m is not loaded here"


def test_calls_of_a_model_run_at_once_and_an_unload_waits_for_them(tmp_path: Path) -> None:
    for name in ("m.call.hang.1", "m.call.hang.2"):
        (tmp_path / name).touch()
    with running({"m": emulated(faults=str(tmp_path))}) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        for id in "123":
            engine.call(0, call(id))
        hanging = {"1", "2", "3"} - {heard.next(Answer).call}
        engine.unload(0, "m", False)
        for id in hanging:
            engine.cancel(0, id)
            assert heard.next(CallFailed).call == id
        assert not any(isinstance(report, Unloaded) for report in heard.passed)
        heard.next(Unloaded)


def test_arrays_and_bytes_go_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(model):\n    return lambda inputs: {**inputs, 'by': model.name}\n")
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:make"}}) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        sent: dict[str, Any] = {
            "array": np.arange(6, dtype=np.float16).reshape(2, 3),
            "bytes": b"\0\1",
            "json": {"a": [1, None]},
        }
        engine.call(0, call("1", **sent))
        got = heard.next(Answer).outputs
        assert got.pop("array").tolist() == sent.pop("array").tolist()
        assert got == {**sent, "by": "m"}


def test_a_function_that_yields_is_streamed_and_one_that_raises_is_to_blame(tmp_path: Path) -> None:
    source = """
        def make(model):
            def say(inputs):
                for word in inputs["text"].split():
                    yield word + "."
            return say

        def broken(model):
            return lambda inputs: inputs["nothing"]

        def nothing(model):
            return None
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    models = {name: {"factory": f"{tmp_path / 'mine.py'}:{name}"} for name in ("make", "broken", "nothing", "mak")}
    with running(models) as (engine, heard):
        for name in models:
            engine.load(0, name, (0,))
        assert "gave None, expected a back end" in heard.next(LoadFailed).why
        assert "has no function 'mak'; did you mean 'make'?" in heard.next(LoadFailed).why
        engine.call(0, call("1", "make", stream=True, text="a b"))
        assert heard.next(AnswerPiece) == AnswerPiece("1", "a.")
        assert heard.next(Answer).outputs == {"text": "a.b."}
        engine.call(0, call("2", "broken"))
        assert heard.next(CallFailed) == CallFailed("2", "KeyError: 'nothing'", "call")


def test_what_cannot_be_sent_fails_the_call(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(model):\n    return lambda inputs: {'it': object()}\n")
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:make"}}) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        engine.call(0, call("1"))
        failed = heard.next(CallFailed)
        expected = "expected text, numbers, lists, mappings, bytes or tensors"
        why = f"its outputs cannot be sent: a value of type builtins.object; {expected}"
        assert failed == CallFailed("1", why, "call")
        engine.call(0, call("2", it=object()))
        failed = heard.next(CallFailed)
        assert failed == CallFailed("2", "its inputs cannot be sent: a value of type object cannot be sent", "call")


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return Answer(call.id, {'it': {1: 2}})", "a mapping has the key 1"),
        ("held = []; held.append(held); return Answer(call.id, {'it': held})", "a value that holds itself"),
        ("return {'text': 'done'}", "expected an Answer"),
        ("return Answer(call.id, {}, read=-5)", "read -5 tokens"),
        ("return Answer(call.id, [1])", "its outputs are list"),
        ("return Answer('another', {})", "expected an Answer to"),
        ("emit(5, 1)", "emitted 5 of 1 tokens"),
        ("emit('word', -1)", "emitted 'word' of -1 tokens"),
    ],
)
def test_a_back_end_that_misbehaves_fails_its_call_and_nothing_else(tmp_path: Path, gives: str, why: str) -> None:
    source = f"""
        from dovetail.workflow.live.protocol import Answer, Memory

        class Mine:
            def __init__(self, model): pass
            def load(self, devices): pass
            def unload(self, keep): pass
            def memory(self): return Memory()
            def status(self): return {{}}
            def call(self, call, emit, stopped):
                {gives}
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:Mine"}, "e": emulated()}) as (engine, heard):
        engine.load(0, "m", (0,))
        engine.load(0, "e", (0,))
        heard.next(Loaded, lambda report: report.model == "e")
        engine.call(0, call("1", stream=True))
        failed = heard.next(CallFailed)
        assert why in failed.why
        assert failed.blame == "call"
        engine.call(0, call("2", "e"))
        heard.next(Answer)
        assert not [report for report in heard.passed if isinstance(report, WorkerLost | Unhealthy)]


@pytest.mark.parametrize("status", ["None", "{'it': object()}"])
def test_a_status_that_is_none_is_an_illness(tmp_path: Path, status: str) -> None:
    source = f"""
        from dovetail.workflow.live.protocol import Memory

        class Mine:
            def __init__(self, model): pass
            def load(self, devices): pass
            def unload(self, keep): pass
            def memory(self): return Memory()
            def status(self): return {status}
            def call(self, call, emit, stopped): return None
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:Mine"}}) as (engine, heard):
        engine.load(0, "m", (0,))
        assert "expected" in heard.next(Unhealthy).why
        assert not [report for report in heard.passed if isinstance(report, WorkerLost)]


@pytest.mark.parametrize("memory", ["1 / 0", "None", "{'device_mib': 'much'}"])
def test_a_model_that_cannot_say_what_it_holds_is_called_all_the_same(tmp_path: Path, memory: str) -> None:
    source = f"""
        from dovetail.workflow.live.protocol import Answer

        class Mine:
            def __init__(self, model): self.asked = 0
            def load(self, devices): pass
            def unload(self, keep): pass
            def memory(self): return {memory}
            def status(self):
                self.asked += 1
                return {{}}
            def call(self, call, emit, stopped):
                while self.asked < 2 and not stopped.wait(0.01):
                    pass
                return Answer(call.id, {{"text": "here"}})
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:Mine"}}) as (engine, heard):
        engine.load(0, "m", (0,))
        assert heard.next(Loaded).memory == Memory()
        engine.call(0, call("1"))
        assert heard.next(Answer).outputs == {"text": "here"}
        assert not [report for report in heard.passed if isinstance(report, WorkerLost | Unhealthy)]


@pytest.mark.parametrize(("fault", "oom"), [("oom", True), ("fail", False)])
def test_a_load_that_fails_says_so_and_the_next_one_succeeds(tmp_path: Path, fault: str, oom: bool) -> None:
    (tmp_path / f"any.load.{fault}").touch()
    with running({"m": emulated(faults=str(tmp_path))}) as (engine, heard):
        engine.load(0, "m", (0,))
        assert heard.next(LoadFailed).out_of_memory == oom
        engine.load(0, "m", (0,))
        heard.next(Loaded)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, "die", "restart"])
def test_a_worker_that_is_gone_comes_back_empty(tmp_path: Path, how: Any) -> None:
    (tmp_path / ("m.call.die" if how == "die" else "m.call.hang")).touch()
    with running({"m": emulated(faults=str(tmp_path))}, silence_s=4.0) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        engine.call(0, call("1"))
        if how == "restart":
            engine.restart(0, "somebody said so")
        elif how != "die":
            os.kill(engine.status()[0]["pid"], how)
        why = heard.next(WorkerLost).why
        assert ("SIGKILL" in why, "silent" in why, why == "somebody said so") == (
            how in (signal.SIGKILL, "die"),
            how == signal.SIGSTOP,
            how == "restart",
        )
        heard.next(WorkerReady)
        engine.call(0, call("2"))
        assert heard.next(CallFailed).why == "m is not loaded here"


def test_a_back_end_that_says_it_is_ill_is_reported(tmp_path: Path) -> None:
    (tmp_path / "m.call.unhealthy").touch()
    with running({"m": emulated(faults=str(tmp_path))}) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        engine.call(0, call("1"))
        assert heard.next(Unhealthy) == Unhealthy(0, "m", "m was told to be ill")


def test_a_worker_ends_with_what_its_back_ends_have_started(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import subprocess\n\ndef make(model):\n    child = subprocess.Popen(['sleep', '1000'])\n"
        "    return lambda inputs: {'child': child.pid}\n"
    )
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:make"}}) as (engine, heard):
        children = []
        for id in "12":
            engine.load(0, "m", (0,))
            heard.next(Loaded)
            engine.call(0, call(id))
            children.append(heard.next(Answer).outputs["child"])
            if id == "1":
                engine.restart(0, "to see")
                heard.next(WorkerReady)
    until(lambda: not any(is_alive(pid) for pid in children))


def test_a_worker_whose_connection_somebody_else_holds_is_missed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\n\n"
        "def make(model):\n"
        "    if not (child := os.fork()):\n"
        "        os.setsid()\n"
        "        time.sleep(1000)\n"
        "    return lambda inputs: {'child': child}\n"
    )
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:make"}}, silence_s=8.0) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        engine.call(0, call("1"))
        child = heard.next(Answer).outputs["child"]
        os.kill(engine.status()[0]["pid"], signal.SIGKILL)
        heard.next(WorkerLost)
        heard.next(WorkerReady)
        os.kill(child, signal.SIGKILL)


def test_workers_end_when_the_service_is_killed() -> None:
    """Also one that is stopped, and cannot see it."""
    program = """
        import os, signal, time
        from queue import Queue
        from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus

        engine, heard = LocalGpuEngine(emulated_gpus(2)), Queue()
        engine.start({}, heard.put)
        heard.get(), heard.get()
        pids = [worker["pid"] for worker in engine.status()]
        os.kill(pids[1], signal.SIGSTOP)
        print(*pids, flush=True)
        time.sleep(1000)
    """
    service = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    pids = [int(pid) for pid in service.stdout.readline().split()]
    assert len(pids) == 2
    service.kill()
    service.wait()
    service.stdout.close()
    until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_machine_without_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="no CUDA device"):
        own_gpus()


def test_tensors_travel_as_arrays_whatever_they_hang_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef make(model):\n"
        "    return lambda inputs: {'graded': torch.ones(2, requires_grad=True), 'alone': torch.tensor(3)}\n"
    )
    with running({"m": {"factory": f"{tmp_path / 'mine.py'}:make"}}) as (engine, heard):
        engine.load(0, "m", (0,))
        heard.next(Loaded)
        engine.call(0, call("1"))
        got = heard.next(Answer).outputs
        assert got["graded"].tolist() == [1.0, 1.0]
        assert got["alone"].shape == ()
