"""What a search chooses: options for stages, chains of them, and what was found of the best one."""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """A way to run a stage: on `devices` of class `k` (replicas take turns)."""

    k: int
    devices: int = 1


Stages = list[tuple[Option, int, int]]  # each with its first and last cut


class Found(NamedTuple):
    """What a search or a rule found: the stages, the value of the objective (None: its bottleneck is), and the least
    that any plan can have."""

    stages: Stages
    value: float | None = None
    bound_s: float = 0.0
    optimal: bool = False
    method: str = "exact"
    probes: int = 0

    @property
    def gap(self) -> float | None:
        """How far the value can lie above the best possible, relatively; None if nothing is proven."""
        if self.optimal or self.value is None:
            return 0.0 if self.optimal else None
        return self.value / self.bound_s - 1 if self.bound_s > 0 else None

    @classmethod
    def best(cls, stages: Stages, value: float, probes: int = 0) -> Found:
        """No other is better."""
        return cls(stages, value, value, True, probes=probes)
