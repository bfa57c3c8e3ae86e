"""A small journal of every level, made once by the commands that users give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Decided,
    Failed,
    Finished,
    Measured,
    Observed,
    Pause,
    Reject,
    Resume,
    Start,
)
from dovetail.core.journal import Clock, Header
from dovetail.core.journal.recorder import Recorder
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraphRecord
from dovetail.core.words import Words

EXAMPLES = Path(__file__).parents[2] / "examples"
LEVELS = ("cluster", "dispatch", "host", "pipeline", "workflow")


def _cluster(folder: Path) -> None:
    where = EXAMPLES / "cluster"
    journal = str(folder / "cluster.jsonl")
    main(
        ["cluster", "simulate", "-t", str(where / "jobs.csv"), "-c", str(where / "cluster.yaml"), "--journal", journal]
    )


def _dispatch(folder: Path) -> None:
    curves, journal = EXAMPLES / "dispatch" / "curves.yml", str(folder / "dispatch.jsonl")
    main(["dispatch", "simulate", str(curves), "--items", "50000", "--policy", "guided", "--journal", journal])


def _host(folder: Path) -> None:
    where = EXAMPLES / "host"
    given = ["--requests", str(where / "requests_file.txt"), "--parameters", str(where / "parameters.json")]
    main(["host", "simulate", *given, "--journal", str(folder / "host.jsonl")])


def _pipeline(folder: Path) -> None:
    from dovetail.pipeline.plan import Plan
    from dovetail.pipeline.planner import plan
    from dovetail.pipeline.simulate import simulate
    from dovetail.testing.pipeline import random_pipeline

    plans = (plan(random_pipeline(seed)) for seed in range(40))
    made = max((each for each in plans if isinstance(each, Plan)), key=lambda each: len(each.stages))
    simulate(made, 8, 1, folder / "pipeline.jsonl")


def _workflow(folder: Path) -> None:
    inputs = ["--config", str(EXAMPLES / "system_config.yaml"), "--requests", str(EXAMPLES / "workflow_requests.yaml")]
    main(["workflow", "run", "--gpus", "4", *inputs, "--out", str(folder / "workflow")])
    (folder / "workflow" / "dovetail_journal.jsonl").rename(folder / "workflow.jsonl")


def _live(folder: Path) -> None:
    """A run of a level that nobody knows, recorded as it was seen: a device joins, a task pauses, one fails."""
    graphs = (TaskGraphRecord("pair", (Task("a", "x"), Task("b", "y", 1, 1, 2)), (("a", "b"),)),)
    header = Header(
        level="mine",
        policy="by hand",
        mode="live",
        pool=Pool.parse("2", {}),
        graphs=graphs,
        clock=Clock("measured offset", 0.05),
        order="written",
        hardware={"gpu": "emulated on cpu", "l4": "cuda:0 NVIDIA L4"},
        words=Words(job="order", jobs="orders", task="step", tasks="steps"),
    )
    more = Added(
        "a host came", (Device(2, "l4", 1),), {"l4": DeviceType("l4")}, (TaskGraphRecord("one", (Task("c", "x"),)),)
    )
    with Recorder(folder / "live.jsonl", header) as recorder:
        recorder.note(0.0, Arrived("p", "pair", (1.0, 2.0)), Start("p", "a", "x", (0,), 0.0, 1.0, "free"))
        recorder.note(0.5, Observed("a host", {"name": "h2"}), more)
        recorder.note(0.5, Arrived("q", "one", (2.0,), due_s=2.0), Start("q", "c", "x", (2,), 0.5, 2.0, "new", 0.25))
        recorder.note(0.97, Start("p", "b", "y", (0, 1), 1.0, 2.0, "in order", 0.1, "x"))
        recorder.note(1.0, Finished("p", "a"), Measured("p", "b", 2, 0.5))
        recorder.note(1.5, Failed("q", "c", "lost"), Start("q", "c", "x", (2,), 1.5, 1.0, "again"))
        recorder.note(2.0, Pause("p", "b", "for others"), Decided("plan", "a device is dear", {"devices": [1]}))
        recorder.note(2.5, Finished("q", "c"), Complete("q"), Resume("p", "b", (1,), 1.0, "its turn"))
        recorder.note(3.0, Arrived("r", "one", fault="no input"), Reject("r", "no input"))
        recorder.note(3.5, Finished("p", "b"), Complete("p"))
        recorder.end(3.5, {"completed": 2, "bound_makespan_s": 2.0})


def _loose(folder: Path) -> None:
    """Whole lives in rows, told in batches."""
    header = Header(
        level="mine",
        policy="by hand",
        pool=Pool.parse("2", {}),
        clock=Clock("monotonic", 1e-6),
        order="written",
        facts={"kinds": ["x"], "why": ["next"]},
        words=Words(job="piece", jobs="pieces", task="call", tasks="calls"),
    )
    with Recorder(folder / "loose.jsonl", header) as recorder:
        for i in range(3):
            columns: dict[str, list[Any]] = {
                "id": [2 * i, 2 * i + 1],
                "kind": [0, "y"],
                "device": [0, 1],
                "ready_s": [float(i), float(i)],
                "from_s": [i + 0.0, i + 0.25],
                "to_s": [i + 1.0, i + 1.0],
                "why": [0, "by hand"],
                "outcome": ["", "broken" if i == 1 else ""],
                "start": [10 * i, 10 * i + 5],
            }
            recorder.rows("ran", columns, i + 1.0)
        recorder.end(3.0, {"completed": 5, "rejected": 1})


_MAKERS: dict[str, Callable[[Path], None]] = {
    "cluster": _cluster,
    "dispatch": _dispatch,
    "host": _host,
    "pipeline": _pipeline,
    "workflow": _workflow,
}


@pytest.fixture(scope="session")
def journals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("journals")
    for make in _MAKERS.values():
        make(folder)
    _live(folder)
    _loose(folder)
    return {level: folder / f"{level}.jsonl" for level in (*LEVELS, "live", "loose")}
