"""Servers that others wrote, as back ends: `transformers serve` with random weights here; llama-cpp-python's server and
Triton where they are installed."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from dovetail import workflow
from dovetail.core.service.log_lines import LogLines
from dovetail.journals import check_journal
from dovetail.testing.workflow.random_gguf import write_gguf
from dovetail.testing.workflow.random_models import write_model
from dovetail.workflow.live.backends.servers import ServerBackEnd, make
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import Answer, BackEndError, ModelCall, ServedModel
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings

pytestmark = pytest.mark.xdist_group("servers")  # one is started for all
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
EIGHT = {"max_tokens": 8}
SERVE = ["transformers", "serve", "--host", "127.0.0.1", "--port", "{port}", "--device", "{device}"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("models")
    return [str(write_model(place / name, seed=seed, spread=0.3)) for seed, name in enumerate(("a", "b", "c"))]


@pytest.fixture(scope="module")
def transformers(folders: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerBackEnd]:
    """A back end whose server was started by it, and serves whatever folder it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        end = back_end("http://127.0.0.1:{port}", folders[0], swap="transformers", command=SERVE)
        end.load(["cpu"])
        yield end
        end.unload(keep=False)


def back_end(url: str, model: str, **source: Any) -> ServerBackEnd:
    where = {"url": url, "model": model, "ready_s": 300.0, "stop_s": 30.0, **source}
    return make(ServedModel(name=Path(model).stem, source=where, memory_mib=1))


def ask(end: ServerBackEnd, options: dict[str, Any] = EIGHT, **inputs: Any) -> Answer:
    call = ModelCall(id="1", model="m", inputs=inputs, options=options, stream=True)
    pieces: list[str] = []
    answer = end.call(call, lambda text, tokens: pieces.append(text), Event())
    assert "".join(pieces) == answer.outputs.get("text", "")
    return answer


# --- transformers serve -----------------------------------------------------------------------------


def test_transformers_serve_answers_and_counts(transformers: ServerBackEnd, folders: list[str]) -> None:
    url = transformers.status()["url"]
    named = back_end(url, folders[0], api="chat")
    named.load(["cpu"])
    first = ask(named, messages=MESSAGES)
    assert (first.written, first.finish_reason, first.outputs["text"] != "") == (8, "length", True)
    assert first.read is not None
    assert first.read > 4
    assert ask(named, messages=MESSAGES) == first
    assert ask(transformers, messages=MESSAGES) == first, "the same model, however it was loaded"
    assert ask(transformers, prompt="the quick").written == 8
    unknown = {"prompt": "a", "options": {"nonsense": 1}}
    wrongs: list[dict[str, Any]] = [{"messages": []}, unknown, {"input": ["no embeddings here"]}]
    for wrong in wrongs:
        with pytest.raises(BackEndError) as failed:
            ask(transformers, **wrong)
        assert failed.value.blame == "call"
    named.unload(keep=False)


def test_transformers_serve_loads_by_name_and_replaces_nothing(transformers: ServerBackEnd, folders: list[str]) -> None:
    url = transformers.status()["url"]
    other = back_end(url, folders[1], swap="transformers")
    other.load(["cpu"])
    assert ask(other, messages=MESSAGES).outputs != ask(transformers, messages=MESSAGES).outputs
    other.unload(keep=False)
    assert ask(transformers, messages=MESSAGES).written == 8, "one leaves, the other stays"
    for swap in ("none", "transformers"):
        with pytest.raises(BackEndError):
            back_end(url, f"{folders[0]}-not-there", swap=swap).load(["cpu"])


def test_transformers_serve_stops_when_a_call_is_stopped(transformers: ServerBackEnd) -> None:
    stopped = Event()
    call = ModelCall(id="1", model="m", inputs={"messages": MESSAGES}, options={"max_tokens": 400})
    answer = transformers.call(call, lambda text, tokens: stopped.set(), stopped)
    assert answer.finish_reason == "cancelled"
    assert ask(transformers, messages=MESSAGES).written == 8


