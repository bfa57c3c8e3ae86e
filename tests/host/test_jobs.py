"""Job files: matrices, names of others, errors with their place; and the same file simulated."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import host
from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.host.inputs.jobs import read_jobs

YAML = """\
defaults: {cores: 2, group: sweep, parallel: 2, work: 20}
jobs:
  - name: train-{lr}-{seed}
    command: python train.py --lr {lr} --seed {seed} --keep '{a} b'
    matrix: {lr: [0.1, 0.01], seed: [0, 1]}
    exclude: [{lr: 0.1, seed: 1}]
    env: {SEED: "{seed}"}
  - name: compare
    command: [python, compare.py]
    group: ""
    parallel: null
    after: [train-*]
    after_any: [7]
    delay: 1m
"""
TOML = """\
[defaults]
cores = 2
work = 20
[[jobs]]
name = "train-{lr}"
command = "train {lr}"
matrix = {lr = [0.1, 0.01]}
"""


def test_a_matrix_gives_every_combination_but_the_excluded(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(YAML)
    jobs = read_jobs(path)
    assert list(jobs) == ["train-0.1-0", "train-0.01-0", "train-0.01-1", "compare"]
    last = jobs["train-0.01-1"]
    assert last.command == ("python", "train.py", "--lr", "0.01", "--seed", "1", "--keep", "{a} b")
    assert (last.env, last.cores, last.group, last.parallel) == ({"SEED": "1"}, 2, "sweep", 2)
    assert jobs["compare"].after == ("train-0.1-0", "train-0.01-0", "train-0.01-1")
    assert (jobs["compare"].after_any, jobs["compare"].group, jobs["compare"].command) == (
        ("7",),
        "",
        ("python", "compare.py"),
    )


def test_a_line_for_a_shell_is_one_if_it_is_said() -> None:
    line = "seq {n} | wc -l > 'out {n}'"
    jobs = read_jobs({"jobs": [{"name": "a{n}", "command": line, "shell": True, "matrix": {"n": [3]}}]})
    assert jobs["a3"].command == ("sh", "-c", "seq 3 | wc -l > 'out 3'")
    assert "shell" not in jobs["a3"].words()


@pytest.mark.parametrize("line", ["grep '|' x", 'awk "{ a | b; c }" x', r"echo \; a\|b", "echo --or=a|b x=';' 'a; b'"])
def test_what_a_program_is_given_in_quotes_is_its_own(line: str) -> None:
    assert read_jobs({"jobs": [{"name": "a", "command": line}]})["a"].command == tuple(shlex.split(line))


def test_jobs_that_say_nothing_of_their_work_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs: list[dict[str, Any]] = [{"name": name, "command": "true"} for name in "abcde"]
    jobs[0]["work"], jobs[1]["curve"] = 5, "table:1=10,2=6"
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    assert main(["host", "simulate", "--requests", str(path), "--cores", "2"]) == 0
    assert "note: 3 of the jobs say nothing of their work and count as 1000 core-seconds each (c, d, e)" in (
        capsys.readouterr().err
    )
    assert main(["host", "simulate", "--requests", str(path), "--cores", "2", "--work", "60"]) == 0
    assert capsys.readouterr().err == ""


def test_toml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    assert {name: job.command for name, job in read_jobs(path).items()} == {
        "train-0.1": ("train", "0.1"),
        "train-0.01": ("train", "0.01"),
    }


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)))
def test_the_combinations_are_the_product(matrix: dict[str, list[int]]) -> None:
    name = "j" + "".join(f"-{{{key}}}" for key in matrix)
    jobs = read_jobs({"jobs": [{"name": name, "command": "x", "matrix": matrix}]})
    assert list(jobs) == ["-".join(["j", *map(str, values)]) for values in product(*matrix.values())]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([{"name": "a", "comand": "x"}], r"jobs.0.comand: .*did you mean 'command'"),
        ([{"name": "a", "matrix": {"n": [1, 2]}}], "a is there twice; name its matrix in it"),
        ([{"name": "a", "matrix": {"n": []}}], "matrix.n: expected at least one value"),
        ([{"name": "a{n}", "matrix": {"n": [1]}, "exclude": [{"m": 1}]}], "exclude.0: m is not in the matrix"),
        ([{"name": "a", "after": ["bb"]}, {"name": "b"}], "a: after: there is no job bb"),
        ([{"name": "a", "after": ["b"]}, {"name": "b", "after_any": ["a"]}], "a, b wait for each other"),
        ([{"name": "a", "command": "echo 'x"}], "jobs.0.command: found .*expected words as a shell reads them"),
        ([{"name": "a", "command": "seq 3 | wc -l"}], r"jobs.0.command: found \| in 'seq 3 \| wc -l', .* shell: true"),
        ([{"name": "a", "command": "make; make test"}], "jobs.0.command: found make; in .* shell: true"),
        ([{"name": "a", "command": "make 2>log.txt"}], "jobs.0.command: found 2>log.txt in .* shell: true"),
        ([{"name": "a", "command": "make;make test"}], "jobs.0.command: found make;make in .* shell: true"),
        ([{"name": "a", "command": "get http://a/b;c=1"}], "jobs.0.command: found .* or 'http://a/b;c=1' in quotes"),
        ([{"name": "a", "command": "make &> log"}], "jobs.0.command: found &> in .* shell: true"),
        ([{"name": "a", "command": "make &>>log"}], "jobs.0.command: found &>>log in .* shell: true"),
        ([{"name": "a", "command": "make |& tee log"}], r"jobs.0.command: found \|& in .* shell: true"),
        ([{"name": "a", "command": "make &&make test"}], "jobs.0.command: found &&make in .* shell: true"),
        ([{"name": "a", "command": "make && make test"}], "jobs.0.command: found && in .* shell: true"),
        (
            [{"name": "a", "command": ["a", "b"], "shell": True}],
            "jobs.0.command: found .*, expected one line",
        ),
        ([{"name": "a", "work": -5}], "jobs.0.work: found -5.0, expected core-seconds"),
        ([{"name": "a"}, {"name": "b", "cores": 0}], "jobs.1.cores: found 0, expected 1 or more"),
        ([{"name": "a", "least": 2}], "jobs.0.least: found 2, expected 1 to the cores asked for"),
        ([{"name": "a", "delay": "soon"}], "jobs.0: delay: found 'soon', expected seconds"),
        ([{"name": "a", "gpu_mem": "20g"}], "jobs.0.gpu_mem: found 20480, expected --gpus beside it"),
        ([{"name": "a", "parallel": 2}], "jobs.0.parallel: found 2, expected a group"),
        ([{"name": "a", "curve": "steep"}], "jobs.0.curve: curve 'steep': expected linear"),
        ([], "expected at least one job"),
        ([{"name": "a", "matrix": {c: list(range(100)) for c in "xyz"}}], "found 1000000 combinations"),
    ],
)
def test_what_is_wrong_is_named(jobs: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_jobs({"jobs": jobs})


def test_a_broken_toml_file_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[defaults]\ncores = \n")
    assert main(["host", "submit-jobs", str(path), "--dry-run"]) == 2
    assert f"{path}:2: not TOML: " in capsys.readouterr().err


def test_work_that_no_program_has_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("jobs:\n  - name: a\n    command: x\n    work: -5\n")
    assert main(["host", "simulate", "--requests", str(path)]) == 2
    assert f"{path}:4: jobs.0.work: found -5.0, expected core-seconds" in capsys.readouterr().err


def test_times_and_dates_are_the_text_that_stands_there(tmp_path: Path) -> None:
    """Which YAML takes for numbers of base 60 and, as TOML does, for times."""
    for time in ("22:00", "9:30", "2026-12-01", "2026-12-01 08:00:00"):
        path = tmp_path / "sweep.yaml"
        path.write_text(f"jobs: [{{name: 'a{{day}}', command: x, begin: {time}, matrix: {{day: [{time}]}}}}]\n")
        assert {name: job.begin for name, job in read_jobs(path).items()} == {f"a{time}": time}
    path = tmp_path / "sweep.toml"
    path.write_text("""[[jobs]]\nname = "a"\nbegin = 2026-12-01T08:00:00\n[[jobs]]\nname = "b"\nbegin = 22:00:00\n""")
    assert [job.begin for job in read_jobs(path).values()] == ["2026-12-01 08:00:00", "22:00:00"]
    jobs = {"jobs": [{"name": "a", "begin": datetime(2026, 12, 1, 8)}]}
    assert read_jobs(jobs)["a"].begin == "2026-12-01 08:00:00"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("begin: tomorrow", "begin: found 'tomorrow', expected a time as 22:00"),
        ("after: [tran]", "b: after: there is no job tran; did you mean 'train'?"),
        ("after: [b]", "b wait for each other"),
    ],
)
def test_what_only_other_jobs_or_the_clock_tell_wrong_has_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"jobs:\n  - name: train\n    command: x\n  - name: b\n    command: x\n    {line}\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:4: jobs.1: {message}")):
        read_jobs(path)


def test_a_file_that_refers_to_itself_is_not_written_out(tmp_path: Path) -> None:
    """Ten lines that are a billion words."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "jobs.yaml"
    path.write_text(f"jobs: [{{name: a, command: x, env: {{a0: &a0 x, {', '.join(lines)}}}}}]\n")
    with pytest.raises(InputError, match=r"expected .*str, found array"):
        read_jobs(path)


