"""Which blocks of prefixes the GPUs keep, recounted from the starts of a run alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from dovetail.core.events import Arrived, Start
from dovetail.workflow.inputs.costs import ModelCost
from dovetail.workflow.metrics import tokens_of


class _Cache:
    """What one GPU keeps for one model: when each block was last used, and a heap that finds the oldest."""

    def __init__(self) -> None:
        self.used: dict[Any, int] = {}
        self.heap: list[tuple[int, Any]] = []


class PrefixRecount:
    """What was cached for each start, and what that saved it."""

    def __init__(self, models: Mapping[str, ModelCost]) -> None:
        self._models = models
        self._rules = {name: model.prefix for name, model in models.items() if model.prefix is not None}
        self._caches: dict[tuple[int, str], _Cache] = {}
        self._clock = 0

    def cached(self, start: Start, arrived: Arrived) -> int:
        """How many blocks of its prefix all of its GPUs had, from the first on."""
        blocks = self._blocks(arrived, start)
        caches = [self._caches.get((gpu, start.kind)) for gpu in start.devices]
        hits = 0
        while blocks and caches and hits < len(blocks) and all(c and blocks[hits] in c.used for c in caches):
            hits += 1
        return hits

    def forget(self, gpu: int) -> None:
        """A GPU that comes has read nothing."""
        self._caches = {key: cache for key, cache in self._caches.items() if key[0] != gpu}

    def saved_s(self, start: Start, arrived: Arrived, size_s: float) -> float:
        """Seconds at speed 1."""
        model, cached = self._models.get(start.kind), self.cached(start, arrived)
        if not cached or model is None or model.prefix is None:
            return 0.0
        tokens = tokens_of(arrived, start.task)[0]
        if tokens * model.prefill_s:
            return min(cached * model.prefix.block_tokens, tokens - 1) * model.prefill_s
        return size_s * model.prefix.saves * cached / len(self._blocks(arrived, start))

    def start(self, start: Start, arrived: Arrived | None, held: Sequence[Mapping[str, Any]]) -> None:
        """It has begun, on GPUs that now hold these models."""
        self.evict(start.devices, held)
        rules = self._rules.get(start.kind)
        if arrived is None or rules is None or not (blocks := self._blocks(arrived, start)):
            return
        for gpu in start.devices:
            cache = self._caches.setdefault((gpu, start.kind), _Cache())
            for block in reversed(blocks):  # the first is used last
                self._clock += 1
                cache.used[block] = self._clock
                heappush(cache.heap, (self._clock, block))
            while len(cache.used) > rules.blocks:
                at, block = heappop(cache.heap)
                if cache.used.get(block) == at:
                    del cache.used[block]

    def evict(self, gpus: Sequence[int], held: Sequence[Mapping[str, Any]]) -> None:
        """Another model was loaded on these GPUs, which now hold these."""
        for gpu, kind in [key for key in self._caches if key[0] in gpus]:
            if kind not in held[gpu]:
                del self._caches[gpu, kind]

    def _blocks(self, arrived: Arrived, start: Start) -> list[Any]:
        """As far as the journal says them in a way that can be understood, of a model that keeps any."""
        prefixes = arrived.facts.get("prefix")
        blocks = None
        if isinstance(prefixes, dict):  # an instance that was added has what its node has
            blocks = prefixes[start.task] if start.task in prefixes else prefixes.get(start.task.split("#")[0])
        if start.kind not in self._rules or not isinstance(blocks, list):
            return []
        return blocks if all(type(block) is int or type(block) is str for block in blocks) else []
