"""Rules of thumb: as many layers for a device as its share of something, in the order of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf

from dovetail.core.registry import policy
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.stages import Found, Option
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, Plan, dead_link


@policy("equal", level="pipeline")
def equal(pipeline: Pipeline) -> Plan | Infeasible:
    """Every device gets the same number of layers, give or take one."""
    return _split(pipeline, "equal", lambda c: 1.0)


@policy("speed-proportional", level="pipeline")
def by_speed(pipeline: Pipeline) -> Plan | Infeasible:
    """Every device gets layers in proportion to its speed over the whole model."""
    return _split(pipeline, "speed-proportional", lambda c: 1.0 / (sum(c.time_s) or 1.0))


@policy("memory-proportional", level="pipeline")
def by_memory(pipeline: Pipeline) -> Plan | Infeasible:
    """Every device gets layers in proportion to its memory."""
    return _split(pipeline, "memory-proportional", lambda c: c.mem_mib)


@policy("parameter-proportional", level="pipeline")
def by_parameters(pipeline: Pipeline) -> Plan | Infeasible:
    """Every device gets as equal a part of the model's parameters (its layers' memory) as whole layers allow."""
    return _split(pipeline, "parameter-proportional", lambda c: 1.0, pipeline.mem_mib)


def _split(
    pipeline: Pipeline,
    name: str,
    share: Callable[[DeviceClass], float],
    sizes: Sequence[float] = (),
) -> Plan | Infeasible:
    """Cut the layers in proportion to devices' shares, counting each layer as one or by its size."""
    devices = [k for k, c in enumerate(pipeline.classes) for _ in c.hosts]
    if not devices:
        return Infeasible(model=pipeline.model, reasons=[f"no device has a profile of {pipeline.model}"])
    ends = _ends([share(pipeline.classes[k]) for k in devices], sizes or [1.0] * pipeline.layers)
    tables = Tables(pipeline)
    chosen = [(Option(k), i, j) for k, i, j in zip(devices, [0, *ends], ends, strict=False) if i < j]
    for option, i, j in chosen:
        if not tables.fits[option.k, i, j]:
            device = pipeline.classes[option.k]
            need = float(tables.need_bytes[i, j]) / 2**20
            why = f"layers {i + 1} to {j} need {need:.1f} MiB, a {device.type} has {device.mem_mib:.1f}"
            return Infeasible(model=pipeline.model, reasons=[why])
    made = finish(tables, Constraints(), "throughput", Found(chosen, method=name))
    return made if made.bottleneck_s < inf else dead_link(made)


def _ends(shares: Sequence[float], sizes: Sequence[float]) -> list[int]:
    """Where each device's layers end: as near to its share of all sizes as whole layers come.

    >>> _ends([1.0, 1.0, 2.0], [1.0] * 8), _ends([1.0, 1.0], [3.0, 1.0, 1.0, 1.0])
    ([2, 4, 8], [1, 4])
    """
    total, held, ends = sum(shares), 0.0, []
    filled = [0.0, *accumulate(sizes)]
    for share in shares:
        held += share
        wanted = filled[-1] * held / total if total else filled[-1]
        ends.append(min(range(len(filled)), key=lambda cut: (abs(filled[cut] - wanted), -cut)))
    return ends
