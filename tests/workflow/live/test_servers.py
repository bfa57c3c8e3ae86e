"""Servers of others as back ends: what is asked and answered, whose fault a failure is, who loads and unloads."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import workflow
from dovetail.workflow.live.backends import http_client, tensors
from dovetail.workflow.live.backends import started as backends_started
from dovetail.workflow.live.backends.events import data_of
from dovetail.workflow.live.backends.servers import ServerBackEnd, make
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import (
    Answer,
    BackEndError,
    Loaded,
    LoadFailed,
    ModelCall,
    OutOfMemoryError,
    Report,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerLost,
    WorkerReady,
)
from dovetail.workflow.live.specs import model_specs
from tests.ports import lasting_port
from tests.processes import children_of
from tests.waiting import PATIENCE_S, until
from tests.workflow.live import fake_servers
from tests.workflow.live.fake_servers import Answering, FakeServer, Say, chunks, event, openai, serving

R = TypeVar("R")
FAKE = [sys.executable, str(Path(fake_servers.__file__)), "{port}"]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def back_end(url: str, model: str = "m", type: str = "llm", **source: Any) -> ServerBackEnd:
    options = source.pop("options", {})
    where = {"url": url, "model": model, **source}
    return make(ServedModel(name=model, source=where, type=type, memory_mib=7, options=options))


def ask(end: ServerBackEnd, stopped: Event | None = None, stream: bool = False, **inputs: Any) -> Answer:
    options = inputs.pop("options", {})
    call = ModelCall(id="1", model="m", inputs=inputs, options=options, stream=stream)
    return end.call(call, lambda text, tokens: None, stopped or Event())


class Served:
    """A loaded back end on a fake server whose next answers to calls can be set."""

    def __init__(self, server: FakeServer, end: ServerBackEnd, says: list[Say]) -> None:
        self.server, self.end, self.says = server, end, says

    def fails(self, *says: Say, **inputs: Any) -> BackEndError:
        self.says[:] = says
        with pytest.raises(BackEndError) as failed:
            ask(self.end, **inputs or {"prompt": "a b"})
        return failed.value


@pytest.fixture
def served() -> Iterator[Served]:
    says: list[Say] = []
    good = openai("m")

    def answer(method: str, path: str, body: dict[str, Any]) -> Say:
        return says.pop(0) if says and "model" in body else good(method, path, body)

    with serving(answer) as server:
        end = back_end(f"{server.url}/v1", timeout_s=20.0)
        end.load(["cpu"])
        yield Served(server, end, says)
        end.unload(keep=False)


# --- calls ------------------------------------------------------------------------------------------


def test_prompts_messages_and_texts_are_asked_in_their_ways(served: Served) -> None:
    messages = [{"role": "user", "content": "a b"}]
    assert ask(served.end, prompt="a b") == Answer("1", {"text": "m: a b"}, 3, 3)
    assert ask(served.end, messages=messages, prompt="x").outputs == {"text": "m: a b"}
    assert ask(served.end, input=["a", "bcd"]) == Answer("1", {"embeddings": [[1.0, 1.0], [3.0, 1.0]]}, 7, 0)
    assert ask(served.end, text="q", options={"max_tokens": 1, "seed": 3}).outputs == {"text": "m:"}
    paths = [path for _, path, body in served.server.seen if "model" in body]
    assert paths == ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/completions"]
    assert served.server.seen[-1][2]["seed"] == 3
    assert served.server.connections == 1, "connections are kept"


def test_api_says_how_a_prompt_is_asked() -> None:
    with serving(openai("m")) as server:
        chat = back_end(server.url, api="chat", options={"temperature": 0})
        embed = back_end(server.url, type="embedding")
        for end in (chat, embed):
            end.load(["cpu"])
        assert ask(chat, prompt="a").outputs == {"text": "m: a"}
        assert server.seen[-1][2]["messages"] == [{"role": "user", "content": "a"}]
        assert server.seen[-1][2]["temperature"] == 0
        assert ask(embed, prompt="abc").outputs == {"embeddings": [[3.0, 1.0]]}
        for end in (chat, embed):
            end.unload(keep=False)


def test_pieces_are_told_as_they_come_and_the_first_token_in_any_case(served: Served) -> None:
    told: list[tuple[str, int]] = []
    for stream in (True, False):
        call = ModelCall(id="1", model="m", inputs={"prompt": "a b"}, stream=stream)
        served.end.call(call, lambda text, tokens: told.append((text, tokens)), Event())
    assert told == [("m:", 1), (" a", 1), (" b", 1), ("", 1)]


def test_tokens_are_counted_by_pieces_where_the_server_does_not_count(served: Served) -> None:
    served.says[:] = [Say(pieces=[*chunks("m", ["a", "b"], "length", chat=False), event(b"[DONE]")])]
    assert ask(served.end, prompt="q") == Answer("1", {"text": "ab"}, None, 2, "length")


def test_an_older_server_is_asked_without_what_it_does_not_know(served: Served) -> None:
    refusal = Say({"detail": "Extra inputs are not permitted: stream_options"}, 422)
    served.says[:] = [refusal]
    assert ask(served.end, prompt="a").written == 2
    assert "stream_options" not in served.server.seen[-1][2]
    served.says[:] = [refusal]
    assert served.fails(refusal).blame == "call", "only once"


def test_an_answer_in_one_piece_is_taken(served: Served) -> None:
    whole = {"model": "m", "choices": [{"text": "all", "finish_reason": "stop"}], "usage": {"completion_tokens": 4}}
    served.says[:] = [Say(whole)]
    assert ask(served.end, prompt="a") == Answer("1", {"text": "all"}, None, 4)
    del whole["choices"][0]["finish_reason"]  # type: ignore[index]
    assert "finish_reason" in str(served.fails(Say(whole)))


def test_thoughts_are_an_output_of_their_own(served: Served) -> None:
    deltas = [{"reasoning_content": "hm"}, {"content": "yes"}]
    pieces = [event({"choices": [{"delta": delta, "finish_reason": None}]}) for delta in deltas]
    served.says[:] = [Say(pieces=[*pieces, *chunks("m", [])])]
    assert ask(served.end, messages=[{}]).outputs == {"text": "yes", "reasoning": "hm"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "expected an input 'messages', 'prompt' or 'text'"),
        ({"prompt": 3}, "expected an input"),
        ({"messages": []}, "messages is empty"),
        ({"a": "1", "b": "2"}, "found a, b"),
        ({"prompt": "a", "options": {"tools": []}}, "option 'tools'"),
        ({"prompt": "a", "options": {"n": 2}}, "option 'n'"),
    ],
)
def test_what_cannot_be_asked_is_the_calls_fault(served: Served, inputs: dict[str, Any], words: str) -> None:
    failed = served.fails(**inputs or {"options": {}})
    assert failed.blame == "call"
    assert words in str(failed)


# --- whose fault ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "blame"),
    [*((status, "call") for status in (400, 401, 404, 413, 422)), *((s, "place") for s in (408, 409, 500, 502, 503))],
)
def test_a_clients_error_is_the_calls_fault_and_a_servers_the_places(served: Served, status: int, blame: str) -> None:
    failed = served.fails(Say({"error": {"message": "so it is"}}, status))
    assert (failed.blame, f"{status}, so it is" in str(failed)) == (blame, True)


@pytest.mark.parametrize(
    "body", [b"so it is", {"detail": "so it is"}, {"error": "so it is"}, {"src": "x", "error": {"message": "so it is"}}]
)
def test_every_servers_words_for_an_error_are_found(served: Served, body: Any) -> None:
    assert str(served.fails(Say(body, 500))).endswith("500, so it is")


def test_out_of_memory_is_told_as_such(served: Served) -> None:
    assert isinstance(served.fails(Say({"error": "CUDA error: out of memory"}, 500)), OutOfMemoryError)


def test_a_busy_server_is_asked_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Say({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.06"})
    served.says[:] = [busy] * 3
    assert ask(served.end, prompt="a").outputs == {"text": "m: a"}
    monkeypatch.setattr(http_client.patiently, "__defaults__", (0.0,))
    failed = served.fails(busy)
    assert (failed.blame, "429: still so after 0 s" in str(failed)) == ("place", True)


@pytest.mark.parametrize(
    ("pieces", "words", "blame"),
    [
        (chunks("m", ["a", "b"], None), "cut short after 2 tokens", "place"),
        ([*chunks("m", ["a"], None), event(b"[DONE]")], "cut short after 1 tokens", "place"),
        ([event(b"[DONE]")], "cut short after 0 tokens", "place"),
        ([event(b"<html>")], "not JSON", "place"),
        ([event([1])], "not an answer", "place"),
        ([event({"choices": []})], "not a completion", "place"),
        ([*chunks("m", ["a"], None), event({"error": {"message": "lost", "code": 500}})], "lost", "place"),
        ([event({"error": {"message": "too long", "code": 400}})], "too long", "call"),
        ([event({"error": "CUDA out of memory"})], "out of memory", "place"),
        (chunks("other", ["a"]), "'other' answered when 'm' was asked", "place"),
    ],
)
def test_half_an_answer_is_no_answer(served: Served, pieces: list[bytes], words: str, blame: str) -> None:
    for cut in (False, True):
        failed = served.fails(Say(pieces=pieces, cut=cut), messages=[{}])
        assert failed.blame == blame
        if not cut or "cut" not in words:
            assert words in str(failed)
    assert ask(served.end, prompt="a").outputs == {"text": "m: a"}, "the next call is none the worse"


def test_a_stream_without_a_word_is_asked_for_its_reason(served: Served) -> None:
    """llama-cpp-python streams nothing where it fails before the first token."""
    failed = served.fails(Say(pieces=[]), Say({"error": {"message": "too long"}}, 400))
    assert (failed.blame, "400, too long" in str(failed)) == ("call", True)
    assert "stream" not in served.server.seen[-1][2]
    assert "not JSON" in str(served.fails(Say(pieces=[]), Say(b"")))


@pytest.mark.parametrize("value", [b"<html>", {"data": []}, {"data": [{"embedding": ["x"]}]}, [], {"model": "other"}])
def test_what_is_no_embedding_is_refused(served: Served, value: Any) -> None:
    assert served.fails(Say(value), input=["a"]).blame == "place"


def test_a_server_that_is_silent_is_given_up() -> None:
    good = openai("m")

    def answer(method: str, path: str, body: dict[str, Any]) -> Say:
        return Say(pieces=chunks("m", ["a"], None), hang=True) if "model" in body else good(method, path, body)

    with serving(answer) as server:
        end = back_end(server.url, timeout_s=0.3)
        end.load(["cpu"])
        with pytest.raises(BackEndError, match=r"no word for 0\.3 s") as failed:
            ask(end, prompt="a")
        assert failed.value.blame == "place"
        assert server.gone.wait(60)
        end.unload(keep=False)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_a_call_that_is_stopped_hangs_up_and_gives_what_there_is(served: Served, words: list[str], plain: bool) -> None:
    served.says[:] = [Say(pieces=chunks("m", words, None) if words else [], hang=True, plain=plain)]
    stopped, answers, asked = Event(), [], len(served.server.seen)
    caller = Thread(target=lambda: answers.append(ask(served.end, stopped, prompt="q")))
    caller.start()
    assert served.server.begun.wait(60)
    stopped.set()
    caller.join()
    assert served.server.gone.wait(60), "the server knows, and need not go on"
    assert answers[0].finish_reason == "cancelled"
    assert answers[0].outputs["text"] in ("", "a", "ab")
    assert len(served.server.seen) == asked + 1, "and is not asked again"
    assert ask(served.end, prompt="a").outputs == {"text": "m: a"}


def test_a_call_that_is_stopped_takes_no_more_of_what_is_here(served: Served) -> None:
    stopped = Event()
    call = ModelCall(id="1", model="m", inputs={"prompt": "q"}, stream=True)
    served.says[:] = [Say(pieces=[b"".join(chunks("m", ["a", "b"], "length"))])]
    answer = served.end.call(call, lambda text, tokens: stopped.set(), stopped)
    assert (answer.finish_reason, answer.outputs["text"]) == ("cancelled", "a")
    assert ask(served.end, prompt="a").outputs == {"text": "m: a"}


def test_a_call_that_is_stopped_does_not_wait_for_a_busy_server(served: Served) -> None:
    served.says[:] = [Say({}, 429, headers={"Retry-After": "50"})]
    stopped = Event()
    stopped.set()
    assert ask(served.end, stopped, prompt="a").finish_reason == "cancelled"


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(served: Served) -> None:
    ask(served.end, prompt="a")
    whole = {"model": "m", "choices": [{"text": "x", "finish_reason": "stop"}]}
    served.says[:] = [Say(whole, headers={"Connection": "close"})]
    assert ask(served.end, prompt="a").outputs == {"text": "x"}
    assert ask(served.end, prompt="a").outputs == {"text": "m: a"}


def test_a_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(openai("m")) as server:
        end = back_end(server.url, api_key_env="SOME_KEY")
        with pytest.raises(BackEndError, match="the environment has no SOME_KEY"):
            end.load(["cpu"])
        monkeypatch.setenv("SOME_KEY", "secret")
        end.load(["cpu"])
        ask(end, prompt="a")
        assert {headers["Authorization"] for headers in server.headers_seen} == {"Bearer secret"}
        end.unload(keep=False)


def test_the_example_of_the_docs_is_a_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "workflow-backends.md").read_text()
    (tmp_path / "config.yaml").write_text(page.split("## Servers")[1].split("```yaml\n")[1].split("```")[0])
    problem = workflow.load(tmp_path / "config.yaml", [], gpus=1, mode="online")
    ends = {name: make(model) for name, model in model_specs(problem.system).items()}
    assert ends["qwen"].source.command[:2] == ["vllm", "serve"]
    assert (ends["llama"].source.swap, ends["llama"].source.api) == ("ollama", "chat")


@pytest.mark.parametrize("source", [{"swap": "vlm"}, {"ur": 1}, {"command": "python"}])
def test_a_wrong_source_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(BackEndError, match="m: source: "):
        back_end("http://127.0.0.1:1", **source)


# --- what is served under a name ---------------------------------------------------------------------


def fails_to_load(answer: Answering, words: str, **source: Any) -> None:
    with serving(answer) as server:
        end = back_end(server.url, **source)
        with pytest.raises(BackEndError, match=words):
            end.load(["cpu"])
        assert end.status() == {"healthy": True, "loaded": False}
        with pytest.raises(BackEndError, match="not loaded"):
            ask(end, prompt="a")


def without_list(answers: dict[str, str]) -> Answering:
    """A server that has no list of models, and answers for one model as if it were another."""

    def answer(method: str, path: str, body: dict[str, Any]) -> Say:
        if "model" not in body:
            return Say(b"Internal Server Error", 500 if path == "/v1/models" else 404)
        model = answers.get(body["model"], answers.get("*", ""))
        if not model:
            return Say({"error": "no such model"}, 404)
        model = body["model"] if model == "echo" else model
        if body.get("stream"):
            return Say(pieces=chunks(model, ["a"], chat=False))
        return Say({"model": model, "choices": [{"text": "a", "finish_reason": "length"}]})

    return answer


def test_a_model_that_the_server_does_not_list_is_refused() -> None:
    fails_to_load(openai("n", "mm"), "does not serve 'm'; did you mean 'mm'")


def test_a_server_without_a_list_must_know_names() -> None:
    fails_to_load(without_list({"*": "other"}), "answers for 'other' when it is asked for 'm'")
    fails_to_load(without_list({"*": "echo"}), "takes any name")
    fails_to_load(without_list({"n": "n"}), "404, no such model")
    for answers in ({"m": "m@main"}, {"*": "m"}):
        with serving(without_list(answers)) as server:
            end = back_end(server.url)
            end.load(["cpu"])
            assert ask(end, prompt="q").outputs == {"text": "a"}
            end.unload(keep=False)


def test_no_server_at_all() -> None:
    end = back_end("http://127.0.0.1:9")
    with pytest.raises(BackEndError, match="no server answers there"):
        end.load(["cpu"])


# --- servers that swap ------------------------------------------------------------------------------


def test_vllm_sleeps_and_wakes() -> None:
    vllm = fake_servers.Vllm("m")
    with serving(vllm) as server:
        end = back_end(server.url, swap="vllm")
        end.load(["cuda:0"])
        assert ask(end, prompt="a").outputs == {"text": "m: a"}
        end.unload(keep=True)
        assert (vllm.asleep, vllm.weights, end.memory().host_mib) == (True, True, 7)
        end.load(["cuda:0"])
        assert (end.memory().device_mib, end.memory().host_mib) == (7, 0)
        end.unload(keep=False)
        assert (vllm.asleep, vllm.weights) == (True, False)
        end.load(["cuda:0"])
        assert ask(end, prompt="a").outputs == {"text": "m: a"}, "with its weights"
        end.unload(keep=False)


def test_vllm_needs_its_development_mode() -> None:
    fails_to_load(lambda method, path, body: Say({"detail": "Not Found"}, 404), "VLLM_SERVER_DEV_MODE=1", swap="vllm")


def test_llama_swap_starts_by_name() -> None:
    swap = fake_servers.LlamaSwap("a", "org/b")
    with serving(swap) as server:
        ends = {name: back_end(server.url, name, swap="llama-swap") for name in ("a", "org/b")}
        for name, end in ends.items():
            end.load(["cuda:0"])
            assert (swap.running, ask(end, prompt="q").outputs) == (name, {"text": f"{name}: q"})
        ends["a"].unload(keep=True)
        assert swap.running == "org/b", "the other one runs on"
        ends["org/b"].unload(keep=False)
        assert not swap.running
    fails_to_load(fake_servers.LlamaSwap("a"), "did not start 'm': 404, model not found", swap="llama-swap")


def test_ollama_keeps_alive_and_lets_go() -> None:
    ollama = fake_servers.Ollama("a", "b")
    with serving(ollama) as server:
        a, b = back_end(server.url, "a", swap="ollama"), back_end(server.url, "b", "embedding", swap="ollama")
        a.load(["cuda:0"])
        b.load(["cuda:0"])
        assert ollama.loaded == {"a", "b"}
        assert server.seen[1][2] == {"model": "a", "keep_alive": -1, "stream": False}
        assert a.memory().device_mib == 3, "as the server tells"
        a.unload(keep=False)
        assert ollama.loaded == {"b"}
        b.unload(keep=False)
        assert not ollama.loaded
    fails_to_load(fake_servers.Ollama("a"), "404, model 'm' not found", swap="ollama")


def test_triton_takes_tensors() -> None:
    triton = fake_servers.Triton()
    with serving(triton) as server:
        end = back_end(server.url, "add", swap="triton")
        end.load(["cuda:0"])
        outputs = ask(end, a=np.array([1.0, 2.0]), b=[3, 4]).outputs
        assert outputs["sum"].tolist() == [4.0, 6.0]
        assert (outputs["sum"].dtype, outputs["said"]) == (np.float32, "done")
        wrongs: list[tuple[dict[str, Any], str]] = [
            ({"a": [1.0]}, "needs an input 'b'"),
            ({"a": [1.0], "b": ["x"]}, "no tensor of FP32"),
            ({"a": [1.0], "b": [[1.0]]}, r"has shape \[1, 1\], expected \[-1\]"),
        ]
        for wrong, words in wrongs:
            with pytest.raises(BackEndError, match=words) as failed:
                ask(end, **wrong)
            assert failed.value.blame == "call"
        end.unload(keep=False)
        assert not triton.loaded
    fails_to_load(fake_servers.Triton(), "400, failed to load", swap="triton")


@given(
    st.lists(st.sampled_from(["FP32", "INT64", "BOOL", "BYTES", "UINT8"]), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.booleans(),
)
def test_tensors_come_back_as_they_went(kinds: list[str], shape: list[int], binary: bool) -> None:
    size = int(np.prod(shape))
    values: dict[str, Any] = {}
    for index, kind in enumerate(kinds):
        numbers = [f"täxt {i}" for i in range(size)] if kind == "BYTES" else [i % 2 for i in range(size)]
        values[f"t{index}"] = np.array(numbers, dtype=object if kind == "BYTES" else None).reshape(shape)
    inputs = [{"name": f"t{index}", "datatype": kind, "shape": shape} for index, kind in enumerate(kinds)]
    body, headers = tensors.request({"name": "m", "inputs": inputs, "binary": binary}, values)
    answered = tensors.outputs(body.replace(b'"inputs"', b'"outputs"'), _one_longer(headers.get(tensors.HEADER)))
    for name, value in values.items():
        back = answered[name]
        assert np.array(back, dtype=object).ravel().tolist() == value.ravel().tolist()


def _one_longer(head: str | None) -> str | None:
    return str(int(head) + 1) if head else None  # "outputs" is longer than "inputs"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"outputs": [{"name": "x"}]}', b'{"outputs": 1}'])
def test_what_is_no_tensor_is_refused(body: bytes) -> None:
    with pytest.raises(BackEndError, match="not an answer with tensors"):
        tensors.outputs(body, None)


def test_transformers_unloads_all_when_the_last_leaves() -> None:
    server_of_all = fake_servers.Transformers("/m/a", "/m/b")
    with serving(server_of_all) as server:
        a, b = (back_end(server.url, name, swap="transformers") for name in ("/m/a", "/m/b"))
        a.load(["cpu"])
        b.load(["cpu"])
        a.unload(keep=False)
        assert server_of_all.loaded == {"/m/a", "/m/b"}, "b is still called there"
        assert ask(b, prompt="q").outputs == {"text": "ab"}
        b.unload(keep=False)
        assert not server_of_all.loaded
    fails_to_load(fake_servers.Transformers("/m/a"), "did not load 'm': no such folder", swap="transformers")


USER = """
import sys
from dovetail.workflow.live.backends.servers import make
from dovetail.workflow.live.protocol import ServedModel
end = make(ServedModel(name="m", source={"url": sys.argv[1], "model": "m", "swap": "ollama"}))
end.load(["cpu"])
print("loaded", flush=True)
sys.stdin.read()
"""


def test_whoever_of_several_workers_leaves_last_unloads() -> None:
    ollama = fake_servers.Ollama("m")
    with serving(ollama) as server:
        end = back_end(server.url, swap="ollama")
        end.load(["cuda:0"])
        command = [sys.executable, "-c", USER, server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"loaded\n"
            end.unload(keep=False)
            assert ollama.loaded == {"m"}, "another worker calls it"
            end.load(["cuda:0"])
            other.kill()
        end.unload(keep=False)
        assert not ollama.loaded, "one that was killed uses nothing"


# --- servers that we start --------------------------------------------------------------------------


def started(*words: str, model: str = "m", **source: Any) -> ServerBackEnd:
    return back_end("http://127.0.0.1:{port}", model, command=[*FAKE, *words], **{"stop_s": 20.0, **source})


def test_a_server_is_started_at_load_and_ended_at_unload(tmp_path: Path) -> None:
    log = tmp_path / "log"
    end = started("openai", "{model}", log=str(log))
    for _ in range(2):
        end.load(["cpu"])
        assert ask(end, prompt="a").outputs == {"text": "m: a"}
        status = end.status()
        assert status["healthy"]
        end.unload(keep=True)
        assert end.status() == {"healthy": True, "loaded": False}
        assert not Path("/proc", str(status["pid"])).exists()
    assert log.read_text() == "a fake server starts\n" * 2


def test_whoever_starts_a_server_has_the_log(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in "ab"]
    for log in logs:
        end = started("openai", "m", log=str(log))
        end.load(["cpu"])
        end.unload(keep=False)
    assert [log.read_text() for log in logs] == ["a fake server starts\n"] * 2


def test_a_port_that_is_taken_meanwhile_is_left_to_whoever_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1] for taken in (listens, bound, bound)]
        found = [*ports[:2], lasting_port(), *ports]
        monkeypatch.setattr(backends_started, "_free_port", iter(found).__next__)
        end = started("openai", "m")
        end.load(["cpu"])
        assert ask(end, prompt="a").outputs == {"text": "m: a"}
        end.unload(keep=False)
        with pytest.raises(BackEndError, match="Address already in use"):  # in the end
            end.load(["cpu"])


def test_a_server_sees_its_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], '{device}', '{model}'); raise SystemExit(3)"
    command = [sys.executable, "-c", show]
    for visible, devices, seen in [
        ("", ["cpu"], " cpu m"),
        ("", ["cuda:1", "cuda:2"], "1,2 cuda:0 m"),
        ("4,GPU-a", ["cuda:1"], "GPU-a cuda:0 m"),
    ]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        end = back_end("http://127.0.0.1:{port}", command=command)
        with pytest.raises(BackEndError, match=f"ended before it was ready: {seen.strip()}"):
            end.load(devices)


@pytest.mark.parametrize(
    ("command", "words", "error"),
    [
        (["/no/such/program"], "No such file", BackEndError),
        ([sys.executable, "-c", "raise SystemExit('CUDA out of memory')"], "out of memory", OutOfMemoryError),
        ([sys.executable, "-c", "pass"], "without a word", BackEndError),
        ([sys.executable, "-c", "import time; time.sleep(1000)"], "not ready after 0.5 s", BackEndError),
    ],
)
def test_a_server_that_does_not_come_up_is_told_with_its_last_words(
    command: list[str], words: str, error: type[BackEndError]
) -> None:
    end = back_end("http://127.0.0.1:{port}", command=command, ready_s=0.5 if "time" in command[-1] else 60.0)
    with pytest.raises(error, match=words):
        end.load(["cpu"])


def test_a_server_that_died_is_noticed_and_started_anew_at_the_next_load() -> None:
    end = started("openai", "m")
    end.load(["cpu"])
    (server,) = children_of(end.status()["pid"])
    os.kill(server, signal.SIGKILL)
    until(lambda: not end.status()["healthy"])
    assert "has gone: a fake server starts" in end.status()["why"]
    with pytest.raises(BackEndError) as failed:
        ask(end, prompt="a")
    assert failed.value.blame == "place"
    end.unload(keep=False)
    end.load(["cpu"])
    assert ask(end, prompt="a").outputs == {"text": "m: a"}
    end.unload(keep=False)


def test_models_of_one_worker_share_a_server_of_the_same_command() -> None:
    a, b = (started("openai", "a", "b", model=name) for name in ("a", "b"))
    a.load(["cpu"])
    b.load(["cpu"])
    assert a.status()["pid"] == b.status()["pid"]
    a.unload(keep=False)
    assert ask(b, prompt="q").outputs == {"text": "b: q"}
    a.load(["cpu"])
    (server,) = children_of(b.status()["pid"])
    os.kill(server, signal.SIGKILL)
    until(lambda: not a.status()["healthy"] and not b.status()["healthy"])
    a.load(["cpu"])
    assert ask(a, prompt="q").outputs == {"text": "a: q"}
    assert not b.status()["healthy"], "nobody has loaded it on the new server"
    with pytest.raises(BackEndError, match="was started anew, without b"):
        ask(b, prompt="q")
    b.unload(keep=False)
    assert a.status()["healthy"]
    a.unload(keep=False)


def test_one_that_keeps_weights_is_not_ended_by_keep() -> None:
    end = started("vllm", "m", swap="vllm")
    end.load(["cpu"])
    first = end.status()["pid"]
    end.unload(keep=True)
    assert end.status()["healthy"]
    assert end.memory().host_mib == 7
    end.load(["cpu"])
    assert end.status()["pid"] == first
    end.unload(keep=True)
    end.unload(keep=False)
    assert not Path("/proc", str(first)).exists()


def test_a_port_that_is_taken_is_not_mistaken_for_ours() -> None:
    with serving(openai("m")) as server:
        end = back_end(server.url, command=[*FAKE, "openai", "m"])
        with pytest.raises(BackEndError, match="another server listens there already"):
            end.load(["cpu"])


STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "__main__", "sys": sys})
"""


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left_of_a_stubborn_server(killed: bool, tmp_path: Path) -> None:
    """Not of one that ignores SIGTERM and has children in sessions of their own; not if its worker is killed."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN.replace("sys.argv[1]", repr(FAKE[1])))
    command = [sys.executable, str(script), "{port}", "openai", "m"]
    source = {"url": "http://127.0.0.1:{port}", "model": "m", "command": command, "stop_s": 0.2}
    worker = USER.replace('{"url": sys.argv[1], "model": "m", "swap": "ollama"}', repr(source))
    worker += "end.unload(keep=False)"
    with subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loaded\n"
        (supervisor,) = children_of(process.pid)
        (server,) = children_of(supervisor)
        (grandchild,) = children_of(server)
        if killed:
            process.kill()
    until(lambda: _are_gone(supervisor, server, grandchild))


def test_a_worker_starts_a_server_says_when_it_dies_and_takes_it_along() -> None:
    source = {"url": "http://127.0.0.1:{port}", "model": "m", "command": [*FAKE, "openai", "m"]}
    heard: Queue[Report] = Queue()
    engine = LocalGpuEngine(emulated_gpus(1), silence_s=60.0)
    engine.start({"m": ServedModel(name="m", source=source)}, heard.put)

    def next_of(kind: type[R]) -> R:
        while not isinstance(report := heard.get(timeout=PATIENCE_S), kind):
            assert not isinstance(report, LoadFailed), report
        return report

    try:
        next_of(WorkerReady)
        for ends in ("server", "worker"):
            engine.load(0, "m", (0,))
            next_of(Loaded)
            engine.call(0, ModelCall(id="1", model="m", inputs={"prompt": "a"}))
            assert next_of(Answer).outputs == {"text": "m: a"}
            worker = engine.status()[0]["pid"]
            (supervisor,) = children_of(worker)
            (server,) = children_of(supervisor)
            os.kill(server if ends == "server" else worker, signal.SIGKILL)
            next_of(Unhealthy if ends == "server" else WorkerLost)
            if ends == "server":
                engine.unload(0, "m", False)
                next_of(Unloaded)
            until(partial(_are_gone, supervisor, server))
    finally:
        engine.close()


def _are_gone(*pids: int) -> bool:
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


# --- events, cut anywhere ---------------------------------------------------------------------------

_TEXTS = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8)


@given(
    st.lists(st.lists(_TEXTS, min_size=1, max_size=3), max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 200)),
    st.booleans(),
)
def test_events_are_read_however_they_are_cut(
    events: list[list[str]], end: bytes, cuts: list[int], ended: bool
) -> None:
    whole = b"".join(
        b": remark" + end + b"event: x" + end + b"".join(b"data: " + line.encode() + end for line in lines) + end
        for lines in events
    )
    if events and not ended:
        whole = whole.removesuffix(end + end)
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert list(data_of(pieces)) == ["\n".join(lines) for lines in events]


def test_a_kept_connection_may_have_any_number() -> None:
    ours, theirs = socket.socketpair()
    number = fcntl.fcntl(ours, fcntl.F_DUPFD, 1500)  # more than select can look at
    with theirs, ours, socket.socket(fileno=number) as high:
        assert not http_client._has_ended(high)
        theirs.send(b"x")
        assert http_client._has_ended(high)
