"""Where the daemon's loop waits: for what is put in from any thread, and for files that become readable. What those say
is taken in by the thread that decides on it, so that most programs pass through one thread alone."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from dovetail.core.events import Stimulus
from dovetail.core.loop.inbox import Inbox

_LONGEST_S = 86400.0  # of one look: more than some numbers of milliseconds cannot be asked for


class LoopInbox(Inbox):
    """An inbox that looks after files too.

    >>> inbox = LoopInbox()
    >>> read, write = os.pipe()
    >>> inbox.watch(read, lambda: print(os.read(read, 100)))
    >>> os.write(write, b"words")
    5
    >>> inbox.take(0.0)
    b'words'
    []
    >>> inbox.release()
    >>> os.close(read), os.close(write)
    (None, None)
    """

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asleep = False
        self.watch(self._bell, self._hear)

    def watch(self, file: int, call: Callable[[], None]) -> None:
        """Call this, in the thread that takes, whenever a file can be read; in the place of what was called before.
        It may be called once more than that: a read must not block."""
        known = file in self._calls
        self._calls[file] = call
        if not known:
            self._epoll.register(file, select.EPOLLIN)

    def forget(self, file: int) -> None:
        """Before the file is closed."""
        if self._calls.pop(file, None) is not None:
            self._epoll.unregister(file)

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _ring(self) -> None:
        if self._asleep:
            os.eventfd_write(self._bell, 1)

    def extend(self, stimuli: Iterable[Stimulus]) -> None:
        with self._changed:
            self._waiting += stimuli
        self._ring()

    def put_first(self, stimuli: Iterable[Stimulus]) -> None:
        """Add what happened before all that waits here."""
        with self._changed:
            self._waiting[:0] = stimuli
        self._ring()

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self._ring()

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._asleep = True  # before it is looked whether there is something: who puts more from here on rings
            ready = bool(self._waiting or self._closed)
            left = 0.0 if ready else _LONGEST_S if limit is None else max(limit - time.monotonic(), 0.0)
            found = self._epoll.poll(min(left, _LONGEST_S))
            self._asleep = False
            for file, _ in found:
                if (call := self._calls.get(file)) is not None:
                    call()
            if self._waiting or self._closed:
                with self._changed:
                    taken, self._waiting = self._waiting, []
                return taken if taken or not self._closed else None
            if limit is not None and time.monotonic() >= limit:
                return []

    def release(self) -> None:
        """Nobody takes from it any more."""
        self._epoll.close()
        os.close(self._bell)
