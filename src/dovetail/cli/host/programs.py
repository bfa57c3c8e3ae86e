"""`dovetail host submit`, `pause`, ...: the commands that change what a live host does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Pairs
from dovetail.core.errors import InputError
from dovetail.host import connect

Ids = Annotated[tuple[str, ...], Parameter(negative=())]


def submit(
    *command: str,
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
    gpus: int = 0,
    gpu_mem: str | None = None,
    gpu_type: str = "",
    gpu_pause: Literal["hold", "release"] = "hold",
    cpu_quota: float | None = None,
    io_weight: int | None = None,
    nice: int | None = None,
    state: Path | None = None,
) -> None:
    """Submit a program; prints its number at once.

    It runs in this folder with these environment variables, or in a container if an image is given.

    Example: dovetail host submit --cores 2 --after 4 -- python train.py --epochs 3

    Parameters
    ----------
    command
        The program and its words; after `--`, so that its options are not taken for ours.
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
    gpus
        GPUs to ask for; CUDA_VISIBLE_DEVICES names those that it gets.
    gpu_mem
        Memory that it needs on each, as 20g; others may share the rest. Without it the GPUs are its own.
    gpu_type
        What they are called, as a100.
    gpu_pause
        Whether it holds its GPUs while it is paused, or releases them for others.
    cpu_quota
        Cores' worth of time that it may use, as 1.5.
    io_weight
        Its weight among those who use a disk, 1 to 10000; 100 is everybody's.
    nice
        Its nice value, -20 to 19.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        numbers = client.submit(
            *command,
            cores=cores,
            least=least,
            most=most,
            name=name,
            image=image,
            network=network,
            cwd=cwd,
            env=_variables(env),
            priority=priority,
            after=after,
            array=array,
            limit=limit,
            grace=grace,
            retries=retries,
            memory_mib=memory_mib,
            work=work,
            curve=curve,
            rigid=rigid,
            gpus=gpus,
            gpu_mem=gpu_mem,
            gpu_type=gpu_type,
            gpu_pause=gpu_pause,
            cpu_quota=cpu_quota,
            io_weight=io_weight,
            nice=nice,
        )
    print("\n".join(numbers))


def _variables(given: list[str] | None) -> dict[str, str]:
    """Variables keep their names as they are; no dash becomes an underscore."""
    for item in given or []:
        if "=" not in item[1:]:
            raise InputError(f"--env {item}: expected NAME=VALUE")
    return dict(item.split("=", 1) for item in given or [])


def _verb(what: str, summary: str) -> Callable[..., None]:
    """A command that asks something of programs, without a number."""

    def verb(*program: str, state: Path | None = None) -> None:
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
requeue = _verb("requeue", "End programs and put them back into the queue, to begin again.")


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
    with connect(state) as client:
        client.resize(program, cores)


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
    with connect(state) as client:
        client.priority(program, value)
