"""How rounds are run: what the mechanism and the clock may assume and charge."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.core.errors import InputError


class Rules(Struct, frozen=True, kw_only=True):
    """`owed` ranks jobs by the time that they are owed, `fraction` by their share over what they have had since the
    last allocation, which forgets whenever there is a new one."""

    round_s: float = 360.0
    priority: Literal["owed", "fraction"] = "owed"
    allocate_every_s: float = 0.0  # the least time between two allocations
    restart_s: float = 10.0  # to save, move and load a job, whenever it starts somewhere else
    inside: bool = True  # act on arrivals and completions inside a round
    global_queue: bool = False  # rank jobs over all types together instead of type by type

    def __post_init__(self) -> None:
        if not self.restart_s < self.round_s:
            raise InputError(
                f"a restart of {self.restart_s:g} s in rounds of {self.round_s:g} s: jobs that take turns would never "
                "work; expected longer rounds"
            )


GAVEL = Rules(priority="fraction", allocate_every_s=1920.0, restart_s=0.0, inside=False)
"""The rules of the older simulator; `compat` follows the rest of its habits."""
