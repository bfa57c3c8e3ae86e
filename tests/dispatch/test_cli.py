"""`dovetail dispatch` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.core.rates import RateTable

CURVES = """\
devices:
  gpu: {latency_s: 0.004, rate: 200000}
  cpu: {points: [[1, 0.001], [1000, 0.03]], size: 100, capacity: 200}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "update.py"
    file.write_text(
        "import torch\n\ndef update(x):\n    return torch.sin(x)\n\ndef batch():\n    return torch.rand(3000, 4)\n"
    )
    return f"{file}"


def test_tune_writes_the_rates_that_other_levels_read(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rates.json"
    words = ["dispatch", "tune", f"{model}:update", "--batch", f"{model}:batch", "--out", str(out), "--format", "json"]
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["devices"]
    assert found["device"] == "cpu"
    assert found["rate"] > 0
    assert found["points"]
    assert RateTable.read(out).rate("update", "cpu") == 1.0
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_bench_compares_each_device_with_all(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dispatch", "bench", f"{model}:update", "--shape", "2000,3", "--dtype", "float64", "--repeats", "1"]
    assert main([*words, "--policies", "finish_together,guided", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["policy"] for run in found["together"]] == ["finish_together", "guided"]
    assert all(run["items"] == {"cpu": 2000} for run in found["together"])
    assert main(words) == 0
    assert "cpu alone" in capsys.readouterr().out


def test_simulate_compares_policies_and_single_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dispatch", "simulate", "--model", "radret", "--items", "1000000", "--slower", "cpu=3", "--noise", "0.1"]
    assert main([*words, "--format", "json"]) == 0
    runs = {run["policy"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert {"finish_together", "fixed", "cuda alone", "cpu alone"} <= set(runs)
    assert runs["finish_together"]["makespan_s"] <= 1.03 * runs["cuda alone"]["makespan_s"]
    assert main(words) == 0
    assert "finish_together" in capsys.readouterr().out


def test_simulate_reads_curves_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "curves.yml"
    file.write_text(CURVES)
    words = ["dispatch", "simulate", str(file), "--policy", "guided", "--option", "k=1.5", "--format", "json"]
    assert main(words) == 0
    assert [run["policy"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["guided"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "--model", "radert"], "did you mean 'radret'"),
        (["simulate"], "either a file of curves or --model"),
        (["simulate", "--model", "radret", "--slower", "gpu=2"], "no such device"),
        (["simulate", "--model", "radret", "--slower", "cpu=0"], "expected a number above 0"),
        (["simulate", "--model", "radret", "--items", "0"], "--items >= 1"),
        (["simulate", "--model", "radret", "--option", "k=2"], "give --policy too"),
        (["simulate", "--model", "radret", "--policy", "guied"], "did you mean 'guided'"),
        (["simulate", "nowhere.yml"], "nowhere.yml"),
        (["tune", "math:sqrt"], "either --batch or --shape"),
        (["tune", "math", "--shape", "3"], "expected file.py:name"),
        (["tune", "math:sqrrt", "--shape", "3"], "did you mean 'sqrt'"),
        (["tune", "nowhere.py:f", "--shape", "3"], "expected a Python file, found nothing"),
        (["tune", "nowhere.at.all:f", "--shape", "3"], "cannot be imported"),
        (["tune", "math:sqrt", "--shape", "3,x"], "whole numbers"),
        (["tune", "math:sqrt", "--shape", "3,0"], "all of them at least 1"),
        (["tune", "math:sqrt", "--shape", "3", "--dtype", "flaot32"], "did you mean 'float32'"),
        (["tune", "math:sqrt", "--shape", "3", "--devices", "cuda:42"], "does not exist"),
        (["bench", "math:sqrt", "--shape", "3", "--repeats", "0"], "at least 1"),
    ],
)
def test_bad_words_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatch", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: {}", "expected at least one device"),
        ("devices: {a: {rate: 3}}", "curves.yml:1: devices.a: expected latency_s and rate, or points"),
        ("devices:\n  a: {points: [], size: 3}", "curves.yml:2: devices.a.points"),
        ("devices:\n  a: {latency_s: 1, rate: 1, points: [[1, 1]]}", "found both"),
        ("devices:\n  a: {latency_s: 1, rate: 0}", "rate > 0"),
        ("devices:\n  a: {latncy_s: 1}", "did you mean 'latency_s'"),
        ("devices:\n  a: {latency_s: 1, rate: 1, size: 0}", "at least 1 item"),
        ("devices:\n  a: {latency_s: 1, rate: 1, size: 8, capacity: 4}", "no chunk could ever be placed"),
    ],
)
def test_bad_curves_are_located(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "curves.yml"
    file.write_text(text)
    assert main(["dispatch", "simulate", str(file)]) == 2
    assert message in capsys.readouterr().err
