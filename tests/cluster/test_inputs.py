"""Clusters from words and files: the three forms, and what is wrong with others."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.core.errors import InputError

FILE = """types:
  l4: 8
  h100: {count: 20, gpus_per_server: 8, price_per_hour: 3.5, failure_s: 86400, repair_s: 600}
  a10: 0
order: [h100, l4]
"""


def test_the_three_forms_of_a_cluster(tmp_path: Path) -> None:
    old = parse_cluster("36:0:12", gpus_per_server="4:1:8")
    assert (old.types, old.counts, old.per_server) == (("v100", "p100", "k80"), (36, 0, 12), (4, 1, 8))
    assert old.order == ("v100", "p100", "k80")
    named = parse_cluster("a100=16, my-tpu=8", gpus_per_server="8")
    assert (named.types, named.counts, named.per_server) == (("a100", "my-tpu"), (16, 8), (8, 8))
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    found = parse_cluster(str(path))
    assert (found.types, found.counts, found.order) == (("l4", "h100", "a10"), (8, 20, 0), ("h100", "l4", "a10"))
    assert (found.prices, found.failure_s) == ((None, 3.5, None), (inf, 86400.0, inf))
    present = found.present()
    assert (present.types, present.counts, present.total) == (("h100", "l4"), (20, 8), 28)
    assert present.servers("h100") == [8, 8, 4]


@pytest.mark.parametrize(
    ("cluster", "per_server", "says"),
    [
        ("36:36", "", "expected 3 numbers, v100:p100:k80, found 2"),
        ("36:36:-1", "", "expected v100:p100:k80 such as"),
        ("0:0:0", "", "at least one accelerator"),
        ("a100=x", "", "whole number >= 0, found 'x'"),
        ("a100=2,a100=3", "", "'a100' is given twice"),
        ("a100=2,l4", "", "expected TYPE=NUMBER, found 'l4'"),
        ("a100=2", "l4=2", "the cluster has no 'l4'; known: a100"),
        ("a100=2", "0", "whole number >= 1, found '0'"),
        ("a100=2", "1:1:1", "the cluster has no 'v100'"),
        ("nowhere.yaml", "", "or a file"),
    ],
)
def test_words_that_are_no_cluster(cluster: str, per_server: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_cluster(cluster, gpus_per_server=per_server)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("types: {a100: {count: -1}}", "c.yaml:1: types.a100.count: expected 0 or more, found -1"),
        ("types:\n  a100: {cuont: 1}", "c.yaml:2: types.a100.cuont: unknown key 'cuont'; did you mean 'count'?"),
        ("types: {a100: 1}\norder: [a10]", "c.yaml:2: order.0: expected each type once, found 'a10'; did you mean"),
        ("types: {a100: 1}\norder: [a100, a100]", "c.yaml:2: order.1: expected each type once"),
        ("types: {a100: {count: 1, failure_s: 0}}", "failure_s: expected 1 or more"),
        (
            "types: {a100: {count: 1, failure_s: 1, repair_s: 1e12}}",
            "repair_s: expected at most 1e+08, found 1000000000000",
        ),
        ("types: {a100: 0}", "c.yaml: cluster: expected at least one accelerator"),
        ("[]", "c.yaml"),
    ],
)
def test_files_that_are_no_cluster(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        parse_cluster(str(path))
    assert says in str(error.value)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.integers(1, 9))
def test_no_accelerator_is_lost_in_servers(count: int, size: int) -> None:
    spec = parse_cluster(f"x={count},y=1", gpus_per_server=f"x={size}")
    sizes = spec.servers("x")
    assert sum(sizes) == count
    assert all(0 < each <= size for each in sizes)
    assert len(sizes) == -(-count // size)


OF_SCENARIO = ("cluster", "per_server", "entities", "jobs", "window", "throughputs", "rates", "prices")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"cluster": {"types": {"v100": {"count": 1, "gpus_per_server": 10**30}}}},
            "gpus_per_server: expected at most",
        ),
        ({"per_server": str(10**30)}, "gpus per server .* expected at most 10,000,000"),
        ({"weight": 1e30}, r"trace\[0\]: weight: expected a number <= 1e\+06, found '1e\+30'"),
        ({"weight": 1e-30}, r"trace\[0\]: weight: expected a number >= 1e-06"),
        ({"duration_s": 1e308}, r"trace\[0\]: duration_s: expected a number <= 1e\+12"),
        ({"duration_s": 1e11}, r"trace: job 0: expected at most 1e\+08 s of work"),
        ({"duration_s": 1e-30}, r"trace: job 0: expected no work, or 1e-09 s of it or more"),
        ({"due_s": 5e-324}, "trace: job 0: due_s: expected 0, or 1e-09 or more"),
        ({"jobs": 10**9}, "jobs 1e.09: expected 1 or more, at most 1e.07"),
        ({"window": (0, 10**15)}, "window .* up to 10,000,000"),
        (
            {"throughputs": [{"model": "A3C", "type": "v100", "steps_per_s": 1e-30}]},
            "throughputs: A3C, width 1, on v100: expected 0, or 1e-09 to 1e.12 steps per second, found 1e-30",
        ),
        (
            {"rates": {"rates": [{"kind": "A3C", "device": "v100", "rate": 1e30, "unit": "steps/s"}]}},
            "rates: A3C, width 1, on v100: expected 0, or 1e-09 to 1e.12 steps per second, found 1e.30",
        ),
        ({"prices": [{"time_s": 0, "type": "v100", "price": 5e-324}]}, "price: expected 0, or a number >= 1e-09"),
        ({"prices": [{"time_s": 0, "type": "v100", "price": 1e30}]}, "price: expected a number <= 1e.12"),
        (
            {"cluster": {"types": {"v100": {"count": 1, "price_per_hour": 1e-30}}}},
            "price_per_hour: expected 0, or 1e-09 or more",
        ),
        (
            {"cluster": {"types": {"v100": {"count": 8, "failure_s": 1, "repair_s": 0}}}},
            "v100: expected at most 10,000,000 failures in two years, found a failure_s of 1 for 8 servers",
        ),
        ({"width": 1e30}, r"trace\[0\]: width: expected a whole number <= 10000000"),
        (
            {"entity": "a", "entities": {"a": 1e30}},
            "the weight of entity 'a' 1e\\+30: expected more than 0, 1e-06 or more, at most 1e\\+06",
        ),
    ],
)
def test_numbers_that_no_run_could_cope_with_are_refused(fields: dict[str, Any], message: str) -> None:
    scenario = {name: fields[name] for name in OF_SCENARIO if name in fields}
    row = {"arrival_s": 0, "model": "A3C", "duration_s": 60} | {k: v for k, v in fields.items() if k not in scenario}
    with pytest.raises(InputError, match=message):
        load(**{"cluster": "v100=1", "trace": [row]} | scenario)


@pytest.mark.parametrize(
    "fields", [{"entities": {"a": 1e30}}, {"jobs": 10**9}, {"lam_s": 1e30}, {"window": (0, 10**15)}]
)
def test_a_scenario_that_commands_made_is_looked_at_too(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        load(Scenario(**fields))
