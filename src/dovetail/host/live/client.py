"""A line to the daemon of a folder: one request, one answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.errors import DovetailError, InputError

SOCKET = "host.sock"


def state_folder(given: Path | None) -> Path:
    """Where a daemon keeps its state: as given, from the environment, or the user's own place for such things."""
    if given is not None:
        return given.absolute()
    if named := os.environ.get("DOVETAIL_HOST_STATE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dovetail" / "host"


class Client:
    """A connection to the daemon of a folder."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                self._socket.connect(f"/proc/self/fd/{directory}/{SOCKET}")
            finally:
                os.close(directory)
        except OSError:
            self._socket.close()
            raise InputError(f"no daemon answers in {folder}: dovetail host up") from None
        self._file = self._socket.makefile("rb")

    def ask(self, do: str, **words: Any) -> Any:
        """Send a request; gives its answer, or raises what the daemon says is wrong."""
        try:
            self._socket.sendall(msgspec.json.encode({"do": do, **words}) + b"\n")
            line = self._file.readline()
        except OSError as error:
            raise DovetailError(f"the daemon went away: {error.strerror}") from error
        if not line:
            raise DovetailError("the daemon went away before it answered")
        reply = msgspec.json.decode(line)
        if "error" in reply:
            raise InputError(reply["error"]) if reply["code"] == 2 else DovetailError(reply["error"])
        return reply["ok"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(state: Path | None = None) -> Client:
    """A line to the daemon whose state is in this folder, or in the usual one."""
    return Client(state_folder(state))
