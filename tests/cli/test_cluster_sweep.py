"""`dovetail cluster sweep` as a user meets it: runs, goes on after an interruption, and shows what it found."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main
from tests.waiting import until

SMALL = ("-s", "4", "-e", "8", "-c", "4:4:4", "-f", "3600", "--seeds", "0", "1", "-j", "1")
POLICIES = ("-p", "max_min_fairness", "max_min_fairness_perf")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cluster", "sweep", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_example_of_the_older_system(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its command line as it stands, but for a smaller window and cluster."""
    words = "-s 2 -e 4 -l {} -j 1 -p max_min_fairness max_min_fairness_perf --seeds 0 1 2 -c 9:9:9 -a 0.0 -b 1.0 -n 5"
    code, out, err = run(capsys, "continuous", *words.format(tmp_path / "logs").split())
    assert (code, err) == (0, "note: a load of 0 is left out\n")
    assert "max_min_fairness_perf" in out
    rows = table(tmp_path / "logs")
    assert len(rows) == 2 * 3 * 4
    assert {float(row["jobs_per_hour"]) for row in rows} == {0.25, 0.5, 0.75, 1.0}
    log = tmp_path / "logs/raw_logs/v100=9.p100=9.k80=9/max_min_fairness/seed=2/lambda=3600.000000.log"
    assert "Average job completion time: " in log.read_text()
    assert "<svg" in (tmp_path / "logs/sweep.html").read_text()


def test_the_same_command_again_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("continuous", *SMALL, *POLICIES, "-l", str(tmp_path), "-a", "1", "-b", "2", "-n", "2")
    assert run(capsys, *words)[0] == 0
    cells = sorted(tmp_path.rglob("lambda=*.json"))
    before = {path: path.stat().st_mtime_ns for path in cells}
    first = (tmp_path / "results.csv").read_bytes()
    code, _, err = run(capsys, *words)
    assert (code, err) == (0, "8 of 8 runs have a result already\n")
    assert {path: path.stat().st_mtime_ns for path in cells} == before
    assert (tmp_path / "results.csv").read_bytes() == first


def test_another_configuration_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("continuous", *SMALL, *POLICIES, "-l", str(tmp_path), "-a", "1", "-b", "1", "-n", "1")
    assert run(capsys, *words)[0] == 0
    before = (tmp_path / "results.csv").read_bytes()
    code, _, err = run(capsys, *words, "-i", "720")
    assert code == 2
    assert "holds a sweep of another configuration: how.rules.round_s was 360.0, and is 720.0" in err
    assert (tmp_path / "results.csv").read_bytes() == before


def test_static_sweeps_are_over_numbers_of_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = "-p fifo min_total_duration_perf --seeds 0 -c 2:2:2 -a 0 -b 4 -n 3 -f 3600 --assign_SLOs -j 1 --format json"
    code, out, _ = run(capsys, "static", "-l", str(tmp_path), *words.split())
    rows = json.loads(out)
    assert code == 0
    assert [(row["policy"], row["num_total_jobs"], row["jobs"]) for row in rows] == [
        (policy, jobs, jobs) for policy in ("fifo", "min_total_duration_perf") for jobs in (2, 4)
    ]
    assert all(row["slo_jobs"] == row["jobs"] and row["bound_makespan_s"] > 0 for row in rows)


def test_the_load_is_raised_until_the_cluster_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, _ = run(capsys, "continuous", *SMALL, "-p", "isolated", "-l", str(tmp_path), "-u", "0.2", "-a", "1")
    rows = table(tmp_path)
    assert code == 0
    for seed in ("0", "1"):
        used = [float(row["utilization"]) for row in rows if row["seed"] == seed]
        assert used[-1] > 0.2
        assert all(use <= 0.2 for use in used[:-1])


def test_loads_above_a_cutoff_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cutoffs = tmp_path / "cutoffs.json"
    cutoffs.write_text('{"4:4:4": {"max_min_fairness": 1.5}}')
    words = ("-l", str(tmp_path / "logs"), "-a", "1", "-b", "2", "-n", "2", "--cutoff-throughputs-file", str(cutoffs))
    assert run(capsys, "continuous", *SMALL, *POLICIES, *words)[0] == 0
    loads = {(row["policy"], float(row["jobs_per_hour"])) for row in table(tmp_path / "logs")}
    assert ("max_min_fairness", 2.0) not in loads
    assert len(loads) == 3
    cutoffs.write_text('{"4:4:4": {"max_min_fairness": "much"}}')
    code, _, err = run(capsys, "continuous", *SMALL, *POLICIES, *words)
    assert code == 2
    assert "cutoffs.json:1: 4:4:4.max_min_fairness" in err


