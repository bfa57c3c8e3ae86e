"""The pool that a configuration runs on, and what does not fit on it."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import InputError
from dovetail.core.resources import Pool
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.inputs.system import System


def make_pool(system: System, gpus: str | None, per_server: int = 8) -> Pool:
    """The pool that `--gpus` (or the configuration's `gpus`) describes."""
    text = gpus if gpus is not None else system.gpus
    if text is None:
        raise InputError("how many GPUs? give --gpus 4, or gpus: in the configuration")
    return Pool.parse(text, system.gpu_types, per_server)


def check_fit(system: System, pool: Pool, path: Path, on_error: OnError, compat: bool) -> None:
    """Mark the workflows that cannot run on this pool: a node wider than it, a model larger than its GPUs."""
    for name, workflow in system.workflows.items():
        if name in system.faults:
            continue
        for node in workflow.nodes:
            problem = _misfit(system.models[node.model].cost, pool)
            if problem is None:
                continue
            if compat:
                system.never.setdefault(name, {})[node.id] = problem
                continue
            message = f"{path}: workflows.{name}: node {node.id!r} (model {node.model!r}) {problem}"
            if on_error == "fail":
                raise InputError(message)
            system.faults[name] = message
            break


def _misfit(model: ModelCost, pool: Pool) -> str | None:
    if model.width > len(pool):
        return f"needs {model.width} GPUs, the pool has {len(pool)}"
    if model.width == 0:
        return None
    memory = [float("inf") if m is None else m for m in pool.memories]
    windows = pool.windows(model.width, aligned=False)
    if not any(all(memory[gpu] >= model.shard_mib for gpu in window) for window in windows):
        return f"needs {model.shard_mib} MiB on each of {model.width} neighbouring GPUs, and no {model.width} have that"
    return None
