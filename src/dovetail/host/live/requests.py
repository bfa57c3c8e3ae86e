"""Let a request file come to a daemon as its lines say, and wait until all has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dovetail.core.errors import DovetailError
from dovetail.host.inputs.requests import Request
from dovetail.host.live.client import Client
from dovetail.host.live.status import CLOSED

_LOOK_EVERY_S = 0.3


def run_requests(
    client: Client,
    requests: Sequence[Request],
    command: Sequence[str] = (),
    speed: float = 1.0,
    done: Callable[[int], None] = lambda ended: None,
    complain: Callable[[str], None] = lambda words: None,
) -> list[dict[str, Any]]:
    """Each line starts a container of its image, or the command, at its time, as wide as the machine at most; an update
    resizes what it names. Gives the programs once all have ended."""
    cores = len(client.ask("about")["cpus"])
    wide = next((request for request in requests if request.threads > cores), None)
    if wide is not None:
        complain(f"{wide.line}: asks for {wide.threads} threads, {cores} are all there are")
    jobs: dict[str, str] = {}
    began = time.monotonic()
    for request in requests:
        time.sleep(max(began + request.at_s / speed - time.monotonic(), 0.0))
        threads = min(request.threads, cores)
        if request.kind == "execution":
            jobs[request.id] = client.ask("submit", spec=_spec(request, command, threads))[0]
            continue
        try:
            client.ask("ask", job=jobs[request.id], what="resize", value=threads)
        except DovetailError as error:  # most often it has ended
            complain(f"{request.line}: {error}")
    return wait_for(client, jobs.values(), done)


def _spec(request: Request, command: Sequence[str], threads: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"cores": threads, "priority": request.priority, "name": request.id}
    spec |= {"work_s": request.work} if request.work is not None else {}
    mark = {"DOVETAIL_REQUEST": request.id}
    if command:
        return spec | {"command": command, "cwd": os.getcwd(), "env": dict(os.environ) | mark}
    return spec | {"image": request.image, "env": mark}


def wait_for(
    client: Client, jobs: Iterable[str], done: Callable[[int], None] = lambda ended: None
) -> list[dict[str, Any]]:
    """Wait until these programs have ended; gives their rows."""
    wanted = set(jobs)
    while True:
        ended = [row for row in client.ask("list") if row["id"] in wanted and row["state"] in CLOSED]
        done(len(ended))
        if len(ended) == len(wanted):
            return ended
        time.sleep(_LOOK_EVERY_S)
