"""The level's files: the system configuration (models, workflows, GPU types, costs), read and validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.files.document import Key
from dovetail.core.resources import DeviceType
from dovetail.core.tasks import Task, TaskGraph
from dovetail.workflow.inputs.costs import CostRules, ModelCost, PrefixRules, speeds_at_once
from dovetail.workflow.inputs.decisions import Decide
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.inputs.growth.then import Then
from dovetail.workflow.inputs.prompts import Prompt
from dovetail.workflow.inputs.slo import Slo
from dovetail.workflow.inputs.sources import ModelSource
from dovetail.workflow.inputs.tenants import Tenancy

DEFAULT_NODE_S = 10.0
MOST = 1e12  # seconds, GB or times as fast: more than that is a slip


class Model(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A model of the configuration. What `base_model` names fills in what is missing here."""

    name: str = ""
    memory_gb: float
    gpus_required: int
    load_time_seconds: float
    tokens_per_second: float | None = None
    prefill_tokens_per_second: float | None = None
    token_mean: float | None = None
    token_std: float | None = None
    input_token_mean: float | None = None
    input_token_std: float | None = None
    inference_time_mean: float | None = None
    inference_time_std: float | None = None
    type: str = "llm"
    base_model: str | None = None
    adapter_of: str = ""
    prefix_cache_tokens: int | None = None
    prefix_block_tokens: int = 512
    prefix_saves: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)
    batch_curve: tuple[float, ...] = ()
    max_concurrency: int = 1
    concurrency_curve: dict[int | str, float] | list[float] = field(default_factory=list)
    measured_as: str = ""  # what rate tables call it, if not by its name
    source: str | ModelSource | None = None  # where live runs take it from

    def estimate_s(self) -> tuple[float, str]:
        """How long a node takes when its request does not say: seconds, and which rule gave them."""
        if self.tokens_per_second:
            return (self.token_mean or 1000.0) / self.tokens_per_second, "tokens"
        if self.inference_time_mean:
            return self.inference_time_mean, "inference_time_mean"
        return DEFAULT_NODE_S, "default"

    @property
    def cost(self) -> ModelCost:
        reads = self.prefill_tokens_per_second
        at_once = speeds_at_once(self.concurrency_points, self.max_concurrency) if self.max_concurrency > 1 else ()
        return ModelCost(
            self.memory_gb,
            self.load_time_seconds,
            self.gpus_required,
            self.batch_curve,
            adapter_of=self.adapter_of,
            prefix=self.prefix,
            concurrency_curve=at_once,
            **({"prefill_s": 1 / reads} if reads else {}),
        )

    @property
    def concurrency_points(self) -> dict[int, float]:
        """The speed of each of so many at once, as far as it is given."""
        given = self.concurrency_curve
        points = given if isinstance(given, dict) else dict(enumerate(given, start=1))
        return {1: 1.0} | {int(n): speed for n, speed in points.items()}

    @property
    def prefix(self) -> PrefixRules | None:
        if self.prefix_cache_tokens is None:
            return None
        return PrefixRules(self.prefix_cache_tokens, self.prefix_block_tokens, self.prefix_saves)


class Node(Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    model: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    config_options: list[str] = field(default_factory=list)
    then: Then = field(default_factory=dict)
    prompt: Prompt | None = None  # these two are for live runs
    decide: Decide = field(default_factory=dict)


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
    measured_as: str = ""


def _nowhere(keys: Sequence[Key], message: str) -> InputError:
    return InputError(f"{'.'.join(map(str, keys))}: {message}")


class System(Struct, omit_defaults=True):
    """A validated configuration. `faults` tells which workflows cannot run, `never` which of their nodes, and why;
    `error` makes an error that names a place in its file."""

    models: dict[str, Model]
    workflows: dict[str, Workflow]
    gpu_types: dict[str, DeviceType]
    costs: CostRules
    gpus: str | None
    faults: dict[str, str]
    never: dict[str, dict[str, str]]
    rates: list[Path] = []
    measured_as: dict[str, str] = {}  # what rate tables call GPU types
    item_s: dict[str, float] = {}  # seconds per item at speed 1, of models with an absolute rate
    units: dict[str, str] = {}  # what their items are: items/s, tokens/s, ...
    prefill_s: dict[str, float] = {}  # seconds per token read at speed 1, of models whose rate of that is measured
    tenancy: Tenancy | None = None
    slo: Slo | None = None
    gpus_over_time: GpusOverTime | None = None
    growth: dict[str, GrowthRules] = {}  # of workflows whose nodes may add others
    live: dict[str, Any] = {}  # settings of live services, which check them
    error: Callable[[Sequence[Key], str], InputError] = _nowhere

    def estimate_s(self, model: str) -> tuple[float, str]:
        """How long a node takes when its request does not say: seconds, and which rule gave them."""
        mean, item_s = self.models[model].token_mean, self.item_s.get(model)
        if mean and item_s is not None and self.units[model] == "tokens/s":
            return mean * item_s, "rates"
        return self.models[model].estimate_s()

    def token_s(self, model: str) -> tuple[float | None, float | None]:
        """Seconds per token that a model reads, and per token that it writes, at speed 1, where they are known."""
        given = self.models[model]
        reads, writes = given.prefill_tokens_per_second, given.tokens_per_second
        decode_s = self.item_s.get(model) if self.units.get(model) == "tokens/s" else None
        return self.prefill_s.get(model) or (1 / reads if reads else None), decode_s or (1 / writes if writes else None)

    def spread_s(self, model: str) -> float:
        """The standard deviation of that estimate, where the configuration gives one."""
        given, (seconds, rule) = self.models[model], self.estimate_s(model)
        if rule == "inference_time_mean":
            return given.inference_time_std or 0.0
        return seconds * (given.token_std or 0.0) / (given.token_mean or 1000.0) if rule in ("tokens", "rates") else 0.0

    @property
    def model_costs(self) -> dict[str, ModelCost]:
        costs = {name: model.cost for name, model in self.models.items()}
        return costs | {name: replace(costs[name], prefill_s=read_s) for name, read_s in self.prefill_s.items()}

    def graphs(self, whole: bool = False) -> dict[str, TaskGraph]:
        """The workflows that can run, as task graphs."""
        return {name: self.graph(name, whole) for name in self.workflows if name not in self.faults}

    def graph(self, name: str, whole: bool = False, workflow: Workflow | None = None) -> TaskGraph:
        """A workflow as it is when a request arrives, or `whole`, with the nodes that may be added; one that is given
        is not among those of the file."""
        workflow = workflow or self.workflows[name]
        later = self.growth[name].optional if name in self.growth and not whole else ()
        tasks = [Task(n.id, n.model, self.models[n.model].gpus_required) for n in workflow.nodes if n.id not in later]
        never = self.never.get(name, {})  # need no edges: they do not wait for one another
        edges = [(e.source, e.target) for e in workflow.edges if e.target not in never and e.target not in later]
        return TaskGraph(name, tasks, edges, never)
