from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail import workflow
from dovetail.workflow.live.runs import (
    RunRequest,
)
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.telemetry import LogLines
from tests.workflow.live.carriers import TestCarrier

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "inference_time_mean": 0.1}
CONFIG: dict[str, Any] = {
    "models": {"llm": MODEL, "sum": MODEL},
    "workflows": {
        "chain": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "shorten", "model": "sum"}],
            "edges": [{"from": "write", "to": "shorten"}],
        }
    },
}


class Bench:
    """A service over a folder, and what it was made with."""

    def __init__(self, folder: Path, config: dict[str, Any], hold: bool, **settings: Any) -> None:
        self.carrier: TestCarrier
        self.log = io.StringIO()

        def carrier(inbox: Any, runs: Any) -> TestCarrier:
            self.carrier = TestCarrier(inbox, runs, hold)
            return self.carrier

        problem = workflow.load(config, [], gpus=2, mode="online")
        self.service = WorkflowService(problem, carrier, folder, LiveSettings(**settings), log=LogLines(self.log))


@contextmanager
def service(folder: Path, config: dict[str, Any] = CONFIG, hold: bool = False, **settings: Any) -> Iterator[Bench]:
    bench = Bench(folder, config, hold, **settings)
    with bench.service:
        yield bench


def test_a_request_runs_to_its_end(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        run = bench.service.submit(RunRequest(workflow="chain", input={"prompt": "hello"}))
        status = bench.service.wait(run)
        assert status.state == "completed", status.error
        result = bench.service.result(run)
        assert result.outputs == {"write": {"text": "llm(hello)"}, "shorten": {"text": "sum(llm(hello))"}}
        assert (result.answer, result.read, result.written) == ({"text": "sum(llm(hello))"}, 2, 4)
        assert "llm" in str(bench.service.explain(run))
