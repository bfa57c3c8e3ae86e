"""Which models the GPUs hold, and what it costs to change that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from dovetail.core.rates import ANY, HOST, RateTable
from dovetail.core.resources import Pool
from dovetail.workflow.gpus.learning import LoadCase
from dovetail.workflow.inputs.costs import CostRules, ModelCost


class Residents:
    """Which models each GPU holds, and the price of changing that. The scheduler plans with it, the checker recounts
    with it."""

    def __init__(
        self, pool: Pool, models: Mapping[str, ModelCost], costs: CostRules, rates: RateTable | None = None
    ) -> None:
        self.costs = costs
        self._models = models
        self._rates = RateTable() if rates is None else rates
        self._types = [d.type for d in pool.devices]
        self._hosts = [d.host for d in pool.devices]
        self._memory = pool.memories
        # in order of last use, with what a GPU keeps for a model while that is there (its prefix cache)
        self.held: list[dict[str, OrderedDict[int | str, None] | None]] = [{} for _ in pool.devices]
        self.holders: dict[str, dict[int, None]] = {}  # the other way round: which GPUs hold a model
        self._dram: dict[int, dict[str, None]] = {d.host: {} for d in pool.devices}
        self._seen: dict[str, dict[tuple[str | None, str], float]] = {}
        self._base = {name: model.adapter_of for name, model in models.items() if model.adapter_of}
        self._simple = costs.resident == "one" and not costs.dram_gb and not self._base

    def evicted(self, gpu: int, model: str) -> list[str]:
        """What must leave a GPU before the model fits: least recently used first, an adapter's own base never.

        Who uses an adapter uses its base after it: a base is never older than its adapters, and leaves after them.
        """
        held = self.held[gpu]
        if model in held or not held:
            return []
        memory, one, models = self._memory[gpu], self.costs.resident == "one", self._models
        base = self._base.get(model)
        if base not in held and (one or memory is None):
            return list(held)
        missing = (model,) if base is None or base in held else (model, base)
        free = inf if memory is None else memory - sum(models[m].shard_mib for m in (*held, *missing))
        slots = self.costs.adapter_slots - len(held) if one else 0  # free beside the base, with the adapter there
        leaving = []
        for other in held:
            if free >= 0 and slots >= 0:
                break
            if other != base:
                leaving.append(other)
                free += models[other].shard_mib
                slots += 1
        return leaving

    def price(self, gpu: int, model: str) -> float:
        """Seconds until the model is resident on this GPU."""
        held = self.held[gpu]
        if model in held:
            return 0.0
        if self._simple:
            return self._switch(next(iter(held)) if held else None, model, self._types[gpu])
        evicted = self.evicted(gpu, model)
        if not self._base:
            return self._model_price(gpu, model, evicted)
        leaving = [other for other in evicted if other not in self._base]  # adapters are dropped, not moved
        base = self._base.get(model)
        if base is None:
            return self._model_price(gpu, model, leaving)
        own_s = self._adapter_price(gpu, model, base, [m for m in evicted if self._base.get(m) == base])
        if base not in held:
            return self._model_price(gpu, base, leaving) + own_s
        return sum(self._models[m].memory_gb for m in leaving) / self.costs.pcie_gb_s + own_s

    def _model_price(self, gpu: int, model: str, leaving: Sequence[str]) -> float:
        """Of a model that is no adapter, and for which these leave."""
        cold = not self.held[gpu]
        if self.costs.dram_gb:
            cold = model not in self._dram[self._hosts[gpu]]
        if len(leaving) == 1 and not self.costs.dram_gb:
            return self._switch(leaving[0], model, self._types[gpu])
        moved = sum(self._models[m].memory_gb for m in leaving)
        if not cold:
            if (known := self._rates.switches.get((HOST, model, self._types[gpu]))) is not None:
                return moved / self.costs.pcie_gb_s + known.seconds
            return (moved + self._models[model].memory_gb) / self.costs.pcie_gb_s + self.costs.overhead_s
        return moved / self.costs.pcie_gb_s + self._switch(None, model, self._types[gpu])

    def _adapter_price(self, gpu: int, adapter: str, base: str, leaving: Sequence[str]) -> float:
        """Of an adapter alone, beside its base, in the place of these of its siblings."""
        if self.costs.dram_gb and adapter in self._dram[self._hosts[gpu]]:
            return self._models[adapter].memory_gb / self.costs.pcie_gb_s
        return self._switch(leaving[0] if len(leaving) == 1 else base, adapter, self._types[gpu])

    def _switch(self, old: str | None, new: str, device: str) -> float:
        key, seen = (old, device), self._seen.get(new)
        if seen is None:
            seen = self._seen[new] = {}
        known = seen.get(key)
        if known is None:
            known, base = self._rates.switch_s(old, new, device), self._base.get(new)
            if known is None and base is not None:
                known = self._rates.switch_s(base, new, device)
            if known is None:
                costs, models = self.costs, self._models
                if old is None or base is not None:
                    known = float(models[new].load_s)
                    if costs.dram_gb:  # it comes from the disk, and no faster than that reads
                        known = max(known, models[new].memory_gb / costs.ssd_gb_s)
                else:
                    known = (models[old].memory_gb + models[new].memory_gb) / costs.pcie_gb_s + costs.overhead_s
            seen[key] = known
        return known

    def load_case(self, gpus: Sequence[int], model: str) -> LoadCase | None:
        """How the price of making a model resident on a window is looked up, by the GPU that sets it; None if there is
        nothing to load there, or an adapter."""
        if model in self._base or not gpus:
            return None
        gpu = gpus[0] if self.costs.window == "primary" else max(gpus, key=lambda gpu: self.price(gpu, model))
        held = self.held[gpu]
        if model in held:
            return None
        leaving = [other for other in self.evicted(gpu, model) if other not in self._base]
        if self._simple or (len(leaving) == 1 and not self.costs.dram_gb):
            return LoadCase(leaving[0] if leaving else "")
        cold = model not in self._dram[self._hosts[gpu]] if self.costs.dram_gb else not held
        moved_s = sum(self._models[m].memory_gb for m in leaving) / self.costs.pcie_gb_s
        return LoadCase("" if cold else HOST, moved_s)

    def learned(self, model: str) -> None:
        """The table has other prices of this model now."""
        self._seen.pop(model, None)

    def reload_s(self, old: str, new: str) -> float:
        """What it would cost to replace `old` by `new`, on a device of the plain price."""
        if not self._base:
            return self._switch(old, new, "")
        base, before = self._base.get(new), self._base.get(old, old)
        if base is None:
            return self._switch(before, new, "") if before != new else 0.0
        if base == before:
            return self._switch(old, new, "")
        return self._switch(before, base, "") + self._switch(base, new, "")

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
        """The model becomes resident on these GPUs, and the last used there; an adapter with its base."""
        used = (model, self._base[model]) if model in self._base else (model,)
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
            for one in used:
                held[one] = held.pop(one, None)
                self.holders.setdefault(one, {})[gpu] = None
                if self.costs.dram_gb:
                    self._keep_in_dram(self._hosts[gpu], one)

    def extend(self, pool: Pool) -> None:
        """GPUs have joined, which hold nothing."""
        joined = pool.devices[len(self.held) :]
        self._types += [device.type for device in joined]
        self._hosts += [device.host for device in joined]
        self._memory = pool.memories
        self.held += [{} for _ in joined]
        for device in joined:
            self._dram.setdefault(device.host, {})

    def clear(self, gpu: int) -> None:
        """The GPU has gone, or lost what it held; one that comes in its place is empty."""
        for model in self.held[gpu]:
            del self.holders[model][gpu]
        self.held[gpu].clear()

    def in_host_memory(self, gpu: int, model: str) -> bool:
        """Whether the host of a GPU keeps the model."""
        return model in self._dram[self._hosts[gpu]]

    def _keep_in_dram(self, host: int, model: str) -> None:
        dram = self._dram[host]
        dram.pop(model, None)
        dram[model] = None
        while sum(self._models[m].memory_gb for m in dram) > self.costs.dram_gb:
            del dram[next(iter(dram))]


def least_setups(
    models: Mapping[str, ModelCost], costs: CostRules, rates: RateTable | None = None
) -> dict[str, tuple[float, float]]:
    """For each model the least that making it resident can ever cost, on an empty GPU and on one that holds something:
    what the lower bounds may count on. An adapter's is without its base, which may be there for others."""
    empty: dict[str, float] = {}
    held: dict[str, float] = {}
    for switch in rates.switches.values() if rates else ():
        for known in (empty, held) if switch.previous == ANY else (held if switch.previous else empty,):
            known[switch.to] = min(switch.seconds, known.get(switch.to, switch.seconds))
    first, second = [*sorted(m.memory_gb for m in models.values() if not m.adapter_of), inf, inf][:2]
    least = {}
    for name, model in models.items():
        smallest = second if model.memory_gb == first else first  # of the others
        moved = 0.0 if costs.resident == "memory" or costs.dram_gb else smallest
        prices = [model.load_s, (moved + model.memory_gb) / costs.pcie_gb_s + costs.overhead_s]
        if model.adapter_of:
            own_s = min(model.load_s, model.memory_gb / costs.pcie_gb_s) if costs.dram_gb else model.load_s
            prices = [own_s, own_s]
        prices = [min(price, known.get(name, price)) for price, known in zip(prices, (empty, held), strict=True)]
        if model.adapter_of or costs.dram_gb:  # beside another GPU's load from disk, one from host memory
            prices = [min(prices)] * 2
        share = 1 - costs.overlap if model.width else 0.0
        least[name] = (prices[0] * share, prices[1] * share)
    return least


def least_setup(models: Mapping[str, ModelCost], costs: CostRules, rates: RateTable | None = None) -> dict[str, float]:
    """For each model the least that making it resident can ever cost, whatever a GPU holds."""
    return {name: min(prices) for name, prices in least_setups(models, costs, rates).items()}
