"""The live executor: orders and reports go in, commands and stimuli come out. No process, no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from dovetail.core.events import Added, Failed, Finished, Grew, Observed, Prepare, PrepareEnded, Settled, Start, Stop
from dovetail.core.loop.inbox import Inbox
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.live.executor import LiveExecutor
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    BackEndError,
    CallFailed,
    GpuPlace,
    Loaded,
    LoadFailed,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerLost,
    WorkerReady,
    WorkersJoined,
)
from dovetail.workflow.live.references import NOTHING, Brought, found_in
from tests.waiting import until

NEVER = LiveLimits(load_floor_s=1e6, call_floor_s=1e6, stop_grace_s=1e6)
MODELS = {
    "a": ModelCost(8.0, 1.0),
    "b": ModelCost(8.0, 1.0),
    "small": ModelCost(2.0, 1.0),
    "wide": ModelCost(16.0, 1.0, width=2),
    "slotted": ModelCost(8.0, 1.0, concurrency_curve=(1.0, 0.9)),
    "lora": ModelCost(0.5, 1.0, adapter_of="a"),
}


class FakeEngine:
    """Takes down what it is told; what it reports is said by the test."""

    def __init__(self, gpus: int) -> None:
        self.places: Sequence[GpuPlace] = [GpuPlace("gpu", "here")] * gpus
        self.told: list[tuple[Any, ...]] = []
        self.calls: list[ModelCall] = []
        self.fetched: dict[Reference, Callable[[Any], None]] = {}
        self.report: Callable[[Report], None]

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        self.report = report

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None:
        self.told.append(("load", worker, model, window))

    def unload(self, worker: int, model: str, keep: bool) -> None:
        self.told.append(("unload", worker, model, keep))

    def call(self, worker: int, call: ModelCall) -> None:
        self.told.append(("call", worker, call.model))
        self.calls.append(call)

    def cancel(self, worker: int, call: str) -> None:
        self.told.append(("cancel", worker, call))

    def restart(self, worker: int, why: str) -> None:
        self.told.append(("restart", worker, why))

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None:
        self.fetched[reference] = then

    def drop(self, references: Sequence[Reference]) -> None:
        self.told.append(("drop", *references))

    def status(self) -> list[dict[str, Any]]:
        return [{"worker": i, "state": "up", "models": {}} for i in range(len(self.places))]

    def close(self) -> None:
        pass

    def take(self) -> list[tuple[Any, ...]]:
        """What it was told since it was last asked."""
        told, self.told = self.told, []
        return told


class FakeRuns:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.grew: Grew | None = None
        self.refuse = ""
        self.needs: list[Reference] = []

    def call(self, job: str, task: str, model: str, id: str, brought: Brought = NOTHING) -> ModelCall:
        if self.refuse == "call":
            raise BackEndError("it lacks an input", blame="call")
        return ModelCall(id=id, model=model, inputs={"job": job, "found": self._found(brought)})

    def _found(self, brought: Brought) -> list[Any]:
        return [found_in(brought, reference) for reference in self.needs]

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        self.pieces.append(piece.text)

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> Grew | None:
        if self.refuse == "answer":
            raise BackEndError("no such branch", blame="call")
        self._found(brought)
        return self.grew


class Bench:
    def __init__(self, gpus: int, memory_mib: int | None, limits: LiveLimits, costs: dict[str, Any]) -> None:
        self.engine, self.inbox, self.runs = FakeEngine(gpus), Inbox(), FakeRuns()
        pool = Pool(tuple(Device(i, "gpu") for i in range(gpus)), {"gpu": DeviceType("gpu", memory_mib)})
        served = {name: ServedModel(name=name, source={}) for name in MODELS}
        rules = CostRules(**costs)
        self.executor = LiveExecutor(self.engine, self.inbox, self.runs, served, MODELS, pool, rules, limits)
        self.executor.start()

    def start(self, job: str, model: str, *gpus: int, **more: Any) -> None:
        self.executor.carry([Start(job, "n", model, gpus, 0.0, 1.0, "to see", **more)], 0.0)

    def prepare(self, id: int, model: str, *gpus: int) -> None:
        self.executor.carry([Prepare(id, model, gpus, 1.0, "to see")], 0.0)

    def stop(self, job: str) -> None:
        self.executor.carry([Stop(job, "n", "enough")], 0.0)

    def report(self, *reports: Report) -> None:
        for report in reports:
            self.engine.report(report)

    def answer(self, **more: Any) -> None:
        """To the last call."""
        self.report(Answer(self.engine.calls[-1].id, {"text": "hi"}, **more))

    def heard(self) -> list[Any]:
        with self.executor._lock:  # what is about to be told is told
            self.inbox.put(Observed("end"))
        heard = self.inbox.take()
        assert heard is not None
        return heard[:-1]

    def load(self, job: str, model: str, *gpus: int) -> None:
        """All the way, and forget about it."""
        self.start(job, model, *gpus)
        self.report(*(Unloaded(worker, name) for what, worker, name, *_ in self.engine.told if what == "unload"))
        self.report(Loaded(gpus[0], model))
        self.answer()
        self.heard()
        self.engine.take()


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Bench] = []

    def make(gpus: int = 1, memory_mib: int | None = None, limits: LiveLimits = NEVER, **costs: Any) -> Bench:
        made.append(Bench(gpus, memory_mib, limits, costs))
        return made[-1]

    yield make
    for bench in made:
        bench.executor.close()


def test_a_cold_start_loads_settles_and_calls(make: Make) -> None:
    bench = make()
    bench.start("r", "a", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,))]
    assert bench.heard() == []
    bench.report(Loaded(0, "a"))
    assert bench.engine.take() == [("call", 0, "a")]
    assert bench.heard() == [Settled("r", "n", (0,))]
    bench.report(AnswerPiece(bench.engine.calls[0].id, "h"), AnswerPiece(bench.engine.calls[0].id, "i"))
    assert bench.heard() == [Observed("first token", {"job": "r", "task": "n"})]
    assert bench.runs.pieces == ["h", "i"]
    bench.runs.grew = Grew("r", "n", (Task("more", "a", 1),))
    bench.answer(read=3, written=2)
    tokens = Observed("tokens", {"job": "r", "task": "n", "input": 3, "output": 2})
    assert bench.heard() == [tokens, bench.runs.grew, Finished("r", "n")]


def test_a_warm_start_goes_straight_to_the_call(make: Make) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.start("s", "a", 0)
    assert bench.engine.take() == [("call", 0, "a")]
    bench.answer()
    assert bench.heard() == [Finished("s", "n")]


def test_what_leaves_is_unloaded_before_the_load(make: Make) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.start("s", "b", 0)
    assert bench.engine.take() == [("unload", 0, "a", False), ("load", 0, "b", (0,))]


def test_host_memory_keeps_what_the_rules_say_and_lets_go_of_the_oldest(make: Make) -> None:
    bench = make(dram_gb=17.0)
    bench.load("r", "a", 0)
    bench.start("s", "b", 0)
    assert bench.engine.take() == [("unload", 0, "a", True), ("load", 0, "b", (0,))]
    bench.report(Unloaded(0, "a"), Loaded(0, "b"))
    bench.answer()
    bench.engine.take()
    bench.start("t", "small", 0)  # 18 GB are more than it keeps: a, the oldest, goes
    told = bench.engine.take()
    assert ("unload", 0, "b", True) in told
    assert ("unload", 0, "a", False) in told
    assert told[-1] == ("load", 0, "small", (0,))


def test_a_gpu_that_holds_several_gives_up_the_least_recently_used(make: Make) -> None:
    bench = make(memory_mib=17 * 1024, resident="memory")
    bench.load("r", "a", 0)
    bench.load("s", "small", 0)
    bench.load("t", "a", 0)
    bench.start("u", "b", 0)
    assert bench.engine.take() == [("unload", 0, "small", False), ("load", 0, "b", (0,))]


def test_a_load_waits_until_other_workers_have_let_go_of_its_gpus(make: Make) -> None:
    bench = make(gpus=2)
    bench.load("r", "wide", 0, 1)
    bench.start("s", "b", 1)
    assert bench.engine.take() == [("unload", 0, "wide", False)]
    bench.report(Unloaded(0, "wide"))
    assert bench.engine.take() == [("load", 1, "b", (1,))]
    bench.report(Loaded(1, "b"))
    bench.answer()
    bench.heard()
    bench.engine.take()
    bench.start("t", "wide", 0, 1)
    assert bench.engine.take() == [("unload", 1, "b", False)]
    bench.report(WorkerLost(1, "killed"))  # then nothing is there any more either
    assert bench.engine.take() == [("load", 0, "wide", (0, 1))]


def test_a_worker_whose_gpu_another_one_uses_takes_nothing_with_it(make: Make) -> None:
    bench = make(gpus=2)
    bench.load("r", "wide", 0, 1)
    bench.start("s", "wide", 0, 1)
    bench.report(WorkerLost(1, "killed"), WorkerReady(1))
    assert [type(event) for event in bench.heard()] == [Observed] * 3
    bench.answer()
    assert bench.heard() == [Finished("s", "n")]
    bench.engine.take()
    bench.start("t", "a", 1)  # what the scheduler takes to be empty is made so
    assert bench.engine.take() == [("unload", 0, "wide", False)]
    bench.report(Unloaded(0, "wide"))
    assert bench.engine.take() == [("load", 1, "a", (1,))]


def test_a_wide_model_that_moves_leaves_where_it_was(make: Make) -> None:
    bench = make(gpus=3)
    bench.load("r", "wide", 0, 1)
    bench.start("s", "wide", 1, 2)
    assert bench.engine.take() == [("unload", 0, "wide", False)]
    bench.report(Unloaded(0, "wide"))
    assert bench.engine.take() == [("load", 1, "wide", (1, 2))]
    bench.report(Loaded(1, "wide"))
    assert bench.heard() == [Settled("s", "n", (1, 2))]


def test_who_joins_during_a_load_waits_for_it_too(make: Make) -> None:
    bench = make()
    bench.start("r", "slotted", 0, slots=2)
    bench.start("s", "slotted", 0, slots=2)
    assert bench.engine.take() == [("load", 0, "slotted", (0,))]
    bench.report(Loaded(0, "slotted"))
    assert bench.engine.take() == [("call", 0, "slotted")] * 2
    assert bench.heard() == [Settled("r", "n", (0,)), Settled("s", "n", (0,))]


def test_the_nodes_of_a_batch_are_called_at_once_and_end_one_by_one(make: Make) -> None:
    bench = make()
    orders = [Start(job, "n", "a", (0,), 0.0, 1.0, "to see", batch=1) for job in "rs"]
    bench.executor.carry(orders, 0.0)
    bench.report(Loaded(0, "a"))
    assert bench.engine.take() == [("load", 0, "a", (0,)), ("call", 0, "a"), ("call", 0, "a")]
    bench.heard()
    for call, job in zip(bench.engine.calls, "rs", strict=True):
        bench.report(Answer(call.id, {}))
        assert bench.heard() == [Finished(job, "n")]


def test_an_adapter_is_loaded_behind_its_base(make: Make) -> None:
    bench = make()
    bench.start("r", "lora", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,)), ("load", 0, "lora", (0,))]
    bench.report(Loaded(0, "a"))
    assert bench.engine.take() == []
    bench.report(Loaded(0, "lora"))
    assert bench.engine.take() == [("call", 0, "lora")]
    bench.answer()
    bench.start("s", "a", 0)
    assert bench.engine.take() == [("call", 0, "a")]


def test_a_lost_worker_takes_all_with_it_and_comes_back_empty(make: Make) -> None:
    bench = make(gpus=3)
    bench.load("r", "wide", 0, 1)
    bench.start("s", "wide", 0, 1)
    bench.start("t", "a", 2)
    late = bench.engine.calls[-1].id
    bench.report(WorkerLost(0, "killed"))
    why = "the worker of GPU 0 was lost: killed"
    assert bench.heard() == [
        Observed("gone", {"gpus": [0], "why": "killed"}),
        Observed("emptied", {"gpus": [0, 1], "why": why}),
        Failed("s", "n", why, lost=True),
    ]
    bench.report(Answer(late, {}), CallFailed(late, "late"), AnswerPiece(late, "late"))
    assert bench.heard() == []
    bench.start("u", "a", 0)  # ordered before it was known
    assert bench.heard() == [Failed("u", "n", "the worker of GPU 0 is gone: killed", lost=True)]
    assert bench.executor.status()[0]["state"] == "gone"
    bench.report(WorkerReady(0))
    assert bench.heard() == [Observed("back", {"gpus": [0]})]
    bench.engine.take()
    bench.start("v", "wide", 0, 1)
    assert bench.engine.take() == [("load", 0, "wide", (0, 1))]
    bench.report(Loaded(2, "a"))
    assert bench.heard() == [Settled("t", "n", (2,))]


def test_a_failed_load_empties_its_gpus_of_all_that_is_there(make: Make) -> None:
    bench = make(memory_mib=12 * 1024, resident="memory")
    bench.load("r", "small", 0)
    bench.start("s", "a", 0)
    bench.engine.take()
    bench.report(LoadFailed(0, "a", "no room", out_of_memory=True))
    assert bench.engine.take() == [("unload", 0, "small", False)]
    why = "a could not be loaded: no room"
    assert bench.heard() == [Observed("emptied", {"gpus": [0], "why": why}), Failed("s", "n", why, lost=True)]


def test_a_failed_load_that_nobody_waits_for_disturbs_nobody(make: Make) -> None:
    bench = make(memory_mib=12 * 1024, resident="memory")
    bench.start("r", "a", 0)
    bench.stop("r")
    bench.start("s", "small", 0)  # beside it
    bench.heard()
    bench.report(LoadFailed(0, "a", "no room", out_of_memory=True), Loaded(0, "small"))
    assert bench.heard() == [Settled("s", "n", (0,))]
    bench.answer()
    bench.engine.take()
    bench.start("t", "a", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,))]


@pytest.mark.parametrize("oom", [True, False])
def test_a_model_that_never_loads_fails_its_requests(make: Make, oom: bool) -> None:
    bench = make()
    ends = []
    for job in "rst":
        bench.start(job, "a", 0)
        bench.report(LoadFailed(0, "a", "never", oom))
        ends += [event.lost for event in bench.heard() if isinstance(event, Failed)]
    assert ends == [True, True, False]
    bench.load("u", "a", 0)  # once it did, it counts anew
    bench.load("v", "b", 0)
    bench.start("w", "a", 0)
    bench.report(LoadFailed(0, "a", "again", oom))
    assert [event.lost for event in bench.heard() if isinstance(event, Failed)] == [True]


@pytest.mark.parametrize(("blame", "lost"), [("call", False), ("place", True)])
def test_a_failed_call_says_who_is_to_blame(make: Make, blame: Any, lost: bool) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.start("s", "a", 0)
    failed = CallFailed(bench.engine.calls[-1].id, "no", blame)
    bench.report(failed, failed)
    assert bench.heard() == [Failed("s", "n", "no", lost)]


@pytest.mark.parametrize("where", ["call", "answer"])
def test_data_that_is_wrong_fails_the_node(make: Make, where: str) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.runs.refuse = where
    bench.start("s", "a", 0)
    if where == "answer":
        bench.answer()
    (failed,) = bench.heard()
    assert failed == Failed("s", "n", "it lacks an input" if where == "call" else "no such branch")


def test_a_node_that_is_stopped_ends_as_failed_whatever_came_of_it(make: Make) -> None:
    bench = make()
    bench.start("r", "a", 0)
    bench.stop("r")  # its load goes on, and the model stays
    assert bench.heard() == [Failed("r", "n", "enough")]
    bench.report(Loaded(0, "a"))
    bench.start("s", "a", 0)
    bench.engine.take()
    bench.stop("s")
    assert bench.engine.take() == [("cancel", 0, bench.engine.calls[-1].id)]
    assert bench.heard() == []
    bench.answer()
    assert bench.heard() == [Failed("s", "n", "enough")]
    bench.stop("s")  # it has ended, and that was heard
    assert bench.engine.take() == []


def test_values_of_an_answer_that_nobody_takes_are_let_go(make: Make) -> None:
    bench, large = make(), Reference("kept", 5_000_000)
    bench.load("r", "a", 0)
    bench.start("s", "a", 0)
    bench.stop("s")
    bench.engine.take()
    late = Answer(bench.engine.calls[-1].id, {"images": [large]})
    bench.report(late)
    assert bench.engine.take() == [("drop", large)]
    assert bench.heard()[-1] == Failed("s", "n", "enough")
    bench.report(late)
    assert bench.engine.take() == [("drop", large)]
    assert bench.heard() == []


def test_one_that_does_not_heed_a_stop_loses_its_worker(make: Make) -> None:
    bench = make(limits=LiveLimits(stop_grace_s=0.0))
    bench.load("r", "a", 0)
    bench.start("s", "a", 0)
    bench.stop("s")
    until(lambda: bench.engine.told[-1][0] == "restart")
    assert "did not end within 0 s of being stopped" in bench.engine.told[-1][2]
    assert bench.heard()[-1] == Failed("s", "n", "enough")
    bench.report(WorkerLost(0, "restarted"))  # that was known
    assert bench.heard() == []


def test_a_load_that_never_ends_loses_its_worker_and_in_the_end_its_requests(make: Make) -> None:
    bench = make(limits=LiveLimits(load_factor=0.0, load_floor_s=0.0, load_tries=2))
    for tried, lost in enumerate((True, False), 1):
        bench.start("r", "a", 0)
        until(lambda: [told[0] for told in bench.engine.told].count("restart") == tried)  # noqa: B023
        assert bench.engine.told[-1][2] == "a was not loaded within 0 s"
        assert bench.heard()[-1].lost == lost
        bench.report(Loaded(0, "a"))  # last words
        bench.report(WorkerReady(0))
        assert bench.heard() == [Observed("back", {"gpus": [0]})]


def test_a_call_that_never_ends_is_cancelled_and_then_loses_its_worker(make: Make) -> None:
    bench = make(limits=LiveLimits(call_factor=0.0, call_floor_s=0.0, stop_grace_s=0.0))
    bench.start("s", "a", 0)
    bench.report(Loaded(0, "a"))
    until(lambda: bench.engine.told[-1][0] == "restart")
    assert [told[0] for told in bench.engine.take()] == ["load", "call", "cancel", "restart"]
    assert bench.heard()[-1] == Failed("s", "n", "it did not end within 0 s (1 s were expected)", lost=True)


def test_an_unload_that_never_ends_loses_its_worker(make: Make) -> None:
    bench = make(gpus=2, limits=LiveLimits(load_floor_s=0.0))
    bench.start("r", "wide", 0, 1, setup_s=1e6)
    bench.report(Loaded(0, "wide"))
    bench.answer()
    bench.engine.take()
    bench.start("s", "b", 1, setup_s=1e6)
    until(lambda: len(bench.engine.told) == 2)
    unloaded = "wide was not unloaded within 0 s"
    assert bench.engine.take() == [("unload", 0, "wide", False), ("restart", 0, unloaded)]
    bench.report(WorkerLost(0, unloaded))  # only then it has really left
    assert bench.engine.take() == [("load", 1, "b", (1,))]


def test_a_model_that_is_ill_loses_its_worker(make: Make) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.report(Unhealthy(0, "a", "its server died"))
    assert bench.engine.take() == [("restart", 0, "a: its server died")]
    assert [event.what for event in bench.heard()] == ["gone", "emptied"]


def test_a_place_where_call_after_call_fails_loses_its_worker(make: Make) -> None:
    bench = make(limits=LiveLimits(call_tries=2))
    bench.load("r", "a", 0)
    for blame in ("place", "call", "place"):
        bench.start("s", "a", 0)
        bench.report(CallFailed(bench.engine.calls[-1].id, "no", blame))
    bench.load("t", "a", 0)
    bench.start("u", "a", 0)
    bench.report(CallFailed(bench.engine.calls[-1].id, "no"))
    assert "restart" not in [told[0] for told in bench.engine.take()]
    bench.start("v", "a", 0)
    bench.report(CallFailed(bench.engine.calls[-1].id, "refused"))
    assert bench.engine.take()[-1] == ("restart", 0, "a failed 2 calls in a row: refused")


def test_calls_that_fail_as_they_are_stopped_do_not_speak_against_their_place(make: Make) -> None:
    bench = make(limits=LiveLimits(call_tries=1))
    bench.load("r", "a", 0)
    bench.start("s", "a", 0)
    bench.stop("s")
    bench.report(CallFailed(bench.engine.calls[-1].id, "cut short"))
    assert bench.heard()[-1] == Failed("s", "n", "enough")
    assert "restart" not in [told[0] for told in bench.engine.take()]


def test_a_former_load_is_not_taken_for_a_later_one(make: Make) -> None:
    bench = make()
    bench.start("r", "a", 0)
    bench.stop("r")
    bench.start("s", "b", 0)
    bench.stop("s")
    bench.start("t", "a", 0)
    told = [command[:3] for command in bench.engine.take()]
    loads = [("load", 0, "a"), ("unload", 0, "a"), ("load", 0, "b"), ("unload", 0, "b"), ("load", 0, "a")]
    assert told == loads
    bench.heard()
    bench.report(Loaded(0, "a"), Unloaded(0, "a"), Loaded(0, "b"), Unloaded(0, "b"))
    assert (bench.heard(), bench.engine.take()) == ([], [])
    bench.report(Loaded(0, "a"))
    assert bench.heard() == [Settled("t", "n", (0,))]


def test_gpus_that_join_can_be_used(make: Make) -> None:
    bench = make()
    joined = (GpuPlace("big", "there", memory_mib=1000),)
    bench.engine.places = [*bench.engine.places, *joined]
    bench.report(WorkersJoined(joined))
    types = {"big": DeviceType("big", 1000)}
    assert bench.heard() == [Added("1 GPUs joined", devices=(Device(1, "big", 1),), types=types)]
    bench.start("r", "a", 1)
    assert bench.engine.take() == [("load", 1, "a", (1,))]
    assert [row["type"] for row in bench.executor.status()] == ["gpu", "big"]


def test_after_a_restart_of_the_service_nothing_is_there_any_more(make: Make) -> None:
    bench = make(gpus=3)
    bench.report(WorkerLost(1, "it could not start"))
    bench.heard()
    bench.executor.restore({("r", "n"): (0,)}, 5.0)
    why = "the service was restarted"
    assert bench.heard() == [
        Observed("emptied", {"gpus": [0, 1, 2], "why": why}),
        Observed("back", {"gpus": [0, 2]}),
        Failed("r", "n", why, lost=True),
    ]


def test_status_tells_what_is_where(make: Make) -> None:
    bench = make(gpus=3)
    bench.load("r", "wide", 0, 1)
    bench.start("s", "wide", 0, 1)
    bench.start("t", "a", 2)
    told = [(row["models"], row["running"]) for row in bench.executor.status()]
    assert told == [(["wide"], ["s/n"]), (["wide"], ["s/n"]), ([], ["t/n"])]


def test_values_that_stay_elsewhere_are_waited_for_by_nobody_else(make: Make) -> None:
    bench = make(gpus=2)
    bench.load("q", "a", 0)
    near, far = Reference("near", 1), Reference("far", 2)
    bench.runs.needs = [near, far]
    bench.start("r", "a", 0)
    until(lambda: near in bench.engine.fetched)
    bench.runs.needs = []
    bench.start("s", "b", 1)  # it goes on meanwhile
    assert bench.engine.take() == [("load", 1, "b", (1,))]
    bench.runs.needs = [near, far]
    bench.engine.fetched[near](1)
    until(lambda: far in bench.engine.fetched)
    assert bench.engine.take() == []
    bench.engine.fetched[far](2)
    until(lambda: bench.engine.calls[-1].inputs["found"] == [1, 2])
    bench.engine.fetched.clear()
    bench.answer()
    until(lambda: near in bench.engine.fetched)
    assert bench.heard() == []
    bench.runs.needs = [near]
    bench.engine.fetched[near](1)
    assert bench.inbox.take() == [Finished("r", "n")]


def test_a_value_that_cannot_be_brought_fails_its_attempt(make: Make) -> None:
    bench = make()
    bench.load("q", "a", 0)
    bench.runs.needs = [lost := Reference("lost", 1)]
    bench.start("r", "a", 0)
    until(lambda: lost in bench.engine.fetched)
    bench.engine.fetched[lost](BackEndError("it was lost"))
    assert bench.inbox.take() == [Failed("r", "n", "it was lost", lost=True)]


def test_who_waits_for_a_value_can_be_stopped(make: Make) -> None:
    bench = make()
    bench.load("q", "a", 0)
    bench.runs.needs = [slow := Reference("slow", 1)]
    bench.start("r", "a", 0)
    until(lambda: slow in bench.engine.fetched)
    bench.stop("r")
    assert bench.heard() == [Failed("r", "n", "enough")]
    bench.runs.needs = [slow]
    bench.engine.fetched[slow](1)
    bench.runs.needs = []
    bench.start("s", "a", 0)
    assert bench.engine.take() == [("call", 0, "a")]


# --- loads ahead of need ----------------------------------------------------------------------------


def test_a_preload_ends_when_its_model_is_loaded_and_a_start_finds_it(make: Make) -> None:
    bench = make()
    bench.prepare(1, "a", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,))]
    assert bench.executor.status()[0]["running"] == ["preload/1"]
    bench.report(Loaded(0, "a"))
    assert bench.heard() == [PrepareEnded(1)]
    bench.start("r", "a", 0)
    assert bench.engine.take() == [("call", 0, "a")]
    bench.prepare(2, "b", 0)
    assert bench.engine.take() == [("unload", 0, "a", False), ("load", 0, "b", (0,))]


def test_a_start_during_a_preload_waits_for_it(make: Make) -> None:
    bench = make()
    bench.prepare(1, "a", 0)
    bench.start("r", "a", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,))]
    bench.report(Loaded(0, "a"))
    assert bench.heard() == [PrepareEnded(1), Settled("r", "n", (0,))]
    assert bench.engine.take() == [("call", 0, "a")]


def test_a_preload_of_what_is_there_ends_at_once(make: Make) -> None:
    bench = make()
    bench.load("r", "a", 0)
    bench.prepare(1, "a", 0)
    assert (bench.heard(), bench.engine.take()) == ([PrepareEnded(1)], [])


def test_a_preload_that_fails_takes_those_with_it_who_wait_for_it(make: Make) -> None:
    bench = make()
    bench.prepare(1, "a", 0)
    bench.start("r", "a", 0)
    bench.report(LoadFailed(0, "a", "no room", out_of_memory=True))
    why = "a could not be loaded: no room"
    emptied = Observed("emptied", {"gpus": [0], "why": why})
    assert bench.heard() == [emptied, PrepareEnded(1, why), Failed("r", "n", why, lost=True)]
    bench.prepare(2, "a", 0)
    bench.report(LoadFailed(0, "a", "no room", out_of_memory=True))
    assert bench.heard() == [emptied, PrepareEnded(2, why)]
    bench.engine.take()
    bench.start("s", "a", 0)
    assert bench.engine.take() == [("load", 0, "a", (0,))]


def test_a_preload_is_lost_with_its_worker_and_none_begins_there(make: Make) -> None:
    bench = make(gpus=2)
    bench.prepare(1, "wide", 0, 1)
    bench.report(WorkerLost(0, "killed"))
    (gone, emptied, ended) = bench.heard()
    assert (gone.what, emptied.what, emptied.facts["gpus"]) == ("gone", "emptied", [0, 1])
    assert ended == PrepareEnded(1, "the worker of GPU 0 was lost: killed")
    bench.prepare(2, "a", 0)
    assert bench.heard() == [PrepareEnded(2, "the worker of GPU 0 is gone: killed")]


def test_a_preload_ends_once_though_nobody_wants_it_any_more(make: Make) -> None:
    """Who went on with it is stopped, and its GPU is given to another model while the load goes on."""
    bench = make()
    bench.prepare(1, "a", 0)
    bench.start("r", "a", 0)
    bench.stop("r")
    bench.start("s", "b", 0)
    why = "its GPUs were given to another model"
    assert bench.heard() == [Failed("r", "n", "enough"), PrepareEnded(1, why)]
    bench.report(Loaded(0, "a"), Unloaded(0, "a"), Loaded(0, "b"))
    assert bench.heard() == [Settled("s", "n", (0,))]


def test_a_preload_that_never_ends_loses_its_worker(make: Make) -> None:
    bench = make(limits=LiveLimits(load_factor=0.0, load_floor_s=0.01))
    bench.prepare(1, "a", 0)
    until(lambda: any(told[0] == "restart" for told in bench.engine.told))
    assert "a was not loaded within 0.01 s" in bench.heard()[-1].why
