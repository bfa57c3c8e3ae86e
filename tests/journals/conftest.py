"""A small journal of every level, made once by the commands that users give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.cli import main

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
    from dovetail.pipeline.simulate import record
    from dovetail.testing.pipeline import random_pipeline

    plans = (plan(random_pipeline(seed)) for seed in range(40))
    made = max((each for each in plans if isinstance(each, Plan)), key=lambda each: len(each.stages))
    record(made, 8, 1, folder / "pipeline.jsonl")


def _workflow(folder: Path) -> None:
    inputs = ["--config", str(EXAMPLES / "system_config.yaml"), "--requests", str(EXAMPLES / "workflow_requests.yaml")]
    main(["workflow", "run", "--gpus", "4", *inputs, "--out", str(folder / "workflow")])
    (folder / "workflow" / "dovetail_journal.jsonl").rename(folder / "workflow.jsonl")


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
    return {level: folder / f"{level}.jsonl" for level in LEVELS}
