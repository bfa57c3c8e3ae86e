"""The level from Python: dicts in the place of files, methods of one's own, and results that show themselves."""

from __future__ import annotations

import json
from inspect import signature
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from msgspec.structs import replace

import dovetail
from dovetail import InputError, pipeline
from dovetail.testing.pipeline import random_pipeline

TIMES = [0.1, 0.2, 0.3, 0.4]
MODELS = {"m": {"layers": 4, "mem_MB": [1.0] * 4, "parameters_in": 10, "parameters_out": [1000] * 4}}
TYPES = {
    "fast": {
        "bw_Mbps": 1000,
        "mem_MB": 64,
        "model_profiles": {"m": [{"batch_size": 8, "dtype": "torch.float32", "time_s": TIMES}]},
    },
    "slow": {
        "bw_Mbps": 100,
        "mem_MB": 2.5,
        "model_profiles": {"m": [{"batch_size": 8, "dtype": "torch.float32", "time_s": [3 * t for t in TIMES]}]},
    },
}
DEVICES = {"fast": ["f0", "f1"], "slow": ["s0"]}


@pytest.fixture(scope="module")
def problem() -> pipeline.Pipeline:
    return pipeline.load(MODELS, TYPES, DEVICES)


def test_dicts_are_as_good_as_files(tmp_path: Path, problem: pipeline.Pipeline) -> None:
    links = {"links": [{"from": "f0", "to": "f1", "bw_Mbps": 10}]}
    paths = {"models": MODELS, "device_types": TYPES, "devices": DEVICES, "links": links}
    for name, content in paths.items():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(content))
    files = [tmp_path / "models.yml", str(tmp_path / "device_types.yml"), tmp_path / "devices.yml"]
    assert pipeline.load(*files, model="m") == problem
    assert pipeline.load(*files, links=tmp_path / "links.yml") == pipeline.load(MODELS, TYPES, DEVICES, links=links)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": None}, "models: expected a path, dicts, lists or a frame, found None"),
        ({"models": {"m": {"layers": 4}}}, "models: m: missing key `mem_MB`"),
        ({"models": MODELS | {"n": MODELS["m"]}}, "models: has 2 models: name one; known: m, n"),
        ({"devices": {"fast": ["f0", "f0"]}}, "devices: fast.1: host 'f0' is listed twice (before under fast)"),
        ({"device_types": {"fast": 3}}, "device_types: fast: expected object, found int"),
        ({"batch_size": "8"}, "batch_size: expected int, found str"),
        ({"batch_size": 2.5}, "batch_size: expected int, found float"),
        ({"batch_size": 0}, "batch size: expected 1 or more, found 0"),
        ({"batch_size": 10**20}, "batch size: expected at most 1e+15, found 100000000000000000000"),
        ({"buffers_in": -1}, "buffers in: expected 0 or more, found -1"),
        ({"dtype": "float3"}, "unsupported dtype 'float3'"),
        ({"model": 3}, "model: expected str | null, found int"),
        ({"links": 3}, "links: expected a path, dicts, lists or a frame, found 3"),
    ],
)
def test_what_cannot_be_loaded_is_told(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"models": MODELS, "device_types": TYPES, "devices": DEVICES} | change
    with pytest.raises(InputError) as told:
        pipeline.load(**given)
    assert message.lower() in str(told.value).lower()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"latency_cap_s": "1"}, "latency_cap_s: expected float | null, found str"),
        ({"max_stages": 1.5}, "max_stages: expected int | null, found float"),
        ({"replicas": 0}, "replicas: expected a positive number, found 0"),
        ({"data_mbps": float("inf")}, "--data-mbps: expected at most 1e+15, found inf"),
        ({"link_bits": (64,)}, "--link-bits: expected 2 to 16, or 32 for values as they are; found [64]"),
        ({"link_bits": (32, 24)}, "found [32, 24]"),
        ({"link_bits": (1,)}, "found [1]"),
        ({"cuts": (9,)}, "m has layers 1 to 4"),
        (
            {"objective": "pace"},
            "energy, money, found 'pace'",
        ),
        ({"microbatches": "8"}, "microbatches: expected int, found str"),
        ({"slack": None}, "slack: expected float, found null"),
        ({"method": "auctoin"}, "did you mean 'auction'?"),
        ({"method": None}, "method: expected a name, file.py:name or a function of your own, found None"),
        ({"method": "nowhere.py:mine"}, "nowhere.py: no such file"),
        ({"method": lambda _: 3}, "method <lambda>: expected a plan, or stages: a host of f0, f1, s0"),
        ({"method": lambda _: [("f0", 1, 3)]}, "expected stages for layers 1 to 4, found them up to 3"),
        ({"method": lambda _: [("f0", 1, 3), ("f0", 4, 4)]}, "does not go on from layer 3 on a host that is free"),
        ({"method": lambda _: [("f9", 1, 4)]}, "found ('f9', 1, 4)"),
        ({"method": lambda _: [("f0", 1, 4)], "objective": "latency"}, "expected method exact, found <lambda>"),
    ],
)
def test_what_cannot_be_asked_of_a_plan_is_told(
    problem: pipeline.Pipeline, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as told:
        pipeline.plan(problem, **asked)
    assert message in str(told.value)


@pytest.mark.parametrize("given", [None, [], "models.yml", [3]])
def test_what_is_no_problem_is_told(given: Any) -> None:
    for ask in (pipeline.plan, pipeline.front):
        with pytest.raises(InputError, match=r"problem: expected what pipeline\.load gives"):
            ask(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mem_mib": [1.0]}, "problem: mem_mib: expected 4 values, found 1"),
        ({"dtype": "float32"}, "problem: dtype: expected one of torch.float32, "),
        ({"batch_size": 0}, "problem: batch_size: expected 1 or more, found 0"),
        ({"link_mbps": [[1.0]]}, "problem: link_mbps: expected 2 rows, found 1"),
        ({"cut_bytes": ["x"] * 5}, "problem.cut_bytes.0: expected int, found str"),
        ({"mem_mib": object()}, "problem: holds what is no number or text"),
        ({"mem_mib": [1.0, 1.0, 1.0, nan]}, "problem: mem_mib.3: expected a number from 0 to 1e+15, found nan"),
    ],
)
def test_what_is_wrong_with_a_problem_made_by_hand_is_named(
    problem: pipeline.Pipeline, change: dict[str, Any], message: str
) -> None:
    for ask in (pipeline.plan, pipeline.front):
        with pytest.raises(InputError) as told:
            ask(replace(problem, **change))
        assert message in str(told.value)


