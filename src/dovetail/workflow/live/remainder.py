"""What is left of a run that goes on in a new journal: its graph without the nodes that have finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.core.events import Arrived
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.live.book import NodeOutput, RunRecord


class Remainder(NamedTuple):
    """How a run arrives anew; `graph` is one of its own if nodes of it have finished, else that of its workflow."""

    arrival: Arrived
    graph: TaskGraph


def remainder(record: RunRecord, graph: TaskGraph, outputs: Mapping[str, NodeOutput], now_s: float) -> Remainder | None:
    """What is left of a run, given what its nodes gave in the order in which that came; None if that is nothing."""
    sizes = dict(zip((task.name for task in graph.tasks), record.sizes, strict=True))
    for output in outputs.values():
        if output.grew is not None:
            graph = graph.grown(output.grew.tasks, output.grew.edges)
            sizes |= zip((task.name for task in output.grew.tasks), output.grew.sizes, strict=True)
    left = [task for task in graph.tasks if task.name not in outputs]
    if not left:
        return None
    if outputs:
        names = [task.name for task in graph.tasks]
        edges = [
            (names[i], names[j])
            for i, targets in enumerate(graph.before)
            for j in targets
            if names[i] not in outputs and names[j] not in outputs
        ]
        graph = TaskGraph(f"{record.workflow}~{record.id}", left, edges)
    due_s = None if record.due_s is None else max(record.due_s - (now_s - record.arrived_s), 0.0)
    arrival = Arrived(
        record.id, graph.name, tuple(sizes[task.name] for task in left), due_s, record.weight, facts=record.facts
    )
    return Remainder(arrival, graph)
