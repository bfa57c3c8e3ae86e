"""Prefix caches: what GPUs keep of the inputs that they have read, and what that saves whoever begins alike."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core.events import Arrived, Complete, Reject, Start
from dovetail.core.tasks import Task, TaskGraph
from dovetail.core.words import Claim
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.inputs.growth.rules import said_of

Block = int | str


class PrefixCaches:
    """The blocks that each GPU keeps for each model that it holds, in order of last use. They are kept beside the model
    in `held`, so that they leave with it."""

    def __init__(
        self, models: Mapping[str, ModelCost], held: Sequence[dict[str, OrderedDict[Block, None] | None]]
    ) -> None:
        self._room = {name: model.prefix.blocks for name, model in models.items() if model.prefix is not None}
        self._held = held

    def cached(self, model: str, blocks: Sequence[Block], window: Iterable[int]) -> int:
        """How many of these, from the first on, all GPUs of a window keep."""
        count = len(blocks)
        for gpu in window:
            if (kept := self._held[gpu].get(model)) is None:
                return 0
            count = next((i for i in range(count) if blocks[i] not in kept), count)
        return count

    def use(self, model: str, blocks: Sequence[Block], window: Iterable[int]) -> None:
        """A node has started: its blocks are there from now on, its first one used last, so that ends go before
        beginnings."""
        for gpu in window if blocks else ():
            kept = self._held[gpu][model]
            if kept is None:
                kept = self._held[gpu][model] = OrderedDict()
            for block in reversed(blocks):
                kept[block] = None
                kept.move_to_end(block)
            while len(kept) > self._room[model]:
                kept.popitem(last=False)


def blocks_of(facts: Mapping[str, Any], node: str) -> Sequence[Block]:
    """The blocks of a node's prefix, as far as what its request says of them can be understood."""
    blocks = said_of(node, facts.get("prefix"))
    return blocks if isinstance(blocks, list) and all(type(block) in (int, str) for block in blocks) else ()


def saved_s(model: ModelCost, size_s: float, tokens: int, blocks: int, cached: int) -> float:
    """Seconds at speed 1 that a node need not read: with tokens, the time of those that are cached (but the last one is
    always read), else its share of what the model saves at best.

    >>> from dovetail.workflow.inputs.costs import PrefixRules
    >>> model = ModelCost(14.0, 30.0, prefill_s=0.001, prefix=PrefixRules(100_000, saves=0.5))
    >>> saved_s(model, 10.0, 1200, blocks=3, cached=2), saved_s(model, 10.0, 1200, blocks=3, cached=3)
    (1.024, 1.199)
    >>> saved_s(model, 10.0, 0, blocks=4, cached=2)
    2.5
    """
    if not cached or model.prefix is None:
        return 0.0
    if tokens and model.prefill_s:
        return min(cached * model.prefix.block_tokens, tokens - 1) * model.prefill_s
    return model.prefix.saves * size_s * cached / blocks


PREFIX_CLAIMS = (
    Claim("prefix_blocks", "blocks of prefixes", "count"),
    Claim("prefix_hit_rate", "found cached", "share"),
)


class PrefixHits:
    """Counts the blocks of started nodes, and how many of them were cached."""

    def __init__(self, models: Mapping[str, ModelCost]) -> None:
        self._asked = any(model.prefix is not None for model in models.values())
        self._open: dict[str, dict[str, Any]] = {}
        self._blocks = self._cached = 0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is Start:
                if event.job in self._open:
                    self._blocks += len(blocks_of(self._open[event.job], event.task))
                    self._cached += event.cached
            elif kind is Arrived:
                if "prefix" in event.facts:
                    self._open[event.job] = event.facts
            elif kind is Complete or kind is Reject:
                self._open.pop(event.job, None)

    def figures(self) -> dict[str, Any]:
        """Nothing, if no model keeps any."""
        if not self._asked:
            return {}
        return {"prefix_blocks": self._blocks, "prefix_hit_rate": self._cached / max(self._blocks, 1)}


class PossibleSavings:
    """What each node could save at best, whatever the schedule: a block that no other node of its model has is not
    cached anywhere before the node itself has begun, and so ends its hit. (After a failure it may find its own.)"""

    def __init__(self, models: Mapping[str, ModelCost]) -> None:
        self._models = models
        self._nodes: Counter[tuple[str, Block]] = Counter()  # that have a block

    def add(self, tasks: Iterable[Task], request: Arrived) -> None:
        """Nodes of a request that may run, whatever becomes of it."""
        for task in tasks:
            self._nodes.update({(task.kind, block) for block in blocks_of(request.facts, task.name)})

    def seconds(
        self, graph: TaskGraph, requests: Mapping[int, Arrived], rows: int, failures: bool
    ) -> NDArray[np.float64]:
        """By row and node; `requests` are those in rows of a graph."""
        saved = np.zeros((rows, len(graph.tasks)))
        for row, request in requests.items():
            for i, (task, size_s) in enumerate(zip(graph.tasks, request.sizes, strict=True)):
                model, blocks = self._models.get(task.kind), blocks_of(request.facts, task.name)
                if blocks and model is not None and model.prefix is not None:
                    known = (failures or self._nodes[task.kind, block] > 1 for block in blocks)
                    hits = min(sum(takewhile(bool, known)), model.prefix.blocks)
                    saved[row, i] = saved_s(model, size_s, _reads(request, task.name), len(blocks), hits)
        return saved


def _reads(request: Arrived, node: str) -> int:
    """How many tokens a node reads, as far as that can be understood."""
    given = said_of(node, request.facts.get("tokens"))
    return given[0] if isinstance(given, list) and given and type(given[0]) is int else 0
