"""The scheduler as a state machine: what happened goes in, what to do comes out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dovetail.core import registry
from dovetail.core.errors import PolicyError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Instruction, Reject, Start, Stimulus, WakeAt, Woke
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.policies.base import ListPolicy, Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import load
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import run, scheduler_for

MODELS = {
    "llm": ModelCost(8.0, 10.0, batch_curve=(1.0, 1.5, 1.8)),
    "sd": ModelCost(4.0, 5.0),
    "pair": ModelCost(4.0, 5.0, batch_curve=(1.0, 1.5)),
    "wide": ModelCost(16.0, 20.0, 2),
    "tool": ModelCost(0.0, 0.0, 0),
}
GRAPHS = {
    graph.name: graph
    for graph in (
        TaskGraph("one", [Task("a", "llm")], []),
        TaskGraph("pair", [Task("a", "pair")], []),
        TaskGraph("chain", [Task("a", "llm"), Task("b", "sd")], [("a", "b")]),
        TaskGraph("diamond", [Task(n, "llm") for n in "abcd"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]),
        TaskGraph("fork", [Task("a", "llm"), Task("b", "sd")], []),
        TaskGraph("wide", [Task("a", "wide", 2)], []),
        TaskGraph("tools", [Task("a", "tool", 0), Task("b", "llm"), Task("c", "tool", 0)], [("a", "b"), ("b", "c")]),
        TaskGraph("stuck", [Task("a", "llm"), Task("b", "sd")], [("a", "b")], {"b": "waits for 'x'"}),
    )
}
SWITCH_S = (8 + 4) / 16 + 2


class Bench:
    """A scheduler on the table: put something in, see what comes out."""

    def __init__(
        self, gpus: int = 1, policy: str | WorkflowPolicy = "baseline", retries: int = 0, costs: CostRules | None = None
    ) -> None:
        self.view = View(Pool.parse(str(gpus), {}), MODELS, costs or CostRules())
        chosen = registry.create("workflow", policy) if isinstance(policy, str) else policy
        self.scheduler = WorkflowScheduler(self.view, GRAPHS, chosen, retries)

    def __call__(self, now: float, *stimuli: Stimulus) -> list[Instruction]:
        return self.scheduler.handle(stimuli, now)

    @property
    def idle(self) -> bool:
        """Whether nothing is left of anything."""
        view = self.view
        return (
            all(view.free)
            and view.free_count == len(view.pool)
            and not view.queues
            and not view.requests
            and not any(view.demand.values())
        )


def started(orders: Sequence[Instruction]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(order.job, order.task, order.devices) for order in orders if isinstance(order, Start)]


# --- one request ----------------------------------------------------------------------------------


def test_a_request_is_started_completed_and_forgotten() -> None:
    bench = Bench()
    assert bench(0.0, Arrived("r", "one", (7.0,))) == [
        Start("r", "a", "llm", (0,), 0.0, 7.0, "longest idle", setup_s=10.0),
    ]
    assert bench.view.until == [17.0]
    assert bench(17.0, Finished("r", "a")) == [Complete("r")]
    assert bench.idle


def test_the_next_node_is_ready_when_the_one_before_it_ends() -> None:
    bench = Bench()
    bench(3.0, Arrived("r", "chain", (7.0, 2.0)))
    assert bench(20.0, Finished("r", "a")) == [
        Start("r", "b", "sd", (0,), 20.0, 2.0, "longest idle", SWITCH_S, replaces="llm"),
    ]
    assert bench(24.75, Finished("r", "b")) == [Complete("r")]


def test_a_join_waits_for_all() -> None:
    bench = Bench(gpus=2)
    bench(0.0, Arrived("r", "diamond", (1.0, 2.0, 3.0, 4.0)))
    assert started(bench(11.0, Finished("r", "a"))) == [("r", "b", (0,)), ("r", "c", (1,))]
    assert bench(13.0, Finished("r", "b")) == []
    assert started(bench(24.0, Finished("r", "c"))) == [("r", "d", (0,))]
    assert bench(28.0, Finished("r", "d")) == [Complete("r")]
    assert bench.idle


def test_what_does_not_fit_waits_and_finds_its_model_warm() -> None:
    bench = Bench()
    assert started(bench(0.0, Arrived("r1", "one", (7.0,)), Arrived("r2", "one", (5.0,)))) == [("r1", "a", (0,))]
    assert bench(17.0, Finished("r1", "a")) == [
        Complete("r1"),
        Start("r2", "a", "llm", (0,), 0.0, 5.0, "warm"),
    ]


def test_a_wide_node_holds_all_its_gpus() -> None:
    bench = Bench(gpus=3, policy="dovetail")
    [order] = bench(0.0, Arrived("w", "wide", (4.0,)))
    assert isinstance(order, Start)
    assert (order.devices, order.setup_s) == ((0, 1), 20.0)
    assert bench.view.free == [False, False, True]
    assert started(bench(1.0, Arrived("r1", "one", (1.0,)), Arrived("r2", "one", (1.0,)))) == [("r1", "a", (2,))]
    assert started(bench(12.0, Finished("r1", "a"))) == [("r2", "a", (2,))]


def test_things_of_one_instant_are_decided_together() -> None:
    """The GPU that comes free and the request that arrives are seen before anything is chosen."""
    bench = Bench(gpus=2, policy="srpt")
    bench(0.0, Arrived("r1", "one", (5.0,)), Arrived("r2", "one", (9.0,)), Arrived("r3", "one", (9.0,)))
    orders = bench(15.0, Finished("r1", "a"), Arrived("r4", "one", (1.0,)))
    assert orders[0] == Complete("r1")
    assert started(orders) == [("r4", "a", (0,))]


# --- nodes that need no GPU -----------------------------------------------------------------------


def test_a_node_without_a_gpu_starts_at_once_whatever_is_busy() -> None:
    bench = Bench()
    bench(0.0, Arrived("r", "one", (100.0,)))
    assert bench(1.0, Arrived("t", "tools", (3.0, 2.0, 4.0))) == [Start("t", "a", "tool", (), 1.0, 3.0, "needs no GPU")]
    assert bench(4.0, Finished("t", "a")) == []
    assert started(bench(110.0, Finished("r", "a"))) == [("t", "b", (0,))]
    assert bench(112.0, Finished("t", "b")) == [Start("t", "c", "tool", (), 112.0, 4.0, "needs no GPU")]
    assert all(bench.view.free)
    assert bench(116.0, Finished("t", "c")) == [Complete("t")]
    assert bench.idle


# --- faults and failures --------------------------------------------------------------------------


def test_a_faulty_request_is_rejected_as_it_arrives() -> None:
    bench = Bench()
    assert bench(0.0, Arrived("r", "nothing", fault="unknown workflow")) == [Reject("r", "unknown workflow")]
    assert bench.idle


def test_a_failed_node_is_tried_again_and_then_its_request_is_rejected() -> None:
    bench = Bench(retries=1)
    bench(0.0, Arrived("r", "chain", (7.0, 2.0)))
    assert bench(13.0, Failed("r", "a", "out of memory")) == [
        Start("r", "a", "llm", (0,), 13.0, 7.0, "warm"),
    ]
    assert {model: s for model, s in bench.view.demand.items() if s} == {"sd": 2.0}
    assert bench(16.0, Failed("r", "a", "out of memory")) == [Reject("r", "node 'a' failed 2 times: out of memory")]
    assert bench.idle


def test_a_rejection_takes_all_waiting_nodes_of_the_request_with_it() -> None:
    bench = Bench()
    bench(0.0, Arrived("r", "fork", (7.0, 2.0)), Arrived("s", "fork", (1.0, 1.0)))
    assert set(bench.view.queues) == {"sd", "llm"}
    orders = bench(13.0, Failed("r", "a", "broken"))
    assert orders[0] == Reject("r", "node 'a' failed 1 times: broken")
    assert started(orders) == [("s", "a", (0,))]
    assert started(bench(14.0, Finished("s", "a"))) == [("s", "b", (0,))]
    assert bench(17.75, Finished("s", "b")) == [Complete("s")]
    assert bench.idle


def test_what_still_runs_of_a_rejected_request_ends_quietly_and_frees_its_gpus() -> None:
    bench = Bench(gpus=2)
    assert len(started(bench(0.0, Arrived("r", "fork", (7.0, 30.0)), Arrived("s", "one", (1.0,))))) == 2
    assert started(bench(13.0, Failed("r", "a", "broken"))) == [("s", "a", (0,))]
    assert bench.view.free == [False, False]
    assert bench(14.0, Finished("s", "a")) == [Complete("s")]
    assert bench(35.0, Finished("r", "b")) == []
    assert bench.idle
    assert started(bench(36.0, Arrived("t", "fork", (1.0, 1.0)))) == [("t", "a", (0,)), ("t", "b", (1,))]


def test_even_a_failure_of_what_still_runs_is_quiet() -> None:
    bench = Bench(gpus=2, retries=3)
    bench(0.0, Arrived("r", "fork", (7.0, 30.0)))
    for t in (1.0, 2.0, 3.0):
        assert len(bench(t, Failed("r", "a", "broken"))) == 1
    assert bench(4.0, Failed("r", "a", "broken")) == [Reject("r", "node 'a' failed 4 times: broken")]
    assert bench(5.0, Failed("r", "b", "broken")) == []
    assert bench.idle


def test_a_failed_node_without_a_gpu_is_tried_again_too() -> None:
    bench = Bench(retries=1)
    bench(0.0, Arrived("t", "tools", (3.0, 2.0, 4.0)))
    assert bench(1.0, Failed("t", "a", "no network")) == [Start("t", "a", "tool", (), 1.0, 3.0, "needs no GPU")]
    assert bench(2.0, Failed("t", "a", "no network")) == [Reject("t", "node 'a' failed 2 times: no network")]
    assert bench.idle


def test_what_waits_for_ever_is_rejected_at_the_close_with_its_reason() -> None:
    bench = Bench()
    bench(0.0, Arrived("r", "stuck", (7.0, 2.0)), Arrived("s", "one", (1.0,)))
    bench(17.0, Finished("r", "a"))
    assert bench(18.0, Finished("s", "a")) == [Complete("s")]
    assert bench.scheduler.close(18.0) == [Reject("r", "node 'b' waits for 'x'")]
    assert bench.scheduler.close(18.0) == []


# --- admission ------------------------------------------------------------------------------------


class Picky(WorkflowPolicy):
    """Refuses nodes of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.begun: list[float] = []

    def begin(self, view: View) -> None:
        self.begun.append(view.now)

    def refuse(self, node: ReadyNode, view: View) -> str | None:
        return f"no {self.model} today" if node.model == self.model else None

    def choose(self, view: View) -> Place | Wait | None:
        heads = [queue.head for queue in view.queues.values() if view.free_windows(queue.model)]
        if not heads:
            return None
        head = min(heads, key=lambda node: node.seq)
        return Place(head, view.free_windows(head.model)[0], "first")


