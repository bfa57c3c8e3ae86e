"""How long loads and calls may take before a worker is taken to be lost, and who sees to it."""

from __future__ import annotations

import heapq
import threading
import time
import traceback
from collections.abc import Callable
from itertools import count
from math import inf

from msgspec import Struct


class LiveLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A load may take `load_factor` times what is expected of it and `load_floor_s` more, a call likewise; a call that
    is stopped has `stop_grace_s` to end before its worker is ended by force. A worker that gives no sign of life for
    `silence_s` is ended too, and so is one where `call_tries` calls of a model failed in a row by no fault of their
    own. A model that failed to load `load_tries` times in a row, with nothing in its way, fails the requests for it."""

    load_factor: float = 10.0
    load_floor_s: float = 300.0
    call_factor: float = 10.0
    call_floor_s: float = 120.0
    stop_grace_s: float = 5.0
    silence_s: float = 20.0
    call_tries: int = 5
    load_tries: int = 3

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        for name in ("load_factor", "load_floor_s", "call_factor", "call_floor_s", "stop_grace_s"):
            if not 0 <= getattr(self, name) < inf:
                return f"{name}: expected a number >= 0, found {getattr(self, name)}"
        if not 0 < self.silence_s < inf:
            return f"silence_s: expected a positive number, found {self.silence_s}"
        for name in ("call_tries", "load_tries"):
            if getattr(self, name) < 1:
                return f"{name}: expected 1 or more, found {getattr(self, name)}"
        return None

    def load_s(self, expected_s: float) -> float:
        """
        >>> LiveLimits(load_factor=2, load_floor_s=10).load_s(30)
        70.0
        """
        return float(self.load_factor * expected_s + self.load_floor_s)

    def call_s(self, expected_s: float) -> float:
        return float(self.call_factor * expected_s + self.call_floor_s)


class Alarm:
    """Something that is to be called when its time has come, unless it was cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None  # what it would have told of need not be kept until then


class Alarms:
    """Calls back when a time limit has passed, in a thread of its own. One that is cancelled as it comes may still be
    called: who is called looks whether it minds."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._seq = count()
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="alarms", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        entry = (time.monotonic() + seconds, next(self._seq), Alarm(call))
        with self._changed:
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._changed.notify()
        return entry[2]

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closing:
                    return
                call = heapq.heappop(self._heap)[2].call
            if call is not None:
                try:
                    call()
                except Exception:  # the others are kept all the same
                    traceback.print_exc()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
