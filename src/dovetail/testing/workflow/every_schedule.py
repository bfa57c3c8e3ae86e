"""Every schedule of a handful of nodes: the oracle that optimum and bounds are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from dovetail.core.events import Arrived
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.optimise.exact import Placed


def every_schedule(
    works: Iterable[tuple[float, Arrived]],
    shapes: Mapping[str, TaskGraph],
    pool: Pool,
    load_s: Mapping[str, float],
    switch_s: Callable[[str, str], float],
    aligned: bool = False,
) -> Iterator[list[Placed]]:
    """Every schedule in which no part can begin earlier without a change of order, under the rules of `solve`.

    One of them is best for any figure that no delay improves. For some five parts: there are factorially many.
    """
    shaped = [(arrival_s, work, shapes[work.of]) for arrival_s, work in works if not work.fault]
    parts = [(arrival_s, work, shape, i) for arrival_s, work, shape in shaped for i in shape.topological]
    speeds = pool.speeds

    def price(old: str | None, new: str) -> float:
        return 0.0 if old == new else load_s[new] if old is None else switch_s(old, new)

    def extend(
        chosen: tuple[Placed, ...], gpus: tuple[tuple[float, str | None], ...], ends: dict[tuple[str, int], float]
    ) -> Iterator[list[Placed]]:
        if len(chosen) == len(parts):
            yield list(chosen)
        for arrival_s, work, shape, i in parts:
            if (work.job, i) in ends or any((work.job, j) not in ends for j in shape.after[i]):
                continue
            part = shape.tasks[i]
            ready_s = max([arrival_s, *(ends[work.job, j] for j in shape.after[i])])
            for window in pool.windows(part.width, aligned):
                begin_s = max([ready_s, *(gpus[g][0] for g in window)])
                if chosen and begin_s < chosen[-1].setup_start_s:
                    continue  # found in another order
                start_s = begin_s + max(price(gpus[g][1], part.kind) for g in window)
                end_s = start_s + work.sizes[i] / min(speeds[g] for g in window)
                placed = Placed(work.job, part.name, window, begin_s, start_s, end_s)
                after = tuple((end_s, part.kind) if g in window else gpu for g, gpu in enumerate(gpus))
                yield from extend((*chosen, placed), after, {**ends, (work.job, i): end_s})

    return extend((), ((-math.inf, None),) * len(pool), {})
