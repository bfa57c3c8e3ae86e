"""Plans for a fixed order of devices: the exact cuts by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dovetail.pipeline.optimise.tables import Floats, Tables

Stages = list[tuple[int, int, int]]


def best_in_order(
    tables: Tables,
    order: Sequence[int],
    combine: Literal["max", "sum"] = "max",
    *,
    strict_order: bool = False,
    strict_first: bool = False,
    strict_last: bool = False,
    enter: Sequence[float] | None = None,
    leave: Sequence[float] | None = None,
) -> tuple[float, Stages] | None:
    """The best cuts for devices (by class) that follow each other in this order; some may be left out.

    With `strict_order` none between two that are used; with `strict_first` and `strict_last` not the ends of the order.
    `enter` and `leave` are what it costs to bring the input to a device and the output from it.
    """
    join = np.add if combine == "sum" else np.maximum
    cuts = tables.layers + 1
    ends: list[Floats] = []
    parents: list[tuple[np.ndarray, np.ndarray]] = []
    for d, k in enumerate(order):
        start = np.full(cuts, np.inf)
        came = np.full(cuts, -1)
        if d == 0 or not strict_first:
            start[0] = enter[d] if enter is not None else 0.0
        for e in range(max(d - 1, 0) if strict_order else 0, d):
            through = join(ends[e], tables.transfers[order[e], k])
            better = through < start
            start, came = np.where(better, through, start), np.where(better, e, came)
        total = join(start[:, None], tables.compute[k])
        first = np.argmin(total, axis=0)
        ends.append(total[first, np.arange(cuts)])
        parents.append((first, came))
    if not ends:
        return None
    last = [float(join(end[-1], leave[d] if leave is not None else 0.0)) for d, end in enumerate(ends)]
    if strict_last:
        last = [*[float("inf")] * (len(last) - 1), last[-1]]
    d = int(np.argmin(last))
    if not np.isfinite(last[d]):
        return None
    stages: Stages = []
    j, value = tables.layers, last[d]
    while True:
        first, came = parents[d]
        i = int(first[j])
        stages.append((order[d], i, j))
        if i == 0:
            return value, stages[::-1]
        d, j = int(came[i]), i
