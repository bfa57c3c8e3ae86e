"""Structured logs of a live service."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import Any, TextIO

import msgspec


class LogLines:
    """One line of JSON each, to standard error or wherever they are to go; on a terminal, in words."""

    def __init__(self, to: TextIO | None = None) -> None:
        self._to, self._lock = to, threading.Lock()

    def write(self, what: str, **facts: Any) -> None:
        known = {key: value for key, value in facts.items() if value not in (None, "", {})}
        to = self._to or sys.stderr
        with self._lock, suppress(OSError, ValueError):  # a log that cannot be written stops nothing
            if to.isatty():
                told = "; ".join(f"{key} {_words(value)}" for key, value in known.items() if key != "trace")
                line = f"{time.strftime('%H:%M:%S')} {what}{': ' if told else ''}{told}"
            else:
                line = msgspec.json.encode(
                    {"time": round(time.time(), 3), "event": what} | known, enc_hook=str
                ).decode()
            print(line, file=to, flush=True)


def _words(value: Any) -> str:
    """
    >>> _words({"v100": 2, "k80": 1}), _words(3)
    ('2 v100, 1 k80', '3')
    """
    return ", ".join(f"{each} {name}" for name, each in value.items()) if isinstance(value, dict) else str(value)
