"""Data between nodes: which inputs a node gets, what becomes of answers, prompts, and values over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.decisions import json_in
from dovetail.workflow.inputs.prompts import PromptTemplate
from dovetail.workflow.live.data_flow import DataFlow, data_flows
from dovetail.workflow.live.protocol import Reference
from dovetail.workflow.live.run_data import RunData
from dovetail.workflow.live.values import ValueFaultError, from_json, size_of, text_of, to_json

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1}
MODELS = {
    "llm": MODEL | {"source": {"emulated": {}}},
    "embedder": MODEL | {"source": {"emulated": {}}, "type": "embedding"},
    "tool": MODEL | {"source": "module:tool"},
}


def flow_of(nodes: list[dict[str, Any]], edges: list[tuple[str, str]] = [], folder: Path | None = None) -> DataFlow:  # noqa: B006
    nodes = [{"model": "llm"} | node for node in nodes]
    workflow = {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in edges]}
    data: Any = {"models": MODELS, "workflows": {"w": workflow}}
    if folder is not None:
        (folder / "c.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        data = folder / "c.yaml"
    return data_flows(read_system(data))["w"]


def run(flow: DataFlow, given: dict[str, Any] | None = None, **more: Any) -> RunData:
    return RunData("r", flow, given or {}, **more)


def refused(folder: Path, nodes: list[dict[str, Any]], edges: list[tuple[str, str]]) -> str:
    with pytest.raises(InputError) as caught:
        flow_of(nodes, edges, folder)
    return str(caught.value).replace(f"{folder}/", "")


# --- which inputs a node gets -----------------------------------------------------------------------

STORY = [
    {"id": "plan", "inputs": ["topic"], "outputs": ["outline"]},
    {"id": "write", "inputs": ["outline", "tone"], "outputs": ["text"], "model": "tool"},
    {"id": "judge", "inputs": ["text", "plan.outline", "topic"], "model": "tool"},
]
CHAIN = [("plan", "write"), ("write", "judge")]


def test_an_input_is_the_nearest_node_s_output_of_that_name_else_the_request_s() -> None:
    flow = flow_of(STORY, CHAIN)
    data = run(flow, {"topic": "the sea", "tone": "calm"})
    assert flow.needs == {"topic", "tone"}
    assert data.call("plan") == ({"topic": "the sea", "prompt": "the sea"}, {})
    assert data.ended("plan", {"text": "1. waves"}) == ({"outline": "1. waves"}, None)
    assert data.call("write")[0] == {"outline": "1. waves", "tone": "calm"}
    data.ended("write", {"text": "Waves roll."})
    assert data.call("judge")[0] == {"text": "Waves roll.", "outline": "1. waves", "topic": "the sea"}
    data.ended("judge", {"text": "good"})
    assert data.answer() == {"text": "good"}


def test_a_node_that_lists_no_inputs_has_all_of_the_nodes_directly_before_and_a_first_one_all_of_the_request() -> None:
    data = run(flow_of([{"id": "a", "model": "tool"}, {"id": "b", "model": "tool"}], [("a", "b")]), {"x": 1, "y": [2]})
    assert data.call("a")[0] == {"x": 1, "y": [2]}
    data.ended("a", {"z": 3, "then": None})
    assert data.call("b")[0] == {"z": 3}


def test_a_model_is_a_workflow_of_one_node_unless_one_is_called_so() -> None:
    flows = data_flows(read_system({"models": MODELS, "workflows": {"llm": {"nodes": [{"id": "n", "model": "tool"}]}}}))
    assert (flows["llm"].answer, flows["llm"].implicit) == ("n", False)
    assert (flows["embedder"].answer, flows["embedder"].implicit) == ("embedder", True)
    assert flows["embedder"].graph.tasks[0].kind == "embedder"


def test_outputs_of_one_name_are_told_apart_by_the_node() -> None:
    nodes = [{"id": "a", "outputs": ["t"]}, {"id": "b", "outputs": ["t"]}]
    data = run(flow_of([*nodes, {"id": "c", "inputs": ["a.t", "b.t"], "model": "tool"}], [("a", "c"), ("b", "c")]))
    data.ended("a", {"text": "A"})
    data.ended("b", {"text": "B"})
    assert data.call("c")[0] == {"a.t": "A", "b.t": "B"}


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (
            [{"id": "a", "outputs": ["t"]}, {"id": "b", "outputs": ["t"]}, {"id": "c", "inputs": ["t"]}],
            "nodes.2.inputs: node 'c': both 'a' and 'b' give 't'; expected a.t or b.t",
        ),
        (
            [{"id": "a", "outputs": ["t"]}, {"id": "b", "outputs": ["t"]}, {"id": "c"}],
            "nodes.2.inputs: node 'c': both 'a' and 'b' give 't'; expected a.t or b.t",
        ),
        (
            [{"id": "a", "outputs": ["t"]}, {"id": "b"}, {"id": "c", "inputs": ["a.text"]}],
            "nodes.2.inputs: node 'c': 'a.text': node 'a' has no output 'text'; known: t",
        ),
        (
            [{"id": "a", "inputs": ["c.t"]}, {"id": "b"}, {"id": "c"}],
            "nodes.0.inputs: node 'a': 'c.t': 'c' does not come before it",
        ),
        (
            [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d#1"}],
            "nodes.3.id: node 'd#1': expected a name without '#', which is for the numbers of nodes that live runs add",
        ),
        (
            [{"id": "a", "inputs": ["text"], "prompt": "{txet}"}, {"id": "b"}, {"id": "c", "inputs": ["x"]}],
            "nodes.0.prompt: node 'a': {txet} is not among its inputs; did you mean 'text'?",
        ),
    ],
)
def test_what_cannot_flow_is_refused_before_anything_runs(
    tmp_path: Path, nodes: list[dict[str, Any]], told: str
) -> None:
    assert f": workflows.w.{told}" in refused(tmp_path, nodes, [("a", "c"), ("b", "c")])


def test_a_request_must_give_what_no_node_does() -> None:
    flow = flow_of(STORY, CHAIN)
    with pytest.raises(
        InputError, match="workflow 'w' needs 'tone' and 'topic'; the request gives topics; did you mean 'topic'"
    ):
        run(flow, {"topics": "x"})
    with pytest.raises(InputError, match="needs 'tone' and 'topic'; the request gives nothing"):
        run(flow)
    assert run(flow_of(STORY[:1]), {"prompt": "the sea"}).call("plan")[0]["topic"] == "the sea"


def test_nobody_gives_it_is_told_when_only_the_run_can_know() -> None:
    data = run(flow_of([{"id": "a"}, {"id": "b", "inputs": ["x"]}], [("a", "b")]), {"prompt": "p"})
    data.ended("a", {"text": "t"})
    with pytest.raises(ValueFaultError, match="node 'b': nobody gives 'x'; the request gives prompt") as caught:
        data.call("b")
    assert caught.value.blame == "call"


# --- options ------------------------------------------------------------------------------------------


def test_options_of_the_request_reach_the_node_that_answers_and_node_configs_theirs() -> None:
    configs = {"plan": {"max_length": 5}, "write": {"max_length": 7}}
    data = run(flow_of(STORY, CHAIN), {"topic": "", "tone": ""}, options={"temperature": 0, "node_configs": configs})
    assert data.call("plan")[1] == {"max_tokens": 5}  # its name in older files
    data.ended("plan", {"text": ""})
    assert data.call("write")[1] == {"max_length": 7}  # a factory's options are its own
    data.ended("write", {"text": ""})
    assert data.call("judge")[1] == {"temperature": 0}


def test_an_emulated_model_takes_as_long_as_the_request_says() -> None:
    data = run(
        flow_of(STORY, CHAIN), {"topic": "", "tone": ""}, options={"node_execution_times": {"plan": 3, "write": 4}}
    )
    assert (data.call("plan")[1], data.options_of("write")) == ({"seconds": 3}, {})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node_configs": {"plam": {}}}, "node_configs.plam: not a node of workflow 'w'; did you mean 'plan'?"),
        ({"node_configs": {"plan": 3}}, "node_configs.plan: expected options, found 3"),
        ({"node_configs": [1]}, "node_configs: expected names of nodes, found"),
        ({"outcomes": {"plan": "x"}}, "outcomes.plan: expected a list, found 'x'"),
        ({"node_execution_times": {"plan": "x"}}, "node_execution_times.plan: expected seconds, found 'x'"),
    ],
)
def test_options_for_nodes_that_are_not_there_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        run(flow_of(STORY, CHAIN), {"topic": "", "tone": ""}, options=options)
    assert str(caught.value).startswith(told)


# --- prompts --------------------------------------------------------------------------------------------


def test_a_prompt_takes_its_inputs_and_the_others_go_beside_it() -> None:
    node = {"id": "a", "inputs": ["text", "n", "image"], "prompt": "Say {text} {n} times, {{as JSON}}"}
    given = {"text": "{n} hi", "n": [2, None], "image": b"png"}
    assert run(flow_of([node]), given).call("a")[0] == {
        "image": b"png",
        "prompt": "Say {n} hi [2,null] times, {as JSON}",
    }


def test_a_chat_may_go_on_from_messages_that_are_given() -> None:
    node = {"id": "a", "prompt": [{"role": "system", "content": "Be {tone}."}, "{messages}"]}
    flow = flow_of([node])
    said = [{"role": "user", "content": "hi"}]
    assert flow.needs == {"tone", "messages"}
    asked = run(flow, {"tone": "kind", "messages": said}).call("a")[0]
    assert asked == {"messages": [{"role": "system", "content": "Be kind."}, *said]}
    with pytest.raises(
        ValueFaultError, match=r"node 'a': \{messages\}: expected messages with role and content, found str"
    ):
        run(flow, {"tone": "kind", "messages": "hi"}).call("a")


def test_what_is_no_text_cannot_stand_in_a_prompt() -> None:
    for value, found in ((b"png", "bytes"), ({"a": [np.zeros(2)]}, "a tensor")):
        with pytest.raises(ValueFaultError, match=f"node 'a': a prompt can show text and JSON, found {found}"):
            run(flow_of([{"id": "a", "prompt": "{x}"}]), {"x": value}).call("a")


def test_models_that_are_not_ours_are_asked_with_what_text_there_is() -> None:
    one = flow_of([{"id": "a", "inputs": ["question", "vector"]}])
    assert run(one, {"question": "why", "vector": [1.0]}).call("a")[0]["prompt"] == "why"
    assert "prompt" not in run(flow_of([{"id": "a", "inputs": ["text"]}]), {"text": "t"}).call("a")[0]
    assert run(flow_of([{"id": "a", "inputs": ["hits"]}]), {"hits": [1, 2]}).call("a")[0]["prompt"] == "[1,2]"
    embed = flow_of([{"id": "a", "inputs": ["q", "more"], "model": "embedder"}])
    assert run(embed, {"q": "x", "more": ["y", "z"]}).call("a")[0]["input"] == ["x", "y", "z"]


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=8)), max_size=6), st.data())
def test_templates_give_back_texts_and_values_as_they_are(parts: list[tuple[bool, str]], data: st.DataObject) -> None:
    values: dict[str, str] = {}
    template, expected = "", ""
    for i, (is_name, text) in enumerate(parts):
        if is_name:
            values[f"n{i}"] = data.draw(st.text(max_size=8))
            template, expected = template + f"{{n{i}}}", expected + values[f"n{i}"]
        else:
            template += text.replace("{", "{{").replace("}", "}}")
            expected += text
    assert PromptTemplate(template).fill(values.__getitem__) == expected
    assert set(PromptTemplate(template).names) == set(values)


# --- what comes out --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "answered", "named"),
    [
        ([], {"text": "t", "more": 1}, {"text": "t", "more": 1}),
        (["story"], {"text": "t"}, {"story": "t"}),
        (["story"], {"output": 5}, {"story": 5}),
        (["story"], {"text": "t", "story": "s"}, {"story": "s"}),
        (["a", "b"], {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}),
        (["a", "b"], {"text": '{"a": 1, "b": [2]}'}, {"a": 1, "b": [2]}),
        (["a", "b"], {"text": 'Sure:\n```json\n{"a": 1, "b": 2}\n```\n'}, {"a": 1, "b": 2}),
        (["a", "text"], {"text": '{"a": 1}'}, {"a": 1, "text": '{"a": 1}'}),
    ],
)
def test_answers_are_given_the_names_that_the_node_declares(
    outputs: list[str], answered: dict[str, Any], named: dict[str, Any]
) -> None:
    assert run(flow_of([{"id": "n", "outputs": outputs}])).ended("n", answered)[0] == named


def test_an_output_that_is_missing_is_an_error_that_says_so() -> None:
    data = run(flow_of([{"id": "n", "outputs": ["a", "b"]}]))
    with pytest.raises(ValueFaultError, match="node 'n' is to give a, b, but its answer has no 'b': the text "):
        data.ended("n", {"text": '{"a": 1}'})
    with pytest.raises(ValueFaultError, match="its answer has no 'a' and 'b': the text 'no idea'"):
        data.ended("n", {"text": "no idea"})
    assert data.outputs == {}
    assert data.ended("n", {"a": 1, "b": 2})[0] == {"a": 1, "b": 2}  # tried again


def test_too_much_is_refused_with_what_was_found_and_allowed() -> None:
    with pytest.raises(InputError, match=r"workflow 'w': the request brings 2.0 MiB; expected at most 1 MiB"):
        run(flow_of([{"id": "n"}]), {"x": bytes(2 << 20)}, most_mib=1)
    data = run(flow_of([{"id": "n"}]), {"x": bytes(1 << 19)}, most_mib=1)
    with pytest.raises(
        ValueFaultError, match=r"node 'n' gives 0.7 MiB, 1.2 MiB with all before; expected at most 1 MiB"
    ):
        data.ended("n", {"x": np.zeros(90_000)})


def test_what_cannot_be_passed_on_is_refused() -> None:
    data = run(flow_of([{"id": "n"}]))
    with pytest.raises(
        ValueFaultError, match=r"node 'n' gives a value of type builtins\.object; expected text, numbers"
    ):
        data.ended("n", {"x": [object()]})
    for array in (np.array(["a", "b"]), np.array([None]), np.array(["2024-01-01"], dtype="datetime64[D]")):
        with pytest.raises(ValueFaultError, match="node 'n' gives an array of"):
            data.ended("n", {"x": array})
        with pytest.raises(ValueFaultError, match="expected numbers, or a list"):
            to_json(array)
    with pytest.raises(ValueFaultError, match="a mapping has the key 3; expected text"):
        data.ended("n", {"x": {3: 4}})


def test_values_that_hold_themselves_or_go_too_deep_are_refused() -> None:
    ring: list[Any] = []
    ring.append([ring, ring])
    with pytest.raises(InputError, match="input: values within values, more than 200 deep, or a value that"):
        run(flow_of([{"id": "n"}]), {"x": ring})
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueFaultError, match="values within values, more than 200 deep"):
        from_json({"x": deep})


def test_large_values_stay_where_they_are_until_they_are_looked_at() -> None:
    nodes: list[dict[str, Any]] = [{"id": "a", "outputs": ["t"]}, {"id": "b", "model": "tool"}]
    nodes += [{"id": "c", "prompt": "Sum up {t}"}]
    kept = {"h": "long " * 3}
    data = run(flow_of(nodes, [("a", "b"), ("a", "c")]), fetch=lambda reference: kept[reference.handle], most_mib=0.001)
    data.ended("a", {"text": Reference("h", 1 << 30)})
    assert data.call("b")[0]["t"] == Reference("h", 1 << 30)
    assert data.call("c")[0]["prompt"] == "Sum up long long long "
    with pytest.raises(ValueFaultError, match="a value of 7 bytes stays in an object store, which cannot be read"):
        text_of(Reference("h", 7))


# --- values over HTTP ---------------------------------------------------------------------------------------

arrays = st.builds(
    lambda kind, shape, seed: np.asarray(np.random.default_rng(seed).random(shape) * 100, dtype=kind),
    st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats()
    | st.text() | st.binary() | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (bool(one == other) or (one != one and other != other))


@given(values)
@settings(max_examples=60)
def test_values_come_back_from_json_as_they_were(value: Any) -> None:
    assert same(value, from_json(msgspec.json.decode(msgspec.json.encode(to_json(value)))))
    assert size_of(value) >= 0


def test_what_is_no_number_is_told_as_such_and_not_as_nothing() -> None:
    told = to_json({"x": [float("nan"), float("inf"), -float("inf"), np.float32("nan")]})
    assert told == {"x": [{"float": "nan"}, {"float": "inf"}, {"float": "-inf"}, {"float": "nan"}]}
    assert from_json({"float": "fast"}) == {"float": "fast"}


def test_tensors_of_torch_come_back_too() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.arange(6).reshape(2, 3).to(kind)
        again = from_json(to_json({"t": tensor}))["t"]
        assert again.dtype == kind
        assert torch.equal(again, tensor)
        assert size_of(tensor) == tensor.nbytes


def test_nobody_imports_torch_for_a_value_nor_trips_over_one_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"shape": [2], "dtype": "float32", "data": "AACAPwAAAEA=", "of": "torch"}
    half = {"shape": [2], "dtype": "bfloat16", "data": "gD8AQA==", "of": "torch"}
    for torch in (None, ModuleType("torch")):  # not there, or just being imported
        monkeypatch.setitem(sys.modules, "torch", torch)
        for value in (whole, half):
            found = from_json(value)
            assert (found.dtype, found.tolist()) == (np.float32, [1.0, 2.0])
        assert size_of({"x": np.zeros(2)}) == 17


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shape": [1], "dtype": "datetime64[s]", "data": "AAAAAAAAAAA=", "of": "torch"}, "8 bytes: expected numbers"),
        ({"base64": "a b"}, "base64: expected bytes in base64"),
        ({"base64": 3}, "base64: expected bytes in base64"),
        ({"shape": [3], "dtype": "float32", "data": "AAAA"}, "expected a tensor as shape, dtype and data, found shape"),
        ({"shape": [1], "dtype": "flaot", "data": "AAAA"}, "dtype 'flaot', 3 bytes"),
        ({"shape": [1], "dtype": "object", "data": "AAAAAAAAAAA="}, "dtype 'object', 8 bytes"),
    ],
)
def test_broken_values_are_told(given: Any, told: str) -> None:
    with pytest.raises(ValueFaultError) as caught:
        from_json({"x": [given]})
    assert told in str(caught.value)


def test_json_is_found_in_what_models_write() -> None:
    assert json_in('The list: [{"a": 1}] it is') == [{"a": 1}]
    assert json_in("```\n[1, 2]\n```") == [1, 2]
    assert json_in("no {json here}") is None


# --- random graphs --------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_over_random_graphs_every_input_is_the_nearest_of_its_name(data: st.DataObject) -> None:
    """Against the definition: walk back level by level, and at the first level that has it nobody else does."""
    count = data.draw(st.integers(1, 7))
    names = [f"n{i}" for i in range(count)]
    edges = [(a, b) for j, b in enumerate(names) for a in names[:j] if data.draw(st.integers(0, 2)) == 0]
    nodes: list[dict[str, Any]] = [
        {
            "id": name,
            "model": "tool",
            "inputs": data.draw(st.lists(st.sampled_from("xyz"), unique=True, min_size=1)),
            "outputs": data.draw(st.lists(st.sampled_from("xyz"), unique=True, min_size=1)),
        }
        for name in names
    ]
    try:
        flow = flow_of(nodes, edges)
    except InputError as error:
        assert "both" in str(error)  # noqa: PT017
        return
    run_data = run(flow, {name: f"request.{name}" for name in "xyz"})
    before = {name: [a for a, b in edges if b == name] for name in names}
    outputs = {node["id"]: node["outputs"] for node in nodes}
    for node in nodes:
        expected = {}
        for wanted in node["inputs"]:
            level, found = before[node["id"]], list[str]()
            while level and not (found := [one for one in level if wanted in outputs[one]]):
                level = sorted({one for later in level for one in before[later]})
            expected[wanted] = {f"{one}.{wanted}" for one in found} or {f"request.{wanted}"}
        called = run_data.call(node["id"])[0]
        assert called.keys() == expected.keys()
        assert all(called[wanted] in expected[wanted] for wanted in called)
        run_data.ended(node["id"], {name: f"{node['id']}.{name}" for name in node["outputs"]})
