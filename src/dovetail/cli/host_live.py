"""`dovetail host up`, `submit`, `pause`, ...: the commands that change what a live host does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from dovetail.cli.common import Pairs, pairs
from dovetail.core.errors import DovetailError, InputError

if TYPE_CHECKING:
    from dovetail.host.live.daemon import Client

Flag = Annotated[bool, Parameter(negative=())]
Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
Ids = Annotated[tuple[str, ...], Parameter(negative=())]
_START_LIMIT_S = 60.0
_VERBS = ("up", "down", "submit", "pause", "resume", "resize", "priority", "cancel", "requeue")
_WATCHING = ("list", "top", "logs", "explain", "metrics", "journal", "wait")


def register(app: App) -> None:
    """Add the live commands to an application."""
    for verb in _VERBS:
        app.command(f"dovetail.cli.host_live:{verb}", name=verb)
    for verb in _WATCHING:
        app.command(f"dovetail.cli.host_watch:{verb}_", name=verb)
    app.command("dovetail.cli.host_replay:run", name="run")


def state_folder(given: Path | None) -> Path:
    """Where a daemon keeps its state: as given, from the environment, or the user's own place for such things."""
    if given is not None:
        return given.absolute()
    if named := os.environ.get("DOVETAIL_HOST_STATE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dovetail" / "host"


def connect(state: Path | None) -> Client:
    from dovetail.host.live.daemon import Client

    return Client(state_folder(state))


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
    from dovetail.host.executors import parse_cpus
    from dovetail.host.live.setup import Wish

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
    wish = Wish(options or None, chosen, control_groups, docker)
    folder = state_folder(state)
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
    from dovetail.host.options import Options
    from dovetail.host.policy import Assignment, Planning, make

    try:
        wanted = msgspec.convert(options, Options)
    except msgspec.ValidationError as error:
        keys, message = explain(error, Options)
        raise InputError(f"{'.'.join(map(str, keys))}: {message}") from None
    make(wanted.plan, Planning)
    make(wanted.assign, Assignment)


def _start(folder: Path, wish: Any) -> dict[str, Any]:
    """Start a daemon that outlives this command; gives what it says of itself."""
    import subprocess

    import msgspec

    from dovetail.host.live.daemon import Client

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = [sys.executable, "-m", "dovetail.host.live.daemon", str(folder), msgspec.json.encode(wish).decode()]
    null = subprocess.DEVNULL
    with (folder / "daemon.log").open("ab") as log:
        begun = log.tell()
        daemon = subprocess.Popen(words, stdin=null, stdout=log, stderr=log, start_new_session=True, cwd="/")
    limit = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit:
        if daemon.poll() is not None:
            told = (folder / "daemon.log").read_bytes()[begun:].decode(errors="replace").strip().splitlines()
            raise InputError(told[-1].removeprefix("error: ") if told else "the daemon ended at once")
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
            for work in left:
                try:
                    client.ask("ask", work=work, what="cancel")
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
    from dovetail.host.executors.proc import read

    found = read(pid)
    return found is not None and not found.dead


def submit(
    *command: Words,
    cores: int = 1,
    least: int = 1,
    most: int | None = None,
    name: str = "",
    image: str = "",
    network: Flag = False,
    cwd: Path | None = None,
    env: Pairs | None = None,
    priority: int = 0,
    after: Ids = (),
    array: int | None = None,
    limit: float | None = None,
    grace: float = 5.0,
    retries: int = 0,
    memory_mib: int | None = None,
    work: float = 0.0,
    curve: str = "linear",
    rigid: Flag = False,
    state: Path | None = None,
) -> None:
    """Submit a program; prints its number at once.

    It runs in this folder with these environment variables, or in a container if an image is given.

    Example: dovetail host submit --cores 2 --after 4 -- python train.py --epochs 3

    Parameters
    ----------
    command
        The program and its words, after `--`.
    cores
        Cores to ask for.
    least
        Fewest cores that it can run on.
    most
        Most cores that it can use; without it, as the policy has it.
    name
        A name to recognise it by.
    image
        Run it in a container of this image.
    network
        Give the container the engine's network; by default it has none.
    cwd
        Folder to run in; by default this one, or the image's.
    env
        Further variables: --env SEED=1 MODE=fast.
    priority
        0 is the most urgent.
    after
        Numbers of programs, or arrays, that must be completed before.
    array
        Submit so many; DOVETAIL_ARRAY_INDEX tells them apart.
    limit
        Seconds that it may run, pauses not counted.
    grace
        Seconds between asking it to end and ending it.
    retries
        How often to try again if it fails.
    memory_mib
        Memory that it needs; its own also while it is paused.
    work
        Core-seconds that it takes, if that is known.
    curve
        Its speed-up: linear, amdahl:0.9, table:1=100,2=60, fit:1=100,2=60,4=45.
    rigid
        Never change its cores while it runs.
    state
        Folder of the daemon's state.
    """
    import msgspec

    from dovetail.host.live.specs import Spec

    variables = {key: str(value) for key, value in _variables(env).items()}
    spec = Spec(
        command=command,
        cores=cores,
        least=least,
        most=most,
        name=name,
        image=image,
        network=network,
        cwd=str(cwd.absolute()) if cwd else "" if image else os.getcwd(),
        env=variables if image else dict(os.environ) | variables,
        priority=priority,
        after=after,
        limit_s=limit,
        grace_s=grace,
        retries=retries,
        memory_mib=memory_mib,
        work_s=work,
        curve=curve,
        malleable=not rigid,
    )
    with connect(state) as client:
        print("\n".join(client.ask("submit", spec=msgspec.to_builtins(spec), array=array)))


def _variables(given: list[str] | None) -> dict[str, str]:
    """Variables keep their names as they are; no dash becomes an underscore."""
    for item in given or []:
        if "=" not in item[1:]:
            raise InputError(f"--env {item}: expected NAME=VALUE")
    return dict(item.split("=", 1) for item in given or [])


def _ask(state: Path | None, works: tuple[str, ...], what: str, value: float | None = None) -> None:
    with connect(state) as client:
        for work in works:
            client.ask("ask", work=work, what=what, value=value)


def pause(*program: str, state: Path | None = None) -> None:
    """Pause programs; they keep their memory and give up their cores.

    Example: dovetail host pause 3

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    _ask(state, program, "pause")


def resume(*program: str, state: Path | None = None) -> None:
    """Let paused programs go on, when there are cores for them.

    Example: dovetail host resume 3

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    _ask(state, program, "resume")


def cancel(*program: str, state: Path | None = None) -> None:
    """Cancel programs, whether they wait, run or are paused.

    Example: dovetail host cancel 3 4

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    _ask(state, program, "cancel")


def requeue(*program: str, state: Path | None = None) -> None:
    """End programs and put them back into the queue, to begin again.

    Example: dovetail host requeue 3

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    _ask(state, program, "requeue")


def resize(program: str, cores: int, *, state: Path | None = None) -> None:
    """Change how many cores a program asks for.

    Example: dovetail host resize 3 2

    Parameters
    ----------
    program
        Number of a program, or of a whole array.
    cores
        Cores to ask for from now on.
    state
        Folder of the daemon's state.
    """
    _ask(state, (program,), "resize", cores)


def priority(program: str, value: int, *, state: Path | None = None) -> None:
    """Change how urgent a program is.

    Example: dovetail host priority 3 0

    Parameters
    ----------
    program
        Number of a program, or of a whole array.
    value
        0 is the most urgent.
    state
        Folder of the daemon's state.
    """
    _ask(state, (program,), "priority", value)
