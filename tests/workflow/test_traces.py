"""Recorded traces of model calls become configurations and requests that run at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.workflow.inputs.importers.calls import FIELDS
from dovetail.workflow.inputs.importers.spans import Span, call_graph

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def ran(found: workflow.ImportedTrace, gpus: int = 4) -> workflow.WorkflowRun:
    """What a user does next: everything completes, and the checker finds nothing."""
    problem = workflow.load(found.config, found.requests, gpus=gpus, mode="online")
    run = workflow.run(problem)
    assert run.metrics["completed"] == len(problem.requests)
    assert run.check().valid
    return run


# --- rows -----------------------------------------------------------------------------------------


def test_azure_rows_are_requests_with_their_tokens_and_times(tmp_path: Path) -> None:
    conv = written(tmp_path, "AzureLLMInferenceTrace_conv.csv", AZURE + "2023-11-16 18:15:46.6805900,374,44\n")
    late = AZURE + "2023-11-16 18:15:47.0000000,9,1\n2023-11-16 18:15:48.5000000,7,2\n"
    code = written(tmp_path, "AzureLLMInferenceTrace_code.csv", late)
    found = workflow.import_azure([conv, code], model={"conv": "llama2-13b", "": "llama2-7b"})
    rows = list(found.requests)
    assert [(row["workflow_id"], row["node_tokens"]["generate"]) for row in rows] == [
        ("conv", {"input": 374, "output": 44}),
        ("code", {"input": 9, "output": 1}),
        ("code", {"input": 7, "output": 2}),
    ]
    assert rows[2]["timestamp"] - rows[1]["timestamp"] == pytest.approx(1.5)
    assert {name: model["name"] for name, model in found.config["models"].items()} == {
        "conv": "llama2-13b",
        "code": "llama2-7b",
    }
    assert ran(found).metrics["completed"] == 3


def test_files_of_one_name_are_one_trace(tmp_path: Path) -> None:
    days = []
    for day in ("16", "17"):
        (tmp_path / day).mkdir()
        rows = "".join(f"2023-11-{day} 18:15:4{i}.0000000,9,1\n" for i in range(3))
        days.append(written(tmp_path / day, "AzureLLMInferenceTrace_code.csv", AZURE + rows))
    found = workflow.import_azure([*days, days[0]])
    assert [row["request_id"] for row in found.requests] == [f"code-{n:06d}" for n in range(1, 10)]
    assert ran(found).metrics["completed"] == 9


def test_times_of_azure_2024_have_a_zone_and_mean_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, "a_conv.csv", AZURE + "2024-05-10 00:00:00.009930,10,5\n")
    zoned = written(tmp_path, "b_conv.csv", AZURE + "2024-05-10 02:00:00.009930+02:00,10,5\n")
    one, two = (next(iter(workflow.import_azure(path)))["timestamp"] for path in (plain, zoned))
    assert one == two == 1715299200.00993


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "byte order mark"])
def test_mooncake_counts_milliseconds(tmp_path: Path, mark: str) -> None:
    lines = [{"timestamp": at, "input_length": 700, "output_length": 3, "hash_ids": [0, 1]} for at in (0, 2500)]
    file = written(tmp_path, "toolagent_trace.jsonl", mark + "\n".join(map(json.dumps, lines)))
    found = workflow.import_mooncake(file)
    assert [row["timestamp"] for row in found] == [0, 2.5]
    assert [row["node_prefix"] for row in found] == [{"generate": [0, 1]}] * 2
    assert list(found.config["models"]) == ["toolagent"]
    ran(found)


@pytest.mark.parametrize("system", ["azure", "mooncake", "burstgpt", "otel"])
def test_a_pipe_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, f"{AZURE}2024-05-10 00:00:00.009930,10,5\n".encode())
    os.close(writer)
    with os.fdopen(reader, "rb"):
        assert main(["workflow", "import", system, f"/dev/fd/{reader}", "--out", str(tmp_path / "c.yaml")]) == 2
    assert f"error: /dev/fd/{reader}: expected a file, not a pipe" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_burstgpt_has_models_and_log_types_and_leaves_failures_out(tmp_path: Path) -> None:
    rows = (
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
        "50,GPT-4,9,0,9,API log\n118,ChatGPT,1,2,3,API log\n"
    )
    found = workflow.import_burstgpt(
        written(tmp_path, "BurstGPT_1.csv", BURSTGPT + rows), model={"GPT-4": "llama2-70b", "chatgpt": "llama2-7b"}
    )
    assert found.dropped == {"failed request": 1}
    assert list(found.config["models"]) == ["chatgpt", "gpt_4"]
    assert found.config["models"]["gpt_4"]["name"] == "llama2-70b"
    assert list(found.config["workflows"]) == ["chatgpt_conversation_log", "gpt_4_api_log", "chatgpt_api_log"]
    ran(found)


def test_burstgpt_with_sessions_has_more_columns(tmp_path: Path) -> None:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    file = written(tmp_path, "BurstGPT_3.csv", header + "5.5,12,1.0,GPT-4,4,5,9,API log\n")
    assert [row["timestamp"] for row in workflow.import_burstgpt(file)] == [5.5]


def test_any_rows_with_a_mapping(tmp_path: Path) -> None:
    rows = [
        {"ts": "2025-01-01T00:00:00Z", "usage": {"prompt_tokens": 10, "completion_tokens": 4}, "m": "a/b", "n": "x1"},
        {"ts": "2025-01-01T00:00:01Z", "usage": {"prompt_tokens": 12}, "m": "emb", "n": "x2"},
    ]
    keys = {"timestamp": "ts", "input_tokens": "usage.prompt_tokens", "output_tokens": "usage.completion_tokens"}
    texts = {"a.jsonl": "\n".join(map(json.dumps, rows)), "b.json": json.dumps(rows, indent=1)}
    for name, text in texts.items():
        found = workflow.import_jsonl(written(tmp_path, name, text), map=keys | {"model": "m", "id": "n"})
        got = [(row["request_id"], row["workflow_id"], row["node_tokens"]["generate"]) for row in found]
        assert got == [("x1", "a_b", {"input": 10, "output": 4}), ("x2", "emb", {"input": 12, "output": 0})]
        ran(found)


def test_a_key_with_dots_in_its_name_is_that_key(tmp_path: Path) -> None:
    row = {"t": 1, "gen_ai.usage.input_tokens": 7, "gen_ai": {"usage": {"input_tokens": 9}}}
    file = written(tmp_path, "x.jsonl", json.dumps(row))
    found = workflow.import_jsonl(file, map={"timestamp": "t", "input_tokens": "gen_ai.usage.input_tokens"})
    assert [r["node_tokens"]["generate"]["input"] for r in found] == [7]


def test_rows_are_not_held(tmp_path: Path) -> None:
    file = tmp_path / "big_conv.csv"
    with file.open("w") as out:
        out.write(AZURE)
        out.writelines(f"2023-11-16 18:{i // 60 % 60:02d}:{i % 60:02d}.0000000,374,44\n" for i in range(50_000))
    import tracemalloc

    found = workflow.import_azure(file)
    tracemalloc.start()
    try:
        found.write(tmp_path / "c.yaml", tmp_path / "r.jsonl")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000  # the requests have 6 MB
    finally:
        tracemalloc.stop()
    assert found.counts()["requests"] == 50_000


def test_presets_serve_as_many_as_their_trace_lets_them(tmp_path: Path) -> None:
    long, short = ({"timestamp": 0, "input_length": n, "output_length": 100, "hash_ids": [1, 2]} for n in (12_000, 900))
    files = [written(tmp_path, f"{name}_trace.jsonl", json.dumps(row)) for name, row in (("l", long), ("s", short))]
    models = workflow.import_mooncake(files, model="llama2-70b").config["models"]
    tokens = 0.9 * (2 * 80 - 128.5) * 2**30 / (4 * 80 * 1024) / 2  # 80 layers, 8 heads of 128, keys and values, 2 bytes
    assert models["l"]["max_concurrency"] == int(tokens / 12_100) == 3
    assert models["s"]["max_concurrency"] == 32
    assert models["l"]["prefix_cache_tokens"] == int(tokens)
    read_s, write_s = 12_000 / 2976.5, 100 / 18.2
    expected = (read_s + write_s) / (2 * read_s + 1.092 * write_s)
    assert models["l"]["concurrency_curve"][2] == pytest.approx(expected, abs=1e-4)
    assert models["l"]["concurrency_curve"][2] < models["s"]["concurrency_curve"][2]


def test_a_model_of_the_users_own_stays_as_it_is(tmp_path: Path) -> None:
    own = {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 1, "prefill_tokens_per_second": 9}
    own |= {"tokens_per_second": 9}
    file = written(tmp_path, "a_conv.csv", AZURE + "2023-11-16 18:15:46,30,4\n")
    assert workflow.import_azure(file, model={"conv": own}).config["models"]["conv"] == own


# --- what is wrong --------------------------------------------------------------------------------

WRONG_ROWS = {
    "2023-11-16 18:15:46,x,44": "ContextTokens: expected a whole number of tokens, found 'x'",
    "2023-11-16 18:15:46,-1,44": "ContextTokens: expected a whole number of tokens, found '-1'",
    "2023-11-16 18:15:46,1.5,44": "ContextTokens: expected a whole number of tokens, found '1.5'",
    "2023-11-16 18:15:46,nan,44": "ContextTokens: expected a whole number of tokens, found 'nan'",
    "2023-11-16 18:15:46,,44": "ContextTokens: missing",
    "2023-11-16 18:15:46,0,0": "expected input or output tokens, found 0 of each",
    "yesterday,3,44": "TIMESTAMP: expected a number of s or an ISO 8601 time, found 'yesterday'",
    ",3,44": "TIMESTAMP: missing",
    "2023-11-16 18:15:46,3": "expected 3 cells, found 2",
}


@pytest.mark.parametrize("row", WRONG_ROWS)
def test_wrong_rows_are_told_by_file_and_line_or_skipped(tmp_path: Path, row: str) -> None:
    good = "2023-11-16 18:15:46,3,4\n"
    file = written(tmp_path, "a_conv.csv", AZURE + good + row + "\n" + good)
    with pytest.raises(InputError) as error:
        list(workflow.import_azure(file))
    assert str(error.value) == f"{file}:3: {WRONG_ROWS[row]}"
    found = workflow.import_azure(file, on_error="skip")
    assert [r["request_id"] for r in found] == ["conv-000001", "conv-000003"]
    assert found.notes == [f"skipped: {file}:3: {WRONG_ROWS[row]}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("TIMESTAMP,ContextToken,GeneratedTokens\n", "expected a column 'ContextTokens'; did you mean 'ContextToken'?"),
        (AZURE, "no requests were found"),
    ],
)
def test_files_without_calls(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        list(workflow.import_azure(written(tmp_path, "a_conv.csv", text)))


def test_broken_json_lines_are_told_by_line(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 7, "output_length": 1, "hash_ids": []}'
    file = written(tmp_path, "x_trace.jsonl", f"{line}\n{{broken\n[1]\n")
    with pytest.raises(InputError, match=rf"{file}:2: not JSON"):
        list(workflow.import_mooncake(file))
    found = workflow.import_mooncake(file, on_error="skip")
    assert found.counts()["requests"] == 1
    assert found.notes[1] == f"skipped: {file}:3: expected a row with keys, found list"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timestamp": "t"}, "map: expected a key for 'input_tokens'"),
        ({"timestamp": "t", "input_token": "i"}, "map 'input_token': unknown name; did you mean 'input_tokens'"),
        ({"timestamp": "t", "input_tokens": "i", "trace": "x"}, "map: expected a key for 'id'"),
        ({"timestamp": "t", "input_tokens": ""}, "map: expected names and keys"),
    ],
)
def test_wrong_mappings(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        workflow.import_jsonl(written(tmp_path, "x.jsonl", "{}"), map=given)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("llama2-8b", "model 'llama2-8b': is no preset, nor a file; did you mean 'llama2-7b'?"),
        ({"cnv": "llama2-7b"}, "model 'cnv': the trace has no such model; did you mean 'conv'?"),
        (3, "model: expected a preset or a file, or one for each name, found 3"),
    ],
)
def test_wrong_models(tmp_path: Path, model: Any, message: str) -> None:
    file = written(tmp_path, "a_conv.csv", AZURE + "2023-11-16 18:15:46,3,4\n")
    with pytest.raises(InputError) as error:
        list(workflow.import_azure(file, model=model))
    assert message in str(error.value)


def test_a_model_from_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, "a_conv.csv", AZURE + "2023-11-16 18:15:46,30,4\n")
    model = written(tmp_path, "mine.yaml", "memory_gb: 4\ngpus_required: 1\nload_time_seconds: 1\n")
    with pytest.raises(InputError, match="'conv' has no prefill_tokens_per_second"):
        ran(workflow.import_azure(file, model=model))
    model.write_text(model.read_text() + "prefill_tokens_per_second: 10\ntokens_per_second: 2\n")
    assert ran(workflow.import_azure(file, model={"conv": str(model)})).metrics["makespan_s"] == 6  # 1 + 30/10 + 4/2
    model.write_text("memory: 4\n")
    with pytest.raises(InputError, match=rf"{model}:1: memory: unknown key 'memory'"):
        workflow.import_azure(file, model=model)


# --- spans ----------------------------------------------------------------------------------------


def span(id: str, start: float, end: float, parent: str = "", **more: Any) -> Span:
    model = more.pop("model", "" if more.get("tool") else "m")
    return Span("t", id, parent, start, end, id, model, 5, 5, **more)


def linked(*spans: Span) -> set[str]:
    nodes, edges = call_graph(sorted(spans, key=lambda one: one.start_s))
    return {nodes[i].id + nodes[j].id for i, j in edges} | {node.id for node in nodes}


def test_calls_one_after_the_other_wait_and_those_that_overlap_do_not() -> None:
    root = span("r", 0, 10, model="")
    assert linked(root, span("a", 0, 1, "r"), span("b", 1, 2, "r")) == {"a", "b", "ab"}
    assert linked(root, span("a", 0, 2, "r"), span("b", 1, 3, "r")) == {"a", "b"}
    three = [span("a", 0, 1, "r"), span("b", 1, 2, "r"), span("c", 2, 3, "r")]
    assert linked(root, *three) == {"a", "b", "c", "ab", "bc"}  # and not ac, which follows


def test_calls_of_agents_side_by_side_do_not_wait_for_one_another() -> None:
    spans = [span("r", 0, 10, model=""), span("p", 0, 6, "r", model=""), span("q", 1, 7, "r", model="")]
    spans += [span("a", 0, 1, "p"), span("b", 4, 5, "p"), span("c", 2, 3, "q"), span("d", 6, 7, "q")]
    assert linked(*spans, span("e", 8, 9, "r")) == {*"abcde", "ab", "cd", "be", "de"}


def test_what_wraps_a_call_is_not_another_one() -> None:
    spans = [span("w", 0, 5), span("a", 1, 4, "w"), span("http", 2, 3, "a", model="")]
    assert linked(*spans) == {"a"}


def test_tools_take_their_time_between_calls() -> None:
    spans = [span("r", 0, 9, model=""), span("a", 0, 1, "r"), span("x", 1, 3, "r", tool=True), span("b", 3, 4, "r")]
    assert linked(*spans) == {"a", "x", "b", "ax", "xb"}


def test_a_span_inside_itself_is_refused() -> None:
    with pytest.raises(InputError, match="is inside itself"):
        call_graph([span("a", 0, 1, "b"), span("b", 0, 1, "a")])


def test_spans_nested_too_deeply_are_refused() -> None:
    deep = [span(str(i), 0, 1, str(i - 1) if i else "", model="m" if i == 4999 else "") for i in range(5000)]
    with pytest.raises(InputError, match="is nested too deeply"):
        call_graph(deep)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=7))
def test_siblings_are_ordered_as_their_times_are(times: list[tuple[int, int]]) -> None:
    """The closure of the edges is `ended before the other began`, pair by pair, by definition."""
    spans = [span(str(i), at, at + took + 1) for i, (at, took) in enumerate(times)]
    nodes, edges = call_graph(sorted(spans, key=lambda one: one.start_s))
    after = {(i, j) for i, j in edges}
    while more := {(i, k) for i, j in after for j2, k in after if j == j2} - after:
        after |= more
    expected = {(i, j) for i, j in permutations(range(len(nodes)), 2) if nodes[i].end_s <= nodes[j].start_s}
    assert after == expected
    assert not any((i, k) in edges for i, j in edges for j2, k in edges if j == j2)  # none that follows from others


def otlp(spans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def otel_span(trace: str, id: str, start: int, end: int, parent: str = "", **attributes: Any) -> dict[str, Any]:
    kinds = {str: "stringValue", int: "intValue"}
    given = [{"key": f"gen_ai.{k.replace('__', '.')}", "value": {kinds[type(v)]: v}} for k, v in attributes.items()]
    times = {"startTimeUnixNano": str(start * 10**9), "endTimeUnixNano": str(end * 10**9)}
    return {"traceId": trace, "spanId": id, "parentSpanId": parent, "name": "agent", "attributes": given} | times


def chat(trace: str, id: str, start: int, end: int, parent: str, model: str = "gpt-4o") -> dict[str, Any]:
    used = {"usage__input_tokens": 100, "usage__output_tokens": 20, "operation__name": "chat", "request__model": model}
    return otel_span(trace, id, start, end, parent, **used)


def test_otel_traces_are_graphs_and_equal_shapes_one_workflow(tmp_path: Path) -> None:
    def agent(trace: str, at: int) -> list[dict[str, Any]]:
        total: dict[str, Any] = {
            "operation__name": "invoke_agent",
            "usage__input_tokens": 300,
            "usage__output_tokens": 60,
        }
        return [
            otel_span(trace, "r", at, at + 9, **total),
            chat(trace, "a", at, at + 1, "r"),
            otel_span(trace, "x", at + 1, at + 3, "r", operation__name="execute_tool"),
            chat(trace, "b", at + 3, at + 5, "r", "small"),
            chat(trace, "c", at + 3, at + 6, "r"),
        ]

    one, two = agent("t1", 100), agent("t2", 200)
    lines = [otlp([*one[3:], two[0]]), otlp([*two[1:], *one[:3]]), otlp([otel_span("t3", "r", 7, 8)])]
    file = written(tmp_path, "spans.jsonl", "\n".join(map(json.dumps, lines)))
    found = workflow.import_otel(file, model={"gpt-4o": "llama2-13b"})
    rows = list(found.requests)
    assert [(row["request_id"], row["timestamp"], row["workflow_id"]) for row in rows] == [
        ("t1", 100, "agent"),
        ("t2", 200, "agent"),
    ]
    assert rows[0]["node_execution_times"] == {"tool_1": 2}
    assert found.dropped == {"trace without model calls": 1}
    made = found.config["workflows"]["agent"]
    assert [node["model"] for node in made["nodes"]] == ["gpt_4o", "tool", "small", "gpt_4o"]
    assert {(edge["from"], edge["to"]) for edge in made["edges"]} == {
        ("gpt_4o_1", "tool_1"),
        ("tool_1", "small_1"),
        ("tool_1", "gpt_4o_2"),
    }
    ran(found)
    whole = written(tmp_path, "spans.json", json.dumps(otlp([*one, *two]), indent=1))
    assert workflow.import_otel(whole).counts()["requests"] == 2


def test_old_names_of_token_counts_are_read(tmp_path: Path) -> None:
    used: dict[str, Any] = {"usage__prompt_tokens": 8, "usage__completion_tokens": 2, "response__model": "m"}
    file = written(tmp_path, "s.json", json.dumps(otlp([otel_span("t", "a", 0, 1, **used)])))
    assert [row["node_tokens"] for row in workflow.import_otel(file)] == [{"m_1": {"input": 8, "output": 2}}]


KEYED: Any = {"attributes": [{"key": ["a"], "value": {"intValue": 1}}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "resourceSpans: expected a list of objects, found NoneType"),
        (otlp([{"traceId": "t"}]), "span 0: spanId: missing"),
        (otlp([chat("t", "a", 5, 4, "")]), "span 0: span 'a' ends before it starts"),
        (otlp([chat("t", "a", 1, 4, ""), chat("t", "a", 1, 4, "")]), "span 1: span 'a' is given twice in trace 't'"),
        (otlp([otel_span("t", "a", 1, 4, usage__input_tokens="x")]), "gen_ai.usage.input_tokens: expected a whole"),
        (otlp([chat("t", "a", 1, 4, "") | KEYED]), r"span 0: attributes: expected a key that is text, found \['a'\]"),
    ],
)
def test_wrong_spans(tmp_path: Path, data: Any, message: str) -> None:
    file = written(tmp_path, "s.json", json.dumps(data))
    with pytest.raises(InputError, match=f"{file}.*{message}"):
        list(workflow.import_otel(file))


@pytest.mark.parametrize("key", [["a"], {"a": 1}])
def test_an_attribute_whose_key_is_no_text_is_skipped_with_its_span(tmp_path: Path, key: Any) -> None:
    wrong = chat("t", "b", 1, 4, "") | {"attributes": [{"key": key, "value": {"stringValue": "x"}}]}
    file = written(tmp_path, "s.json", json.dumps(otlp([chat("t", "a", 1, 4, ""), wrong])))
    found = workflow.import_otel(file, on_error="skip")
    assert [[*row["node_tokens"]] for row in found] == [["gpt_4o_1"]]
    assert found.notes == [f"skipped: {file}: span 1: attributes: expected a key that is text, found {key!r}"]


def test_langfuse_observations_are_a_mapping(tmp_path: Path) -> None:
    common = {"traceId": "t", "startTime": "2025-01-01T00:00:00.000Z", "endTime": "2025-01-01T00:00:09.000Z"}
    used = {"model": "m", "usage": {"input": 9, "output": 1}}
    rows = [
        common | {"id": "r", "parentObservationId": None, "type": "SPAN", "name": "answer"},
        common | used | {"id": "a", "parentObservationId": "r", "endTime": "2025-01-01T00:00:01.000Z"},
        common | used | {"id": "b", "parentObservationId": "r", "startTime": "2025-01-01T00:00:02.000Z"},
    ]
    names = "trace=traceId,id=id,parent=parentObservationId,timestamp=startTime,end=endTime,workflow=name,model=model"
    mapped = dict(pair.split("=") for pair in names.split(","))
    mapped |= {"input_tokens": "usage.input", "output_tokens": "usage.output"}
    found = workflow.import_jsonl(written(tmp_path, "o.json", json.dumps(rows)), map=mapped)
    assert found.config["workflows"]["answer"]["edges"] == [{"from": "m_1", "to": "m_2"}]
    ran(found)


# --- commands and real traces ---------------------------------------------------------------------


def test_the_help_of_map_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "import", "jsonl", "--help"]) == 0
    told = capsys.readouterr().out.partition("Which key holds what")[2]
    assert [field for field in FIELDS if not re.search(rf"\b{field}\b", told)] == []


def test_commands_write_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "x.csv", "at,in,out\n0,100,20\nbad,1,1\n2000,50,10\n")
    how = ["--map", "timestamp=at,input_tokens=in", "output_tokens=out", "--time-unit", "ms", "--model", "llama2-13b"]
    given = ["workflow", "import", "jsonl", "x.csv", *how]
    assert main(given) == 2
    assert "x.csv:3: at: expected a number of ms" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
    assert main([*given, "--on-error", "skip", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["requests"] == 2
    assert "x.csv:3" in told["notes"][0]
    run = ["workflow", "run", "--gpus", "a100:1,h100:1", "--mode", "online", "--requests", "workflow_requests.jsonl"]
    assert main(run) == 0
    assert main(given) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*given, "--model", "a", "b"]) == 2
    assert "--model llama2-13b a b: expected one for all" in capsys.readouterr().err


def test_real_azure_traces_import_and_run(traces: Path) -> None:
    found = workflow.import_azure(sorted((traces / "azure-llm-2023").glob("*.csv")))
    assert found.counts() == {"models": 2, "workflows": 2, "nodes": 2, "requests": 28_185}
    total = sum(row["node_tokens"]["generate"]["output"] for row in found)
    assert total == round(8_819 * 27.88252636353328 + 19_366 * 211.12594237323142)
    problem = workflow.load(found.config, found.requests, gpus=16, mode="online")
    run = workflow.run(problem, "baseline", journal=False)
    assert run.metrics["completed"] == 28_185


def test_real_mooncake_traces_import(traces: Path) -> None:
    found = workflow.import_mooncake(sorted((traces / "mooncake").glob("*.jsonl")))
    assert found.counts()["requests"] == 16_024
    assert len(workflow.load(found.config, found.requests, gpus=16, mode="online").requests) == 16_024
