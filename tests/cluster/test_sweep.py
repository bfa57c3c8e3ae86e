"""Sweeps: the grid, what is kept of it, and that another configuration is not mixed in."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import Scenario
from dovetail.cluster.rules import ClusterOptions, RoundRules
from dovetail.cluster.sweeps.cell import SweepCell, kept, kept_at, run_cell
from dovetail.cluster.sweeps.grid import SweepGrid, claim, climb, climbs, loads_between, run_sweep
from dovetail.cluster.sweeps.table import COLUMNS, KEYS, read_sweep, write_table
from dovetail.core.errors import InputError


def grid_in(folder: Path, **more: Any) -> SweepGrid:
    given: dict[str, Any] = {
        "kind": "continuous",
        "folder": folder,
        "base": Scenario(window=(2, 6), duration_s=3600.0),
        "clusters": ("2:2:2",),
        "policies": ("isolated", "max_min_fairness_perf"),
        "seeds": (0, 1),
        "loads": (1.0, 2.0),
    }
    return SweepGrid(**given | more)


def test_a_grid_has_every_combination_light_loads_first(tmp_path: Path) -> None:
    cells = grid_in(tmp_path).cells()
    assert len(cells) == len({cell.path for cell in cells}) == 8
    assert [cell.row()["jobs_per_hour"] for cell in cells] == [1.0] * 4 + [2.0] * 4


def test_the_tree_is_that_of_older_sweeps(tmp_path: Path) -> None:
    cell = grid_in(tmp_path, clusters=("36:36:0",), loads=(0.25,)).cells()[0]
    assert cell.path == tmp_path / "raw_logs/v100=36.p100=36.k80=0/isolated/seed=0/lambda=14400.000000"
    static = grid_in(tmp_path, kind="static", loads=(20.0,), base=Scenario()).cells()[0]
    assert static.path is not None
    assert static.path.name == "num_total_jobs=20"
    assert static.scenario.jobs == 20
    profiled = grid_in(tmp_path, profiled=(0.5, 1.0), references=(16,)).cells()[0]
    assert profiled.path is not None
    assert profiled.path.parts[-4:-1] == ("profiling_percentage=0.500000", "num_reference_models=16", "seed=0")


def test_clusters_of_other_types_meet_the_same_jobs() -> None:
    cells = [SweepCell(scenario=Scenario(cluster=f"{kind}=4", jobs=6), policy="isolated") for kind in ("l4", "h100")]
    slow, fast = (run_cell(cell)["avg_jct_s"] for cell in cells)
    assert fast < 0.9 * slow


def test_cutoffs_leave_heavy_loads_out(tmp_path: Path) -> None:
    grid = grid_in(tmp_path, cutoffs={"2:2:2": {"isolated": 2.0}, "1:1:1": {"max_min_fairness_perf": 0.1}})
    left = {(cell.policy, cell.row()["jobs_per_hour"]) for cell in grid.cells()}
    assert left == {("isolated", 1.0), ("max_min_fairness_perf", 1.0), ("max_min_fairness_perf", 2.0)}


@pytest.mark.parametrize(("low", "high", "points"), [(-1, 2, 3), (2, 1, 3), (0, 1, 0), (0, float("inf"), 2)])
def test_loads_that_make_no_sense_are_refused(low: float, high: float, points: int) -> None:
    with pytest.raises(InputError, match="expected 0 <= lower <= upper"):
        loads_between(low, high, points)


def test_a_cell_gives_the_same_whoever_runs_it(tmp_path: Path) -> None:
    """The same bytes but for the time that it took."""
    here, there = (run_cell(grid_in(folder).cells()[0]) for folder in (tmp_path / "a", tmp_path / "b"))
    for row in (here, there):
        assert row["status"] == "done"
        del row["policy_s"], row["cpu_s"]
    assert here == there


def test_a_cell_is_run_by_its_rules(tmp_path: Path) -> None:
    cell = grid_in(tmp_path).cells()[0]
    found = [
        run_cell(replace(cell, path=None, how=how))
        for how in (
            ClusterOptions(),
            ClusterOptions(rules=RoundRules(round_s=720.0)),
            ClusterOptions(ideal=True),
            ClusterOptions(rules=GAVEL, compat=True),
        )
    ]
    own, slow, ideal, old = found
    assert own["rounds"] > slow["rounds"] > 0
    assert ideal["rounds"] == 0 < ideal["allocations"]
    assert own["leases"] > old["leases"] == 0 < old["rounds"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    grid = grid_in(tmp_path)
    ran: list[SweepCell] = []

    def run(cell: SweepCell) -> dict[str, Any]:
        ran.append(cell)
        return run_cell(cell)

    run_sweep(grid, None, 1, run=run)
    assert len(ran) == 8
    assert grid.cells()[3].path is not None
    kept_at(grid.cells()[3].path).unlink()  # type: ignore[arg-type]
    run_sweep(grid_in(tmp_path, seeds=(0, 1, 2)), None, 1, run=run)
    again = {(cell.policy, cell.scenario.seed, cell.row()["jobs_per_hour"]) for cell in ran[8:]}
    assert again == {
        ("max_min_fairness_perf", 1, 1.0),
        *((policy, 2, rate) for policy in grid.policies for rate in (1.0, 2.0)),
    }


def test_a_torn_result_is_run_again(tmp_path: Path) -> None:
    cell = grid_in(tmp_path).cells()[0]
    row = run_cell(cell)
    assert cell.path is not None
    content = kept_at(cell.path).read_bytes()
    assert kept(cell) == json.loads(content) == json.loads(json.dumps(row))
    kept_at(cell.path).write_bytes(content[: len(content) // 2])
    assert kept(cell) is None


def test_a_failed_run_is_a_result_but_is_tried_again(tmp_path: Path) -> None:
    cell = grid_in(tmp_path, base=Scenario(window=(2, 60), multi_gpu=True), policies=("allox",)).cells()[0]
    row = run_cell(cell)
    assert row["status"] == "failed"
    assert "allox" in row["reason"]
    assert kept(cell) is None


def test_a_run_without_enough_time_is_tried_again_only_with_more(tmp_path: Path) -> None:
    cell = replace(grid_in(tmp_path).cells()[0], timeout_s=1e-9)
    assert run_cell(cell)["status"] == "timeout"
    assert kept(cell) is not None
    assert kept(replace(cell, timeout_s=60.0)) is None
    assert kept(replace(cell, timeout_s=None)) is None


def test_an_unstable_load_ends_and_is_told(tmp_path: Path) -> None:
    base = Scenario(window=(50, 100), duration_s=3600.0)
    cell = grid_in(tmp_path, base=base, loads=(40.0,), long=2.0).cells()[0]
    row = run_cell(cell)
    assert row["status"] == "unstable"
    assert "avg_jct_s" not in row
    assert kept(cell) == row


CHANGES: dict[str, dict[str, Any]] = {
    "how.rules.round_s was 360.0, and is 720.0": {"how": ClusterOptions(rules=RoundRules(round_s=720.0))},
    "how.compat was False, and is True": {"how": ClusterOptions(rules=GAVEL, compat=True)},
    "scenario.window was [2, 6], and is [2, 7]": {"base": Scenario(window=(2, 7), duration_s=3600.0)},
    "kind was continuous, and is static": {"kind": "static", "base": Scenario(window=(2, 6), duration_s=3600.0)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_configuration_is_refused(tmp_path: Path, change: str) -> None:
    grid = grid_in(tmp_path)
    claim(grid)
    claim(grid_in(tmp_path, seeds=(7,), policies=("isolated",), clusters=("4:4:4",), loads=(3.0,)))
    with pytest.raises(InputError) as error:
        claim(grid_in(tmp_path, **CHANGES[change]))
    assert change in str(error.value)


def test_a_file_whose_content_changed_is_another_configuration(tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("model,type,steps_per_s\nLM,v100,2\n")
    grid = grid_in(tmp_path / "logs", base=Scenario(throughputs=rates), clusters=("2:0:0",))
    claim(grid)
    claim(grid)
    rates.write_text("model,type,steps_per_s\nLM,v100,3\n")
    with pytest.raises(InputError, match="holds a sweep of another configuration: files"):
        claim(grid)


@pytest.mark.parametrize("name", ["results.csv", "sweep.html", "raw_logs"])
def test_what_a_person_put_there_is_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"holds {name}, but no sweep.json"):
        claim(grid_in(tmp_path))


def test_a_climb_ends_above_the_threshold(tmp_path: Path) -> None:
    grid = grid_in(tmp_path, base=Scenario(window=(5, 25), duration_s=3600.0), seeds=(0,), policies=("isolated",))
    [task] = climbs(grid, threshold=0.5, step=0.5)
    rows = climb(task)
    used = [row["utilization"] for row in rows]
    assert len(used) > 2
    assert all(use <= 0.5 for use in used[:-1])
    assert used[-1] > 0.5
    assert [row["jobs_per_hour"] for row in rows] == [0.5 * (i + 1) for i in range(len(rows))]
    assert climb(task, run=None) == rows  # type: ignore[arg-type]  # all are kept: nothing is run


def test_a_climb_ends_at_its_limit_and_where_a_load_is_not_borne(tmp_path: Path) -> None:
    base = Scenario(window=(20, 60), duration_s=3600.0)
    grid = grid_in(tmp_path, base=base, seeds=(0,), policies=("isolated",), long=1.0)
    [limited] = climbs(grid, threshold=1.0, step=0.5, most=1.0)
    assert len(climb(limited)) == 2
    [climbing] = climbs(grid, threshold=1.0, step=10.0)
    assert [row["status"] for row in climb(climbing)] == ["done", "unstable"][-len(climb(climbing)) :]


def test_a_climb_without_a_step_starts_light(tmp_path: Path) -> None:
    [small] = climbs(grid_in(tmp_path, seeds=(0,), policies=("isolated",)), threshold=0.5)
    [large] = climbs(grid_in(tmp_path, seeds=(0,), policies=("isolated",), clusters=("20:20:20",)), threshold=0.5)
    assert 0 < small.step < large.step < 60 / 16


def test_the_table_has_one_row_per_run(tmp_path: Path) -> None:
    grid = grid_in(tmp_path)
    run_sweep(grid, None, 1)
    rows = read_sweep(tmp_path)
    write_table(rows, tmp_path)
    with (tmp_path / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS)
    assert len(table) == 8
    for line, row in zip(table, rows, strict=True):
        assert float(line["avg_jct_s"]) == row["avg_jct_s"]
        assert line["policy"] == row["policy"]
    keys = [tuple(line[key] for key in KEYS) for line in table]
    assert len(set(keys)) == 8


def test_where_pyarrow_is_installed_there_is_a_parquet_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    row = run_cell(grid_in(tmp_path).cells()[0]) | {"reason": ""}
    assert write_table([row], tmp_path) == [tmp_path / "results.csv", tmp_path / "results.parquet"]
    assert parquet.read_table(tmp_path / "results.parquet").to_pylist()[0]["avg_jct_s"] == row["avg_jct_s"]


def test_a_folder_that_is_no_sweep_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no sweep\.json"):
        read_sweep(tmp_path)


def test_processes_do_the_same_work(tmp_path: Path) -> None:
    """Two processes, and a climb for each policy."""
    grid = grid_in(tmp_path, seeds=(0,))
    done: list[tuple[int, int]] = []
    run_sweep(grid, (0.3, 1.0, 2.0), 2, lambda made, of: done.append((made, of)))
    assert done == [(0, 2), (1, 2), (2, 2)]
    assert {row["policy"] for row in read_sweep(tmp_path)} == set(grid.policies)
