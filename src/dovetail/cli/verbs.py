"""Commands that are imported only when they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cyclopts import App


class Command(NamedTuple):
    """A verb: the function (or sub-app) behind it as `module:name`, and its line in the list of commands.

    The target returns an exit code, or None for 0; a sub-app must be named like its verb. The summary repeats the first
    line of the target's docstring, so that a list of commands need not import it; a test compares them.
    """

    verb: str
    target: str
    summary: str


def register(app: App, commands: Iterable[Command], words: Sequence[str] | None = None) -> None:
    """Add commands to an application by name. `words` is the command line."""
    words = sys.argv[1:] if words is None else words
    for verb, target, summary in commands:
        # A summary given here would replace the docstring on the verb's own help page.
        app.command(target, name=verb, help=None if verb in words else summary)
