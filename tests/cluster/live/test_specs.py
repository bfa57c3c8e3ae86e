"""What a user submits, what can be set, and which machines there are: what is wrong is refused by its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.cluster.live.nodes import ClusterNode, NodeAccelerator, NodeTable, emulated_node, given_types, node_of_ray
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.specs import JobSpec, job_spec, read_jobs
from dovetail.core.errors import InputError
from dovetail.core.service.ray_start import RayNode

JOB = {"command": ["python3", "train.py"], "steps": 100}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": []}, "command: found [], expected a program"),
        ({"command": ["a\0b"]}, "command: found ['a\\x00b'], expected no null character"),
        ({"command": "train"}, "command: expected array, found str"),
        ({"steps": 0}, "steps: found 0.0, expected 1 to 1e+12"),
        ({"steps": float("nan")}, "steps: found nan, expected 1 to 1e+12"),
        ({"steps": 1e15}, "steps: found 1000000000000000.0, expected 1 to 1e+12"),
        ({"folder": "here"}, "folder: found 'here', expected an absolute path"),
        ({"batch": 0}, "batch: found 0, expected 1 to 1e+12"),
        ({"batch": 10**20}, "batch: found 100000000000000000000, expected 1 to 1e+12"),
        ({"width": 0}, "width: found 0, expected 1 to 4096"),
        ({"width": 2.5}, "width: expected int, found float"),
        ({"widths": [0, 1]}, "widths: found 0, expected widths of 1"),
        ({"widths": [2, 4]}, "widths: found [2, 4], expected width 1 in it"),
        ({"weight": -1}, "weight: found -1.0, expected 1e-06 to 1e+06"),
        ({"weight": 1e16}, "weight: found 1e+16, expected 1e-06 to 1e+06"),
        ({"deadline_s": 0}, "deadline_s: found 0.0, expected 1e-09 to 1e+12 seconds"),
        ({"deadline_s": 9e14}, "deadline_s: found 900000000000000.0, expected 1e-09 to 1e+12 seconds"),
        ({"rates": {"v100": 1e-300}}, "rates: found ('v100', 1e-300), expected steps per second by type, 1e-09"),
        ({"env": {"A=B": "1"}}, "env: found 'A=B', expected names without ="),
        ({"rates": {"v100": -2}}, "rates: found ('v100', -2.0), expected steps per second"),
        ({"checkpoint": "never"}, "checkpoint: expected iterator or own or pause, found 'never'"),
        ({"name": "a\nb"}, "name, model, entity: found 'a\\nb', expected at most 200"),
        ({"step": 5}, "step: unknown key 'step'; did you mean 'steps'?"),
        ({"steps_flag": "\0"}, "steps_flag: found '\\x00', expected no null"),
    ],
)
def test_a_job_that_can_never_run_is_refused_by_its_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        job_spec(JOB | change)
    assert str(error.value).startswith(said)


def test_a_job_is_for_types_and_entities_that_there_are() -> None:
    spec = job_spec(JOB | {"types": ["v10"]})
    with pytest.raises(InputError, match=r"types: found 'v10', .*did you mean 'v100'"):
        spec.check(["v100", "k80"])
    with pytest.raises(InputError, match="rates: found 'k8'"):
        job_spec(JOB | {"rates": {"k8": 1.0}}).check(["v100", "k80"])
    with pytest.raises(InputError, match="entity: found '', expected one that has a weight"):
        job_spec(JOB).check(["v100"], ["vision"])
    job_spec(JOB | {"entity": "vision", "types": ["k80"]}).check(["v100", "k80"], ["vision"])


def test_a_file_of_jobs_is_read_and_its_faults_are_located(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs:\n- {command: [a], steps: 5, folder: sub}\n- {command: [b], steps: 6}\n")
    one, two = read_jobs(file)
    assert (one.folder, two.folder) == (str(tmp_path / "sub"), str(tmp_path))
    file.write_text("jobs:\n- command: [a]\n  steps: 5\n- command: [b]\n  steps: 5\n  width: 0\n")
    with pytest.raises(InputError, match=r"jobs.yaml:6: jobs.1.width: found 0"):
        read_jobs(file)
    file.write_text("command: [a]\nsteps: 5\nwide: 2\n")
    with pytest.raises(InputError, match=r"jobs.yaml:3: wide: unknown key 'wide'"):
        read_jobs(file)
    file.write_text("jobs: []\n")
    with pytest.raises(InputError, match=r"jobs.yaml:1: jobs: expected a list of jobs"):
        read_jobs(file)
    file.write_text("jobs: [{command: [a], steps: 1}]\nmore: 2\n")
    with pytest.raises(InputError, match=r"jobs.yaml:2: more: unknown key"):
        read_jobs(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decide_at": 0.0}, "decide_at: expected more than 0 and at most 1, found 0.0"),
        ({"renew_at": 1.0}, "renew_at: expected more than 0 and less than 1, found 1.0"),
        ({"grace": -0.1}, "grace: expected 0 to 1, found -0.1"),
        ({"silence": 0.06}, "silence: expected two beats (0.1) or more, found 0.06"),
        ({"failures": 0}, "failures: expected 1 or more, found 0"),
        ({"job_mib": 0.0}, "job_mib: expected a positive number up to 1e+12, found 0.0"),
        ({"learn_above": float("nan")}, "learn_above: expected more than 0 and less than 1, found nan"),
    ],
)
def test_a_setting_out_of_bounds_is_named(change: dict[str, Any], said: str) -> None:
    assert ClusterSettings(**change).problem() == said
    assert ClusterSettings().problem() is None


def test_types_are_read_off_the_nodes_of_ray() -> None:
    assert node_of_ray(RayNode("1", "head", "10.0.0.1", {"CPU": 4.0})) is None
    found = node_of_ray(RayNode("2", "a", "10.0.0.2", {"dovetail:v100": 2.0, "dovetail:k80": 1.0, "GPU": 1.0}))
    assert found is not None
    assert found.counts == {"k80": 1, "v100": 2}
    assert {device.gpu for device in found.devices} == {-1}
    for types, said in (({"v100": -1}, "types.v100"), ({"a": 1.5}, "types.a"), ({"a": 0}, "at least one")):
        with pytest.raises(InputError, match=said):
            given_types(types)


def test_accelerators_keep_their_numbers_while_nodes_come_and_go() -> None:
    table = NodeTable()
    a, b = (ClusterNode("n", (NodeAccelerator("v100"),) * 2, ray_id=ray_id) for ray_id in "ab")
    first, new = table.come(a)
    assert (first.node.name, list(first.numbers), new) == ("n", [0, 1], True)
    second, new = table.come(b)  # two of Ray's nodes on one machine are called alike
    assert (second.node.name, list(second.numbers), new) == ("n-2", [2, 3], True)
    assert table.come(a)[1] is False
    lost = table.with_ray_id("a")
    assert lost is not None
    assert table.go(lost.node.name) is first
    assert table.go("n") is None
    assert table.come(b) == (second, False)  # whose name is free, but who has one
    back, new = table.come(ClusterNode("n", (NodeAccelerator("v100"),) * 2, ray_id="c"))
    assert (list(back.numbers), new, back.node.ray_id) == ([0, 1], False, "c")
    other, new = table.come(emulated_node({"k80": 1}, "n"))  # it was equipped anew
    assert (other.node.name, list(other.numbers), new) == ("n-3", [4], True)
    assert table.types() == ["v100", "k80"]
    assert [table.place(number) for number in (1, 2, 4)] == [("n", 1), ("n-2", 0), ("n-3", 0)]
    again = NodeTable(table.nodes.values())
    assert again.size == 5


def test_a_job_says_what_it_is_called() -> None:
    spec = JobSpec(command=("python3", "main.py"), steps=10, model="ResNet-18", batch=32)
    assert (spec.kind, spec.title) == ("ResNet-18 (batch size 32)", "ResNet-18 (batch size 32)")
