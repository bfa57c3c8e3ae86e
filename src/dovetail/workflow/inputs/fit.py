"""The pool that a configuration runs on, and what does not fit on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dovetail.core.errors import InputError
from dovetail.core.resources import Pool
from dovetail.workflow.inputs.costs import ModelCost, room_mib
from dovetail.workflow.inputs.system import Node, System


def make_pool(system: System, gpus: str | int | Pool | None, per_server: int = 8) -> Pool:
    """The pool that `gpus` (or the configuration's `gpus`) describes, or is."""
    if isinstance(gpus, Pool):
        return gpus
    text = gpus if gpus is not None else system.gpus
    if text is None:
        raise InputError("how many GPUs? give --gpus 4, or gpus: in the configuration")
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise InputError(f"--gpus {text!r}: expected a number of GPUs, or so many of each type: a100:2,l4:4")
    return Pool.parse(str(text), system.gpu_types, per_server)


def check_fit(system: System, pool: Pool, config: Path) -> None:
    """Mark the workflows that cannot run on this pool: a node wider than it, a model larger than its GPUs."""
    for name, node, problem in misfits(system, pool):
        message = f"{config}: workflows.{name}: node {node.id!r} (model {node.model!r}) {problem}"
        system.faults.setdefault(name, message)


def misfits(system: System, pool: Pool) -> list[tuple[str, Node, str]]:
    """The nodes of usable workflows that a pool has no room for, each with its workflow, and why."""
    usable = {name: workflow for name, workflow in system.workflows.items() if name not in system.faults}
    nodes = [(name, node) for name, workflow in usable.items() for node in workflow.nodes]
    models = system.model_costs
    problems = {model: _misfit(models, model, pool) for model in {node.model for _, node in nodes}}
    return [(name, node, problem) for name, node in nodes if (problem := problems[node.model]) is not None]


def _misfit(models: Mapping[str, ModelCost], name: str, pool: Pool) -> str | None:
    model, room = models[name], room_mib(models, name)
    if model.width > len(pool):
        return f"needs {model.width} GPUs, the pool has {len(pool)}"
    if model.width == 0:
        return None
    memory = [float("inf") if m is None else m for m in pool.memories]
    windows = pool.windows(model.width, aligned=False)
    if not any(all(memory[gpu] >= room for gpu in window) for window in windows):
        return f"needs {room} MiB on each of {model.width} neighbouring GPUs, and no {model.width} have that"
    return None
