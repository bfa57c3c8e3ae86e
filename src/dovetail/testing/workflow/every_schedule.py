"""Every schedule of a handful of nodes: the oracle that optimum and bounds are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from dovetail.core.events import Arrived
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.optimise.exact import Placed


def every_schedule(
    requests: Iterable[tuple[float, Arrived]],
    graphs: Mapping[str, TaskGraph],
    pool: Pool,
    load_s: Mapping[str, float],
    switch_s: Callable[[str, str], float],
    aligned: bool = False,
) -> Iterator[list[Placed]]:
    """Every schedule in which no node can begin earlier without a change of order, under the rules of `solve`.

    One of them is best for any figure that no delay improves. For some five nodes: there are factorially many.
    """
    graphed = [(arrival_s, request, graphs[request.of]) for arrival_s, request in requests if not request.fault]
    nodes = [(arrival_s, request, graph, i) for arrival_s, request, graph in graphed for i in graph.topological]
    speeds = pool.speeds

    def price(old: str | None, new: str) -> float:
        return 0.0 if old == new else load_s[new] if old is None else switch_s(old, new)

    def extend(
        chosen: tuple[Placed, ...], gpus: tuple[tuple[float, str | None], ...], ends: dict[tuple[str, int], float]
    ) -> Iterator[list[Placed]]:
        if len(chosen) == len(nodes):
            yield list(chosen)
        for arrival_s, request, graph, i in nodes:
            if (request.job, i) in ends or any((request.job, j) not in ends for j in graph.after[i]):
                continue
            node = graph.tasks[i]
            ready_s = max([arrival_s, *(ends[request.job, j] for j in graph.after[i])])
            for window in pool.windows(node.width, aligned):
                begin_s = max([ready_s, *(gpus[g][0] for g in window)])
                if chosen and begin_s < chosen[-1].setup_start_s:
                    continue  # found in another order
                start_s = begin_s + max(price(gpus[g][1], node.kind) for g in window)
                end_s = start_s + request.sizes[i] / min(speeds[g] for g in window)
                placed = Placed(request.job, node.name, window, begin_s, start_s, end_s)
                after = tuple((end_s, node.kind) if g in window else gpu for g, gpu in enumerate(gpus))
                yield from extend((*chosen, placed), after, {**ends, (request.job, i): end_s})

    return extend((), ((-math.inf, None),) * len(pool), {})
