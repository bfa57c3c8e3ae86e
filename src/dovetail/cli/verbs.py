"""Commands that are imported only when they are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from cyclopts import App
from cyclopts.command_spec import CommandSpec

from dovetail.core.errors import InputError

_behind_dashes: ContextVar[int | None] = ContextVar("how many words stand behind a --", default=None)


class Command(NamedTuple):
    """A verb: the function (or sub-app) behind it as `module:name`, and its line in the list of commands.

    The target returns an exit code, or None for 0; a sub-app must be named like its verb. The summary repeats the first
    line of the target's docstring, so that a list of commands need not import it; a test compares them.
    """

    verb: str
    target: str
    summary: str


class _OnDemand(CommandSpec):
    """Its summary stands in lists; once it is imported, its docstring speaks for it on a page of its own."""

    def resolve(self, parent_app: App) -> App:
        self.help = None
        return super().resolve(parent_app)


def note_dashes(argv: Sequence[str]) -> None:
    """Remember how many words of a command line stand behind its `--`."""
    _behind_dashes.set(len(argv) - list(argv).index("--") - 1 if "--" in argv else None)


def check_command(command: Sequence[str]) -> None:
    """Refuse a command with words from before the `--`: one too many behind an option is not a program."""
    behind = _behind_dashes.get()
    if behind is not None and len(command) > behind:
        raise InputError(f"{command[0]}: stands before --, where no command is expected, and is of no option")


def register(app: App, commands: Iterable[Command]) -> None:
    """Add commands to an application by name."""
    for verb, target, summary in commands:
        app._commands[verb] = _OnDemand(target, name=verb, help=summary)  # `app.command` has no word for this
