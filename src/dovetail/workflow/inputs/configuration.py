"""The configuration file, read and validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import Document, explain
from dovetail.core.resources import DeviceType
from dovetail.core.tasks import TaskGraphError
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.costs import MIB_PER_GB, CostRules
from dovetail.workflow.inputs.system import MOST, Edge, GpuType, Model, Node, System, Workflow


class _File(Struct, forbid_unknown_fields=True):
    models: dict[str, dict[str, Any]]
    workflows: dict[str, dict[str, Any]]
    gpu_types: dict[str, GpuType] = field(default_factory=dict)
    gpus: str | int | None = None
    costs: dict[str, Any] = field(default_factory=dict)
    rates: str | list[str] = field(default_factory=list)


def read_system(
    path: Path,
    on_error: OnError = "fail",
    compat: bool = False,
    cost_options: Mapping[str, Any] | None = None,
) -> System:
    """Read and validate a configuration file.

    With `compat`, what the older scheduler let pass is let pass the same way: unknown keys are ignored, and a node
    that waits for a name that is not a node, or for itself along a cycle, waits for ever.
    """
    doc = Document.read(path)
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected a mapping with models and workflows, found {type(doc.data).__name__}")
    if compat:
        doc.data = {key: value for key, value in doc.data.items() if key in _File.__struct_fields__}
    file = doc.convert(doc.data, _File)
    models = {name: _model(doc, file.models, name, compat) for name in file.models}
    costs = _costs(doc, file.costs, cost_options or {})
    types = {}
    for name, given in file.gpu_types.items():
        for key, number in (("speed", given.speed), ("memory_gb", given.memory_gb)):
            if number is not None and not 0 < number <= MOST:
                raise doc.error(("gpu_types", name, key), f"expected a positive number up to {MOST:g}, found {number}")
        memory = None if given.memory_gb is None else int(given.memory_gb * MIB_PER_GB)
        types[name] = DeviceType(name, memory, given.speed)
    gpus = None if file.gpus is None else str(file.gpus)
    tables = [file.rates] if isinstance(file.rates, str) else file.rates
    system = System(models, {}, types, costs, gpus, {}, {}, [path.parent / table for table in tables])
    system.measured_as = {name: given.measured_as for name, given in file.gpu_types.items() if given.measured_as}
    for name, raw in file.workflows.items():
        if compat:
            raw = _known(raw, Workflow)
            for key, to in (("nodes", Node), ("edges", Edge)):
                if isinstance(raw.get(key), list):
                    raw[key] = [_known(item, to) for item in raw[key]]
        workflow = system.workflows[name] = doc.convert(raw, Workflow, ("workflows", name))
        fault = _fault(doc, system, name, workflow, compat)
        if fault is not None:
            if on_error == "fail":
                raise fault
            system.faults[name] = str(fault)
    return system


def _known(raw: Any, to: type[Struct]) -> Any:
    if not isinstance(raw, dict):
        return raw
    return {key: value for key, value in raw.items() if key in to.__struct_encode_fields__}


_AMOUNTS = (
    "memory_gb",
    "load_time_seconds",
    "tokens_per_second",
    "token_mean",
    "token_std",
    "inference_time_mean",
    "inference_time_std",
)


def _model(doc: Document, raw: Mapping[str, dict[str, Any]], name: str, compat: bool) -> Model:
    keys = ("models", name)
    merged: dict[str, Any] = {}
    chain: list[str] = [name]
    while isinstance(base := raw[chain[-1]].get("base_model"), str) and base in raw:
        if base in chain:
            raise doc.error((*keys, "base_model"), f"inherits from itself: {' -> '.join([*chain, base])}")
        chain.append(base)
    else:
        if base is not None and not compat:
            raise doc.error((*keys, "base_model"), f"{base!r} is not a model{did_you_mean(str(base), raw)}")
    for ancestor in reversed(chain):
        merged |= raw[ancestor]
    model = doc.convert(_known(merged, Model) if compat else merged, Model, keys)
    for key in _AMOUNTS:
        number = getattr(model, key)
        if number is not None and not 0 <= number <= MOST:
            raise doc.error((*keys, key), f"expected a number from 0 to {MOST:g}, found {number}")
    if not 0 < model.estimate_s()[0] <= MOST:
        found = f"expected at most {MOST:g} s for a node, found {model.estimate_s()[0]:g}"
        raise doc.error((*keys, "tokens_per_second"), found)
    if model.gpus_required < 0:
        raise doc.error((*keys, "gpus_required"), f"expected 0 or more GPUs, found {model.gpus_required}")
    if model.batch_curve and (model.batch_curve[0] != 1 or not all(0 < f <= MOST for f in model.batch_curve)):
        raise doc.error((*keys, "batch_curve"), "expected positive slow-downs of batches of 1, 2, ..., the first 1.0")
    return model


def _costs(doc: Document, given: dict[str, Any], options: Mapping[str, Any]) -> CostRules:
    costs = doc.convert(given, CostRules, ("costs",))
    problem = costs.problem()
    if problem:
        raise doc.error(("costs", problem.split(":")[0]), problem.split(": ", 1)[1])
    if not options:
        return costs
    for key in options:
        if key not in CostRules.__struct_fields__:
            raise InputError(f"--cost {key}: unknown key{did_you_mean(key, CostRules.__struct_fields__)}")
    try:
        costs = msgspec.convert(msgspec.to_builtins(costs) | dict(options), CostRules, strict=False)
    except msgspec.ValidationError as error:
        where, message = explain(error, CostRules)
        raise InputError(f"--cost {'.'.join(map(str, where))}: {message}") from None
    problem = costs.problem()
    if problem:
        raise InputError(f"--cost {problem}")
    return costs


def _fault(doc: Document, system: System, name: str, workflow: Workflow, compat: bool) -> InputError | None:
    """The first thing that is wrong with a workflow."""
    keys = ("workflows", name)
    names: dict[str, int] = {}
    if not workflow.nodes:
        return doc.error((*keys, "nodes"), "expected at least one node")
    for i, node in enumerate(workflow.nodes):
        if node.id in names:
            return doc.error((*keys, "nodes", i, "id"), f"node {node.id!r} is defined twice")
        names[node.id] = i
        if node.model not in system.models:
            hint = did_you_mean(node.model, system.models)
            return doc.error((*keys, "nodes", i, "model"), f"node {node.id!r}: unknown model {node.model!r}{hint}")
    for i, edge in enumerate(workflow.edges):
        for which, end in (("from", edge.source), ("to", edge.target)):
            if end in names:
                continue
            if compat:
                if which == "from" and edge.target in names:
                    why = f"waits for {end!r}, which is not a node"
                    system.never.setdefault(name, {})[edge.target] = why
                continue
            message = f"edge {edge.source} -> {edge.target}: {end!r} is not a node{did_you_mean(end, names)}"
            return doc.error((*keys, "edges", i, which), message)
    try:
        system._graph(name)
    except TaskGraphError as error:
        why = str(error).removeprefix(f"{name}: ")
        if not compat:
            return doc.error((*keys, "edges"), why)
        never = system.never.setdefault(name, {})
        stuck = _stuck(workflow, names)
        never |= {node: f"waits for ever: {why}" for node in names if node in stuck}
    return None


def _stuck(workflow: Workflow, names: Iterable[str]) -> set[str]:
    """The nodes on a cycle, and those behind one."""
    stuck = set(names)
    while free := stuck - {edge.target for edge in workflow.edges if edge.source in stuck}:
        stuck -= free
    return stuck
