"""What it costs to run a model on a GPU: time to make it resident, time to run; and what is resident where.

The default is the rule that workflow files are written for: one model per GPU, `load_time_seconds` on an empty GPU,
`(old + new) / PCIe + overhead` otherwise. Everything else is an extension, off until asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Literal

from msgspec import Struct

MIB_PER_GB = 1024
MOST_NOISE = 1e3  # times the mean: more than that is a slip
MOST_TOKENS = 10**12  # more than that is a slip


class PrefixRules(Struct, frozen=True, omit_defaults=True):
    """What a GPU keeps of the inputs that a model has read: so many tokens, in blocks of so many. A hit saves reading
    them, or where no tokens are known this share of the node's seconds if all of its blocks are there."""

    cache_tokens: int
    block_tokens: int = 512
    saves: float = 0.0

    @property
    def blocks(self) -> int:
        return self.cache_tokens // self.block_tokens

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        if not 0 < self.block_tokens <= MOST_TOKENS:
            return f"block_tokens: expected 1 to {MOST_TOKENS:g} tokens, found {self.block_tokens}"
        if not self.block_tokens <= self.cache_tokens <= MOST_TOKENS:
            return f"cache_tokens: expected a block or more, up to {MOST_TOKENS:g} tokens, found {self.cache_tokens}"
        if not 0 <= self.saves < 1:
            return f"saves: expected 0 or more, and less than 1, found {self.saves}"
        return None


class ModelCost(Struct, frozen=True, omit_defaults=True):
    """What the cost rules need to know of a model. `batch_curve[k-1]` is the slow-down of a batch of k, `prefill_s`
    how long it reads a token at speed 1, `concurrency_curve[k-1]` the speed of each of k at once on one window; memory
    and load of an adapter are its own, beside those of its base."""

    memory_gb: float
    load_s: float
    width: int = 1
    batch_curve: tuple[float, ...] = ()
    prefill_s: float = 0.0
    adapter_of: str = ""
    prefix: PrefixRules | None = None
    concurrency_curve: tuple[float, ...] = ()

    @property
    def slots(self) -> int:
        """How many nodes may share a window of it; 0: none."""
        return len(self.concurrency_curve)

    @property
    def shard_mib(self) -> int:
        """Memory on each GPU of its window."""
        return -(-int(self.memory_gb * MIB_PER_GB) // max(self.width, 1))


def room_mib(models: Mapping[str, ModelCost], name: str) -> int:
    """Memory on each GPU of its window that a model needs there, an adapter with its base."""
    model = models[name]
    return model.shard_mib + (models[model.adapter_of].shard_mib if model.adapter_of else 0)


class CostRules(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules of price. Defaults are the seed formula; each extension is described in docs/workflow.md."""

    pcie_gb_s: float = 16.0
    overhead_s: float = 2.0
    window: Literal["slowest", "primary"] = "slowest"  # which GPU of a window sets the price of a switch
    resident: Literal["one", "memory"] = "one"  # how many models a GPU may hold
    adapter_slots: int = 1  # adapters that stay with a base where a GPU holds one model
    overlap: float = 0.0  # share of loading that hides behind running, 0 to 1
    dram_gb: float = 0.0  # host memory that keeps models; 0: not modelled
    ssd_gb_s: float = 2.0  # how fast a model that host memory does not keep is read, at best
    batching: bool = False
    noise: float = 0.0  # relative spread of real durations

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        for name in ("pcie_gb_s", "ssd_gb_s"):
            if not 0 < getattr(self, name) < inf:
                return f"{name}: expected a positive number, found {getattr(self, name)}"
        for name in ("overhead_s", "dram_gb", "noise"):
            if not 0 <= getattr(self, name) < inf:
                return f"{name}: expected a number >= 0, found {getattr(self, name)}"
        if self.noise > MOST_NOISE:
            return f"noise: expected at most {MOST_NOISE:g}, found {self.noise}"
        if not 0 <= self.overlap <= 1:
            return f"overlap: expected 0 to 1, found {self.overlap}"
        if self.adapter_slots < 1:
            return f"adapter_slots: expected 1 or more, found {self.adapter_slots}"
        return None


def speeds_at_once(points: Mapping[int, float], most: int) -> tuple[float, ...]:
    """The speed of each at 1, 2, ... `most` at once: linear between the points that are known; beyond the last one the
    window as a whole gets no faster.

    >>> speeds_at_once({1: 1.0, 3: 0.5}, 5)
    (1.0, 0.75, 0.5, 0.375, 0.3)
    """
    known = sorted(points.items())
    last, at_last = known[-1]
    speeds = [at_last * last / n for n in range(1, most + 1)]
    for (low, at_low), (high, at_high) in pairwise(known):
        for n in range(low, min(high, most) + 1):
            speeds[n - 1] = at_low + (at_high - at_low) * (n - low) / (high - low)
    if last <= most:
        speeds[last - 1] = at_last
    return tuple(speeds)


def window_shares(model: ModelCost, measured: Sequence[Mapping[int, float]]) -> list[float]:
    """How fast each is of 1, 2, ... nodes that share a window, one alone 1: the least of what was measured on each type
    of its GPUs, or the model's curve where that was not.

    >>> window_shares(ModelCost(8.0, 10.0, concurrency_curve=(1.0, 0.9)), [{1: 2.0}, {1: 0.5, 2: 0.4}])
    [1.0, 0.8]
    """
    curves = [speeds_at_once(points, model.slots) for points in measured if len(points) > 1]
    shares = [[speed / curve[0] for speed in curve] for curve in curves]
    if len(shares) < len(measured):
        shares.append(list(model.concurrency_curve))
    return [min(at_once) for at_once in zip(*shares, strict=True)]
