"""The Pareto front: the plans of which no other is at least as good in bottleneck, latency and number of devices.

For a cap on the bottleneck the general planner gives the least latency with every number of devices. As the cap rises
those latencies fall in steps, and the front's plans stand where they do: the steps are found by halving, and stretches
of caps with the same latencies at both ends are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.errors import InputError, check_functions
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.labels import CheapestChain, Found, cheapest_by_devices
from dovetail.pipeline.optimise.search import LABEL_WORK, Search
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Plan
from dovetail.pipeline.planner import plan

if TYPE_CHECKING:
    from dovetail.core.comparison import Comparison

_EFFORT = 2e9  # additions after which the front found so far must do
_ROUNDING = 1e-9  # sums differ by rounding with the order in which they are added


class Front(Struct, kw_only=True):
    """The plans of the front from the least bottleneck on; `complete` says that every one was found.

    `found` counts those before some were left out to keep to the number of points asked for.
    """

    model: str
    complete: bool
    found: int
    points: list[Plan]
    problem: Pipeline
    constraints: Constraints

    @property
    def table(self) -> Comparison:
        """A row per plan; energy and money only where they are known."""
        from dovetail.core.comparison import Comparison

        priced = [key for key in ("energy_j_per_item", "money_per_item") if any(getattr(p, key) for p in self.points)]
        keys = ("bottleneck_s", "throughput_items_s", "latency_s")
        rows = [
            {key: getattr(p, key) for key in keys}
            | {"devices": len(p.hosts)}
            | {key: getattr(p, key) for key in priced}
            | {"stages": ", ".join(f"{stage.host} {stage.layers[0]}-{stage.layers[1]}" for stage in p.stages)}
            for p in self.points
        ]
        return Comparison(rows)

    def frame(self) -> Any:
        """A row per plan: a frame of pandas or polars where one is installed, else columns."""
        return self.table.frame()

    def __repr__(self) -> str:
        return f"<Front {self.model}: {len(self.points)} of {self.found} plans>\n{self.table}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def front(
    problem: Pipeline,
    *,
    points: int | None = 20,
    latency_cap_s: float | None = None,
    first: str | None = None,
    last: str | None = None,
    max_stages: int | None = None,
    cuts: Sequence[int] = (),
    data_mbps: float | None = None,
    replicas: int = 1,
    link_bits: Sequence[int] = (32,),
    progress: Callable[[float], None] | None = None,
) -> Front:
    """All plans that no other beats in bottleneck, latency and number of devices; at most `points` of them, spread from
    end to end. `InfeasibleError` if there is no plan; `progress` is told how much is done, from 0 to 1."""
    if not isinstance(problem, Pipeline):
        raise InputError(f"problem: expected what pipeline.load gives, found {problem!r:.80}")
    check_functions(progress=progress)
    if points is not None and not (type(points) is int and points >= 2):
        raise InputError(f"points: expected 2 or more, found {points}")
    constraints = Constraints.given(
        problem,
        cuts,
        latency_cap_s=latency_cap_s,
        first=first,
        last=last,
        max_stages=max_stages,
        data_mbps=data_mbps,
        replicas=replicas,
        link_bits=link_bits,
    )
    least = plan(problem, "throughput", constraints)
    if isinstance(least, Infeasible):
        raise InfeasibleError(least.reasons)
    tables = Tables(problem, None if constraints.allowed_cuts is None else set(constraints.allowed_cuts))
    search = Search(tables, constraints)
    if search.costs.work > LABEL_WORK:
        raise InputError(
            f"the Pareto front is exact only up to some {LABEL_WORK:.0e} additions per step; this pool and model need "
            f"{search.costs.work:.0e}: use fewer devices or types"
        )
    most_caps = max(int(_EFFORT / max(search.costs.work, 1.0)), 50)
    sweep = _Sweep(search, least.bottleneck_s, most_caps, progress or (lambda _: None))
    chains = sweep.run()
    made = [finish(tables, constraints, "throughput", Found(chain.stages, optimal=sweep.complete)) for chain in chains]
    kept = _undominated(made, constraints.latency_cap_s)
    shown = kept if points is None else _spread(kept, points)
    for one in shown:
        one.problem = one.constraints = None  # kept once, beside the points
    return Front(
        model=problem.model,
        complete=sweep.complete,
        found=len(kept),
        points=shown,
        problem=problem,
        constraints=constraints,
    )


class _Sweep:
    """Latencies by number of devices under caps on the bottleneck, as many caps as the effort allows."""

    def __init__(self, search: Search, least_s: float, most_caps: int, progress: Callable[[float], None]) -> None:
        self._costs = search.costs
        self._caps = search.candidates(least_s)
        self._known: dict[int, dict[int, CheapestChain]] = {}
        self._most_caps = most_caps
        self._progress = progress
        self.complete = True

    def run(self) -> list[CheapestChain]:
        # The largest intervals first: if effort runs out, what is known is spread over the whole range.
        last = len(self._caps) - 1
        intervals, done = [(0, last)], 0
        self._at(0), self._at(last)
        while intervals:
            intervals.sort(key=lambda ends: ends[0] - ends[1])
            low, high = intervals.pop(0)
            if high - low < 2 or self._same(low, high):
                done += high - low
                self._progress(done / max(last, 1))
                continue
            if len(self._known) >= self._most_caps:
                self.complete = False
                break
            middle = (low + high) // 2
            self._at(middle)
            intervals += [(low, middle), (middle, high)]
        return [found for i in sorted(self._known) for found in self._known[i].values()]

    def _at(self, i: int) -> dict[int, CheapestChain]:
        if i not in self._known:
            self._known[i] = cheapest_by_devices(self._costs.latency_chain(float(self._caps[i])), "sum")
        return self._known[i]

    def _same(self, low: int, high: int) -> bool:
        one, two = self._at(low), self._at(high)
        return one.keys() == two.keys() and all(one[d].value <= two[d].value * (1 + _ROUNDING) for d in one)


def _undominated(plans: list[Plan], latency_cap_s: float | None) -> list[Plan]:
    """Those that no other beats, one of each, ordered by bottleneck, then latency."""
    cap_s = latency_cap_s if latency_cap_s is not None else float("inf")
    kept: list[tuple[int, Plan]] = []
    for one in sorted(plans, key=lambda p: (p.bottleneck_s, p.latency_s, len(p.hosts))):
        devices = len(one.hosts)
        beaten = any(d <= devices and other.latency_s <= one.latency_s * (1 + _ROUNDING) for d, other in kept)
        if not beaten and one.latency_s <= cap_s * (1 + 1e-12):
            kept.append((devices, one))
    return [one for _, one in kept]


def _spread(plans: list[Plan], count: int) -> list[Plan]:
    """So many of them, evenly from the first to the last."""
    if len(plans) <= count:
        return plans
    return [plans[round(i * (len(plans) - 1) / (count - 1))] for i in range(count)]
