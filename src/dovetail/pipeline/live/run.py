"""Run a plan for real, and say what came of it beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from dovetail.core.charts import as_fact
from dovetail.core.errors import InputError
from dovetail.core.metrics import Figures
from dovetail.pipeline.explain import curves_of
from dovetail.pipeline.live.coordinator import Coordinator
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.jobs import RunOptions, Workload, hosts_at
from dovetail.pipeline.live.journal import History, record, way
from dovetail.pipeline.live.local import LocalEngine, StageEngine
from dovetail.pipeline.live.quantise import WIDTHS
from dovetail.pipeline.live.recorder import DATA_HOST, LayoutRecord, Recorder
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec, need_torch
from dovetail.pipeline.plan import Plan

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value

_KEPT_BYTES = 256 << 20  # of random inputs
_WARM_UP = 2  # microbatches of a stage that medians leave out


class StageResult(Struct, frozen=True, kw_only=True):
    """A stage as planned and as measured: medians for one microbatch, and how long it was busy of all the time."""

    host: str
    replicas: list[str]
    layers: tuple[int, int]
    predicted_compute_s: float
    compute_s: float | None
    predicted_send_s: float
    send_s: float | None
    send_bits: int
    utilisation: float


class Change(Struct, frozen=True):
    """A new plan during the run."""

    at_s: float
    why: str


class RunResult(Struct, kw_only=True):
    """What a run came to. The steady rate leaves out filling and draining, and is that of the longest-lived plan."""

    microbatches: int
    completed: int
    items: int
    elapsed_s: float
    throughput_items_s: float
    steady_items_s: float | None
    predicted_items_s: float
    difference_percent: float | None
    plans: int
    changes: list[Change]
    stages: list[StageResult]
    outputs: list[Any] = field(default_factory=list)  # only if they were asked for


def run_plan(
    plan: Plan,
    model: ModelSpec,
    *,
    microbatches: int | None = None,
    inputs: Sequence[Value] | None = None,
    hosts: Mapping[str, HostSettings] | None = None,
    engine: Literal["local", "ray"] | StageEngine = "local",
    address: str | None = None,
    options: RunOptions | None = None,
    journal: Path | None = None,
    deliver: Callable[[int, Value], None] | None = None,
    keep_outputs: bool = False,
    watch: Callable[[int], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Send microbatches through the stages of a plan, each a process of its own, and measure.

    `inputs` are values by microbatch; without them random ones are made, 64 unless `microbatches` says otherwise.
    `deliver` gets each result once and in order, on another thread; `watch` is told how many have come out, `notice`
    when a plan begins or ends. The journal is written also if the run fails.
    """
    options = options or RunOptions()
    _check(plan, options, microbatches)
    need_torch("running a pipeline")
    total = min(microbatches or len(inputs), len(inputs)) if inputs is not None else microbatches or 64
    dtype = plan.problem.dtype if plan.problem else "torch.float32"
    kept: list[Any] = []
    items = 0

    def take(number: int, value: Value) -> None:
        nonlocal items
        items += len(value[0] if isinstance(value, tuple) else value)
        if deliver is not None:
            deliver(number, value)
        if keep_outputs:
            kept.append(value)

    source = _inputs(plan, model, dtype, inputs, total)
    work = Workload(model, dtype, total, source, take)
    coordinator = Coordinator(plan, work, _engine(engine, address), hosts or {}, options)
    try:
        coordinator.run(watch, notice)
    finally:
        outcome = _evaluate(coordinator.recorder, plan, coordinator.delivered, items, total, options, journal)
    outcome.outputs = kept
    return outcome


def _check(plan: Plan, options: RunOptions, microbatches: int | None) -> None:
    if not plan.stages:
        raise InputError("the plan has no stages")
    if microbatches is not None and microbatches < 1:
        raise InputError(f"microbatches: expected at least 1, found {microbatches}")
    if options.buffers < 1:
        raise InputError(f"buffers: expected at least 1, found {options.buffers}")
    used = [options.link_bits] if options.link_bits else [stage.send_bits for stage in plan.stages[:-1]]
    for bits in used:
        if bits not in WIDTHS:
            raise InputError(f"link bits: expected 2 to 16, or 32 for values as they are; found {bits}")
    if options.target_items_s is not None and not options.target_items_s > 0:
        raise InputError(f"target rate: expected items per second, found {options.target_items_s:g}")
    if options.shape_links and plan.problem is None:
        raise InputError("shape links: the plan does not say how fast links are; make it again with this version")
    for before, after in pairwise(plan.stages):
        if after.layers[0] != before.layers[1] + 1:
            raise InputError(f"the plan has layers {after.layers} after {before.layers}: they do not meet")


