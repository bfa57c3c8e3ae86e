"""Runs over HTTP, the older model server's API, pages, and bodies that make no sense."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.core.service.client import HttpClient, ServiceError
from dovetail.workflow.live.http.desk import Desk
from dovetail.workflow.live.http.face import WorkflowServer
from dovetail.workflow.live.runs import RunRequest
from tests.waiting import until
from tests.workflow.live.fake_service import FakeService


def refused(raw: HttpClient, method: str, path: str, body: object = None, **query: Any) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        raw.ask(method, path, body, query)
    return caught.value.status, str(caught.value)


# --- runs -----------------------------------------------------------------------------------------------------


def test_a_run_is_taken_and_its_result_fetched(raw: HttpClient, service: FakeService) -> None:
    body = {
        "workflow": "slow",
        "input": {"prompt": "x"},
        "tenant": "lab",
        "weight": 2,
        "due_s": 9,
        "options": {"seed": 1},
    }
    run = raw.ask("POST", "/v1/runs", body)
    assert (run["state"], run["tenant"]) == ("running", "lab")
    asked = service.open[run["id"]].request
    assert (asked.weight, asked.due_s, asked.options, asked.stream) == (2, 9, {"seed": 1}, False)
    path = f"/v1/runs/{run['id']}"
    assert raw.get(path)["state"] == "running"
    assert raw.get(f"{path}/result")["state"] == "running"  # 202: not yet
    service.release(run["id"])
    assert raw.get(f"{path}/result")["answer"] == {"text": "one two"}
    assert raw.get(f"{path}/explain") == {"run": run["id"], "because": "it was its turn"}


def test_where_a_run_is_found(server: WorkflowServer, raw: HttpClient) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    allowed = {"authorization": f"Bearer {raw.address.token}"}
    connection.request("POST", "/v1/runs", b'{"workflow": "silent"}', allowed)
    answer = connection.getresponse()
    run = msgspec.json.decode(answer.read())
    assert (answer.status, answer.headers["location"]) == (202, f"/v1/runs/{run['id']}")
    connection.request("GET", f"/v1/runs/{run['id']}/result", headers=allowed)
    assert connection.getresponse().status == 202
    connection.close()


def test_waiting_for_a_run(raw: HttpClient, service: FakeService) -> None:
    assert raw.ask("POST", "/v1/runs", {"workflow": "counter"}, {"wait": 60})["answer"] == {"text": "one two three"}
    run = raw.ask("POST", "/v1/runs", {"workflow": "silent"}, {"wait": 0.01})
    assert run["state"] == "queued"
    assert service.open[run["id"]].why_cancelled == ""
    threading.Timer(0.05, service.release, [run["id"]]).start()
    assert raw.get(f"/v1/runs/{run['id']}/result", wait=60)["answer"] == {"text": "one two"}
    until(lambda: service.followed == 0)


def test_who_waits_for_a_run_and_goes_cancels_it(server: WorkflowServer, raw: HttpClient, service: FakeService) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    body = b'{"workflow": "silent"}'
    head = f"Host: localhost\r\nAuthorization: Bearer {raw.address.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"POST /v1/runs?wait=600 HTTP/1.1\r\n" + head.encode() + body)
        until(lambda: service.followed)
    until(lambda: [run.state for run in service.open.values()] == ["cancelled"])


def test_the_same_key_is_the_same_run(raw: HttpClient) -> None:
    key = {"idempotency-key": "k1"}
    one = raw.ask("POST", "/v1/runs", {"workflow": "silent", "input": {"a": 1}}, headers=key)
    two = raw.ask("POST", "/v1/runs", {"workflow": "silent", "input": {"a": 1}}, headers=key)
    assert one["id"] == two["id"]
    with pytest.raises(ServiceError) as caught:
        raw.ask("POST", "/v1/runs", {"workflow": "silent", "input": {"a": 2}}, headers=key)
    assert caught.value.status == 409


def test_runs_are_listed_in_pages(raw: HttpClient) -> None:
    for number in range(5):
        raw.ask("POST", "/v1/runs", {"workflow": "silent" if number % 2 else "echo", "id": f"r{number}"})
    page = raw.get("/v1/runs", limit=2)
    assert [run["id"] for run in page["data"]] == ["r4", "r3"]
    page = raw.get("/v1/runs", limit=3, after=page["next"])
    assert ([run["id"] for run in page["data"]], page["next"]) == (["r2", "r1", "r0"], None)
    assert [run["id"] for run in raw.get("/v1/runs", state="queued")["data"]] == ["r3", "r1"]
    assert refused(raw, "GET", "/v1/runs", state="quued") == (
        400,
        "state 'quued': expected a state; did you mean 'queued'?",
    )
    assert refused(raw, "GET", "/v1/runs", limit="many")[0] == 400


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/runs/{}"), ("POST", "/v1/runs/{}/cancel")])
def test_cancelling(raw: HttpClient, service: FakeService, method: str, path: str) -> None:
    run = raw.ask("POST", "/v1/runs", {"workflow": "silent"})["id"]
    assert raw.ask(method, path.format(run))["state"] == "cancelled"
    assert service.open[run].why_cancelled == "it was asked for"
    assert raw.get(f"/v1/runs/{run}/result")["state"] == "cancelled"
    assert refused(raw, method, path.format("none")) == (404, "there is no run 'none'")


def test_events_come_as_they_happen_and_are_resumed(raw: HttpClient, service: FakeService) -> None:
    run = raw.ask("POST", "/v1/runs", {"workflow": "slow", "stream": True})["id"]
    told = raw.events(f"/v1/runs/{run}/events")
    first = [next(told) for _ in range(3)]
    assert [(event.name, event.number) for event in first] == [("queued", 1), ("started", 2), ("piece", 3)]
    service.release(run)
    assert [(event.name, event.data.get("text")) for event in told] == [("piece", "two"), ("completed", None)]
    again = [event.name for event in raw.events(f"/v1/runs/{run}/events", after=3)]
    assert again == ["piece", "completed"]
    assert refused(raw, "GET", "/v1/runs/none/events")[0] == 404
    until(lambda: service.followed == 0)


def test_who_looks_and_goes_cancels_nothing(raw: HttpClient, service: FakeService) -> None:
    run = raw.ask("POST", "/v1/runs", {"workflow": "slow"})["id"]
    told = raw.events(f"/v1/runs/{run}/events")
    next(told)
    told.close()  # type: ignore[attr-defined]
    until(lambda: service.followed == 0)
    assert service.open[run].state == "running"


def test_who_does_not_read_is_not_told_more_until_he_does(service: FakeService) -> None:
    words = [f"{n}" + "x" * 400_000 for n in range(20)]

    async def follow() -> tuple[int, list[str]]:
        desk = Desk(service)
        waiting = await desk.follow(run)
        service.open[run].say(*words)
        await desk.do(lambda: None)
        held = waiting._told.qsize()
        service.release(run)
        texts = []
        while (event := await waiting.next()) is not None and event.kind != "completed":
            texts += [event.text] if event.kind == "piece" else []
        waiting.close()
        desk.close()
        return held, texts

    run = service.submit(RunRequest(workflow="slow", stream=True))
    held, texts = asyncio.run(follow())
    assert held < 10
    assert texts == ["one ", *words, "two"]
    assert service.followed == 0


def test_events_tell_what_nodes_gave(raw: HttpClient) -> None:
    run = raw.ask("POST", "/v1/runs", {"workflow": "chain"})["id"]
    told = [event.data for event in raw.events(f"/v1/runs/{run}/events") if event.name == "node done"]
    assert [(event["node"], event["data"]) for event in told] == [("draft", {"text": f"draft of {run}"})]


def test_a_stream_shows_that_it_lives(raw: HttpClient, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.workflow.live.http.runs.HEARTBEAT_S", 0.01)
    run = raw.ask("POST", "/v1/runs", {"workflow": "silent"})["id"]
    with raw._answer("GET", f"/v1/runs/{run}/events", None, None, {}) as answer:
        while (line := answer.readline()) and line != b": still here\n":
            pass
        assert line, "the stream has ended"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "missing key `workflow`"),
        ({"workflow": "echo", "inptu": {}}, 400, "unknown key 'inptu'; did you mean 'input'?"),
        ({"workflow": "echo", "weight": 0}, 400, "weight 0: expected a positive number"),
        ({"workflow": "ehco"}, 404, "did you mean 'echo'"),
        ({"workflow": "busy"}, 429, "12 requests wait already"),
    ],
)
def test_runs_that_are_not_taken(raw: HttpClient, body: dict[str, Any], status: int, message: str) -> None:
    found = refused(raw, "POST", "/v1/runs", body)
    assert found[0] == status
    assert message in found[1]


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [1], "dtype": "datetime64[s]", "data": "AAAAAA==", "of": "torch"},
        {"shape": "x", "dtype": 3, "data": "AAAAAA=="},
        {"base64": "?"},
    ],
)
def test_values_that_cannot_be_read_are_the_clients_mistake(raw: HttpClient, tensor: object) -> None:
    assert refused(raw, "POST", "/v1/runs", {"workflow": "silent", "input": {"a": tensor}})[0] == 400


def test_a_body_that_is_too_large(raw: HttpClient) -> None:
    assert refused(raw, "POST", "/v1/runs", {"workflow": "echo", "input": {"a": "x" * 200_000}})[0] == 413


# --- the older model server -----------------------------------------------------------------------------------


def test_the_older_servers_clients_find_their_way(server: WorkflowServer, raw: HttpClient) -> None:
    assert raw.get("/")["data"]["status"] == "running"
    assert raw.ask("POST", "/standalone/download", {"model_name": "echo"})["data"]["source"] == "configured"
    assert raw.ask("POST", "/standalone/load", {"model_name": "echo", "target": "dram"})["data"] == {
        "already_loaded": True,
        "device": "cuda:0",
    }
    assert raw.ask("POST", "/standalone/load", {"model_name": "silent"})["data"]["already_loaded"] is False
    served = raw.ask("POST", "/standalone/serve", {"model_name": "echo", "device": "cuda:1"})
    assert served["success"]
    assert "the device is not taken" in served["message"]
    instance = served["data"]
    assert len(instance["instance_id"]) == 6
    assert instance["url"] == server.url
    assert instance["device"] == "auto"
    call = {"instance_id": instance["instance_id"], "data": {"prompt": "hi", "max_length": 7}}
    answer = raw.ask("POST", instance["endpoint"], call)["data"]
    assert (answer["response"], answer["model_type"], answer["device_used"]) == ("hi", "llm", "cpu")
    estimate = raw.ask("POST", f"/standalone/estimate/{instance['instance_id']}", call)["data"]
    assert (estimate["estimated_execution_time"], estimate["estimated_time_unit"]) == (0.52, "seconds")
    alone = raw.ask(
        "POST", "/standalone/estimate", {"model_name": "echo", "device": "cuda:0", "data": {"prompt": "hi"}}
    )
    assert alone["data"]["estimated_execution_time"] == 0.52
    status = raw.get("/standalone/status")["data"]
    assert status["models_in_dram"] == ["echo", "counter", "slow"]
    assert [each["instance_id"] for each in status["serving_instances"]] == [instance["instance_id"]]
    offloaded = raw.ask("POST", "/standalone/offload", {"model_name": "echo", "target": "disk"})["data"]
    assert offloaded["instances_stopped"] == [instance["instance_id"]]
    assert refused(raw, "DELETE", f"/standalone/instance/{instance['instance_id']}")[0] == 404


def test_options_of_the_older_server(raw: HttpClient, service: FakeService) -> None:
    name = raw.ask("POST", "/standalone/serve", {"model_name": "echo"})["data"]["instance_id"]
    raw.ask("POST", f"/standalone/call/{name}", {"data": {"prompt": "hi"}})
    raw.ask("POST", f"/standalone/call/{name}", {"data": {"prompt": "hi", "max_length": 7, "temperature": 0}})
    assert [run.request.options for run in service.open.values()] == [
        {"max_tokens": 100, "temperature": 0.7},
        {"max_tokens": 7, "temperature": 0},
    ]
    assert raw.ask("DELETE", f"/standalone/instance/{name}")["data"]["model_name"] == "echo"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("load", {"model_name": "nothing"}, 404),
        ("load", {}, 422),
        ("serve", {"model_name": "nothing"}, 404),
        ("call/zzzzzz", {"data": {"prompt": "a"}}, 404),
        ("estimate/zzzzzz", {"data": {"prompt": "a"}}, 404),
        ("estimate", {"model_name": "echo", "data": {}}, 422),
        ("offload", {"model_name": "echo", "target": "moon"}, 422),
        ("download", {"model_name": "nothing"}, 404),
    ],
)
def test_what_is_not_there_is_404_and_never_500(raw: HttpClient, path: str, body: dict[str, Any], status: int) -> None:
    assert refused(raw, "POST", f"/standalone/{path}", body)[0] == status


# --- pages ----------------------------------------------------------------------------------------------------


def test_pages(server: WorkflowServer, raw: HttpClient, service: FakeService) -> None:
    assert raw.get("/health")["status"] == "healthy"
    assert raw.get("/health")["models_in_dram"] == 3
    assert raw.get("/ready")["status"] == "ready"
    assert raw.get("/metrics").startswith("# TYPE")
    assert raw.get("/v1/about")["draining"] is False
    service.trouble = "the disk is full"
    assert refused(raw, "GET", "/ready")[0] == 503
    service.trouble, service.draining = "", True
    assert refused(raw, "GET", "/ready")[0] == 503
    assert raw.get("/health")["status"] == "healthy"


def test_what_needs_no_token_tells_no_secret(server: WorkflowServer, raw: HttpClient) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    for path, expected in (("/", 200), ("/health", 200), ("/ready", 200), ("/docs", 200), ("/openapi.json", 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, raw.address.token in answer.read().decode()) == (expected, False)
    for path in ("/metrics", "/v1/about", "/v1/models", "/v1/runs", "/standalone/status"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401, path
    connection.close()


def test_the_page_asks_for_nothing_from_anywhere(raw: HttpClient) -> None:
    told = raw.get("/openapi.json")
    assert told["openapi"] == "3.1.0"
    assert set(told["paths"]["/v1/runs/{run}"]) == {"get", "delete"}
    assert "ChatRequest" in told["components"]["schemas"]
    page = raw.get("/docs")
    assert "/v1/chat/completions" in page
    assert not [word for word in ("src=", "://", "@import", "url(") if word in page]


# --- nonsense -------------------------------------------------------------------------------------------------

_WHOLE: dict[str, Any] = {
    "/v1/runs": {"workflow": "echo", "input": {"prompt": "a"}, "options": {}, "weight": 1.0, "tenant": "t"},
    "/v1/chat/completions": {"model": "counter", "messages": [{"role": "user", "content": "a"}], "stream": True},
    "/v1/completions": {"model": "echo", "prompt": "a", "max_tokens": 3, "stop": ["x"]},
    "/v1/embeddings": {"model": "embedder", "input": ["a"]},
    "/standalone/serve": {"model_name": "echo", "device": "cuda:0"},
    "/standalone/load": {"model_name": "echo"},
    "/standalone/estimate": {"model_name": "echo", "data": {"prompt": "a"}},
    "/standalone/offload": {"model_name": "echo", "target": "disk"},
}
_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "\0",
    "\U0001f600" * 50,
    [],
    {},
    [[]],
    {"a": {"b": []}},
    "x" * 999,
]


def _damaged(body: Any, dice: random.Random) -> bytes:
    """A body with a field changed, added or left out, or with bytes changed."""
    whole = msgspec.json.decode(msgspec.json.encode(body))
    field = dice.choice([*whole, "extra", "stream", "model"])
    kind = dice.randrange(4)
    if kind == 0:
        whole.pop(field, None)
    elif kind == 1:
        whole[field] = dice.choice(_ODD)
    text = msgspec.json.encode(dice.choice(_ODD) if kind == 3 and dice.random() < 0.2 else whole)
    if kind >= 2:
        at = dice.randrange(len(text) + 1)
        text = dice.choice([text[:at], text[:at] + dice.randbytes(3) + text[at:], text[:at] + b'"\\ud800"' + text[at:]])
    return text


def test_nonsense_is_never_our_fault_and_always_answered(server: WorkflowServer, raw: HttpClient) -> None:
    dice = random.Random(14)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=300)
    allowed = {"authorization": f"Bearer {raw.address.token}"}
    statuses: dict[int, int] = {}
    for _ in range(600):
        path = dice.choice([*_WHOLE])
        text = _damaged(_WHOLE[path], dice)
        connection.request("POST", path, text, allowed)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 500, (path, text, content)
        if answer.status >= 400:
            assert set(msgspec.json.decode(content)["error"]) == {"message", "type", "param", "code"}
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    connection.close()
    assert {200, 400, 404} <= statuses.keys()


def test_nonsense_on_the_line_is_answered_or_cut(server: WorkflowServer, raw: HttpClient) -> None:
    dice = random.Random(4)
    host, _, port = server.url.removeprefix("http://").partition(":")
    whole = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {raw.address.token}\r\n\r\n".encode()
    for _ in range(100):
        at = dice.randrange(len(whole) - 4)
        with socket.create_connection((host, int(port)), timeout=300) as line:
            line.sendall(whole[:at] + dice.randbytes(4) + whole[at + 4 :])
            line.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda line=line: line.recv(1 << 16), b""))  # type: ignore[misc]
            assert not answer or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), answer


def test_the_folder_has_what_clients_need(server: WorkflowServer, tmp_path: Path) -> None:
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"token", "url"}
