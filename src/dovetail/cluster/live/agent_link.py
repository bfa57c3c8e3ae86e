"""An agent's connection to the service: dialled again for ever, and never in the way of what the agent does."""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from threading import Condition, Thread

from msgspec import Struct

from dovetail.cluster.live.wire import (
    AgentBeat,
    AgentConnection,
    LeaseState,
    LeaveNode,
    NodeLeases,
    ProcessEvent,
    StopAsked,
)

_AGAIN_S = 0.2
_MOST_UNANSWERED = 2  # beats; the service answers each, at the latest when the next is due
_MOST_EVENTS = 10_000  # kept while nobody listens


class AgentErrand(Struct, frozen=True):
    """What an agent is started with. `folder` is its own, on its node, and has a short name for the sake of sockets."""

    node: str
    host: str
    port: int
    secret: bytes
    folder: str


class ServiceLink:
    """`tell` is called from a thread of the link: with an answer and the moment when the beat that it answers was sent,
    and with None when the service has been reached anew."""

    def __init__(self, errand: AgentErrand, tell: Callable[[NodeLeases | LeaveNode | None, float], None]) -> None:
        self._errand = errand
        self._tell = tell
        self._changed = Condition()
        self._connection: AgentConnection | None = None
        self._beat: tuple[int, tuple[LeaseState, ...], tuple[int, ...], str] | None = None
        self._messages: deque[StopAsked | ProcessEvent] = deque(maxlen=_MOST_EVENTS)
        self._sent: dict[int, float] = {}
        self._number = 0
        for work in (self._read, self._write):
            Thread(target=work, daemon=True).start()

    def beat(self, seen: int, states: tuple[LeaseState, ...], ports: tuple[int, ...], trouble: str) -> None:
        """Say this in the next beat; what was to be said before that is out of date."""
        with self._changed:
            self._beat = (seen, states, ports, trouble)
            self._changed.notify()

    def say(self, message: StopAsked | ProcessEvent) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def _read(self) -> None:
        errand = self._errand
        while True:
            try:
                connection = AgentConnection(Client((errand.host, errand.port), authkey=errand.secret))
            except (OSError, EOFError, AuthenticationError):
                time.sleep(_AGAIN_S)
                continue
            with self._changed:
                self._connection, self._sent = connection, {}
            self._tell(None, 0.0)
            with suppress(OSError, EOFError):
                while True:
                    message = connection.to_agent()
                    sent = 0.0
                    if isinstance(message, NodeLeases):
                        with self._changed:
                            sent = self._sent.get(message.beat, 0.0)
                            self._sent = {n: at for n, at in self._sent.items() if n > message.beat}
                            self._changed.notify()
                    self._tell(message, sent)
            with self._changed:
                self._connection = None
            with suppress(OSError):
                connection.close()
            time.sleep(_AGAIN_S)

    def _write(self) -> None:
        try:
            self._send()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # a mute agent is worse than none: another takes its place

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._sendable)
                connection = self._connection
                assert connection is not None
                message: StopAsked | ProcessEvent | AgentBeat
                if self._messages:
                    message = self._messages.popleft()
                else:
                    assert self._beat is not None
                    said, self._beat, self._number = self._beat, None, self._number + 1
                    message = AgentBeat(self._errand.node, self._number, *said)
                    self._sent[self._number] = time.monotonic()
            with suppress(OSError):  # the reader finds it out
                connection.send(message)

    def _sendable(self) -> bool:
        waits = self._beat is not None and len(self._sent) < _MOST_UNANSWERED
        return self._connection is not None and (bool(self._messages) or waits)