def test_both_a_time_and_a_delay_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs:\n  - name: a\n    begin: 22:00\n    delay: 5\n")
    with pytest.raises(InputError, match=rf"^{path}:4: jobs\.0\.delay: found 5.0 beside begin, expected one of them"):
        read_jobs(path)


def test_names_of_others_files_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, journal = tmp_path / "jobs.json", tmp_path / "run.jsonl"
    names = ["a\x1b[2J", "b\x1b[2J"]
    path.write_text(json.dumps({"jobs": [{"name": names[0], "command": names}, {"name": names[1], "cores": 9}]}))
    assert main(["host", "submit-jobs", str(path), "--dry-run"]) == 0
    assert main(["host", "simulate", "--requests", str(path), "--cores", "2", "--journal", str(journal)]) == 3
    assert main(["host", "explain", names[0], "--journal", str(journal)]) == 0
    told = capsys.readouterr()
    assert "\\x1b[2J" in told.out
    assert "rejected: b\\x1b[2J: needs 9 cores" in told.out
    assert "\x1b" not in told.out + told.err


def test_a_dry_run_prints_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    assert main(["host", "submit-jobs", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out == "train-0.1: train 0.1\ntrain-0.01: train 0.01\n"


def test_a_job_file_is_simulated_as_it_would_run(tmp_path: Path) -> None:
    """Three of ten seconds each, two at a time; the one behind them, not before its minute."""
    path = tmp_path / "sweep.yaml"
    path.write_text(YAML.replace("    after_any: [7]\n", ""))
    run = host.simulate(host.load(path, cores=8), journal=tmp_path / "run.jsonl")
    times = {program.program: (program.started_s, program.ended_s) for program in run.programs}
    assert times == {
        "train-0.1-0": (0.0, 10.0),
        "train-0.01-0": (0.0, 10.0),
        "train-0.01-1": (10.0, 20.0),
        "compare": (60.0, 70.0),
    }
    assert run.check().valid
    with pytest.raises(InputError, match="a simulation has no time of day"):
        host.load({"jobs": [{"name": "a", "begin": "22:00"}]})


def test_the_older_scheduler_refuses_what_it_does_not_know() -> None:
    workload = host.load({"jobs": [{"name": "a", "group": "g", "parallel": 1}]}, cores=4)
    with pytest.raises(InputError, match="knows no dependencies, no times to begin and no groups"):
        host.simulate(workload, profile="legacy")
