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
    table = RateTable.read(out)
    assert (table.rate("update", "cpu"), table.per_s("update", "cpu", "items/s")) == (1.0, found["rate"])
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


def test_tune_names_types_and_writes_curves_that_simulate_reads(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, curves = tmp_path / "rates.json", tmp_path / "curves.json"
    words = ["dispatch", "tune", f"{model}:update", "--shape", "3000,4", "--out", str(rates), "--curves", str(curves)]
    assert main([*words, "--kind", "newton", "--types", "epyc"]) == 0
    assert RateTable.read(rates).rate("newton", "epyc") == 1.0
    assert main(["dispatch", "simulate", str(curves), "--policy", "guided", "--items", "5000"]) == 0
    capsys.readouterr()
    assert main([*words, "--force", "--types", "a,b"]) == 2
    assert "expected 1 different names" in capsys.readouterr().err
    assert main([*words[:-1], str(rates), "--force"]) == 2
    assert "which is written too" in capsys.readouterr().err


SCHEDULERS = """\
schedulers:
  one: {type: SimpleScheduler, device: cpu, sub_batch_size: 100}
  two: {type: Dispatcher, devices: [{name: a, where: cpu}, {name: b, where: cpu}], policy: guided}
  shared: {type: SharedScheduler, devices: [cpu]}
  process: {type: Dispatcher, devices: [{name: a, where: cpu}], backend: process}
"""


@pytest.mark.parametrize(("name", "devices"), [("one", 1), ("two", 2), ("shared", 1), ("process", 1)])
def test_bench_runs_a_scheduler_of_a_file(
    name: str, devices: int, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, journal = tmp_path / "schedulers.yml", tmp_path / "run.jsonl"
    file.write_text(SCHEDULERS)
    words = ["dispatch", "bench", f"{model}:update", "--shape", "2000,3", "--repeats", "1", "--scheduler", str(file)]
    assert main([*words, "--name", name, "--journal", str(journal), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["alone"]) == devices
    assert [sum(run["items"].values()) for run in found["together"]] == [2000]
    assert main(["check", str(journal)]) == 0
    assert main(["replay", str(journal)]) == 0


def test_bench_runs_a_scheduler_of_the_command_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dispatch", "bench", f"{model}:update", "--shape", "2000,3", "--repeats", "1", "--format", "json"]
    words += ["--scheduler", "SimpleScheduler", "--option", "device=cpu", "sub_batch_size=100"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["together"][0]["policy"] == "SimpleScheduler"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scheduler", "{folder}/schedulers.yml"], "has 4 schedulers; name one of one, two"),
        (["--scheduler", "{folder}/schedulers.yml", "--name", "on"], "did you mean 'one'"),
        (
            ["--scheduler", "{folder}/schedulers.yml", "--name", "one", "--devices", "cpu"],
            "leave devices and",
        ),
        (["--scheduler", "{folder}/schedulers.yml", "--name", "one", "--option", "k=2"], "has its options in itself"),
        (["--scheduler", "{folder}/none.yml"], "none.yml: no such file"),
        (["--scheduler", "{folder}/wrong.yml"], "wrong.yml:2: devize: unknown key 'devize'; did you mean 'device'"),
        (["--scheduler", "SimpleScheduler", "--option", "sub_batch_size=x"], "--sub-batch-size x: expected int"),
        (["--scheduler", "SimpleScheduler", "--name", "one"], "is a type"),
        (["--scheduler", "Simple"], "or one of SimpleScheduler"),
        (["--name", "one"], "give scheduler too"),
        (["--policies", "guied"], "did you mean 'guided'"),
        (["--policies", "guided,fixed", "--option", "k=2"], "belongs to one policy"),
        (["--policies", "guided,fixed", "--journal", "{folder}/run.jsonl"], "is of one run"),
        (["--policies", "guided,"], "expected names with commas"),
        (["--journal", "{folder}/update.py"], "is the same file as the input"),
        (["--journal", "{folder}/wrong.yml"], "exists; give --force"),
        (["--journal", "{folder}"], "is a folder"),
        (["--dim", "3"], "has no dimension 3 to cut"),
    ],
)
def test_bad_words_of_bench_are_refused(
    words: list[str], message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schedulers.yml").write_text(SCHEDULERS)
    (tmp_path / "wrong.yml").write_text("type: SimpleScheduler\ndevize: cpu\n")
    there = {path.name for path in tmp_path.iterdir()}
    given = [word.replace("{folder}", str(tmp_path)) for word in words]
    assert main(["dispatch", "bench", f"{model}:update", "--shape", "200,3", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert {path.name for path in tmp_path.iterdir()} <= there | {"cache", "__pycache__"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def f(x):\n    raise ValueError('no convergence')",
            ":f: raised ValueError: no convergence (on cpu, items 0 to",
        ),
        ("f = 3", ":f: expected a function or a module, found int"),
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("def g(x):\n    return x", "has no 'f'"),
    ],
)
def test_errors_of_the_given_code_are_told(
    code: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given_code.py"
    file.write_text(code + "\n")
    assert main(["dispatch", "tune", f"{file}:f", "--shape", "200,3"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f():\n    raise KeyError('file')", "raised KeyError: 'file'"),
        ("f = 3", "expected a tensor or a tree of tensors, to be run again; found int"),
        ("def f():\n    yield 3", "found generator"),
        ("f = {'a': 1}", "nothing of the batch, a dict, has the dimension 0 to cut"),
    ],
)
def test_errors_of_the_given_batch_are_told(
    code: str, message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given_batch.py"
    file.write_text(code + "\n")
    assert main(["dispatch", "tune", f"{model}:update", "--batch", f"{file}:f"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "--model", "radert"], "did you mean 'radret'"),
        (["simulate"], "either curves or model"),
        (["simulate", "--model", "radret", "--slower", "gpu=2"], "no such device"),
        (["simulate", "--model", "radret", "--slower", "gpu-0=2"], "gpu-0"),
        (["simulate", "--model", "radret", "--slower", "cpu=0"], "expected a number above 0"),
        (["simulate", "--model", "radret", "--items", "0"], "items 0: expected a whole number from 1 to 1,000,000,000"),
        (["simulate", "--model", "radret", "--items", "1.5"], "--items: expected a whole number, found '1.5'"),
        (["simulate", "--model", "radret", "--seed", "2.5"], "--seed: expected a whole number, found '2.5'"),
        (["bench", "math:sqrt", "--shape", "9", "--repeats", "1.2"], "--repeats: expected a whole number, found '1.2'"),
        (["tune", "math:sqrt", "--shape", "9", "--dim", "0.4"], "--dim: expected a whole number, found '0.4'"),
        (["map", "math:sqrt", "in", "out", "--items", "2.5"], "--items: expected a whole number, found '2.5'"),
        (["simulate", "--model", "radret", "--items", "1000000000000000"], "items 1000000000000000: expected a whole"),
        (["simulate", "--model", "radret", "--option", "k=2"], "give --policy too"),
        (["simulate", "--model", "radret", "--policy", "guied"], "did you mean 'guided'"),
        (["simulate", "nowhere.yml"], "nowhere.yml"),
        (["simulate", "--model", "radret", "--journal", "x.jsonl"], "--journal belongs to one policy"),
        (["tune", ".:sqrt", "--shape", "3"], "cannot be imported"),
        (["tune", "math:sqrt", "--shape", "9999999999999,9"], "cannot be made"),
        (["tune", "math:sqrt", "--shape", "3", "--devices", "cpu,"], "expected names with commas"),
        (["tune", "math:sqrt"], "either batch or shape"),
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
