"""The reverse auction: every device bids for ranges of layers, and the best chain of bids in one order wins."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.registry import policy
from dovetail.pipeline.inputs import DeviceClass, Pipeline
from dovetail.pipeline.labels import Option
from dovetail.pipeline.ordered import best_in_order
from dovetail.pipeline.plan import Constraints, Infeasible, Plan, finish
from dovetail.pipeline.tables import Tables

Mode = Literal["throughput", "latency", "greedy"]


class Bid(Struct):
    """What a device would take for layers `first` to `last`."""

    host: str
    first: int
    last: int
    compute_s: float


def bids(pipeline: Pipeline, host: str, chunk: int = 1) -> list[Bid]:
    """All ranges that fit on a host, each with the time it would take; with `chunk`, only ranges of whole chunks."""
    one = by_host(pipeline)
    tables = Tables(one, _chunks(one.layers, chunk))
    k = next((k for k, c in enumerate(one.classes) if c.hosts == [host]), None)
    if k is None:
        raise InputError(f"{host!r} is not an available host")
    starts, ends = np.nonzero(np.isfinite(tables.compute[k]))
    return [Bid(host, int(i) + 1, int(j), float(tables.compute[k, i, j])) for i, j in zip(starts, ends, strict=True)]


@policy("auction", level="pipeline")
def auction(
    pipeline: Pipeline,
    mode: Mode = "throughput",
    order: list[str] | None = None,
    seed: int | None = None,
    devices: int | None = None,
    data_host: str | None = None,
    chunk: int = 1,
    skip: bool = True,
) -> Plan | Infeasible:
    """The best chain of bids for one order of the devices; with `skip`, some may be left out.

    The order is the given one, the file's, or with `seed` a random one; the data host, if it is among them, comes
    first, and pays nothing for input and output. `greedy` takes, again and again, the device that reaches furthest.
    """
    one = by_host(pipeline)
    names = [c.hosts[0] for c in one.classes]
    chosen = list(order) if order is not None else list(names)
    for host in chosen:
        if host not in names:
            raise InputError(f"{host!r} is not an available host")
    if seed is not None:
        random.Random(seed).shuffle(chosen)
    chosen = chosen[:devices]
    if data_host in chosen:
        chosen.remove(data_host)
        chosen.insert(0, data_host)
    tables = Tables(one, _chunks(one.layers, chunk))
    ranks = [names.index(host) for host in chosen]
    enter = [_data_s(tables, k, 0, data_host) for k in ranks]
    leave = [_data_s(tables, k, one.layers, data_host) for k in ranks]
    if mode == "greedy":
        stages = _greedy(tables, ranks)
        found = None if stages is None else (0.0, stages)
    else:
        combine: Literal["max", "sum"] = "max" if mode == "throughput" else "sum"
        found = best_in_order(tables, ranks, combine, skip=skip, enter=enter, leave=leave)
    if found is None:
        reasons = ["no chain of bids in this order holds all layers", *one.warnings]
        return Infeasible(model=one.model, reasons=reasons)
    parts = [(Option(k), i, j) for k, i, j in found[1]]
    objective: Literal["latency", "throughput"] = "latency" if mode == "latency" else "throughput"
    made = finish(tables, Constraints(), objective, parts, found[0], 0.0, False, f"auction ({mode})", 0)
    if mode == "greedy":
        made.value = made.bottleneck_s
    return made


def by_host(pipeline: Pipeline) -> Pipeline:
    """The same problem with every host a class of its own."""
    split, origin = [], []
    for k, c in enumerate(pipeline.classes):
        for host in c.hosts:
            values = {key: getattr(c, key) for key in c.__struct_fields__} | {"name": host, "hosts": [host]}
            split.append(DeviceClass(**values))
            origin.append(k)
    values = {key: getattr(pipeline, key) for key in pipeline.__struct_fields__} | {"classes": split}
    for key in ("link_mbps", "link_s"):
        table = getattr(pipeline, key)
        if table is not None:
            values[key] = [[table[a][b] for b in origin] for a in origin]
    return Pipeline(**values)


def _chunks(layers: int, chunk: int) -> set[int] | None:
    if chunk < 1:
        raise InputError(f"chunk: expected 1 or more, found {chunk}")
    return None if chunk == 1 else set(range(0, layers, chunk))


def _data_s(tables: Tables, k: int, cut: int, data_host: str | None) -> float:
    """Seconds between the data host and a device; 0 on the data host itself, or if none is named."""
    p = tables.pipeline
    if data_host is None or p.classes[k].hosts == [data_host]:
        return 0.0
    d = next((d for d, c in enumerate(p.classes) if c.hosts == [data_host]), None)
    if d is None:
        return 0.0
    ends = (d, k) if cut == 0 else (k, d)
    return float(tables.transfers[ends][cut]) if tables.transfers[ends][cut] < np.inf else float("inf")


def _greedy(tables: Tables, ranks: list[int]) -> list[tuple[int, int, int]] | None:
    left, at, stages = list(ranks), 0, []
    while at < tables.layers:
        reach = [
            (int(ends[-1]), -float(tables.compute[k, at, ends[-1]]), -n)
            for n, k in enumerate(left)
            if len(ends := np.nonzero(np.isfinite(tables.compute[k, at]))[0])
        ]
        if not reach:
            return None
        end, _, n = max(reach)
        stages.append((left.pop(-n), at, end))
        at = end
    return stages
