"""Where live runs take models from: all forms of `source`, what is wrong with them, and what workers are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import workflow
from dovetail.core.errors import InputError, MissingExtraError
from dovetail.workflow.compat.gswarm_files import GSWARM
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.system import System
from dovetail.workflow.live import specs
from dovetail.workflow.live.specs import live_settings, model_specs

MODEL = {"memory_gb": 2, "gpus_required": 1, "load_time_seconds": 4}


def config(source: Any = None, **more: Any) -> dict[str, Any]:
    model = MODEL | ({} if source is None else {"source": source}) | more
    return {"models": {"llm": model}, "workflows": {"chat": {"nodes": [{"id": "answer", "model": "llm"}]}}}


def read(folder: Path, data: dict[str, Any]) -> System:
    (folder / "system.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return read_system(folder / "system.yaml")


def served(folder: Path, source: Any, **more: Any) -> dict[str, Any]:
    return model_specs(read(folder, config(source, **more)))["llm"].source


def refused(folder: Path, data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        model_specs(read(folder, data))
    return str(caught.value).replace(f"{folder}/", "")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "make.py").write_text("")
    assert served(tmp_path, "llama") == {"path": str(tmp_path / "llama")}
    assert served(tmp_path, {"path": "../" + tmp_path.name + "/llama"}) == {"path": str(tmp_path / "llama")}
    assert served(tmp_path, "make.py:painter") == {"factory": f"{tmp_path}/make.py:painter"}
    assert served(tmp_path, "package.module:painter") == {"factory": "package.module:painter"}
    assert served(tmp_path, {"path": "org/name", "hub": True}) == {"path": "org/name", "hub": True}


def test_a_server_is_told_its_name_there_and_all_that_belongs_to_it(tmp_path: Path) -> None:
    found = served(tmp_path, "http://127.0.0.1:8000/v1")
    assert (found["url"], found["model"], found["swap"]) == ("http://127.0.0.1:8000/v1", "llm", "none")
    given = {"url": "http://h:{port}", "model": "m", "swap": "vllm", "command": ["vllm", "serve"], "log": "v.log"}
    found = served(tmp_path, given)
    assert {key: found[key] for key in given} == given | {"log": str(tmp_path / "v.log")}


def test_an_emulated_model_takes_as_long_as_its_other_keys_say_unless_it_says_otherwise(tmp_path: Path) -> None:
    found = served(tmp_path, {"emulated": {"speed": 10}}, tokens_per_second=50, token_mean=20)["emulated"]
    assert (found["load_s"], found["call_s"], found["tokens_per_second"], found["token_mean"]) == (0.4, None, 500, 20)
    found = served(tmp_path, {"emulated": {"load_s": 1}}, inference_time_mean=3)["emulated"]
    assert (found["load_s"], found["call_s"]) == (1, 3)


def test_a_spec_has_the_model_s_memory_width_slots_and_options(tmp_path: Path) -> None:
    source = {"emulated": {}, "options": {"dtype": "float16"}}
    spec = model_specs(read(tmp_path, config(source, gpus_required=2, max_concurrency=4)))["llm"]
    assert (spec.memory_mib, spec.width, spec.slots, spec.options) == (2048, 2, 4, {"dtype": "float16"})


def test_all_models_without_a_source_are_named(tmp_path: Path) -> None:
    data = config({"emulated": {}})
    data["models"] |= {"sd": MODEL, "tts": MODEL}
    told = refused(tmp_path, data)
    assert told.startswith("system.yaml:8: models.sd: live runs need the source of every model, but 'sd', 'tts': ")


def test_a_source_is_not_inherited(tmp_path: Path) -> None:
    """Another model's weights would be served in its place."""
    data = config({"emulated": {}})
    data["models"]["large"] = {"base_model": "llm", "memory_gb": 70}
    assert "but 'large'" in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nowhere/llama", "system.yaml:6: models.llm.source: nowhere/llama: no such folder; a name on the hub is "),
        ("none.py:make", "system.yaml:6: models.llm.source: none.py: no such file"),
        ({}, "system.yaml:6: models.llm.source: expected one of path, factory, url and emulated, found none"),
        (
            {"path": "a", "url": "http://b"},
            "system.yaml:6: models.llm.source: expected one of path, factory, url and emulated, found path and url",
        ),
        ({"paths": "a"}, "system.yaml:7: models.llm.source.paths: unknown key 'paths'; did you mean 'path'?"),
        (
            {"factory": "make painter"},
            "system.yaml:7: models.llm.source.factory: expected module:function or file.py:function, found ",
        ),
        ({"path": ""}, "system.yaml:7: models.llm.source.path: expected a folder, found nothing"),
        ({"url": "ftp://b"}, "system.yaml:7: models.llm.source.url: expected http://HOST:PORT..., found 'ftp://b'"),
        ({"url": "http://b:{port}"}, "system.yaml:7: models.llm.source.url: {port} is a free port for a server that"),
        ({"path": "a", "swap": "vllm"}, "system.yaml:8: models.llm.source.swap: expected url beside it: it is for "),
        (
            {"url": "http://b", "swap": "vlm"},
            "system.yaml:8: models.llm.source.swap: expected llama-swap or none or ollama or transformers or triton",
        ),
        ({"url": "http://b", "ready_s": 0}, "system.yaml:8: models.llm.source.ready_s: expected seconds, more than 0"),
        ({"emulated": {}, "hub": True}, "system.yaml:8: models.llm.source.hub: expected path beside it"),
        ({"emulated": {"speed": 0}}, "system.yaml:8: models.llm.source.emulated.speed: expected a positive number"),
        ({"emulated": {"noise": -1}}, "system.yaml:8: models.llm.source.emulated.noise: expected a number from 0"),
        (7, "system.yaml:6: models.llm.source: expected str | object | null, found int"),
    ],
)
def test_what_is_wrong_with_a_source_is_told_with_its_place(tmp_path: Path, source: Any, told: str) -> None:
    assert refused(tmp_path, config(source)).replace(f"{tmp_path}/", "").startswith(told)


