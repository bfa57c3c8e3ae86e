"""The rival swaps as llama-swap does: its scheduler's own examples, on an engine that does what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from queue import Queue
from typing import Any

from bench.rivals.fifo import FifoSwapping, fifo_swapping
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    CallFailed,
    GpuPlace,
    Loaded,
    LoadFailed,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    Unloaded,
    WorkerReady,
)
from tests.waiting import PATIENCE_S


class StillEngine:
    """Writes down what it is told; the test says what comes of it."""

    def __init__(self, workers: int = 1) -> None:
        self.places: Sequence[GpuPlace] = emulated_gpus(workers)
        self.orders: list[str] = []
        self.report: Callable[[Report], None]

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        self.report = report
        for worker in range(len(self.places)):
            report(WorkerReady(worker))

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None:
        self.orders.append(f"load {model} on {worker}")

    def unload(self, worker: int, model: str, keep: bool) -> None:
        self.orders.append(f"unload {model}")
        self.report(Unloaded(worker, model))

    def call(self, worker: int, call: ModelCall) -> None:
        self.orders.append(call.id)

    def cancel(self, worker: int, call: str) -> None: ...
    def restart(self, worker: int, why: str) -> None: ...
    def status(self) -> list[dict[str, Any]]:
        return []

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None: ...
    def drop(self, reference: Any) -> None: ...
    def close(self) -> None: ...

    def taken(self) -> list[str]:
        orders, self.orders = self.orders, []
        return orders


def rival(
    engine: StillEngine, *groups: str, slots: int = 9, in_order: bool = False
) -> tuple[FifoSwapping, dict[str, Any]]:
    models = {name: ServedModel(name=name, source={}, slots=slots) for group in groups for name in group}
    swapping = FifoSwapping(engine, models, groups, in_order)
    swapping.start()
    return swapping, {}


def ask(swapping: FifoSwapping, ended: dict[str, Any], *ids: str) -> None:
    for id in ids:

        def told(report: AnswerPiece | Answer | CallFailed, id: str = id) -> None:
            ended[id] = report

        swapping.ask(ModelCall(id=id, model=id[0], inputs={}), told)


def test_a_b_c_a_b_c_is_served_as_a_a_b_b_c_c() -> None:
    engine = StillEngine()
    swapping, ended = rival(engine, "abc")
    ask(swapping, ended, "a1", "b1", "c1", "a2", "b2", "c2")
    assert engine.taken() == ["load a on 0"]
    engine.report(Loaded(0, "a"))
    assert engine.taken() == ["a1", "a2"], "those who joined, in their order"
    engine.report(Answer("a1", {}))
    ask(swapping, ended, "a3")
    assert engine.taken() == ["a3"], "past b and c, which wait"
    engine.report(Answer("a3", {}))
    assert engine.taken() == []
    engine.report(Answer("a2", {}))
    assert engine.taken() == ["unload a", "load b on 0"]
    engine.report(Loaded(0, "b"))
    assert engine.taken() == ["b1", "b2"]
    for id in ("b1", "b2"):
        engine.report(Answer(id, {}))
    engine.report(Loaded(0, "c"))
    for id in ("c1", "c2"):
        engine.report(Answer(id, {}))
    assert engine.taken() == ["unload b", "load c on 0", "c1", "c2"]
    assert swapping.switches == 3
    assert [*ended] == ["a1", "a3", "a2", "b1", "b2", "c1", "c2"]


def test_groups_are_apart_and_slots_hold_back_at_the_server() -> None:
    engine = StillEngine(2)
    swapping, ended = rival(engine, "ab", "c", slots=1)
    ask(swapping, ended, "a1", "c1", "a2", "b1")
    for worker, model in ((0, "a"), (1, "c")):
        engine.report(Loaded(worker, model))
    assert engine.taken() == ["load a on 0", "load c on 1", "a1", "c1"]
    engine.report(Answer("a1", {}))
    assert engine.taken() == ["a2"], "b waits for all that a was given"
    engine.report(CallFailed("a2", "no"))
    assert engine.taken() == ["unload a", "load b on 0"]
    engine.report(LoadFailed(0, "b", "too large"))
    assert ended["b1"] == CallFailed("b1", "too large")
    ask(swapping, ended, "a3")
    assert engine.taken() == ["load a on 0"]


def test_it_serves_on_real_workers() -> None:
    source = {"emulated": {"load_s": 0.0, "call_s": 0.0, "answer": "done"}}
    models = {name: ServedModel(name=name, source=source) for name in ("a", "b", "c")}
    ended: Queue[Any] = Queue()
    with fifo_swapping(LocalGpuEngine(emulated_gpus(2), 60.0), models) as swapping:
        for number, model in enumerate("abcabc"):
            swapping.ask(ModelCall(id=str(number), model=model, inputs={"prompt": "q"}), ended.put)
        answers: list[Answer] = []
        while len(answers) < 6:
            report = ended.get(timeout=PATIENCE_S)
            assert not isinstance(report, CallFailed), report
            answers += [report] if isinstance(report, Answer) else []
        assert {answer.outputs["text"] for answer in answers} == {"done"}
        assert swapping.switches >= 3


def test_older_rules_keep_the_order() -> None:
    """The one that changes the model is answered before anybody else is heard; nobody passes one that waits."""
    engine = StillEngine()
    swapping, ended = rival(engine, "ab", in_order=True)
    ask(swapping, ended, "a1", "a2", "b1", "a3")
    assert engine.taken() == ["load a on 0"]
    engine.report(Loaded(0, "a"))
    assert engine.taken() == ["a1"]
    engine.report(Answer("a1", {}))
    assert engine.taken() == ["a2"]
    ask(swapping, ended, "a4")
    assert engine.taken() == []
    engine.report(Answer("a2", {}))
    assert engine.taken() == ["unload a", "load b on 0"]
    engine.report(Loaded(0, "b"))
    engine.report(Answer("b1", {}))
    assert engine.taken() == ["b1", "unload b", "load a on 0"]
    engine.report(Loaded(0, "a"))
    engine.report(Answer("a3", {}))
    assert engine.taken() == ["a3", "a4"]
    assert swapping.switches == 3
