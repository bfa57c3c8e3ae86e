"""One process that forks the parents of programs: quicker than an interpreter for each, and nothing of ours in them."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

from dovetail.core.service import shim

_END_LIMIT_S = 5.0
_STUCK_LIMIT_S = 30.0
PIECE = 4096  # bytes: as much as is written into a pipe at once


class Spawner:
    """Begins shims. It ends with us, and they go on; if it was ended by others, another takes its place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._began_at = 0.0

    def ask(self, folder: str, order: bytes) -> int:
        """Begin the shim of a folder, of a program or of what the folder says; gives the pipe that it speaks through,
        to be read without waiting and closed. BlockingIOError if more was asked for than it has taken: nobody waits for
        it here, since it may have been stopped."""
        heard, told = os.pipe()
        os.set_blocking(heard, False)
        try:
            self._ask(os.fsencode(folder) + b"\0" + order, told)
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(told)
        return heard

    def wait_for_room(self) -> None:
        """Until it has taken most of what it was asked for; if it does not, it is replaced."""
        if (line := self._line) is not None:
            asked_at, room = time.monotonic(), select.poll()
            with suppress(ValueError):  # it was closed just now, and the next has room
                room.register(line, select.POLLOUT)
                if not room.poll(_STUCK_LIMIT_S * 1000):
                    self.replace_stuck(asked_at)

    def wait(self, line: int) -> bytes:
        """What the shim says first: when its program runs, or nothing, if it has left."""
        answer = select.poll()
        answer.register(line, select.POLLIN)
        asked_at = time.monotonic()
        while not answer.poll(_STUCK_LIMIT_S * 1000):
            self.replace_stuck(asked_at)
        return os.read(line, PIECE)

    def replace_stuck(self, asked_at: float) -> None:
        """Kill it if it did not answer what it was asked then: somebody may have stopped it. Whoever waits for it asks
        again; what it has begun goes on. One that came later was not asked."""
        with self._lock:
            late = time.monotonic() - asked_at >= _STUCK_LIMIT_S
            if self._process is not None and late and asked_at >= self._began_at:
                self._process.kill()

    def _ask(self, packet: bytes, told: int) -> None:
        with self._lock:
            for line in (self._line, None):
                with suppress(BrokenPipeError, ConnectionResetError):
                    socket.send_fds(line or self._begin(), [packet], [told])
                    return
        raise ConnectionError("what starts programs has ended, again and again")

    def _begin(self) -> socket.socket:
        self._end()
        self._began_at = time.monotonic()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        words, null = [sys.executable, "-I", "-S", shim.__file__], subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(words, stdin=theirs.fileno(), stdout=null, start_new_session=True, cwd="/")
        return self._line

    def _end(self) -> None:
        if self._line is not None and self._process is not None:
            self._line.close()
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:  # somebody may have stopped it; the programs are not its business
                self._process.kill()
            self._line = self._process = None

    def close(self) -> None:
        with self._lock:
            self._end()