def test_simulated_runs_have_no_use_for_sources_nor_does_the_older_scheduler(tmp_path: Path) -> None:
    asked = [{"request_id": "r", "workflow_id": "chat"}]
    with_source, without = (workflow.run(workflow.load(config(s), asked, gpus=1)) for s in ("nowhere/llama", None))
    assert with_source.metrics == without.metrics
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(config("nowhere/llama")))
    assert GSWARM.read_system(tmp_path / "system.yaml", "fail", None).models["llm"].source is not None


def test_a_source_is_kept_in_files_that_are_written(tmp_path: Path) -> None:
    data = config({"emulated": {"speed": 2}})
    workflow.write_config(tmp_path / "again.yaml", data)
    assert model_specs(read_system(tmp_path / "again.yaml"))["llm"].source["emulated"]["load_s"] == 2


# --- other keys for live runs ---------------------------------------------------------------------


def node(**keys: Any) -> dict[str, Any]:
    data = config({"emulated": {}})
    data["workflows"]["chat"]["nodes"] = [{"id": "answer", "model": "llm"} | keys, {"id": "again", "model": "llm"}]
    return data


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"prompt": "Say {text"},
            "prompt: node 'answer': '{' at character 5: expected {name}, or {{ and }} for braces",
        ),
        ({"prompt": "{}"}, "prompt: node 'answer': '{}' at character 1"),
        ({"prompt": ""}, "prompt: node 'answer': expected a text or messages, found nothing"),
        ({"prompt": [{"role": "user"}]}, "prompt.0: missing key `content`"),
        ({"prompt": ["{a} b"]}, "prompt: node 'answer': message 1: expected role and content, or one {name}"),
        ({"prompt": [{"role": "user", "content": "}"}]}, "prompt: node 'answer': message 1: '}' at character 1"),
        ({"decide": {"again": {"equals": 1}}}, "decide.again: node 'answer': expected one of what then: may add"),
        (
            {"then": {"again": 0.5}, "decide": {"agian": {"equals": 1}}},
            "decide.agian: node 'answer': expected one of what then: may add, found 'agian'; did you mean 'again'?",
        ),
        ({"then": {"again": 0.5}, "decide": {"again": {}}}, "decide.again: node 'answer': expected one of equals"),
        (
            {"then": {"again": 0.5}, "decide": {"again": {"matches": "("}}},
            "decide.again.matches: node 'answer': '(' is no regular expression",
        ),
        (
            {"then": {"again": 0.5}, "decide": {"again": {"above": 1, "below": 2}}},
            "decide.again: node 'answer': expected one of equals, contains, matches, above, below, each, found above",
        ),
        (
            {"then": {"again": 0.5}, "decide": {"again": {"contain": "x"}}},
            "decide.again.contain: unknown key 'contain'; did you mean 'contains'?",
        ),
    ],
)
def test_what_is_wrong_with_a_node_s_keys_is_told_with_its_place(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    assert f": workflows.chat.nodes.0.{told}" in refused(tmp_path, node(**keys))


def test_settings_of_live_services(tmp_path: Path) -> None:
    assert live_settings(read(tmp_path, config() | {"live": {"max_queue": 5}})).max_queue == 5
    for given, told in (
        ({"max_queue": 0}, "system.yaml:12: live.max_queue: expected 1 or more, found 0"),
        ({"max_que": 1}, "system.yaml:12: live.max_que: unknown key 'max_que'; did you mean 'max_queue'?"),
    ):
        with pytest.raises(InputError) as caught:
            live_settings(read(tmp_path, config() | {"live": given}))
        assert str(caught.value) == f"{tmp_path}/{told}"


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_who_lacks_what_serves_folders_is_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (tmp_path / "llama").mkdir()
    monkeypatch.setattr(specs, "find_spec", lambda name: None if name == package else object())
    told = rf"a model from a folder needs {package}, which is not installed: pip install 'dovetail\[models\]'"
    with pytest.raises(MissingExtraError, match=told):
        workflow.serve(config(str(tmp_path / "llama")), gpus=1, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()
    problem = workflow.load(config(str(tmp_path / "llama")), [], gpus=1)
    with pytest.raises(MissingExtraError, match=told):
        workflow.run_live(problem, journal=tmp_path / "journal.jsonl")
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_service_has_the_gpus_that_are_there(tmp_path: Path) -> None:
    data = config({"emulated": {}}) | {"gpus_over_time": {"steps": [[0, 1], [10, 2]]}}
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(InputError, match=r"system\.yaml:\d+: gpus_over_time: a service has the GPUs that are there"):
        workflow.serve(tmp_path / "system.yaml", gpus=2, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()
