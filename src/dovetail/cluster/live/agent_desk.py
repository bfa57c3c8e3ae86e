"""The socket at which an agent's processes ask: lines of JSON, one caller for each process."""

from __future__ import annotations

import selectors
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.cluster.live.agent_runs import NodeRun
from dovetail.cluster.live.wire import Done, Lease, Request, StopAt, decode_request, encode_line

_MOST_LINE = 1 << 16


class ProcessCaller:
    """A process at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.run: NodeRun | None = None
        self.rank = 0
        self.waits: float | None = None  # since when, for its turn or for the step at which all ranks stop
        self.wants_stop = False
        self.leaves = False  # it was told to terminate

    def answer(self, message: Lease | Done) -> None:
        self.waits, self.wants_stop = None, False
        self.tell(message)

    def tell(self, message: Lease | Done | StopAt) -> None:
        try:
            self.connection.sendall(encode_line(message))
        except BlockingIOError:  # it asks and does not listen: nobody else shall wait for that
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone, which is found out by reading


class ProcessDesk:
    """Takes callers and their requests, in the thread of whoever selects."""

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, serve: Callable[[ProcessCaller, Request], None]
    ) -> None:
        self.callers: list[ProcessCaller] = []
        self._path, self._selector, self._serve = path, selector, serve
        self._listener: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        """Open the socket, or open it again if its file was removed."""
        self._path.unlink(missing_ok=True)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
        self._listener = listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(128)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            caller = ProcessCaller(connection)
            self.callers.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(caller))

    def _read(self, caller: ProcessCaller) -> None:
        data = b""
        with suppress(OSError):
            data = caller.connection.recv(_MOST_LINE)
        caller.buffer += data
        if not data or len(caller.buffer) > _MOST_LINE:
            self._selector.unregister(caller.connection)
            caller.connection.close()
            self.callers.remove(caller)
            return
        *lines, caller.buffer = caller.buffer.split(b"\n")
        for line in lines:
            try:
                self._serve(caller, decode_request(line))
            except msgspec.MsgspecError as error:
                caller.answer(Done(False, f"not understood: {error}"))
            except Exception as error:  # nothing that a process says may end the agent of all
                traceback.print_exc()
                caller.answer(Done(False, repr(error)))