def test_more_models_than_fit_through_the_whole_service(
    transformers: ServerBackEnd, folders: list[str], tmp_path: Path
) -> None:
    """Three models on two GPUs that hold one each, all on the same server: the answers are each model's own."""
    url = transformers.status()["url"]
    about = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.1, "inference_time_mean": 0.1}
    models = {
        Path(folder).name: {**about, "source": {"url": url, "model": folder, "swap": "transformers", "api": "chat"}}
        for folder in folders
    }
    nodes = [{"id": "first", "model": "a"}, {"id": "then", "model": "b"}]
    chain = {"nodes": nodes, "edges": [{"from": "first", "to": "then"}]}
    expected = {name: _of(url, folder) for name, folder in zip(models, folders, strict=True)}
    problem = workflow.load({"models": models, "workflows": {"chain": chain}}, [], gpus=2, mode="online")
    engine, log = LocalGpuEngine(emulated_gpus(2), 60.0), LogLines(io.StringIO())
    with WorkflowService.over(problem, engine, tmp_path / "state", LiveSettings(), log=log) as service:
        ids = [
            service.submit(RunRequest(workflow=name, input={"messages": MESSAGES}, options=EIGHT))
            for name in ("a", "b", "c") * 4
        ]
        ids.append(service.submit(RunRequest(workflow="chain", input={"messages": MESSAGES}, options=EIGHT)))
        assert [service.wait(id).state for id in ids] == ["completed"] * 13
        for name, id in zip(("a", "b", "c") * 4, ids, strict=False):
            assert service.result(id).answer["text"] == expected[name]
        service.drain()
    journals = list((tmp_path / "state" / "journals").glob("*.jsonl"))
    assert journals
    for journal in journals:
        assert check_journal(journal).valid


def _of(url: str, folder: str) -> str:
    end = back_end(url, folder, swap="transformers")
    end.load(["cpu"])
    text = ask(end, messages=MESSAGES).outputs["text"]
    end.unload(keep=False)
    return str(text)


# --- llama-cpp-python's server ----------------------------------------------------------------------

_LLAMA = os.environ.get("DOVETAIL_LLAMA_CPP_PYTHON") or (
    sys.executable if importlib.util.find_spec("llama_cpp") else None
)
_START_LLAMA = """
import json, runpy, sys
config, port = sys.argv[1:]
with open(config) as file, open(config + port, "w") as own:
    json.dump({**json.load(file), "port": int(port)}, own)
sys.argv[1:] = ["--config_file", own.name]
runpy.run_module("llama_cpp.server", run_name="__main__")
"""


def llama_cpp(tmp_path: Path, **settings: Any) -> list[ServerBackEnd]:
    """Two models on one server that holds one at a time."""
    if _LLAMA is None:
        pytest.skip("llama-cpp-python is not installed (DOVETAIL_LLAMA_CPP_PYTHON names a Python that has it)")
    files = {name: write_gguf(tmp_path / f"{name}.gguf", seed) for seed, name in enumerate(("a", "b"))}
    about = {"n_ctx": 256, "n_threads": 1, "chat_format": "chatml", "embedding": False}
    config = {"host": "127.0.0.1", "models": [{**about, "model": str(files[n]), "model_alias": n} for n in files]}
    (tmp_path / "llama.json").write_text(json.dumps(config | settings))
    command = [_LLAMA, "-c", _START_LLAMA, str(tmp_path / "llama.json"), "{port}"]
    ends = [back_end("http://127.0.0.1:{port}", name, command=command) for name in files]
    for end in ends:
        end.load(["cpu"])
    return ends


