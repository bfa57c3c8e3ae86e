"""Which models the GPUs hold, and what it costs to change that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from dovetail.core.rates import RateTable
from dovetail.core.resources import Pool
from dovetail.workflow.inputs.costs import CostRules, ModelCost


class Residents:
    """Which models each GPU holds, and the price of changing that. The scheduler plans with it, the checker recounts
    with it."""

    def __init__(
        self, pool: Pool, models: Mapping[str, ModelCost], costs: CostRules, rates: RateTable | None = None
    ) -> None:
        self.costs = costs
        self._models = models
        self._rates = rates or RateTable()
        self._types = [d.type for d in pool.devices]
        self._hosts = [d.host for d in pool.devices]
        self._memory = pool.memories
        self.held: list[dict[str, None]] = [{} for _ in pool.devices]  # in order of last use
        self.holders: dict[str, dict[int, None]] = {}  # the other way round: which GPUs hold a model
        self._dram: dict[int, dict[str, None]] = {d.host: {} for d in pool.devices}
        self._seen: dict[tuple[str | None, str, str], float] = {}
        self._simple = costs.resident == "one" and not costs.dram_gb

    def evicted(self, gpu: int, model: str) -> list[str]:
        """What must leave a GPU before the model fits: least recently used first."""
        held = self.held[gpu]
        if model in held or not held:
            return []
        memory = self._memory[gpu]
        if self.costs.resident == "one" or memory is None:
            return list(held)
        free = memory - sum(self._models[m].shard_mib for m in held)
        leaving = []
        for other in held:
            if free >= self._models[model].shard_mib:
                break
            leaving.append(other)
            free += self._models[other].shard_mib
        return leaving

    def price(self, gpu: int, model: str) -> float:
        """Seconds until the model is resident on this GPU."""
        held = self.held[gpu]
        if model in held:
            return 0.0
        if self._simple:
            return self._switch(next(iter(held)) if held else None, model, self._types[gpu])
        evicted = self.evicted(gpu, model)
        cold = not held
        if self.costs.dram_gb:
            cold = model not in self._dram[self._hosts[gpu]]
        if len(evicted) == 1 and not self.costs.dram_gb:
            return self._switch(evicted[0], model, self._types[gpu])
        moved = sum(self._models[m].memory_gb for m in evicted)
        if not cold:
            return (moved + self._models[model].memory_gb) / self.costs.pcie_gb_s + self.costs.overhead_s
        return moved / self.costs.pcie_gb_s + self._switch(None, model, self._types[gpu])

    def _switch(self, old: str | None, new: str, device: str) -> float:
        key = (old, new, device)
        known = self._seen.get(key)
        if known is None:
            known = self._rates.switch_s(old, new, device)
            if known is None:
                costs, models = self.costs, self._models
                if old is None:
                    known = float(models[new].load_s)
                    if costs.dram_gb:  # it comes from the disk, and no faster than that reads
                        known = max(known, models[new].memory_gb / costs.ssd_gb_s)
                else:
                    known = (models[old].memory_gb + models[new].memory_gb) / costs.pcie_gb_s + costs.overhead_s
            self._seen[key] = known
        return known

    def reload_s(self, old: str, new: str) -> float:
        """What it would cost to replace `old` by `new`, on a device of the plain price."""
        return self._switch(old, new, "")

    def setup(self, gpus: Sequence[int], model: str) -> float:
        """Seconds until the model is resident on a whole window."""
        if not gpus:
            return 0.0
        if len(gpus) == 1 or self.costs.window == "primary":
            return self.price(gpus[0], model)
        return max([self.price(gpu, model) for gpu in gpus])

    def visible(self, setup_s: float, run_s: float) -> float:
        """What is left of a set-up when part of it hides behind the run (pipelined loading)."""
        if not self.costs.overlap:
            return setup_s
        return setup_s - self.costs.overlap * min(setup_s, run_s)

    def replaced(self, gpus: Sequence[int], model: str) -> str | None:
        """The model that leaves the first GPU that must change."""
        for gpu in gpus[:1] if self.costs.window == "primary" else gpus:
            if model not in self.held[gpu]:
                leaving = self.evicted(gpu, model)
                if leaving:
                    return leaving[0]
        return None

    def load(self, gpus: Iterable[int], model: str) -> None:
        """The model becomes resident on these GPUs, and the last used there."""
        for gpu in gpus:
            held = self.held[gpu]
            if self._simple:
                if model not in held:
                    for other in held:
                        del self.holders[other][gpu]
                    held.clear()
                    held[model] = None
                    self.holders.setdefault(model, {})[gpu] = None
                continue
            for other in self.evicted(gpu, model):
                del held[other], self.holders[other][gpu]
            held.pop(model, None)
            held[model] = None
            self.holders.setdefault(model, {})[gpu] = None
            if self.costs.dram_gb:
                self._keep_in_dram(self._hosts[gpu], model)

    def _keep_in_dram(self, host: int, model: str) -> None:
        dram = self._dram[host]
        dram.pop(model, None)
        dram[model] = None
        while sum(self._models[m].memory_gb for m in dram) > self.costs.dram_gb:
            del dram[next(iter(dram))]


def least_setup(models: Mapping[str, ModelCost], costs: CostRules, rates: RateTable | None = None) -> dict[str, float]:
    """For each model the least that making it resident can ever cost: what the lower bounds may count on."""
    known: dict[str, float] = {}
    for switch in rates.switches.values() if rates else ():
        known[switch.to] = min(switch.seconds, known.get(switch.to, switch.seconds))
    first, second = [*sorted(m.memory_gb for m in models.values()), inf, inf][:2]
    least = {}
    for name, model in models.items():
        smallest = second if model.memory_gb == first else first  # of the others
        moved = 0.0 if costs.resident == "memory" or costs.dram_gb else smallest
        price = min(model.load_s, (moved + model.memory_gb) / costs.pcie_gb_s + costs.overhead_s)
        least[name] = min(price, known.get(name, price)) * (1 - costs.overlap) if model.width else 0.0
    return least
