"""The reverse auction: every device bids for ranges of layers, and the best chain of bids in one order wins."""

from __future__ import annotations

import random
from math import inf
from typing import Literal

import numpy as np
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.registry import policy
from dovetail.pipeline.inputs.pool import by_host
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.ordered import best_in_order
from dovetail.pipeline.optimise.stages import Found, Option
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, Plan, dead_link

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
    largest: bool = False,
    strict_order: bool = False,
    strict_first: bool = False,
    strict_last: bool = False,
) -> Plan | Infeasible:
    """The best chain of bids for one order of the devices, of which some may be left out.

    The order is the given one, the file's, or with `seed` a random one, and of it the first so many `devices`; the data
    host, if it is among them, comes first, and pays nothing for input and output. With `strict_order` no device between
    two that are used is left out, with `strict_first` and `strict_last` not the first and the last. Bids are for whole
    chunks of layers, with `largest` only the largest for each first layer. `greedy` takes, again and again, the device
    that reaches furthest, and looks at no link.
    """
    one = by_host(pipeline)
    ranks = _ranks(one, order, seed, devices, data_host)
    tables = Tables(one, _chunks(one.layers, chunk))
    if largest:
        _keep_largest(tables)
    enter = [_data_s(tables, k, 0, data_host) for k in ranks]
    leave = [_data_s(tables, k, one.layers, data_host) for k in ranks]
    found: tuple[float | None, list[tuple[int, int, int]]] | None
    if mode == "greedy":
        stages = _greedy(tables, ranks)
        found = None if stages is None else (None, stages)
    else:
        found = best_in_order(
            tables,
            ranks,
            "max" if mode == "throughput" else "sum",
            strict_order=strict_order,
            strict_first=strict_first,
            strict_last=strict_last,
            enter=enter,
            leave=leave,
        )
    if found is None:
        reasons = ["no chain of bids in this order holds all layers", *one.warnings]
        return Infeasible(model=one.model, reasons=reasons)
    value, chain = found
    chosen = [(Option(k), i, j) for k, i, j in chain]
    objective: Literal["latency", "throughput"] = "latency" if mode == "latency" else "throughput"
    ends_s = (enter[ranks.index(chain[0][0])], leave[ranks.index(chain[-1][0])]) if chain else None
    made = finish(tables, Constraints(), objective, Found(chosen, value, method=f"auction ({mode})"), ends_s)
    made.problem = pipeline
    return made if made.bottleneck_s < inf else dead_link(made)


def _ranks(
    one: Pipeline, order: list[str] | None, seed: int | None, devices: int | None, data_host: str | None
) -> list[int]:
    """The devices in the order in which they may follow each other."""
    names = [c.hosts[0] for c in one.classes]
    chosen = list(order) if order is not None else list(names)
    for host in [*chosen, *([data_host] if data_host is not None else [])]:
        if host not in names:
            raise InputError(f"{host!r} is not an available host{did_you_mean(host, names)}")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"order: a host is named twice in {','.join(chosen)}")
    if seed is not None:
        random.Random(seed).shuffle(chosen)
    if devices is not None and devices < 1:
        raise InputError(f"devices: expected 1 or more, found {devices}")
    chosen = chosen[:devices]
    if data_host in chosen:
        chosen.remove(data_host)
        chosen.insert(0, data_host)
    return [names.index(host) for host in chosen]


def _keep_largest(tables: Tables) -> None:
    """Leave of each device's bids the largest for each first layer."""
    for times in tables.compute:
        for row in times:
            ends = np.nonzero(np.isfinite(row))[0]
            row[ends[:-1]] = np.inf


def _chunks(layers: int, chunk: int) -> set[int] | None:
    if chunk < 1:
        raise InputError(f"chunk: expected 1 or more, found {chunk}")
    return None if chunk == 1 else set(range(0, layers, chunk))


def _data_s(tables: Tables, k: int, cut: int, data_host: str | None) -> float:
    """Seconds between the data host and a device; 0 on the data host itself, or if none is named."""
    p = tables.pipeline
    if data_host is None or p.classes[k].hosts == [data_host]:
        return 0.0
    d = next(d for d, c in enumerate(p.classes) if c.hosts == [data_host])
    ends = (d, k) if cut == 0 else (k, d)
    return float(tables.transfers[ends][cut])


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
