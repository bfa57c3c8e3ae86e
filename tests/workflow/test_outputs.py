"""What a run leaves behind: the text log, the block of metrics, the execution log, the summary."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Event, Failed, Finished, Reject, Start
from dovetail.core.journal import Ended, Header, Observer
from dovetail.core.metrics import Figures, Metrics
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraphRecord
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.compat.execution_log import ExecutionLog, log_summary
from dovetail.workflow.compat.text_log import TextLog
from dovetail.workflow.metrics import RejectionReasons, gap, metrics_block, summary, switch_overhead

HEADER = Header(
    level="workflow",
    policy="by hand",
    mode="online",
    pool=Pool.parse("2", {}),
    graphs=(TaskGraphRecord("w", (Task("wide", "big", 2), Task("tool", "none", 0)), (("wide", "tool"),)),),
    facts={"models": {"big": {"memory_gb": 8, "load_s": 3, "width": 2}}, "costs": {"overlap": 0.5}, "retries": 1},
)
STEPS: list[tuple[float, list[Event]]] = [
    (
        0.0,
        [
            Arrived("a", "w", (4.0, 1.0)),
            Arrived("b", "w", fault="no times"),
            Reject("b", "no times"),
            Start("a", "wide", "big", (0, 1), 0.0, 4.0, "free", 3.0),
        ],
    ),
    (5.0, [Failed("a", "wide", "out of memory"), Start("a", "wide", "big", (0, 1), 5.0, 4.0, "again")]),
    (9.0, [Finished("a", "wide"), Start("a", "tool", "none", (), 9.0, 1.0, "needs no GPU")]),
    (10.0, [Finished("a", "tool"), Complete("a")]),
]
BOUNDS = Bounds(8.0, 5.0, 5.0, 5.0, 8.0, 7.0, 6.0, 5.0, "area")


def follow(*observers: Observer) -> Figures:
    metrics = Metrics(HEADER.pool)
    for n, (t, events) in enumerate(STEPS, start=1):
        for observer in (metrics, *observers):
            observer.step(n, t, events)
    return metrics.figures()


# --- the text log ----------------------------------------------------------------------------------


def test_the_text_log_has_the_lines_people_know() -> None:
    file = io.StringIO()
    log = TextLog(file)
    log.begin(HEADER, requests=2)
    follow(log)
    log.step(5, 10.0, [Ended()])
    log.close()
    assert file.getvalue().splitlines() == [
        "Starting by hand scheduler with 2 requests",
        "Mode: online, simulated: no model is called",
        "Available GPUs: [0, 1]",
        "Starting discrete event simulation...",
        "[0.00s] Processing request a (workflow: w)",
        "[0.00s] Processing request b (workflow: w)",
        "[0.00s] Request b rejected: no times",
        "[0.00s] Scheduling model switch on GPU(s) [0, 1] from None to big (switch time: 3.00s)",
        "[0.00s] Scheduled node wide of request a on GPU(s) [0, 1] (start: 3.00s, end: 7.00s)",
        "[5.00s] Failed node wide of request a on GPU(s) [0, 1]: out of memory",
        "[5.00s] Scheduled node wide of request a on GPU(s) [0, 1] (start: 5.00s, end: 9.00s)",
        "[9.00s] Completed node wide of request a on GPU(s) [0, 1]",
        "[9.00s] Scheduled node tool of request a on GPU(s) [] (start: 9.00s, end: 10.00s)",
        "[10.00s] Completed node tool of request a on GPU(s) []",
        "[10.00s] Request a completed",
        "Simulation completed at time 10.00s",
    ]


def test_a_batch_has_one_switch_and_names_what_leaves() -> None:
    file = io.StringIO()
    log = TextLog(file)
    log.step(1, 2.0, [Start(work, "n", "new", (1,), 0.0, 2.0, "", 1.5, "old", 7) for work in "xy"])
    log.step(1, 2.0, [Start("z", "n", "new", (0,), 0.0, 2.0, "", 1.5, "old")])
    log.close()
    lines = file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["Scheduling", "Scheduled", "Scheduled", "Scheduling", "Scheduled"]
    assert lines[0] == "[2.00s] Scheduling model switch on GPU(s) [1] from old to new (switch time: 1.50s)"


def test_the_console_may_get_only_the_first_lines() -> None:
    file, console = io.StringIO(), io.StringIO()
    log = TextLog(file, console, console_lines=2)
    follow(log)
    log.close()
    assert len(file.getvalue().splitlines()) == 11
    assert console.getvalue().splitlines() == [*file.getvalue().splitlines()[:2], "... 9 more lines in the log"]


def test_many_lines_are_written_in_order_and_all() -> None:
    file, console = io.StringIO(), io.StringIO()
    log = TextLog(file, console)
    for n in range(10_000):
        log.step(n, float(n), [Complete(f"r{n}")])
    log.close()
    assert file.getvalue().splitlines() == [f"[{n}.00s] Request r{n} completed" for n in range(10_000)]
    assert console.getvalue() == file.getvalue()


# --- the block of metrics and the summary ------------------------------------------------------------


def test_the_metrics_block() -> None:
    rejections = RejectionReasons()
    figures = follow(rejections)
    assert metrics_block(figures, BOUNDS, rejections.reasons, skipped=3).splitlines() == [
        "",
        "=" * 60,
        "EXECUTION METRICS",
        "=" * 60,
        "Total execution time (makespan): 10.00 seconds",
        "Total nodes executed: 2",
        "Simulated: no model was called",
        "",
        "Requests: 1 completed, 1 rejected, 3 skipped",
        "  1 rejected: no times",
        "Failed attempts: 1",
        "",
        "Request completion times:",
        "  Average: 10.00s",
        "  Median: 10.00s",
        "  P99: 10.00s",
        "  Min: 10.00s",
        "  Max: 10.00s",
        "",
        "GPU utilization:",
        "  GPU 0: 1 executions, 9.00s busy time (90.0% utilization)",
        "  GPU 1: 1 executions, 9.00s busy time (90.0% utilization)",
        "",
        "Model execution counts:",
        "  big: 1 executions",
        "  none: 1 executions",
        "",
        "Model switching:",
        "  Total switches: 0",
        "  Total switch time: 0.00 seconds",
        "  First loads: 1 (3.00 seconds)",
        "  Switch overhead: 30.0% of GPU time",
        "",
        "Lower bounds (no schedule can be shorter; makespan by area):",
        "  Makespan: 8.00s (gap 25.00%)",
        "  Average: 5.00s (gap 100.00%)",
        "  Median: 5.00s (gap 100.00%)",
        "  P99: 5.00s (gap 100.00%)",
    ]


def test_only_the_first_reasons_are_shown() -> None:
    rejections = RejectionReasons()
    metrics = Metrics(HEADER.pool)
    whys = ["why 0", "why 0", *(f"why {i}" for i in range(9))]
    events = [x for i, why in enumerate(whys) for x in (Arrived(f"r{i}", "w", fault=why), Reject(f"r{i}", why))]
    rejections.step(1, 0.0, events)
    metrics.step(1, 0.0, events)
    block = metrics_block(metrics.figures(), None, rejections.reasons)
    assert "Requests: 0 completed, 11 rejected\n  3 rejected: why 0\n  1 rejected: why 1\n" in block
    assert "  1 rejected: why 4\n  ... and 4 for other reasons\n" in block
    assert "Request completion times: none was completed" in block
    assert "bounds" not in block


def test_the_overhead_is_a_share_of_all_gpus_time() -> None:
    assert switch_overhead(follow()) == pytest.approx(2 * 3.0 / (2 * 10.0))
    assert switch_overhead(Metrics(HEADER.pool).figures()) == 0.0


def test_there_is_no_gap_to_a_bound_of_nothing() -> None:
    assert gap(10.0, 8.0) == 0.25
    assert gap(10.0, 0.0) is None


def test_the_summary_has_the_keys_of_the_reference(golden: Path) -> None:
    figures = follow()
    result = summary(HEADER, figures, BOUNDS, skipped=3)
    reference = json.loads((golden / "workflow" / "expected.json").read_text())["baseline_compat"][0]
    assert set(reference) - {"set"} <= set(result)
    expected: dict[str, Any] = {
        "policy": "by hand",
        "mode": "online",
        "gpus": 2,
        "completed": 1,
        "rejected": 1,
        "skipped": 3,
        "makespan_s": 10.0,
        "switches": 0,
        "avg_request_s": 10.0,
        "bound_makespan_s": 8.0,
        "bound_p99_s": 5.0,
        "gap_makespan": 0.25,
        "utilisation": 0.9,
    }
    assert {key: result[key] for key in expected} == expected


# --- the execution log -------------------------------------------------------------------------------


def test_the_execution_log(tmp_path: Path) -> None:
    path = tmp_path / "out" / "log.json"
    with ExecutionLog(HEADER, path) as log:
        figures = follow(log)
        assert not path.exists()
        log.write(figures, BOUNDS)
    content = json.loads(path.read_text())
    assert list(content)[:2] == ["summary", "made_by"]
    wide = {
        "request_id": "a",
        "workflow_id": "w",
        "node_id": "wide",
        "model_name": "big",
        "gpu_id": 0,
        "start_time": 5.0,
        "end_time": 9.0,
        "execution_time": 4.0,
        "estimated_time": 4.0,
        "switch_time": 0.0,
        "waiting_time": 0.0,
        "gpu_ids": [0, 1],
        "ready_time": 5.0,
        "switch_start": 5.0,
        "from_model": None,
        "decision": 2,
    }
    failed = {"start_time": 3.0, "end_time": 5.0, "execution_time": 2.0, "switch_time": 3.0, "switch_start": 0.0}
    tool: dict[str, Any] = {
        "node_id": "tool",
        "model_name": "none",
        "gpu_id": None,
        "start_time": 9.0,
        "end_time": 10.0,
        "gpu_ids": [],
    }
    taken = {"execution_time": 1.0, "estimated_time": 1.0, "ready_time": 9.0, "switch_start": 9.0, "decision": 3}
    assert content["executions"] == [wide, wide | tool | taken]
    assert content["failures"] == [wide | failed | {"ready_time": 0.0, "decision": 1, "reason": "out of memory"}]
    assert content["requests"] == [
        {
            "request_id": "b",
            "workflow_id": "w",
            "arrival_time": 0.0,
            "completion_time": None,
            "response_time": None,
            "status": "rejected",
            "reason": "no times",
            "sizes": [],
        },
        {
            "request_id": "a",
            "workflow_id": "w",
            "arrival_time": 0.0,
            "completion_time": 10.0,
            "response_time": 10.0,
            "status": "completed",
            "reason": None,
            "sizes": [4.0, 1.0],
        },
    ]
    assert content["rejected_requests"] == [{"request_id": "b", "reason": "no times"}]
    assert content["summary"] == log_summary(HEADER, figures)
    assert content["policy"] == "by hand"
    assert content["bounds"]["makespan_s"] == 8.0
    assert content["models"] == HEADER.facts["models"]
    assert (content["costs"], content["compat"]) == ({"overlap": 0.5}, False)
    assert content["facts"] == {"retries": 1}
    assert len(content["pool"]["devices"]) == 2


def test_the_summary_of_the_log_has_the_old_keys_with_durations() -> None:
    result = log_summary(HEADER, follow())
    assert list(result) == [
        "total_requests",
        "completed_requests",
        "rejected_requests",
        "total_nodes_executed",
        "failed_attempts",
        "mode",
        "simulate",
        "gpus",
        "makespan",
        "total_model_switches",
        "total_switch_time",
        "avg_waiting_time",
        "p99_waiting_time",
        "avg_response_time",
        "p99_response_time",
        "avg_request_response_time",
        "p99_request_response_time",
    ]
    assert (result["total_requests"], result["total_nodes_executed"], result["gpus"]) == (2, 2, [0, 1])
    assert result["avg_response_time"] == pytest.approx((4.0 + 1.0) / 2)  # from ready to end, not the clock


def test_executions_are_in_order_of_their_start(tmp_path: Path) -> None:
    """A long node that starts first ends last, and a long switch makes a later decision start earlier."""
    path = tmp_path / "log.json"
    header = Header(level="workflow", policy="p", mode="offline", pool=Pool.parse("4", {}))
    with ExecutionLog(header, path) as log:
        arrivals = [Arrived(work, "w", (1.0,)) for work in "abcd"]
        log.step(1, 0.0, [*arrivals, Start("a", "n", "m", (0,), 0.0, 9.0, ""), Start("b", "n", "m", (1,), 0, 1, "", 5)])
        log.step(2, 1.0, [Start("c", "n", "m", (2,), 0.0, 2.0, "", 1.0)])
        log.step(3, 4.0, [Finished("c", "n"), Complete("c"), Start("d", "n", "m", (2,), 0.0, 0.5, "")])
        log.step(4, 4.5, [Finished("d", "n"), Complete("d")])
        log.step(5, 6.0, [Finished("b", "n"), Complete("b")])
        log.step(6, 9.0, [Finished("a", "n"), Complete("a")])
        log.write(Metrics(header.pool).figures())
    rows = json.loads(path.read_text())["executions"]
    assert [(row["request_id"], row["start_time"]) for row in rows] == [("a", 0.0), ("c", 2.0), ("d", 4.0), ("b", 5.0)]


def test_many_rows_go_to_disk_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with ExecutionLog(HEADER, path) as log:
        for n in range(9000):
            work = f"request_{n}"
            log.step(n, float(n), [Arrived(work, "w", (1.0,)), Start(work, "wide", "big", (0, 1), float(n), 1.0, "")])
            log.step(n, n + 1.0, [Finished(work, "wide"), Complete(work)])
        log.write(Metrics(HEADER.pool).figures())
    content = json.loads(path.read_text())
    assert [row["start_time"] for row in content["executions"]] == list(map(float, range(9000)))
    assert len(content["requests"]) == 9000


def test_a_log_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text("what was there")
    with ExecutionLog(HEADER, path) as log:
        figures = follow(log)
    assert path.read_text() == "what was there"
    with pytest.raises(ValueError, match="closed file"):
        log.write(figures)
    assert path.read_text() == "what was there"
    assert [file.name for file in tmp_path.iterdir()] == ["log.json"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "log.json"
    folder.mkdir()
    with ExecutionLog(HEADER, folder) as log, pytest.raises(InputError, match=r"log\.json: cannot be written"):
        log.write(follow(log))
