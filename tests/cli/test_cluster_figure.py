"""`dovetail cluster figure` and paired differences as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main

SMALL = ("--jobs", "6", "-f", "7200", "-j", "1", "--seeds", "0", "1")
COMMANDS = {
    "rounds": ("--intervals", "360", "1800", "-c", "2:2:2", *SMALL),
    "types": ("--types", "v100", "k80", "--total", "4", "--shares", "0", "0.5", *SMALL),
    "cost": ("--assign-SLOs", "-c", "2:2:2", *SMALL),
    "times": ("--job-counts", "8", "16", "--trials", "1", "--entities", "2"),
    "entities": ("--entities", "research=2", "product=1", "--jobs", "8", "-c", "2:2:2", "--parts", "3"),
}
ROWS = {"rounds": 6, "types": 4, "cost": 3, "times": 4, "entities": 6}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cluster", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_figure_is_a_table_json_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    picture = tmp_path / "figure.svg"
    code, out, err = run(capsys, "figure", name, *COMMANDS[name], "--out", str(picture))
    assert (code, err) == (0, "")
    assert (
        len([line for line in out.splitlines() if "max_" in line or "research" in line or "product" in line])
        == ROWS[name]
    )
    assert "<svg" in picture.read_text()
    assert f"Picture written to {picture}" in out
    code, out, err = run(capsys, "figure", name, *COMMANDS[name], "--format", "json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)) == ROWS[name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rounds", "--out", "rounds.png"), "expected a name that ends in .svg"),
        (("rounds", "--interval", "60"), "expected intervals, without interval"),
        (("types", "-c", "2:2:2"), "the clusters are made of --types"),
        (("types", "--types", "v100"), "types: expected two"),
        (("types", "--total", "1"), "total 1: expected accelerators, 2 or more"),
        (("types", "--shares", "2"), "shares 2: expected 0 to 1"),
        (("times", "--trials", "0"), "trials 0: expected 1 or more"),
        (("entities",), "--entities: expected weights of entities"),
        (("entities", "--entities", "2", "--ideal"), "expected a journal with leases, found a summary"),
        (("cost", "-p", "max_sum_throughput_prf"), "did you mean"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "figure", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_entities_of_a_recorded_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    assert run(capsys, "simulate", "--entities", "2", "--jobs", "6", "--journal", str(journal))[0] == 0
    code, out, _ = run(capsys, "figure", "entities", str(journal), "--parts", "2", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["entity"] for row in rows] == ["entity-0", "entity-1"] * 2


def test_compare_over_seeds_shows_ratios_with_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", *SMALL, "-c", "2:2:2", "-p", "fifo", "fifo_moving")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert "Ratios to fifo (2 seeds), seed by seed" in out
    found = json.loads(run(capsys, *words, "--format", "json")[1])
    assert found[1]["paired"]["avg_jct_s"]["pairs"] == 2
    assert "paired" not in json.loads(run(capsys, "compare", "--jobs", "4", "-j", "1", "--format", "json")[1])[0]


def test_a_sweep_shows_differences_seed_by_seed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("static", "-l", str(tmp_path), "--seeds", "0", "1", "-c", "2:2:2", "-a", "4", "-b", "4", "-n", "1")
    code, out, _ = run(capsys, "sweep", *words, "-p", "max_min_fairness", "fifo", "-j", "1")
    assert code == 0
    assert "against one policy" in out
    code, out, _ = run(capsys, "sweep", "paired", str(tmp_path), "--against", "fifo", "--format", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["policy"], row["against"], row["pairs"]) == ("max_min_fairness", "fifo", 2)
    assert " fifo " in run(capsys, "sweep", "paired", str(tmp_path))[1]
    code, _, err = run(capsys, "sweep", "paired", str(tmp_path), "--against", "fif")
    assert code == 2
    assert "did you mean 'fifo'" in err


def test_stretches_of_a_run_in_epoch_seconds_have_labels_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text("arrival_s,model,steps,entity\n1700000000,m,9000,x\n1700000060,m,9000,y\n")
    (tmp_path / "rates.csv").write_text("model,type,steps_per_s\nm,a,1\n")
    words = ("-t", str(tmp_path / "jobs.csv"), "--throughputs-file", str(tmp_path / "rates.csv"), "-c", "a=1")
    code, out, err = run(capsys, "figure", "entities", *words, "--entities", "x=1", "y=1", "--parts", "4")
    assert (code, err) == (0, "")
    assert "h after first arrival" in out
    labels = [line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["x"]]
    assert labels[0] == "0"
    assert len(set(labels)) == 4
    _, out, _ = run(
        capsys, "figure", "entities", *words, "--entities", "x=1", "y=1", "--parts", "4", "--format", "json"
    )
    assert json.loads(out)[0]["time_s"] == 1.7e9
