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


def merged(pipeline: Pipeline) -> Pipeline:
    """The problem with hosts that could change places in one class, whose devices the planner counts: they are alike in
    all, their links too. Classes that become all hosts of their type get its name, unless another class has that."""
    classes, groups, count = pipeline.classes, list[list[int]](), range(len(pipeline.classes))
    tables = [table for table in (pipeline.link_mbps, pipeline.link_s) if table is not None]
    links = [[tuple(table[a][b] for table in tables) for b in count] for a in count]
    for a in count:
        group = next((group for group in groups if _exchangeable(classes, links, group[0], a)), None)
        if group is None:
            groups.append([a])
        else:
            group.append(a)
    made = regroup(pipeline, [(group[0], _as_one(classes, group)) for group in groups])
    for table, before in ((made.link_mbps, pipeline.link_mbps), (made.link_s, pipeline.link_s)):
        for k, group in enumerate(groups):
            if table is not None and before is not None and len(group) > 1:
                table[k][k] = before[group[0]][group[1]]  # of a class of one host, a link to itself stood there
    return made


def _exchangeable(classes: list[DeviceClass], links: list[list[tuple[float, ...]]], a: int, b: int) -> bool:
    """Whether any two hosts of two classes could change places: alike, and with the same links, also to each other."""
    one, two = classes[a], classes[b]
    if one.type != two.type:
        return False
    inner = {links[x][x] for x in (a, b) if len(classes[x].hosts) > 1} | {links[a][b], links[b][a]}
    return (
        len(inner) == 1
        and all(links[a][x] == links[b][x] and links[x][a] == links[x][b] for x in range(len(links)) if x not in (a, b))
        and replace(one, name="", hosts=[]) == replace(two, name="", hosts=[])
    )


def _as_one(classes: list[DeviceClass], group: list[int]) -> DeviceClass:
    first, rest = classes[group[0]], group[1:]
    if not rest:
        return first
    whole = all(x in group or first.type not in (c.type, c.name) for x, c in enumerate(classes))
    hosts = [host for x in group for host in classes[x].hosts]
    return replace(first, name=first.type if whole else first.name, hosts=hosts)


def with_hosts(pipeline: Pipeline, k: int, hosts: list[str]) -> Pipeline:
    """The problem with other hosts in class k."""
    groups = [(i, replace(c, hosts=hosts) if i == k else c) for i, c in enumerate(pipeline.classes)]
    return merged(regroup(pipeline, groups))


def without(pipeline: Pipeline, hosts: Collection[str]) -> Pipeline:
    """The problem without some hosts.

    A constraint that pins a stage to one of them must be dropped by the caller.
    """
    for host in hosts:
        _class_of(pipeline, host)
    left = [replace(c, hosts=[host for host in c.hosts if host not in hosts]) for c in pipeline.classes]
    return merged(regroup(pipeline, list(enumerate(left))))


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
