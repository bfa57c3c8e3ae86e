"""Tokens in the place of seconds: how long they take, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.workflow.policies.base import Place, View, WorkflowPolicy
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.simulate import run

SIZES = {"memory_gb": 14, "gpus_required": 1, "load_time_seconds": 3}
CONFIG: dict[str, Any] = {
    "models": {
        "llm": SIZES | {"tokens_per_second": 50, "prefill_tokens_per_second": 2000},
        "old": SIZES | {"tokens_per_second": 20},
        "sd": SIZES,
    },
    "workflows": {
        "chat": {"nodes": [{"id": "plan", "model": "llm"}, {"id": "draw", "model": "sd"}]},
        "past": {"nodes": [{"id": "say", "model": "old"}]},
    },
}


def asked(tokens: Any, workflow: str = "chat", **more: Any) -> list[dict[str, Any]]:
    return [{"request_id": "r", "workflow_id": workflow, "node_tokens": tokens, **more}]


def loaded(tokens: Any, workflow: str = "chat", **more: Any) -> WorkflowProblem:
    return load(CONFIG, asked(tokens, workflow, **more), gpus=1)


def test_tokens_are_read_at_one_rate_and_written_at_another() -> None:
    problem = loaded({"plan": {"input": 1000, "output": 100}}, node_execution_times={"draw": 4})
    ((_, arrived),) = problem.requests.arrivals()
    assert arrived == Arrived("r", "chat", (2.5, 4.0), facts={"tokens": {"plan": [1000, 100]}})
    assert problem.requests.estimates == {"given": 1, "given tokens": 1}


def test_a_model_that_only_writes_needs_no_rate_of_reading() -> None:
    ((_, arrived),) = loaded({"say": {"output": 10}}, "past").requests.arrivals()
    assert arrived.sizes == (0.5,)


def test_a_request_without_tokens_has_no_facts() -> None:
    ((_, arrived),) = load(CONFIG, [{"request_id": "r", "workflow_id": "chat"}], gpus=1).requests.arrivals()
    assert arrived.facts == {}


def test_a_policy_sees_what_a_request_says() -> None:
    class Looks(WorkflowPolicy):
        def choose(self, view: View) -> Place | None:
            node = next(iter(view.queues.values())).head
            seen.append(node.request.facts)
            return Place(node, (0,), "first") if view.free[0] else None

    seen: list[Any] = []
    run(loaded({"say": {"output": 10}}, "past"), Looks)
    assert seen == [{"tokens": {"say": [0, 10]}}]


@pytest.mark.parametrize(
    ("tokens", "workflow", "message"),
    [
        ({"paln": {"output": 1}}, "chat", r"node_tokens.paln: .*not a node of workflow 'chat'; did you mean 'plan'"),
        ({"plan": {"output": -1}}, "chat", r"node_tokens.plan.output: .*expected a number from 0 to 1e\+12, found -1"),
        ({"plan": {}}, "chat", "node_tokens.plan: .*expected input or output tokens, found none"),
        ({"plan": {"outputs": 1}}, "chat", "outputs.*did you mean 'output'"),
        ({"plan": {"output": 1.5}}, "chat", "node_tokens.plan.output: .*expected int, found float"),
        ({"draw": {"output": 1}}, "chat", "node_tokens.draw.output: .*model 'sd' has no tokens_per_second"),
        ({"say": {"input": 1}}, "past", "node_tokens.say.input: .*model 'old' has no prefill_tokens_per_second"),
    ],
)
def test_tokens_that_cannot_be_used_are_a_fault(tokens: Any, workflow: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loaded(tokens, workflow)


def test_a_node_has_tokens_or_seconds() -> None:
    with pytest.raises(InputError, match=r"node_tokens.plan: .*has a time or items as well; expected one of them"):
        loaded({"plan": {"output": 1}}, node_execution_times={"plan": 1})


def test_the_older_scheduler_knew_no_tokens() -> None:
    with pytest.raises(InputError, match=r"node_tokens: .*GSwarm knew no such thing"):
        load(CONFIG, asked({"plan": {"output": 1}}), gpus=1, compat="gswarm")


def test_a_rate_of_reading_below_zero_is_refused() -> None:
    models = {"llm": SIZES | {"prefill_tokens_per_second": -1}}
    config = {"models": models, "workflows": {"chat": {"nodes": [{"id": "a", "model": "llm"}]}}}
    with pytest.raises(InputError, match=r"models.llm.prefill_tokens_per_second: expected a number from 0"):
        load(config, [], gpus=1)
