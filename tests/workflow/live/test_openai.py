"""OpenAI's API, spoken by its own client to a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from dovetail.core.service.client import HttpClient, ServiceError
from dovetail.core.service.http import HttpError
from dovetail.workflow.live.http.face import WorkflowServer
from dovetail.workflow.live.http.openai import StreamedText
from dovetail.workflow.live.runs import RunEvent, WorkflowInfo
from tests.waiting import until
from tests.workflow.live.fake_service import MODELS, FakeService

ASKED: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.fixture
def client(raw: HttpClient) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=raw.address.url + "/v1", api_key=raw.address.token, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI, service: FakeService) -> None:
    answer = client.chat.completions.create(
        model="echo", messages=ASKED, temperature=0.5, seed=7, stop=["\n"], max_completion_tokens=5, user="u"
    )
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "echo")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 5, 8)
    (run,) = service.open.values()
    assert answer.id == f"chatcmpl-{run.id}"
    assert run.request.options == {"temperature": 0.5, "seed": 7, "stop": ["\n"], "max_tokens": 5}
    assert run.request.input == {"messages": ASKED, "prompt": "hello"}
    assert not run.request.stream
    back: Any = [*ASKED, answer.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "again"}]}]
    assert client.chat.completions.create(model="echo", messages=back).choices[0].message.content == "again"


def test_a_workflow_answers_with_its_last_node(client: openai.OpenAI) -> None:
    assert client.chat.completions.create(model="chain", messages=ASKED).choices[0].message.content == "final: hello"
    pieces = client.chat.completions.create(model="chain", messages=ASKED, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == "final: hello"


def test_streamed_chat(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model="counter", messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(told)
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == ["", "one ", "two ", "three", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8
    assert len({chunk.id for chunk in chunks}) == 1


def test_what_was_not_streamed_comes_in_one_piece(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="echo", messages=ASKED, stream=True)
    assert [chunk.choices[0].delta.content for chunk in told] == ["", "hello", None]


def test_where_the_end_tells_who_answers_the_text_comes_in_one_piece(
    client: openai.OpenAI, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = WorkflowInfo(name="counter", nodes=("counter",), models=("counter",), answer="counter", grows=True)
    monkeypatch.setattr(service, "workflows", lambda: [info])
    told = client.chat.completions.create(model="counter", messages=ASKED, stream=True)
    assert [chunk.choices[0].delta.content for chunk in told] == ["", "one two three", None]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt="once", max_tokens=5)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("once", "length")
    assert answer.object == "text_completion"
    several = client.completions.create(model="echo", prompt=["once", "twice"])
    assert [(choice.index, choice.text) for choice in several.choices] == [(0, "once"), (1, "twice")]
    assert several.usage is not None
    assert several.usage.total_tokens == 16
    told = client.completions.create(model="counter", prompt="", stream=True)
    assert "".join(chunk.choices[0].text for chunk in told) == "one two three"


def test_several_prompts_are_not_streamed_and_fail_together(client: openai.OpenAI, service: FakeService) -> None:
    with pytest.raises(openai.BadRequestError, match="expected one where the answer is streamed"):
        client.completions.create(model="echo", prompt=["a", "b"], stream=True)
    with pytest.raises(openai.UnprocessableEntityError, match="longer than 4 tokens"):
        client.completions.create(model="picky", prompt=["a", "b"])
    until(lambda: service.followed == 0)


def test_tokens_that_nobody_counted_are_not_made_up(client: openai.OpenAI, service: FakeService) -> None:
    service.read = None
    answer = client.completions.create(model="echo", prompt="once")
    assert answer.usage is None  # all three figures, or none: clients add them up
    assert client.embeddings.create(model="embedder", input="ab").usage is None


def test_embeddings(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="embedder", input=["a", "bcd"])  # the client asks for base64 by itself
    assert [vector.embedding for vector in packed.data] == [pytest.approx([n, 0.1, -2.0]) for n in (1.0, 3.0)]
    plain = client.embeddings.create(model="embedder", input="ab", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx([2.0, 0.1, -2.0])
    assert plain.usage.prompt_tokens == 3


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chain", *MODELS]
    assert client.models.retrieve("chain").owned_by == "dovetail"
    with pytest.raises(openai.NotFoundError, match="did you mean 'counter'"):
        client.models.retrieve("countre")


def test_the_asynchronous_client(raw: HttpClient) -> None:
    async def ask() -> tuple[str | None, str, float]:
        url = raw.address.url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=raw.address.token, max_retries=0) as client:
            whole = await client.chat.completions.create(model="echo", messages=ASKED)
            told = await client.chat.completions.create(model="counter", messages=ASKED, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in told])
            vector = (await client.embeddings.create(model="embedder", input="ab")).data[0].embedding
            return whole.choices[0].message.content, text, vector[0]

    assert asyncio.run(ask()) == ("hello", "one two three", 2.0)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("countre", openai.NotFoundError, "did you mean 'counter'"),
        ("picky", openai.UnprocessableEntityError, "longer than 4 tokens"),
        ("broken", openai.InternalServerError, "the worker died 20 times"),
        ("waits", openai.InternalServerError, "it waited for 600 s"),
        ("busy", openai.RateLimitError, "12 requests wait already"),
        ("pixels", openai.UnprocessableEntityError, "the answer has no text, but image, size"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: openai.OpenAI, model: str, error: type[Any], message: str, stream: bool) -> None:
    if model == "pixels" and stream:
        error = openai.APIError  # it has begun
    with pytest.raises(error, match=message):
        list(client.chat.completions.create(model=model, messages=ASKED, stream=stream))


def test_wrong_token(raw: HttpClient, service: FakeService) -> None:
    with (
        openai.OpenAI(base_url=raw.address.url + "/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="the token is wrong"),
    ):
        client.chat.completions.create(model="echo", messages=ASKED)
    assert not service.open


def test_while_it_drains(client: openai.OpenAI, service: FakeService) -> None:
    service.draining = True
    with pytest.raises(openai.InternalServerError, match="about to end") as caught:
        client.chat.completions.create(model="echo", messages=ASKED)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "5")


def test_who_waited_too_long_may_come_back(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="waits", messages=ASKED)
    headers = caught.value.response.headers
    assert (caught.value.status_code, headers["retry-after"]) == (503, "1")
    assert "x-should-retry" not in headers


def test_when_to_come_back(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="busy", messages=ASKED)
    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1500")
    assert "x-should-retry" not in headers


def test_what_can_never_work_is_not_tried_again(raw: HttpClient) -> None:
    """The client would try 409 and 500 three times."""
    seen: list[int] = []
    with openai.OpenAI(base_url=raw.address.url + "/v1", api_key=raw.address.token, max_retries=2) as client:
        client._client.event_hooks["response"] = [lambda answer: seen.append(answer.status_code)]
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="broken", messages=ASKED)
        key = {"idempotency-key": "k"}
        client.completions.create(model="echo", prompt="a", extra_headers=key)
        with pytest.raises(openai.ConflictError, match="the key 'k' is of another request"):
            client.completions.create(model="echo", prompt="b", extra_headers=key)
    assert seen == [500, 200, 409]


def test_a_loss_in_the_middle_of_a_stream_is_told(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="half", messages=ASKED, stream=True)
    assert [next(told).choices[0].delta.content for _ in range(3)] == ["", "one ", "two "]
    with pytest.raises(openai.APIError, match="the worker died 20 times"):
        next(told)


def test_an_attempt_that_writes_the_same_goes_on_unnoticed(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="again", messages=ASKED, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == "one two three"


@pytest.mark.parametrize("text", ["one", "xyz"])
def test_an_attempt_that_writes_less_cannot_be_mended_either(text: str) -> None:
    told = StreamedText("n")
    assert told.more(_event("piece", "one two")) == "one two"
    told.more(_event("restarted"))
    with pytest.raises(HttpError, match="the next attempt came out otherwise"):
        told.rest(text)


def test_a_text_without_the_spaces_at_its_end_is_the_same_as_its_pieces() -> None:
    told = StreamedText("n")
    for _ in range(2):
        told.more(_event("restarted"))
        told.more(_event("piece", "one two "))
    assert told.rest("one two") == ""
    told.more(_event("restarted"))  # and this time no piece of it was told
    assert told.rest("one two") == ""
    told.more(_event("restarted"))
    with pytest.raises(HttpError, match="came out otherwise"):
        told.rest("one")


def _event(kind: Any, text: str = "") -> RunEvent:
    return RunEvent(n=1, t=0.0, kind=kind, node="n", text=text)


def test_an_attempt_that_writes_something_else_cannot_be_mended(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError, match="the next attempt came out otherwise"):
        list(client.chat.completions.create(model="other", messages=ASKED, stream=True))


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("chat/completions", "n", 2),
        ("chat/completions", "tools", [{"type": "function"}]),
        ("chat/completions", "logprobs", True),
        ("chat/completions", "response_format", {"type": "json_object"}),
        ("chat/completions", "max_token", 3),
        ("chat/completions", "temperature", 3),
        ("chat/completions", "max_tokens", 0),
        ("chat/completions", "stop", ["a", "b", "c", "d", "e"]),
        ("chat/completions", "messages", []),
        ("chat/completions", "messages", [{"role": "tool", "content": "x"}]),
        ("chat/completions", "messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("chat/completions", "model", None),
        ("chat/completions", "dovetail", {"weight": 0}),
        ("chat/completions", "dovetail", {"wieght": 1}),
        ("completions", "echo", True),
        ("completions", "prompt", []),
        ("completions", "prompt", [1, 2]),
        ("embeddings", "dimensions", 3),
        ("embeddings", "input", [1, 2, 3]),
        ("embeddings", "encoding_format", "int8"),
    ],
)
def test_what_cannot_be_done_is_refused(
    raw: HttpClient, service: FakeService, path: str, field: str, value: object
) -> None:
    whole = {"chat/completions": {"messages": ASKED}, "completions": {"prompt": "a"}, "embeddings": {"input": "a"}}
    with pytest.raises(ServiceError) as caught:
        raw.ask("POST", f"/v1/{path}", {"model": "echo", **whole[path], field: value})
    assert caught.value.status == 400
    assert field in str(caught.value) or "weight" in str(caught.value)
    assert not service.open


def test_what_asks_for_nothing_is_ignored(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="echo", messages=ASKED, n=1, tools=[], logprobs=False, response_format={"type": "text"}, store=True
    )
    assert answer.choices[0].message.content == "hello"


def test_what_openai_has_no_word_for(client: openai.OpenAI, service: FakeService) -> None:
    more = {"dovetail": {"tenant": "lab", "weight": 2.0, "due_s": 3.0, "input": {"topic": "x"}}}
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    answer = client.chat.completions.with_raw_response.create(
        model="echo", messages=ASKED, extra_body=more, extra_headers=parent
    )
    assert answer.headers["x-request-id"] == trace
    (run,) = service.open.values()
    assert (run.request.tenant, run.request.weight, run.request.due_s) == ("lab", 2.0, 3.0)
    assert run.request.input["topic"] == "x"
    assert run.request.trace_id == trace


def sent(server: WorkflowServer, raw: HttpClient, body: dict[str, Any]) -> socket.socket:
    """A request for chat on a line of its own."""
    text = json.dumps({"messages": ASKED, **body}).encode()
    host, _, port = server.url.removeprefix("http://").partition(":")
    line = socket.create_connection((host, int(port)))
    head = f"Host: localhost\r\nAuthorization: Bearer {raw.address.token}\r\nContent-Length: {len(text)}\r\n\r\n"
    line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + text)
    return line


@pytest.mark.parametrize("model", ["slow", "silent"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_cancels_what_it_asked_for(
    server: WorkflowServer, raw: HttpClient, service: FakeService, model: str, stream: bool
) -> None:
    with sent(server, raw, {"model": model, "stream": stream}) as line:
        if model == "slow" and stream:
            assert b"HTTP/1.1 200" in line.recv(1 << 16)
        else:
            until(lambda: service.open)
    until(lambda: [run.why_cancelled for run in service.open.values()] == ["the client has gone"])
    until(lambda: service.followed == 0)


def test_a_client_with_a_key_can_ask_again(server: WorkflowServer, raw: HttpClient, service: FakeService) -> None:
    with raw_line(server, raw):
        until(lambda: service.followed)
    until(lambda: service.followed == 0)
    (run,) = service.open.values()
    assert run.state == "running"
    service.release(run.id)
    asked = {"model": "slow", "messages": ASKED}
    answer = raw.ask("POST", "/v1/chat/completions", asked, headers={"idempotency-key": "mine"})
    assert answer["choices"][0]["message"]["content"] == "one two"


def raw_line(server: WorkflowServer, raw: HttpClient) -> socket.socket:
    text = json.dumps({"messages": ASKED, "model": "slow"}).encode()
    host, _, port = server.url.removeprefix("http://").partition(":")
    line = socket.create_connection((host, int(port)))
    head = f"Host: localhost\r\nAuthorization: Bearer {raw.address.token}\r\nIdempotency-Key: mine\r\n"
    line.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return line


def test_a_hundred_clients_at_once(raw: HttpClient, service: FakeService) -> None:
    def ask(number: int) -> str:
        with openai.OpenAI(base_url=raw.address.url + "/v1", api_key=raw.address.token, max_retries=0) as client:
            if number % 2:
                answer = client.completions.create(model="echo", prompt=f"{number}")
                return answer.choices[0].text
            told = client.completions.create(model="echo", prompt=f"{number}", stream=True)
            return "".join(chunk.choices[0].text for chunk in told)

    with ThreadPoolExecutor(100) as clients:
        assert list(clients.map(ask, range(100))) == [str(number) for number in range(100)]
    assert len(service.open) == 100
    until(lambda: service.followed == 0)
