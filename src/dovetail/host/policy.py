"""What the policies of this level are: a planning says who goes first, an assignment how many cores each gets.

Both are pure: they read the view and decide; they keep nothing. The scheduler asks them, and carries out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.host.program import Program
from dovetail.host.view import View

LEVEL = "host"


def count(cores: int) -> str:
    """
    >>> count(1), count(12)
    ('1 core', '12 cores')
    """
    return f"{cores} core{'' if cores == 1 else 's'}"


class Planning:
    """Who goes first, who must give way, and whose turn is over."""

    def order(self, view: View) -> list[Program]:
        """The waiting programs in the order in which they may start."""
        raise NotImplementedError

    def may_pause(self, program: Program, view: View) -> list[Program]:
        """The running programs that may be paused for a waiting one, in that order."""
        return []

    def over(self, view: View) -> list[Program]:
        """The running programs whose turn is over: if somebody waits, they go to the end of the queue."""
        return []

    def look_s(self, view: View) -> float | None:
        """When it may decide otherwise although nothing has happened."""
        return None


class Assignment:
    """How many cores a program starts with, and how many each running one should have."""

    shrinks = False  # whether running programs give cores up, unless the options say otherwise
    learns = False  # whether it goes by the programs' speed-up curves, so that their speeds are worth measuring

    def most(self, program: Program, view: View) -> int:
        """The most cores that it ever gives a program."""
        return program.asked

    def take(self, program: Program, view: View) -> int:
        """The cores that a waiting program can count on if it starts now; 0 if it cannot."""
        raise NotImplementedError

    def lack(self, program: Program, view: View) -> int:
        """How many more cores must be free for a waiting program to start."""
        raise NotImplementedError

    def frees(self, program: Program, view: View) -> int:
        """How many cores the pause of a running program makes free."""
        return view.widths[program.id]

    def spread(self, view: View) -> Mapping[str, int]:
        """The cores that each running program should have; they are never more than there are."""
        return view.widths

    def refusal(self, program: Program, view: View) -> str:
        """Why a waiting program cannot start."""
        return f"needs {count(program.asked)}, {view.free} free"

    def reason(self, program: Program, cores: int, view: View) -> str:
        """Why a program gets so many cores."""
        return f"{cores} of {program.asked} asked"


P = TypeVar("P", Planning, Assignment)


def make(name: str, kind: type[P]) -> P:
    """A policy of this level by name, if it is of the kind that is wanted."""
    found = registry.create(LEVEL, name)
    if not isinstance(found, kind):
        what = f"{kind.__name__.lower()} policies: {', '.join(names(kind))}"
        raise InputError(f"{name!r} is no {kind.__name__.lower()} policy; {what}")
    return found


def names(kind: type[Planning] | type[Assignment]) -> list[str]:
    """The policies of one kind."""
    return [name for name in registry.names(LEVEL) if isinstance(registry.create(LEVEL, name), kind)]
