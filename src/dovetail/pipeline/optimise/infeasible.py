"""Why there is no plan: layers that fit nowhere, links that cannot be used, constraints that cannot be kept.

A cause is named when the plan appears without it: each constraint and each dead link is dropped alone, and then
several of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from dovetail.pipeline.inputs.problem import MIB, Pipeline
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.search import Search
from dovetail.pipeline.optimise.stages import Found, Stages
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, flag

_FREE_MBPS = 1e12  # a link that costs next to nothing
_MOST_LINKS = 64  # dead links that are tried one by one
_LIMITS = ("latency_cap_s", "throughput_floor_items_s", "first", "last", "max_stages", "allowed_cuts", "data_mbps")
_LATE = "; which of them is to blame was not found in time"
_LEAST_S = 2.0  # for causes, where the search took all the time there was


def why_not(tables: Tables, constraints: Constraints, clock: SearchClock) -> list[str]:
    """Reasons why no plan exists, the most telling first: those that were found in time, or that none was."""
    clock = SearchClock(max(clock.left_s, _LEAST_S))
    p = tables.pipeline
    if not p.classes:
        return [f"no device has a profile of {p.model} for batch size {p.batch_size} and {p.dtype}"]
    reasons = [*_too_large(tables), *_too_little(p)] or [
        *(f"the bandwidth {link} is 0: with that link there would be a plan" for link in _links(p, constraints, clock)),
        *_constraints(tables, constraints, clock),
    ]
    return reasons or _together(p, constraints, clock)


def _possible(p: Pipeline, constraints: Constraints, clock: SearchClock) -> bool:
    """Whether a plan was found under these constraints."""
    tables = Tables(p, None if constraints.allowed_cuts is None else set(constraints.allowed_cuts))
    return Search(tables, constraints, clock).any().stages is not None


def _too_large(tables: Tables) -> Iterator[str]:
    """Layers that no device can hold, neither alone nor with others: more layers may need smaller buffers."""
    p = tables.pipeline
    largest = max(c.mem_mib for c in p.classes)
    for layer in range(1, p.layers + 1):
        if not tables.fits[:, :layer, layer:].any():
            need = float(tables.need_bytes[:layer, layer:].min()) / MIB
            yield f"layer {layer} fits nowhere: it needs {need:.1f} MiB with its buffers, the largest has {largest:.1f}"


def _too_little(p: Pipeline) -> Iterator[str]:
    total = sum(p.mem_mib) - sum(group.mib * (len(group.layers) - 1) for group in p.tied)
    have = sum(c.mem_mib * len(c.hosts) for c in p.classes)
    if total > have:
        yield f"memory is short by {total - have:.1f} MiB: the layers need {total:.1f}, all devices have {have:.1f}"


def _dead_links(p: Pipeline) -> dict[tuple[int, int], str]:
    """Links without bandwidth, by class, and what they are called."""
    count, names = range(len(p.classes)), [c.name for c in p.classes]
    mbps = p.link_mbps or [[min(a.bw_mbps, b.bw_mbps) for b in p.classes] for a in p.classes]
    return {
        (u, v): f"between two {names[u]}" if u == v else f"from {names[u]} to {names[v]}"
        for u in count
        for v in count
        if mbps[u][v] <= 0 and (u != v or len(p.classes[u].hosts) > 1)
    }


def _opened(p: Pipeline, pairs: Collection[tuple[int, int]]) -> Pipeline:
    """The problem with these links as good as any."""
    count = range(len(p.classes))
    mbps = p.link_mbps or [[min(a.bw_mbps, b.bw_mbps) for b in p.classes] for a in p.classes]
    return replace(p, link_mbps=[[_FREE_MBPS if (u, v) in pairs else mbps[u][v] for v in count] for u in count])


def _links(p: Pipeline, constraints: Constraints, clock: SearchClock) -> list[str]:
    """Each link without bandwidth of which it alone would do that it can be used."""
    dead = _dead_links(p)
    if len(dead) > _MOST_LINKS or not dead or not _possible(_opened(p, dead), constraints, clock):
        return []
    return [told for pair, told in dead.items() if _possible(_opened(p, [pair]), constraints, clock)]


def _constraints(tables: Tables, constraints: Constraints, clock: SearchClock) -> list[str]:
    """Each constraint without which there would be a plan."""
    alone = [name for name in _given(constraints) if _possible(tables.pipeline, _free(constraints, [name]), clock)]
    return [_about(name, tables, constraints, clock) for name in alone]


def _given(constraints: Constraints) -> list[str]:
    return [name for name in _LIMITS if getattr(constraints, name) is not None]


def _free(constraints: Constraints, names: Collection[str]) -> Constraints:
    return replace(constraints, **dict.fromkeys(names))


def _together(p: Pipeline, constraints: Constraints, clock: SearchClock) -> list[str]:
    """What leaves no plan although none of it is to blame alone: links, constraints, or both."""
    given, dead = _given(constraints), _dead_links(p)
    free, opened = _free(constraints, given), _opened(p, dead)
    links = f"cannot be used: the bandwidth is 0 {_listed(list(dead.values()))}"
    late = _LATE if clock.over else ""
    if given and _possible(p, free, clock):
        return [f"{_flags(given)} together leave no plan{late or '; without any of them there is one'}"]
    if dead and _possible(opened, constraints, clock):
        return [f"links {links}"]
    if dead and given and _possible(opened, free, clock):
        alone = [name for name in given if _possible(opened, _free(constraints, [name]), clock)]
        blamed, late = alone or given, _LATE if clock.over and not alone else ""
        leave = "leave" if len(blamed) > 1 else "leaves"
        return [f"{_flags(blamed)} {leave} no plan together with links that {links}{late}"]
    if clock.over:
        return ["no plan was found; why there is none was not found in time"]
    return ["no chain of the available devices can hold all layers in order"]


def _flags(names: Collection[str]) -> str:
    return ", ".join(map(flag, names))


def _listed(told: list[str]) -> str:
    return ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")


def _about(name: str, tables: Tables, constraints: Constraints, clock: SearchClock) -> str:
    """What a constraint asks for, and what would be possible."""
    value = getattr(constraints, name)
    free = replace(constraints, **{name: None})
    search = Search(tables, free, clock)
    if name == "latency_cap_s":
        best = search.least("latency")
        told = (
            f": the least latency {'possible' if best.closed else 'found'} is {best.value:.6g} s"
            + _slowest_link(tables, free, best.stages)
            if best.stages is not None
            else ""
        )
        return f"--latency-cap-s {value:g} leaves no plan{told}"
    if name == "throughput_floor_items_s":
        most = search.throughput()
        told = ""
        if most.stages is not None and most.value:
            items_s = tables.pipeline.batch_size / most.value
            told = f": the most {'possible' if most.closed else 'found'} is {items_s:.6g} items/s"
        return f"--throughput-floor-items-s {value:g} leaves no plan{told}"
    if name == "max_stages":
        few = search.least("devices")
        told = f": at least {few.bound:.0f} are needed" if few.bound > value else ""
        return f"--max-stages {value} leaves no plan{told}"
    if name == "allowed_cuts":
        return f"--cuts leaves no plan{_uncuttable(tables, value)}"
    if name == "data_mbps":
        return (
            f"--data-mbps {value:g} leaves no plan: no device that could hold an end of the model reaches the data host"
        )
    return f"--{name} {value} leaves no plan{_pinned(tables, value, name)}"


def _slowest_link(tables: Tables, constraints: Constraints, best: Stages) -> str:
    """Which link takes most of the least latency, where any takes some of it."""
    made = finish(tables, constraints, "latency", Found(best))
    hosts = ["the data host", *(stage.host for stage in made.stages), "the data host"]
    sends = [made.enter_s, *(stage.send_s for stage in made.stages)]
    x = max(range(len(sends)), key=sends.__getitem__)
    return f", of which the link from {hosts[x]} to {hosts[x + 1]} takes {sends[x]:.6g} s" if sends[x] > 0 else ""


def _pinned(tables: Tables, host: str, end: str) -> str:
    p = tables.pipeline
    k = next(k for k, c in enumerate(p.classes) if host in c.hosts)
    held, layer = (np.s_[0, 1:], 1) if end == "first" else (np.s_[:-1, p.layers], p.layers)
    if not tables.fits[k][held].any():
        need = float(tables.need_bytes[held].min()) / MIB
        return f": layer {layer} needs {need:.1f} MiB with its buffers, {host} has {p.classes[k].mem_mib:.1f}"
    return f": no chain that {'begins' if end == 'first' else 'ends'} on {host} holds all layers"


def _uncuttable(tables: Tables, cuts: frozenset[int]) -> str:
    """The first layers between two allowed cuts that fit nowhere as one."""
    open_cuts = sorted({0, tables.layers} | {cut for cut in cuts if 0 < cut < tables.layers})
    for i, j in pairwise(open_cuts):
        if not tables.fits[:, i, j].any():
            need = float(tables.need_bytes[i, j]) / MIB
            largest = max(c.mem_mib for c in tables.pipeline.classes)
            return (
                f": layers {i + 1} to {j} cannot be cut and fit nowhere: {need:.1f} MiB, the largest has {largest:.1f}"
            )
    return ""
