"""`dovetail host`: simulate, experiment, policies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.cli.host.watch import _lately
from dovetail.host import LiveProgram
from dovetail.host.live.install import unit_text

E1 = "execution,0,a,12,0,0,960\nexecution,1,a,12,[10.0],0,960\nexecution,2,a,12,10,0,960\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests_file.txt").write_text(E1)
    return tmp_path


def parameters(here: Path, **changed: object) -> None:
    (here / "parameters.json").write_text(json.dumps({"requests_file": "requests_file.txt", **changed}))


def simulated(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, object]:
    assert main(["host", "simulate", *words, "--format", "json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_figures_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(capsys, "--requests", "requests_file.txt", "--cores", "16", "--assign", "always_attend")
    assert {"makespan_s", "mean_first_run_s", "mean_turnaround_s", "core_use", "throughput_per_h"} <= set(found)
    assert found["makespan_s"] == 190.0
    programs = found["programs"]
    assert isinstance(programs, list)
    assert [row["ended_s"] for row in programs] == [80.0, 190.0, 160.0]


def test_the_parameters_name_policies_and_requests(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters(here, policy="fcfs", assignment_policy="max_prop", tf_version="maleable")
    assert simulated(capsys)["policy"] == "fcfs+max_prop"
    assert simulated(capsys, "--parameters", "parameters.json", "--profile", "legacy")["makespan_s"] == 180.0
    assert simulated(capsys, "--plan", "rr", "--assign", "strict", "--quantum", "5")["pauses"] != 0


def test_create_mode_writes_the_requests_and_never_over_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters(here, get_requests="create", requests_file="made.txt", number_containers=5)
    first = simulated(capsys, "--work", "50")
    assert len((here / "made.txt").read_text().splitlines()) == 5
    assert simulated(capsys, "--work", "50") == first
    assert main(["host", "simulate", "--seed", "9"]) == 2
    assert "holds something else" in capsys.readouterr().err
    words = ("--parameters", "parameters.json", "--requests")
    assert simulated(capsys, *words, "requests_file.txt")["makespan_s"] == 240.0  # it is there: it is read
    assert simulated(capsys, *words, "new.txt", "--work", "50") == first
    assert (here / "new.txt").read_text() == (here / "made.txt").read_text()


def test_a_journal_passes_its_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["host", "simulate", "-r", "requests_file.txt", "-p", "rr", "-a", "max_prop", "--journal", "run.jsonl"]
    assert main([*words, "--out", "files"]) == 0
    assert "3 of 3 programs completed" in capsys.readouterr().out
    assert (here / "files/gantt_events.txt").is_file()
    assert main(["check", "run.jsonl"]) == 0


def test_curves_by_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = simulated(capsys, "-r", "requests_file.txt", "--curve", "linear", "a@amdahl:0")
    assert slow["makespan_s"] == 3 * 960.0
    assert main(["host", "simulate", "-r", "requests_file.txt", "--curve", "cubic"]) == 2
    assert "curve 'cubic'" in capsys.readouterr().err


def test_a_rejected_program_shows_in_the_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "simulate", "-r", "requests_file.txt", "--cores", "4"]) == 3
    assert "rejected: 0: needs 12 cores, the machine has 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-r", "nothing.txt"], "nothing.txt: no such file"),
        (["-r", "requests_file.txt", "--plan", "fcsf"], "no host policy is called 'fcsf'; did you mean 'fcfs'"),
        (["-r", "requests_file.txt", "--assign", "fcfs"], "'fcfs' is no assignment policy"),
        (["-r", "requests_file.txt", "--plan", "rr", "--profile", "legacy"], "legacy profile"),
        (["-r", "requests_file.txt", "--quantum", "0"], "quantum_s: expected a positive number"),
        (["-r", "requests_file.txt", "--journal", "requests_file.txt"], "is the same file as the input"),
        ([], "no parameters.json in this folder"),
    ],
)
def test_bad_usage(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["host", "simulate", *words]) == 2
    assert said in capsys.readouterr().err
    assert (here / "requests_file.txt").read_text() == E1


def test_an_experiment_and_its_comparison(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["host", "experiment", "2", "4", "--repeats", "2", "--work", "50", "--plans", "fcfs", "rr"]
    words += ["--assigns", "strict", "efficient", "--out", "log"]
    assert main([*words, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["containers"], row["plan"], row["assign"]) for row in rows][:2] == [
        (4, "fcfs", "strict"),
        (4, "fcfs", "efficient"),
    ]
    assert len(rows) == 8
    first = (here / "log/comparison.csv").read_bytes()
    assert first.startswith(b"Containers,Policy,Asignment Policy,Tf Version,Priority,TME,TMR,TMER,Recursos,")
    assert main(words) == 0  # resumed: nothing is left to do
    assert "±" in capsys.readouterr().out
    assert (here / "log/comparison.csv").read_bytes() == first


def test_an_experiment_writes_nothing_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.rglob("*"))
    assert main(["host", "experiment", "1", "2", "--work", "50", "--plans", "fcfs", "--assigns", "strict"]) == 0
    assert "written" not in capsys.readouterr().out
    assert sorted(here.rglob("*")) == before


def test_a_list_shows_what_ended_lately() -> None:
    ended = [
        LiveProgram(id=str(n), name="", cores=1, state="completed", arrived_s=float(-n), turnaround_s=2.0 * n)
        for n in range(15)
    ]
    waits = LiveProgram(id="waits", name="", cores=1)
    assert [row.id for row in _lately([waits, *reversed(ended)])] == ["waits", *map(str, range(14, 4, -1))]


@pytest.mark.parametrize("words", [["0", "4"], ["1", "0"], ["1", "4", "--repeats", "0"], ["1", "4", "--plans", "x"]])
def test_bad_experiments(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["host", "experiment", *words, "--out", "log"]) == 2
    assert not (here / "log").exists()


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "policies", "--format", "json"]) == 0
    found = {(row["kind"], row["name"]) for row in json.loads(capsys.readouterr().out)}
    assert {("planning", "rr"), ("assignment", "efficient")} <= found


def test_a_recorded_run_tells_why_a_program_waited(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(capsys, "--requests", "requests_file.txt", "--journal", "run.jsonl")
    assert main(["host", "explain", "1", "--journal", "run.jsonl"]) == 0
    told = capsys.readouterr().out
    assert "needs 12 cores, 4 free" in told
    assert "preferred others" not in told  # the true reason is known
    assert main(["host", "explain", "1", "--journal", "run.jsonl", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["turns"][0]["why"] == "needs 12 cores, 4 free"
    assert main(["host", "explain", "9", "--journal", "run.jsonl"]) == 2
    assert "host run: no program called '9'" in capsys.readouterr().err


def test_a_picture_has_a_row_for_each_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(capsys, "--requests", "requests_file.txt", "--plan", "rr", "--journal", "run.jsonl")
    assert main(["host", "gantt", "run.jsonl"]) == 0
    drawn = (here / "run.svg").read_text()
    assert drawn.count("paused,") > 0
    assert "0: 12 cores (0-11), 0 to " in drawn
    assert main(["host", "gantt", "run.jsonl", "--out", "run.jsonl"]) == 2
    assert main(["host", "gantt", "none.jsonl"]) == 2


def test_a_users_own_defaults_are_taken_unless_the_command_line_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[host.simulate]\ncores = 2\nwork = 10.0\n[host.submit]\nretries = 1\n")
    monkeypatch.setenv("DOVETAIL_CONFIG", str(config))
    requests = tmp_path / "requests.txt"
    requests.write_text("execution,0,net,2,0\n")
    assert main(["host", "simulate", "--requests", str(requests), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] == 5.0
    assert main(["host", "simulate", "--requests", str(requests), "--work", "20", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] == 10.0
    config.write_text("[host.simulate]\ncorse = 2\n")
    assert main(["host", "simulate", "--requests", str(requests)]) == 2
    assert "corse" in capsys.readouterr().err
    config.write_text("[host.simulate\n")
    assert main(["host", "simulate", "--requests", str(requests)]) == 2
    assert f"{config}:1: not TOML" in capsys.readouterr().err
    config.write_text("[host.simulat]\ncores = 2\n")
    assert main(["host", "simulate", "--requests", str(requests)]) == 2
    assert "host.simulat: there is no command of this name; did you mean 'simulate'?" in capsys.readouterr().err
    config.unlink()
    assert main(["host", "simulate", "--requests", str(requests)]) == 2
    assert str(config) in capsys.readouterr().err


def test_a_unit_for_systemd_is_written_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a service manager that only notes what it is asked for."""
    asked, runtime = tmp_path / "asked", tmp_path / "run"
    (runtime / "systemd").mkdir(parents=True)
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    unit = tmp_path / "config" / "systemd" / "user" / "dovetail-host.service"
    assert main(["host", "install", "--state", str(tmp_path / "state")]) == 0
    assert f"host up --foreground --state {tmp_path}/state\n" in unit.read_text()
    assert asked.read_text().splitlines() == ["--user daemon-reload", "--user enable --now dovetail-host.service"]
    assert main(["host", "install", "--remove"]) == 0
    assert not unit.exists()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert main(["host", "install"]) == 0
    assert "no systemd runs for this user here" in capsys.readouterr().out


def test_a_unit_says_what_a_shell_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager does not know the variables of whoever installs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_HOST_STATE", str(tmp_path / "a state"))
    monkeypatch.delenv("DOVETAIL_CONFIG", raising=False)
    assert main(["host", "install", "--print-unit"]) == 0
    told = capsys.readouterr().out
    assert f'Environment="DOVETAIL_HOST_STATE={tmp_path}/a state"\n' in told
    assert "DOVETAIL_CONFIG" not in told
    monkeypatch.setenv("DOVETAIL_CONFIG", "mine.toml")
    assert f'Environment="DOVETAIL_CONFIG={tmp_path}/mine.toml"\n' in unit_text()


@pytest.mark.parametrize("every", ["0", "-1", "nan"])
def test_a_screen_is_looked_at_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture[str], every: str) -> None:
    assert main(["host", "top", "--every", every, "--state", str(tmp_path)]) == 2
    assert f"--every {every}: expected seconds, 0.1 or more" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["state", "a b", "it's", 'a"b', "100%", "a$HOME"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    unit = tmp_path / "dovetail-host.service"
    monkeypatch.setenv("DOVETAIL_CONFIG", str(tmp_path / name))
    unit.write_text(unit_text(tmp_path / name))
    words = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(done.stderr)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
