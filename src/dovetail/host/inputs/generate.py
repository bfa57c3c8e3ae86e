"""Create mode: a random workload by the parameters, as request lines."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

from dovetail.core.errors import InputError
from dovetail.core.files.document import Source, as_path
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.host.inputs.parameters import PARAMETERS, Parameters, read_parameters, requests_path

PRIORITIES = 5


def draw(parameters: Parameters, seed: int, containers: int | None = None) -> list[dict[str, Any]]:
    """Random requests; the same seed gives the same."""
    rng = Random(seed)
    rows = []
    for i in range(parameters.number_containers if containers is None else containers):
        delay_s = parameters.time_gap[0]
        if parameters.time_distribution == "normal":
            delay_s = round(max(rng.normalvariate(*parameters.time_gap), 0.0), 3)
        threads = parameters.resources_per_container[0]
        if parameters.resources_distribution == "random":
            threads = rng.randrange(*parameters.resources_per_container)  # the last is excluded, as it always was
        row: dict[str, Any] = {"type": "execution", "id": i, "image": parameters.tf_dockerimage, "threads": threads}
        rows.append(row | {"delay": delay_s, "priority": rng.randrange(PRIORITIES)})
    return rows


def request_lines(parameters: Parameters, seed: int, containers: int | None = None) -> str:
    """The same as the lines of a request file.

    >>> print(request_lines(Parameters(number_containers=2, time_gap=(15.0,), resources_per_container=(8,)), 0), end="")
    execution,0,tf_scheduler,8,15,3
    execution,1,tf_scheduler,8,15,3
    """
    rows = draw(parameters, seed, containers)
    return "".join("{type},{id},{image},{threads},{delay:g},{priority}\n".format_map(row) for row in rows)


def keep_or_write(path: Path, text: str) -> None:
    """Write a file, or keep it if it is the same; never over another."""
    if path.exists() and path.is_file():
        if path.read_text() != text:
            raise InputError(
                f"{path}: exists and holds something else; name another file, or another folder with --out"
            )
        return
    atomic_write(path, text)


def find_requests(requests: Source | None, parameters: Source | None, seed: int) -> tuple[Parameters, Source]:
    """The parameters, and the requests, which in create mode are made now; by default those of this folder."""
    if parameters is None and requests is None and PARAMETERS.is_file():
        parameters = PARAMETERS
    found = Parameters() if parameters is None else read_parameters(parameters)
    named = as_path(parameters, "parameters") if isinstance(parameters, str | os.PathLike) else None
    there = Path(requests).exists() if isinstance(requests, str | os.PathLike) else requests is not None
    if found.get_requests == "create" and parameters is not None and not there:
        if named is None and requests is None:
            return found, draw(found, seed)
        beside = Path() if named is None else named.parent
        lines = Path(str(requests or beside / (found.requests_file or "requests_file.txt")))
        refuse_overwrite([lines], [named])
        keep_or_write(lines, request_lines(found, seed))
        return found, lines
    if requests is None:
        if named is None:
            raise InputError("no parameters.json in this folder: name the requests with --requests")
        requests = requests_path(found, named)
    return found, requests