@pytest.mark.parametrize("model", ["llm", "sd"])
def test_a_request_refused_for_one_root_has_no_other_root_started(model: str) -> None:
    bench = Bench(gpus=2, policy=Picky(model))
    assert bench(0.0, Arrived("r", "fork", (7.0, 2.0))) == [Reject("r", f"no {model} today")]
    assert bench.idle


def test_a_request_may_be_refused_on_its_way() -> None:
    policy = Picky("sd")
    bench = Bench(gpus=2, policy=policy)
    bench(0.0, Arrived("r", "chain", (7.0, 2.0)))
    assert bench(17.0, Finished("r", "a")) == [Reject("r", "no sd today")]
    assert bench.idle
    assert policy.begun == [0.0], "it is told once that the run begins"


def test_a_node_that_is_refused_when_tried_again_leaves_no_demand() -> None:
    policy = Picky("none")
    bench = Bench(policy=policy, retries=1)
    bench(0.0, Arrived("r", "chain", (7.0, 2.0)))
    policy.model = "llm"
    assert bench(13.0, Failed("r", "a", "broken")) == [Reject("r", "no llm today")]
    assert bench.idle


# --- what a policy may not do, and may ------------------------------------------------------------


class Scripted(WorkflowPolicy):
    """Decides what it was told to."""

    def __init__(self, *decisions: Wait | str | None) -> None:
        self.decisions = list(decisions)

    def choose(self, view: View) -> Place | Wait | None:
        decision = self.decisions.pop(0) if self.decisions else None
        if decision == "first":
            self.task = next(iter(view.queues.values())).head
        return Place(self.task, (0,), "told so") if isinstance(decision, str) else decision


