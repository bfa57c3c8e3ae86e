"""The older scheduler's files load unchanged; what is wrong in them is told with its place."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.host.inputs.generate import request_lines
from dovetail.host.inputs.parameters import Parameters, read_parameters, requests_path
from dovetail.host.inputs.requests import read_requests

OLD = {
    "policy": "fcfs",
    "assignment_policy": "strict",
    "tf_version": "maleable",
    "tf_model": "keras_example_resnet",
    "tf_dockerimage": "tf_scheduler",
    "number_containers": 8,
    "time_distribution": "static",
    "time_gap": [15, 0],
    "resources_distribution": "random",
    "resources_per_container": [8, 16],
    "get_requests": "create",
    "requests_file": "request_file_prueba9_dec_8.txt",
    "max_resources_per_container": 16,
}


def requests(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "requests_file.txt"
    path.write_text(text)
    return path


def parameters(tmp_path: Path, **changed: Any) -> Path:
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps(OLD | changed, indent=1))
    return path


def test_the_manuals_lines_load(tmp_path: Path) -> None:
    path = requests(tmp_path, "execution,0,tf_scheduler,2,60\nupdate,0,tf_scheduler,12,90\n")
    first, second = read_requests(path)
    assert (first.kind, first.id, first.image, first.threads, first.at_s, first.priority) == (
        "execution",
        "0",
        "tf_scheduler",
        2,
        0.0,
        0,
    )
    assert (second.kind, second.threads, second.at_s) == ("update", 12, 90.0)
    assert [request.at_s for request in read_requests(path, "after")] == [0.0, 60.0]


def test_six_fields_brackets_blanks_and_our_seventh(tmp_path: Path) -> None:
    path = requests(tmp_path, "execution, 7,a,4,[3.5],2\n\nexecution,8,b,4, [37.4] ,4,1200\r\n")
    first, second = read_requests(path)
    assert (first.id, first.priority, first.work) == ("7", 2, None)
    assert (second.at_s, second.priority, second.work) == (37.4, 4, 1200.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("execution,0,a,2\n", ":1: found 4 fields"),
        ("execution,0,a,2,1,0,5,1,20g,a100,6\n", ":1: found 11 fields"),
        ("execution,0,a,2,1,0,5,1,20x\n", ":1: gpu_mem: found '20x', expected memory as 20g"),
        ("execution,0,a,2,1,0,5,-1\n", ":1: gpus"),
        ("execution,0,a,2,1,0,5,,20g\n", ":1: gpus: is missing"),
        ("execution,0,a,2,1\nupdate,0,a,2,1,0,5,1\n", ":2: gpus: found 1 of an update"),
        ("execution,0,a,2,0\nexecutoin,1,a,2,0\n", ":2: type: found 'executoin'.*did you mean 'execution'"),
        ("execution,0,a,two,0\n", ":1: threads: found 'two'"),
        ("execution,0,a,0,0\n", ":1: threads: found '0'"),
        ("execution,0,a,2,-1\n", ":1: delay: found '-1'"),
        ("execution,0,a,2,nan\n", ":1: delay"),
        ("execution,0,a,2,0,-1\n", ":1: priority"),
        ("execution,,a,2,0\n", ":1: id: is empty"),
        ("execution,0,a,2,0\nexecution,0,a,2,0\n", ":2: id: 0 is started twice"),
        ("update,3,a,2,0\n", ":1: id: update of 3, which no line before it starts"),
        ("execution,0,a,2,0,0,x\n", ":1: work"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_requests(requests(tmp_path, text))


def test_the_parameters_load_unchanged(tmp_path: Path) -> None:
    found = read_parameters(parameters(tmp_path))
    assert found.malleable
    assert found.tf_version == "malleable"
    assert read_parameters(parameters(tmp_path, tf_version="malleable")) == found
    assert not read_parameters(parameters(tmp_path, tf_version="original")).malleable


def test_policies_go_by_several_spellings(tmp_path: Path) -> None:
    found = read_parameters(parameters(tmp_path, policy="Round Robin", assignment_policy="ALWAYS_ATTEND"))
    assert (found.policy, found.assignment_policy) == ("rr", "always_attend")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"polisy": "fcfs"}, r"parameters.json:\d+: polisy: unknown key 'polisy'; did you mean 'policy'"),
        ({"policy": "fcsf"}, "policy: found 'fcsf'; did you mean 'fcfs'"),
        ({"assignment_policy": "most"}, "assignment_policy: found 'most'"),
        ({"tf_version": "elastic"}, "tf_version: found 'elastic'"),
        ({"number_containers": 0}, "number_containers: expected at least 1"),
        ({"number_containers": "8"}, "number_containers: expected int, found str"),
        ({"time_gap": []}, "time_gap: expected two numbers"),
        ({"time_gap": [-1, 0]}, "time_gap: expected numbers from 0 on"),
        ({"resources_per_container": [8, 8]}, "resources_per_container: expected"),
        ({"resources_per_container": [0, 8]}, "resources_per_container: expected numbers from 1 on"),
        ({"get_requests": "both"}, "get_requests"),
    ],
)
def test_bad_parameters_are_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_parameters(parameters(tmp_path, **changed))


def test_the_request_file_is_found_beside_the_parameters(tmp_path: Path) -> None:
    path = parameters(tmp_path, requests_file="requests_file.txt")
    named = requests(tmp_path, "execution,0,a,2,0\n")
    assert requests_path(read_parameters(path), path) == named
    with pytest.raises(InputError, match="requests_file: is missing"):
        requests_path(Parameters(), path)


def test_generated_lines_follow_the_parameters(tmp_path: Path) -> None:
    found = read_parameters(parameters(tmp_path, number_containers=300, time_distribution="normal", time_gap=[20, 5]))
    lines = request_lines(found, seed=1)
    assert lines == request_lines(found, seed=1) != request_lines(found, seed=2)
    made = read_requests(requests(tmp_path, lines))
    assert [request.id for request in made] == [str(i) for i in range(300)]
    assert {request.threads for request in made} == set(range(8, 16))  # the most is excluded
    assert {request.priority for request in made} == set(range(5))
    gaps = [b.at_s - a.at_s for a, b in pairwise(made)]
    assert 18 < sum(gaps) / len(gaps) < 22


def test_the_examples_load() -> None:
    folder = Path(__file__).parents[2] / "examples" / "host"
    parameters = read_parameters(folder / "parameters.json")
    requests = read_requests(requests_path(parameters, folder / "parameters.json"), "before")
    assert {request.kind for request in requests} == {"execution", "update"}
