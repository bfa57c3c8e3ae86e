"""Requests that are open, and their nodes that are ready, in queues by model."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from operator import mul
from types import MappingProxyType
from typing import Any

from dovetail.core.tasks import TaskGraph
from dovetail.workflow.gpus.prefixes import blocks_of
from dovetail.workflow.inputs.growth.rules import said_of

Window = tuple[int, ...]


class OpenRequest:
    """A request under way."""

    __slots__ = (
        "arrived_s",
        "due_s",
        "facts",
        "gpu_s_left",
        "graph",
        "id",
        "left",
        "open",
        "queued",
        "sizes",
        "started",
        "tails",
        "waiting",
        "weight",
    )

    def __init__(
        self,
        id: str,
        graph: TaskGraph,
        sizes: Sequence[float],
        arrived_s: float,
        due_s: float | None,
        weight: float,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.id = id
        self.graph = graph
        self.sizes = sizes
        self.arrived_s = arrived_s
        self.due_s = due_s  # on the clock, not after arrival
        self.weight = weight
        self.facts = facts  # what else its file says of it, by what it is about: tokens, ...
        self.open = True  # until it is completed or rejected
        self.queued: ReadyNode | None = None  # a node that waits for GPUs; its `sibling` is another, or has started
        self.started = 0  # bit i: node i runs or has run
        self.left = len(graph.tasks)
        self.waiting = graph.waits.copy()
        self.gpu_s_left: float = sum(map(mul, sizes, graph.widths))
        self.tails: list[float] | None = None

    def grow(self, graph: TaskGraph, sizes: Sequence[float]) -> None:
        """Its graph has more nodes now; which of them wait, the scheduler knows."""
        added = len(sizes)
        self.graph = graph
        self.sizes = (*self.sizes, *sizes)
        self.left += added
        self.waiting += [0] * added
        self.gpu_s_left += sum(map(mul, sizes, graph.widths[-added:])) if added else 0.0
        self.tails = None

    def close(self) -> None:
        """It is completed or rejected. Leaves no circle of references behind."""
        self.open = False
        self.queued = None


class ReadyNode:
    """A node that is ready to run."""

    __slots__ = (
        "attempt",
        "gone",
        "gpu_s",
        "index",
        "lost",
        "model",
        "name",
        "prefix",
        "rank",
        "ready_s",
        "request",
        "seq",
        "sibling",
        "size",
        "width",
    )

    def __init__(
        self, request: OpenRequest, index: int, ready_s: float, seq: int, attempt: int = 1, lost: int = 0
    ) -> None:
        node = request.graph.tasks[index]
        self.request = request
        self.index = index
        self.name = node.name
        self.model = node.kind
        self.width = node.width
        self.size = request.sizes[index]
        self.gpu_s = self.size * node.width
        self.ready_s = ready_s
        self.seq = seq
        self.attempt = attempt  # of which it is to blame for all that went before
        self.lost = lost  # how often it was lost with the place where it ran
        self.rank: Any = seq
        self.gone = False
        self.sibling: ReadyNode | None = None
        self.prefix = blocks_of(request.facts, self.name) if request.facts else ()

    @property
    def changed(self) -> bool:
        """Whether somebody wrote over what its request says of it."""
        task = self.request.graph.tasks[self.index]
        size = self.request.sizes[self.index]
        return (self.size, self.width, self.model, self.name) != (size, task.width, task.kind, task.name)

    @property
    def tail_s(self) -> float:
        """Longest path from the start of this node to the end of its request (its upward rank)."""
        request = self.request
        if request.tails is None:
            request.tails = request.graph.tails(request.sizes)
        return request.tails[self.index]


class Queue:
    """The ready nodes of one model, in the policy's order."""

    __slots__ = ("_heap", "count", "gpu_s", "model", "ready_s", "width")

    def __init__(self, model: str, width: int) -> None:
        self.model = model
        self.width = width
        self.count = 0
        self.gpu_s = 0.0
        self.ready_s = 0.0  # summed over its nodes
        self._heap: list[tuple[Any, int, ReadyNode]] = []

    def push(self, node: ReadyNode) -> None:
        heapq.heappush(self._heap, (node.rank, node.seq, node))
        self.count += 1
        self.gpu_s += node.gpu_s
        self.ready_s += node.ready_s

    @property
    def head(self) -> ReadyNode:
        heap = self._heap
        while heap[0][2].gone or heap[0][0] is not heap[0][2].rank:
            heapq.heappop(heap)
        return heap[0][2]

    def move(self, node: ReadyNode, rank: Any) -> None:
        """Give a node another place in the queue."""
        node.rank = rank
        heapq.heappush(self._heap, (rank, node.seq, node))

    def remove(self, node: ReadyNode) -> None:
        node.gone = True
        self.count -= 1
        self.gpu_s -= node.gpu_s
        self.ready_s -= node.ready_s

    def first(self, count: int) -> list[ReadyNode]:
        """The first few, in order."""
        heap = self._heap
        found: list[tuple[Any, int, ReadyNode]] = []
        while heap and len(found) < count:
            entry = heapq.heappop(heap)
            if not entry[2].gone and entry[0] is entry[2].rank:
                found.append(entry)
        for entry in found:
            heapq.heappush(heap, entry)
        return [node for _, _, node in found]

    def nodes(self) -> list[ReadyNode]:
        """All of them, in order. Costs time: a policy for large queues looks at heads only."""
        return [node for rank, _, node in sorted(self._heap) if not node.gone and rank is node.rank]


def tokens_of_node(node: ReadyNode) -> Sequence[int]:
    """How many a node reads and writes, as far as its request says."""
    tokens: Any = said_of(node.name, node.request.facts.get("tokens"))
    return (0, 0) if tokens is None else tokens
