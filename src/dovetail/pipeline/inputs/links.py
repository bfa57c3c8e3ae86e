"""The optional file of links between hosts or types, or of every host's neighbours, read and put into a problem."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.errors import did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.pipeline.inputs.pool import by_host, merged, regroup
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline, check_names, check_number


class LinkEntry(Struct, forbid_unknown_fields=True):
    """The connection between two hosts or types, in both directions unless `one_way`. Bandwidth 0 forbids it."""

    source: str = field(name="from")
    target: str = field(name="to")
    bw_Mbps: float | None = None  # noqa: N815
    latency_s: float = 0.0
    one_way: bool = False

    @property
    def ways(self) -> list[tuple[str, str]]:
        """From whom to whom it leads."""
        return [(self.source, self.target), *([] if self.one_way else [(self.target, self.source)])]


class _Links(Struct, forbid_unknown_fields=True):
    links: list[LinkEntry] = field(default_factory=list)
    latency_s: float = 0.0


class _Neighbour(Struct, forbid_unknown_fields=True):
    bw_Mbps: float  # noqa: N815


def apply_links(pipeline: Pipeline, links: Source, unused: Collection[str] = ()) -> Pipeline:
    """The problem with the bandwidths and latencies of a file, of whichever form.

    Either `links` between hosts or types, or the map of hosts to their neighbours that the older auction reads.
    `unused` are hosts and types which there are, but not for this problem.
    """
    doc = Document.of(links, "links")
    neighbours = isinstance(doc.data, dict) and not {"links", "latency_s"} & doc.data.keys()
    if neighbours and all(value is None or isinstance(value, dict) for value in doc.data.values()):
        return _with_neighbours(pipeline, doc)
    return _with_links(pipeline, doc, unused)


def _with_neighbours(pipeline: Pipeline, doc: Document) -> Pipeline:
    """Every pair of hosts is as fast as the slower of its two directions; one that is not in the file has no link."""
    check_names(doc, doc.data)
    given = {host: row if row is not None else {} for host, row in doc.data.items()}
    table = {host: doc.convert(row, dict[str, _Neighbour], (host,)) for host, row in given.items()}
    for host, row in table.items():
        for other, link in row.items():
            check_number(doc, (host, other, "bw_Mbps"), link.bw_Mbps)
    one = by_host(pipeline)
    hosts = [c.name for c in one.classes]
    for host in dict.fromkeys([*table, *(other for row in table.values() for other in row)]):
        if host not in hosts:
            hint = did_you_mean(host, hosts)
            one.warnings.append(f"Links of {host} will be skipped: it is not an available host{hint}")

    def mbps(a: str, b: str) -> float:
        ways = [table.get(a, {}).get(b), table.get(b, {}).get(a)]
        return min(link.bw_Mbps if link is not None else 0.0 for link in ways)

    one.link_mbps = [[mbps(a, b) for b in hosts] for a in hosts]
    one.link_s = [[0.0] * len(hosts) for _ in hosts]
    return merged(one)


def _with_links(pipeline: Pipeline, doc: Document, unused: Collection[str]) -> Pipeline:
    """Split classes where links tell their hosts apart, and fill the tables of bandwidth and latency."""
    file = doc.convert(doc.data, _Links)
    known = {host for c in pipeline.classes for host in c.hosts}
    _check_links(doc, file, pipeline, unused)
    named = known & {end for link in file.links for end in (link.source, link.target)}
    groups: list[tuple[int, DeviceClass]] = []
    for k, c in enumerate(pipeline.classes):
        rest = [host for host in c.hosts if host not in named]
        groups.append((k, replace(c, hosts=rest)))
        groups += [(k, replace(c, name=host, hosts=[host])) for host in c.hosts if host in named]
    pipeline = regroup(pipeline, groups)
    split = pipeline.classes
    count = len(split)
    mbps = [[min(a.bw_mbps, b.bw_mbps) for b in split] for a in split]
    seconds = [[file.latency_s] * count for _ in split]
    for link in sorted(file.links, key=lambda x: (x.source in known) + (x.target in known)):  # hosts override types
        for a, b in link.ways:
            for i, u in enumerate(split):
                for j, v in enumerate(split):
                    if a in (u.name, u.type) and b in (v.name, v.type):
                        mbps[i][j] = link.bw_Mbps if link.bw_Mbps is not None else mbps[i][j]
                        seconds[i][j] = link.latency_s
    return merged(replace(pipeline, link_mbps=mbps, link_s=seconds))


def _check_links(doc: Document, file: _Links, pipeline: Pipeline, unused: Collection[str]) -> None:
    """Every link is between hosts or types that there are, and is given once."""
    types = {c.type for c in pipeline.classes}
    known = {host for c in pipeline.classes for host in c.hosts}
    several = {c.type for c in pipeline.classes if c.hosts != [c.type]}
    seen: set[tuple[str, str]] = set()
    check_number(doc, ("latency_s",), file.latency_s)
    for i, link in enumerate(file.links):
        for key, end in (("from", link.source), ("to", link.target)):
            at = ("links", i, key)
            if end not in types and end not in known and end not in unused:
                raise doc.error(at, f"{end!r} is not a host or type{did_you_mean(end, [*types, *known])}")
            if end in known and end in several:
                raise doc.error(at, f"{end!r} is a host and a type; give one of them another name")
        check_number(doc, ("links", i, "latency_s"), link.latency_s)
        check_number(doc, ("links", i, "bw_Mbps"), link.bw_Mbps or 0.0)
        if link.source == link.target and link.source in known:
            raise doc.error(("links", i), f"{link.source} has no link to itself")
        for way in dict.fromkeys(link.ways):
            if way in seen:
                raise doc.error(("links", i), f"the link from {way[0]} to {way[1]} is given twice")
            seen.add(way)
