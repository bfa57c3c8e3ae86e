"""`workflow serve` with real workers: models that are emulated, clients that are real, signals, and what survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest

from dovetail import workflow
from dovetail.cli import main
from dovetail.cli.workflow.journal import explain
from dovetail.cli.workflow.place import PlaceFlags
from dovetail.cli.workflow.top import top
from dovetail.core.errors import InputError
from dovetail.core.service.client import ServiceError
from dovetail.core.service.log_lines import LogLines
from tests.waiting import until

FAST = {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 0.01, "max_concurrency": 8}
WORDS = {"tokens_per_second": 1000, "token_mean": 6, "token_std": 0}
CONFIG: dict[str, Any] = {
    "gpus": 1,
    "models": {
        "writer": {**FAST, **WORDS, "source": {"emulated": {}}},
        "endless": {**FAST, "inference_time_mean": 3600, "inference_time_std": 0, "source": {"emulated": {}}},
        "vectors": {
            **FAST,
            "inference_time_mean": 0.001,
            "inference_time_std": 0,
            "source": {"emulated": {"answer": {"embeddings": [[1.0, 2.0]]}}},
        },
    },
    "workflows": {
        "chain": {
            "nodes": [{"id": "draft", "model": "writer"}, {"id": "answer", "model": "writer"}],
            "edges": [{"from": "draft", "to": "answer"}],
        }
    },
}
ASKED: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[workflow.ServedWorkflows]:
    folder = tmp_path_factory.mktemp("served")
    with (folder / "log").open("w") as log:
        served = workflow.serve(CONFIG, state=folder / "state", log=LogLines(log))
        try:
            until(lambda: served.client().overview().gpus[0].state == "up")  # with all threads of its worker
            yield served
        finally:
            served.close()


@pytest.fixture
def client(served: workflow.ServedWorkflows) -> Iterator[openai.OpenAI]:
    key = served.token_file.read_text().strip()
    with openai.OpenAI(base_url=served.url + "/v1", api_key=key, max_retries=0) as client:
        yield client


def text(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_the_openai_client_is_served(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="writer", messages=ASKED)
    assert whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    told = client.chat.completions.create(model="chain", messages=ASKED, stream=True, max_tokens=3)
    chunks = list(told)
    assert len(chunks) == 5  # the role, three words, the end
    assert chunks[-1].choices[0].finish_reason == "length"
    assert client.completions.create(model="chain", prompt="once", max_tokens=3).choices[0].text == text(chunks)
    assert client.embeddings.create(model="vectors", input="x").data[0].embedding == [1.0, 2.0]
    assert sorted(model.id for model in client.models.list()) == ["chain", "endless", "vectors", "writer"]


def test_a_client_that_goes_frees_the_gpu(served: workflow.ServedWorkflows, client: openai.OpenAI) -> None:
    """There is one GPU: as long as the endless call goes on, nobody else is served."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    for stream in (False, True):
        body = json.dumps({"model": "endless", "messages": ASKED, "stream": stream}).encode()
        head = f"Host: localhost\r\nAuthorization: Bearer {client.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body)
            until(lambda: served.client().runs("running"))
        assert client.chat.completions.create(model="writer", messages=ASKED).choices[0].message.content
        newest = served.client().runs("cancelled", 1)
        assert [(run.workflow, run.state) for run in newest] == [("endless", "cancelled")]


def test_runs_and_their_events(served: workflow.ServedWorkflows) -> None:
    line = served.client()
    run = line.submit("chain", {"prompt": "go"}, stream=True)
    events = list(line.events(run))
    assert events[-1].kind == "completed"
    assert [event.node for event in events if event.kind == "node done"] == ["draft", "answer"]
    assert "answer" in line.result(run).outputs
    assert "answer" in str(line.explain(run))
    rest = [event.n for event in line.events(run, after=events[2].n)]  # pieces are not kept when a run has ended
    assert rest == [event.n for event in events[3:] if event.kind != "piece"]


