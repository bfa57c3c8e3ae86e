"""Spans of traces as requests: what is inside what, and what began after what had ended, gives the graph of calls.

Spans of one trace may stand anywhere in a file: they are sorted by a database in a temporary file, not in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import Any, NamedTuple

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.importers.trace_rows import RowFault
from dovetail.workflow.inputs.importers.traced import Collector

LEAST_S = 0.001  # of a tool that was faster than its clock
TOOL = {"name": "what runs between the calls of models", "memory_gb": 0, "gpus_required": 0, "load_time_seconds": 0}


class Span(NamedTuple):
    """`model` is empty for what only holds other spans together; of a `tool`, what counts is how long it took."""

    trace: str
    id: str
    parent: str
    start_s: float
    end_s: float
    name: str
    model: str
    input: int = 0
    output: int = 0
    tool: bool = False
    place: str = ""


class KeptSpans:
    """Spans in the order in which they come, given back trace by trace."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base
        base.execute(f"CREATE TABLE spans ({', '.join(Span._fields)}, PRIMARY KEY (trace, id))")

    def add(self, span: Span) -> None:
        if span.end_s < span.start_s:
            raise RowFault("", f"span {span.id!r} ends before it starts: {span.start_s} s, {span.end_s} s")
        try:
            self._base.execute(f"INSERT INTO spans VALUES ({', '.join('?' * len(span))})", span)
        except sqlite3.IntegrityError:
            raise RowFault("", f"span {span.id!r} is given twice in trace {span.trace!r}") from None

    def traces(self) -> Iterator[list[Span]]:
        rows = self._base.execute("SELECT * FROM spans ORDER BY trace, start_s, rowid")
        for _, group in groupby((Span(*row) for row in rows), key=lambda span: span.trace):
            yield list(group)


@contextmanager
def keep_spans() -> Iterator[KeptSpans]:
    with closing(sqlite3.connect("")) as base:
        yield KeptSpans(base)


def graphs_of(kept: KeptSpans, found: Collector) -> Iterator[dict[str, Any]]:
    """A request for each trace that calls a model; traces of the same shape are one workflow."""
    for spans in kept.traces():
        nodes, edges = call_graph(spans)
        if all(node.tool for node in nodes):
            found.drop("trace without model calls")
            continue
        models = [found.plain_model("tool", TOOL) if node.tool else found.model(node.model) for node in nodes]
        names = _numbered(models)
        shape = (tuple(models), tuple(edges))
        named = next((span.name for span in spans if span.name), "trace")
        made = {
            "nodes": [{"id": name, "model": model} for name, model in zip(names, models, strict=True)],
            "edges": [{"from": names[i], "to": names[j]} for i, j in edges],
        }
        tokens = {
            name: {"input": node.input, "output": node.output}
            for name, node in zip(names, nodes, strict=True)
            if not node.tool
        }
        times = {
            name: max(node.end_s - node.start_s, LEAST_S) for name, node in zip(names, nodes, strict=True) if node.tool
        }
        for model, node in zip(models, nodes, strict=True):
            if not node.tool:
                found.call(model, node.input, node.output)
        request = {
            "request_id": spans[0].trace,
            "timestamp": spans[0].start_s,
            "workflow_id": found.workflow(shape, named, made.copy),
            "node_tokens": tokens,
        }
        yield request | ({"node_execution_times": times} if times else {})


def _numbered(models: Sequence[str]) -> list[str]:
    count: dict[str, int] = {}
    names = []
    for model in models:
        count[model] = count.get(model, 0) + 1
        names.append(f"{model}_{count[model]}")
    return names


def call_graph(spans: Sequence[Span]) -> tuple[list[Span], list[tuple[int, int]]]:
    """The model calls (and tools) of one trace, whose spans come by their start, and which waits for which.

    Of spans inside one another the innermost calls count: what is around them only wraps them. Among the spans of one
    parent, one that began when another had ended waits for it; what overlaps runs side by side.
    """
    ids = {span.id for span in spans}
    inside: dict[str, list[Span]] = {}
    for span in spans:
        inside.setdefault(span.parent if span.parent in ids else "", []).append(span)
    order, at = list(inside.get("", ())), 0
    while at < len(order):  # parents before what is inside them
        order += inside.get(order[at].id, ()) if order[at].id else ()
        at += 1
    if len(order) < len(spans):
        lost = min(ids - {span.id for span in order})
        place = next(span.place for span in spans if span.id == lost)
        raise InputError(f"{place}: span {lost!r} is inside itself")
    leads: set[str] = set()  # spans that are, or hold, something that counts
    counted: set[str] = set()
    for span in reversed(order):
        holds = any(child.id in leads for child in inside.get(span.id, ()))
        if not holds and (span.model or span.tool):
            counted.add(span.id)
        if holds or span.id in counted:
            leads.add(span.id)
    walk = _Walk(inside, leads, counted)
    try:
        walk.group("", frozenset())
    except RecursionError:
        raise InputError(f"{spans[0].place}: trace {spans[0].trace!r} is nested too deeply") from None
    return walk.nodes, sorted(walk.edges)


class _Walk:
    """Goes through the spans of a trace and links those that count."""

    def __init__(self, inside: dict[str, list[Span]], leads: set[str], counted: set[str]) -> None:
        self._inside, self._leads, self._counted = inside, leads, counted
        self.nodes: list[Span] = []
        self.edges: set[tuple[int, int]] = set()

    def group(self, parent: str, entry: frozenset[int]) -> frozenset[int]:
        """The spans of one parent, which begin after the nodes of `entry`; gives those that end it."""
        spans = [span for span in self._inside.get(parent, ()) if span.id in self._leads]
        ends: list[frozenset[int]] = []
        for i, span in enumerate(spans):
            before = _nearest(spans, [j for j in range(i) if spans[j].end_s <= span.start_s])
            into = frozenset().union(*(ends[j] for j in before)) if before else entry
            if span.id in self._counted:
                self.edges |= {(source, len(self.nodes)) for source in into}
                ends.append(frozenset([len(self.nodes)]))
                self.nodes.append(span)
            else:
                ends.append(self.group(span.id, into))
        return frozenset().union(*(ends[i] for i in _nearest(spans, range(len(spans)))))


def _nearest(spans: Sequence[Span], those: Sequence[int]) -> list[int]:
    """Those after which none of the others begins."""
    if not those:
        return []
    latest = max(spans[i].start_s for i in those)
    return [i for i in those if spans[i].end_s > latest or spans[i].start_s == latest]
