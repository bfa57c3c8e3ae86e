"""`dovetail host up` and `down`: the daemon of a live host."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dovetail.cli.common import Flag, Pairs, pairs
from dovetail.core.errors import DovetailError, InputError
from dovetail.host.live.client import connect, state_folder

if TYPE_CHECKING:
    from dovetail.host.live.client import Client

_START_LIMIT_S = 60.0
_LITTLE_ROOM = 1 << 16  # bytes


def up(
    *,
    plan: str | None = None,
    assign: str | None = None,
    preemptive: Flag = False,
    quantum: float | None = None,
    age_step: float | None = None,
    overtaking: Literal["none", "first-fit", "backfill"] | None = None,
    memory_mib: int | None = None,
    option: Pairs | None = None,
    cpus: str | None = None,
    control_groups: bool | None = None,
    docker: str | None = None,
    foreground: Flag = False,
    state: Path | None = None,
) -> None:
    """Start the daemon of this machine, or start it again after it ended in whatever way.

    It finds every program that it started before. Without settings it goes on with those that it had.

    Example: dovetail host up --plan priority --assign max_prop --preemptive

    Parameters
    ----------
    plan
        Who goes first: fcfs, priority, rr, or another from `dovetail host policies`.
    assign
        How many cores each gets: strict, max_prop, always_attend, efficient.
    preemptive
        Pause less urgent programs for a more urgent one.
    quantum
        Seconds of a turn, for rr.
    age_step
        Seconds of waiting that make a program more urgent by one.
    overtaking
        Who may pass a program that cannot start yet.
    memory_mib
        Memory that programs may declare in all, paused ones included; by default the machine's.
    option
        Further options of the scheduler: --option victim=smallest min_cores=2.
    cpus
        Processors to use, as 0-3,8; by default all that this process may use.
    control_groups
        Use the kernel's control groups where they can be had.
    docker
        Address of the container engine, as unix:///run/docker.sock; by default from the environment.
    foreground
        Stay, and show what goes wrong; for service managers.
    state
        Folder of the daemon's state; by default $DOVETAIL_HOST_STATE or ~/.local/state/dovetail/host.
    """
    from dovetail.core.cgroups import parse_cpus
    from dovetail.host.live.setup import RequestedSettings

    given: dict[str, Any] = {
        "plan": plan,
        "assign": assign,
        "preemptive": preemptive or None,
        "quantum_s": quantum,
        "age_step_s": age_step,
        "overtaking": overtaking,
        "memory_mib": memory_mib,
        **{name: _value(text) for name, text in pairs("--option", option).items()},
    }
    options = {name: value for name, value in given.items() if value is not None}
    _check(options)
    try:
        chosen = None if cpus is None else tuple(sorted(parse_cpus(cpus)))
    except ValueError:
        raise InputError(f"--cpus {cpus}: expected processors, as 0-3,8") from None
    wish = RequestedSettings(options or None, chosen, control_groups, docker)
    folder = state_folder(state)
    _make(folder)
    if foreground:
        from dovetail.host.live.daemon import run

        run(folder, wish)
        return
    about = _start(folder, wish)
    print(f"The daemon runs as process {about['pid']} on processors {about['cpus']}; its state is in {folder}")


def _value(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _check(options: dict[str, Any]) -> None:
    """Refuse bad settings here, where the user sees it."""
    import msgspec

    from dovetail.core.files import explain
    from dovetail.host.options import HostOptions
    from dovetail.host.policies import Assignment, Planning, make

    try:
        wanted = msgspec.convert(options, HostOptions)
    except msgspec.ValidationError as error:
        keys, message = explain(error, HostOptions)
        raise InputError(f"{'.'.join(map(str, keys))}: {message}") from None
    make(wanted.plan, Planning)
    make(wanted.assign, Assignment)


def _make(folder: Path) -> None:
    """The folder of the state, unless a daemon has it."""
    from dovetail.host.live.client import Client

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


def _start(folder: Path, wish: Any) -> dict[str, Any]:
    """Start a daemon that outlives this command; gives what it says of itself."""
    import subprocess

    import msgspec

    from dovetail.host.live.client import Client

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
    import shutil

    told = (folder / "daemon.log").read_bytes()[begun:].decode(errors="replace").strip().splitlines()
    if shutil.disk_usage(folder).free < _LITTLE_ROOM:
        return f"{folder}: the disk is full"
    return told[-1].removeprefix("error: ") if told else "the daemon ended at once"


def down(*, cancel: Flag = False, state: Path | None = None) -> None:
    """Stop the daemon. Its programs run on, and the next daemon finds them; paused ones stay paused.

    Example: dovetail host down --cancel

    Parameters
    ----------
    cancel
        Cancel all programs first, and wait until they have ended.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        pid = client.ask("about")["pid"]
        if cancel:
            left = _open(client)
            for job in left:
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
    print(f"The daemon is down; {len(left)} programs are left as they are" if left else "The daemon is down")


def _open(client: Client) -> list[str]:
    return [row["id"] for row in client.ask("list") if row["state"] not in ("completed", "failed", "cancelled")]


def _lives(pid: int) -> bool:
    from dovetail.host.live.executors.proc import read

    found = read(pid)
    return found is not None and not found.dead
