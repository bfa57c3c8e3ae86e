"""Recorded WfCommons workflows become valid configurations with the recorded times and order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.generate import generate
from dovetail.workflow.inputs.importers.common import Imported
from dovetail.workflow.inputs.importers.wfcommons import Width, import_wfcommons
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.system import System

ROOT = Path(__file__).parents[2]
INSTANCES = (ROOT / os.environ.get("DOVETAIL_TRACES", "../shared/traces")).resolve() / "wfinstances"


@pytest.fixture
def instances() -> list[Path]:
    found = sorted(INSTANCES.glob("*.json"))
    if not found:
        reason = f"no WfCommons instances in {INSTANCES}; set DOVETAIL_TRACES"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def validated(found: Imported, folder: Path) -> System:
    """Reads what was imported as a user would, and generates from it."""
    (folder / "config.json").write_text(json.dumps(found.config))
    (folder / "requests.json").write_text(json.dumps({"requests": found.requests}))
    system = read_system(folder / "config.json")
    read = Requests(folder / "requests.json", system)
    assert len(read) == len(found.requests) == len(system.workflows)
    assert not read.warnings
    assert len(list(generate(system, requests=5, rate=1, seed=1))) == 5
    return system


def write(folder: Path, data: Any, name: str = "flow.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(data, indent=1))
    return file


def old(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"name": "flow", "schemaVersion": "1.4", "workflow": {"makespanInSeconds": 9, "tasks": list(tasks)}}


def new(*tasks: dict[str, Any], ran: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    workflow: dict[str, Any] = {"specification": {"tasks": list(tasks), "files": []}}
    if ran is not None:
        workflow["execution"] = {"makespanInSeconds": 9, "executedAt": "2020-01-01T00:00:00Z", "tasks": ran}
    return {"name": "flow", "schemaVersion": "1.5", "workflow": workflow}


def edges_of(found: Imported, workflow: str = "flow") -> set[tuple[str, str]]:
    return {(edge["from"], edge["to"]) for edge in found.config["workflows"][workflow]["edges"]}


def models_of(found: Imported, workflow: str = "flow") -> dict[str, str]:
    return {node["id"]: node["model"] for node in found.config["workflows"][workflow]["nodes"]}


# --- recorded instances -------------------------------------------------------------------------------


@pytest.mark.parametrize("width", ["one", "cores"])
def test_recorded_instances_are_imported_whole(width: Width, instances: list[Path], tmp_path: Path) -> None:
    found = import_wfcommons(instances, width=width)
    system = validated(found, tmp_path)
    assert not found.dropped
    for path, workflow, row in zip(instances, system.workflows.values(), found.requests, strict=True):
        data = json.loads(path.read_text())["workflow"]
        tasks = {task["id"]: task for task in data["specification"]["tasks"]}
        assert [node.id for node in workflow.nodes] == list(tasks)
        order = {(parent, task["id"]) for task in tasks.values() for parent in task["parents"]}
        assert {(edge.source, edge.target) for edge in workflow.edges} == order
        runtimes = {task["id"]: max(0.001, task["runtimeInSeconds"]) for task in data["execution"]["tasks"]}
        assert row["node_execution_times"] == runtimes


def test_recorded_tasks_of_one_program_share_a_model(instances: list[Path]) -> None:
    montage = [path for path in instances if path.name.startswith("montage")]
    found = import_wfcommons(montage)
    assert {"mProject", "mDiffFit", "mBackground", "mAdd"} <= set(found.config["models"])
    assert len(found.config["models"]) < 12
    assert len(found.config["workflows"]) == len(montage)


# --- both formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "key"), [("1.0", "jobs"), ("1.2", "jobs"), ("1.3", "tasks")])
def test_the_oldest_versions_have_jobs_and_runtimes_under_other_names(version: str, key: str, tmp_path: Path) -> None:
    tasks = [{"name": "a_ID1", "runtime": 1.5}, {"name": "b_ID2", "parents": ["a_ID1"], "runtime": 2}]
    found = import_wfcommons([write(tmp_path, {"schemaVersion": version, "workflow": {key: tasks}})])
    validated(found, tmp_path)
    assert models_of(found) == {"a_ID1": "a", "b_ID2": "b"}
    assert edges_of(found) == {("a_ID1", "b_ID2")}
    assert found.requests[0]["node_execution_times"] == {"a_ID1": 1.5, "b_ID2": 2}


def test_the_flat_format_refers_by_name(tmp_path: Path) -> None:
    data = old(
        {"name": "a_ID1", "id": "ID1", "category": "a", "runtimeInSeconds": 1.5, "cores": 2, "memoryInBytes": 2**30},
        {"name": "b_ID2", "id": "ID2", "parents": ["a_ID1"], "runtimeInSeconds": 2, "command": {"program": "/bin/b"}},
        {"name": "b_ID3", "id": "ID3", "parents": ["a_ID1"], "runtimeInSeconds": 4},
    )
    found = import_wfcommons([write(tmp_path, data)])
    system = validated(found, tmp_path)
    assert models_of(found) == {"ID1": "a", "ID2": "b", "ID3": "b"}
    assert edges_of(found) == {("ID1", "ID2"), ("ID1", "ID3")}
    assert found.requests[0]["node_execution_times"] == {"ID1": 1.5, "ID2": 2, "ID3": 4}
    assert (system.models["b"].inference_time_mean, system.models["b"].inference_time_std) == (3, 1)
    assert (system.models["a"].memory_gb, system.models["a"].gpus_required) == (1, 1)


def test_the_split_format_joins_what_a_task_is_and_how_it_ran(tmp_path: Path) -> None:
    data = new(
        {"name": "map", "id": "map_2", "parents": [], "children": ["reduce"]},
        {"name": "map", "id": "map_1", "parents": [], "children": ["reduce"]},
        {"name": "reduce", "id": "reduce", "parents": ["map_1", "map_2"], "children": []},
        ran=[
            {"id": "reduce", "runtimeInSeconds": 0.0, "command": {"program": "sh -c 'a whole\nscript'"}},
            {"id": "map_1", "runtimeInSeconds": 3.0, "coreCount": 1.5, "command": {"program": "/usr/bin/mapper"}},
            {"id": "map_2", "runtimeInSeconds": 5.0, "coreCount": 1},
        ],
    )
    file = write(tmp_path, data)
    found = import_wfcommons([file])
    validated(found, tmp_path)
    assert models_of(found) == {"map_2": "map", "map_1": "mapper", "reduce": "reduce"}
    assert edges_of(found) == {("map_1", "reduce"), ("map_2", "reduce")}
    assert found.requests[0]["node_execution_times"] == {"map_2": 5, "map_1": 3, "reduce": 0.001}
    assert found.notes == [f"{file}: 1 of 3 tasks ran for less than 1 ms: taken as 1 ms"]


def test_cores_may_stand_for_gpus(tmp_path: Path) -> None:
    ran = [{"id": str(i), "runtimeInSeconds": 1, "coreCount": cores} for i, cores in enumerate([1, 1.5, 4, 0])]
    data = new(*({"name": "work", "id": str(i)} for i in range(4)), ran=ran)
    found = import_wfcommons([write(tmp_path, data)], width="cores")
    system = validated(found, tmp_path)
    assert models_of(found) == {"0": "work", "1": "work_x2", "2": "work_x4", "3": "work"}
    assert {name: one.gpus_required for name, one in system.models.items()} == {"work": 1, "work_x2": 2, "work_x4": 4}


def test_switching_programs_is_free_unless_a_price_is_given(tmp_path: Path) -> None:
    file = write(tmp_path, old({"name": "a", "runtimeInSeconds": 1}))
    assert validated(import_wfcommons([file]), tmp_path).costs.overhead_s == 0
    priced = validated(import_wfcommons([file], switch_s=1.5), tmp_path)
    assert (priced.costs.overhead_s, priced.models["a"].load_time_seconds) == (1.5, 1.5)


def test_a_workflow_that_never_ran_gets_estimates(tmp_path: Path) -> None:
    file = write(tmp_path, new({"name": "a", "id": "a"}, {"name": "b", "id": "b"}))
    found = import_wfcommons([file])
    validated(found, tmp_path)
    assert found.requests[0]["node_execution_times"] == {}
    assert found.notes == [f"{file}: 2 of 2 tasks have no runtime: estimated"]


# --- order and names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"parents": ["a"]}),
        ({"children": ["b"]}, {}),
        ({"children": ["b"]}, {"parents": ["a"]}),
        ({"children": ["b"], "parents": []}, {"parents": ["a"], "children": []}),
        ({"children": []}, {"parents": ["a"], "children": []}),
        ({"children": ["b", "b"]}, {}),
    ],
)
def test_order_may_be_given_from_either_end(first: Any, second: Any, tmp_path: Path) -> None:
    found = import_wfcommons([write(tmp_path, old({"name": "a"} | first, {"name": "b"} | second))])
    validated(found, tmp_path)
    assert edges_of(found) == {("a", "b")}


def test_equal_names_are_told_apart_by_id_and_equal_ids_by_name(tmp_path: Path) -> None:
    names = write(tmp_path, old({"name": "a", "id": "1"}, {"name": "a", "id": "2", "parents": ["1"]}), "names.json")
    ids = write(tmp_path, old({"name": "a", "id": "1"}, {"name": "b", "id": "1", "parents": ["a"]}), "ids.json")
    crossed = [("a", "1"), ("a", "2"), ("b", "1")]
    both = write(tmp_path, old(*({"name": name, "id": number} for name, number in crossed)), "both.json")
    found = import_wfcommons([names, ids, both])
    validated(found, tmp_path)
    assert edges_of(found, "names") == {("1", "2")}
    assert edges_of(found, "ids") == {("a", "b")}
    assert list(models_of(found, "both")) == ["a_1", "a_2", "b_1"]


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a WfCommons instance of schemaVersion 1.0, 1.1, .*, 1.6, found None"),
        ({"schemaVersion": "0.9"}, r"schemaVersion: expected a WfCommons instance .* found '0.9'"),
        ({"schemaVersion": "1.0", "workflow": {"jobs": 3}}, r"workflow\.jobs: expected a list, found int"),
        (
            {"schemaVersion": "1.0", "workflow": {"jobs": [{"name": "a", "runtime": -2}]}},
            r"workflow\.jobs\.0\.runtime: task 'a': expected a number from 0 to 1e\+12, found -2",
        ),
        ({"schemaVersion": "1.5"}, "missing key 'workflow'"),
        ({"schemaVersion": "1.5", "workflow": {"tasks": []}}, "workflow: missing key 'specification'"),
        ({"schemaVersion": "1.4", "workflow": {"tasks": {}}}, r"workflow\.tasks: expected a list, found dict"),
        (old(), "workflow: expected at least one task"),
        (old({"runtimeInSeconds": 1}), r"workflow\.tasks\.0: expected an id or a name, found neither"),
        (old({"name": "a"}, {"name": "a"}), r"workflow\.tasks\.1: task 'a' is defined twice, first as 0"),
        (old({"name": "a", "parents": ["z"]}), r"workflow\.tasks\.0\.parents\.0: 'z': there is no such task"),
        (
            old({"name": "a", "id": "1"}, {"name": "a", "id": "2"}, {"name": "b", "id": "3", "parents": ["a"]}),
            r"workflow\.tasks\.2\.parents\.0: 'a': 2 tasks are called so",
        ),
        (
            old({"name": "a", "children": ["c"]}, {"name": "b", "parents": ["a"]}, {"name": "c", "parents": ["a"]}),
            r"workflow\.tasks\.1\.parents\.0: task 'b' has parent 'a', which does not list it as a child",
        ),
        (
            old({"name": "a", "children": ["b", "c"]}, {"name": "b", "parents": ["a"]}, {"name": "c", "parents": []}),
            r"workflow\.tasks\.0\.children\.1: task 'a' has child 'c', which does not list it as a parent",
        ),
        (
            old({"name": "a", "parents": ["b"]}, {"name": "b", "parents": ["a"]}),
            r"workflow\.tasks\.\d: task '[ab]' waits for itself: (a -> b -> a|b -> a -> b)",
        ),
        (old({"name": "a", "runtimeInSeconds": -1}), r"tasks\.0\.runtimeInSeconds: task 'a': expected a number from 0"),
        (old({"name": "a", "runtimeInSeconds": "long"}), r"tasks\.0\.runtimeInSeconds: expected float.*, found str"),
        (
            new({"name": "a", "id": "a"}, ran=[{"id": "a", "memoryInBytes": -5}]),
            r"workflow\.execution\.tasks\.0\.memoryInBytes: task 'a': expected a number from 0",
        ),
        (old({"name": "a", "memoryInBytes": 1e300}), r"tasks\.0\.memoryInBytes: task 'a': expected .*, found 1e\+300"),
        (new({"name": "a", "id": "a"}, ran=[{"id": "b"}]), r"execution\.tasks\.0\.id: 'b': there is no such task"),
        (new({"name": "a", "id": "a"}, ran=[{"id": "a"}] * 2), r"execution\.tasks\.1\.id: task 'a' is listed twice"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"bad\.json.*{message}"):
        import_wfcommons([write(tmp_path, data, "bad.json")])


def test_a_negative_price_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="switch_s: expected a number >= 0, found -1"):
        import_wfcommons([write(tmp_path, old({"name": "a"}))], switch_s=-1)
