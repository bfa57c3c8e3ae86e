"""Tokens in the place of seconds: how long they take, what is refused, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.workflow.check import check_journal
from dovetail.workflow.inputs.generate import generate
from dovetail.workflow.policies.base import Place, WorkflowPolicy
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.simulate import WorkflowRun, run

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


# --- figures --------------------------------------------------------------------------------------


def chat(name: str, at: float, reads: int, writes: int) -> dict[str, Any]:
    return {
        "request_id": name,
        "workflow_id": "talk",
        "timestamp": at,
        "node_tokens": {"say": {"input": reads, "output": writes}},
    }


TALK: dict[str, Any] = {
    "models": {"llm": SIZES | {"tokens_per_second": 10, "prefill_tokens_per_second": 100}},
    "workflows": {"talk": {"nodes": [{"id": "say", "model": "llm"}]}},
}


def served(slo: dict[str, float] | None = None, **options: Any) -> WorkflowRun:
    """Loaded at 3 s, `a` reads until 5 s and writes until 7 s; `b` is there at 1 s, reads until 8 s, writes for 4."""
    config = TALK | ({} if slo is None else {"slo": slo})
    return run(load(config, [chat("a", 0.0, 200, 20), chat("b", 1.0, 100, 40)], gpus=1, mode="online"), **options)


def test_first_tokens_and_time_per_token_are_told() -> None:
    found = served().metrics
    assert (found["avg_ttft_s"], found["median_ttft_s"]) == pytest.approx((6.0, 6.0))
    assert found["p99_ttft_s"] == pytest.approx(5.0 + 0.99 * 2.0)
    assert (found["avg_tpot_s"], found["p99_tpot_s"]) == pytest.approx((0.1, 0.1))
    assert found["output_tokens_per_s"] == pytest.approx(60 / 12)
    assert "slo_met" not in found
    assert "Time to first token: mean 6s, median 6s, P99 6.98s" in served().text()


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ({"ttft_s": 6.0}, 0.5),
        ({"ttft_s": 4.9}, 0.0),
        ({"tpot_s": 0.11}, 1.0),
        ({"tpot_s": 0.09}, 0.0),
        ({"response_s": 8.0}, 0.5),
        ({"ttft_s": 8.0, "tpot_s": 0.2, "response_s": 20.0}, 1.0),
    ],
)
def test_goodput_counts_what_keeps_every_limit(slo: dict[str, float], met: float) -> None:
    found = served(slo)
    assert found.metrics["slo_met"] == met
    assert found.metrics["goodput_per_s"] == pytest.approx(2 * met / 12)
    assert found.check().faults == []
    assert f"Requests within the SLO: {100 * met:.1f}%" in found.text()


def test_an_attempt_that_failed_keeps_its_reader_waiting() -> None:
    found = served(failure_rate=0.9, retries=100)
    assert found.figures.failures > 0
    assert found.metrics["avg_ttft_s"] > 6.0
    assert found.check().faults == []


def test_figures_of_tokens_are_counted_again(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    served({"ttft_s": 5.5}, journal=journal)
    journal.write_text(journal.read_text().replace('"slo_met":0.5', '"slo_met":1.0'))
    assert [fault.code for fault in check_journal(journal).faults] == ["summary"]


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ({"ttft_s": 0}, r"slo.ttft_s: expected a positive number of seconds, found 0"),
        ({"tttf_s": 1}, r"slo.*did you mean 'ttft_s'"),
    ],
)
def test_limits_that_make_no_sense_are_refused(slo: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        served(slo)


def test_without_tokens_nothing_is_told_of_them() -> None:
    rows = [{"request_id": "r", "workflow_id": "chat"}]
    assert not [key for key in run(load(CONFIG, rows, gpus=1)).metrics if "ttft" in key or "slo" in key]


def test_requests_are_generated_with_tokens_where_a_model_says_how_many_it_reads() -> None:
    models = {"llm": TALK["models"]["llm"] | {"input_token_mean": 300, "token_mean": 50}}
    (row,) = generate(TALK | {"models": models}, requests=1, seed=3)
    assert row["node_execution_times"] == {}
    tokens = row["node_tokens"]["say"]
    assert 100 < tokens["input"] < 500
    assert 10 < tokens["output"] < 90
    (plain,) = generate(TALK, requests=1, seed=3)
    assert "node_tokens" not in plain
