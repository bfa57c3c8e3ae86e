"""What the level is given: requests, parameters and curves, read into one validated problem."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, ClassVar, get_args

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Asked
from dovetail.core.files.document import Source, checked
from dovetail.core.files.plain import scalar
from dovetail.core.tasks import TaskGraph
from dovetail.host.curves import curve, curves_by_image
from dovetail.host.inputs.generate import find_requests
from dovetail.host.inputs.jobs import ProgramJob, is_job_file, read_jobs
from dovetail.host.inputs.parameters import Parameters
from dovetail.host.inputs.requests import Delays, Request, read_requests
from dovetail.host.options import Count
from dovetail.host.program import Ask, program_graph

DEFAULT_WORK = 1000.0  # core-seconds


class Workload(Struct, frozen=True, repr_omit_defaults=True):
    """What arrives on so many cores, and what is asked for later, in order of time; and the graphs of it. `parameters`
    and `files` are what it was read from; of the jobs in `assumed` nothing was said of their work."""

    cores: int
    arrivals: tuple[tuple[float, Arrived | Asked], ...]
    graphs: dict[str, TaskGraph]
    parameters: Parameters = Parameters()
    files: tuple[Path, ...] = ()
    assumed: tuple[str, ...] = ()
    assumed_work: ClassVar[float] = DEFAULT_WORK

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        cores: int,
        work: float | None = None,
        curves: Mapping[str, str] | None = None,
        malleable: bool = True,
    ) -> Workload:
        """`work` is for programs of which the file says nothing, in core-seconds; `curves` is by image, "" for all."""
        cores, work = checked(cores, Count, "cores"), _core_seconds(work)
        arrivals: list[tuple[float, Arrived | Asked]] = []
        known = curves or {}
        for request in requests:
            if request.kind == "update":
                arrivals.append((request.at_s, Asked(request.id, "resize", request.threads)))
                continue
            text = known.get(request.image, known.get("", "linear"))
            size = next(w for w in (request.work, work, curve(text).base_s, DEFAULT_WORK) if w is not None)
            ask = Ask(
                request.threads,
                priority=request.priority,
                curve=text,
                malleable=malleable,
                gpus=request.gpus,
                gpu_mem_mib=request.gpu_mem_mib,
                gpu_type=request.gpu_type,
            )
            facts = msgspec.to_builtins(ask)
            arrivals.append((request.at_s, Arrived(request.id, request.image or "program", (size,), facts=facts)))
        images = {event.of for _, event in arrivals if isinstance(event, Arrived)}
        return cls(cores, tuple(arrivals), {image: program_graph(image, cores) for image in sorted(images)})

    @classmethod
    def of_jobs(cls, jobs: Iterable[ProgramJob], cores: int, work: float | None = None) -> Workload:
        """All of them come at once; `work` is for those that say nothing."""
        cores, work = checked(cores, Count, "cores"), _core_seconds(work)
        arrivals: list[tuple[float, Arrived | Asked]] = []
        assumed = []
        for job in jobs:
            said = (job.work or None, work, curve(job.curve).base_s)
            size = next((w for w in said if w is not None), DEFAULT_WORK)
            assumed += [job.name] * (said == (None, None, None))
            facts = msgspec.to_builtins(job.ask())
            arrivals.append((0.0, Arrived(job.name, job.image or "program", (size,), facts=facts)))
        images = {event.of for _, event in arrivals if isinstance(event, Arrived)}
        return cls(
            cores,
            tuple(arrivals),
            {image: program_graph(image, cores) for image in sorted(images)},
            assumed=tuple(assumed),
        )

    def __repr__(self) -> str:
        programs = sum(isinstance(event, Arrived) for _, event in self.arrivals)
        return f"<Workload of {programs} programs on {self.cores} cores>"


def _core_seconds(work: float | None) -> float | None:
    if work is not None and (not isinstance(work, int | float) or not 0 < work < inf):
        raise InputError(f"work: expected core-seconds, found {work!r}")
    return work


def load(
    requests: Source | None = None,
    *,
    parameters: Source | None = None,
    cores: int = 16,
    work: float | None = None,
    curves: str | Mapping[str, str] | Iterable[str] | None = None,
    delays: Delays = "before",
    seed: int = 0,
) -> Workload:
    """Programs that come to a machine of so many cores.

    >>> load([{"threads": 8, "work": 900}, {"threads": 4, "delay": 30}], cores=8, curves="amdahl:0.9")
    <Workload of 2 programs on 8 cores>

    Parameters
    ----------
    requests
        A request file; or dicts, structs or a frame of pandas or polars with a row for each request: `threads`, and if
        they matter `id`, `image`, `at_s` (or `delay` since the one before), `priority`, `work`, `gpus`, `gpu_mem`,
        `gpu_type`, and `type` "update" for new threads of one that is there. By default the file that the parameters
        name. Or a job file (.yaml, .toml or .json), or a dict in its form: its groups, delays and dependencies are kept
        as a live host keeps them.
    parameters
        parameters.json, or a dict in its place; without requests by default the one in this folder. With get_requests
        "create" the requests are generated and, if the parameters are a file, written.
    cores
        The cores of the machine.
    work
        Core-seconds of every program of which the requests say nothing; by default 1000, or what the curve says.
    curves
        The speed-up: linear, amdahl:FRACTION, table:CORES=SECONDS,... or fit:CORES=SECONDS,..., for all or, as a dict,
        by image.
    delays
        Whether a delay passes before its line or after it.
    seed
        Of generated requests.
    """
    if delays not in get_args(Delays):
        raise InputError(f"delays: expected before or after, found {delays!r}")
    cores, work = scalar(cores), scalar(work)
    if requests is not None and is_job_file(requests):
        if parameters is not None or curves is not None:
            raise InputError("parameters, curves: expected none beside a job file, which says all that itself")
        job_file = (Path(requests),) if isinstance(requests, str | os.PathLike) else ()
        return msgspec.structs.replace(Workload.of_jobs(read_jobs(requests).values(), cores, work), files=job_file)
    found, lines = find_requests(requests, parameters, checked(seed, int, "seed"))
    made = Workload.of(read_requests(lines, delays), cores, work, curves_by_image(curves), found.malleable)
    given: tuple[Any, ...] = (lines, parameters)
    files = tuple(Path(each) for each in given if isinstance(each, str | os.PathLike))
    return msgspec.structs.replace(made, parameters=found, files=files)