def test_a_node_cannot_be_chosen_twice() -> None:
    bench = Bench(gpus=2, policy=Scripted("first", "again"))
    with pytest.raises(PolicyError, match=r"\[0.00s\] the policy chose r1/a twice"):
        bench(0.0, Arrived("r1", "one", (1.0,)), Arrived("r2", "one", (1.0,)))


class Answers(WorkflowPolicy):
    """Gives what it is told to give, or does it, when it is asked for the next start."""

    def __init__(self, answer: Callable[[ReadyNode], Any]) -> None:
        self.answer = answer

    def choose(self, view: View) -> Any:
        return self.answer(next(iter(view.queues.values())).head)


def give_up(*_: object) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    "answer",
    [
        lambda node: Place(None, (0,), "nobody"),  # type: ignore[arg-type]
        lambda node: Place("r/a", (0,), "its name"),  # type: ignore[arg-type]
        lambda node: Wait("soon"),  # type: ignore[arg-type]
        lambda node: (node, (0,), "no Place"),
        lambda node: True,
    ],
)
def test_an_answer_that_is_none_is_refused_by_name(answer: Callable[[ReadyNode], Any]) -> None:
    with pytest.raises(PolicyError, match=r"\[0.00s\] .*Answers.choose gave .*, expected Place of a node"):
        Bench(policy=Answers(answer))(0.0, Arrived("r", "one", (1.0,)))


