"""The agent's side of a process's line: it gives out the leases that a test wrote down, and keeps what it is asked."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cluster.live.training.process_line import ProcessLine
from dovetail.cluster.live.wire import Commit, Done, Hello, Lease, Renew, Request, StopAt, decode_request, encode_line

Answer = Lease | Done


class AgentDouble:
    """`leases` are the answers to `hello` and to each `renew`, in turn; the last one is given again."""

    def __init__(self, folder: Path, leases: list[Lease], clock: Callable[[], float] = lambda: 0.0) -> None:
        self.path = folder / f"agent-{os.urandom(4).hex()}"
        self.asked: list[tuple[float, Request]] = []
        self.commits: Callable[[Commit], Done] = lambda commit: Done()
        self.done: Answer = Done()
        self._leases, self._clock = leases, clock
        self._given = 0
        self.silent = False  # as one that is stopped
        self._open()

    def line(self, rank: int = 0, epoch: int = 1) -> ProcessLine:
        return ProcessLine(str(self.path), job=7, epoch=epoch, rank=rank)

    def environment(self, folder: Path, epoch: int = 1) -> dict[str, str]:
        return {
            "DOVETAIL_AGENT": str(self.path),
            "DOVETAIL_JOB": "7",
            "DOVETAIL_EPOCH": str(epoch),
            "DOVETAIL_RANK": "0",
            "DOVETAIL_CHECKPOINT_DIR": str(folder),
        }

    def of(self, kind: type[Any]) -> list[Any]:
        return [request for _, request in self.asked if isinstance(request, kind)]

    def names(self) -> list[str]:
        """What was asked, in its order, without signs of progress."""
        found = [msgspec.to_builtins(request) for _, request in self.asked]
        return [row.get("name") or row["ask"] for row in found if row["ask"] != "progress"]

    def hang_up(self) -> None:
        """The agent dies; it may be opened again."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):  # the other end went first
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.path.unlink()

    def _open(self) -> None:
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, args=(self._listener,))
        self._thread.start()

    open_again = _open

    def __enter__(self) -> AgentDouble:
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.exists():
            self.hang_up()

    def _serve(self, listener: socket.socket) -> None:
        threads = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            self._connections.append(connection)
            threads.append(threading.Thread(target=self._talk, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, suppress(ConnectionResetError):
            for line in lines:
                request = decode_request(line)
                self.asked.append((self._clock(), request))
                with suppress(OSError):  # who only tells something may be gone
                    if not self.silent:
                        connection.sendall(encode_line(self._answer(request)))

    def say(self, message: StopAt) -> None:
        """Unasked."""
        for connection in self._connections:
            connection.sendall(encode_line(message))

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, Hello | Renew):
            if not self._leases:
                return Done(False, "there is none of job 7")
            self._given += 1
            return self._leases[min(self._given, len(self._leases)) - 1]
        return self.commits(request) if isinstance(request, Commit) else self.done
