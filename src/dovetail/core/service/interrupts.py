"""Ctrl-C and SIGTERM as a call, in whatever line they come, so that what runs can end in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts(told: Callable[[], None]) -> Iterator[None]:
    """Call that for each; it may be in the middle of anything, so it must do little."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there signals can be caught
        return
    before = [signal.signal(number, lambda *_: told()) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
