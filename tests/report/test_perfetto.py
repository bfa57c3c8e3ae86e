"""The trace for Perfetto."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dovetail import workflow
from dovetail.report.perfetto import write as write_trace

Write = Callable[..., Path]


def trace(path: Path) -> list[dict[str, Any]]:
    out = io.BytesIO()
    slices = write_trace(path, out)
    events: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    assert slices == sum(event["ph"] == "X" for event in events)
    return events


def test_slices_cover_what_each_device_did(write: Write) -> None:
    events = trace(write())
    rows = [(e["pid"], e["tid"], e["cat"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert sorted(rows) == [
        (1, 1, "run", 2e6, 4e6),
        (1, 1, "run", 8e6, 1e6),
        (1, 1, "setup", 0.0, 2e6),
        (1, 1, "setup", 7e6, 1e6),
        (1, 2, "run", 2e6, 2e6),
        (1, 2, "run", 6e6, 3e6),
        (1, 2, "setup", 1e6, 1e6),
        (2, 3, "run", 2e6, 2e6),
        (2, 3, "run", 6e6, 3e6),
        (2, 3, "setup", 1e6, 1e6),
    ]


def test_slices_say_why(write: Write) -> None:
    events = [e for e in trace(write()) if e["ph"] == "X"]
    again = next(e for e in events if e["args"].get("why") == "tried again")
    assert again["name"] == "sd: b/x"
    assert again["args"] == {
        "job": "b",
        "task": "x",
        "kind": "sd",
        "why": "tried again",
        "wait_s": 2.0,
        "devices": [1, 2],
        "state": "done",
    }
    assert [e["name"] for e in events if e["cat"] == "setup" and e["tid"] == 1] == ["load llm", "switch llm to sd"]
    assert {e["args"]["state"] for e in events if e["cat"] == "run"} == {"done", "failed"}


def test_tracks_are_named_after_hosts_and_devices(write: Write) -> None:
    names = [e["args"]["name"] for e in trace(write()) if e["name"] in ("process_name", "thread_name")]
    assert names == ["workflow host 0", "workflow host 1", "device 0 (a100)", "device 1 (a100)", "device 2 (l4)"]


def test_the_counter_follows_the_queue(write: Write) -> None:
    counter = [(e["ts"], e["args"]["tasks"]) for e in trace(write()) if e["ph"] == "C"]
    assert counter == [(0.0, 0), (4e6, 1), (7e6, 0)]  # at 6 s one leaves the queue and another enters it


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_did_not_end_says_so(write: Write, ended: bool) -> None:
    path = write(summary={} if ended else None)
    marks = [e["name"] for e in trace(path) if e["ph"] == "i"]
    assert marks == ["rejected c"] + ["this run did not end"] * (not ended)


def test_an_empty_run_is_valid(write: Write) -> None:
    assert {e["ph"] for e in trace(write(steps=[]))} == {"M"}


def test_slots_of_a_device_have_tracks_of_their_own(tmp_path: Path) -> None:
    """Slices of one track may not overlap."""
    model: dict[str, Any] = {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 4}
    model |= {"max_concurrency": 3, "concurrency_curve": [1.0, 0.9, 0.8]}
    config = {"models": {"llm": model}, "workflows": {"chat": {"nodes": [{"id": "say", "model": "llm"}]}}}
    rows = [{"request_id": f"r{i}", "workflow_id": "chat", "node_execution_times": {"say": 2 + i}} for i in range(7)]
    journal = tmp_path / "run.jsonl"
    workflow.run(workflow.load(config, rows, gpus=1), journal=journal)
    events = trace(journal)
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 3
    for spans in tracks.values():
        spans.sort()
        assert all(later[0] >= earlier[1] - 1 for earlier, later in pairwise(spans))
    assert sorted(e["args"]["name"] for e in events if e["name"] == "thread_name")[1:] == ["slot 1", "slot 2"]
