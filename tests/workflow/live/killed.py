"""A service that kills itself at its n-th write, in the middle of it or around it.

Asks for the same runs each time, waits for all of them, and prints what came of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail import workflow
from dovetail.workflow.live.book import RunBook
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from tests.killed import die_at
from tests.workflow.live.carriers import TestCarrier

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "inference_time_mean": 0.1}
CONFIG: dict[str, Any] = {
    "models": {"llm": MODEL, "sum": MODEL},
    "workflows": {
        "chain": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "shorten", "model": "sum"}],
            "edges": [{"from": "write", "to": "shorten"}],
        },
        "loop": {
            "nodes": [
                {"id": "think", "model": "llm", "then": {"think": {"chance": 0.5, "at_most": 2}}},
                {"id": "say", "model": "sum"},
            ],
            "edges": [{"from": "think", "to": "say"}],
        },
    },
}
ASKED = {
    **{f"chain-{i}": RunRequest(workflow="chain", input={"prompt": f"c{i}"}) for i in range(4)},
    **{f"loop-{i}": RunRequest(workflow="loop", input={"prompt": f"again{i}"}) for i in range(4)},
    **{f"llm-{i}": RunRequest(workflow="llm", input={"prompt": f"m{i}"}) for i in range(4)},
}
EXPECTED = {
    **{f"chain-{i}": f"sum(llm(c{i}))" for i in range(4)},
    **{f"loop-{i}": f"sum(llm(llm(llm(again{i}))))" for i in range(4)},
    **{f"llm-{i}": f"llm(m{i})" for i in range(4)},
}


def main(folder: str, n: str) -> None:
    die_at(int(n), (RunBook, "keep"), (RunBook, "add"))
    problem = workflow.load(CONFIG, [], gpus=2, mode="online")
    settings = LiveSettings(journal_lines=40, lost_retries=1000)
    with WorkflowService(problem, lambda inbox, runs: TestCarrier(inbox, runs), Path(folder), settings) as service:
        runs = {key: service.submit(msgspec.structs.replace(ask, idempotency_key=key)) for key, ask in ASKED.items()}
        found = {key: (run, service.wait(run).state, service.result(run).answer) for key, run in runs.items()}
    print(msgspec.json.encode(found).decode())
