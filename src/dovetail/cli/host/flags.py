"""The words that `host simulate` and `host experiment` share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from dovetail.host import Scheduling


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SchedulingFlags:
    """How programs are scheduled.

    Parameters
    ----------
    preemptive
        With priorities: pause less urgent programs for a more urgent one.
    victim
        Whom to pause first: longest (accumulated run) or smallest (request).
    quantum
        Round Robin: seconds of a turn.
    age_step
        Seconds of waiting that make a program more urgent by one.
    overtaking
        Who may pass a program that cannot start: none, first-fit (all that fit) or backfill (who does not delay it).
    first
        Who gets free cores first: admission (waiting programs) or growth (running ones).
    shrink
        Whether running programs give cores up for waiting ones; by default as the assignment does.
    min_cores
        The fewest cores of a program, where it asks for as many.
    max_cores
        The most cores of a program. By default max_resources_per_container for max_prop and efficient.
    gpus
        The GPUs of the machine: a count (of 80 GiB each), or TYPE:COUNT:MEMORY, as a100:2:80g,l4:1:24g.
    profile
        clean, or legacy: the older scheduler's decisions exactly.
    """

    preemptive: Annotated[bool, Parameter(negative=())] = False
    victim: Literal["longest", "smallest"] = "longest"
    quantum: float = 30.0
    age_step: float | None = None
    overtaking: Literal["none", "first-fit", "backfill"] = "none"
    first: Literal["admission", "growth"] = "admission"
    shrink: bool | None = None
    min_cores: int = 1
    max_cores: int | None = None
    gpus: str | None = None
    profile: Literal["clean", "legacy"] = "clean"

    def chosen(self) -> Scheduling:
        """As `simulate` and `experiment` take them."""
        found: Scheduling = asdict(self)  # type: ignore[assignment]
        return found


NO_FLAGS = SchedulingFlags()
Curves = Annotated[list[str], Parameter(name="--curve", consume_multiple=True, negative=())]
