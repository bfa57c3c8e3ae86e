"""Start and stop a daemon from another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from dovetail.core.cgroups import parse_cpus
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files.document import checked
from dovetail.core.service.access import own_folder
from dovetail.core.service.environment import lasting_environment
from dovetail.host.live.client import Client, daemon_folder
from dovetail.host.live.setup import RequestedSettings
from dovetail.host.options import Overtaking, host_options
from dovetail.host.policies import Assignment, Planning, make

_START_LIMIT_S = 60.0
_LITTLE_ROOM = 1 << 16  # bytes


class DaemonSettings(TypedDict, total=False):
    """How a daemon is set up; what is not given stays as it was before, or is the default."""

    plan: str | None
    assign: str | None
    preemptive: bool
    quantum: float | None
    age_step: float | None
    overtaking: Overtaking | None
    memory_mib: int | None
    option: Mapping[str, Any] | None
    cpus: str | Iterable[int] | None
    control_groups: bool | None
    docker: str | None
    gpus: str | Iterable[int] | None


def up(folder: str | PathLike[str] | None = None, **settings: Unpack[DaemonSettings]) -> Client:
    """Start the daemon of this machine, or start it again after it ended in whatever way; gives a line to it.

    It finds every program that it started before. Without settings it goes on with those that it had.

    Parameters
    ----------
    folder
        Of the daemon's state; by default $DOVETAIL_HOST_STATE or ~/.local/state/dovetail/host.
    settings
        plan, assign, preemptive, quantum, age_step and overtaking as `simulate` takes them, the policies by name;
        memory_mib: memory that programs may declare in all, by default the machine's; option: a dict of further options
        of the scheduler; cpus: processors to use, as "0-3,8" or numbers, by default all that this process may use;
        control_groups: whether to use the kernel's where they can be had; docker: address of the container engine;
        gpus: numbers of those to use, as "0,1" or "none", by default all that the driver shows.
    """
    wish, place = _wish(settings), daemon_folder(folder)
    claim_folder(place)
    start(place, wish)
    return Client(place)


def daemon_command(folder: str | PathLike[str] | None = None, **settings: Unpack[DaemonSettings]) -> list[str]:
    """The command that is such a daemon, in the foreground: for service managers that start it themselves."""
    wish, place = _wish(settings), daemon_folder(folder)
    claim_folder(place)
    return _command(place, wish)


def _wish(given: DaemonSettings) -> RequestedSettings:
    """Bad settings are refused before a daemon is started with them: here its user sees it."""
    if unknown := given.keys() - DaemonSettings.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    values: dict[str, Any] = {**given}
    names = ("cpus", "control_groups", "docker", "option", "gpus")
    cpus, groups, docker, more, gpus = (values.pop(name, None) for name in names)
    more = checked(more or {}, dict[str, Any], "option")
    values = {**values, "preemptive": values.get("preemptive") or None, **more}
    options = {name: _absolute(value) for name, value in values.items() if value is not None}
    wanted = host_options(options)
    make(wanted.plan, Planning)
    make(wanted.assign, Assignment)
    try:
        chosen = None if cpus is None else tuple(sorted(parse_cpus(cpus) if isinstance(cpus, str) else cpus))
    except (ValueError, TypeError):
        raise InputError(f"cpus {cpus}: expected processors, as 0-3,8") from None
    try:
        seen = None if gpus is None else () if gpus == "none" else tuple(_numbers(gpus))
    except (ValueError, TypeError):
        raise InputError(f"gpus {gpus}: expected numbers of GPUs, as 0,1, or none") from None
    wish = {"options": wanted.as_dict() if options else None, "cpus": chosen, "groups": groups, "docker": docker}
    wish["gpus"] = seen
    return checked(wish, RequestedSettings)


def _numbers(given: str | Iterable[int]) -> list[int]:
    return sorted([int(number) for number in given.split(",")] if isinstance(given, str) else given)


def _absolute(value: Any) -> Any:
    """A policy in a file is found from wherever the daemon runs."""
    if not isinstance(value, str) or ".py:" not in value:
        return value
    path, _, name = value.rpartition(":")
    return f"{Path(path).absolute()}:{name}"


def _command(folder: Path, wish: RequestedSettings) -> list[str]:
    return [sys.executable, "-m", "dovetail.host.live.daemon", str(folder), msgspec.json.encode(wish).decode()]


def claim_folder(folder: Path) -> None:
    """The folder of the state, unless a daemon has it."""
    try:
        own_folder(folder)
        (folder / "daemon.log").open("ab").close()
    except InputError as error:
        raise InputError(f"{error}; --state names another") from error
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
    words = _command(folder, wish)
    null = subprocess.DEVNULL
    with (folder / "daemon.log").open("ab") as log:
        begun = log.tell()
        env = lasting_environment()
        daemon = subprocess.Popen(words, stdin=null, stdout=log, stderr=log, start_new_session=True, cwd="/", env=env)
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
