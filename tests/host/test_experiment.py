"""Experiments: one workload for all policies, the older files and folders, resumed where they stopped."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.host.experiment import ExperimentCell, Result, comparison, run_all, run_cell, summarise, write_workloads
from dovetail.host.export import COMPARISON, EVENTS, run_files
from dovetail.host.inputs.parameters import Parameters
from dovetail.host.inputs.requests import Request
from dovetail.host.inputs.workload import Workload
from dovetail.host.metrics import Programs
from dovetail.host.options import HostOptions
from dovetail.host.simulate import run

PARAMETERS = Parameters(
    number_containers=4, time_gap=(5.0, 0.0), resources_distribution="random", resources_per_container=(2, 9)
)


def cells(out: Path, sizes: tuple[int, ...] = (4, 8), repeats: int = 2) -> list[ExperimentCell]:
    files = write_workloads(out, PARAMETERS, sizes, repeats, seed=1)
    return [
        ExperimentCell(
            requests=files[size, repeat],
            containers=size,
            repeat=repeat,
            cores=16,
            work=100.0,
            curves={},
            options=HostOptions(plan=plan, assign=assign),
        )
        for size in sizes
        for plan in ("fcfs", "rr")
        for assign in ("strict", "max_prop")
        for repeat in range(1, repeats + 1)
    ]


def test_an_experiment_fills_the_older_folders(tmp_path: Path) -> None:
    results = run_all(tmp_path, cells(tmp_path))
    assert len(results) == 16
    folder = tmp_path / "fcfs/strict/4Contenedores_maleable"
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert names == {
        "containers_failed.txt",
        "gantt_events.txt",
        "occupation_timeline.csv",
        "programs.csv",
        "scheduler_events.txt",
        "summary.json",
        "throughput.txt",
    }
    assert (folder / "repeat-2/summary.json").is_file()
    rows = list(csv.DictReader(comparison(results).splitlines()))
    assert list(rows[0]) == list(COMPARISON)
    assert [(row["Containers"], row["Policy"], row["Asignment Policy"]) for row in rows[:2]] == [
        ("4", "fcfs", "strict"),
        ("4", "fcfs", "max_prop"),
    ]


def test_priorities_are_compared_one_by_one(tmp_path: Path) -> None:
    made = [msgspec.structs.replace(c, options=HostOptions(plan="priority")) for c in cells(tmp_path, (8,), 2)[:2]]
    results = run_all(tmp_path, made)
    assert run_all(tmp_path, made) == results  # as read back
    whole, *each = csv.DictReader(comparison(results).splitlines())
    assert whole["Priority"] == ""
    files = [cell.folder(tmp_path) / "programs.csv" for cell in made]
    programs = [list(csv.DictReader(file.read_text().splitlines())) for file in files]
    assert [row["Priority"] for row in each] == sorted({p["priority"] for run in programs for p in run})
    for row in each:
        runs = [[float(p["turnaround_s"]) for p in run if p["priority"] == row["Priority"]] for run in programs]
        means = [sum(times) / len(times) for times in runs if times]
        assert float(row["TMER"]) == pytest.approx(sum(means) / len(means), abs=1e-5)
        assert row["TT"] == whole["TT"]


def test_all_policies_meet_the_same_workload_and_repeats_differ(tmp_path: Path) -> None:
    made = cells(tmp_path)
    assert len({cell.requests for cell in made if cell.containers == 4}) == 2
    first, second = ((tmp_path / name).read_text() for name in ("requests_4.txt", "requests_4_2.txt"))
    assert first != second


def test_a_resumed_experiment_reads_what_is_there(tmp_path: Path) -> None:
    made = cells(tmp_path)
    half = run_all(tmp_path, made[:5])
    marked = made[0].folder(tmp_path) / "summary.json"
    found = json.loads(marked.read_text())
    found["totals"]["makespan_s"] = -1.0  # so that it can be told from a run of now
    marked.write_text(json.dumps(found))
    whole = run_all(tmp_path, made)
    assert whole[0].totals["makespan_s"] == -1.0
    assert whole[1:5] == half[1:]
    assert len(whole) == len(made)


def test_another_experiments_results_are_not_taken_for_ours(tmp_path: Path) -> None:
    cell = cells(tmp_path)[0]
    run_cell(tmp_path, cell)
    with pytest.raises(InputError, match="another experiment"):
        run_cell(tmp_path, msgspec.structs.replace(cell, work=7.0))
    with pytest.raises(InputError, match="holds something else"):
        write_workloads(tmp_path, PARAMETERS, [4], 1, seed=2)


def test_a_torn_summary_is_not_taken_for_one(tmp_path: Path) -> None:
    cell = cells(tmp_path)[0]
    run_cell(tmp_path, cell)
    (cell.folder(tmp_path) / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json"):
        run_cell(tmp_path, cell)


def test_means_have_intervals() -> None:
    cell = ExperimentCell(requests="", containers=1, repeat=1, cores=1, work=None, curves={}, options=HostOptions())
    keys = ("makespan_s", "mean_first_run_s", "mean_turnaround_s", "mean_total_s", "mean_waiting_s", "core_use")
    results = [Result(cell, dict.fromkeys((*keys, "throughput_per_h"), value)) for value in (1.0, 3.0)]
    (row,) = summarise(results)
    assert (row["runs"], row["makespan_s"]) == (2, 2.0)
    assert row["makespan_s_ci95"] == pytest.approx(12.706)
    (row,) = summarise(results[:1])
    assert (row["makespan_s"], row["makespan_s_ci95"]) == (1.0, None)


def test_the_older_files_tell_of_resizes_and_pauses() -> None:
    requests = [Request(1, "execution", str(i), "img", 12, 0.0, work=w) for i, w in enumerate((1200.0, 1200.0, 600.0))]
    options = HostOptions(plan="rr", assign="always_attend")
    programs = Programs(16)
    run(Workload.of(requests, 16), options, [programs])
    files = run_files(programs, options, 16, "resnet", "maleable")
    gantt = list(csv.DictReader(files["gantt_events.txt"].splitlines()))
    assert [row["Cores"] for row in gantt if row["Task"] == "-1"] == ["0", "1", "2"]
    mine = [row["Cores"] for row in gantt if row["Task"] == "0"]
    assert mine == ["12", "4", "0", "12", "4", "12"]  # 0: it was paused
    events = list(csv.DictReader(files["scheduler_events.txt"].splitlines()))
    assert list(events[0]) == list(EVENTS)
    first = events[0]
    assert (first["User_Inter"], first["User_Intra"], first["Inter"], first["Intra"]) == ("1", "11", "1", "11")
    assert first["Pause_Count"] == "3"
    assert first["Execution_Finish"] == "2000-01-01 00:03:10.000000"
    assert float(first["Wait_Time"]) == 30.0
    use = list(csv.DictReader(files["occupation_timeline.csv"].splitlines()))
    assert {row["Cores"] for row in use[:6]} == {"100.0"}
    assert files["containers_failed.txt"] == "0\n"
