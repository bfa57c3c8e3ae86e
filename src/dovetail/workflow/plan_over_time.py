"""The fewest GPU-hours over a day: how many GPUs in each interval, so that a target is met, with time to come up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import ceil, inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, within
from dovetail.core.files.document import Source
from dovetail.core.files.plain import scalar
from dovetail.core.rates import RateTable
from dovetail.workflow.choices import DEFAULT_POLICY, OnError, Target, check_count
from dovetail.workflow.inputs.gpus_over_time import MOST_STEPS, GpusOverTime
from dovetail.workflow.problem import WorkflowProblem, source_of
from dovetail.workflow.simulate import Progress, run
from dovetail.workflow.study import TARGET_KEYS, fewest_gpus, widest_node

_LEVELS = 12  # uses of the GPUs between which bisection looks


class CapacityPlan(Struct):
    """How many GPUs in each interval of `every_s`, and what that comes to, simulated whole: `value_s` is the target's
    figure, `gpu_hours` what is paid for, `constant_gpu_hours` the same with as many GPUs all the time as are needed
    (`constant_gpus`); `gpus_over_time` makes a run of it. `gpus` is empty where no pool meets the target."""

    target: Target
    limit_s: float
    every_s: float
    gpus: list[int]
    value_s: float | None
    gpu_hours: float | None
    constant_gpus: int | None
    constant_gpu_hours: float | None
    gpus_over_time: GpusOverTime | None
    runs: int
    reason: str

    @property
    def saving(self) -> float | None:
        """The share of the GPU-hours of the constant plan that is saved."""
        if self.gpu_hours is None or not self.constant_gpu_hours:
            return None
        return 1 - self.gpu_hours / self.constant_gpu_hours


def fewest_gpus_over_time(
    config: Source,
    requests: Source,
    *,
    p99: float | None = None,
    mean: float | None = None,
    makespan: float | None = None,
    every_s: float = 3600.0,
    scale_up_s: float = 120.0,
    policy: Any = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    on_error: OnError = "fail",
    costs: Mapping[str, Any] | None = None,
    rates: Source | RateTable | None = None,
    seed: int = 0,
    max_gpus: int = 1024,
    max_runs: int = 100,
    progress: Progress | None = None,
) -> CapacityPlan:
    """The fewest GPU-hours with which P99, mean or makespan stays within a limit, when the number of GPUs may change
    every `every_s` seconds and a GPU can be used `scale_up_s` after it is asked for (which is done that much ahead).

    Starts from the fewest that meet the target all the time; then as many per interval as its arrivals need at one use
    of the GPUs for all, the highest that bisection finds; then one fewer wherever that still meets the target. Every
    candidate is a simulation of all requests with GPUs that come and go, `max_runs` of them at most.

    >>> from dovetail import workflow
    >>> files = "examples/system_config.yaml", "examples/workflow_requests.yaml"
    >>> found = fewest_gpus_over_time(*files, p99=300, every_s=60, scale_up_s=10)
    >>> found.constant_gpus, found.gpus
    (4, [4, 4, 4, 4, 4])
    """
    every_s, scale_up_s, max_runs = scalar(every_s), scalar(scale_up_s), scalar(max_runs)
    within("--every-s", every_s, "seconds, more than 0", 1e-3, optional=False)
    within("--scale-up-s", scale_up_s, "seconds, 0 or more", optional=False)
    check_count("--max-runs", max_runs, 1)
    how: dict[str, Any] = {"on_error": on_error, "costs": costs, "rates": rates}
    limits: dict[str, Any] = {"p99": p99, "mean": mean, "makespan": makespan}
    constant = fewest_gpus(
        config,
        requests,
        **limits,
        mode="online",
        policy=policy,
        options=options,
        seed=seed,
        max_gpus=max_gpus,
        progress=progress,
        **how,
    )
    answer = CapacityPlan(
        constant.target, constant.limit_s, every_s, [], None, None, constant.gpus, None, None, 0, constant.reason
    )
    if constant.gpus is None:
        return answer
    source = source_of(config, requests, mode="online", **how)
    search = _Search(source.read(constant.gpus), answer, scale_up_s, policy, options, seed, max_runs, progress)
    least = widest_node(source)
    best = search.try_counts([constant.gpus] * len(search.work_s))
    assert best is not None
    answer.constant_gpu_hours = best.gpu_hours
    best = search.by_use(best, least, constant.gpus)
    best = search.descend(best, least)
    answer.gpus, answer.value_s, answer.gpu_hours = best.gpus, best.value_s, best.gpu_hours
    answer.gpus_over_time, answer.runs = ask_ahead(best.gpus, every_s, scale_up_s), search.runs
    if search.runs >= max_runs:
        answer.reason = f"the best of {max_runs} runs: more may find less (--max-runs)"
    else:
        answer.reason = "no plan with one GPU fewer in an interval that saves GPU-hours keeps the target"
    return answer


def ask_ahead(gpus: Sequence[int], every_s: float, scale_up_s: float) -> GpusOverTime:
    """So many GPUs in each interval, asked for so early that they are there when it begins.

    >>> ask_ahead([1, 3, 2], 100.0, 30.0).steps
    ((0.0, 1), (70.0, 3), (200.0, 2))
    """
    needed = [(max(i * every_s - scale_up_s, 0.0), (i + 1) * every_s, count) for i, count in enumerate(gpus)]
    steps: list[tuple[float, int]] = []
    for t in sorted({0.0, *(begin for begin, _, _ in needed), *(end for _, end, _ in needed[:-1])}):
        wanted = max(count for begin, end, count in needed if begin <= t < end)
        if not steps or steps[-1][1] != wanted:
            steps.append((t, wanted))
    return GpusOverTime(tuple(steps), scale_up_s)


class _Tried(Struct):
    gpus: list[int]
    value_s: float
    gpu_hours: float


class _Search:
    """Simulates candidates, and keeps count."""

    def __init__(
        self,
        problem: WorkflowProblem,
        answer: CapacityPlan,
        scale_up_s: float,
        policy: Any,
        options: Mapping[str, Any] | None,
        seed: int,
        max_runs: int,
        progress: Progress | None,
    ) -> None:
        self._problem, self._answer, self._scale_up_s = problem, answer, scale_up_s
        self._policy, self._options, self._seed = policy, options, seed
        self._max_runs, self._progress = max_runs, progress
        self.runs = 0
        self.work_s = self._work()
        self._known: dict[tuple[int, ...], _Tried] = {}

    def _work(self) -> list[float]:
        """GPU-seconds that arrive in each interval."""
        work = [0.0]
        for at_s, request in self._problem.requests.arrivals():
            interval = int(at_s / self._answer.every_s)
            if interval >= MOST_STEPS // 2:
                raise InputError(f"--every-s {self._answer.every_s:g}: gives more than {MOST_STEPS // 2} intervals")
            work += [0.0] * (interval + 1 - len(work))
            graph = self._problem.graphs.get(request.of)
            if graph is not None and not request.fault:
                work[interval] += sum(size * width for size, width in zip(request.sizes, graph.widths, strict=True))
        return work

    def try_counts(self, gpus: Sequence[int]) -> _Tried | None:
        """What these come to; None if there have been runs enough."""
        key = tuple(gpus)
        if key not in self._known:
            if self.runs >= self._max_runs:
                return None
            over_time = ask_ahead(gpus, self._answer.every_s, self._scale_up_s)
            policy = self._policy if isinstance(self._policy, str) else deepcopy(self._policy)
            problem = replace(self._problem, gpus_over_time=over_time)
            found = run(problem, policy, options=self._options, seed=self._seed, journal=False)
            # a target needs all requests: with fewer GPUs a queue may be full
            value_s = inf if found.figures.rejected else found.metrics[TARGET_KEYS[self._answer.target]]
            self._known[key] = _Tried(list(gpus), value_s, found.metrics["gpu_hours"])
            self.runs += 1
            if self._progress is not None:
                self._progress(self.runs)
        return self._known[key]

    def _better(self, gpus: Sequence[int], best: _Tried) -> _Tried | None:
        """What these come to, if they meet the target for less."""
        tried = self.try_counts(gpus)
        if tried is None or tried.value_s > self._answer.limit_s or tried.gpu_hours >= best.gpu_hours:
            return None
        return tried

    def by_use(self, best: _Tried, least: int, most: int) -> _Tried:
        """The same use of the GPUs in all intervals, as high as meets the target."""
        top = max(self.work_s) / self._answer.every_s

        def counts(level: int) -> list[int]:
            use = 2 * level / _LEVELS  # of 1: as much work as the GPUs can do, beyond it for the next interval
            return [min(max(ceil(work / self._answer.every_s / use), least), most) for work in self.work_s]

        low, high = 0, _LEVELS
        while high - low > 1 and top:
            middle = (low + high) // 2
            if (tried := self._better(counts(middle), best)) is not None:
                best, low = tried, middle
            else:
                high = middle
        return best

    def descend(self, best: _Tried, least: int) -> _Tried:
        """One GPU fewer where most is spare; when that misses the target everywhere, one moved to a neighbour."""
        stuck: set[int] = set()
        while True:
            spare = [count - work / self._answer.every_s for work, count in zip(self.work_s, best.gpus, strict=True)]
            above = [i for i, count in enumerate(best.gpus) if count > least]
            for i in sorted([i for i in above if i not in stuck], key=lambda i: -spare[i]):
                if (tried := self._better(_shifted(best.gpus, i), best)) is not None:
                    best = tried
                    break
                stuck.add(i)
            else:
                moves = [_shifted(best.gpus, i, j) for i in above for j in (i - 1, i + 1)]
                allowed = [gpus for gpus in moves if max(gpus) <= len(self._problem.pool)]
                tried = next((found for gpus in allowed if (found := self._better(gpus, best)) is not None), None)
                if tried is None:
                    return best
                best = tried
                stuck.clear()


def _shifted(gpus: Sequence[int], i: int, j: int = -1) -> list[int]:
    """One fewer in one interval, and one more in another, if that exists."""
    return [count - (at == i) + (at == j) for at, count in enumerate(gpus)]
