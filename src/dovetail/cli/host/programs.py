"""`dovetail host pause`, `edit`, ...: the commands that change what a live host does with its programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from dovetail.cli.common import Flag, Pairs
from dovetail.cli.complete import HOST_PROGRAMS
from dovetail.cli.host.submit import command_words
from dovetail.cli.verbs import check_command
from dovetail.host import connect


def _verb(what: str, summary: str) -> Callable[..., None]:
    """A command that asks something of programs, without a number."""

    def verb(*program: Annotated[str, HOST_PROGRAMS], state: Path | None = None) -> None:
        with connect(state) as client:
            getattr(client, what)(*program)

    verb.__name__ = what
    verb.__doc__ = f"""{summary}

    Example: dovetail host {what} 3 4

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    return verb


pause = _verb("pause", "Pause programs; they keep their memory and give up their cores.")
resume = _verb("resume", "Let paused programs go on, when there are cores for them.")
cancel = _verb("cancel", "Cancel programs, whether they wait, run or are paused.")


def requeue(*program: Annotated[str, HOST_PROGRAMS], state: Path | None = None) -> None:
    """Put programs back into the queue, to begin again; prints their numbers.

    What runs is ended first, and keeps its number. What has ended comes once more, under a new one.

    Example: dovetail host requeue 3 4

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        print("\n".join(client.requeue(*program)))


def retry(*program: Annotated[str, HOST_PROGRAMS], state: Path | None = None) -> None:
    """Let programs that failed or were cancelled come once more; prints the old and the new number of each.

    Who waited for one of them, and failed with it, waits for what takes its place.

    Example: dovetail host retry

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays; by default all that failed and were not tried again yet.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        for old, new in client.retry(*program).items():
            print(f"{old} -> {new}")


def clean(*program: Annotated[str, HOST_PROGRAMS], completed: Flag = False, state: Path | None = None) -> None:
    """Forget programs that have ended, and remove their logs; prints how many. The journal keeps what happened.

    Example: dovetail host clean --completed

    Parameters
    ----------
    program
        Numbers of programs, or of whole arrays; by default all that have ended.
    completed
        Only those that were completed.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        gone = client.clean(*program, completed=completed)
    print(f"Forgotten: {len(gone)}")


def group(name: str, *, parallel: int | None = None, state: Path | None = None) -> None:
    """Change how many programs of a group may run at once; without a number all of them may. Who runs goes on.

    Example: dovetail host group sweep --parallel 4

    Parameters
    ----------
    name
        The group.
    parallel
        How many of it may run at once from now on.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        client.group(name, parallel)


def edit(
    program: Annotated[str, HOST_PROGRAMS],
    *command: str,
    cores: int | None = None,
    least: int | None = None,
    most: int | None = None,
    name: str | None = None,
    cwd: Path | None = None,
    env: Pairs | None = None,
    priority: int | None = None,
    limit: float | None = None,
    grace: float | None = None,
    retries: int | None = None,
    memory_mib: int | None = None,
    begin: str | None = None,
    delay: str | None = None,
    group: str | None = None,
    parallel: int | None = None,
    hook: str | None = None,
    log_mib: int | None = None,
    state: Path | None = None,
) -> None:
    """Change a program that waits; what is not given stays as it is, and so does its place in the queue.

    Example: dovetail host edit 3 --cores 2 --limit 3600 -- python train.py --epochs 5

    Parameters
    ----------
    program
        Number of a program, or of an array: all of it that wait are changed.
    command
        Another command; after `--`.
    cores
        Cores to ask for.
    least
        Fewest cores that it can run on.
    most
        Most cores that it can use.
    name
        A name to recognise it by.
    cwd
        Folder to run in.
    env
        Further variables: --env SEED=1 MODE=fast.
    priority
        0 is the most urgent.
    limit
        Seconds that it may run, pauses not counted.
    grace
        Seconds between asking it to end and ending it.
    retries
        How often to try again if it fails; not if it reaches its limit.
    memory_mib
        Memory that it needs.
    begin
        Start it at this time at the earliest: 22:00, or 2026-12-01 08:00.
    delay
        Start it after so many seconds at the earliest; also 30m, 1h30m, 2d. 0: at once.
    group
        The group that it belongs to.
    parallel
        How many of its group may run at once from now on.
    hook
        A shell command to run when it has ended.
    log_mib
        Begin its log anew when it has grown so large; 0: never.
    state
        Folder of the daemon's state.
    """
    words = command_words(locals(), "program")
    check_command(command)
    with connect(state) as client:
        client.edit(program, *command, **words)


def resize(program: Annotated[str, HOST_PROGRAMS], cores: int, *, state: Path | None = None) -> None:
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
    with connect(state) as client:
        client.resize(program, cores)


def priority(program: Annotated[str, HOST_PROGRAMS], value: int, *, state: Path | None = None) -> None:
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
    with connect(state) as client:
        client.priority(program, value)
