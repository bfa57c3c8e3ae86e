"""How often threads take turns at Python's interpreter: more often while any pool is at work."""

from __future__ import annotations

import sys
from threading import Lock

_SWITCH_S = 0.0005  # how long one thread may keep the interpreter from the launchers
_pools = 0
_usual_s = 0.0
_lock = Lock()


def shorten() -> None:
    """A pool begins to work."""
    global _pools, _usual_s
    with _lock:
        if not _pools:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_s, _SWITCH_S))
        _pools += 1


def restore() -> None:
    """A pool has nothing more to do."""
    global _pools
    with _lock:
        _pools -= 1
        if not _pools:
            sys.setswitchinterval(_usual_s)