def test_the_command_explains_a_run_of_a_service(
    served: workflow.ServedWorkflows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = served.client()
    line.result(run := line.submit("chain", {"prompt": "go"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_WORKFLOW_STATE", str(tmp_path / "none"))
    assert explain(run, place=PlaceFlags(state=served.folder)) == 0
    assert "answer" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"no \*_journal.jsonl .*: name one with --journal, or a service with --state"):
        explain(run)
    monkeypatch.setenv("DOVETAIL_WORKFLOW_STATE", str(served.folder))
    assert explain(run) == 0
    top(once=True)
    assert "on gpu" in capsys.readouterr().out


def test_the_service_looks_at_itself(served: workflow.ServedWorkflows) -> None:
    line = served.client()
    line.result(line.submit("writer", {"prompt": "go"}))
    now = line.overview()
    assert now.state == "up"
    assert {model.model: model.resident for model in now.models}["writer"] == [0]
    assert "dovetail_workflow_ttft_seconds_count" in line.metrics()


def test_the_older_servers_estimate_is_in_seconds(served: workflow.ServedWorkflows) -> None:
    body = {"model_name": "writer", "device": "cuda:0", "data": {"prompt": "hello"}}
    told = served.client()._line.ask("POST", "/standalone/estimate", body)["data"]
    assert told["estimated_time_unit"] == "seconds"
    assert 0 < told["estimated_execution_time"] < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"live": {"max_queeu": 3}}, "live.max_queeu: unknown key 'max_queeu'; did you mean 'max_queue'?"),
        ({"live": {"max_queue": 0}}, "live.max_queue: expected 1 or more, found 0"),
        ({"port": 70000}, "port 70000: expected 0"),
        ({"host": "no.such.host.invalid"}, "host 'no.such.host.invalid'"),
        ({"policy": "dovetial"}, "dovetial"),
        ({"policy": "optimise"}, "policy optimise plans ahead, for simulated runs only: live runs decide as they go"),
        ({"address": "10.0.0.1:6379", "engine": "local"}, "a Ray cluster's"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(tmp_path: Path, words: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        workflow.serve(CONFIG, state=tmp_path / "state", **words)
    assert message in str(caught.value)
    assert not (tmp_path / "state" / "url").exists()


def test_models_without_a_source_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"models": {"writer": {**FAST, **WORDS}}}))
    code = main(["workflow", "serve", "--config", f"{tmp_path}/config.json", "--state", f"{tmp_path}/state"])
    assert code == 2
    assert "live runs need the source of every model, but 'writer'" in capsys.readouterr().err


@contextmanager
def process(tmp_path: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and the URL that it prints."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    given = ["--config", str(tmp_path / "config.json"), "--state", str(tmp_path / "state")]
    command = [sys.executable, "-m", "dovetail", "workflow", "serve", *given, *words]
    with (tmp_path / "err").open("a") as err:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            assert started.stdout is not None
            first = started.stdout.readline()
            assert first.startswith("Serving 3 models and 1 workflow on 1 GPU: http://127.0.0.1:"), (
                first + (tmp_path / "err").read_text()
            )
            assert started.stdout.readline() == f"The token is in {tmp_path / 'state' / 'token'}\n"
            yield started, first.split()[-1]
        finally:
            if started.poll() is None:
                started.kill()
            started.wait()
            assert started.stdout is not None
            started.stdout.close()


def test_a_signal_drains_and_a_second_one_ends(tmp_path: Path) -> None:
    with process(tmp_path) as (started, url):
        line = workflow.connect(tmp_path / "state")
        assert line.url == url
        token = (tmp_path / "state" / "token").read_text().strip()
        assert token not in Path(f"/proc/{started.pid}/cmdline").read_text()
        done = line.submit("chain", {"prompt": "go"})
        assert line.result(done).state == "completed"
        left = line.submit("endless", {"prompt": "go"}, key="mine")
        until(lambda: line.status(left).state == "running")
        os.kill(started.pid, signal.SIGTERM)
        until(lambda: line.about()["draining"])
        with pytest.raises(ServiceError) as caught:
            line.submit("writer", {"prompt": "go"})
        assert caught.value.status == 503
        assert line.status(left).state == "running"
        os.kill(started.pid, signal.SIGINT)
        assert started.wait() == 3
    assert "Left open: 1 run, to go on at the next start" in (tmp_path / "err").read_text()
    assert token not in (tmp_path / "err").read_text()
    assert not (tmp_path / "state" / "url").exists()
    with process(tmp_path) as (started, _):  # the same runs, and the same token
        line = workflow.connect(tmp_path / "state")
        assert line.result(done).answer["text"]
        until(lambda: line.status(left).state == "running")
        assert line.submit("endless", {"prompt": "go"}, key="mine") == left
        line.cancel(left)
        assert line.result(left).state == "cancelled"
        os.kill(started.pid, signal.SIGINT)
        assert started.wait() == 0
    assert main(["check", str(next((tmp_path / "state" / "journals").glob("*.jsonl")))]) == 0


def test_a_folder_has_one_service(tmp_path: Path, served: workflow.ServedWorkflows) -> None:
    with pytest.raises(InputError):
        workflow.serve(CONFIG, state=served.folder)
    assert served.client().about()["draining"] is False


def test_ids_may_have_any_letters(served: workflow.ServedWorkflows) -> None:
    client, name = served.client(), "a?b #1 % ü"
    key = served.token_file.read_text().strip()
    asked = json.dumps({"workflow": "writer", "input": {"prompt": "x"}, "id": name})
    line = HTTPConnection(served.url.removeprefix("http://"))
    line.request("POST", "/v1/runs", asked, {"authorization": f"Bearer {key}", "content-type": "application/json"})
    answer = line.getresponse()
    assert (answer.status, json.loads(answer.read())["id"]) == (202, name)
    line.request("GET", answer.headers["location"], headers={"authorization": f"Bearer {key}"})
    assert line.getresponse().status == 200
    line.close()
    assert client.result(name).state == "completed"
    assert [event.kind for event in client.events(name)][-1] == "completed"
