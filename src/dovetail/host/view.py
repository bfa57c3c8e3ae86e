"""What a policy sees: the programs that run and those that wait, with the cores that each has or is about to get."""

from __future__ import annotations

from math import floor

from dovetail.host.options import Options
from dovetail.host.program import WAITING, Program


class View:
    """`running` is in the order of their starts, `waiting` in that of their arrivals. `widths` says how many cores each
    running program is to have, as far as it is decided; policies read it, the scheduler writes it.

    `held` cores belong to programs that are being stopped; `memory_mib` is what all that have begun have declared.
    """

    def __init__(self, cores: int, options: Options) -> None:
        self.cores = cores
        self.options = options
        self.now = 0.0
        self.running: list[Program] = []
        self.waiting: list[Program] = []
        self.widths: dict[str, int] = {}
        self.held = 0
        self.memory_mib = 0
        self.shrinks = False

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

    def aged(self, program: Program) -> int:
        """How many steps of age a waiting program has gained."""
        step = self.options.age_step_s
        return 0 if step is None else floor((self.now - program.queued_s) / step + 1e-9)

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
        return min((p.queued_s + (self.aged(p) + 1) * step for p in young), default=None)
