"""A training process's line to the agent that started it: a line of JSON is asked, a line is answered (`wire.py`).

It imports next to nothing, because it is part of the start of every training process.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dovetail.core.errors import DovetailError

_REDIAL_S = 0.05
_SIGN_S = 1.0
_SUCCESSOR_S = 30.0  # for an agent in the place of one that was killed
_WORD_S = 0.2


class AgentLostError(DovetailError):
    """Nobody answers where the agent of this node should be."""


class ProcessLine:
    """`ask` waits for an answer, and gives None when there is none: the line is dialled again by the next one, with a
    new `hello`. `tell` does not wait: training goes on meanwhile."""

    def __init__(self, address: str, job: int, epoch: int, rank: int = 0) -> None:
        self.rank = rank
        self._address = address
        self._hello = {"ask": "hello", "job": job, "epoch": epoch, "rank": rank, "pid": os.getpid()}
        self._socket: socket.socket | None = None
        self._rest = b""
        self._answers: list[dict[str, Any]] = []
        self._owed = 0  # answers to what was told
        self.beside: str | None = None  # as the last answer that spoke of it said
        self.stop: int | None = None  # where all ranks stop, as the agent says, asked or not

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ProcessLine | None:
        """The line of a process that an agent started; None in any other."""
        address = environment.get("DOVETAIL_AGENT")
        if not address:
            return None
        numbers = (int(environment[name]) for name in ("DOVETAIL_JOB", "DOVETAIL_EPOCH", "DOVETAIL_RANK"))
        return cls(address, *numbers)

    def hello(self) -> dict[str, Any]:
        """The first lease; it may be long until it comes. An agent that is killed meanwhile has a successor soon."""
        ends = 0.0
        while True:
            began = time.monotonic()
            try:
                return self._dial(None)
            except (OSError, ValueError) as error:
                self.close()
                now, refused = time.monotonic(), isinstance(error, ConnectionRefusedError) and error.errno is None
                if isinstance(error, ConnectionError) and (not ends or now - began > _SIGN_S):
                    ends = now + _SUCCESSOR_S  # somebody was there
                if refused or now >= ends:
                    raise AgentLostError(f"the agent at {self._address} gave no lease: {error}") from None
                time.sleep(_REDIAL_S)

    def tell(self, what: str, **fields: Any) -> bool:
        """A sign that can be done without; whether it was sent."""
        try:
            if self._socket is None:
                self._dial(_SIGN_S)
            self._send({"ask": what, **fields}, _SIGN_S)
            self._owed += 1
            self._hear()
        except (OSError, ValueError):
            self.close()
            return False
        return True

    def ask(self, what: str, within_s: float, **fields: Any) -> dict[str, Any] | None:
        ends = time.monotonic() + within_s
        while True:
            try:
                if self._socket is None:
                    self._dial(_left(ends))
                return self._exchange({"ask": what, **fields}, _left(ends))
            except TimeoutError:
                self.close()
                return None
            except (OSError, ValueError):  # it is gone, or ended in the middle of a line: perhaps it starts anew
                self.close()
                if time.monotonic() + _REDIAL_S >= ends:
                    return None
                time.sleep(_REDIAL_S)

    def listen(self) -> None:
        """Take what was told unasked; before that dial anew, if need be."""
        try:
            if self._socket is None:
                self._dial(_WORD_S)
            else:
                self._hear()
        except TimeoutError:
            self._owed = 1  # the answer to the hello may come later
        except (OSError, ValueError):
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket, self._rest, self._owed, self._answers = None, b"", 0, []

    def _dial(self, within_s: float | None) -> dict[str, Any]:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(within_s)
        self._socket.connect(self._address)
        lease = self._exchange(self._hello, within_s)
        if "seconds" not in lease:
            raise ConnectionRefusedError(lease.get("why", "there is none"))
        return lease

    def _exchange(self, message: dict[str, Any], within_s: float | None) -> dict[str, Any]:
        self._send(message, within_s)
        while not self._answers:
            self._receive()
        return self._answers.pop()

    def _send(self, message: dict[str, Any], within_s: float | None) -> None:
        assert self._socket is not None
        self._socket.settimeout(within_s)
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _hear(self) -> None:
        """Take what answers are there."""
        assert self._socket is not None
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._receive()

    def _receive(self) -> None:
        assert self._socket is not None
        found = self._socket.recv(65536)
        if not found:
            raise ConnectionResetError("the agent closed the line")
        *lines, self._rest = (self._rest + found).split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            self.beside = answer.get("beside", self.beside)
            self.stop = answer.get("steps", answer.get("stop", self.stop))
            if "stop" in answer:
                continue  # unasked
            if self._owed:
                self._owed -= 1
            else:
                self._answers.append(answer)


def _left(ends: float) -> float:
    """Of a request's time; a socket takes 0 for "do not wait at all"."""
    return max(0.001, ends - time.monotonic())
