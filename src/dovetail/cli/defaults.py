"""A user's own defaults of commands' options, from a file: what the command line says comes first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, ArgumentCollection

if TYPE_CHECKING:
    from dovetail.core.files.document import Document


def config_path() -> Path:
    """$DOVETAIL_CONFIG, or config.toml where the desktop standard has it."""
    given = os.environ.get("DOVETAIL_CONFIG")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(given) if given else Path(base, "dovetail", "config.toml")


class UserDefaults:
    """The table of a level's command, as [host.submit], is looked up when the command is used; without the file, none.
    A file that is named has to be there."""

    def __init__(self, level: str, commands: Iterable[str]) -> None:
        self._level, self._commands = level, tuple(commands)

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        path = config_path()
        if not path.exists() and not os.environ.get("DOVETAIL_CONFIG"):
            return
        from cyclopts.config import Dict

        from dovetail.core.files.document import Document

        doc = Document.read(path)
        tables = doc.convert(doc.data or {}, dict[str, dict[str, dict[str, Any]]])
        self._check(doc, (), tables, (self._level,))
        self._check(doc, (self._level,), tables.get(self._level, {}), self._commands)
        Dict(tables, source=str(path))(app, commands, arguments)

    def _check(self, doc: Document, place: tuple[str, ...], found: Mapping[str, object], known: Iterable[str]) -> None:
        from dovetail.core.errors import did_you_mean

        for name in found:
            if name not in known:
                raise doc.error((*place, name), f"there is no command of this name{did_you_mean(name, known)}")
