"""`sched-pipeline` takes what the older command of this name takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main as command
from dovetail.pipeline.compat.sched_pipeline import main
from dovetail.pipeline.optimise.cheapest import BoundedChain
from dovetail.pipeline.optimise.search import Search

MODELS = """
m:
  layers: 3
  mem_MB: [1e0, "1.5", .5]
  parameters_in: "10"
  parameters_out: [1e1, 10, "10"]
"""
TYPES = """
1:
  bw_Mbps: 1e3
  mem_MB: '1e2'
  model_profiles:
    m:
      - {dtype: torch.float32, batch_size: "8", time_s: [5e-05, "5e-05", 5E-5]}
fast:
  bw_Mbps: 1000
  mem_MB: 64
  model_profiles:
    m: [{dtype: "torch.float32", batch_size: 8, time_s: [1., +2.0, 3]}]
none:
  bw_Mbps: 1
  mem_MB: 1
  model_profiles:
"""
DEVICES = "1: [7, 08, 1e3]\nfast: [no]\nnone: []\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("models", MODELS), ("device_types", TYPES), ("devices", DEVICES)):
        (tmp_path / f"{name}.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_numbers_and_names_are_what_is_meant_by_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "m"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "- '7': [1, 1]\n- 08: [2, 2]\n- '1e3': [3, 3]\n"
    assert shown.err == "Warning: Device type none doesn't support model: type will be skipped\n"


def test_a_schedule_that_is_not_proven_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    throughput = Search.throughput

    def unsure(self: Search) -> BoundedChain:
        found = throughput(self)
        return found._replace(bound=found.bound / 1.1)

    monkeypatch.setattr(Search, "throughput", unsure)
    assert main(["-m", "m"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "- '7': [1, 1]\n- 08: [2, 2]\n- '1e3': [3, 3]\n"
    told = "the schedule is not proven to be the best: by exact, at most 10 % above the best possible"
    assert f"Warning: {told}\n" in shown.err
    (folder / "fast.yml").write_text(TYPES[TYPES.index("fast:") :])
    (folder / "models.yml").write_text(MODELS.replace('"', ""))
    (folder / "devices.yml").write_text("fast: [f]\n")
    words = ["pipeline", "plan", "-m", "m", "-T", "fast.yml", "--format", "yaml"]
    assert command(words) == 0
    assert f"warning: {told}\n" in capsys.readouterr().err
    assert command([*words, "--method", "equal"]) == 0
    assert told not in capsys.readouterr().err


def test_what_is_no_flag_is_ignored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stray", "-m", "m", "another", "-b", "8"]) == 0
    assert capsys.readouterr().out.startswith("- '7'")


def test_unknown_keys_are_ignored_with_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "models.yml").write_text(MODELS + "  author: somebody\n")
    (folder / "device_types.yml").write_text(TYPES.replace("bw_Mbps: 1e3", "bw_Mbps: 1e3\n  vendor: {name: x}"))
    assert main(["-m", "m"]) == 0
    warned = capsys.readouterr().err
    assert "Warning: models.yml:7: m.author: unknown key: it is ignored\n" in warned
    assert "Warning: device_types.yml:4: 1.vendor: unknown key: it is ignored\n" in warned


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("models", "layers: 3", "layers: three", "models.yml:3: m.layers: expected int, found str"),
        ("models", "layers: 3", "layers: 3.5", "models.yml:3: m.layers: expected int, found float"),
        ("models", '"1.5"', '"1.5x"', "models.yml:4: m.mem_MB.1: expected float, found str"),
        ("models", "parameters_in", "parameters_inn", "models.yml:2: m: missing key `parameters_in`"),
        ("device_types", "bw_Mbps: 1e3", "bw_Mbps: [1]", "device_types.yml:3: 1.bw_Mbps: expected float, found array"),
        ("devices", "[no]", "no", "devices.yml:2: fast: expected array, found str"),
        ("devices", "08", "7", "devices.yml:1: 1.1: host '7' is listed twice"),
    ],
)
def test_what_means_nothing_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, told: str
) -> None:
    place = folder / f"{file}.yml"
    place.write_text(place.read_text().replace(old, new))
    assert main(["-m", "m"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("output", "encoding"), [("/dev/full", "utf-8"), ("/dev/null", "ascii")])
def test_an_output_that_cannot_be_written_is_told_in_a_line(folder: Path, output: str, encoding: str) -> None:
    Path("devices.yml").write_text(DEVICES.replace("7,", "é,").replace("no]", "ü]"), encoding="utf-8")
    command = "import os, sys; from dovetail.pipeline.compat.sched_pipeline import main; "
    command += f"sys.stdout.reconfigure(encoding={encoding!r}); sys.exit(main(['-m', 'm']))"
    with Path(output).open("w") as file:
        done = subprocess.run([sys.executable, "-c", command], stdout=file, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the output cannot be written: ")
    assert "Traceback" not in done.stderr
