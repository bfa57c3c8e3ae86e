"""Which engine carries a live run, and on which GPUs."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dovetail import workflow
from dovetail.core.errors import InputError
from dovetail.workflow.live.engines.choice import engine_for
from dovetail.workflow.live.engines.local import LocalGpuEngine
from dovetail.workflow.problem import WorkflowProblem


def problem(gpus: str = "a100:2,l4:1") -> WorkflowProblem:
    model = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "source": {"emulated": {}}}
    types = {"a100": {"memory_gb": 80}, "l4": {"memory_gb": 24, "speed": 0.5}}
    config = {"models": {"m": model}, "workflows": {"w": {"nodes": [{"id": "n", "model": "m"}]}}, "gpu_types": types}
    return workflow.load(config, [], gpus=gpus, mode="online")


def test_processes_for_the_gpus_of_the_problem() -> None:
    engine, on = engine_for(problem())
    with closing(engine):
        assert isinstance(engine, LocalGpuEngine)
        assert [place.type for place in engine.places] == ["a100", "a100", "l4"]
        assert {place.device for place in engine.places} == {"cpu"}
        assert [device.type for device in on.pool.devices] == ["a100", "a100", "l4"]
        assert on.pool.within_hosts
        assert on.pool.speeds == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"engine": "slurm"}, "--engine slurm: expected local or ray"),
        ({"engine": "local", "address": "head:6379"}, "--address head:6379 is a Ray cluster's: give --engine ray"),
        ({"device": "tpu"}, "--device tpu: expected auto, cpu or cuda"),
        ({"address": "127.0.0.1:1"}, "--address 127.0.0.1:1: no Ray cluster can be reached there"),
        ({"device": "cuda"}, "this machine has"),
    ],
)
def test_what_cannot_be_had_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        engine_for(problem("a100:64"), **asked)
