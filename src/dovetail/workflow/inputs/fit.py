"""The pool that a configuration runs on, and what does not fit on it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.rates import RateTable
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


def check_fit(system: System, pool: Pool, path: Path, on_error: OnError, compat: bool, rates: RateTable) -> None:
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
    types = [*system.gpu_types, "gpu"]
    for rate in rates.rates.values():
        _known_name("rates", "kind", rate.kind, system.models)
        _known_name("rates", "device", rate.device, types)
    for switch in rates.switches.values():
        _known_name("switches", "to", switch.to, system.models)
        _known_name("switches", "from", switch.previous, ["", *system.models])
        _known_name("switches", "device", switch.device, ["", *types])


def _known_name(table: str, key: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name not in known:
        raise InputError(f"rate table, {table}: {key} {name!r} is not known{did_you_mean(name, filter(None, known))}")


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
