"""Jobs as they arrive: who takes part, who can never run here, and who has nothing to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.rounding import records
from dovetail.core.events import Rows


class Admitted(NamedTuple):
    """The columns of jobs that take part, and the records of the others."""

    columns: dict[str, Any]
    records: list[Rows]


def admit(arrived: Rows, runs: NDArray[np.bool_] | None, now_s: float) -> Admitted:
    """Take in jobs. Those of a kind that no type can run are rejected, where that is known for good; those without a
    step to do are complete."""
    columns, found = arrived.columns, [arrived]
    lost = []
    if runs is not None:
        lost = [job for job, kind in zip(columns["id"], columns["kind"], strict=True) if not runs[kind]]
    if lost:
        found.append(records.rejected(lost, "no type has enough accelerators that it runs on"))
    closed = set(lost)
    idle = [job for job, steps in zip(columns["id"], columns["steps"], strict=True) if steps <= 0 and job not in closed]
    if idle:
        found.append(records.completed(idle, [now_s] * len(idle), decided=True))
    closed.update(idle)
    if closed:
        stay = [i for i, job in enumerate(columns["id"]) if job not in closed]
        columns = {name: [column[i] for i in stay] for name, column in columns.items()}
    return Admitted(columns, found)
