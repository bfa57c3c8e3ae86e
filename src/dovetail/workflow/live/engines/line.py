"""The near end of a worker's connection: any thread may send, what comes is reported, and silence is noticed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from dovetail.workflow.live.protocol import BackEndError, CallFailed
from dovetail.workflow.live.wire import Command, MakeCall, WorkerBeat, WorkerReport, decode_report, encode


class WorkerLine:
    """`report` is told what the worker reports but its beats, `lost` once when the connection has ended; both in the
    thread that reads. `models` is what the worker's back ends last said of themselves."""

    def __init__(
        self,
        connection: Connection,
        report: Callable[[WorkerReport], None],
        lost: Callable[[WorkerLine], None],
        name: str,
    ) -> None:
        self._connection, self._report, self._lost = connection, report, lost
        self.models: dict[str, dict[str, Any]] = {}
        self.heard = False  # anything, so far
        self._heard_since = True
        self._unheard = 0
        self._outgoing: SimpleQueue[Command | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, name=f"{name} reader", daemon=True),
            threading.Thread(target=self._write, name=f"{name} writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, command: Command) -> None:
        """Never blocks: a worker that does not read must not keep others waiting."""
        self._outgoing.put(command)

    def silent(self) -> int:
        """How often in a row this was asked without anything having come in between. Not a time: a machine that slept
        has heard nobody, and nobody is to blame."""
        self._unheard = 0 if self._heard_since else self._unheard + 1
        self._heard_since = False
        return self._unheard

    def _read(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    message = decode_report(self._connection.recv_bytes())
                    self._heard_since = self.heard = True
                    if isinstance(message, WorkerBeat):
                        self.models = message.models
                    else:
                        self._report(message)
        finally:
            self._outgoing.put(None)
            self._lost(self)

    def _write(self) -> None:
        with suppress(OSError):
            while (command := self._outgoing.get()) is not None:
                try:
                    data = encode(command)
                except BackEndError as error:
                    assert isinstance(command, MakeCall)  # nothing else holds a user's values
                    self._report(CallFailed(command.call.id, f"its inputs cannot be sent: {error}", error.blame))
                    continue
                self._connection.send_bytes(data)

    def cut(self) -> None:
        """End the connection, whoever else still holds its other end; the reader notices."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """To be called when the other end is gone: nobody waits on it any more."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._connection.close()
