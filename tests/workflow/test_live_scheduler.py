"""What only a live run tells: the scheduler heeds it, the guard and the checker hold it to that, and replay agrees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.core import registry
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Failed,
    Finished,
    Instruction,
    Observed,
    Order,
    Reject,
    Settled,
    Start,
    Stimulus,
    Stop,
)
from dovetail.core.journal import Ended, Reader
from dovetail.core.loop.engine import serve
from dovetail.core.loop.inbox import Inbox
from dovetail.core.loop.replay import replay_journal
from dovetail.core.resources import Device, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.live_like import (
    Mishap,
    Reality,
    check_live_case,
    live_case,
    random_reality,
    run_live_like,
)
from dovetail.testing.workflow.random_workloads import read_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.explain import account
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.metrics import TokenMetrics
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.scheduler import WorkflowScheduler

MODELS = {
    "llm": ModelCost(8.0, 10.0, batch_curve=(1.0, 1.5, 1.8)),
    "sd": ModelCost(4.0, 5.0),
    "chat": ModelCost(8.0, 10.0, concurrency_curve=(1.0, 0.5, 0.4)),
}
GRAPHS = {
    "one": TaskGraph("one", [Task("a", "llm")], []),
    "chain": TaskGraph("chain", [Task("a", "llm"), Task("b", "sd")], [("a", "b")]),
    "fork": TaskGraph("fork", [Task("a", "llm"), Task("b", "sd")], []),
    "talk": TaskGraph("talk", [Task("a", "chat")], []),
}


class Bench:
    """A scheduler on the table: put something in, see what comes out."""

    def __init__(self, gpus: int = 1, costs: CostRules | None = None, retries: int = 0, lost_retries: int = 20) -> None:
        models = MODELS if costs is None else {name: MODELS[name] for name in ("llm", "sd")}
        self.view = View(Pool.parse(str(gpus), {}), models, costs or CostRules())
        policy = registry.create("workflow", "baseline")
        self.scheduler = WorkflowScheduler(self.view, GRAPHS, policy, retries, lost_retries=lost_retries)

    def __call__(self, now: float, *stimuli: Stimulus) -> list[Instruction]:
        return self.scheduler.handle(stimuli, now)


def arrived(job: str, of: str = "one") -> Arrived:
    return Arrived(job, of, (8.0,) * len(GRAPHS[of].tasks))


def starts(orders: Sequence[Instruction]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(order.job, order.task, order.devices) for order in orders if isinstance(order, Start)]


# --- cancelled ------------------------------------------------------------------------------------


def test_what_runs_of_a_cancelled_request_is_stopped_and_its_gpu_free_when_it_has_ended() -> None:
    bench = Bench(2)
    bench(0.0, arrived("r", "fork"), arrived("waits"))
    why = "it was asked to be cancelled"
    orders = bench(1.0, Asked("r", "cancel"))
    assert orders == [Stop("r", "a", why), Stop("r", "b", why), Reject("r", why, cancelled=True)]
    assert starts(bench(2.0, Failed("r", "a", why))) == [("waits", "a", (0,))]
    assert starts(bench(3.0, Finished("r", "b"))) == []  # it was first
    assert bench.view.free == [False, True]
    assert bench.view.demand == {"llm": 0.0, "sd": 0.0, "chat": 0.0}


def test_a_request_that_only_waits_is_cancelled_at_once_and_once() -> None:
    bench = Bench()
    bench(0.0, arrived("first"), arrived("waits"))
    assert [type(order) for order in bench(1.0, Asked("waits", "cancel"), Asked("waits", "cancel"))] == [Reject]
    assert bench(2.0, Asked("waits", "cancel")) == []
    assert bench(2.0, Asked("nobody", "cancel")) == []
    assert bench(2.0, Asked("first", "applaud")) == []
    assert bench.view.queues == {}
    assert [type(order).__name__ for order in bench(3.0, Finished("first", "a"))] == ["Complete"]


def test_one_of_a_batch_is_stopped_and_the_others_go_on() -> None:
    bench = Bench(costs=CostRules(batching=True))
    batched = [order for order in bench(0.0, arrived("r"), arrived("s")) if isinstance(order, Start)]
    assert {start.job for start in batched} == {"r", "s"}
    assert batched[0].batch == batched[1].batch != 0
    assert [type(order) for order in bench(41.0, Asked("r", "cancel"))] == [Stop, Reject]
    bench(42.0, Failed("r", "a", "stopped"))
    assert bench.view.free == [False]
    bench(43.0, Finished("s", "a"))
    assert bench.view.free == [True]


def test_one_of_those_who_share_a_window_is_stopped_and_its_slot_is_free() -> None:
    bench = Bench()
    bench(0.0, *[arrived(f"r{i}", "talk") for i in range(4)])
    assert [type(order) for order in bench(1.0, Asked("r1", "cancel"))] == [Stop, Reject]
    assert starts(bench(2.0, Failed("r1", "a", "stopped"))) == [("r3", "a", (0,))]


# --- lost, gone, joined ---------------------------------------------------------------------------


def test_a_lost_node_does_not_count_against_its_retries_but_has_a_limit_of_its_own() -> None:
    bench = Bench(retries=0, lost_retries=2)
    bench(0.0, arrived("r"))
    for t in (1.0, 2.0):
        assert starts(bench(t, Failed("r", "a", "its worker died", lost=True))) == [("r", "a", (0,))]
    assert bench(3.0, Failed("r", "a", "its worker died", lost=True)) == [
        Reject("r", "node 'a' was lost 3 times: its worker died")
    ]
    bench(4.0, arrived("s"))
    bench(5.0, Failed("s", "a", "died", lost=True))
    assert bench(6.0, Failed("s", "a", "bad input")) == [Reject("s", "node 'a' failed 1 times: bad input")]


def test_what_is_only_seen_costs_no_decision() -> None:
    asked = []

    class Asks(WorkflowPolicy):
        def choose(self, view: View) -> None:
            asked.append(view.now)

    view = View(Pool.parse("1", {}), MODELS, CostRules())
    scheduler = WorkflowScheduler(view, GRAPHS, Asks())
    scheduler.handle([arrived("r")], 0.0)
    scheduler.handle([Settled("r", "a", (0,))], 1.0)
    scheduler.handle([Observed("first token", {"job": "r", "task": "a"})], 2.0)
    scheduler.handle([Settled("r", "a", (0,)), Observed("tokens", {"job": "r", "task": "a"})], 3.0)
    assert asked == [0.0]
    scheduler.handle([Observed("emptied", {"gpus": [0], "why": "?"})], 4.0)
    assert asked == [0.0, 4.0]


def test_a_gpu_that_lost_its_models_loads_again() -> None:
    bench = Bench()
    bench(0.0, arrived("r"))
    bench(18.0, Finished("r", "a"))
    assert bench.view.residents.price(0, "llm") == 0.0
    bench(19.0, Observed("emptied", {"gpus": [0], "why": "its worker died"}))
    (start,) = bench(20.0, arrived("s"))
    assert isinstance(start, Start)
    assert (start.setup_s, start.replaces) == (10.0, None)


def test_nothing_starts_on_a_gpu_that_is_gone_until_it_is_back() -> None:
    bench = Bench(2)
    bench(0.0, Observed("gone", {"gpus": [0], "why": "its node left"}))
    assert starts(bench(1.0, arrived("r"), arrived("s"))) == [("r", "a", (1,))]
    assert bench.view.size == 1
    assert starts(bench(2.0, Observed("back", {"gpus": [0]}))) == [("s", "a", (0,))]


def test_what_runs_on_a_gpu_that_goes_ends_by_its_own_failure() -> None:
    bench = Bench(2, retries=0)
    bench(0.0, arrived("r"), arrived("s"), arrived("waits"))
    assert bench(1.0, Observed("gone", {"gpus": [0], "why": "its node left"})) == []
    assert starts(bench(2.0, Failed("r", "a", "its node left", lost=True))) == []
    assert starts(bench(3.0, Finished("s", "a"))) == [("waits", "a", (1,))]
    assert starts(bench(4.0, Observed("back", {"gpus": [0]}))) == [("r", "a", (0,))]


def test_all_gpus_may_be_gone_for_a_while() -> None:
    for policy in registry.names("workflow"):
        chosen: WorkflowPolicy = registry.create("workflow", policy)
        if chosen.plans_ahead:
            continue
        view = View(Pool.parse("2", {}), MODELS, CostRules())
        scheduler = WorkflowScheduler(view, GRAPHS, chosen)
        scheduler.handle([Observed("gone", {"gpus": [0, 1], "why": "?"})], 0.0)
        assert starts(scheduler.handle([arrived("r", "chain")], 1.0)) == []
        assert len(starts(scheduler.handle([Observed("back", {"gpus": [1]})], 2.0))) == 1


def test_gpus_that_join_are_used() -> None:
    bench = Bench(1)
    bench(0.0, arrived("r"), arrived("s"))
    joined = Added("a node joined", (Device(1, "gpu", 1), Device(2, "gpu", 1)))
    assert starts(bench(1.0, joined)) == [("s", "a", (1,))]
    assert (bench.view.size, bench.view.free) == (3, [False, False, True])


def test_nobody_joins_a_window_whose_model_was_lost() -> None:
    bench = Bench()
    bench(0.0, arrived("r", "talk"))
    bench(20.0, Observed("emptied", {"gpus": [0], "why": "its worker died"}))
    assert starts(bench(21.0, arrived("s", "talk"))) == []
    ((start),) = [o for o in bench(22.0, Failed("r", "a", "died", lost=True)) if isinstance(o, Start) and o.job == "s"]
    assert start.setup_s == 10.0


# --- the loop and the guard -----------------------------------------------------------------------


class Deaf:
    """An executor that carries nothing out."""

    def carry(self, orders: Sequence[Order], now: float) -> None: ...

    def restore(self, desired: object, now: float) -> None: ...


def test_reports_are_taken_in_the_order_in_which_they_came() -> None:
    seen: list[Stimulus] = []

    class Listens:
        def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
            seen.extend(stimuli)
            return []

        def close(self, now: float) -> list[Instruction]:
            return []

    inbox = Inbox()
    told: list[Stimulus] = [
        arrived("r"),
        Settled("x", "a", (0,)),
        Observed("tokens", {"job": "x", "task": "a"}),
        Observed("emptied", {"gpus": [0]}),
        Added("joined", (Device(1, "gpu"),)),
    ]
    inbox.extend(told)
    inbox.close()
    serve(Listens(), Pool.parse("1", {}), GRAPHS, inbox, Deaf(), lambda: 0.0)
    assert seen == [told[4], *told[1:4], told[0]]


CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 5},
    },
    "workflows": {
        "draw": {
            "nodes": [{"id": "a", "model": "llm"}, {"id": "b", "model": "sd"}],
            "edges": [{"from": "a", "to": "b"}],
        }
    },
}


def problem(requests: int = 12, gpus: int = 3) -> WorkflowProblem:
    rows = [
        {
            "request_id": f"r{i}",
            "workflow_id": "draw",
            "timestamp": 3.0 * i,
            "node_execution_times": {"a": 6.0, "b": 4.0},
        }
        for i in range(requests)
    ]
    return load(CONFIG, rows, gpus=gpus, mode="online")


def test_the_guard_refuses_a_start_on_a_gpu_that_is_gone() -> None:
    header = problem().header("baseline", {}, 0, live=True)
    guard = LiveGuard(header)
    guard.see(Observed("gone", {"gpus": [1], "why": "its node left"}), 0.0)
    guard.see(Arrived("r", "draw", (6.0, 4.0)), 0.0)
    start = Start("r", "a", "llm", (1,), 0.0, 6.0, "why not", 10.0)
    with pytest.raises(PolicyError, match="GPU 1 is gone"):
        guard.allow(start, 0.0)
    guard.see(Observed("back", {"gpus": [1]}), 1.0)
    guard.allow(start, 1.0)
    with pytest.raises(InputError, match="GPUs \\[3\\] were said to be gone, expected a list of 0 to 2"):
        guard.see(Observed("gone", {"gpus": [3]}), 1.0)


def test_a_live_run_knows_no_planned_gpus_over_time(tmp_path: Path) -> None:
    steps = {"steps": [[0.0, 1], [5.0, 2]]}
    planned = load(CONFIG, [], gpus=2, mode="online", gpus_over_time=steps)
    with pytest.raises(InputError, match="gpus_over_time: expected none in a live run"):
        LiveGuard(planned.header("baseline", {}, 0, live=True))


# --- the checker ----------------------------------------------------------------------------------

HARD = Reality(
    spread=0.5,
    cancel_rate=0.5,
    mishaps=(Mishap(7.0, 0), Mishap(12.0, 1, 15.0)),
    joining=((20.0, Added("a node joined", (Device(3, "gpu", 1),))),),
)


@pytest.fixture(scope="module")
def live_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "live.jsonl"
    run_live_like(problem(), "dovetail", path, HARD, seed=0)
    return path


def test_a_live_journal_is_valid_and_decides_again_the_same(live_journal: Path) -> None:
    report = check_journal(live_journal, CONFIG)
    assert report.faults == []
    assert report.notes == ["bounds were not checked: models were called, and took as long as they did"]
    assert replay_journal(live_journal).difference is None
    kinds = {type(event) for _, _, event in Reader(live_journal)}
    assert kinds >= {Added, Asked, Settled, Observed, Failed, Stop, Reject}


Line = dict[str, Any]


def faults(journal: Path, tmp_path: Path, change: Callable[[list[Line]], object]) -> set[str]:
    """The codes of what the checker finds after a change of the journal's lines."""
    head, *lines = journal.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    change(events)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("\n".join([head, *map(json.dumps, events)]) + "\n")
    return {fault.code for fault in check_journal(damaged, limit=1000).faults}


