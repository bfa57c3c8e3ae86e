"""An agent's own folder, on its node, by which it knows what it started. It may be removed, or its disk be full."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from dovetail.cluster.live.agent_link import AgentErrand

_ROOM = 1 << 18  # bytes that a start takes at most: what to run, and how it ended


class AgentFolder:
    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.runs, self.socket = self.path / "runs", self.path / "agent.sock"
        self._held = -1

    def claim(self) -> bool:
        """Keep other agents out of it; False if one is there. While it is locked, systemd-tmpfiles passes it over when
        it clears old files out of /tmp."""
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.runs.mkdir(exist_ok=True)
        return True

    def errand(self) -> AgentErrand:
        return msgspec.msgpack.decode((self.path / "errand").read_bytes(), type=AgentErrand)

    @property
    def lost(self) -> bool:
        return not self.runs.is_dir()

    def trouble(self) -> str:
        """Why nothing can be started from it, if that is so."""
        if self.lost:
            return f"the folder of its agent, {self.path}, was removed"
        room = self.path / "room"
        try:
            try:
                room.write_bytes(bytes(_ROOM))
            finally:
                room.unlink(missing_ok=True)
        except OSError as error:
            return f"the folder of its agent, {self.path}: {error.strerror}"
        return ""

    def make_again(self, errand: AgentErrand) -> None:
        """Raises OSError if that cannot be done."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "errand").write_bytes(msgspec.msgpack.encode(errand))
        if not self.claim():
            raise SystemExit("another agent has its folder")  # and what runs ends with its leases
