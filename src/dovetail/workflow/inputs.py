"""The level's files: the system configuration (models, workflows, GPU types, costs), read and validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import Document, explain
from dovetail.core.rates import RateTable
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphError
from dovetail.workflow.costs import MIB_PER_GB, Costs, ModelCost

OnError = Literal["fail", "reject", "skip"]
DEFAULT_NODE_S = 10.0
MOST = 1e12  # seconds, GB or times as fast: more than that is a slip


class Model(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A model of the configuration. What `base_model` names fills in what is missing here."""

    name: str = ""
    memory_gb: float
    gpus_required: int
    load_time_seconds: float
    tokens_per_second: float | None = None
    token_mean: float | None = None
    token_std: float | None = None
    inference_time_mean: float | None = None
    inference_time_std: float | None = None
    type: str = "llm"
    base_model: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    batch_curve: tuple[float, ...] = ()

    def estimate_s(self) -> tuple[float, str]:
        """How long a node takes when its request does not say: seconds, and which rule gave them."""
        if self.tokens_per_second:
            return (self.token_mean or 1000.0) / self.tokens_per_second, "tokens"
        if self.inference_time_mean:
            return self.inference_time_mean, "inference_time_mean"
        return DEFAULT_NODE_S, "default"

    @property
    def cost(self) -> ModelCost:
        return ModelCost(self.memory_gb, self.load_time_seconds, self.gpus_required, self.batch_curve)


class Node(Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    model: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    config_options: list[str] = field(default_factory=list)


class Edge(Struct, forbid_unknown_fields=True):
    source: str = field(name="from")
    target: str = field(name="to")


class Workflow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    nodes: list[Node]
    edges: list[Edge] = field(default_factory=list)
    name: str = ""
    description: str = ""


class GpuType(Struct, forbid_unknown_fields=True, omit_defaults=True):
    memory_gb: float | None = None
    speed: float = 1.0


class System(Struct, omit_defaults=True):
    """A validated configuration. `faults` tells which workflows cannot run, and why."""

    models: dict[str, Model]
    workflows: dict[str, Workflow]
    gpu_types: dict[str, DeviceType]
    costs: Costs
    gpus: str | None
    faults: dict[str, str]
    never: dict[str, dict[str, str]]

    @property
    def model_costs(self) -> dict[str, ModelCost]:
        return {name: model.cost for name, model in self.models.items()}

    def shapes(self) -> dict[str, TaskGraph]:
        """The workflows that can run, as graphs of parts."""
        return {name: self._shape(name) for name in self.workflows if name not in self.faults}

    def _shape(self, name: str) -> TaskGraph:
        workflow = self.workflows[name]
        parts = [Task(n.id, n.model, self.models[n.model].gpus_required) for n in workflow.nodes]
        names = {n.id for n in workflow.nodes}
        never = self.never.get(name, {})  # need no edges: they do not wait for one another
        edges = [(e.source, e.target) for e in workflow.edges if e.source in names and e.target in names - never.keys()]
        return TaskGraph(name, parts, edges, never)


class _File(Struct, forbid_unknown_fields=True):
    models: dict[str, dict[str, Any]]
    workflows: dict[str, dict[str, Any]]
    gpu_types: dict[str, GpuType] = field(default_factory=dict)
    gpus: str | int | None = None
    costs: dict[str, Any] = field(default_factory=dict)


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
    system = System(models, {}, types, costs, gpus, {}, {})
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


def _costs(doc: Document, given: dict[str, Any], options: Mapping[str, Any]) -> Costs:
    costs = doc.convert(given, Costs, ("costs",))
    problem = costs.problem()
    if problem:
        raise doc.error(("costs", problem.split(":")[0]), problem.split(": ", 1)[1])
    if not options:
        return costs
    for key in options:
        if key not in Costs.__struct_fields__:
            raise InputError(f"--cost {key}: unknown key{did_you_mean(key, Costs.__struct_fields__)}")
    try:
        costs = msgspec.convert(msgspec.to_builtins(costs) | dict(options), Costs, strict=False)
    except msgspec.ValidationError as error:
        where, message = explain(error, Costs)
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
        system._shape(name)
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
