"""Jobs as they arrive: who takes part, who can never run here, and who has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster import records
from dovetail.cluster.inputs.setup import JobKinds
from dovetail.cluster.inputs.workload import Job
from dovetail.core.events import Rows


class Admitted(NamedTuple):
    """Jobs that take part and their kinds, ids of those that do not, and the records of it all."""

    jobs: list[Job]
    kinds: list[int]
    closed: list[int]
    events: list[Rows]


def admit(arrived: Sequence[Job], kinds: JobKinds, runs: NDArray[np.bool_], now_s: float) -> Admitted:
    """Take in jobs. Those of a kind that no type can run are rejected; those without a step to do are complete."""
    of = [kinds.kind(job) for job in arrived]
    events = [records.arrived(arrived, of)]
    lost = [job.id for job, kind in zip(arrived, of, strict=True) if not runs[kind]]
    if lost:
        events.append(records.rejected(lost, "no type has enough accelerators that it runs on"))
    idle = [job.id for job in arrived if job.steps <= 0 and job.id not in set(lost)]
    if idle:
        events.append(records.completed(idle, [now_s] * len(idle)))
    closed = {*lost, *idle}
    left = [(job, kind) for job, kind in zip(arrived, of, strict=True) if job.id not in closed]
    return Admitted([job for job, _ in left], [kind for _, kind in left], sorted(closed), events)
