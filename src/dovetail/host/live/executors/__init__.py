"""What carries a decision out: one interface, one module per way to run a program.

Every method may be called from any thread, and may block; whoever calls must not be the one who decides. An attempt to
run a program has a name, its `run`, and is started at most once, however often and by how many daemons it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from dovetail.core.errors import DovetailError

GRACE_S = 5.0  # between asking a program to end and ending it
TOO_MUCH_MEMORY = "it used more memory than it was given"


class ExecutorError(DovetailError):
    """An operation on a program did not succeed, and why."""


class NotNowError(ExecutorError):
    """What was asked for may succeed later: the engine does not answer, or the kernel takes its time."""


class ProgramLaunch(Struct, frozen=True, kw_only=True):
    """Everything that it takes to start a program. `folder` is the attempt's own, for what it leaves behind; without
    `stdin` it reads nothing, without `errors` its standard error goes to the log."""

    run: str
    command: tuple[str, ...]
    cpus: tuple[int, ...]
    folder: str
    log: str
    cwd: str
    env: dict[str, str] = {}
    image: str = ""
    memory_mib: int | None = None
    network: bool = False
    grace_s: float = GRACE_S
    gpus: tuple[int, ...] = ()  # by the driver's numbers
    cpu_quota: float | None = None  # cores' worth of time
    io_weight: int | None = None
    nice: int | None = None
    stdin: str = ""
    errors: str = ""


class Exit(Struct, frozen=True, omit_defaults=True):
    """How an attempt ended. Neither code nor signal: it was lost, or never ran, and `why` says how that came."""

    code: int | None = None
    signal: int | None = None
    why: str = ""
    cpu_s: float | None = None
    peak_mib: float | None = None

    @property
    def good(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        """
        >>> str(Exit(code=3)), str(Exit(signal=9, why="it ignored the request to end"))
        ('exit code 3', 'signal 9: it ignored the request to end')
        """
        how = f"exit code {self.code}" if self.code is not None else f"signal {self.signal}" if self.signal else ""
        return ": ".join(text for text in (how, self.why) if text)


class FoundAttempt(Struct, frozen=True):
    """What has become of an attempt, and the processors it is bound to. `absent`: it was never started, and may be."""

    state: Literal["absent", "running", "paused", "ended"]
    exit: Exit | None = None
    cpus: frozenset[int] = frozenset()


class Usage(Struct, frozen=True):
    """Processor time used so far, memory held now, what of it is swapped out, the most there was; and by whom."""

    cpu_s: float
    memory_mib: float
    swap_mib: float = 0.0
    peak_mib: float = 0.0
    processes: tuple[int, ...] = ()


Ended = Callable[[str, Exit], None]
Paused = Callable[[str, bool], None]  # whether an attempt is paused now, which somebody else may have done


class ProgramExecutor(Protocol):
    """Runs programs. It tells of every end of an attempt that it started or found, once, through `ended`."""

    def reach(self, image: str = "") -> None:
        """Raise an error unless programs of this image can be run now."""
        ...

    def lacks(self, limits: Collection[str]) -> str:
        """Which of these limits cannot be kept here, and why; or nothing. They are fields of a launch."""
        ...

    def start(self, launch: ProgramLaunch) -> None:
        """Start it, unless it was started before; then only follow it. Returns when the program runs."""
        ...

    def start_soon(self, launch: ProgramLaunch, started: Callable[[bool], None]) -> bool:
        """Begin to start it, without waiting, if that can be done; later `started` is called, with whether it runs: if
        not, `start` says why."""
        ...

    def replace_stuck(self) -> None:
        """Now and then: see to it that nobody who is to start programs is waited for without end."""
        ...

    def find(self, launch: ProgramLaunch) -> FoundAttempt:
        """Look for an attempt that may be of an earlier life of the daemon, and follow it if it still runs."""
        ...

    def pause(self, run: str) -> None: ...

    def resume(self, run: str) -> None: ...

    def resize(self, run: str, cpus: Sequence[int]) -> None:
        """Let it run on these processors only; also while it is paused."""
        ...

    def stop(self, run: str, grace_s: float = GRACE_S) -> None:
        """Ask it to end, and end it after a while. A paused one is ended at once: it has no processor to tidy up on."""
        ...

    def usage(self, run: str) -> Usage | None: ...

    def clean(self, launch: ProgramLaunch) -> None:
        """Forget an attempt that has ended, and remove what the system keeps of it."""
        ...

    def is_clean(self, launch: ProgramLaunch) -> bool:
        """Whether the system keeps nothing of an attempt that has ended, so that `clean` has nothing to wait for."""
        ...

    def tidy(self, keep: Container[str]) -> None:
        """Remove what the system keeps of our attempts but these: what a killed daemon could not clean."""
        ...

    def close(self) -> None:
        """Stop following; the programs run on."""
        ...
