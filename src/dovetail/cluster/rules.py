"""How rounds are run: what the mechanism and the clock may assume and charge."""

from __future__ import annotations

from math import ceil, inf
from typing import Literal

from msgspec import Struct

from dovetail.core.errors import InputError


class RoundRules(Struct, frozen=True, kw_only=True):
    """`owed` ranks jobs by the time that they are owed, `fraction` by their share over what they have had since the
    last allocation, which forgets whenever there is a new one."""

    round_s: float = 360.0
    priority: Literal["owed", "fraction"] = "owed"
    allocate_every_s: float = 0.0  # the least time between two allocations
    restart_s: float = 10.0  # to save, move and load a job, whenever it starts somewhere else
    inside: bool = True  # act on arrivals and completions inside a round
    global_queue: bool = False  # rank jobs over all types together instead of type by type
    on_grid: bool = False  # rounds begin at multiples of their length, whenever the first job comes
    free_moves: bool = False  # a job may move to other servers for nothing, if it has as many accelerators in each
    decide_at: float = 1.0  # the part of a round after which the next one is decided
    spares: bool = False  # ready the process of whoever would follow where a job is about to end inside a round
    failures: int = 5  # in a row with nothing saved in between, after which a live job is given up

    def begins_s(self, arrival_s: float) -> float:
        """When the first round begins of a job that arrives while nobody is there.

        >>> RoundRules(round_s=60.0, on_grid=True).begins_s(107.0), RoundRules().begins_s(107.0)
        (120.0, 107.0)
        """
        return ceil(arrival_s / self.round_s) * self.round_s if self.on_grid and arrival_s < inf else arrival_s

    def __post_init__(self) -> None:
        if not 0 < self.decide_at <= 1:
            raise InputError(f"decide_at {self.decide_at:g}: expected a part of the round, above 0 and up to 1")
        if not self.restart_s < self.round_s:
            raise InputError(
                f"a restart of {self.restart_s:g} s in rounds of {self.round_s:g} s: jobs that take turns would never "
                "work; expected longer rounds"
            )


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """By which rules a scenario is run: in rounds, by Gavel's clock, or with shares carried out exactly."""

    rules: RoundRules = RoundRules()
    compat: bool = False
    ideal: bool = False
