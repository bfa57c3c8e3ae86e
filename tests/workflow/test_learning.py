"""What live runs teach: paces and loads, how the checker recounts them, and what policies see of what takes longer."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dovetail import workflow
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Failed, Finished, Observed, Reject, Settled, Start, Stimulus, WakeAt, Woke
from dovetail.core.journal import Ended, Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.core.rates import HOST, Rate, RateTable, Switch
from dovetail.core.resources import Pool
from dovetail.testing.workflow.as_it_was import simulations
from dovetail.testing.workflow.live_like import Mishap, Reality, run_live_like
from dovetail.workflow.check import check_journal
from dovetail.workflow.gpus.learning import FEW_RUNS, RECENT, Learning, LoadCase, RecentSamples
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import new_scheduler, run

POOL = Pool.parse("2", {})
MODELS = {
    "llm": ModelCost(8.0, 10.0, prefill_s=0.01),
    "sd": ModelCost(4.0, 5.0),
    "chat": ModelCost(8.0, 10.0, concurrency_curve=(1.0, 0.9, 0.8, 0.7)),
}


def start(job: str, model: str = "llm", run_s: float = 8.0, **more: Any) -> Start:
    return Start(job, "a", model, (0,), 0.0, run_s, "why not", **more)


class Class:
    """Something to learn from: calls on one GPU, one after the other."""

    def __init__(self, table: RateTable | None = None, costs: CostRules | None = None) -> None:
        self.table = table if table is not None else RateTable()
        self.learning = Learning(POOL, MODELS, costs or CostRules(), self.table)
        self.now, self._count = 0.0, 0

    def call(self, took_s: float, model: str = "llm", size_s: float = 8.0) -> None:
        key = (f"r{self._count}", "a")
        self._count += 1
        run_s = size_s / (self.table.rate(model, "gpu") or 1.0)
        self.learning.started(self.now, start(key[0], model, run_s), 1.0, None)
        self.now += took_s
        self.learning.ended(self.now, key, True)


# --- paces ----------------------------------------------------------------------------------------


def test_a_pace_counts_from_the_fifth_call_on_and_is_the_median() -> None:
    taught = Class()
    for took_s in (16.0, 16.0, 12.8, 1000.0):
        taught.call(took_s)
    assert taught.table.rate("llm", "gpu") is None
    taught.call(20.0)
    assert taught.table.rate("llm", "gpu") == 8.0 / 16.0
    assert taught.table.rates["llm", "gpu", 1, "", "", 1].source == "measured"
    (known,) = taught.learning.known()
    assert (known.what, known.model, known.device, known.samples) == ("pace", "llm", "gpu", 5)
    assert known.spread == pytest.approx(1.4826 * 0.1 / 0.5)  # the middle of the distances from the median


def test_an_old_pace_is_forgotten() -> None:
    taught = Class()
    for _ in range(40):
        taught.call(16.0)
    for _ in range(RECENT // 2 + 1):
        taught.call(4.0)
    assert taught.table.rate("llm", "gpu") == 2.0


def test_a_pace_is_relative_to_what_was_expected_when_the_call_began() -> None:
    taught = Class(RateTable([Rate("llm", "gpu", 4.0)]))
    for _ in range(FEW_RUNS):
        taught.call(4.0)  # at a rate of 4 it should have taken 2 s
    assert taught.table.rate("llm", "gpu") == 2.0
    for _ in range(FEW_RUNS):
        taught.call(4.0)
    assert taught.table.rate("llm", "gpu") == 2.0


def test_failures_and_calls_of_which_nobody_knows_when_they_began_teach_nothing() -> None:
    taught = Class()
    for i in range(9):
        taught.learning.started(10.0 * i, start(f"f{i}"), 1.0, None)
        taught.learning.ended(10.0 * i + 1, (f"f{i}", "a"), False)
        taught.learning.started(10.0 * i + 2, start(f"u{i}", setup_s=3.0), 1.0, LoadCase("sd"))
        taught.learning.ended(10.0 * i + 9, (f"u{i}", "a"), True)
    assert taught.learning.known() == []
    assert not taught.table


def test_the_tokens_that_there_were_are_the_work() -> None:
    taught = Class()
    for i in range(FEW_RUNS):  # 200 tokens to read and 30 to write should take 2 s and 6 s; 15 were written
        taught.learning.started(10.0 * i, start(f"r{i}"), 1.0, None)
        taught.learning.counted((f"r{i}", "a"), (200, 30), {"input": 200, "output": 15}, 8.0)
        taught.learning.ended(10.0 * i + 5.0, (f"r{i}", "a"), True)
    assert taught.table.rate("llm", "gpu") == pytest.approx((2.0 + 3.0) / 5.0)


def test_a_rate_of_reading_follows_the_pace() -> None:
    given = RateTable([Rate("llm", "gpu", 1.0), Rate("llm", "gpu", 100.0, unit="prefill tokens/s")])
    taught = Class(given)
    for _ in range(FEW_RUNS):
        taught.call(16.0)
    assert given.per_s("llm", "gpu", "prefill tokens/s") == 50.0


def test_the_speed_of_each_at_several_at_once_is_learned() -> None:
    taught = Class()
    learning = taught.learning
    for i in range(2):  # three at once, each of 8 s alone, take 16 s
        for j in range(3):
            share = (1.0, 0.9, 0.8)[j]
            learning.started(20.0 * i, start(f"r{i}{j}", "chat", 8.0 / share, slots=4), share, None)
        for j in range(3):
            learning.ended(20.0 * i + 16.0, (f"r{i}{j}", "a"), True)
    rates = taught.table.at_once("chat", "gpu")
    assert rates[3] == pytest.approx(0.5)
    assert rates[1] == pytest.approx(0.5 / 0.8)  # by the configuration's curve, as nobody was seen alone


# --- loads ----------------------------------------------------------------------------------------


def load_for(learning: Learning, began: float, took_s: float, case: LoadCase, job: str) -> str | None:
    learning.started(began, start(job, setup_s=10.0), 1.0, case)
    changed = learning.settled(began + took_s, (job, "a"))
    learning.ended(began + took_s + 8.0, (job, "a"), True)
    return changed


def test_a_load_is_known_by_what_left_and_else_by_the_model_alone() -> None:
    taught = Class()
    assert load_for(taught.learning, 0.0, 3.0, LoadCase("sd"), "r0") is None
    assert load_for(taught.learning, 50.0, 5.0, LoadCase(""), "r1") == "llm"
    table = taught.table
    assert table.switch_s("sd", "llm", "gpu") == 3.0  # the shorter of both, as neither was seen twice
    load_for(taught.learning, 100.0, 3.0, LoadCase("sd"), "r2")
    assert (table.switch_s("sd", "llm", "gpu"), table.switch_s("chat", "llm", "gpu")) == (3.0, 3.0)
    load_for(taught.learning, 150.0, 5.0, LoadCase(""), "r3")
    assert (table.switch_s(None, "llm", "gpu"), table.switch_s("sd", "llm", "gpu")) == (5.0, 3.0)


def test_a_first_load_that_was_slow_does_not_make_a_model_dear() -> None:
    """It brought the libraries of its process along; a model that seems dear would not be loaded again."""
    taught = Class()
    for i, took_s in enumerate((30.0, 3.0)):
        load_for(taught.learning, 50.0 * i, took_s, LoadCase("sd"), f"r{i}")
    assert taught.table.switch_s("sd", "llm", "gpu") == 3.0
    assert {rate.value for rate in taught.learning.known()} == {3.0}


def test_what_moves_out_is_not_the_load_s_own() -> None:
    taught = Class(costs=CostRules(dram_gb=64.0))
    for i in range(2):
        load_for(taught.learning, 50.0 * i, 3.0, LoadCase(HOST, extra_s=1.0), f"r{i}")
    residents = Residents(POOL, MODELS, CostRules(dram_gb=64.0), taught.table)
    residents.load((0,), "llm")
    residents.load((0,), "sd")  # host memory keeps the first
    assert residents.load_case((0,), "llm") == LoadCase(HOST, 4.0 / 16.0)
    assert residents.price(0, "llm") == 2.0 + 4.0 / 16.0


@pytest.mark.parametrize("costs", [CostRules(), CostRules(resident="memory"), CostRules(dram_gb=32.0)])
def test_a_load_case_names_what_its_price_is_made_of(costs: CostRules) -> None:
    types = {"gpu": {"memory_mib": 13000}}
    pool = Pool.parse("1", {}) if costs.resident == "one" else Pool.parse("gpu:1", _types(types))
    residents = Residents(pool, MODELS, costs)
    assert residents.load_case((0,), "llm") == LoadCase("")
    residents.load((0,), "llm")
    assert residents.load_case((0,), "llm") is None
    expected = {
        "one": LoadCase("llm"),
        "memory": LoadCase(HOST, 0.0),  # beside the other, which stays
    }[costs.resident]
    if costs.dram_gb:
        expected = LoadCase("", 8.0 / 16.0)
    assert residents.load_case((0,), "sd") == expected


def _types(given: dict[str, dict[str, int]]) -> Any:
    from dovetail.core.resources import DeviceType

    return {name: DeviceType(name, **values) for name, values in given.items()}


# --- overruns -------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 5},
        "vlm": {"memory_gb": 6, "gpus_required": 1, "load_time_seconds": 8, "max_concurrency": 3},
    },
    "workflows": {
        "draw": {
            "nodes": [{"id": "a", "model": "llm"}, {"id": "b", "model": "sd"}],
            "edges": [{"from": "a", "to": "b"}],
        },
        "see": {"nodes": [{"id": "a", "model": "vlm"}]},
    },
}


def rows_of(requests: int) -> list[dict[str, Any]]:
    return [
        {
            "request_id": f"r{i}",
            "workflow_id": "see" if i % 3 == 2 else "draw",
            "timestamp": 4.0 * i,
            "node_execution_times": {"a": 6.0} if i % 3 == 2 else {"a": 6.0, "b": 4.0},
        }
        for i in range(requests)
    ]


def problem(requests: int, gpus: int = 2) -> WorkflowProblem:
    return load(CONFIG, rows_of(requests), gpus=gpus, mode="online")


def live_scheduler(gpus: int = 2, policy: str = "baseline") -> WorkflowScheduler:
    return new_scheduler(problem(0, gpus).header(policy, {}, 0, live=True))


def test_a_gpu_that_should_be_free_by_now_is_not_counted_on() -> None:
    scheduler = live_scheduler(1)
    scheduler.handle([Arrived("r", "draw", (6.0, 4.0))], 0.0)
    assert scheduler.view.free_at((0,)) == 16.0
    scheduler.handle([Settled("r", "a", (0,))], 4.0)
    assert scheduler.view.free_at((0,)) == 10.0  # the load took 4 s, not 10
    scheduler.handle([Arrived("s", "draw", (6.0, 4.0))], 20.0)
    assert scheduler.view.free_at((0,)) == 20.0 + 0.5 * 20.0
    scheduler.handle([Arrived("t", "draw", (6.0, 4.0))], 28.0)
    assert scheduler.view.free_at((0,)) == 30.0
    scheduler.handle([Arrived("u", "draw", (6.0, 4.0))], 40.0)
    assert scheduler.view.free_at((0,)) == 60.0  # the longer it has run, the longer it is expected to


def test_who_waits_for_a_gpu_that_is_late_does_not_wait_for_ever_beside_a_free_one() -> None:
    scheduler = live_scheduler(2, "dovetail")
    for now, event in (
        (0.0, Arrived("r", "draw", (6.0, 4.0))),
        (0.0, Arrived("s", "see", (6.0,))),
        (8.0, Settled("s", "a", (1,))),
        (10.0, Settled("r", "a", (0,))),
        (14.0, Finished("s", "a")),
    ):
        scheduler.handle([event], now)
    orders = scheduler.handle([Arrived("t", "draw", (6.0, 4.0))], 15.0)
    assert orders == [WakeAt(16.1)], "GPU 0 should be free sooner than GPU 1 has the model"
    wakes = 0
    while isinstance(order := orders[0], WakeAt):  # and nothing else happens
        wakes += 1
        orders = scheduler.handle([Woke()], order.at_s)
    assert isinstance(order, Start)
    assert (order.job, order.devices) == ("t", (1,))
    assert scheduler.view.now < 30.0
    assert wakes < 5


def test_a_wake_for_another_reason_is_asked_for_once_beside_one_for_a_late_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = live_scheduler(2, "dovetail")
    monkeypatch.setattr(scheduler._preloading, "decide", lambda now, out: 50.0)
    scheduler.handle([Arrived("r", "draw", (6.0, 4.0))], 0.0)
    scheduler.handle([Arrived("s", "see", (6.0,))], 0.0)
    scheduler.handle([Settled("s", "a", (1,))], 8.0)
    scheduler.handle([Settled("r", "a", (0,))], 10.0)
    scheduler.handle([Finished("s", "a")], 14.0)
    assert scheduler.handle([Arrived("t", "draw", (6.0, 4.0))], 15.0) == [WakeAt(16.1)]
    for now in (15.1, 15.2, 15.3):
        assert scheduler.handle([Woke()], now) == []


def test_who_joins_a_window_whose_load_is_late_expects_to_wait() -> None:
    scheduler = live_scheduler(1)
    (first,) = scheduler.handle([Arrived("r", "see", (6.0,))], 0.0)
    (second,) = scheduler.handle([Arrived("s", "see", (6.0,))], 12.0)
    assert isinstance(first, Start)
    assert isinstance(second, Start)
    assert (first.setup_s, second.setup_s) == (8.0, 6.0)
    told: list[Stimulus] = [Settled("r", "a", (0,)), Settled("s", "a", (0,))]
    scheduler.handle(told, 13.0)
    (third,) = scheduler.handle([Arrived("t", "see", (6.0,))], 13.5)
    assert isinstance(third, Start)
    assert third.setup_s == 0.0


# --- whole runs -----------------------------------------------------------------------------------

WRONG = Reality(spread=0.1, wrong=4.0)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learning") / "live.jsonl"
    run_live_like(problem(60), "dovetail", path, WRONG, seed=5)
    return path


def test_what_is_expected_comes_close_to_what_happens(journal: Path) -> None:
    began: dict[tuple[str, str], tuple[float, Start]] = {}
    off: dict[str, list[float]] = {}
    for _, t, event in Reader(journal):
        if isinstance(event, Start):
            began[event.job, event.task] = (t, event)
        elif isinstance(event, Settled):
            began[event.job, event.task] = (t, began[event.job, event.task][1])
        elif isinstance(event, Finished):
            since, started = began[event.job, event.task]
            if not started.slots:
                off.setdefault(started.kind, []).append(abs((t - since) / started.run_s - 1))
    for model, errors in off.items():
        assert median(errors[:FEW_RUNS]) > 0.2, model
        assert median(errors[-20:]) < 0.1, model


def test_the_checker_learns_the_same_and_replay_agrees(journal: Path) -> None:
    assert check_journal(journal, CONFIG).faults == []
    assert replay_journal(journal).difference is None


@pytest.mark.parametrize(("kind", "key", "code"), [("started", "run_s", "run"), ("started", "setup_s", "price")])
def test_an_expectation_that_was_not_to_be_had_then_is_found(
    journal: Path, tmp_path: Path, kind: str, key: str, code: str
) -> None:
    """Neither what the configuration says nor what is known later."""
    head, *lines = journal.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    late = [event for event in events if event["k"] == kind and event.get(key) and event["t"] > 150]
    late[-1][key] *= 1.05
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("\n".join([head, *map(json.dumps, events)]) + "\n")
    assert code in {fault.code for fault in check_journal(damaged).faults}


def test_a_load_that_was_left_out_is_seen_by_what_was_learned_from_it(journal: Path, tmp_path: Path) -> None:
    head, *lines = journal.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    kept = [event for event in events if event["k"] != "settled" or event["t"] > 60]
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("\n".join([head, *map(json.dumps, kept)]) + "\n")
    assert {"run", "price"} <= {fault.code for fault in check_journal(damaged, limit=1000).faults}


def test_a_simulated_run_learns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "simulated.jsonl"
    run(problem(30), "dovetail", journal=path)
    assert new_scheduler(Reader(path).header).learning is None
    starts = [event for _, _, event in Reader(path) if isinstance(event, Start) and event.kind == "llm"]
    assert {event.run_s for event in starts} == {6.0}


def test_samples_keep_the_last_few() -> None:
    samples = RecentSamples()
    for number in range(100):
        samples.add(float(number))
    assert samples.count == RECENT
    assert samples.median == 99 - RECENT // 2


def test_a_price_of_any_switch_stands_behind_those_of_pairs() -> None:
    table = RateTable(switches=[Switch("b", 3.0, "*"), Switch("b", 5.0, "a", "l4")])
    assert [table.switch_s(previous, "b", "l4") for previous in ("a", "c", None)] == [5.0, 3.0, 3.0]
    assert table.switch_s("a", "b", "a100") == 3.0


def test_observed_tokens_that_are_none_teach_nothing() -> None:
    scheduler = live_scheduler(1)
    scheduler.handle([Arrived("r", "draw", (6.0, 4.0), facts={"tokens": {"a": [10, 5]}})], 0.0)
    told = {"job": "r", "task": "a", "input": None, "output": 3}
    scheduler.handle([Settled("r", "a", (0,)), Observed("tokens", told), Finished("r", "a")], 12.0)
    assert scheduler.learning is not None
    assert scheduler.learning.known() == []


# --- a live run, simulated ------------------------------------------------------------------------


DRAW: dict[str, Any] = {
    "models": {name: CONFIG["models"][name] for name in ("llm", "sd")},
    "workflows": {"draw": CONFIG["workflows"]["draw"]},
}


def figures(journal: Path) -> dict[str, Any]:
    (ended,) = [event for _, _, event in Reader(journal) if isinstance(event, Ended)]
    return ended.summary


@pytest.mark.parametrize(("spread", "off"), [(0.0, 1e-6), (0.3, 0.05)])
def test_a_live_run_is_simulated_as_it_was_with_what_it_measured(tmp_path: Path, spread: float, off: float) -> None:
    path = tmp_path / "live.jsonl"
    rows = [row for row in rows_of(90) if row["workflow_id"] == "draw"]
    live = load(DRAW, rows, gpus=2, mode="online")
    run_live_like(live, "baseline", path, Reality(spread=spread, wrong=4.0), seed=2)
    requests, rates = workflow.requests_of(path), workflow.rates_of(path)
    simulated = run(load(DRAW, requests, gpus=2, mode="online", rates=rates), "baseline", journal=False)
    seen = figures(path)
    for key in ("makespan_s", "avg_request_s", "p99_request_s"):
        assert simulated.metrics[key] == pytest.approx(seen[key], rel=off), key


@pytest.mark.parametrize("policy", ["dovetail", "srpt", "baseline"])
def test_who_learns_as_it_did_live_decides_the_same_when_it_is_simulated(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "live.jsonl"
    rows = [row for row in rows_of(90) if row["workflow_id"] == "draw"]
    run_live_like(load(DRAW, rows, gpus=2, mode="online"), policy, path, Reality(spread=0.0, wrong=4.0), seed=2)
    ((simulated,), seen) = simulations(path, 1, 0.0), figures(path)
    for key in ("makespan_s", "avg_request_s", "p99_request_s", "switches"):
        assert simulated[key] == pytest.approx(seen[key], rel=1e-6), key


def test_loads_and_paces_are_measured_over_the_whole_run(journal: Path, tmp_path: Path) -> None:
    workflow.write_logs(journal, rates=tmp_path / "rates.json", requests=tmp_path / "requests.json")
    table = RateTable.read(tmp_path / "rates.json")
    took: dict[str, list[float]] = {}
    began: dict[tuple[str, str], float] = {}
    for _, t, event in Reader(journal):
        if isinstance(event, Start | Settled):
            began[event.job, event.task] = t
        elif isinstance(event, Finished) and event.task == "b":
            took.setdefault("sd", []).append(t - began[event.job, event.task])
    assert table.rate("sd", "gpu") == pytest.approx(median([4.0 / seconds for seconds in took["sd"]]))
    assert {switch.to for switch in table.switches.values()} == {"llm", "sd", "vlm"}
    assert set(table.at_once("vlm", "gpu")) >= {1}
    assert (
        load(CONFIG, tmp_path / "requests.json", gpus=2, mode="online", rates=tmp_path / "rates.json").warnings() == []
    )


def test_what_no_simulation_can_tell_is_said(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    mishaps = (Mishap(30.0, 0), Mishap(50.0, 1, 20.0))
    run_live_like(problem(30), "dovetail", path, Reality(cancel_rate=0.3, mishaps=mishaps), seed=1)
    cancelled = {event.job for _, _, event in Reader(path) if isinstance(event, Reject)}
    failed = sum(isinstance(event, Failed) for _, _, event in Reader(path))
    assert cancelled
    assert failed
    assert workflow.measurements(path).left_out == [
        f"left out: {len(cancelled)} requests that were cancelled, given up or not closed",
        f"left out: {failed} attempts that failed",
        "left out: 1 times that GPUs were gone",
    ]
    assert {row["request_id"] for row in workflow.requests_of(path)} == {f"r{i}" for i in range(30)} - cancelled


def test_a_simulated_run_has_measured_nothing(tmp_path: Path) -> None:
    run(problem(3), "baseline", journal=tmp_path / "simulated.jsonl")
    with pytest.raises(InputError, match="expected the journal of a live run"):
        workflow.rates_of(tmp_path / "simulated.jsonl")
