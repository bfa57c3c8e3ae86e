"""The three files and the links: what is read, and what is said about what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.inputs.problem import DTYPE_BYTES, Pipeline

MODELS: dict[str, Any] = {
    "m": {"layers": 3, "mem_MB": [1, 2.5, 3], "parameters_in": 10, "parameters_out": [20, 30, 40]},
    "short": {"layers": 3, "mem_MB": [1, 1, 1], "parameters_in": 10, "parameters_out": [20, 30]},
}
PROFILE = {"batch_size": 8, "dtype": "torch.float32", "time_s": [0.1, 0.2, 0.3]}
TYPES: dict[str, Any] = {
    "a": {"bw_Mbps": 100, "mem_MB": 64, "model_profiles": {"m": [PROFILE], "short": [PROFILE]}},
    "b": {"bw_Mbps": 10, "mem_MB": 32, "model_profiles": {"m": [{**PROFILE, "time_s": [1, 1, 1]}, PROFILE]}},
    "none": {"bw_Mbps": 1, "mem_MB": 1, "model_profiles": None},
}
DEVICES: dict[str, Any] = {"a": ["a0", "a1"], "b": ["b0"], "none": []}


def read(folder: Path, change: dict[str, Any] | None = None, links: Any = None, **options: Any) -> Pipeline:
    files = {"models": MODELS, "device_types": TYPES, "devices": DEVICES} | (change or {})
    paths = []
    for name, content in files.items():
        paths.append(folder / f"{name}.yml")
        paths[-1].write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    if links is not None:
        options["links"] = folder / "links.yml"
        options["links"].write_text(yaml.safe_dump(links))
    return load(*paths, **({"model": "m"} | options))


def test_bytes_profiles_and_hosts(tmp_path: Path) -> None:
    pipeline = read(tmp_path)
    assert pipeline.cut_bytes == [320, 640, 960, 1280]
    assert [(c.name, c.hosts, c.time_s) for c in pipeline.classes] == [
        ("a", ["a0", "a1"], [0.1, 0.2, 0.3]),
        ("b", ["b0"], [0.1, 0.2, 0.3]),  # of two profiles that match the last counts
    ]
    assert pipeline.warnings == ["Device type none doesn't support model: type will be skipped"]
    assert read(tmp_path, batch_size=1, dtype="torch.float16").cut_bytes[0] == 20


def test_hosts_of_an_unknown_type_are_skipped_with_a_warning(tmp_path: Path) -> None:
    pipeline = read(tmp_path, {"devices": {"a": ["a0"], "bb": ["b0"]}})
    assert [c.hosts for c in pipeline.classes] == [["a0"]]
    assert "Hosts of bb will be skipped: it is not a device type; did you mean 'b'?" in pipeline.warnings


def test_a_profile_of_a_busy_machine_is_told(tmp_path: Path) -> None:
    marked = TYPES | {"a": TYPES["a"] | {"model_profiles": {"m": [{**PROFILE, "busy": 0.25}]}}}
    found = read(tmp_path, {"device_types": marked})
    assert [c.busy for c in found.classes] == [0.25, 0.0]
    told = "The profile of a was taken on a busy machine (other programs took 25 % of the time): measure it again"
    assert told in found.warnings


def test_that_there_are_no_hosts_is_told(tmp_path: Path) -> None:
    [warning] = [text for text in read(tmp_path, {"devices": {"a": None}}).warnings if "hosts" in text]
    assert warning.endswith("devices.yml lists no hosts")


def test_a_short_list_of_cuts_is_repeated(tmp_path: Path) -> None:
    pipeline = read(tmp_path, model="short")
    assert pipeline.cut_bytes == [320, 640, 960, 640]
    assert pipeline.warnings[0] == "Model parameters_out length 2 < 3: block will be repeated"


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unknown model": ({}, {"model": "n"}, "models.yml: model not found: n"),
    "lengths": ({"models": {"m": MODELS["m"] | {"mem_MB": [1]}}}, {}, "m.mem_MB: has 1 values, but layers is 3"),
    "no cuts": ({"models": {"m": MODELS["m"] | {"parameters_out": []}}}, {}, "parameters_out: is empty"),
    "negative": ({"models": {"m": MODELS["m"] | {"mem_MB": [1, -1, 1]}}}, {}, "m.mem_MB.1: expected a number from 0"),
    "huge": (
        {"models": {"m": MODELS["m"] | {"mem_MB": [1, 1e300, 1]}}},
        {},
        "m.mem_MB.1: expected a number from 0 to 1e+15, found 1e+300",
    ),
    "no name": ({"device_types": TYPES | {5: TYPES["a"]}}, {}, "5: expected a name, found 5; write it in quotes"),
    "no host": ({"devices": {"a": [""]}}, {}, "a.0: expected the name of a host, found an empty one"),
    "typo": ({"models": {"m": MODELS["m"] | {"layrs": 3}}}, {}, "unknown key 'layrs'; did you mean 'layers'?"),
    "not a map": ({"models": "- a\n"}, {}, "expected a mapping of model names, found list"),
    "time length": (
        {"device_types": {"a": TYPES["a"] | {"model_profiles": {"m": [{**PROFILE, "time_s": [1]}]}}}},
        {},
        "a.model_profiles.m.0.time_s: has 1 values, but layers is 3",
    ),
    "time": (
        {"device_types": {"a": TYPES["a"] | {"model_profiles": {"m": [{**PROFILE, "time_s": [1, -1, 1]}]}}}},
        {},
        "a.model_profiles.m.0.time_s.1: expected a number from 0 to 1e+15, found -1.0",
    ),
    "busy": (
        {"device_types": {"a": TYPES["a"] | {"model_profiles": {"m": [{**PROFILE, "busy": -1}]}}}},
        {},
        "a.model_profiles.m.0.busy: expected a part from 0 to 1, found -1",
    ),
    "host twice": ({"devices": {"a": ["x", "x"]}}, {}, "host 'x' is listed twice (before under a)"),
    "host like a link": ({"devices": {"a": ["x", "x to y"]}}, {}, "expected a host's name, found 'x to y'"),
    "host like a group": (
        {"devices": {"a": ["x + y"]}},
        {},
        "devices.yml:2: a.0: expected a host's name, found 'x + y'",
    ),
    "host like the data host": ({"devices": {"a": ["data host"]}}, {}, "expected a host's name, found 'data host'"),
    "dtype": ({}, {"dtype": "torch.int64"}, "unsupported dtype 'torch.int64'"),
    "batch": ({}, {"batch_size": 0}, "batch size: expected 1 or more"),
    "empty": ({"models": ""}, {}, "models.yml: is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    change, options, message = WRONG[name]
    with pytest.raises(InputError) as raised:
        read(tmp_path, change, **options)
    assert message in str(raised.value)


def test_links_split_hosts_only_where_they_differ(tmp_path: Path) -> None:
    links = {"latency_s": 0.001, "links": [{"from": "a1", "to": "b", "bw_Mbps": 5, "latency_s": 0.1}]}
    pipeline = read(tmp_path, links=links)
    assert [(c.name, c.hosts) for c in pipeline.classes] == [("a", ["a0"]), ("a1", ["a1"]), ("b", ["b0"])]
    assert pipeline.link_mbps == [[100, 100, 10], [100, 100, 5], [10, 5, 10]]
    assert pipeline.link_s == [[0.001, 0.001, 0.001], [0.001, 0.001, 0.1], [0.001, 0.1, 0.001]]


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"links\.0\.to: 'b9' is not a host or type; did you mean 'b'\?"):
        read(tmp_path, links={"links": [{"from": "a", "to": "b9"}]})


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"latency_s": -1.0}, r"links\.yml:1: latency_s: expected a number from 0"),
        ({"latency_s": float("inf")}, "latency_s: expected a number from 0"),
        ({"links": [{"from": "a", "to": "b", "bw_Mbps": -1}]}, r"links\.0\.bw_Mbps: expected a number from 0"),
        ({"links": [{"from": "a0", "to": "a0", "bw_Mbps": 1}]}, "links.0: a0 has no link to itself"),
        (
            {"links": [{"from": "a", "to": "b"}, {"from": "b", "to": "a", "one_way": True}]},
            "links.1: the link from b to a is given twice",
        ),
    ],
)
def test_what_is_wrong_with_links_is_named(tmp_path: Path, links: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, links=links)


def test_a_name_of_a_host_and_of_a_type_tells_no_link(tmp_path: Path) -> None:
    links = {"links": [{"from": "a", "to": "b", "bw_Mbps": 5}]}
    with pytest.raises(InputError, match=r"links\.0\.from: 'a' is a host and a type; give one of them another name"):
        read(tmp_path, {"devices": {"a": ["a", "x"], "b": ["y"]}}, links=links)
    alone = read(tmp_path, {"devices": {"a": ["a"], "b": ["y"]}}, links=links)  # who is all of a type
    assert alone.link_mbps == [[100, 5], [5, 10]]


def test_one_way_links_and_links_within_a_type_are_no_repetition(tmp_path: Path) -> None:
    one_way = [{"from": x, "to": y, "bw_Mbps": 7, "one_way": True} for x, y in ("ab", "ba")]
    pipeline = read(tmp_path, links={"links": [*one_way, {"from": "a", "to": "a", "bw_Mbps": 3}]})
    assert pipeline.link_mbps == [[3, 7], [7, 10]]


def test_neighbours_are_another_form_of_links(tmp_path: Path) -> None:
    """A pair is as fast as its slower direction; what is missing or 0 is no link; hosts alike stay one class."""
    world = {
        "a0": {"b0": {"bw_Mbps": 50}, "a1": {"bw_Mbps": 80}},
        "a1": {"b0": {"bw_Mbps": 50}, "a0": {"bw_Mbps": 70}},
        "b0": {"a0": {"bw_Mbps": 40}, "a1": {"bw_Mbps": 40}},
    }
    pipeline = read(tmp_path, links=world)
    assert [(c.name, c.hosts) for c in pipeline.classes] == [("a", ["a0", "a1"]), ("b0", ["b0"])]
    assert pipeline.link_mbps is not None
    assert (pipeline.link_mbps[0], pipeline.link_mbps[1][0]) == ([70, 40], 40)
    del world["b0"]["a1"]
    apart = read(tmp_path, links=world)
    assert [c.hosts for c in apart.classes] == [["a0"], ["a1"], ["b0"]]
    assert apart.link_mbps == [[0, 70, 40], [70, 0, 0], [40, 0, 0]]


def test_what_is_wrong_with_neighbours_is_named(tmp_path: Path) -> None:
    other = read(tmp_path, links={"a0": {"a9": {"bw_Mbps": 1}}, "b0": None})
    assert "Links of a9 will be skipped: it is not an available host; known: a0, a1, b0" in other.warnings
    with pytest.raises(
        InputError, match=r"links\.yml:3: a0\.b0\.bw_Mbps: expected a number from 0 to 1e\+15, found -1"
    ):
        read(tmp_path, links={"a0": {"b0": {"bw_Mbps": -1}}})
    with pytest.raises(InputError, match="5: expected a name, found 5; write it in quotes"):
        read(tmp_path, links={5: {"b0": {"bw_Mbps": 1}}})
    with pytest.raises(InputError, match="unknown key 'bw'"):
        read(tmp_path, links={"a0": {"b0": {"bw": 1}}})
    with pytest.raises(InputError, match=r"unknown key 'link'; did you mean 'links'\?"):
        read(tmp_path, links={"link": []})


def test_values_are_as_large_as_torch_makes_them() -> None:
    torch = pytest.importorskip("torch")
    sizes = {
        name: torch.empty((), dtype=getattr(torch, name.removeprefix("torch."))).element_size() for name in DTYPE_BYTES
    }
    assert sizes == DTYPE_BYTES
