"""Models for workers on Ray nodes: they tell where they are, and make and take large values."""

from __future__ import annotations

import os
from collections.abc import Callable
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


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
