"""What is expected of a request when it arrives: tokens, counted or learned, and seconds by the model's rates."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.system import System
from dovetail.workflow.live.data_flow import data_flows
from dovetail.workflow.live.estimates import TokenEstimator
from dovetail.workflow.live.run_data import RunData

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "source": {"emulated": {}}}
RATES = {"tokens_per_second": 50, "prefill_tokens_per_second": 1000}
MODELS = {
    "llm": MODEL | RATES | {"token_mean": 200},
    "painter": MODEL | {"inference_time_mean": 6.0},
    "unknown": MODEL,
    "decoder": MODEL | {"tokens_per_second": 10},
}
NODES: list[dict[str, Any]] = [
    {"id": "plan", "model": "llm", "inputs": ["topic"], "outputs": ["outline"]},
    {"id": "paint", "model": "painter"},
    {"id": "write", "model": "llm", "prompt": "Write: {outline}" + " " * 391, "then": {"write": {"at_most": 2}}},
]
EDGES = [{"from": "plan", "to": "paint"}, {"from": "plan", "to": "write"}]
SYSTEM = read_system({"models": MODELS, "workflows": {"story": {"nodes": NODES, "edges": EDGES}}})


def data_of(workflow: str = "story", system: System = SYSTEM, text: str = "x" * 400, **options: Any) -> RunData:
    return RunData("r", data_flows(system)[workflow], {"topic": text, "prompt": text}, options)


def test_characters_are_counted_and_rates_make_seconds_of_tokens() -> None:
    sizes, tokens = TokenEstimator(SYSTEM).arrived(data_of())
    assert tokens == {"plan": [100, 200], "write": [300, 200]}  # 200 tokens of the outline, 400 characters around
    assert sizes == pytest.approx((100 / 1000 + 200 / 50, 6.0, 300 / 1000 + 200 / 50))


def test_max_tokens_is_a_bound_of_what_is_expected() -> None:
    estimator = TokenEstimator(SYSTEM)
    configs = {"plan": {"max_tokens": 50}, "write": {"max_length": 5000}}
    assert estimator.arrived(data_of(node_configs=configs))[1] == {"plan": [100, 50], "write": [150, 200]}
    assert estimator.arrived(data_of("llm", max_tokens=7))[1] == {"llm": [100, 7]}


def test_what_the_request_says_counts() -> None:
    times, tokens = {"paint": 2.5, "plan": 4}, {"write": {"input": 10, "output": 20}}
    sizes, expected = TokenEstimator(SYSTEM).arrived(data_of(node_execution_times=times, node_tokens=tokens))
    assert expected == {"write": [10, 20]}
    assert sizes == pytest.approx((4.0, 2.5, 10 / 1000 + 20 / 50))


def test_models_without_rates_have_their_mean_or_the_usual_seconds() -> None:
    estimator = TokenEstimator(SYSTEM)
    assert estimator.arrived(data_of("painter")) == ((6.0,), {})
    assert estimator.arrived(data_of("unknown")) == ((10.0,), {})
    assert estimator.arrived(data_of("decoder")) == ((100.0,), {"decoder": [100, 1000]})


def test_answers_teach_how_much_a_node_writes_and_with_what_spread() -> None:
    estimator, data = TokenEstimator(SYSTEM), data_of()
    assert estimator.written("story", "plan") is None
    for written in (90, 110) * 40:
        data.call("plan")
        estimator.answered(data, "plan", 100, written)
    seen = estimator.written("story", "plan")
    assert seen is not None
    assert seen.count == 80
    assert seen.mean == pytest.approx(100, abs=1)
    assert seen.std == pytest.approx(10, abs=1)
    assert estimator.arrived(data_of())[1]["plan"][1] == pytest.approx(100, abs=1)
    assert estimator.arrived(data_of())[1]["write"] == [pytest.approx(200, abs=1), 200]  # reads what plan writes
    assert estimator.arrived(data_of("llm"))[1] == {"llm": [100, 200]}  # another node of the same model


def test_the_newest_answers_count_most() -> None:
    estimator, data = TokenEstimator(SYSTEM), data_of()
    for written in (10,) * 200 + (300,) * 200:
        estimator.answered(data, "plan", None, written)
    assert estimator.arrived(data_of())[1]["plan"][1] > 290


def test_characters_per_token_are_learned_of_each_model() -> None:
    estimator, data = TokenEstimator(SYSTEM), data_of("llm")
    data.call("llm")
    for _ in range(200):
        estimator.answered(data, "llm", 200, 1)  # 400 characters
    assert estimator.characters_per_token("llm") == pytest.approx(2, rel=0.02)
    assert estimator.characters_per_token("decoder") == 4
    assert estimator.arrived(data_of("llm"))[1]["llm"][0] == pytest.approx(200, rel=0.02)


def test_a_node_that_is_added_is_expected_as_its_node_is() -> None:
    estimator = TokenEstimator(SYSTEM)
    data = RunData("r", data_flows(SYSTEM)["story"], {"topic": "x"}, {}, size=estimator.size_s)
    data.ended("plan", {"text": "outline"})
    for _ in range(100):
        estimator.answered(data, "write", 40, 25)
    _, grew = data.ended("write", {"text": "", "then": "write"})
    assert grew is not None
    assert grew.sizes[0] == pytest.approx(40 / 1000 + 25 / 50, rel=0.02)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node_execution_times": {"plan": 0}}, "node_execution_times.plan: expected a positive number"),
        ({"node_tokens": {"plan": {"input": -1}}}, "node_tokens.plan: expected whole numbers of input and output"),
        ({"node_tokens": {"plan": {"inputs": 1}}}, "node_tokens.plan: expected whole numbers of input and output"),
        ({"node_tokens": {"plan": {"output": 1.5}}}, "node_tokens.plan: expected whole numbers of input and output"),
    ],
)
def test_what_is_no_time_or_number_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        TokenEstimator(SYSTEM).arrived(data_of(**options))
    assert str(caught.value).startswith(told)
