"""One process that forks the parents of programs: quicker than an interpreter for each, and nothing of ours in them."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from dovetail.core.service import shim

_END_LIMIT_S = 5.0
_STUCK_LIMIT_S = 30.0


class Spawner:
    """Begins shims. It ends with us, and they go on; if it was ended by others, another takes its place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def spawn(self, folder: str) -> None:
        """Begin the shim of a folder; returns when its program runs, or it has left."""
        heard, told = os.pipe()
        with open(heard, "rb") as file:
            try:
                self._ask(folder, told)
            finally:
                os.close(told)
            answer = select.poll()
            answer.register(file, select.POLLIN)
            if not answer.poll(_STUCK_LIMIT_S * 1000):
                self._kill()
            file.read()

    def _kill(self) -> None:
        """Somebody may have stopped it. Whoever waits for it asks again; what it has begun goes on."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def _ask(self, folder: str, told: int) -> None:
        with self._lock:
            for line in (self._line, None):
                with suppress(BrokenPipeError, ConnectionResetError):
                    socket.send_fds(line or self._begin(), [os.fsencode(folder)], [told])
                    return
        raise OSError("what starts programs has ended")

    def _begin(self) -> socket.socket:
        self._end()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