def test_arrays_are_as_good_as_lists(problem: pipeline.Pipeline) -> None:
    classes = [replace(c, time_s=np.array(c.time_s)) for c in problem.classes]
    given = replace(problem, mem_mib=np.array(problem.mem_mib), classes=classes)
    assert pipeline.plan(given) == pipeline.plan(problem)


def test_there_is_no_plan_and_why(problem: pipeline.Pipeline) -> None:
    with pytest.raises(pipeline.InfeasibleError) as told:
        pipeline.plan(problem, latency_cap_s=0.5)
    assert told.value.reasons == ["--latency-cap-s 0.5 leaves no plan: the least latency possible is 1 s"]
    assert isinstance(told.value, dovetail.DovetailError)
    assert told.value.exit_code == 1
    with pytest.raises(pipeline.InfeasibleError, match="s0 has no room"):
        pipeline.plan(problem, method=lambda _: [("s0", 1, 4)])
    with pytest.raises(pipeline.InfeasibleError):
        pipeline.front(problem, latency_cap_s=0.5)


def halves(problem: pipeline.Pipeline, first: str = "f0") -> list[tuple[str, int, int]]:
    """Half of the layers each."""
    other = next(host for host in problem.hosts if host != first)
    middle = problem.layers // 2
    return [(first, 1, middle), (other, middle + 1, problem.layers)]


def test_a_method_of_ones_own(tmp_path: Path, problem: pipeline.Pipeline) -> None:
    found = pipeline.plan(problem, method=halves, option={"first": "f1"})
    assert [(stage.host, stage.layers) for stage in found.stages] == [("f1", (1, 2)), ("f0", (3, 4))]
    assert (found.method, found.optimal) == ("halves", False)
    assert found.bottleneck_s == pytest.approx(0.7)
    assert found.value == found.bottleneck_s >= pipeline.plan(problem).bottleneck_s
    assert "(by halves): compute on f0 (layers 3 to 4)" in repr(found)
    assert pipeline.simulate(found).check().valid
    (tmp_path / "mine.py").write_text("def mine(given, host='f0'):\n    return [(host, 1, given.layers)]\n")
    single = pipeline.plan(problem, method=f"{tmp_path / 'mine.py'}:mine", option={"host": "f1"})
    assert single.hosts == ["f1"]
    with pytest.raises(InputError, match="has no such option"):
        pipeline.plan(problem, method=f"{tmp_path / 'mine.py'}:mine", option={"hosts": "f1"})


def test_of_several_problems_the_fastest_plan_is_given(problem: pipeline.Pipeline) -> None:
    slower = pipeline.load(MODELS, {"slow": TYPES["slow"] | {"mem_MB": 64}}, {"slow": ["s0"]})
    assert pipeline.plan([slower, problem]) == pipeline.plan(problem)


