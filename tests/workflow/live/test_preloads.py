"""Models that a service loads ahead of need, over worker processes: what comes of it, and of all that goes wrong."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import journals, workflow
from dovetail.core.events import Failed, Prepare, PrepareEnded, Start
from dovetail.core.journal import Reader
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from tests.waiting import PATIENCE_S, until

EAGER = f"{Path(__file__).parent / 'eager.py'}:Eager"
CHAIN = {
    "nodes": [{"id": "write", "model": "llm"}, {"id": "shorten", "model": "sum"}],
    "edges": [{"from": "write", "to": "shorten"}],
}


class Fleet:
    """A service of two models on two emulated GPUs. A switch is expected to take for ever, so that who finds a model on
    its way waits for it."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.faults, self.log = folder / "faults", io.StringIO()
        self.faults.mkdir(exist_ok=True)
        source = {"emulated": {"load_s": 0.0, "call_s": 0.0, "faults": str(self.faults)}}
        model = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.01, "inference_time_mean": 0.01}
        known = {name: model | {"source": source} for name in ("llm", "sum")}
        config = {"models": known, "workflows": {"chain": CHAIN}, "costs": {"overhead_s": 1000.0}}
        settings = LiveSettings(retries=3, lost_retries=20, limits=LiveLimits(**{"silence_s": 60.0, **limits}))
        self.engine = LocalGpuEngine(emulated_gpus(2), settings.limits.silence_s)
        problem = workflow.load(config, [], gpus=2, mode="online")
        log = LogLines(self.log)
        self.service = WorkflowService.over(problem, self.engine, folder / "state", settings, EAGER, log=log)

    def fault(self, name: str) -> None:
        (self.faults / name).touch()

    def taken(self, name: str) -> bool:
        """Whether somebody meets this fault now."""
        return not (self.faults / name).exists()

    def ask(self, **options: Any) -> str:
        return self.service.submit(RunRequest(workflow="chain", input={"prompt": "hello"}, **options))

    def told(self, *kinds: type) -> list[Any]:
        return [e for _, _, events in Reader(self.service.journal()).steps() for e in events if isinstance(e, kinds)]

    def figure(self, line: str) -> float:
        found = [row for row in self.service.metrics().splitlines() if row.startswith(f"dovetail_workflow_{line} ")]
        return float(found[0].split()[-1])


@contextmanager
def fleet(folder: Path, **limits: Any) -> Iterator[Fleet]:
    made = Fleet(folder, **limits)
    with made.service:
        until(lambda: all(worker["state"] == "up" for worker in made.engine.status()))
        yield made
        journal = made.service.journal()
    assert journals.check_journal(journal).valid
    read = journals.read_journal(journal)
    assert read.replay().difference is None


def test_the_next_model_is_loaded_while_the_node_before_runs(tmp_path: Path) -> None:
    with fleet(tmp_path) as made:
        run = made.ask()
        assert made.service.wait(run, PATIENCE_S).state == "completed"
        (ahead,) = made.told(Prepare)
        assert (ahead.kind, ahead.devices, ahead.why) == ("sum", (1,), "it comes next")
        assert made.told(PrepareEnded) == [PrepareEnded(1)]
        (last,) = [start for start in made.told(Start) if start.task == "shorten"]
        assert (last.devices, last.replaces) == ((1,), None)
        assert made.figure('preloads_total{model="sum"}') == made.figure('preloads_used_total{model="sum"}') == 1
        assert (made.figure('preloads_total{model="llm"}'), made.figure("switches_total")) == (0, 0)
        assert made.figure('loads_total{model="sum"}') == 1
        assert "sum was preloaded there" in str(made.service.explain(run, "shorten"))
        assert made.service.wait(made.ask(), PATIENCE_S).state == "completed"  # all is there now
        assert len(made.told(Prepare)) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [("oom", "run out of memory"), ("fail", "sum was told to fail"), ("die", "was lost"), ("stuck", "was not loaded")],
)
def test_a_preload_that_fails_costs_no_request(tmp_path: Path, fault: str, why: str) -> None:
    limits = {"load_factor": 0.0, "load_floor_s": 1.0, "load_tries": 1000} if fault == "stuck" else {}
    with fleet(tmp_path, **limits) as made:
        made.fault(f"sum.load.{fault}")
        assert made.service.wait(made.ask(), PATIENCE_S).state == "completed"
        (ended, *_) = made.told(PrepareEnded)
        assert why in ended.why
        assert "preload failed" in made.log.getvalue() or made.figure('preloads_used_total{model="sum"}') == 1


def test_who_is_cancelled_leaves_the_load_behind(tmp_path: Path) -> None:
    with fleet(tmp_path) as made:
        made.fault("llm.call.hang")
        run = made.ask()
        until(lambda: bool(made.told(PrepareEnded)))
        made.service.cancel(run)
        assert made.service.wait(run, PATIENCE_S).state == "cancelled"
        until(lambda: bool(made.told(Failed)))  # its call has ended: the GPU of its model is free
        assert made.service.wait(made.ask(), PATIENCE_S).state == "completed"
        assert made.figure('preloads_used_total{model="sum"}') == 1


def test_a_preload_does_not_outlive_its_service(tmp_path: Path) -> None:
    with fleet(tmp_path) as made:
        made.fault("llm.call.hang")
        made.fault("sum.load.stuck")
        run = made.ask()
        until(lambda: made.taken("sum.load.stuck"))
        assert made.told(PrepareEnded) == []
    with fleet(tmp_path) as made:
        assert made.service.wait(run, PATIENCE_S).state == "completed"
        ended = made.told(PrepareEnded)
        assert ended[0] == PrepareEnded(1, "it was lost in a restart")
        assert {event.id for event in ended} == {order.id for order in made.told(Prepare)}
