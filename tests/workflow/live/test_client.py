"""A service's client in Python, and the commands that use it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dovetail import workflow
from dovetail.cli import main
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.service.access import TOKEN_VARIABLE
from dovetail.core.service.client import HttpClient, SentEvent, ServiceError
from dovetail.workflow.live.http.face import WorkflowServer
from tests.workflow.live.fake_service import FakeService

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def client(server: WorkflowServer, tmp_path: Path) -> workflow.WorkflowClient:
    return workflow.connect(tmp_path / "state")


@pytest.fixture
def call(
    server: WorkflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.setenv("DOVETAIL_WORKFLOW_STATE", str(tmp_path / "state"))

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["workflow", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_a_client_asks_for_runs(client: workflow.WorkflowClient, service: FakeService) -> None:
    run = client.submit("counter", {"prompt": "go"}, options={"max_tokens": 5}, tenant="lab", weight=2, due=9, key="k")
    assert client.submit("counter", {"prompt": "go"}, key="k") == run
    asked = service.open[run].request
    assert (asked.tenant, asked.weight, asked.due_s, asked.options) == ("lab", 2, 9, {"max_tokens": 5})
    found = client.result(run)
    assert (found.state, found.answer, found.finish_reason) == ("completed", {"text": "one two three"}, "length")
    assert client.status(run).workflow == "counter"
    assert [event.kind for event in client.events(run)] == ["queued", "started", "completed"]
    assert [event.kind for event in client.events(run, after=2)] == ["completed"]
    assert list(client.events(run, after=3)) == []
    assert "counter" in client.models()
    assert client.metrics().startswith("# TYPE")
    assert client.about()["draining"] is False


def test_values_keep_their_kind(client: workflow.WorkflowClient, service: FakeService) -> None:
    run = client.submit("silent", {"image": b"\x89PNG", "vector": np.array([1.0, 2.5]), "n": 3})
    given = service.open[run].request.input
    assert given["image"] == b"\x89PNG"
    assert given["vector"].tolist() == [1.0, 2.5]
    assert client.result(client.submit("pixels")).answer == {"image": b"\x89PNG", "size": [1, 1]}


def test_waiting_has_an_end(client: workflow.WorkflowClient, service: FakeService) -> None:
    run = client.submit("silent")
    with pytest.raises(DovetailError, match=f"run {run} has not ended after 0.01 s: it is queued"):
        client.result(run, timeout=0.01)
    threading.Timer(0.05, service.release, [run]).start()
    assert client.result(run).state == "completed"


def test_runs_are_listed_page_by_page(
    client: workflow.WorkflowClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.workflow.live.client._PAGE", 2)
    ids = [client.submit("silent" if n % 2 else "echo") for n in range(5)]
    assert [run.id for run in client.runs()] == ids[::-1]
    assert [run.id for run in client.runs(limit=3)] == ids[:1:-1]
    assert [run.id for run in client.runs("queued")] == [ids[3], ids[1]]
    assert client.cancel(ids[1]).state == "cancelled"


def test_what_the_service_refuses(client: workflow.WorkflowClient) -> None:
    with pytest.raises(DovetailError, match="did you mean 'echo'") as caught:
        client.submit("ehco")
    assert caught.value.exit_code == 2
    with pytest.raises(DovetailError, match="12 requests wait already") as caught:
        client.submit("busy")
    assert (caught.value.exit_code, caught.value.retry_after_s) == (1, 2.0)  # type: ignore[attr-defined]
    with pytest.raises(DovetailError, match="there is no run 'none'"):
        client.result("none")


def test_a_service_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no service answers in .*: `dovetail workflow serve` starts one"):
        workflow.connect(tmp_path)
    with pytest.raises(InputError, match=r"http://127.0.0.1:1: its token is not known"):
        workflow.connect("http://127.0.0.1:1/v1/")  # as OpenAI's clients want it
    with pytest.raises(InputError, match="state: expected a path, found 3"):
        workflow.connect(3)  # type: ignore[arg-type]
    monkeypatch.setenv(TOKEN_VARIABLE, "x" * 20)
    with pytest.raises(DovetailError, match=r"no service answers at http://127.0.0.1:1: Connection refused"):
        workflow.connect("http://127.0.0.1:1").about()


# --- commands -------------------------------------------------------------------------------------------------


def test_submit_and_look(call: Call, service: FakeService, tmp_path: Path) -> None:
    code, out, _ = call("submit", "silent", "--input", "n=3", "text=hello there", "--option", "max-tokens=5")
    run = out.strip()
    assert (code, list(service.open)) == (0, [run])
    assert service.open[run].request.input == {"n": 3, "text": "hello there"}
    assert service.open[run].request.options == {"max_tokens": 5}
    code, out, _ = call("status")
    assert run in out
    assert json.loads(call("status", run, "--format", "json")[1])["state"] == "queued"
    assert "attempts" in call("status", run)[1]
    assert call("cancel", run)[1] == f"{run}: cancelled\n"
    assert json.loads(call("status", "--only", "queued", "--format", "json")[1]) == []


def test_submit_and_wait(call: Call, tmp_path: Path) -> None:
    assert call("submit", "counter", "--wait") == (0, "one two three\n", "")
    told = json.loads(call("submit", "counter", "--wait", "--format", "json")[1])
    assert told["answer"] == {"text": "one two three"}
    code, out, err = call("submit", "broken", "--wait")
    assert (code, out) == (1, "")
    assert "was not completed: failed: the worker died 20 times" in err
    code, out, _ = call("submit", "pixels", "--wait")
    assert json.loads(out) == {"image": {"base64": "iVBORw=="}, "size": [1, 1]}
    run = call("submit", "counter")[1].strip()
    assert call("result", run, "--out", str(tmp_path / "answer.txt"))[0] == 0
    assert (tmp_path / "answer.txt").read_text() == "one two three\n"


def test_inputs_from_files(call: Call, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("a report")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "all.yaml").write_text("n: 1\nlanguage: en\n")
    files = ("--input", f"text@{tmp_path}/report.txt", f"image@{tmp_path}/picture.png", "n=2")
    call("submit", "silent", *files, "--input-file", str(tmp_path / "all.yaml"))
    (run,) = service.open.values()
    assert run.request.input == {"n": 2, "language": "en", "text": "a report", "image": b"\x89PNG"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit", "echo", "--input", "nothing"], "--input nothing: expected NAME=VALUE or NAME@FILE"),
        (["submit", "echo", "--input", "x@/no/such/file"], "/no/such/file"),
        (["submit", "ehco"], "did you mean 'echo'"),
        (["status", "none"], "there is no run 'none'"),
        (["status", "--limit", "0"], "--limit 0: expected 1 or more"),
        (["cancel"], "expected ids of runs"),
        (["top", "--every", "0"], "--every 0: expected seconds"),
        (["status", "--url", "nonsense"], "--url nonsense: expected http://HOST:PORT"),
        (["status", "--url", "http://localhost:1", "--state", "x"], "--url and --state: expected one of them"),
        (["status", "--state", "/no/such/folder"], "no service answers in /no/such/folder"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, words: list[str], message: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_top(call: Call) -> None:
    code, out, _ = call("top", "--once")
    assert code == 0
    assert "counter, slow" in out
    assert "up for 10 s, policy dovetail; 0 runs wait, 1 run; a new one would wait 2.5 s" in out
    assert json.loads(call("top", "--format", "json")[1])["gpus"][0]["models"] == ["echo"]


def test_an_overview_has_rates_since_the_last_look(client: workflow.WorkflowClient) -> None:
    first = client.overview()
    client.submit("silent")
    then = {model.model: model for model in client.overview(first).models}
    echo = {model.model: model for model in first.models}["echo"]
    assert (echo.resident, echo.calls, echo.calls_per_s, echo.tokens_per_s, echo.ttft_s) == ([0], 5, 0.5, 10.0, 0.5)
    assert (then["echo"].calls, then["echo"].calls_per_s, then["echo"].tokens_per_s) == (6, 0.1, 5.0)
    assert then["echo"].ttft_s is None
    assert then["slow"].waiting == 3


def test_a_line_that_breaks_while_nothing_happens_is_taken_up_again(
    client: workflow.WorkflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, breaks, events = client.submit("echo", {"prompt": "a"}), [503], HttpClient.events

    def broken(line: HttpClient, path: str, after: int = 0) -> Iterator[SentEvent]:
        if breaks:
            raise ServiceError(breaks.pop(), "the line broke")
        return events(line, path, after)

    monkeypatch.setattr(HttpClient, "events", broken)
    assert [event.kind for event in client.events(run)] == ["queued", "started", "completed"]
    for status in ([503, 503], [404]):
        breaks[:] = status
        with pytest.raises(ServiceError, match="the line broke"):
            list(client.events(run))
