"""Starting the agent of a node: a daemon that outlives whoever starts it, here or through Ray."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cluster.live.agent_link import AgentErrand
from dovetail.core.service.environment import lasting_environment

_START = '"$@" >> "$0" 2>&1 &'
_LONGEST = 60  # characters of its folder's path, so that its socket's may be a name


def agent_folder(node: str, secret: bytes) -> str:
    """Where the agent of a node has its files: the same one for each agent of that node and service."""
    name = hashlib.blake2b(node.encode(), key=secret[:64], digest_size=8).hexdigest()
    home = tempfile.gettempdir()
    return os.path.join(home if len(home) < _LONGEST - 20 else "/tmp", f"dt-{name}")


def launch_here(errand: AgentErrand) -> None:
    """Start an agent on this machine, if none is there. It belongs to nobody: a shell starts it, and leaves."""
    folder = Path(errand.folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    part = folder / f"errand.{os.getpid()}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.msgpack.encode(errand))
    part.rename(folder / "errand")
    module = "dovetail.cluster.live.agent"
    subprocess.run(
        ["/bin/sh", "-c", _START, str(folder / "agent.log"), sys.executable, "-m", module, errand.folder],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
        cwd="/",
        env=lasting_environment(),
    )


def last_words(folder: str) -> str:
    """What an agent on this machine said last, if it left anything."""
    try:
        with open(os.path.join(folder, "agent.log"), errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""


def on_ray(argument: bytes, store: Any) -> None:
    """In an actor of Ray, on the node in question."""
    launch_here(msgspec.msgpack.decode(argument, type=AgentErrand))
