"""A plan: which device gets which layers, what that gives, what binds it; and one that was printed, read back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files.document import Document, Source, as_path, checked
from dovetail.core.files.output import atomic_write
from dovetail.core.files.reading import yaml_text
from dovetail.core.rates import Rate, RateTable
from dovetail.pipeline.inputs.problem import LARGEST, Pipeline, check_number, check_problem

if TYPE_CHECKING:
    from dovetail.core.results.comparison import Comparison

Objective = Literal["throughput", "latency", "batch", "devices", "energy", "money"]
_LONGEST_S = sys.float_info.max  # of a stage or a link: bytes over a bandwidth that may be next to nothing
LINK_WIDTHS = (*range(2, 17), 32)  # bits of a value on a link; 32: as it is
GenerationObjective = Literal["tokens", "ttft"]  # tokens per second, time to the first token


class Constraints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan must respect."""

    latency_cap_s: float | None = None
    throughput_floor_items_s: float | None = None
    first: str | None = None  # host that must hold the first stage
    last: str | None = None  # host that must hold the last stage
    max_stages: int | None = None
    allowed_cuts: frozenset[int] | None = None  # layers after which a cut may be made
    data_mbps: float | None = None  # bandwidth of the host that sends the input and takes the output
    replicas: int = 1  # devices of one class that may take turns at a stage
    link_bits: tuple[int, ...] = (32,)  # widths that values may have on a link

    @property
    def pinned(self) -> list[str]:
        """Hosts that must hold a certain stage."""
        return [host for host in (self.first, self.last) if host is not None]

    @property
    def plain(self) -> bool:
        """Whether none of them needs the general planner."""
        return self == Constraints(allowed_cuts=self.allowed_cuts)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What nobody can ask for: the constraint, with what was expected and found."""
        for name in ("latency_cap_s", "max_stages", "data_mbps", "replicas", "throughput_floor_items_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                yield name, f"expected a positive number, found {value}"
        if self.data_mbps is not None and self.data_mbps > LARGEST:
            yield "data_mbps", f"expected at most {LARGEST:g}, found {self.data_mbps:g}"
        if not self.link_bits or any(bits not in LINK_WIDTHS for bits in self.link_bits):
            yield "link_bits", f"expected 2 to 16, or 32 for values as they are; found {list(self.link_bits)}"

    @classmethod
    def given(cls, pipeline: Pipeline, cuts: Sequence[int] = (), **limits: Any) -> Constraints:
        """What a user asks for, if a plan of this problem can respect it."""
        made = checked({"allowed_cuts": cuts or None, **limits}, cls)
        for name, message in made.faults():
            raise InputError(f"{flag(name)}: {message}")
        outside = [cut for cut in made.allowed_cuts or () if not 1 <= cut <= pipeline.layers]
        if outside:
            raise InputError(f"--cuts {min(outside)}: {pipeline.model} has layers 1 to {pipeline.layers}")
        return made


def flag(name: str) -> str:
    """What the command line calls a constraint.

    >>> flag("max_stages"), flag("allowed_cuts")
    ('--max-stages', '--cuts')
    """
    return "--cuts" if name == "allowed_cuts" else f"--{name.replace('_', '-')}"


class Stage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One stage. `send_s` is the transfer to the next (of the last: to the data host, if there is one)."""

    host: str
    type: str
    layers: tuple[int, int]  # first and last, from 1
    compute_s: float
    send_s: float
    send_bits: int
    mem_mib: float
    mem_limit_mib: float
    utilisation: float
    replicas: list[str] = field(default_factory=list)
    slack_s: float = 0.0  # how far computing lies below the bottleneck
    send_slack_s: float = 0.0  # how far sending does
    mem_slack_mib: float = 0.0

    @property
    def hosts(self) -> list[str]:
        """The hosts that take turns at the stage."""
        return [self.host, *self.replicas]


