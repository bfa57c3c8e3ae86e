"""The configuration file, read and validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source, explain
from dovetail.core.resources import DeviceType
from dovetail.core.tasks import TaskGraphError
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.costs import MIB_PER_GB, CostRules
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.inputs.growth.then import ThenFault, growth_rules
from dovetail.workflow.inputs.prompts import PromptFault, PromptRule
from dovetail.workflow.inputs.slo import Slo
from dovetail.workflow.inputs.sources import ModelSource
from dovetail.workflow.inputs.system import MOST, GpuType, Model, Node, System, Workflow
from dovetail.workflow.inputs.tenants import Sharing, Tenancy, Tenant


class ConfigurationFile(Struct, forbid_unknown_fields=True):
    models: dict[str, dict[str, Any]]
    workflows: dict[str, dict[str, Any]]
    gpu_types: dict[str, GpuType] = field(default_factory=dict)
    gpus: str | int | None = None
    costs: dict[str, Any] = field(default_factory=dict)
    rates: str | list[str] = field(default_factory=list)
    slo: Slo | None = None
    tenants: dict[str, Tenant] = field(default_factory=dict)
    sharing: Sharing = Sharing()
    gpus_over_time: GpusOverTime | None = None
    live: dict[str, Any] = field(default_factory=dict)


def read_system(config: Source, on_error: OnError = "fail", cost_options: Mapping[str, Any] | None = None) -> System:
    """Read and validate a configuration: a file, or dicts in its place."""
    return SystemReader(config, on_error).read(cost_options or {})


class SystemReader:
    """Reads a configuration and validates it. A subclass may `tidy` what is given, and `settle` what is wrong with a
    workflow's edges."""

    def __init__(self, config: Source, on_error: OnError) -> None:
        self._doc = Document.of(config, "config")
        self._on_error = on_error

    def tidy(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def settle(self, system: System, name: str) -> None:
        pass

    def read(self, cost_options: Mapping[str, Any]) -> System:
        doc = self._doc
        if not isinstance(doc.data, dict):
            raise doc.error((), f"expected a mapping with models and workflows, found {type(doc.data).__name__}")
        file = doc.convert(self.tidy(doc.data), ConfigurationFile)
        models = {name: _model(doc, file.models, name) for name in file.models}
        costs = _costs(doc, file.costs, cost_options)
        for name, model in models.items():
            if costs.batching and len(model.batch_curve) > 1 and model.max_concurrency > 1:
                message = "has a batch_curve too, and costs.batching is on; expected batches or slots"
                raise doc.error(("models", name, "max_concurrency"), message)
        types = {}
        for name, given in file.gpu_types.items():
            for key, number in (("speed", given.speed), ("memory_gb", given.memory_gb)):
                if number is not None and not 0 < number <= MOST:
                    expected = f"expected a positive number up to {MOST:g}, found {number}"
                    raise doc.error(("gpu_types", name, key), expected)
            memory = None if given.memory_gb is None else int(given.memory_gb * MIB_PER_GB)
            types[name] = DeviceType(name, memory, given.speed)
        gpus = None if file.gpus is None else str(file.gpus)
        tables = [file.rates] if isinstance(file.rates, str) else file.rates
        system = System(models, {}, types, costs, gpus, {}, {}, [doc.path.parent / table for table in tables])
        system.live, system.error = file.live, doc.error
        system.tenancy = _tenancy(doc, file)
        system.slo = file.slo
        if file.slo is not None and (problem := file.slo.problem()) is not None:
            key, message = problem.split(": ", 1)
            raise doc.error(("slo", key), message)
        system.measured_as = {name: given.measured_as for name, given in file.gpu_types.items() if given.measured_as}
        system.gpus_over_time = file.gpus_over_time
        if file.gpus_over_time is not None and (wrong := file.gpus_over_time.problem()) is not None:
            raise doc.error(("gpus_over_time", *wrong[0]), wrong[1])
        for name, raw in file.workflows.items():
            system.workflows[name] = doc.convert(raw, Workflow, ("workflows", name))
            fault = self._fault(system, name)
            if fault is not None:
                if self._on_error == "fail":
                    raise fault
                system.faults[name] = str(fault)
        return system

    def _fault(self, system: System, name: str) -> InputError | None:
        """The first thing that is wrong with a workflow."""
        doc, workflow, keys = self._doc, system.workflows[name], ("workflows", name)
        names: dict[str, None] = {}
        if not workflow.nodes:
            return doc.error((*keys, "nodes"), "expected at least one node")
        for i, node in enumerate(workflow.nodes):
            if node.id in names:
                return doc.error((*keys, "nodes", i, "id"), f"node {node.id!r} is defined twice")
            if (first := node.id.partition("#")[0]) != node.id and any(first == other.id for other in workflow.nodes):
                why = f"node {node.id!r} would be taken for one that {first!r} adds; expected an id without '#'"
                return doc.error((*keys, "nodes", i, "id"), why)
            names[node.id] = None
            if node.model not in system.models:
                hint = did_you_mean(node.model, system.models)
                return doc.error((*keys, "nodes", i, "model"), f"node {node.id!r}: unknown model {node.model!r}{hint}")
            if (wrong := _live_problem(node)) is not None:
                return doc.error((*keys, "nodes", i, *wrong[0]), f"node {node.id!r}: {wrong[1]}")
        self.settle(system, name)
        for i, edge in enumerate(workflow.edges):
            for which, end in (("from", edge.source), ("to", edge.target)):
                if end not in names:
                    message = f"edge {edge.source} -> {edge.target}: {end!r} is not a node{did_you_mean(end, names)}"
                    message += " (--compat gswarm reads such files as GSwarm does)"
                    return doc.error((*keys, "edges", i, which), message)
        try:
            whole = system.graph(name)
            edges = [(edge.source, edge.target) for edge in workflow.edges]
            rules = growth_rules(whole.tasks, [node.then for node in workflow.nodes], edges)
        except TaskGraphError as error:
            return doc.error((*keys, "edges"), str(error).removeprefix(f"{name}: "))
        except ThenFault as error:
            return doc.error((*keys, *error.keys), str(error))
        if rules is not None:
            system.growth[name] = rules
        return None


_MOST_AT_ONCE = 4096  # nodes that share a window: more is a slip
_AMOUNTS = (
    "memory_gb",
    "load_time_seconds",
    "tokens_per_second",
    "prefill_tokens_per_second",
    "token_mean",
    "token_std",
    "input_token_mean",
    "input_token_std",
    "inference_time_mean",
    "inference_time_std",
)


def _model(doc: Document, raw: Mapping[str, dict[str, Any]], name: str) -> Model:
    keys = ("models", name)
    merged: dict[str, Any] = {}
    chain = _ancestors(doc, raw, name)
    for ancestor in reversed(chain):  # nobody else's source: that would be another model
        merged |= {key: value for key, value in raw[ancestor].items() if key != "source" or ancestor == name}
    if "adapter_of" in merged:
        _settle_adapter(doc, raw, chain, merged)
    model = doc.convert(merged, Model, keys)
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
    if model.prefix is not None and (problem := model.prefix.problem()) is not None:
        key, message = problem.split(": ", 1)
        raise doc.error((*keys, f"prefix_{key}"), message)
    for key in ("prefix_saves", "prefix_block_tokens"):
        if model.prefix is None and key in merged:
            raise doc.error((*keys, key), "expected prefix_cache_tokens beside it: without, nothing is kept")
    if (wrong := _concurrency_problem(model)) is not None:
        raise doc.error((*keys, wrong[0]), wrong[1])
    if model.source is not None:
        source = ModelSource.of(model.source) if isinstance(model.source, str) else model.source
        if (fault := source.problem()) is not None:
            raise doc.error((*keys, "source", *fault[0]), fault[1])
        model.source = source.below(doc.path.parent)
    return model


def _live_problem(node: Node) -> tuple[tuple[str, ...], str] | None:
    """What is wrong with what a node says of live runs: the keys, and a sentence."""
    try:
        if node.prompt is not None:
            PromptRule(node.prompt)
    except PromptFault as error:
        return ("prompt",), str(error)
    for branch, decision in node.decide.items():
        if branch not in node.then:
            hint = did_you_mean(branch, node.then) if node.then else "; there is no then: beside it"
            return ("decide", branch), f"expected one of what then: may add, found {branch!r}{hint}"
        if (wrong := decision.problem()) is not None:
            return ("decide", branch, *filter(None, wrong[:1])), wrong[1]
    return None


def _ancestors(doc: Document, raw: Mapping[str, dict[str, Any]], name: str) -> list[str]:
    """The model, and those that it inherits from."""
    keys, chain = ("models", name, "base_model"), [name]
    while isinstance(base := raw[chain[-1]].get("base_model"), str) and base in raw:
        if base in chain:
            raise doc.error(keys, f"inherits from itself: {' -> '.join([*chain, base])}")
        chain.append(base)
    if base is not None:
        raise doc.error(keys, f"{base!r} is not a model{did_you_mean(str(base), raw)}")
    return chain


def _settle_adapter(doc: Document, raw: Mapping[str, dict[str, Any]], chain: list[str], merged: dict[str, Any]) -> None:
    """An adapter is as wide as its base; memory and load are its own, whatever else it inherits."""
    keys, base = ("models", chain[0]), merged["adapter_of"]
    if not isinstance(base, str) or base not in raw:
        raise doc.error((*keys, "adapter_of"), f"{base!r} is not a model{did_you_mean(str(base), raw)}")
    if any("adapter_of" in raw[ancestor] for ancestor in _ancestors(doc, raw, base)):
        raise doc.error((*keys, "adapter_of"), f"{base!r} is an adapter itself; expected the model that it adapts")
    own = chain[: chain.index(base)] if base in chain else chain
    for key in ("memory_gb", "load_time_seconds"):
        if key in merged and not any(key in raw[ancestor] for ancestor in own):
            raise doc.error(keys, f"{key} is missing; expected the adapter's own, without its base's")
    width = _model(doc, raw, base).gpus_required
    if merged.setdefault("gpus_required", width) != width:
        found = f"expected {width} as {base!r} has, found {merged['gpus_required']}"
        raise doc.error((*keys, "gpus_required"), found)


def _tenancy(doc: Document, file: ConfigurationFile) -> Tenancy | None:
    if not file.tenants and file.sharing == Sharing():
        return None
    tenancy = Tenancy(file.tenants, file.sharing)
    if (problem := tenancy.problem()) is not None:
        keys, message = problem.split(": ", 1)
        raise doc.error(keys.split("."), message)
    return tenancy


def _concurrency_problem(model: Model) -> tuple[str, str] | None:
    """What is wrong with how many nodes may share a model's window, and how fast each is: the key, and a sentence."""
    most, curve = model.max_concurrency, model.concurrency_curve
    if not 1 <= most <= _MOST_AT_ONCE:
        return "max_concurrency", f"expected 1 to {_MOST_AT_ONCE} at once, found {most}"
    if most > 1 and not model.gpus_required:
        return "max_concurrency", "expected none for a model that needs no GPU: any number of its nodes run at once"
    if curve and most == 1:
        return "concurrency_curve", "expected max_concurrency above 1 beside it"
    for n in curve if isinstance(curve, dict) else ():
        if not str(n).isdecimal() or not 1 <= int(n) <= _MOST_AT_ONCE:
            return "concurrency_curve", f"expected numbers of nodes from 1 to {_MOST_AT_ONCE}, found {n!r}"
    points = model.concurrency_points
    if points[1] != 1 or not all(0 < speed <= 1 for speed in points.values()):
        return (
            "concurrency_curve",
            "expected the speed of each at 1, 2, ... at once: 1.0 alone, and more than 0 up to 1",
        )
    return None


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