@pytest.mark.parametrize(("attribute", "value"), [("size", 0.001), ("width", 2), ("model", "sd"), ("name", "b")])
def test_a_node_that_the_policy_changed_is_not_started(attribute: str, value: Any) -> None:
    def cheat(node: ReadyNode) -> Place:
        setattr(node, attribute, value)
        return Place(node, tuple(range(node.width)), "cheaper now")

    with pytest.raises(PolicyError, match=r"the policy changed r/. .*, which it may read and never change"):
        Bench(gpus=2, policy=Answers(cheat))(0.0, Arrived("r", "one", (1.0,)))


@pytest.mark.parametrize("method", ["begin", "rank", "choose", "preload", "refuse"])
def test_a_policy_that_fails_is_named_whatever_it_was_asked(method: str) -> None:
    policy = type("Failing", (ListPolicy,), {method: give_up})()
    with pytest.raises(PolicyError, match=rf"\[0.00s\] .*Failing.{method} failed: SystemExit: 0"):
        Bench(gpus=2, policy=policy)(0.0, Arrived("r", "one", (1.0,)))


def test_a_policy_that_waits_is_woken_once() -> None:
    bench = Bench(policy=Scripted(Wait(5.0), Wait(5.0), Wait(6.0), "first"))
    assert bench(0.0, Arrived("r", "one", (1.0,))) == [WakeAt(5.0)]
    assert bench(1.0, Arrived("s", "one", (1.0,))) == []  # it is asked for already
    assert bench(5.0, Woke()) == [WakeAt(6.0)]
    assert started(bench(6.0, Woke())) == [("r", "a", (0,))]


@pytest.mark.parametrize("until_s", [0.0, -1.0, inf])
def test_waiting_for_nothing_in_particular_asks_for_no_waking(until_s: float) -> None:
    assert Bench(policy=Scripted(Wait(until_s)))(0.0, Arrived("r", "one", (1.0,))) == []


def test_a_policy_is_asked_until_it_starts_nothing_more() -> None:
    bench = Bench(gpus=3)
    requests = [Arrived(f"r{i}", "one", (1.0,)) for i in range(5)]
    assert started(bench(0.0, *requests)) == [("r0", "a", (0,)), ("r1", "a", (1,)), ("r2", "a", (2,))]


def test_before_time_zero_there_are_no_gpus() -> None:
    """Files read as the older scheduler did may have such times; its GPUs were free from 0 on."""
    bench = Bench()
    assert bench(-5.0, Arrived("r", "one", (1.0,))) == []
    assert started(bench(0.0, Arrived("s", "one", (1.0,)))) == [("r", "a", (0,))]


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_shares_its_window_and_takes_as_long_as_its_slowest_times_the_curve() -> None:
    bench = Bench(costs=CostRules(batching=True))
    requests = [Arrived(f"r{i}", "one", (float(i),)) for i in (4, 2, 3, 1)]
    run_s = 4.0 * 1.8
    assert bench(0.0, *requests) == [
        Start(name, "a", "llm", (0,), 0.0, run_s, "longest idle", 10.0, batch=1) for name in ("r4", "r2", "r3")
    ]
    assert bench.view.until == [10.0 + run_s]
    assert bench(17.2, Finished("r4", "a"), Finished("r2", "a")) == [Complete("r4"), Complete("r2")]
    assert bench.view.free == [False], "r3 is still in it"
    assert bench(17.2, Finished("r3", "a")) == [Complete("r3"), Start("r1", "a", "llm", (0,), 0.0, 1.0, "warm")]
    assert bench(18.2, Finished("r1", "a")) == [Complete("r1")]
    assert bench.idle


def test_one_of_a_batch_may_fail() -> None:
    bench = Bench(costs=CostRules(batching=True), retries=1)
    assert len(bench(0.0, Arrived("r", "one", (4.0,)), Arrived("s", "one", (4.0,)))) == 2
    assert bench(13.0, Failed("r", "a", "broken")) == []
    assert bench(16.0, Finished("s", "a")) == [Complete("s"), Start("r", "a", "llm", (0,), 13.0, 4.0, "warm")]
    assert bench(20.0, Finished("r", "a")) == [Complete("r")]
    assert bench.idle


