"""A user's own defaults of commands' options, from a file: what the command line says comes first."""

from __future__ import annotations

import os
from pathlib import Path

from cyclopts import App, ArgumentCollection


def config_path() -> Path:
    """$DOVETAIL_CONFIG, or config.toml where the desktop standard has it."""
    given = os.environ.get("DOVETAIL_CONFIG")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(given) if given else Path(base, "dovetail", "config.toml")


class UserDefaults:
    """The table of a command, as [host.submit], is looked up when the command is used; without the file, none."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        path = config_path()
        if not path.is_file():
            return
        from cyclopts.config import Dict

        from dovetail.core.files import Document

        Dict(Document.read(path).data or {}, source=str(path))(app, commands, arguments)