def first(lines: list[Line], kind: str, **facts: Any) -> int:
    return next(i for i, e in enumerate(lines) if e["k"] == kind and all(e.get(k) == v for k, v in facts.items()))


def drop(kind: str, **facts: Any) -> Callable[[list[Line]], object]:
    return lambda lines: lines.pop(first(lines, kind, **facts))


def set_in(kind: str, key: str, value: Any, **facts: Any) -> Callable[[list[Line]], object]:
    return lambda lines: lines[first(lines, kind, **facts)].__setitem__(key, value)


def twice(kind: str, **facts: Any) -> Callable[[list[Line]], object]:
    return lambda lines: lines.insert(first(lines, kind, **facts), lines[first(lines, kind, **facts)])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (drop("asked"), "cancel"),
        (drop("stopped"), "cancel"),
        (set_in("rejected", "cancelled", False, cancelled=True), "cancel"),
        (drop("rejected", cancelled=True), "cancel"),
        (drop("observed", what="back"), "off"),
        (drop("observed", what="emptied"), "price"),
        (drop("observed", what="gone"), "price"),
        (set_in("observed", "facts", {"gpus": [9]}, what="gone"), "seen"),
        (set_in("observed", "facts", {"gpus": "all"}, what="emptied"), "seen"),
        (drop("added"), "device"),
        (set_in("settled", "devices", [2]), "seen"),
        (set_in("settled", "task", "c"), "seen"),
        (twice("settled"), "seen"),
        (twice("observed", what="first token"), "seen"),
        (set_in("failed", "job", "nobody", lost=True), "finish"),
    ],
)
def test_the_checker_finds(live_journal: Path, tmp_path: Path, change: Any, code: str) -> None:
    assert code in faults(live_journal, tmp_path, change)