def test_llama_cpp_answers_for_the_models_it_lists_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    a, b = llama_cpp(tmp_path, interrupt_requests=False)
    assert a.status()["pid"] == b.status()["pid"]
    with pytest.raises(BackEndError, match="does not serve 'zzz'; known: a, b"):
        back_end(a.status()["url"], "zzz").load(["cpu"])
    options = {"max_tokens": 24, "temperature": 0.0}
    alone = [ask(end, options, prompt="hello").outputs for end in (a, b)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda end: ask(end, options, prompt="hello").outputs, (a, b) * 3))
    assert answers == alone * 3, "also where they take turns"
    assert ask(a, options, messages=MESSAGES).finish_reason in ("stop", "length")
    with pytest.raises(BackEndError, match=r"/v1/completions: [45]00, "):
        ask(a, options, prompt="more than it can hold " * 60)
    a.unload(keep=False)
    assert ask(b, options, prompt="hello").outputs == alone[1]
    b.unload(keep=False)


def test_llama_cpp_cuts_streams_short_by_default_and_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    a, b = llama_cpp(tmp_path)
    options = {"max_tokens": 100, "temperature": 0.0}
    alone = ask(a, options, prompt="hello").outputs

    def outcome(_: int) -> object:
        try:
            return ask(a, options, prompt="hello").outputs
        except BackEndError as error:
            return (error.blame, "cut short" in str(error))

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(outcome, range(12)))
    assert all(found in (alone, ("place", True)) for found in outcomes)
    for end in (a, b):
        end.unload(keep=False)


# --- vLLM -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("vllm") is None, reason="no vllm on the PATH")
def test_vllm_answers_sleeps_and_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor it only stops calls while it sleeps; its weights stay where they are."""
    for name, value in {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # it leaves its sockets there
    model = str(write_model(tmp_path / "m", num_attention_heads=2, spread=0.3))  # heads as wide as its kernels want
    options = ["--host", "127.0.0.1", "--port", "{port}", "--max-model-len", "256", "--enforce-eager"]
    end = back_end("http://127.0.0.1:{port}", model, swap="vllm", command=["vllm", "serve", "{model}", *options])
    texts = []
    for keep in (True, False):
        end.load(["cpu"])
        other = back_end(end.status()["url"], model, swap="vllm")
        other.load(["cpu"])
        texts += [
            ask(each, {"max_tokens": 8, "temperature": 0}, prompt="the quick").outputs["text"] for each in (end, other)
        ]
        other.unload(keep=False)
        end.unload(keep=keep)
    assert len(set(texts)) == 1
    with pytest.raises(BackEndError, match="not loaded"):
        ask(end, prompt="a")


# --- Triton -----------------------------------------------------------------------------------------

ADD = """
name: "add"
backend: "python"
input [
  { name: "a" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "b" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "words" data_type: TYPE_STRING dims: [ -1 ] }
]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "said" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
ADDING = """
import numpy as np
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        a, b, words = (utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("a", "b", "words"))
        said = np.array([b" ".join(words.tolist())], dtype=object)
        return utils.InferenceResponse([utils.Tensor("sum", a + b), utils.Tensor("said", said)])
"""


@pytest.mark.skipif(shutil.which("tritonserver") is None, reason="no tritonserver on the PATH")
def test_triton_loads_infers_and_unloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "models" / "add" / "1").mkdir(parents=True)
    (tmp_path / "models" / "add" / "config.pbtxt").write_text(ADD)
    (tmp_path / "models" / "add" / "1" / "model.py").write_text(ADDING)
    options = ["--model-control-mode=explicit", "--allow-grpc=false", "--allow-metrics=false"]
    command = ["tritonserver", f"--model-repository={tmp_path / 'models'}", *options]
    command += ["--http-address=127.0.0.1", "--http-port={port}"]
    end = back_end("http://127.0.0.1:{port}", "add", swap="triton", command=command)
    end.load(["cpu"])
    url = end.status()["url"]
    with pytest.raises(BackEndError, match="failed to load 'other'"):
        back_end(url, "other", swap="triton").load(["cpu"])
    for _ in range(2):
        call = ModelCall(id="1", model="add", inputs={"a": np.arange(3), "b": [1, 2, 3], "words": ["hé", "b"]})
        outputs = end.call(call, lambda text, tokens: None, Event()).outputs
        assert (outputs["sum"].tolist(), outputs["said"]) == ([1.0, 3.0, 5.0], "hé b")
    end.unload(keep=False)