class Youngest(WorkflowPolicy):
    """Starts the node that became ready last."""

    def choose(self, view: View) -> Place | Wait | None:
        return Place(next(iter(view.queues.values())).nodes()[-1], (0,), "youngest")


def test_a_batch_is_never_larger_than_the_curve_whoever_is_chosen() -> None:
    bench = Bench(policy=Youngest(), costs=CostRules(batching=True))
    requests = [Arrived(f"r{i}", "pair", (4.0,)) for i in range(4)]
    assert [(order.job, order.run_s) for order in bench(0.0, *requests) if isinstance(order, Start)] == [
        ("r3", 6.0),
        ("r0", 6.0),
    ]


def test_models_without_a_curve_are_not_batched() -> None:
    bench = Bench(costs=CostRules(batching=True))
    bench(0.0, Arrived("r", "chain", (1.0, 1.0)), Arrived("s", "chain", (1.0, 1.0)))
    orders = bench(11.5, Finished("r", "a"), Finished("s", "a"))
    assert started(orders) == [("r", "b", (0,))]


# --- the same again -------------------------------------------------------------------------------

SEEDS = range(90)


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_a_journal_replayed_gives_the_same_instructions(tmp_path: Path, policy: str) -> None:
    decided = 0
    for seed in SEEDS:
        case = random_case(seed)
        if policy not in policies_for(case):
            continue
        run_case(read_case(case, tmp_path), case, policy, seed, tmp_path / "journal.jsonl")
        journal = Reader(tmp_path / "journal.jsonl")
        for n, _, orders, recorded in replay(scheduler_for(journal), journal):
            assert orders == recorded, f"case {seed}, step {n}"
            decided += len(orders)
    assert decided > 200


_PRINT_DIGESTS = """
import hashlib, sys
from pathlib import Path
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case
folder = Path(sys.argv[1])
for seed in range(int(sys.argv[2])):
    case = random_case(seed)
    problem = read_case(case, folder)
    for policy in policies_for(case):
        run_case(problem, case, policy, seed, folder / "journal.jsonl")
        print(seed, policy, hashlib.sha256((folder / "journal.jsonl").read_bytes()).hexdigest())
"""


def test_the_same_inputs_give_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    printed = set()
    for hash_seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        words = [sys.executable, "-c", _PRINT_DIGESTS, str(tmp_path), str(len(SEEDS))]
        printed.add(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    [text] = printed
    assert len(text.splitlines()) == sum(len(policies_for(random_case(seed))) for seed in SEEDS)
    case = random_case(0)
    run_case(read_case(case, tmp_path), case, "dovetail", 0, tmp_path / "journal.jsonl")
    digest = hashlib.sha256((tmp_path / "journal.jsonl").read_bytes()).hexdigest()
    assert f"0 dovetail {digest}\n" in text


class _Wrong(WorkflowPolicy):
    """Places the first node as it is told."""

    def __init__(self, window: Any = (0,), why: Any = "because", refusal: Any = None) -> None:
        self.window, self.why, self.refusal = window, why, refusal

    def choose(self, view: View) -> Place:
        return Place(next(iter(view.queues.values())).head, self.window, self.why)

    def refuse(self, node: ReadyNode, view: View) -> Any:
        return self.refusal


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": ()}, r"_Wrong.choose gave Place\(r/a, \(\), 'because'\), expected 1 of its 2 GPUs as a tuple"),
        ({"window": (99,)}, r"gave Place\(r/a, \(99,\)"),
        ({"window": (-1,)}, r"gave Place\(r/a, \(-1,\)"),
        ({"window": (0.0,)}, r"gave Place\(r/a, \(0.0,\)"),
        ({"window": [0]}, r"gave Place\(r/a, \[0\]"),
        ({"why": 3}, r"gave Place\(r/a, \(0,\), 3\)"),
        ({"refusal": True}, r"_Wrong.refuse gave True, expected a reason or None"),
    ],
)
@pytest.mark.parametrize("slots", [1, 2])
def test_a_choice_that_is_none_is_told_with_policy_and_method(wrong: Any, message: str, slots: int) -> None:
    config = {
        "models": {"m": {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "max_concurrency": slots}},
        "workflows": {"w": {"nodes": [{"id": "a", "model": "m"}]}},
    }
    problem = load(config, [{"request_id": "r", "workflow_id": "w"}], gpus=2)
    with pytest.raises(PolicyError, match=message):
        run(problem, _Wrong(**wrong), journal=False)