def test_the_checker_counts_losses_against_their_own_limit(live_journal: Path, tmp_path: Path) -> None:
    head, *lines = live_journal.read_text().splitlines()
    header = json.loads(head)
    header["facts"]["lost_retries"] = 0
    strict = tmp_path / "strict.jsonl"
    strict.write_text("\n".join([json.dumps(header), *lines]) + "\n")
    assert "retry" in {fault.code for fault in check_journal(strict).faults}


# --- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(8))
def test_random_live_runs_are_valid_under_every_policy(tmp_path: Path, block: int) -> None:
    for seed in range(8 * block, 8 * block + 8):
        assert check_live_case(seed, tmp_path) == []


def test_the_random_live_runs_have_everything_in_them(tmp_path: Path) -> None:
    kinds: set[str] = set()
    for seed in range(25):
        case = live_case(seed)
        read = read_case(case, tmp_path)
        run_live_like(read, "baseline", tmp_path / "j.jsonl", random_reality(seed, read.pool), seed=seed)
        for _, _, event in Reader(tmp_path / "j.jsonl"):
            kinds.add(type(event).__name__)
            if isinstance(event, Observed):
                kinds.add(event.what)
            if isinstance(event, Failed):
                kinds.add("lost" if event.lost else "blamed")
            if isinstance(event, Start):
                kinds |= {"slots"} if event.slots else set()
    assert kinds >= {
        *("Asked", "Stop", "Settled", "Grew", "Added", "emptied", "gone", "back"),
        *("first token", "tokens", "lost", "blamed", "slots"),
    }


