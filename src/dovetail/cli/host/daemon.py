"""`dovetail host up` and `down`: the daemon of a live host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from dovetail.cli.common import Flag, Pairs, pairs
from dovetail.cli.complete import host_rules


def up(
    *,
    plan: Annotated[str | None, host_rules("planning")] = None,
    assign: Annotated[str | None, host_rules("assignment")] = None,
    preemptive: Flag = False,
    quantum: float | None = None,
    age_step: float | None = None,
    overtaking: Literal["none", "first-fit", "backfill"] | None = None,
    memory_mib: int | None = None,
    option: Pairs | None = None,
    cpus: str | None = None,
    control_groups: bool | None = None,
    docker: str | None = None,
    gpus: str | None = None,
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
    gpus
        Numbers of the GPUs to use, as 0,1, or none; by default all that the driver shows.
    foreground
        Stay, and show what goes wrong; for service managers.
    state
        Folder of the daemon's state; by default $DOVETAIL_HOST_STATE or ~/.local/state/dovetail/host.
    """
    from dovetail import host

    given: dict[str, Any] = {
        "plan": plan,
        "assign": assign,
        "preemptive": preemptive,
        "quantum": quantum,
        "age_step": age_step,
        "overtaking": overtaking,
        "memory_mib": memory_mib,
        "option": {name: _value(text) for name, text in pairs("--option", option).items()},
        "cpus": cpus,
        "control_groups": control_groups,
        "docker": docker,
        "gpus": gpus,
    }
    if foreground:
        words = host.daemon_command(state, **given)
        os.execv(words[0], words)
    with host.up(state, **given) as client:
        about = client.about()
    print(f"The daemon runs as process {about.pid} on processors {list(about.cpus)}; its state is in {about.folder}")


def install(*, remove: Flag = False, print_unit: Flag = False, state: Path | None = None) -> None:
    """Let systemd start the daemon at every login of this user, and again if it fails; programs outlive it.

    It goes on with the settings that it had, or begins with those of `up` in the user's own defaults. To have it from
    the start of the machine on, without a login: loginctl enable-linger.

    Example: dovetail host install --print-unit

    Parameters
    ----------
    remove
        Stop it, and remove the unit; its programs run on.
    print_unit
        Only print the unit.
    state
        Folder of the daemon's state.
    """
    from dovetail import host

    if print_unit:
        print(host.unit_text(state), end="")
    else:
        print("\n".join(host.uninstall() if remove else host.install(state)))


def _value(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def down(*, cancel: Flag = False, within: float = 60.0, state: Path | None = None) -> None:
    """Stop the daemon. Its programs run on, and the next daemon finds them; paused ones stay paused.

    Example: dovetail host down --cancel

    Parameters
    ----------
    cancel
        Cancel all programs first, and wait until they have ended.
    within
        Seconds to wait for them; if one has not ended then, the daemon goes on, and that is said.
    state
        Folder of the daemon's state.
    """
    from dovetail.host import connect

    with connect(state) as client:
        if cancel and (open_ := client.list()):
            few = ", ".join(program.id for program in open_[:5])
            print(f"waits for {few}{' and others' if open_[5:] else ''} to end", file=sys.stderr)
        left = client.down(cancel, within)
    print(f"The daemon is down; {len(left)} programs are left as they are" if left else "The daemon is down")
