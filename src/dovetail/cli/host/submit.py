"""`dovetail host submit` and `submit-jobs`: programs for a live host, and waiting for them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Pairs
from dovetail.cli.complete import HOST_PROGRAMS
from dovetail.cli.verbs import check_command
from dovetail.core.errors import InputError
from dovetail.core.files.output import printable
from dovetail.host import connect

if TYPE_CHECKING:
    from dovetail.host import LiveProgram

Ids = Annotated[tuple[str, ...], HOST_PROGRAMS, Parameter(consume_multiple=True, negative=())]
_MOST_NAMES = 5  # in a command that is shown


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
    after: Annotated[Ids, Parameter(name=("--after", "--after-ok"))] = (),
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
    after_any: Ids = (),
    begin: str | None = None,
    delay: str | None = None,
    group: str = "",
    parallel: int | None = None,
    key: str = "",
    hook: str = "",
    stdin: Path | None = None,
    split_stderr: Flag = False,
    log_mib: int | None = None,
    wait: Flag = False,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    state: Path | None = None,
) -> int:
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
        Most cores that it can use: strict lends it idle ones up to that. Without it, as the policy has it.
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
        Numbers of programs, or arrays, that must be completed before: --after 4 7 -- COMMAND.
    array
        Submit so many; DOVETAIL_ARRAY_INDEX tells them apart.
    limit
        Seconds that it may run, pauses not counted.
    grace
        Seconds between asking it to end and ending it.
    retries
        How often to try again if it fails; not if it reaches its limit.
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
    after_any
        Numbers of programs, or arrays, that must have ended before, in whatever way.
    begin
        Start it at this time at the earliest: 22:00, or 2026-12-01 08:00.
    delay
        Start it after so many seconds at the earliest; also 30m, 1h30m, 2d.
    group
        The group that it belongs to.
    parallel
        How many of its group may run at once from now on.
    key
        Submitted again with the same key it is the same program; its number is printed, and nothing else is done.
    hook
        A shell command to run when it has ended; DOVETAIL_STATE, DOVETAIL_EXIT_CODE and others tell it how.
    stdin
        A file to read as standard input; by default there is none.
    split_stderr
        Keep what it writes to standard error apart: `logs --stderr` shows it.
    log_mib
        Begin its log anew when it has grown so large; what was there before is kept as the log's `.1`, once. 0: never.
    wait
        Wait until it has ended, and end with its exit code.
    follow
        Print what it writes as it does, and end with its exit code; its number goes to standard error.
    state
        Folder of the daemon's state.
    """
    words = command_words(locals(), "wait", "follow")
    check_command(command)
    if follow and array is not None:
        raise InputError("--follow: expected one program, found an array; --wait waits for all of one")
    with connect(state) as client:
        numbers = client.submit(*command, **words)
        print("\n".join(numbers), file=sys.stderr if follow else sys.stdout, flush=True)
        with _saying_that_they_run_on(numbers, [numbers[0].partition(".")[0]], state):
            if follow:
                for piece in client.logs(numbers[0], follow=True):
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
            return exit_status(client.wait(*numbers)) if wait or follow else 0


def submit_jobs(
    file: Path, *, key: str = "", dry_run: Flag = False, wait: Flag = False, state: Path | None = None
) -> int:
    """Submit all programs of a job file, with every combination of its matrices; prints number and name of each.

    All of them are submitted, or none. `dovetail host simulate --requests FILE` tells what would become of them.

    Example: dovetail host submit-jobs sweep.yaml

    Parameters
    ----------
    file
        A job file: YAML, TOML or JSON.
    key
        Submitted again with the same key it is the same jobs; their numbers are printed, and nothing else is done.
    dry_run
        Only print the names and commands.
    wait
        Wait until all have ended, and end with the exit code of the first that was not completed.
    state
        Folder of the daemon's state.
    """
    if dry_run:
        from dovetail.host import read_jobs

        for name, job in read_jobs(file).items():
            print(printable(f"{name}: {shlex.join(job.command)}"))
        return 0
    with connect(state) as client:
        numbers = client.submit_jobs(file, key)
        for name, number in numbers.items():
            print(printable(f"{number} {name}"), flush=True)
        all_of = list(numbers.values())
        with _saying_that_they_run_on(all_of, all_of, state):
            return exit_status(client.wait(*all_of)) if wait else 0


@contextmanager
def _saying_that_they_run_on(numbers: Sequence[str], names: Sequence[str], state: Path | None) -> Iterator[None]:
    """Ctrl-C ends the waiting alone, which is not what everybody expects."""
    try:
        yield
    except KeyboardInterrupt:
        who = f"program {numbers[0]} goes on" if len(numbers) == 1 else f"{len(numbers)} programs go on"
        words = shlex.join([*names, *(("--state", str(state)) if state else ())])
        how = (
            f"`dovetail host wait {words}` waits again, `dovetail host cancel {words}` ends "
            f"{'it' if len(numbers) == 1 else 'them'}"
        )
        if len(names) > _MOST_NAMES:  # a part of them would be another command
            how = "`dovetail host wait` and `dovetail host cancel` take their numbers"
        print(f"\n{who}: {how}", file=sys.stderr)
        raise


def exit_status(ended: Sequence[LiveProgram]) -> int:
    """The exit code for several programs: that of the first that was not completed, of which it is told."""
    first = next((row for row in ended if row.state != "completed"), None)
    if first is None:
        return 0
    print(printable(f"{first.id} {first.name}: {first.state}: {first.exit or first.why}"), file=sys.stderr)
    return first.exit_status


def command_words(flags: dict[str, Any], *ours: str) -> dict[str, Any]:
    """What a command was given, but for its program and what the command line alone knows: keywords of the client's
    function of the same name, which a test holds."""
    words = {name: value for name, value in flags.items() if name not in ("command", "state", *ours)}
    return words | {"env": _variables(words["env"])}


def _variables(given: list[str] | None) -> dict[str, str]:
    """Variables keep their names as they are; no dash becomes an underscore."""
    for item in given or []:
        if "=" not in item[1:]:
            raise InputError(f"--env {item}: expected NAME=VALUE")
    return dict(item.split("=", 1) for item in given or [])
