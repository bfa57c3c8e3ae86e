"""Models for workers on Ray nodes: they tell where they are, and make and take large values."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.workflow.live.protocol import ServedModel

Function = Callable[[dict[str, Any]], dict[str, Any]]


def where(model: ServedModel) -> Function:
    return lambda inputs: {"pid": os.getpid(), "node": _node()}


def painter(model: ServedModel) -> Function:
    return lambda inputs: {"image": np.full(int(inputs["pixels"]), 2, np.uint8), "node": _node()}


def critic(model: ServedModel) -> Function:
    return lambda inputs: {"score": int(inputs["image"].sum()), "node": _node()}


def patient(model: ServedModel) -> Function:
    """Answers when a file is there, and says in another one that it waits."""

    def wait(inputs: dict[str, Any]) -> dict[str, Any]:
        Path(inputs["waits"]).touch()
        while not Path(inputs["gate"]).exists():
            time.sleep(0.01)
        return {"text": "at last"}

    return wait


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