def test_what_is_not_done_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = f"-l {tmp_path} -c 8:8:8 -a 20 -b 20 -n 1 --seeds 0 1 -f 600 -m -v -j 1"
    code, out, err = run(capsys, "static", "-p", "allox", "isolated", *words.split())
    assert code == 3
    assert [(row["policy"], row["status"]) for row in table(tmp_path)] == [("allox", "failed")] * 2 + [
        ("isolated", "done")
    ] * 2
    assert "allox: 2 runs failed, the first: " in out
    assert "8:8:8 allox seed 0 20 jobs: failed (" in err
    assert "8:8:8 isolated seed 0 20 jobs: done, average JCT" in err


def test_an_unstable_load_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = "-s 10 -e 60 -c 1:1:1 -f 3600 --seeds 0 -j 1 -a 0.5 -b 60 -n 2 --longest-queue 4 --checkpoint-threshold 9"
    code, out, _ = run(capsys, "continuous", "-p", "max_min_fairness", "-l", str(tmp_path), *words.split())
    assert code == 0
    assert [row["status"] for row in table(tmp_path)] == ["done", "unstable"]
    assert "unstable" in out


def test_a_run_may_not_take_longer_than_its_timeout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("-p", "isolated", "-l", str(tmp_path), "-a", "1", "-b", "1", "-n", "1")
    code, _, _ = run(capsys, "continuous", *SMALL, *words, "-t", "0.000001")
    assert code == 3
    assert {row["status"] for row in table(tmp_path)} == {"timeout"}
    assert run(capsys, "continuous", *SMALL, *words)[0] == 0


def test_profiling_is_swept_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("-p", "max_min_fairness_packed", "-l", str(tmp_path), "-a", "2", "-b", "2", "-n", "1", "--seeds", "0")
    lists = ("--profiling_percentages", "0.3", "1.0", "--num_reference_models", "4", "16")
    assert run(capsys, "continuous", *SMALL, *words, *lists)[0] == 0
    found = {(row["profiling_percentage"], row["num_reference_models"]) for row in table(tmp_path)}
    assert found == {("0.3", "4"), ("0.3", "16"), ("1.0", "4"), ("1.0", "16")}
    assert "30 % profiled, 4 references" in (tmp_path / "sweep.html").read_text()


def test_two_sweeps_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = tmp_path / "cheap", tmp_path / "dear"
    words = ("continuous", *SMALL, *POLICIES, "-a", "1", "-b", "2", "-n", "2")
    run(capsys, *words, "-l", str(a), "--restart-s", "0")
    run(capsys, *words, "-l", str(b), "--restart-s", "300")
    code, out, _ = run(capsys, "compare", str(a), str(b), "--format", "json", "--out", str(tmp_path / "both.html"))
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == 4
    for row in rows:
        found = row["avg_jct_s"]
        assert found["ratio"] == pytest.approx(found["b"] / found["a"])
        assert found["ratio"] > 1
        assert found["common_seeds"] == 2
        assert found["difference"] == pytest.approx(found["b"] - found["a"])
        assert found["plus_minus"] >= 0
    page = (tmp_path / "both.html").read_text()
    assert "cheap: max_min_fairness_perf" in page
    assert "dear: max_min_fairness_perf" in page
    assert "B / A" in run(capsys, "compare", str(a), str(b))[1]
    code, _, err = run(capsys, "compare", str(a), str(tmp_path))
    assert code == 2
    assert "found no sweep.json" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-p", "isolated"), "give the loads: -a and -b"),
        (("-p", "isolatd", "-a", "0", "-b", "1"), "no cluster policy is called 'isolatd'"),
        (("-a", "0", "-b", "1", "-s", "9", "-e", "3"), "window 9 to 3"),
        (("-a", "0", "-b", "1", "-c", "1:1"), "expected 3 numbers"),
        (("-a", "0", "-b", "0"), "no load is left to run"),
        (("-a", "0", "-b", "1", "-u", "3"), "utilization_threshold 3: expected more than 0, up to 1"),
        (("-a", "0", "-b", "1", "--seeds"), "seeds: expected at least one value"),
        (("-a", "0", "-b", "1", "--throughputs-file", "none.json"), "none.json: no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "continuous", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.rglob("*.csv")) == []


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    """One run takes a moment, the other far too long; it is interrupted once the first is kept."""
    words = f"cluster sweep static -l {tmp_path} -p max_min_fairness_perf --seeds 0 -c 2:2:2 -a 2 -b 9000 -n 2 -j 2"
    # A shell that starts tests in the background has them ignore Ctrl-C, and their children too.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from dovetail.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(lambda: list(tmp_path.rglob("num_total_jobs=2.json")) or process.poll() is not None)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()  # ends when the last process has closed the pipe
        assert process.returncode == 130
        assert b"1 runs are kept in" in err
        assert b"max_min_fairness_perf      2       1" in out
        assert b"sweep.html" in out
        assert (tmp_path / "sweep.html").exists()
        assert err.endswith(b"interrupted\n")
        assert [row["num_total_jobs"] for row in table(tmp_path)] == ["2"]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
