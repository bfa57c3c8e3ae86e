"""What a node's outputs add: branches, loops and fan-outs, and how data flows through what was added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.core.events import Grew
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.decisions import _TESTS, Decision
from dovetail.workflow.live.data_flow import DataFlow, data_flows
from dovetail.workflow.live.run_data import RunData
from dovetail.workflow.live.values import ValueFaultError

MODELS = {"tool": {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "source": "module:tool"}}


def flow_of(nodes: list[dict[str, Any]], edges: list[tuple[str, str]], folder: Path | None = None) -> DataFlow:
    nodes = [{"model": "tool"} | node for node in nodes]
    workflow = {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in edges]}
    data: Any = {"models": MODELS, "workflows": {"w": workflow}}
    if folder is not None:
        (folder / "c.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        data = folder / "c.yaml"
    return data_flows(read_system(data))["w"]


def data_of(flow: DataFlow, given: dict[str, Any] | None = None, **options: Any) -> RunData:
    return RunData("r", flow, given or {}, options, size=lambda data, instance, node: 2.5)


def names(event: Grew | None) -> list[str]:
    assert event is not None
    return [task.name for task in event.tasks]


# --- loops ------------------------------------------------------------------------------------------

LOOP: list[dict[str, Any]] = [
    {"id": "write", "inputs": ["topic", "notes"], "outputs": ["text"]},
    {
        "id": "judge",
        "inputs": ["text"],
        "outputs": ["score", "notes"],
        "then": {"write": {"chance": 0.5, "at_most": 2}},
        "decide": {"write": {"output": "score", "below": 7}},
    },
    {"id": "print", "inputs": ["text", "score"]},
]
ROUND = [("write", "judge"), ("judge", "print")]


def test_a_loop_goes_back_while_the_score_is_low_and_what_it_repeats_has_the_newest_values() -> None:
    flow = flow_of(LOOP, ROUND)
    assert flow.needs == {"topic", "notes"}
    data = data_of(flow, {"topic": "sea", "notes": ""})
    data.ended("write", {"text": "v1"})
    _, grew = data.ended("judge", {"score": 3, "notes": "longer"})
    assert grew is not None
    assert (names(grew), grew.sizes) == (["write#2", "judge#2"], (2.5, 2.5))
    assert grew.why == "goes back to write, 1 of at most 2 times: score is below 7"
    assert data.call("write#2")[0] == {"topic": "sea", "notes": "longer"}
    data.ended("write#2", {"text": "v2"})
    assert data.call("judge#2")[0] == {"text": "v2"}
    assert data.ended("judge#2", {"score": 8, "notes": "fine"})[1] is None
    assert data.call("print")[0] == {"text": "v2", "score": 8}


def test_a_loop_ends_when_it_has_gone_back_as_often_as_it_may() -> None:
    data = data_of(flow_of(LOOP, ROUND), {"topic": "sea", "notes": ""})
    grown = []
    for suffix in ("", "#2", "#3"):
        data.ended(f"write{suffix}", {"text": suffix})
        grown.append(data.ended(f"judge{suffix}", {"score": 0, "notes": ""})[1])
    assert [event is None for event in grown] == [False, False, True]
    assert data.call("print")[0]["text"] == "#3"


def test_the_answer_is_what_the_last_round_gave() -> None:
    data = data_of(flow_of(LOOP[:2], ROUND[:1]), {"topic": "sea", "notes": ""})
    for suffix, score in (("", 3), ("#2", 9)):
        data.ended(f"write{suffix}", {"text": suffix})
        data.ended(f"judge{suffix}", {"score": score, "notes": suffix})
    assert data.answer() == {"score": 9, "notes": "#2"}


# --- branches ---------------------------------------------------------------------------------------

BRANCH: list[dict[str, Any]] = [
    {"id": "think", "outputs": ["plan"], "then": {"run": 0.3, "ask": 0.2}},
    {"id": "judge", "inputs": ["plan", "result", "reply"]},
    {"id": "run", "inputs": ["plan"], "outputs": ["result"]},
    {"id": "ask", "inputs": ["plan"], "outputs": ["reply"]},
]


def test_an_output_then_names_the_branch_and_what_was_not_added_gives_nothing() -> None:
    flow = flow_of(BRANCH, [("think", "judge")])
    assert flow.needs == frozenset()
    data = data_of(flow)
    outputs, grew = data.ended("think", {"plan": "p", "then": "run"})
    assert outputs == {"plan": "p"}
    assert names(grew) == ["run"]
    assert grew is not None
    assert grew.why == "goes on with run: its output says so"
    assert data.call("run")[0] == {"plan": "p"}
    data.ended("run", {"text": 42})
    assert data.call("judge")[0] == {"plan": "p", "result": 42, "reply": None}
    nothing: tuple[Any, ...] = (None, "", {})
    for said in nothing:
        assert data_of(flow).ended("think", {"plan": "p", "then": said})[1] is None
    assert data_of(flow).ended("think", {"plan": "p"})[1] is None  # nobody decides


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("rum", "node 'think' goes on with 'rum', no such branch; did you mean 'run'?"),
        ({"run": 2, "ask": 1}, "then is {'run': 2, 'ask': 1}; expected one of run, ask, nothing, or {name: copies}"),
        ({"run": -1}, "then is {'run': -1}; expected"),
        (7, "then is 7; expected one of run, ask"),
    ],
)
def test_an_outcome_that_is_none_is_the_call_s_fault(said: Any, told: str) -> None:
    data = data_of(flow_of(BRANCH, [("think", "judge")]))
    with pytest.raises(ValueFaultError) as caught:
        data.ended("think", {"plan": "p", "then": said})
    assert told in str(caught.value)
    assert caught.value.blame == "call"
    assert data.outputs == {}


def test_the_first_test_that_passes_decides() -> None:
    nodes = [BRANCH[0] | {"decide": {"run": {"contains": "python"}, "ask": {"matches": r"\?$"}}}, *BRANCH[1:]]
    flow = flow_of(nodes, [("think", "judge")])
    assert names(data_of(flow).ended("think", {"text": "python?"})[1]) == ["run"]
    assert names(data_of(flow).ended("think", {"text": "why?"})[1]) == ["ask"]
    assert data_of(flow).ended("think", {"text": "done."})[1] is None


def test_a_request_may_fix_what_outputs_do_not_say() -> None:
    data = data_of(flow_of([LOOP[0], LOOP[1] | {"decide": {}}], ROUND[:1]), {"topic": "", "notes": ""},
                   outcomes={"judge": ["write", None]})  # fmt: skip
    data.ended("write", {"text": ""})
    _, grew = data.ended("judge", {"score": 1, "notes": ""})
    assert grew is not None
    assert grew.why.endswith("its request says so")
    data.ended("write#2", {"text": ""})
    assert data.ended("judge#2", {"score": 1, "notes": ""})[1] is None


# --- fan-outs ---------------------------------------------------------------------------------------

FAN: list[dict[str, Any]] = [
    {
        "id": "plan",
        "outputs": ["queries", "style"],
        "then": {"search": {"copies": [2, 4]}},
        "decide": {"search": {"output": "queries", "each": True}},
    },
    {"id": "sum", "inputs": ["notes", "style"]},
    {"id": "search", "inputs": ["queries", "style"], "outputs": ["hits"]},
    {"id": "read", "inputs": ["hits", "queries"], "outputs": ["notes"]},
]
FAN_EDGES = [("plan", "sum"), ("search", "read")]


def test_each_copy_has_its_item_and_who_waits_for_them_has_the_list() -> None:
    data = data_of(flow_of(FAN, FAN_EDGES))
    _, grew = data.ended("plan", {"queries": ["a", "b", "c"], "style": "dry"})
    assert names(grew) == ["search", "read", "search#2", "read#2", "search#3", "read#3"]
    for suffix, query in (("#3", "c"), ("", "a"), ("#2", "b")):  # in any order
        assert data.call(f"search{suffix}")[0] == {"queries": query, "style": "dry"}
        data.ended(f"search{suffix}", {"hits": [query, query]})
        assert data.call(f"read{suffix}")[0] == {"hits": [query, query], "queries": query}
        data.ended(f"read{suffix}", {"notes": query.upper()})
    assert data.call("sum")[0] == {"notes": ["A", "B", "C"], "style": "dry"}


def test_no_copies_give_no_items_and_too_many_are_cut_with_a_word() -> None:
    data = data_of(flow_of(FAN, FAN_EDGES))
    assert data.ended("plan", {"queries": [], "style": "dry"})[1] is None
    assert data.call("sum")[0] == {"notes": [], "style": "dry"}
    _, grew = data_of(flow_of(FAN, FAN_EDGES)).ended("plan", {"queries": [*"abcdef"], "style": ""})
    assert grew is not None
    assert len(grew.tasks) == 2 * 4
    assert grew.why.endswith("as many as queries has items; 6 copies were asked for, 4 are allowed")


def test_fewer_copies_than_are_allowed_are_the_call_s_fault() -> None:
    with pytest.raises(ValueFaultError, match="node 'plan' asks for 1 copies of 'search'; expected 0, 2, 3, 4"):
        data_of(flow_of(FAN, FAN_EDGES)).ended("plan", {"queries": ["a"], "style": ""})


def test_a_list_cut_short_still_gives_items_and_a_list_of_another_length_goes_whole() -> None:
    data = data_of(flow_of(FAN, FAN_EDGES))
    data.ended("plan", {"queries": [*"ab"], "style": ["x", "y", "z"]})
    assert data.call("search#2")[0] == {"queries": "b", "style": ["x", "y", "z"]}
    data = data_of(flow_of(FAN, FAN_EDGES))
    data.ended("plan", {"queries": [*"abcdef"], "style": ""})
    assert data.call("search#2")[0]["queries"] == "b"


def test_a_number_of_copies_must_be_said_where_there_are_several() -> None:
    flow = flow_of([FAN[0] | {"decide": {}}, *FAN[1:]], FAN_EDGES)
    with pytest.raises(ValueFaultError, match="how many copies of 'search'"):
        data_of(flow).ended("plan", {"queries": [], "style": "", "then": "search"})
    data = data_of(flow)
    assert len(names(data.ended("plan", {"queries": [*"ab"], "style": "", "then": {"search": 2}})[1])) == 4
    assert data.call("search")[0]["queries"] == "a"


@pytest.mark.parametrize(
    ("then", "decide", "told"),
    [
        ({"search": {"copies": [2, 4]}}, {"contains": "x"}, "how many copies of 'search'? expected each: true"),
        ({"search": 0.5}, {"each": True}, "each, but then: has no copies of 'search'"),
        (
            {"search": 0.5},
            {"output": "querys", "contains": "x"},
            "'querys' is none of its outputs; did you mean 'queries'?",
        ),
    ],
)
def test_decisions_that_cannot_be_are_refused(tmp_path: Path, then: Any, decide: Any, told: str) -> None:
    nodes = [FAN[0] | {"then": then, "decide": {"search": decide}}, *FAN[1:]]
    with pytest.raises(InputError) as caught:
        flow_of(nodes, FAN_EDGES, tmp_path)
    assert f": workflows.w.nodes.0.decide: node 'plan': {told}" in str(caught.value)


# --- after a restart ----------------------------------------------------------------------------------


def test_what_was_known_before_a_restart_is_recalled_and_goes_on_alike() -> None:
    flow = flow_of(FAN, FAN_EDGES)
    first, again = data_of(flow), data_of(flow)
    for task, answered in (
        ("plan", {"queries": [*"ab"], "style": ""}),
        ("search#2", {"hits": 2}),
        ("search", {"hits": 1}),
    ):
        outputs, grew = first.ended(task, answered)
        again.recall(task, outputs, grew)
    assert again.call("read#2") == first.call("read#2")
    for data in (first, again):
        data.ended("read", {"notes": "A"})
        data.ended("read#2", {"notes": "B"})
    assert again.call("sum") == first.call("sum")
    assert again.outputs == first.outputs


def test_outcomes_that_a_request_fixes_are_used_up_by_what_is_recalled() -> None:
    flow = flow_of([LOOP[0], LOOP[1] | {"decide": {}}], ROUND[:1])
    first, again = (data_of(flow, {"topic": "", "notes": ""}, outcomes={"judge": ["write", None]}) for _ in range(2))
    for task, answered in (("write", {"text": ""}), ("judge", {"score": 1, "notes": ""}), ("write#2", {"text": ""})):
        again.recall(task, *first.ended(task, answered))
    assert first.ended("judge#2", {"score": 1, "notes": ""})[1] is None
    assert again.ended("judge#2", {"score": 1, "notes": ""})[1] is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(10**400)
    | st.builds(lambda shape: np.ones(shape), st.lists(st.integers(0, 3), max_size=2))
    | st.sampled_from(["search", "write", {"search": 2}, '{"score": 3}', [1, 2], object(), {1: 2}, np.array(["a"])]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


names_of_outputs = st.sampled_from(["queries", "style", "text", "then"])


@given(st.dictionaries(names_of_outputs, anything), st.sampled_from(_TESTS), st.none() | st.integers() | st.text())
@settings(max_examples=200, deadline=None)
def test_whatever_a_node_gives_is_taken_or_its_own_fault(outputs: dict[str, Any], test: str, value: Any) -> None:
    """Nothing that a model answers may end anything but its call."""
    given_test: Any = {"each": True, "contains": "a", "matches": "a", "above": 1.0, "below": 1.0}.get(test, value)
    decide = msgspec.convert({"output": "queries", test: given_test}, Decision)
    copies = {"copies": [1, 4]} if test == "each" else {}
    flow = flow_of([FAN[0] | {"then": {"search": copies or 0.5}, "decide": {}}, *FAN[1:]], FAN_EDGES)
    flow.nodes["plan"].node.decide["search"] = decide
    data = data_of(flow)
    try:
        _, grew = data.ended("plan", outputs)
        for task in ["sum"] if grew is None else ["search"]:
            data.call(task)
    except ValueFaultError as error:
        assert error.blame == "call"  # noqa: PT017


@pytest.mark.parametrize(
    ("decision", "outputs", "times"),
    [
        (Decision(equals="yes"), {"text": " yes\n"}, 1),
        (Decision(equals=3), {"text": "3"}, 0),
        (Decision(field="n", equals=3), {"text": '{"n": 3}'}, 1),
        (Decision(field="a.1.b", equals=True), {"x": {"a": [0, {"b": True}]}}, 1),
        (Decision(field="a.7.b", equals=True), {"x": {"a": [0]}}, 0),
        (Decision(contains="x"), {"text": ["x"]}, 1),
        (Decision(contains="x"), {"text": None}, 0),
        (Decision(above=2), {"text": "2.5"}, 1),
        (Decision(above=2), {"text": "many"}, 0),
        (Decision(below=2), {"text": 2}, 0),
        (Decision(output="b", matches="^a"), {"text": "a", "b": "ba"}, 0),
        (Decision(each=True), {"text": "[1, 2, 3]"}, 3),
        (Decision(each=True), {"text": "none"}, 0),
        (Decision(output="gone", equals=None), {}, 1),
    ],
)
def test_each_test_looks_at_what_it_says(decision: Decision, outputs: dict[str, Any], times: int) -> None:
    assert decision.times(outputs) == times


def test_options_go_to_all_nodes_that_may_come_last() -> None:
    then = {"quick": {"chance": 0.5}, "write": {"chance": 0.5}}
    nodes: list[dict[str, Any]] = [{"id": "sort", "then": then}, {"id": "quick"}, {"id": "write"}]
    flow = flow_of(nodes, [])
    assert (flow.answer, flow.grows) == ("sort", True)
    data = data_of(flow, max_tokens=6)
    assert [data.options_of(node) for node in ("sort", "quick", "write")] == [{"max_tokens": 6}] * 3
    last = flow_of([*nodes, {"id": "end"}], [("sort", "end")])
    assert (last.answer, last.grows) == ("end", False)
    data = data_of(last, max_tokens=6)
    assert [data.options_of(node) for node in ("quick", "write", "end")] == [{}, {}, {"max_tokens": 6}]
