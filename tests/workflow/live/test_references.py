"""A service on an engine with an object store: nobody waits while a value is brought from there."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

from dovetail import workflow
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.protocol import Answer, Loaded, Reference
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from tests.waiting import until
from tests.workflow.live.test_executor import FakeEngine

MODEL: dict[str, Any] = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "inference_time_mean": 0.1} | {
    "source": {"emulated": {}}
}
LOOK = {"id": "look", "model": "eye", "then": {"look": {"chance": 0.5, "at_most": 2}}}
CONFIG = {"models": {"eye": MODEL, "ear": MODEL}, "workflows": {"see": {"nodes": [LOOK]}}}


def test_large_values_of_ended_runs_count_in_what_is_kept(tmp_path: Path) -> None:
    engine, log = FakeEngine(1), LogLines(io.StringIO())
    problem = workflow.load(CONFIG, [], gpus=1, mode="online")
    with WorkflowService.over(problem, engine, tmp_path, LiveSettings(keep_mib=8), log=log) as service:
        for n in range(2):
            run = service.submit(RunRequest(workflow="ear", input={"prompt": "sea"}))
            if not n:
                until(lambda: engine.told)
                engine.report(Loaded(0, "ear"))
            until(lambda n=n: len(engine.calls) == n + 1)  # type: ignore[misc]
            engine.report(Answer(engine.calls[n].id, {"sound": Reference(f"sound {n}", 5 << 20)}))
            service.wait(run)
        until(lambda: ("drop", Reference("sound 0", 5 << 20)) in engine.told)
        assert [told.id for told in service.runs()] == [run]


def test_others_are_served_while_a_large_value_is_brought(tmp_path: Path) -> None:
    engine, log = FakeEngine(2), LogLines(io.StringIO())
    problem = workflow.load(CONFIG, [], gpus=2, mode="online")
    with WorkflowService.over(problem, engine, tmp_path, LiveSettings(), log=log) as service:
        looks = service.submit(RunRequest(workflow="see", input={"prompt": "sea"}))
        until(lambda: engine.told)
        engine.report(Loaded(engine.told[0][1], "eye"))
        until(lambda: engine.calls)
        image = Reference("image", 5 << 20)
        answer = Answer(engine.calls[0].id, {"image": image, "then": None})
        told = threading.Thread(target=engine.report, args=(answer,))
        told.start()
        until(lambda: image in engine.fetched)
        hears = service.submit(RunRequest(workflow="ear", input={"prompt": "sea"}))
        until(lambda: service.status(hears).state == "running")
        engine.fetched[image](bytes(10))
        assert service.wait(looks).nodes["look"].attempts == 1
        told.join()
