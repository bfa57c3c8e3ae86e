"""The same problem with another pool: hosts taken away, added or slowed; link tables follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline


def regroup(pipeline: Pipeline, groups: Sequence[tuple[int, DeviceClass]]) -> Pipeline:
    """The problem with these classes, each given with the number of the class whose links it has.

    Classes without hosts are left out.
    """
    kept = [(origin, c) for origin, c in groups if c.hosts]

    def follow(table: list[list[float]] | None) -> list[list[float]] | None:
        return None if table is None else [[table[a][b] for b, _ in kept] for a, _ in kept]

    return replace(
        pipeline,
        classes=[c for _, c in kept],
        link_mbps=follow(pipeline.link_mbps),
        link_s=follow(pipeline.link_s),
    )


def by_host(pipeline: Pipeline) -> Pipeline:
    """The problem with every host a class of its own."""
    return regroup(
        pipeline,
        [(k, replace(c, name=host, hosts=[host])) for k, c in enumerate(pipeline.classes) for host in c.hosts],
    )


def with_hosts(pipeline: Pipeline, k: int, hosts: list[str]) -> Pipeline:
    """The problem with other hosts in class k."""
    return regroup(pipeline, [(i, replace(c, hosts=hosts) if i == k else c) for i, c in enumerate(pipeline.classes)])


def without(pipeline: Pipeline, hosts: Collection[str]) -> Pipeline:
    """The problem without some hosts.

    A constraint that pins a stage to one of them must be dropped by the caller.
    """
    for host in hosts:
        _class_of(pipeline, host)
    return regroup(
        pipeline,
        [
            (k, replace(c, hosts=[host for host in c.hosts if host not in hosts]))
            for k, c in enumerate(pipeline.classes)
        ],
    )


def slowed(pipeline: Pipeline, host: str, factor: float) -> Pipeline:
    """The problem with a host that takes `factor` times as long for every layer; it becomes a class of its own."""
    if not 0 < factor < float("inf"):
        raise InputError(f"factor: expected a positive number, found {factor}")
    at = _class_of(pipeline, host)
    groups = []
    for k, c in enumerate(pipeline.classes):
        groups.append((k, replace(c, hosts=[other for other in c.hosts if other != host])))
        if k == at:
            slow = {"time_s": [factor * t for t in c.time_s], "stage_s": factor * c.stage_s}
            groups.append((k, replace(c, name=host, hosts=[host], **slow)))
    return regroup(pipeline, groups)


def _class_of(pipeline: Pipeline, host: str) -> int:
    found = next((k for k, c in enumerate(pipeline.classes) if host in c.hosts), None)
    if found is None:
        raise InputError(f"{host!r} is not an available host")
    return found
