"""Traces sent to a service: which file is which, what is sent and when, what came back, and a sender that is late."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.workflow.live.http.face import WorkflowServer
from tests.waiting import until
from tests.workflow.live.fake_service import FakeService

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,5,3\n2023-11-16 18:15:46.78,9,1\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,7,2,9,API log\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n'
SPAN = {
    "traceId": "a" * 32,
    "spanId": "b" * 16,
    "name": "chat m",
    "startTimeUnixNano": "1000000000",
    "endTimeUnixNano": "2000000000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "11"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "6"}},
    ],
}
OTEL = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]})
REQUESTS = "requests:\n- {request_id: r, workflow_id: w, timestamp: 3, node_tokens: {n: {input: 4, output: 2}}}\n"


@pytest.fixture
def state(server: WorkflowServer, tmp_path: Path) -> Path:
    return tmp_path / "state"


def request(id: str, model: str = "echo", at: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"request_id": id, "workflow_id": model, "timestamp": at, **more}


@pytest.mark.parametrize(
    ("name", "text", "words", "tokens"),
    [
        ("conv.csv", AZURE, [5, 9], [3, 1]),
        ("burst.csv", BURST, [7], [2]),
        ("conversation_trace.jsonl", MOONCAKE, [600], [4]),
        ("spans.json", OTEL, [11], [6]),
        ("requests.yaml", REQUESTS, [4], [2]),
    ],
)
def test_a_file_is_known_by_its_content_and_prompts_have_as_many_words_as_it_says_tokens(
    name: str, text: str, words: list[int], tokens: list[int], state: Path, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    found = workflow.replay(tmp_path / name, state, workflow="echo", speed=100)
    sent = [run.request for run in service.open.values()]
    assert sorted(len(one.input["prompt"].split()) for one in sent) == sorted(words)
    assert sorted(one.options["max_tokens"] for one in sent) == sorted(tokens)
    assert (found.metrics["sent"], found.metrics["completed"]) == (len(words), len(words))
    assert all(reply.late_s >= 0 and reply.response_s is not None for reply in found.replies)


def test_requests_are_sent_at_their_times_and_no_sooner(state: Path, service: FakeService) -> None:
    found = workflow.replay([request("b", at=20), request("a", at=10)], state, speed=50)
    assert [(reply.request_id, reply.due_s) for reply in found.replies] == [("a", 0.0), ("b", 0.2)]
    assert found.metrics["took_s"] >= 0.2


def test_what_came_back_is_counted_by_what_it_was(state: Path) -> None:
    rows = [request("a"), request("b", "busy"), request("c", "broken"), request("d", "picky")]
    found = workflow.replay(rows, state)
    counts = {key: found.metrics[key] for key in ("sent", "completed", "failed", "refused", "error")}
    assert counts == {"sent": 4, "completed": 1, "failed": 2, "refused": 1, "error": 0}
    assert sum(found.metrics["errors"].values()) == 3
    assert found.metrics["retry_after_s_max"] == 2.0
    told = {reply.request_id: reply.error for reply in found.replies}
    assert told["b"] == "12 requests wait already"
    assert told["c"] == "the worker died 20 times"
    assert repr(found) == "<TraceReplay 1 of 4 completed, 1 refused>"


def test_requests_bring_along_what_their_file_gives_them(state: Path, service: FakeService) -> None:
    more: dict[str, Any] = {"input_data": {"prompt": "hello"}, "tenant": "t", "priority": 2.0, "deadline_seconds": 9.0}
    configs: dict[str, Any] = {"node_configs": {"n": {"top_p": 0.5}}, "node_tokens": {"n": {"input": 3, "output": 8}}}
    workflow.replay([request("a", **more, **configs)], state)
    (sent,) = [run.request for run in service.open.values()]
    assert (sent.input, sent.tenant, sent.weight, sent.due_s) == ({"prompt": "hello"}, "t", 2.0, 9.0)
    assert sent.options["node_configs"] == {"n": {"top_p": 0.5, "max_tokens": 8}}
    assert sent.options["node_tokens"] == {"n": {"input": 3, "output": 8}}


def test_names_of_the_trace_may_stand_for_others_of_the_service(state: Path, service: FakeService) -> None:
    workflow.replay([request("a", "x"), request("b", "y")], state, workflow={"x": "echo", "y": "counter"})
    assert sorted(run.request.workflow for run in service.open.values()) == ["counter", "echo"]
    with pytest.raises(InputError, match="the trace's 'ecko': no workflow or model of the service; did you"):
        workflow.replay([request("a", "ecko")], state)
    with pytest.raises(InputError, match="--workflow ecko: no workflow or model of the service"):
        workflow.replay([request("a", "x")], state, workflow="ecko")


def test_a_sender_without_a_free_connection_is_late_and_says_so(state: Path, service: FakeService) -> None:
    done = threading.Thread(target=release_when_open, args=(service,))
    done.start()
    found = workflow.replay([request("a", "slow"), request("b")], state, connections=1)
    done.join()
    late = {reply.request_id: reply.late_s for reply in found.replies}
    first = next(reply for reply in found.replies if reply.request_id == "a")
    assert late["b"] >= (first.response_s or 0.0)
    assert found.metrics["late_s_max"] == late["b"]


def release_when_open(service: FakeService) -> None:
    until(lambda: [run for run in list(service.open.values()) if run.followers])
    service.release(next(iter(service.open)))


def test_ctrl_c_sends_no_more_and_a_second_one_cancels_what_is_open(
    state: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def twice(told: Callable[[], None]) -> Iterator[None]:
        def interrupt() -> None:
            until(lambda: len(service.open) == 1)
            told()
            told()

        other = threading.Thread(target=interrupt)
        other.start()
        yield
        other.join()

    monkeypatch.setattr("dovetail.workflow.live.replay.interrupts", twice)
    found = workflow.replay([request("a", "silent"), request("b", at=3600)], state)
    assert found.interrupted
    assert (found.metrics["sent"], found.metrics["not_sent"], found.metrics["cancelled"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ([], "trace: expected at least one request, found none"),
        ([{"request_id": "a"}], "requests.0: Object missing required field `workflow_id`"),
        ([request("a") | {"timestamp": "soon"}], "requests.0: timestamp: 'soon' is not an ISO 8601 time"),
        ("nowhere.csv", "nowhere.csv: no such file"),
    ],
)
def test_what_is_no_trace_is_told(trace: Any, told: str, state: Path) -> None:
    with pytest.raises(InputError) as caught:
        workflow.replay(trace, state)
    assert told in str(caught.value)


def test_a_file_that_tells_nothing_must_be_named(state: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="which trace is it\\? say --of azure, mooncake"):
        workflow.replay(tmp_path / "x.csv", state)
    with pytest.raises(InputError, match="--speed 0: expected a positive number"):
        workflow.replay([request("a")], state, speed=0)
    with pytest.raises(InputError, match="--connections 0"):
        workflow.replay([request("a")], state, connections=0)


def test_the_command_writes_what_came_of_each_and_gives_the_figures(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conv.csv").write_text(AZURE)
    words = ["workflow", "replay", str(tmp_path / "conv.csv"), "--url", str(state), "--speed", "10"]
    results = tmp_path / "results.jsonl"
    assert main([*words, "--workflow", "echo", "--results", str(results), "--answers", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 2
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(len(row["answer"]["text"].split()) for row in rows) == [5, 9]
    assert main([*words, "--workflow", "conv=broken", "--requests", "1"]) == 3
    shown = capsys.readouterr().out
    assert "failed" in shown
    assert "\n1 times: " in shown
    assert main([*words, "--workflow", "echo", "counter"]) == 2
    assert "expected one for all, or THEIRS=OURS for each" in capsys.readouterr().err


def test_run_live_sends_to_a_service_that_is_there_already(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"requests": [request("a", input_data={"prompt": "hello"})]}))
    words = ["workflow", "run", "--live", "--url", str(state), "--requests", str(tmp_path / "r.json")]
    assert main([*words, "--out", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 1
    (row,) = [json.loads(line) for line in (tmp_path / "service_results.jsonl").read_text().splitlines()]
    assert row["answer"]["text"] == "hello"
    assert main([*words, "--policy", "srpt"]) == 2
    assert "--policy is the service's own with --url" in capsys.readouterr().err


def test_a_real_service_serves_a_trace(tmp_path: Path) -> None:
    model: dict[str, Any] = {
        "memory_gb": 1,
        "gpus_required": 1,
        "load_time_seconds": 0,
        "tokens_per_second": 1000,
        "token_mean": 50,
    }
    config: dict[str, Any] = {"models": {"chat": model | {"source": {"emulated": {}}}}, "workflows": {}}
    (tmp_path / "conv.csv").write_text(AZURE)
    with workflow.serve(config, gpus=1, state=tmp_path / "state") as served:
        found = workflow.replay(tmp_path / "conv.csv", served.url, token_file=served.token_file, workflow="chat")
    assert found.metrics["completed"] == 2
    assert sorted(reply.output_tokens or 0 for reply in found.replies) == [1, 3]
    assert sorted(reply.input_tokens or 0 for reply in found.replies) == [5, 9]
    assert all(reply.first_token_s is not None for reply in found.replies)