class GenerationFigures(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a plan gives for a language model: its stages decode tokens for a group of requests, and prefill a prompt.

    `concurrency` requests go through the stages in `groups`, one group behind another; a step is a token for each.
    """

    prompt: int
    context: int
    concurrency: int
    groups: int
    ttft_s: float  # of one prompt, with nothing else under way
    step_s: float
    tokens_s: float  # of all requests together
    source: Literal["measured", "estimated"]
    prefill_s: list[float]  # of each stage
    kv_mib: list[float]  # of each stage, when all contexts are full
    widths: list[int]  # devices that share each layer of a stage


class Plan(Struct, kw_only=True, forbid_unknown_fields=True):
    """A plan and what it gives. `bound_s` is proven: no plan has a smaller value of the objective; `gap` is how far its
    own lies above that, relatively."""

    model: str
    objective: Objective | GenerationObjective
    method: str
    batch_size: int
    bottleneck_s: float
    latency_s: float
    throughput_items_s: float
    value: float
    bound_s: float
    optimal: bool
    binding: str
    stages: list[Stage]
    gap: float | None = None
    enter_s: float = 0.0  # the transfer of the input from the data host, if there is one
    energy_j_per_item: float | None = None
    money_per_item: float | None = None
    probes: int = 0
    # What it takes to plan again.
    problem: Pipeline | None = None
    constraints: Constraints | None = None
    microbatches: int = 8
    slack: float = 0.0
    generation: GenerationFigures | None = None  # of a language model

    @property
    def chain(self) -> str:
        """The types of its stages in a row: what the plan is called as a device of another level."""
        return " + ".join(f"{len(s.hosts)} {s.type}" if s.replicas else s.type for s in self.stages)

    @property
    def hosts(self) -> list[str]:
        """All hosts that the plan uses."""
        return [host for stage in self.stages for host in stage.hosts]

    @property
    def rates(self) -> RateTable:
        """How fast the plan runs its model, as another level reads it: the chain of stages is one device."""
        if not self.stages:
            return RateTable()
        return RateTable([Rate(self.model, self.chain, self.throughput_items_s, source="estimated", unit="items/s")])

    def schedule(self) -> str:
        """The schedule in the form that pipeline runtimes read: `- host: [first, last]`, in the order of the stages."""
        rows = [{stage.host: list(stage.layers)} for stage in self.stages]
        return yaml_text(rows, default_flow_style=None)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan as JSON, complete in itself; or, if the name ends in .yml or .yaml, its schedule."""
        place = as_path(path, "path")
        as_yaml = place.suffix in (".yml", ".yaml")
        atomic_write(place, self.schedule() if as_yaml else msgspec.json.format(msgspec.json.encode(self)))
        return place

    def frame(self) -> Any:
        """A row per stage: a frame of pandas or polars where one is installed, else columns."""
        return self._table.frame()

    @property
    def _table(self) -> Comparison:
        from dovetail.core.results.comparison import Comparison

        rows = [
            {"host": " + ".join(stage.hosts), "type": stage.type, "first": stage.layers[0], "last": stage.layers[1]}
            | {key: getattr(stage, key) for key in ("compute_s", "send_s", "send_bits", "mem_mib", "utilisation")}
            for stage in self.stages
        ]
        return Comparison(rows)

    def proof(self) -> str:
        """How good it is known to be."""
        if self.optimal:
            return "optimal"
        if self.gap is None:
            return f"by {self.method}"
        return f"by {self.method}, at most {100 * self.gap:.2g} % above the best possible"

    def _headline(self) -> str:
        return (
            f"{self.model} in {len(self.stages)} stages: {self.throughput_items_s:,.6g} items/s, bottleneck "
            f"{self.bottleneck_s:.6g} s per microbatch of {self.batch_size} ({self.proof()}): {self.binding}"
        )

    def __repr__(self) -> str:
        return f"<Plan {self._headline()}>\n{self._table}"

    def _repr_html_(self) -> str:
        return f"<p><b>Plan</b> {escape(self._headline())}</p>{self._table._repr_html_()}"


class InfeasibleError(DovetailError):
    """There is no plan; `reasons` say why.

    >>> str(InfeasibleError(["memory is short by 3.0 MiB"]))
    'no plan: memory is short by 3.0 MiB'
    """

    exit_code = 1

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(list(reasons))

    @property
    def reasons(self) -> list[str]:
        found: list[str] = self.args[0]
        return found

    def __str__(self) -> str:
        return f"no plan: {'; '.join(self.reasons)}"


class Infeasible(Struct, kw_only=True):
    """There is no plan, and why; or, where that is not proven, none was found in time."""

    model: str
    reasons: list[str]
    proven: bool = True


def dead_link(made: Plan) -> Infeasible:
    """What to say of a plan that sends over a link without bandwidth."""
    return Infeasible(model=made.model, reasons=[f"{made.method} would use {made.binding}, whose bandwidth is 0"])


def read_plan(source: Plan | Source) -> Plan:
    """A plan as `dovetail pipeline plan --format json` printed it, or `Plan.save` wrote it; or one that is there, as it
    is or as a dict."""
    doc = Document.of(source, "plan")
    data: Any = doc.data
    if isinstance(data, list) and data and all(isinstance(stage, dict) for stage in data):
        expected = "expected a plan as `dovetail pipeline plan --format json` prints it"
        raise doc.error(
            (), f"holds a schedule, which says who has which layers, but not how long they take; {expected}"
        )
    if isinstance(data, dict) and data.get("feasible") is False:
        raise doc.error(("feasible",), "holds no plan: planning found none")
    if isinstance(data, dict) and "points" in data and "complete" in data:
        raise doc.error(("points",), "holds a Pareto front; expected one plan")
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ("what_if", "curves")}
    found = doc.convert(data, Plan)
    if not found.stages:
        raise doc.error(("stages",), "expected at least one stage")
    if found.batch_size < 1:
        raise doc.error(("batch_size",), f"expected 1 or more, found {found.batch_size}")
    check_number(doc, ("enter_s",), found.enter_s, _LONGEST_S)
    _check_stages(doc, found)
    return found


def _check_stages(doc: Document, plan: Plan) -> None:
    """Stages hold all layers in order, each on hosts of its own."""
    used: set[str] = set()
    before = 0
    for i, stage in enumerate(plan.stages):
        for key in ("compute_s", "send_s"):
            check_number(doc, ("stages", i, key), getattr(stage, key), _LONGEST_S)
        first, last = stage.layers
        if first != before + 1 or last < first:
            raise doc.error(("stages", i, "layers"), f"expected layers from {before + 1} on, found {first} to {last}")
        before = last
        for host in stage.hosts:
            if not host or host in used:
                raise doc.error(("stages", i), f"expected hosts that no other stage has, found {host!r}")
            used.add(host)
    if plan.problem is not None:
        _check_problem(doc, plan.problem, before)
    for name, message in plan.constraints.faults() if plan.constraints is not None else ():
        raise doc.error(("constraints", name), message)


def _check_problem(doc: Document, problem: Pipeline, layers: int) -> None:
    """What the plan was made for is about as many layers, and is a problem."""
    if problem.layers != layers:
        raise doc.error(("problem", "layers"), f"expected {layers}, as in the stages, found {problem.layers}")
    check_problem(doc, problem, ("problem",))
