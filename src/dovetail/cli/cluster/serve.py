"""`dovetail cluster serve`: training jobs on real machines, until it is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dovetail.cli.common import Pairs, pairs, value
from dovetail.cli.complete import policies_of
from dovetail.core.errors import DovetailError, InputError

if TYPE_CHECKING:
    from dovetail.cluster import ServedCluster

_LOOK_EVERY_S = 0.1


def serve(
    config: Path | None = None,
    /,
    *,
    types: str | None = None,
    policy: Annotated[str | None, policies_of("cluster")] = None,
    option: Pairs | None = None,
    round_s: Annotated[float | None, Parameter(name=["--round-s", "--round"])] = None,
    address: str | None = None,
    entities: Pairs | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    state: Path | None = None,
    token_file: Path | None = None,
    live: Pairs | None = None,
) -> int:
    """Run training jobs on real accelerators, in rounds; jobs are submitted over HTTP.

    Prints the URL and where the token is. The first SIGTERM or Ctrl-C takes no more jobs and lets open ones end; at the
    second those that run save and stop, and all that is open goes on at the next start. Exit code 3 if something is
    left open. A service that is killed leaves its jobs running, and finds them again at the next start.

    Example: dovetail cluster serve --policy max_min_fairness_perf --round 60
    Example: dovetail cluster serve --types v100=2,k80=2 --round 10 --state emulated
    Example: dovetail cluster serve --address 10.0.0.1:6379 --state /shared/dovetail

    Parameters
    ----------
    config
        A file with `cluster`, `policy`, `options`, `round_s`, `entities` and `live`, over which flags go.
    types
        Accelerators to emulate on this machine, as TYPE=COUNT,...; without them its GPUs are used.
    policy
        Who decides; by default what decided before, or max_min_fairness_perf.
    option
        Options of the policy: --option NAME=VALUE.
    round_s
        Seconds of a round.
    address
        Of a Ray cluster, whose nodes have the accelerators.
    entities
        Weights of those who submit jobs: --entities research=2 product=1.
    host
        Address to listen at; by default only this machine can ask.
    port
        Port to listen at; 0 takes a free one.
    state
        Folder of what must survive, which all nodes share; by default $DOVETAIL_CLUSTER_STATE or
        ~/.local/state/dovetail/cluster.
    token_file
        File of the token that clients need, made for its user alone if it is not there; by default in the folder.
    live
        Settings over those of the configuration's `live`: --live grace=0.2 failures=3.
    """
    from dovetail.cluster import serve as started

    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    served = started(
        config,
        types=types,
        policy=policy,
        options={name: value(text) for name, text in pairs("--option", option).items()} or None,
        round_s=round_s,
        address=address,
        entities=_weights(entities),
        host=host,
        port=port,
        state=state,
        token_file=token_file,
        live={name: value(text) for name, text in pairs("--live", live).items()},
    )
    leave = False
    try:
        about = served.service.about()
        print(
            f"Serving {_accelerators(served)} under {about['policy']}, rounds of {about['round_s']:g} s: {served.url}"
        )
        print(f"The token is in {served.token_file}", flush=True)
        leave = _until_told(served, asked)
    finally:
        served.close(leave=leave)
    left = sum(served.service.about()["jobs"].get(state, 0) for state in ("waiting", "running"))
    if left:
        print(f"Left open: {_count(left, 'job')}, to go on at the next start", file=sys.stderr)
    return 3 if left else 0


def _weights(given: list[str] | None) -> dict[str, float] | None:
    found = {}
    for name, text in pairs("--entities", given, verbatim=True).items():
        try:
            found[name] = float(text)
        except ValueError:
            raise InputError(f"--entities {name}={text}: expected a number, as {name}=1") from None
    return found or None


def _accelerators(served: ServedCluster) -> str:
    counts: dict[str, int] = {}
    for node in served.service.nodes():
        for name, count in node.types.items() if node.here else ():
            counts[name] = counts.get(name, 0) + count
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "no accelerator yet"


def _until_told(served: ServedCluster, asked: list[int]) -> bool:
    """Wait for a signal, then for the end of what is open, or another signal. Gives whether agents are to leave."""
    pause = threading.Event()
    while not asked:
        pause.wait(_LOOK_EVERY_S)
        if served.service.failed:
            raise DovetailError(served.service.trouble)
    print("No more jobs are taken, and open ones go on; once more: they save and stop", file=sys.stderr, flush=True)
    draining = threading.Thread(target=served.service.finish, daemon=True)
    draining.start()
    while draining.is_alive() and len(asked) < 2:
        draining.join(_LOOK_EVERY_S)
    return True


def _count(number: int, what: str) -> str:
    """A number of things.

    >>> _count(1, "job"), _count(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
