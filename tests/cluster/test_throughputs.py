"""Throughputs: every file form gives the same numbers, guesses are sane, and what is wrong is said with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.throughputs import (
    RateEntry,
    from_rates,
    rates_at,
    read_throughputs,
    reference_type,
    table,
    with_widths,
)
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.core.errors import InputError
from dovetail.core.rates import Rate, RateTable

OLD = {
    "l4": {
        "('LM', 1)": {"null": 2.0, "('LM', 1)": [1.5, 1.5], "('GAN', 1)": [1.0, 0.25]},
        "('GAN', 1)": {"null": 0.5},
        "('LM', 2)": {"null": 3.5},
    },
    "h100": {"('LM', 1)": {"null": 9.0}, "('GAN', 1)": {"null": 0}},
    "l4_unconsolidated": {"('LM', 1)": {"null": 2.0}, "('LM', 2)": {"null": 2.5}},
}


def written(folder: Path, content: object, name: str = "rates.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_old_json_is_read_into_arrays(tmp_path: Path) -> None:
    found = read_throughputs(written(tmp_path, OLD))
    assert found.types == ("l4", "h100")
    assert found.kinds == [("LM", 1), ("GAN", 1), ("LM", 2)]
    assert found.alone.tolist() == [[2.0, 9.0], [0.5, 0.0], [3.5, 0.0]]
    assert found.spread.tolist() == [[2.0, 9.0], [0.5, 0.0], [2.5, 0.0]]  # not known: as in one server
    assert found.pairs is not None
    assert found.pairs[0, 1, 0] == 1.0
    assert found.pairs[1, 0, 0] == 0.25  # the second number, where the other job has no entry of its own
    assert found.pairs[0, 0, 0] == 1.5
    assert found.pairs[0, 2].tolist() == [0.0, 0.0]


def test_the_measured_file_has_what_the_old_system_had(measured: Throughputs) -> None:
    assert measured.types == ("k80", "p100", "v100")
    assert len(measured.kinds) == 83
    assert measured.pairs is not None
    singles = [k for k, (_, width) in enumerate(measured.kinds) if width == 1]
    zeros = (measured.pairs[np.ix_(singles, singles)] == 0).sum(axis=(0, 1))
    assert dict(zip(measured.types, zeros.tolist(), strict=True)) == {"v100": 40, "p100": 20, "k80": 87}
    wide = [k for k, (_, width) in enumerate(measured.kinds) if width > 1]
    assert not measured.pairs[wide].any()
    assert (measured.spread != measured.alone).any()
    k80 = measured.types.index("k80")
    at = measured.index()["ResNet-50 (batch size 64)", 2]
    assert measured.spread[at, k80] == measured.alone[at, k80] > 0  # not in the file


def test_pairs_are_those_that_the_old_system_read(traces: Path, golden: Path) -> None:
    file = traces / "gavel/simulation_throughputs.json"
    exact = read_throughputs(file)
    assert exact.pairs is not None
    index, compared = exact.index(), 0
    for path in sorted((golden / "cluster/policy_calls").glob("*packed*.gz")):
        with gzip.open(path, "rt") as lines:
            call = json.loads(next(lines))
        kinds = {job: index[model, width] for job, (model, width) in call["job_type"].items()}
        for rows, rates in call["state"]["throughputs"].items():
            for name, values in rates.items() if "(" in rows else ():
                a, b = (kinds[part.strip()] for part in rows.strip("()").split(","))
                t = exact.types.index(name)
                assert values == [exact.pairs[a, b, t], exact.pairs[b, a, t]]
                compared += 1
    assert compared > 100


def test_a_table_by_hand_in_csv_and_yaml(tmp_path: Path) -> None:
    csv = written(tmp_path, "model,type,steps_per_s,width,beside\nLM,l4,2,,\nLM,l4,7,4,\nLM,l4,1.5,,LM\n", "rates.csv")
    yaml = written(
        tmp_path,
        "throughputs:\n- {model: LM, type: l4, steps_per_s: 2}\n- {model: LM, type: l4, steps_per_s: 7, width: 4}\n"
        "- {model: LM, type: l4, steps_per_s: 1.5, beside: LM}\n",
        "rates.yaml",
    )
    for path in (csv, yaml):
        found = read_throughputs(path)
        assert found.alone.tolist() == [[2.0], [7.0]]
        assert found.pairs is not None
        assert found.pairs[0, 0, 0] == 1.5


def test_rates_of_the_levels_meeting_table_are_steps_of_a_reference_second(tmp_path: Path) -> None:
    rates = RateTable(
        [Rate("LM", "l4", 0.5), Rate("LM", "h100", 3.0, source="estimated"), Rate("LM", "l4", 0.4, 1, "LM")]
    )
    found = from_rates(rates, {"LM": 10.0})
    assert found.alone.tolist() == [[5.0, 30.0]]
    assert found.pairs is not None
    assert found.pairs[0, 0].tolist() == [4.0, 0.0]
    assert found.source == "estimated"
    path = tmp_path / "rates.json"
    rates.write(path)
    assert read_throughputs(path).alone.tolist() == [[0.5, 3.0]]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "model,type,steps_per_s\nLM,l4,fast\n", ":2: steps_per_s: expected a number, found 'fast'"),
        ("a.csv", "model,type,steps_per_s\nLM,l4,-1\n", ":2: steps_per_s: expected a number >= 0, found '-1'"),
        ("a.csv", "model,type,steps_per_s\nLM,l4\n", ":2: expected 3 columns, found 2"),
        ("a.csv", "model,typ,steps_per_s\nLM,l4,1\n", ":1: unknown column 'typ'; did you mean 'type'?"),
        ("a.csv", "model,type,steps_per_s\nLM,l4,1\nLM,l4,2\n", ": LM, width 1, l4: is given twice"),
        (
            "a.csv",
            "model,type,steps_per_s,beside\nLM,l4,1,\nLM,l4,1,ML\n",
            "beside 'ML': no such model; known: LM",
        ),
        ("a.csv", "model,type,steps_per_s\n", ": expected at least one entry"),
        ("a.json", '{"l4": {"LM": {"null": 1}}}', ":1: l4.LM: expected ('<model>', <width>)"),
        ("a.json", '{"l4": {"(\'LM\', 1)": {"null": -2}}}', "expected a rate >= 0, found -2.0"),
        ("a.json", '{"l4": {"(\'LM\', 1)": {"null": "x"}}}', "l4.('LM', 1).null: expected float | array"),
        ("a.json", '{"l4": {"(\'LM\', 1)": {"(\'LM\', 2)": [1, 1]}}}', "expected a job of the same width"),
        ("a.json", "[1]", "expected a mapping"),
        (
            "a.yaml",
            "throughputs:\n- {model: LM, type: l4, steps_per_s: 1, width: 0}\n",
            ":2: throughputs.0.width: expected 1",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(InputError) as error:
        read_throughputs(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)


def test_the_reference_type_is_v100_or_the_first_that_runs_everything(measured: Throughputs) -> None:
    assert reference_type(measured) == "v100"
    assert reference_type(measured.of_types(("k80", "p100"))) == "p100"  # a K80 cannot run everything
    assert reference_type(table([RateEntry("LM", "l4", 1.0), RateEntry("LM", "a10", 1.0)])) == "l4"


rates = st.floats(0.1, 100)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), rates, min_size=1), st.integers(1, 64))
def test_a_guessed_rate_grows_with_width_but_never_faster(known: dict[int, float], width: int) -> None:
    found = table([RateEntry("LM", "l4", rate, w) for w, rate in known.items()])
    guess = float(rates_at(found, "LM", width)[0][0])
    below = [w for w in known if w <= width]
    if width in known:
        assert guess == known[width]
    elif below:
        nearest = max(below)
        assert known[nearest] <= guess * (1 + 1e-12)
        assert guess <= known[nearest] * width / nearest * (1 + 1e-12)
    more = with_widths(found, [("LM", width)])
    assert more.alone[more.index()["LM", width], 0] == guess
    assert more.kinds[: len(found.kinds)] == found.kinds


def test_guessed_kinds_share_with_nobody_and_keep_the_others(measured: Throughputs) -> None:
    more = with_widths(measured, [("ResNet-50 (batch size 64)", 16), ("A3C", 3)])
    assert len(more.kinds) == 85
    assert more.pairs is not None
    assert measured.pairs is not None
    assert np.array_equal(more.pairs[:83, :83], measured.pairs)
    assert not more.pairs[83:].any()
    assert not more.pairs[:, 83:].any()
    with pytest.raises(InputError, match="did you mean 'A3C'"):
        with_widths(measured, [("A3c", 3)])


def test_how_fast_a_model_reads_says_nothing_of_steps() -> None:
    rates = [Rate("LM", "l4", 3.0, unit="tokens/s"), Rate("LM", "l4", 900.0, unit="prefill tokens/s")]
    assert from_rates(RateTable(rates)).alone.tolist() == [[3.0]]
