"""A request file let loose on a daemon: each request at its time."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files.document import Source
from dovetail.host.inputs.requests import Delays, read_requests


def submit_requests(
    submit: Callable[..., list[str]],
    resize: Callable[[str, int], None],
    cores: int,
    requests: Source,
    command: str | Sequence[str],
    delays: Delays,
    speed: float,
    complain: Callable[[str], None],
) -> list[str]:
    """Submit what requests start, and resize what they update, on so many cores, as `Client.run` says; gives the
    numbers."""
    if not isinstance(speed, int | float) or not 0 < speed < float("inf"):
        raise InputError(f"speed {speed}: expected a positive number")
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise InputError(f"command {command}: {error}") from None
    told = read_requests(requests, delays)
    wide = next((request for request in told if request.threads > cores), None)
    if wide is not None:
        complain(f"{wide.line}: asks for {wide.threads} threads, {cores} are all there are")
    jobs: dict[str, str] = {}
    began = time.monotonic()
    for request in told:
        time.sleep(max(began + request.at_s / speed - time.monotonic(), 0.0))
        threads = min(request.threads, cores)
        if request.kind == "execution":
            jobs[request.id] = submit(
                *words,
                cores=threads,
                name=request.id,
                image="" if words else request.image,
                env={"DOVETAIL_REQUEST": request.id},
                priority=request.priority,
                work=request.work or 0.0,
                gpus=request.gpus,
                gpu_mem=request.gpu_mem_mib,
                gpu_type=request.gpu_type,
            )[0]
            continue
        try:
            resize(jobs[request.id], threads)
        except DovetailError as error:  # most often it has ended
            complain(f"{request.line}: {error}")
    return list(jobs.values())
