"""A program as the daemon tells of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["waiting", "running", "paused", "stopping", "completed", "failed", "cancelled"]
CLOSED = frozenset({"completed", "failed", "cancelled"})


class LiveProgram(Struct, frozen=True, kw_only=True):
    """One program. `cores` is what it asks for, `desired` what it ought to have, `actual` what it has, on these `cpus`.

    `arrived_s` is in seconds since the service first began, None for one that has only just come; `exit` tells how its
    last attempt ended, `exit_codes` how each did (a signal is negative). `threads` to `answered_s` is what its agent
    says, if it has one. `gpus` are the driver's numbers; `peak_mib` is the most memory that an attempt had.
    """

    id: str
    name: str
    state: State = "waiting"
    why: str = ""
    cores: int
    desired: int = 0
    actual: int = 0
    cpus: tuple[int, ...] = ()
    priority: int = 0
    attempts: int = 0
    pauses: int = 0
    resizes: int = 0
    arrived_s: float | None = None
    first_run_s: float | None = None
    waiting_s: float | None = None
    service_s: float | None = None
    total_s: float | None = None
    turnaround_s: float | None = None
    core_s: float = 0.0
    cpu_s: float = 0.0
    memory_mib: float = 0.0
    exit: str = ""
    exit_codes: tuple[int | None, ...] = ()
    log: str = ""
    threads: int | None = None
    step: int | None = None
    rate: float | None = None
    acknowledged: bool | None = None
    answered_s: float | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory_mib: float = 0.0
    peak_mib: float = 0.0
    swap_mib: float = 0.0
    group: str = ""
    again_of: str = ""

    @property
    def closed(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in CLOSED

    @property
    def exit_status(self) -> int:
        """As a shell has it: 0 if it was completed, else its exit code, 128 and the signal, or 1 if it has neither.

        >>> LiveProgram(id="1", name="train", cores=1, state="cancelled", exit_codes=(-15,)).exit_status
        143
        """
        code = (self.exit_codes[-1] if self.exit_codes else None) or 1
        return 0 if self.state == "completed" else code if code > 0 else 128 - code