# --- figures and stories --------------------------------------------------------------------------


def test_loads_count_as_long_as_they_were_seen_to_take(live_journal: Path) -> None:
    began: dict[tuple[str, str], tuple[float, Start]] = {}
    took = {True: 0.0, False: 0.0}  # by whether something was replaced
    claimed: dict[str, Any] = {}
    for _, t, event in Reader(live_journal):
        if isinstance(event, Start):
            began[event.job, event.task] = (t, event)
            took[event.replaces is not None] += event.setup_s
        elif isinstance(event, Settled):
            since, start = began[event.job, event.task]
            if start.setup_s:  # else it waited for a load that was begun for another, which was cancelled
                took[start.replaces is not None] += t - since - start.setup_s
        elif isinstance(event, Ended):
            claimed = event.summary
    assert claimed["switch_time_s"] == pytest.approx(took[True])
    assert claimed["load_time_s"] == pytest.approx(took[False])
    assert claimed["bound_by"] == "models were called, and took as long as they did"
    assert claimed["bound_makespan_s"] is None


def test_a_story_tells_how_long_a_load_took_and_which_gpus_were_gone(live_journal: Path) -> None:
    reader = Reader(live_journal)
    settled = [(t, event) for _, t, event in reader if isinstance(event, Settled)]
    starts_of = {(e.job, e.task): t for _, t, e in reader if isinstance(e, Start)}  # the last one counts
    told = [(t, event) for t, event in settled if starts_of[event.job, event.task] < t]
    at_s, event = told[-1]
    text = account(reader, event.job, event.task).text
    assert f"took {at_s - starts_of[event.job, event.task]:.2f} s." in text
    (gone_s,) = [t for _, t, e in reader if isinstance(e, Observed) and e.what == "gone"]
    (back_s,) = [t for _, t, e in reader if isinstance(e, Observed) and e.what == "back"]
    meanwhile = [e for _, _, e in reader if isinstance(e, Start) and gone_s < e.ready_s < back_s]
    stories = [account(reader, start.job, start.task).text for start in meanwhile]
    assert any("GPU 1 was off" in story for story in stories)


def test_tokens_that_were_told_count(tmp_path: Path) -> None:
    metrics = TokenMetrics(live=True)
    start = Start("r", "a", "llm", (0,), 1.0, 8.0, "why not")
    told = {"job": "r", "task": "a"}
    metrics.step(1, 0.0, [Arrived("r", "one", (8.0,))])
    metrics.step(2, 2.0, [start])
    metrics.step(3, 4.0, [Observed("first token", told)])
    metrics.step(4, 9.0, [Observed("tokens", told | {"input": 7, "output": 10}), Finished("r", "a")])
    figures = metrics.figures(10.0)
    assert (figures["avg_ttft_s"], figures["avg_tpot_s"], figures["output_tokens_per_s"]) == (3.0, 0.5, 1.0)
