"""The words that `host simulate` and `host experiment` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dovetail.host.options import First, HostOptions, Overtaking, Profile, Victim

if TYPE_CHECKING:
    from dovetail.host.inputs.parameters import Parameters


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
    profile
        clean, or legacy: the older scheduler's decisions exactly.
    """

    preemptive: Annotated[bool, Parameter(negative=())] = False
    victim: Victim = "longest"
    quantum: float = 30.0
    age_step: float | None = None
    overtaking: Overtaking = "none"
    first: First = "admission"
    shrink: bool | None = None
    min_cores: int = 1
    max_cores: int | None = None
    profile: Profile = "clean"

    def options(self, plan: str, assign: str, parameters: Parameters | None) -> HostOptions:
        most = self.max_cores
        if most is None and parameters is not None:
            most = parameters.most_cores(assign)
        return HostOptions(
            plan=plan,
            assign=assign,
            preemptive=self.preemptive,
            victim=self.victim,
            quantum_s=self.quantum,
            age_step_s=self.age_step,
            overtaking=self.overtaking,
            first=self.first,
            shrink=self.shrink,
            min_cores=self.min_cores,
            max_cores=most,
            profile=self.profile,
        )


NO_FLAGS = SchedulingFlags()
Curves = Annotated[list[str], Parameter(consume_multiple=True, negative=())]
