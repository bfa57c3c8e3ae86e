"""Made-up requests and systems: reproducible, valid, and distributed as promised."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.workflow.choices import ArrivalPattern, FileFormat
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.fit import check_fit, make_pool
from dovetail.workflow.inputs.generate import Statistics, draw_s, generate
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.inputs.synthetic import synthetic_system, thrash_system
from dovetail.workflow.inputs.system import Model, System
from dovetail.workflow.inputs.write import write_requests

ARRIVALS: tuple[ArrivalPattern, ...] = ("poisson", "uniform", "bursty")
EXAMPLES = Path(__file__).parents[2] / "examples"


def system_of(config: dict[str, Any], folder: Path) -> System:
    file = folder / "system.json"
    file.write_bytes(msgspec.json.encode(config))
    return read_system(file)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return system_of(synthetic_system(3), tmp_path)


def model(**fields: Any) -> Model:
    return Model(memory_gb=1, gpus_required=1, load_time_seconds=1, **fields)


# --- reproducible -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "yaml", "jsonl"])
def test_the_same_seed_gives_the_same_bytes_in_another_process(
    format: FileFormat, system: System, tmp_path: Path
) -> None:
    given_here: dict[str, Any] = {"requests": 30, "duration": 2.0, "seed": 5, "arrivals": "bursty"}
    generate(system, **given_here).write(tmp_path / "here", format)
    program = (
        "import sys, json; from pathlib import Path; from dovetail.workflow import generate\n"
        "folder, format, given = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])\n"
        "generate(folder / 'system.json', **given).write(folder / 'there', format)\n"
    )
    there = [sys.executable, "-c", program, str(tmp_path), format, json.dumps(given_here)]
    subprocess.run(there, check=True, env={**os.environ, "PYTHONHASHSEED": "12345"})
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_another_seed_gives_other_requests(system: System) -> None:
    one, two = (list(generate(system, requests=5, rate=1, seed=seed)) for seed in (1, 2))
    assert one != two


def test_a_shorter_run_at_the_same_rate_is_the_beginning_of_a_longer_one(system: System) -> None:
    short, long = (list(generate(system, requests=n, rate=10, seed=1)) for n in (7, 90))
    assert short == long[:7]


def test_a_synthetic_system_depends_on_its_seed_alone() -> None:
    assert synthetic_system(4) == synthetic_system(4)
    assert synthetic_system(4) != synthetic_system(5)


# --- valid --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    models=st.integers(1, 9),
    workflows=st.integers(1, 6),
    max_width=st.sampled_from([1, 2, 4, 8]),
    max_nodes=st.integers(1, 12),
    arrivals=st.sampled_from(["poisson", "uniform", "bursty"]),
)
def test_every_synthetic_system_and_its_requests_are_valid(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    models: int,
    workflows: int,
    max_width: int,
    max_nodes: int,
    arrivals: ArrivalPattern,
) -> None:
    folder = tmp_path_factory.mktemp("synthetic")
    config = synthetic_system(seed, models=models, workflows=workflows, max_width=max_width, max_nodes=max_nodes)
    system = system_of(config, folder)
    pool = make_pool(system, None)
    check_fit(system, pool, folder)
    assert system.faults == {}
    assert len(system.models) == models
    assert len(system.workflows) == workflows
    assert all(1 <= len(workflow.nodes) <= max_nodes for workflow in system.workflows.values())
    rows = list(generate(system, requests=12, rate=30, seed=seed, arrivals=arrivals))
    for row in rows:
        nodes = [node.id for node in system.workflows[row["workflow_id"]].nodes]
        assert list(row["node_execution_times"]) == nodes
        assert all(time > 0 for time in row["node_execution_times"].values())
    write_requests(rows, folder / "requests.json", "json")
    read = Requests(folder / "requests.json", system, "online")
    assert len(read) == 12
    assert list(read.estimates) == ["given"]
    assert not read.warnings


@pytest.mark.parametrize("format", ["json", "yaml", "jsonl"])
def test_what_is_written_is_read_as_it_was(format: FileFormat, system: System, tmp_path: Path) -> None:
    file = tmp_path / "deep" / f"requests.{format}"
    rows = list(generate(system, requests=20, duration=3, seed=1))
    assert write_requests(iter(rows), file, format, {"seed": 1}) == 20
    if format == "jsonl":
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    else:
        data = json.loads(file.read_text()) if format == "json" else yaml.safe_load(file.read_text())
        assert data == {"metadata": {"seed": 1}, "requests": rows}
    assert [work.job for _, work in Requests(file, system, "online").arrivals()] == [r["request_id"] for r in rows]


@pytest.mark.parametrize(("format", "empty"), [("json", {"requests": []}), ("yaml", {"requests": []}), ("jsonl", None)])
def test_no_requests_make_an_empty_but_valid_file(
    format: FileFormat, empty: Any, system: System, tmp_path: Path
) -> None:
    file = tmp_path / "requests"
    assert write_requests(generate(system, requests=0, duration=20, seed=1), file, format) == 0
    assert yaml.safe_load(file.read_text()) == empty


def test_ids_have_digits_enough_to_sort(system: System) -> None:
    rows = generate(system, requests=123456, rate=1, seed=1)
    assert next(iter(rows))["request_id"] == "req_000001"
    assert next(iter(generate(system, requests=3, rate=1, seed=1)))["request_id"] == "req_0001"


def test_options_come_from_the_model_and_only_those_a_node_lists(tmp_path: Path) -> None:
    config = synthetic_system(1, models=1, workflows=1, max_nodes=1)
    (name,) = config["models"]
    config["models"][name]["config"] = {"temperature": [0.1, 0.9], "steps": [1], "fixed": "always"}
    config["workflows"]["workflow_1"]["nodes"][0]["config_options"] = ["temperature", "fixed", "unknown"]
    rows = list(generate(system_of(config, tmp_path), requests=40, rate=1, seed=1))
    drawn = [row["node_configs"]["step_1"] for row in rows]
    assert all(set(options) == {"temperature", "fixed"} and options["fixed"] == "always" for options in drawn)
    assert {options["temperature"] for options in drawn} == {0.1, 0.9}


def test_the_examples_are_valid() -> None:
    for name in ("system_config.yaml", "mixed_gpus.yaml"):
        system = read_system(EXAMPLES / name)
        pool = make_pool(system, system.gpus or "4")
        check_fit(system, pool, EXAMPLES / name)
        assert system.faults == {}
        read = Requests(EXAMPLES / "workflow_requests.yaml", system, "online")
        assert len(read) == 20
        assert not read.warnings


# --- distributed as promised --------------------------------------------------------------------------


def _gaps(system: System, arrivals: ArrivalPattern, requests: int) -> list[float]:
    rows = generate(system, requests=requests, duration=requests / 60, seed=11, arrivals=arrivals)
    times = [_seconds(row["timestamp"]) for row in rows]
    return [b - a for a, b in pairwise(times)]


def _seconds(timestamp: str) -> float:
    return (datetime.fromisoformat(timestamp) - datetime(2024, 1, 1)).total_seconds()


@pytest.mark.parametrize(("arrivals", "spread"), [("poisson", 1.0), ("bursty", 3.5)])
def test_the_mean_gap_is_the_duration_over_the_requests(
    system: System, arrivals: ArrivalPattern, spread: float
) -> None:
    gaps = _gaps(system, arrivals, 10_000)
    mean = math.fsum(gaps) / len(gaps)
    assert abs(mean - 1.0) < 4 * spread / math.sqrt(len(gaps))


def test_poisson_gaps_are_exponential_and_bursty_ones_are_not(system: System) -> None:
    short = {arrivals: sum(gap < math.log(2) for gap in _gaps(system, arrivals, 10_000)) for arrivals in ARRIVALS}
    assert abs(short["poisson"] - 5000) < 4 * 50  # half of all gaps are under the median, log 2
    assert short["bursty"] > 8500
    assert short["uniform"] == 0


def test_uniform_arrivals_are_evenly_spaced(system: System) -> None:
    rows = generate(system, requests=4, duration=0.2, seed=1, arrivals="uniform")
    assert [_seconds(row["timestamp"]) for row in rows] == [0, 3, 6, 9]


def test_workflows_are_drawn_by_weight(system: System) -> None:
    weights = {"workflow_1": 3.0, "workflow_3": 1.0, "workflow_2": 0.0}
    drawn = generate(system, requests=4000, rate=60, seed=1, workflows=weights).statistics().workflows
    assert set(drawn) == {"workflow_1", "workflow_3"}
    assert abs(drawn["workflow_1"] - 3000) < 4 * math.sqrt(4000 * 0.75 * 0.25)


def _mean_and_std(of: Model, draws: int = 4000) -> tuple[float, float]:
    rng = SeededRandom(1)
    drawn = [draw_s(of, rng) for _ in range(draws)]
    mean = math.fsum(drawn) / draws
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in drawn) / draws)


@pytest.mark.parametrize(
    ("fields", "mean", "std"),
    [
        ({"tokens_per_second": 50, "token_mean": 500, "token_std": 50}, 10, 1),
        ({"tokens_per_second": 50, "token_mean": 500, "inference_time_mean": 99}, 10, 2),
        ({"type": "audio", "tokens_per_second": 50, "token_mean": 500, "inference_time_mean": 3}, 3, 0.6),
        ({"type": "audio", "inference_time_mean": 3, "inference_time_std": 0.3}, 3, 0.3),
        ({"type": "anything", "tokens_per_second": 50, "token_mean": 500}, 10, 2),
        ({"tokens_per_second": 50}, 20, 4),
        ({"inference_time_mean": 0.004}, 0.004, 0.0008),
        ({}, 10, 2),
    ],
)
def test_node_times_follow_the_rule(fields: dict[str, Any], mean: float, std: float) -> None:
    found_mean, found_std = _mean_and_std(model(**fields))
    assert found_mean == pytest.approx(mean, rel=0.015)
    assert found_std == pytest.approx(std, rel=0.05)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["llm", "image_generation", "other"]),
    rate=st.none() | st.floats(-10, 0) | st.floats(1e-6, 1e9),
    tokens=st.none() | st.floats(-10, 1e6),
    seconds=st.none() | st.floats(-10, 1e6),
    std=st.none() | st.floats(0, 1e6),
)
def test_no_time_is_zero_or_negative(
    seed: int, kind: str, rate: float | None, tokens: float | None, seconds: float | None, std: float | None
) -> None:
    of = model(
        type=kind,
        tokens_per_second=rate,
        token_mean=tokens,
        token_std=std,
        inference_time_mean=seconds,
        inference_time_std=std,
    )
    rng = SeededRandom(seed)
    assert all(0 < draw_s(of, rng) < math.inf for _ in range(20))


def test_an_llm_makes_whole_tokens_and_at_least_one() -> None:
    rng, wide = SeededRandom(1), model(tokens_per_second=4, token_mean=3, token_std=9)
    tokens = [4 * draw_s(wide, rng) for _ in range(200)]
    assert min(tokens) == 1
    assert all(count.is_integer() for count in tokens)


def test_statistics_count_gpu_hours_on_the_way(tmp_path: Path) -> None:
    config = synthetic_system(1, models=1, workflows=1, max_nodes=1)
    (name,) = config["models"]
    config["models"][name]["gpus_required"] = 4
    system = system_of(config, tmp_path)
    rows = list(generate(system, requests=50, rate=1, seed=1))
    counted = Statistics()
    assert list(counted.count(system, iter(rows))) == rows
    hours = 4 * math.fsum(row["node_execution_times"]["step_1"] for row in rows) / 3600
    assert counted.gpu_hours == {name: pytest.approx(hours)}
    assert (counted.requests, counted.nodes, counted.workflows) == (50, 50, {"workflow_1": 50})
    assert counted.span_s == _seconds(rows[-1]["timestamp"]) - _seconds(rows[0]["timestamp"])


def test_the_thrashing_system_has_more_models_than_gpus_and_loads_longer_than_it_runs(tmp_path: Path) -> None:
    system = system_of(thrash_system(), tmp_path)
    assert len(system.models) > len(make_pool(system, None))
    for one in system.models.values():
        switch_s = 2 * one.memory_gb / system.costs.pcie_gb_s + system.costs.overhead_s
        assert switch_s > 2 * one.estimate_s()[0]


# --- streamed, whole, refused -------------------------------------------------------------------------


def test_a_million_requests_are_not_made_before_they_are_asked_for(system: System) -> None:
    rows = generate(system, requests=10**9, rate=1, seed=1)
    assert [row["request_id"] for row in islice(rows, 2)] == ["req_0000000001", "req_0000000002"]


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "requests.json"
    file.write_text("old")

    def broken() -> Iterator[dict[str, Any]]:
        yield {"request_id": "a"}
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        write_requests(broken(), file, "json")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_takes_the_place_of_the_old_one_at_once(tmp_path: Path) -> None:
    file, reader = tmp_path / "requests.jsonl", tmp_path / "reader"
    file.write_text("old")
    reader.hardlink_to(file)  # sees what is written into the old file, as one that has it open would
    write_requests([{"request_id": "a"}], file, "jsonl")
    assert (file.read_text(), reader.read_text()) == ('{"request_id":"a"}\n', "old")


def test_writing_to_a_device_does_not_replace_it() -> None:
    write_requests([{"request_id": "a"}], Path("/dev/null"), "jsonl")
    assert not Path("/dev/null").is_file()


def test_a_folder_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be written"):
        write_requests([], tmp_path, "json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"requests": -1}, "--requests -1: expected 0 or more"),
        ({"requests": 2.5}, "--requests 2.5: expected a whole number"),
        ({"duration": 3.0}, "either the duration or the rate"),
        ({"rate": 0.0}, "--rate 0.0: expected a positive number"),
        ({"rate": "fast"}, "--rate fast: expected a positive number"),
        ({"rate": math.nan}, "--rate nan: expected a positive number"),
        ({"rate": None, "duration": -2.0}, "--duration -2.0: expected a positive number"),
        ({"arrivals": "burst"}, "--arrivals 'burst': expected poisson or uniform or bursty"),
        ({"start": None}, "--start None: not a time"),
        ({"workflows": ["workflow_1"]}, "expected names of workflows and their weights"),
        ({"workflows": {"workflow_1": "much"}}, "--workflow workflow_1: expected a weight >= 0"),
        ({"start": "yesterday"}, "--start yesterday: not a time"),
        ({"workflows": {"workflow1": 1.0}}, "--workflow workflow1: not a workflow; did you mean 'workflow_1'"),
        ({"workflows": {"workflow_1": -1.0}}, "--workflow workflow_1: expected a weight >= 0"),
        ({"workflows": {"workflow_1": 0.0}}, "no workflow to request"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_request(
    changed: dict[str, Any], message: str, system: System
) -> None:
    arguments = {"requests": 3, "rate": 1.0, "seed": 1} | changed
    with pytest.raises(InputError, match=message):
        generate(system, **arguments)


def test_a_duration_beyond_the_calendar_is_an_input_error(system: System) -> None:
    with pytest.raises(InputError, match="after the year 9999"):
        list(generate(system, requests=3, duration=1e12, seed=1))
