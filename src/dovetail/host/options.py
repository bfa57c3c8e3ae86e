"""What can be chosen about the host scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Struct

from dovetail.core.errors import InputError
from dovetail.host.gpus import GpuDevice, parse_gpus

T = TypeVar("T")
Count: Any = Annotated[int, Meta(ge=1)]
Overtaking = Literal["none", "first-fit", "backfill"]
First = Literal["admission", "growth"]
Victim = Literal["longest", "smallest"]
Profile = Literal["clean", "legacy"]
Gpus = str | int | Sequence[GpuDevice]  # as `parse_gpus` reads them, or each


class Scheduling(TypedDict, total=False):
    """How programs are scheduled, beside the two policies: by the names of the commands' options."""

    preemptive: bool
    victim: Victim
    quantum: float
    age_step: float | None
    overtaking: Overtaking
    first: First
    shrink: bool | None
    min_cores: int
    max_cores: int | None
    efficiency: float
    memory_mib: int | None
    gpus: Gpus | None
    profile: Profile


_SECONDS = {"quantum": "quantum_s", "age_step": "age_step_s"}


class HostOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`plan` says who goes first, `assign` how many cores each gets.

    `preemptive` and `victim` are for priorities: whether the less urgent are paused, those that ran longest or those
    that asked for least. `quantum_s` is the turn of Round Robin. With `age_step_s` a waiting program becomes more
    urgent by one for each such time, and is not overtaken any more once it is the most urgent. `overtaking` says who
    may pass one that cannot start, `first` whether free cores go to waiting programs or to running ones, `shrink`
    whether running programs give cores up (by default as the assignment does). `min_cores` and `max_cores` bound every
    program; `efficiency` is the share of its best use of a core that `efficient` insists on. `memory_mib` None: not
    modelled. `gpus` are those of the machine.
    """

    plan: str = "fcfs"
    assign: str = "strict"
    preemptive: bool = False
    victim: Victim = "longest"
    quantum_s: float = 30.0
    age_step_s: float | None = None
    overtaking: Overtaking = "none"
    first: First = "admission"
    shrink: bool | None = None
    min_cores: int = 1
    max_cores: int | None = None
    efficiency: float = 0.5
    memory_mib: int | None = None
    gpus: tuple[GpuDevice, ...] = ()
    profile: Profile = "clean"

    def __post_init__(self) -> None:
        for name in ("quantum_s", "age_step_s", "min_cores", "max_cores", "efficiency", "memory_mib"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{name}: expected a positive number, found {value}")
        if self.max_cores is not None and self.max_cores < self.min_cores:
            raise InputError(f"max_cores: expected at least min_cores {self.min_cores}, found {self.max_cores}")

    @property
    def title(self) -> str:
        """The two policies in a word."""
        return f"{self.plan}+{self.assign}"

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as a journal's header keeps it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def host_options(given: Mapping[str, Any]) -> HostOptions:
    """Options from values of whatever kind, by the names of `HostOptions` or of the commands.

    >>> host_options({"plan": "rr", "quantum": 10}).quantum_s
    10.0
    >>> host_options({"min_cores": 2.5})
    Traceback (most recent call last):
    dovetail.core.errors.InputError: min_cores: expected int, found float
    """
    from dovetail.core.files.document import checked  # reads formats, which a client of the daemon need not wait for

    gpus = given.get("gpus")
    read = {"gpus": parse_gpus(str(gpus)) if isinstance(gpus, str | int) else gpus or ()}
    return checked({_SECONDS.get(name, name): value for name, value in {**given, **read}.items()}, HostOptions)
