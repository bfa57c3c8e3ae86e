"""What the policies of this level are: a planning says who goes first, an assignment how many cores each gets.

Both are pure: they read the view and decide; they keep nothing. The scheduler asks them, and carries out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor
from typing import Any

from dovetail.core.errors import PolicyError
from dovetail.host.gpus import GpuLedger
from dovetail.host.options import HostOptions
from dovetail.host.policies.contract import look_after
from dovetail.host.program import WAITING, Program


def count(cores: int) -> str:
    """
    >>> count(1), count(12)
    ('1 core', '12 cores')
    """
    return f"{cores} core{'' if cores == 1 else 's'}"


class MachineView:
    """`running` is in the order of their starts, `waiting` in that of their arrivals if `by_arrival`. `widths` says how
    many cores each running program is to have, as far as it is decided; policies read it, the scheduler writes it.

    `held` cores belong to programs that are being stopped; `memory_mib` is what all that have begun have declared;
    `gpus` says who holds those of the machine. Of a group in `limits` so many may run at once; `members` is how many
    do, those that are being stopped included.
    """

    def __init__(self, cores: int, options: HostOptions) -> None:
        self.cores = cores
        self.options = options
        self.now = 0.0
        self.running: list[Program] = []
        self.waiting: list[Program] = []
        self.by_arrival = False
        self.widths: dict[str, int] = {}
        self.held = 0
        self.memory_mib = 0
        self.gpus = GpuLedger(options.gpus)
        self.shrinks = False
        self.limits: dict[str, int] = {}
        self.members: dict[str, int] = {}

    @property
    def free(self) -> int:
        """Cores that nobody has, or is about to get."""
        return self.cores - self.held - sum(self.widths.values())

    def low(self, program: Program) -> int:
        """The fewest cores that a running program can be brought to now."""
        width = self.widths[program.id]
        return min(width, program.least) if self.shrinks else width

    def high(self, program: Program, most: int) -> int:
        """The most cores that a program can be given, of those that an assignment would give it."""
        return max(min(most, self.cores), program.least)

    @property
    def spare(self) -> int:
        """Cores that are free, or that running programs can be made to give up."""
        return self.free + sum(self.widths[p.id] - self.low(p) for p in self.running)

    def lacks_memory(self, program: Program) -> str:
        """Why the memory does not suffice for a waiting program, or nothing; a paused one keeps its own."""
        total, need = self.options.memory_mib, program.ask.memory_mib
        if total is None or not need or program.state != WAITING or self.memory_mib + need <= total:
            return ""
        return f"needs {need} MiB, {total - self.memory_mib} MiB are free"

    def count_members(self, programs: Iterable[Program]) -> None:
        """Count who runs of each group that has a limit."""
        self.members = dict.fromkeys(self.limits, 0)
        if self.limits:
            for program in programs:
                if program.cores and program.ask.group in self.members:
                    self.members[program.ask.group] += 1

    def lacks_place(self, program: Program) -> str:
        """Why its group lets no more of its programs run, or nothing."""
        group = program.ask.group
        if group not in self.limits or self.members[group] < self.limits[group]:
            return ""
        return f"of group {group} {self.limits[group]} may run at once"

    def aged(self, program: Program) -> int:
        """How many steps of age a waiting program has gained."""
        step = self.options.age_step_s
        return 0 if step is None else max(floor((self.now - _waits_since_s(program)) / step + 1e-9), 0)

    def urgency(self, program: Program) -> int:
        """Its priority, better by each step of age while it waits; 0 is the most urgent."""
        return max(program.priority - self.aged(program), min(program.priority, 0))

    def comes_of_age(self, program: Program) -> bool:
        """Whether it has waited so long that nobody may overtake it any more."""
        return self.options.age_step_s is not None and self.aged(program) > max(program.priority, 0)

    def next_age_s(self) -> float | None:
        """When the next waiting program gains a step of age that matters."""
        step = self.options.age_step_s
        if step is None:
            return None
        young = (p for p in self.waiting if not self.comes_of_age(p))
        return min((_waits_since_s(p) + (self.aged(p) + 1) * step for p in young), default=None)


def _waits_since_s(program: Program) -> float:
    """Since when it waits for others, and not for its own time."""
    return max(program.queued_s, program.begin_s)


def _lacks(policy: object, method: str) -> PolicyError:
    return PolicyError(f"{type(policy).__name__} lacks the method {method!r}")


class Planning:
    """Who goes first, who must give way, and whose turn is over."""

    by_priority = False  # whether it goes by the programs' priorities

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        look_after(cls)

    def order(self, view: MachineView) -> list[Program]:
        """The waiting programs in the order in which they may start."""
        raise _lacks(self, "order")

    def may_pause(self, program: Program, view: MachineView) -> list[Program]:
        """The running programs that may be paused for a waiting one, in that order."""
        return []

    def over(self, view: MachineView) -> list[Program]:
        """The running programs whose turn is over: if somebody waits, they go to the end of the queue."""
        return []

    def look_s(self, view: MachineView) -> float | None:
        """When it may decide otherwise although nothing has happened."""
        return None


class Assignment:
    """How many cores a program starts with, and how many each running one should have."""

    exceeds = False  # whether a program may get more cores than it asks for
    shrinks = False  # whether running programs give cores up, unless the options say otherwise

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        look_after(cls)

    def most(self, program: Program, view: MachineView) -> int:
        """The most cores that it ever gives a program."""
        return program.asked

    def take(self, program: Program, view: MachineView) -> int:
        """The cores that a waiting program can count on if it starts now; 0 if it cannot."""
        raise _lacks(self, "take")

    def lack(self, program: Program, view: MachineView) -> int:
        """How many more cores must be free for a waiting program to start."""
        raise _lacks(self, "lack")

    def frees(self, program: Program, view: MachineView) -> int:
        """How many cores the pause of a running program makes free."""
        return view.widths[program.id]

    def keeps(self, program: Program, view: MachineView) -> int:
        """The most cores that a running program keeps while waiting ones are admitted: what it has beyond is free for
        them, and goes back to it by `spread` where nobody takes it."""
        return self.most(program, view)

    def lent(self, view: MachineView) -> int:
        """The cores that running programs have beyond what they keep."""
        return sum(max(view.widths[p.id] - view.high(p, self.keeps(p, view)), 0) for p in view.running)

    def spread(self, view: MachineView) -> Mapping[str, int]:
        """The cores that each running program should have; they are never more than there are."""
        return view.widths

    def must_start(self, program: Program, view: MachineView) -> bool:
        """A promise, to which the checker holds it: whether a waiting program, if it is its turn and memory suffices,
        starts rather than leave cores idle. As `take` says, unless it can be said more simply."""
        return self.take(program, view) > 0

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        """A promise, likewise: while cores are idle, every running program has so many. As `spread` says."""
        return self.spread(view)

    def refusal(self, program: Program, view: MachineView) -> str:
        """Why a waiting program cannot start."""
        return f"needs {count(program.asked)}, {view.free} free"

    def reason(self, program: Program, cores: int, view: MachineView) -> str:
        """Why a program gets so many cores."""
        return f"{cores} of {program.asked} asked"