def _inputs(
    plan: Plan, model: ModelSpec, dtype: str, given: Sequence[Value] | None, total: int
) -> Callable[[int], Value]:
    """Microbatches by number, for a model that is the plan's."""
    chain = load(model)
    layers = plan.stages[-1].layers[1]
    if len(chain.layers) != layers:
        raise InputError(f"{model.source}: has {len(chain.layers)} layers, but the plan is for {layers}")
    if given is None:
        return _random_inputs(lambda seed: chain.inputs(plan.batch_size, dtype, seed=seed), total)
    found = [tuple(tensor.shape[1:]) for tensor in (given[0] if isinstance(given[0], tuple) else (given[0],))]
    if [len(shape) for shape in found] != [len(shape) for shape in chain.shapes]:
        raise InputError(f"inputs: {model.source} takes items of {list(chain.shapes)}, found {found}")
    return given.__getitem__


def _random_inputs(make: Callable[[int], Value], total: int) -> Callable[[int], Value]:
    """Made before the run, for that takes longer than many a stage; large microbatches come again after a while."""
    made = [make(0)]
    size = sum(t.numel() * t.element_size() for t in (made[0] if isinstance(made[0], tuple) else (made[0],)))
    made += map(make, range(1, min(total, max(2, _KEPT_BYTES // max(1, size)))))
    return lambda number: made[number % len(made)]


def _engine(engine: Literal["local", "ray"] | StageEngine, address: str | None) -> StageEngine:
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        from dovetail.pipeline.live.ray_engine import RayEngine

        return RayEngine(address)
    if address is not None:
        raise InputError("address: only the ray engine has one")
    return LocalEngine()


def _evaluate(
    recorder: Recorder, plan: Plan, completed: int, items: int, total: int, options: RunOptions, journal: Path | None
) -> RunResult:
    layouts = recorder.layouts
    arrivals = {
        layout.generation: list(recorder.column(layout.generation, DATA_HOST, "r").ends_s) for layout in layouts
    }
    main = max(layouts, key=lambda layout: len(arrivals[layout.generation]), default=None)
    used = main.plan if main else plan
    changes = [Change(layout.end_s or 0.0, layout.why) for layout in layouts[:-1]]
    facts: dict[str, Any] = {
        "model": plan.model,
        "plans": [
            {"stages": [{"hosts": hosts_at(s), "layers": s.layers} for s in layout.plan.stages]} for layout in layouts
        ],
        "changes": changes,
    }
    if layouts and completed < total:
        facts["ended"] = f"{layouts[-1].why or 'interrupted'}: {completed} of {total} microbatches came out"
    if journal is not None:
        facts |= as_fact(curves_of(plan))
    history, figures = record(recorder, options, journal, facts)
    begun = [s for layout in layouts for s in recorder.column(layout.generation, DATA_HOST, "s").starts_s[:1]]
    ended = [s for times in arrivals.values() for s in times[-1:]]
    elapsed_s = max(ended) - min(begun) if ended else 0.0
    steady = _steady(arrivals[main.generation], len(used.stages) + 1, plan.batch_size) if main else None
    predicted = used.throughput_items_s
    return RunResult(
        microbatches=total,
        completed=completed,
        items=items,
        elapsed_s=elapsed_s,
        throughput_items_s=items / elapsed_s if elapsed_s else 0.0,
        steady_items_s=steady,
        predicted_items_s=predicted,
        difference_percent=100 * (steady / predicted - 1) if steady and predicted else None,
        plans=len(layouts),
        changes=changes,
        stages=_stages(recorder, main, history, figures) if main else [],
    )


def _steady(arrivals_s: list[float], fill: int, batch_size: int) -> float | None:
    """Items per second after the first few microbatches.

    >>> _steady([9.0, 9.5, 10.0, 11.0, 12.0], 2, 8)
    8.0
    """
    fill = min(fill, ceil(len(arrivals_s) / 2))
    if len(arrivals_s) - fill < 2:
        return None
    span_s = arrivals_s[-1] - arrivals_s[fill]
    return (len(arrivals_s) - 1 - fill) * batch_size / span_s if span_s > 0 else None


def _stages(recorder: Recorder, layout: LayoutRecord, history: History, figures: Figures) -> list[StageResult]:
    found = []
    spots = way(layout.plan)
    uses = dict(zip(history.devices, [device.utilisation for device in figures.devices], strict=True))
    for x, stage in enumerate(layout.plan.stages):
        here = hosts_at(stage)
        columns = [recorder.column(layout.generation, host, "c") for host in here]
        computed = [b - a for c in columns for a, b in list(zip(c.starts_s, c.ends_s, strict=True))[_WARM_UP:]]
        starts, ends = history.seen(layout.generation, spots[2 * x + 2])
        sent = [ends[n] - starts[n] for n in sorted(starts.keys() & ends.keys())][_WARM_UP:]
        found.append(
            StageResult(
                host=stage.host,
                replicas=stage.replicas,
                layers=stage.layers,
                predicted_compute_s=stage.compute_s * len(here),
                compute_s=median(computed) if computed else None,
                predicted_send_s=spots[2 * x + 2].seconds,
                send_s=median(sent) if sent else None,
                send_bits=max(recorder.column(layout.generation, host, "s").bits for host in here),
                utilisation=fmean(uses[host] for host in here),
            )
        )
    return found