def test_a_plan_may_be_a_file_or_a_dict(tmp_path: Path, problem: pipeline.Pipeline) -> None:
    made = pipeline.plan(problem)
    path = made.save(tmp_path / "plan.json")
    assert pipeline.read_plan(str(path)) == pipeline.read_plan(json.loads(path.read_text())) == made
    assert yaml.safe_load(made.save(tmp_path / "plan.yml").read_text())[0] == {
        made.hosts[0]: list(made.stages[0].layers)
    }
    assert pipeline.simulate(path).metrics == pipeline.simulate(made).metrics
    with pytest.raises(InputError, match="same file as the input"):
        pipeline.simulate(path, journal=path)
    broken = json.loads(path.read_text()) | {"batch_size": "8"}
    with pytest.raises(InputError, match="plan: batch_size: expected int, found str"):
        pipeline.simulate(broken)
    with pytest.raises(InputError, match="buffers: expected int, found str"):
        pipeline.simulate(made, buffers="2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="plan: expected a path, dicts"):
        pipeline.simulate(None)


def test_results_show_themselves(problem: pipeline.Pipeline) -> None:
    made = pipeline.plan(problem)
    assert repr(made).splitlines()[0].startswith("<Plan m in 3 stages: ")
    assert "(optimal)" in repr(made)
    assert "<table>" in made._repr_html_()
    assert list(made.frame()["last"]) == [stage.layers[1] for stage in made.stages]
    assert made.rates.per_s("m", made.chain, "items/s") == made.throughput_items_s
    found = pipeline.front(problem)
    assert repr(found).startswith(f"<Front m: {found.found} of {found.found} plans. No other plan is missing.>")
    assert list(found.frame()["devices"]) == [len(point.hosts) for point in found.points]
    curves = pipeline.curves(made)
    assert curves.plot("links").svg.startswith("<svg")
    assert curves._repr_html_().count("<svg") == 2
    with pytest.raises(InputError, match="expected devices or links"):
        curves.plot("hosts")  # type: ignore[arg-type]
    changes = pipeline.what_if(made)
    assert changes.best("bottleneck_s")["change"] == 1


def test_a_simulation_can_be_asked_everything(tmp_path: Path, problem: pipeline.Pipeline) -> None:
    made = pipeline.plan(problem)
    run = pipeline.simulate(made, microbatches=12, journal=tmp_path / "run.jsonl")
    assert run.journal == tmp_path / "run.jsonl"
    assert run.plan == made
    assert run.gap == pytest.approx(0.0)
    assert run.metrics["makespan_s"] == run.bound == pytest.approx(made.latency_s + 11 * made.bottleneck_s)
    assert run.check().valid
    assert len(run.frame()["job"]) == 12
    assert len(run.frame("tasks")["task"]) == 12 * (2 * len(made.stages) - 1)
    assert "microbatch 3" in str(run.explain("microbatch 3"))
    assert run.plot().svg.startswith("<svg")
    assert run.replay().steps > 0
    assert "makespan" in repr(run)
    assert dovetail.read_journal(run.journal).metrics["makespan_s"] == run.metrics["makespan_s"]
    with pytest.raises(InputError, match="was not recorded"):
        _ = pipeline.simulate(made, journal=False).journal


def test_random_problems_are_described() -> None:
    assert repr(random_pipeline(0)).startswith("<Pipeline random: ")


JUNK = [
    None,
    -1,
    0,
    2.5,
    float("nan"),
    True,
    "x",
    "",
    b"x",
    [],
    ["x"],
    [None],
    {},
    {"x": 1},
    {1: 2},
    object(),
    (1, "a"),
    {3},
]
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "load": (pipeline.load, {"models": MODELS, "device_types": TYPES, "devices": DEVICES}),
    "plan": (pipeline.plan, {"problem": pipeline.load(MODELS, TYPES, DEVICES)}),
    "front": (pipeline.front, {"problem": pipeline.load(MODELS, TYPES, DEVICES), "points": 3}),
    "what_if": (pipeline.what_if, {"plan": pipeline.plan(pipeline.load(MODELS, TYPES, DEVICES))}),
    "curves": (pipeline.curves, {"plan": pipeline.plan(pipeline.load(MODELS, TYPES, DEVICES))}),
    "simulate": (
        pipeline.simulate,
        {"plan": pipeline.plan(pipeline.load(MODELS, TYPES, DEVICES)), "microbatches": 2, "journal": False},
    ),
    "run": (
        pipeline.run,
        {"plan": pipeline.plan(pipeline.load(MODELS, TYPES, DEVICES)), "model": "nowhere.py:none", "emulate": True},
    ),
    "profile": (pipeline.profile, {"model": "nowhere.py:none"}),
    "convert": (pipeline.convert, {"input": "nowhere.yml"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_whatever_is_given_the_answer_is_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Junk in the place of any argument is taken, or refused with a sentence of ours."""
    if name in ("run", "profile"):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    ask, good = CALLS[name]
    refused, wrong = 0, []
    for keyword in signature(ask).parameters:
        if keyword in ("progress", "notice", "force", "keep_outputs", "clip", "shape_links", "emulate"):
            continue  # what is called, or only asked whether it is so
        for junk in JUNK:
            try:
                ask(**(good | {keyword: junk}))
            except dovetail.DovetailError:
                refused += 1
            except Exception as error:
                wrong.append(f"{name}({keyword}={junk!r}): {type(error).__name__}: {error}")
    assert wrong == []
    assert refused > 5
