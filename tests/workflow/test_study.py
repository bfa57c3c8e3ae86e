"""Studies over many runs: one row per policy and pool, and the fewest GPUs held against every pool size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.testing.workflow.random_workloads import random_case, read_case
from dovetail.workflow.check import check_journal
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.simulate import run
from dovetail.workflow.study import StudyCell, compare, fewest_gpus, run_cell

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 2, "load_time_seconds": 5},
        "huge": {"memory_gb": 400, "gpus_required": 64, "load_time_seconds": 5},
    },
    "workflows": {
        "story": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "draw", "model": "sd"}],
            "edges": [{"from": "write", "to": "draw"}],
        },
        "talk": {"nodes": [{"id": "say", "model": "llm"}]},
        "never asked for": {"nodes": [{"id": "train", "model": "huge"}]},
    },
}
ROWS: list[dict[str, Any]] = [
    {
        "request_id": f"r{i}",
        "workflow_id": "story" if i % 3 else "talk",
        "timestamp": 4.0 * i,
        "node_execution_times": {"write": 5 + i % 4, "draw": 3 + i % 7} if i % 3 else {"say": 6 + i % 5},
    }
    for i in range(40)
]


@pytest.fixture
def cell(tmp_path: Path) -> StudyCell:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps({"requests": ROWS}))
    return StudyCell(config=tmp_path / "config.json", requests=tmp_path / "requests.json", policy="dovetail", gpus="4")


# --- compare --------------------------------------------------------------------------------------


def test_a_cell_gives_the_figures_of_a_run_and_a_valid_journal(tmp_path: Path, cell: StudyCell) -> None:
    figures = run_cell(replace(cell, mode="online", journal=tmp_path / "journal.jsonl"))
    outcome = run(WorkflowProblem.read(cell.config, cell.requests, gpus="4", mode="online"))
    assert figures["makespan_s"] == outcome.figures.makespan_s
    assert figures["bound_makespan_s"] == outcome.bounds.makespan_s
    assert (figures["policy"], figures["gpus"], figures["seed"]) == ("dovetail", "4", 0)
    report = check_journal(tmp_path / "journal.jsonl", cell.config, cell.requests)
    assert report.faults == []
    assert report.counted["makespan_s"] == figures["makespan_s"]


def test_one_row_per_pool_and_policy_in_the_order_of_the_cells(cell: StudyCell) -> None:
    cells = [replace(cell, gpus=gpus, policy=policy) for gpus in ("2", "8") for policy in ("srpt", "baseline")]
    rows = compare(cells, jobs=1)
    assert [(row["gpus"], row["policy"]) for row in rows] == [
        ("2", "srpt"),
        ("2", "baseline"),
        ("8", "srpt"),
        ("8", "baseline"),
    ]
    assert rows[2]["makespan_s"] < rows[0]["makespan_s"]
    for one, row in zip(cells, rows, strict=True):
        alone = run_cell(one)
        assert row["makespan_s"] == alone["makespan_s"]
        assert row["seeds"] == [0]
        assert "makespan_s_min" not in row, "one run has no spread"


def test_processes_give_what_one_process_gives(cell: StudyCell) -> None:
    cells = [replace(cell, gpus=gpus, policy=policy) for gpus in ("2", "4") for policy in ("heft", "static")]
    done: list[int] = []
    alone, together = compare(cells, jobs=1), compare(cells, jobs=2, progress=done.append)
    for row in (*alone, *together):
        del row["simulation_s"]
    assert alone == together
    assert done == [1, 2, 3, 4]


def test_seeds_are_averaged_with_their_spread(cell: StudyCell) -> None:
    cells = [replace(cell, seed=seed, costs={"noise": "0.5"}) for seed in (1, 2, 3)]
    [row] = compare(cells, jobs=1)
    spans = [run_cell(one)["makespan_s"] for one in cells]
    assert len(set(spans)) == 3
    assert row["makespan_s"] == pytest.approx(sum(spans) / 3)
    assert (row["makespan_s_min"], row["makespan_s_max"]) == (min(spans), max(spans))
    assert row["seeds"] == [1, 2, 3]
    assert row["completed"] == len(ROWS)


def test_rejected_requests_are_in_the_row(tmp_path: Path, cell: StudyCell) -> None:
    rows = [*ROWS, {"request_id": "x", "workflow_id": "never asked for"}]
    cell.requests.write_text(json.dumps({"requests": rows}))
    [row] = compare([replace(cell, on_error="reject")], jobs=1)
    assert (row["completed"], row["rejected"]) == (len(ROWS), 1)
    [row] = compare([replace(cell, on_error="skip")], jobs=1)
    assert (row["completed"], row["rejected"], row["skipped"]) == (len(ROWS), 0, 1)
    with pytest.raises(InputError, match="needs 64 GPUs, the pool has 4"):
        compare([cell], jobs=1)


def test_a_file_that_changed_is_read_again(cell: StudyCell) -> None:
    before = run_cell(cell)["completed"]
    cell.requests.write_text(json.dumps({"requests": ROWS[:7]}))
    assert (before, run_cell(cell)["completed"]) == (40, 7)


# --- plan -----------------------------------------------------------------------------------------


def every_size(cell: StudyCell, target: str, most: int) -> dict[int, float]:
    """What each pool size gives: the brute force."""
    found = {}
    for gpus in range(1, most + 1):
        problem = WorkflowProblem.read(cell.config, cell.requests, gpus=str(gpus), mode=cell.mode, on_error="reject")
        figures = run(problem, cell.policy).figures
        if not figures.rejected:
            response = figures.response_s
            found[gpus] = {"makespan": figures.makespan_s, "mean": response.mean, "p99": response.p99}[target]
    return found


@pytest.mark.parametrize("target", ["makespan", "mean", "p99"])
@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("policy", ["dovetail", "baseline"])
def test_the_answer_holds_against_every_pool_size(cell: StudyCell, target: Any, mode: Any, policy: str) -> None:
    cell = replace(cell, mode=mode, policy=policy)
    sizes = every_size(cell, target, 32)
    assert min(sizes) == 2, "the widest node that is asked for"
    asked = sorted({*sizes.values()})
    for limit_s in (*asked[:: max(1, len(asked) // 6)], asked[0] * 0.9, asked[-1] * 2):
        answer = fewest_gpus(cell, target, limit_s, most=32)
        assert all(sizes[gpus] == value for gpus, value in answer.tried.items())
        assert all(value > limit_s and sizes[gpus] >= value for gpus, value in answer.ruled_out.items())
        if answer.gpus is None:
            assert sizes[32] > limit_s
            continue
        assert sizes[answer.gpus] == answer.value_s
        assert sizes[answer.gpus] <= limit_s, "this size meets the limit"
        assert answer.gpus == 2 or sizes[answer.gpus - 1] > limit_s, "the next smaller one does not"
        assert answer.reason


def test_a_size_below_a_bound_is_ruled_out_without_a_run(cell: StudyCell) -> None:
    area_s = sum(sum(row["node_execution_times"].values()) for row in ROWS)
    answer = fewest_gpus(cell, "makespan", area_s / 8, most=64)
    assert answer.ruled_out
    assert set(answer.ruled_out).isdisjoint(answer.tried)


@pytest.mark.parametrize(
    ("limit_s", "most", "reason"),
    [
        (1.0, 1024, "no schedule on 1024 GPUs can be below"),
        (1e9, 1, "the widest node needs 2 GPUs"),
        (1e9, 0, "the widest node needs 2 GPUs"),
        (20.0, 3, "GPUs"),
    ],
)
def test_a_limit_that_cannot_be_met_is_told(cell: StudyCell, limit_s: float, most: int, reason: str) -> None:
    answer = fewest_gpus(cell, "makespan", limit_s, most=most)
    assert (answer.gpus, answer.value_s) == (None, None)
    assert reason in answer.reason


def test_a_loose_limit_is_met_by_the_widest_node(cell: StudyCell) -> None:
    answer = fewest_gpus(cell, "p99", 1e9)
    assert (answer.gpus, answer.reason) == (2, "the widest node needs 2 GPUs")


def test_nothing_to_do_is_done_by_one_gpu(cell: StudyCell) -> None:
    cell.requests.write_text('{"requests": []}')
    assert fewest_gpus(cell, "makespan", 1.0).gpus == 1


@pytest.mark.parametrize("limit_s", [0.0, -5.0, float("nan")])
def test_a_limit_must_be_positive(cell: StudyCell, limit_s: float) -> None:
    with pytest.raises(InputError, match="the limit must be positive"):
        fewest_gpus(cell, "mean", limit_s)


def test_a_target_needs_all_requests(cell: StudyCell) -> None:
    rows = [*ROWS, {"request_id": "x", "workflow_id": "nothing", "timestamp": 0}]
    cell.requests.write_text(json.dumps({"requests": rows}))
    with pytest.raises(InputError, match="unknown workflow 'nothing'"):
        fewest_gpus(cell, "mean", 1e9)
    with pytest.raises(InputError, match="1 requests were rejected: a target needs them all"):
        fewest_gpus(replace(cell, on_error="reject"), "mean", 1e9)


def test_random_cases_are_answered_as_brute_force_answers_them(tmp_path: Path) -> None:
    answered = 0
    config, requests = tmp_path / "config.json", tmp_path / "requests.json"
    for seed in range(40):
        case = random_case(seed)
        read_case(case._replace(rows=[row for row in case.rows if row["workflow_id"] != "nothing"]), tmp_path)
        cell = StudyCell(config=config, requests=requests, policy="dovetail", gpus="1", mode=case.mode)
        sizes = every_size(cell, "makespan", 12)
        if not sizes:
            continue
        limit_s = sorted(sizes.values())[len(sizes) // 2]
        answer = fewest_gpus(cell, "makespan", limit_s, most=12)
        if answer.gpus is None:
            assert sizes[12] > limit_s, f"case {seed}"
            continue
        answered += 1
        assert sizes[answer.gpus] <= limit_s, f"case {seed}"
        assert sizes.get(answer.gpus - 1, float("inf")) > limit_s, f"case {seed}"
    assert answered > 20
