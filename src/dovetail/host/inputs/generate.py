"""Create mode: a random workload by the parameters, as request lines."""

from __future__ import annotations

from pathlib import Path
from random import Random

from dovetail.core.errors import InputError
from dovetail.core.output import atomic_write, refuse_overwrite
from dovetail.host.inputs.parameters import PARAMETERS, Parameters, read_parameters, requests_path

PRIORITIES = 5


def request_lines(parameters: Parameters, seed: int, containers: int | None = None) -> str:
    """The lines of a request file; the same seed gives the same lines.

    >>> print(request_lines(Parameters(number_containers=2, time_gap=(15.0,), resources_per_container=(8,)), 0), end="")
    execution,0,tf_scheduler,8,15,3
    execution,1,tf_scheduler,8,15,3
    """
    rng = Random(seed)
    lines = []
    for i in range(parameters.number_containers if containers is None else containers):
        delay_s = parameters.time_gap[0]
        if parameters.time_distribution == "normal":
            delay_s = round(max(rng.normalvariate(*parameters.time_gap), 0.0), 3)
        threads = parameters.resources_per_container[0]
        if parameters.resources_distribution == "random":
            threads = rng.randrange(*parameters.resources_per_container)  # the last is excluded, as it always was
        priority = rng.randrange(PRIORITIES)
        lines.append(f"execution,{i},{parameters.tf_dockerimage},{threads},{delay_s:g},{priority}\n")
    return "".join(lines)


def keep_or_write(path: Path, text: str) -> None:
    """Write a file, or keep it if it is the same; never over another."""
    if path.exists() and path.is_file():
        if path.read_text() != text:
            raise InputError(
                f"{path}: exists and holds something else; name another file, or another folder with --out"
            )
        return
    atomic_write(path, text)


def find_requests(requests: Path | None, parameters: Path | None, seed: int) -> tuple[Parameters, Path]:
    """The parameters, and the request file, which in create mode is made now; by default those of this folder."""
    if parameters is None and requests is None and PARAMETERS.is_file():
        parameters = PARAMETERS
    found = Parameters() if parameters is None else read_parameters(parameters)
    if found.get_requests == "create" and parameters is not None and not (requests and requests.exists()):
        lines = requests or parameters.parent / (found.requests_file or "requests_file.txt")
        refuse_overwrite([lines], [parameters])
        keep_or_write(lines, request_lines(found, seed))
        return found, lines
    if requests is None:
        if parameters is None:
            raise InputError("no parameters.json in this folder: name the requests with --requests")
        requests = requests_path(found, parameters)
    return found, requests
