"""Start and stop a daemon from another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files import explain
from dovetail.host.live.client import Client
from dovetail.host.live.executors import proc
from dovetail.host.live.setup import RequestedSettings
from dovetail.host.live.status import CLOSED
from dovetail.host.options import HostOptions
from dovetail.host.policies import Assignment, Planning, make

_START_LIMIT_S = 60.0
_LITTLE_ROOM = 1 << 16  # bytes


def check_options(options: dict[str, Any]) -> None:
    """Refuse bad settings before a daemon is started with them: here its user sees it."""
    try:
        wanted = msgspec.convert(options, HostOptions)
    except msgspec.ValidationError as error:
        keys, message = explain(error, HostOptions)
        raise InputError(f"{'.'.join(map(str, keys))}: {message}") from None
    make(wanted.plan, Planning)
    make(wanted.assign, Assignment)


def claim_folder(folder: Path) -> None:
    """The folder of the state, unless a daemon has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "daemon.log").open("ab").close()
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be the folder of the state: {error.strerror}; --state names another"
        ) from error
    try:
        with Client(folder) as client:
            pid = client.ask("about")["pid"]
    except DovetailError:
        return
    raise InputError(f"{folder}: a daemon runs already, as process {pid}: dovetail host down")


def start(folder: Path, wish: RequestedSettings) -> dict[str, Any]:
    """Start a daemon that outlives this command; gives what it says of itself."""
    words = [sys.executable, "-m", "dovetail.host.live.daemon", str(folder), msgspec.json.encode(wish).decode()]
    null = subprocess.DEVNULL
    with (folder / "daemon.log").open("ab") as log:
        begun = log.tell()
        daemon = subprocess.Popen(words, stdin=null, stdout=log, stderr=log, start_new_session=True, cwd="/")
    limit = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit:
        if daemon.poll() is not None:
            raise InputError(_last_words(folder, begun))
        try:
            with Client(folder) as client:
                about: dict[str, Any] = client.ask("about")
        except DovetailError:
            time.sleep(0.05)
            continue
        if about["pid"] == daemon.pid:
            daemon.returncode = 0  # it runs on without us; no warning that it does
            return about
    raise DovetailError(f"the daemon does not answer; see {folder / 'daemon.log'}")


def _last_words(folder: Path, begun: int) -> str:
    """Why a daemon ended at once; if the disk is full, not even that was written."""
    told = (folder / "daemon.log").read_bytes()[begun:].decode(errors="replace").strip().splitlines()
    if shutil.disk_usage(folder).free < _LITTLE_ROOM:
        return f"{folder}: the disk is full"
    return told[-1].removeprefix("error: ") if told else "the daemon ended at once"


def stop(client: Client, cancel: bool = False) -> list[str]:
    """Stop a daemon, if asked with all of its programs; gives those that are left as they are."""
    pid = client.ask("about")["pid"]
    if cancel:
        for job in _open(client):
            try:
                client.ask("ask", job=job, what="cancel")
            except InputError:
                continue  # it has ended meanwhile
        while _open(client):
            time.sleep(0.1)
    left = _open(client)
    client.ask("down")
    while _lives(pid):
        time.sleep(0.02)
    return left


def _open(client: Client) -> list[str]:
    return [row["id"] for row in client.ask("list") if row["state"] not in CLOSED]


def _lives(pid: int) -> bool:
    found = proc.read(pid)
    return found is not None and not found.dead
