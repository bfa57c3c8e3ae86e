"""Run a plan for real: every stage a process of its own, on hardware that is the planned one or is said to differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dovetail.core.errors import InputError
from dovetail.pipeline.live.carriers import carriers
from dovetail.pipeline.live.coordinator import Coordinator
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.jobs import MicrobatchStream, RunOptions
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.local import LocalEngine, StageEngine
from dovetail.pipeline.live.quantise import WIDTHS
from dovetail.pipeline.live.results import LiveResult, ResultCounter, evaluate
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec, need_torch
from dovetail.pipeline.plan import Plan

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value

_KEPT_BYTES = 256 << 20  # of random inputs


def run_plan(
    plan: Plan,
    model: ModelSpec,
    *,
    microbatches: int | None = None,
    inputs: Sequence[Value] | None = None,
    hosts: Mapping[str, HostSettings] | None = None,
    on: Mapping[str, str] | None = None,
    emulate: bool = False,
    engine: Literal["local", "ray"] | StageEngine = "local",
    address: str | None = None,
    options: RunOptions | None = None,
    journal: Path | None = None,
    deliver: Callable[[int, Value], None] | None = None,
    keep_outputs: bool = False,
    watch: Callable[[int], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> LiveResult:
    """Send microbatches through the stages of a plan, each a process of its own, and measure.

    Every host of the plan needs a carrier: a device that is what the plan says, one that `hosts` or `on` (by host, type
    or `all`) names, or, with `emulate`, this machine's processor. `inputs` are values by microbatch; without them
    random ones are made, 64 unless `microbatches` says otherwise. `deliver` gets each result once and in order, on
    another thread; `watch` is told how many have come out, `notice` when a plan begins or ends. The journal is written
    while the run goes on.
    """
    options, settings = options or RunOptions(), hosts or {}
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

    with closing(_engine(engine, address)) as started:
        nodes = started.nodes({host: settings.get(host, HostSettings()).node for host in _known(plan)})
        carried = carriers(plan, settings, on or {}, emulate, started.devices(), nodes)
        work = MicrobatchStream(model, dtype, total, _inputs(plan, model, dtype, inputs, total), take)
        counter = ResultCounter()
        with closing(RunJournal(journal, plan, total, options, carried, [counter])) as witness:
            coordinator = Coordinator(plan, work, started, settings, carried, options, witness)
            coordinator.run(watch, notice)
    result = evaluate(counter, coordinator.plans, witness.ids, carried, total, items)
    result.outputs = kept
    return result


def _known(plan: Plan) -> list[str]:
    """All hosts that this plan, or another for the same problem, may use."""
    others = [host for c in plan.problem.classes for host in c.hosts] if plan.problem else []
    return list(dict.fromkeys([*plan.hosts, *others]))


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
