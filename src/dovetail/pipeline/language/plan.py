"""The best partition for generation: most tokens per second, or the first token soonest, with limits on both.

Requests decode in groups that follow one another through the stages, so a token for each takes as long as the slower
of a group's way through all stages and the pace of the slowest one times the groups: max(latency, groups x bottleneck).
The least latency falls as the bottleneck may rise, so where the two meet is found by halving.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple, get_args

import numpy as np
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.pool import regroup
from dovetail.pipeline.inputs.problem import MIB, Pipeline
from dovetail.pipeline.language.problem import GenerationProblem
from dovetail.pipeline.optimise.chains import Capped, Chains
from dovetail.pipeline.optimise.cheapest import BoundedChain, cheapest
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.infeasible import why_not
from dovetail.pipeline.optimise.stages import Found, Option, Stages
from dovetail.pipeline.optimise.tables import Floats, Tables
from dovetail.pipeline.optimise.verify import WrongPlanError, same, verified
from dovetail.pipeline.plan import Constraints, GenerationFigures, GenerationObjective, InfeasibleError, Plan

_NEAR = 1e-9  # figures that differ by less, relatively, are the same
_SURELY = 1 + 2 * _NEAR  # above a limit: more than that and rounding
_LONGEST = 2**24  # contexts that are looked for where a model does not say what it was made for


class _Best(NamedTuple):
    """Stages with what they give for so many groups."""

    stages: Stages  # options by number
    step_s: float
    ttft_s: float
    groups: int


def plan_generation(
    problem: GenerationProblem,
    *,
    objective: GenerationObjective = "tokens",
    ttft_cap_s: float | None = None,
    tokens_floor_s: float | None = None,
    groups: int | None = None,
    max_devices: int | None = None,
    time_limit_s: float = 10.0,
) -> Plan:
    """The partition that generates most tokens per second (`tokens`), or whose first token comes soonest (`ttft`).

    `ttft_cap_s` and `tokens_floor_s` (tokens per second of all requests) are limits. Without `groups`, the best number
    of groups is chosen. The plan is that of a decode step, and its `generation` says the rest; `InfeasibleError` if
    there is none.
    """
    if objective not in get_args(GenerationObjective):
        raise InputError(f"objective: expected one of {', '.join(get_args(GenerationObjective))}, found {objective!r}")
    limits = _Limits.given(ttft_cap_s, tokens_floor_s, max_devices)
    _check_time(time_limit_s)
    best, bound = _best_of(problem, objective, limits, groups, SearchClock(time_limit_s))
    if best is None and bound < inf:
        raise InfeasibleError([_not_in(time_limit_s)])
    if best is None:
        raise InfeasibleError(_why_not(problem, limits, groups))
    made = _finished(problem, best, objective, bound)
    if found := list(_faults(made, limits)):
        raise WrongPlanError(found)
    return made


def _faults(made: Plan, limits: _Limits) -> Iterator[str]:
    """What a plan for generation does not keep, or does not give though it says so; its stages are judged already."""
    given = made.generation
    assert given is not None
    step_s = max(made.latency_s, given.groups * made.bottleneck_s)
    if not same(given.step_s, step_s):
        yield f"its step_s is {given.step_s:.12g}, but its stages give {step_s:.12g}"
    value = step_s if made.objective == "tokens" else given.ttft_s
    if not same(made.value, value):
        yield f"its value is {made.value:.12g}, but its stages give {value:.12g}"
    if limits.ttft_cap_s is not None and given.ttft_s > limits.ttft_cap_s * _SURELY:
        yield f"its first token takes {given.ttft_s:.6g} s: --ttft-cap-s is {limits.ttft_cap_s:g}"
    if limits.tokens_floor_s is not None and limits.tokens_floor_s * step_s > given.concurrency * _SURELY:
        yield f"it gives {given.concurrency / step_s:.6g} tokens/s: --tokens-floor-s is {limits.tokens_floor_s:g}"
    if limits.max_devices is not None and sum(given.widths) > limits.max_devices:
        yield f"it uses {sum(given.widths)} devices: --max-devices is {limits.max_devices}"


def _check_time(time_limit_s: float) -> None:
    if not time_limit_s > 0:
        raise InputError(f"--time-limit-s: expected a positive number, found {time_limit_s}")


def _not_in(time_limit_s: float) -> str:
    return f"no plan was found in {time_limit_s:g} s; that there is none is not proven"


class _Limits(NamedTuple):
    ttft_cap_s: float | None = None
    tokens_floor_s: float | None = None
    max_devices: int | None = None

    @classmethod
    def given(cls, ttft_cap_s: float | None, tokens_floor_s: float | None, max_devices: int | None) -> _Limits:
        made = cls(ttft_cap_s, tokens_floor_s, max_devices)
        for name, value in made._asdict().items():
            if value is not None and not value > 0:
                raise InputError(f"--{name.replace('_', '-')}: expected a positive number, found {value}")
        return made


def _best_of(
    problem: GenerationProblem, objective: str, limits: _Limits, groups: int | None, clock: SearchClock
) -> tuple[_Best | None, float]:
    """The best over the numbers of groups worth trying, and what no partition is below."""
    searches = [_Search(problem, count, limits) for count in _group_counts(problem, groups)]
    searches.sort(key=lambda search: search.floor_s)  # the most promising first, with half of the time that is left
    best, least = None, inf
    for n, search in enumerate(searches):
        known = inf if best is None else best.step_s
        if objective == "tokens" and search.floor_s >= known:
            return best, min(least, search.floor_s)
        last = n == len(searches) - 1
        found, bound = search.run(objective, clock if last else clock.part(clock.left_s / 2), known)
        least = min(least, bound)
        if found is not None and (best is None or _order(found, objective) < _order(best, objective)):
            best = found
    return best, least


def _order(best: _Best, objective: str) -> tuple[float, ...]:
    first, second = (best.step_s, best.ttft_s) if objective == "tokens" else (best.ttft_s, best.step_s)
    return first, second, best.groups


def _group_counts(problem: GenerationProblem, groups: int | None) -> list[int]:
    """Numbers of groups worth trying: of those that leave groups of the same size the smallest is best."""
    requests = problem.load.concurrency
    if groups is not None:
        if not 1 <= groups <= requests:
            raise InputError(f"--groups {groups}: expected 1 to as many as requests at once, {requests}")
        return [groups]
    sizes, size = [], requests
    while size:
        sizes.append(size)
        count = ceil(requests / size)
        size = (requests - 1) // count  # the next that needs more of them
    return [ceil(requests / size) for size in sizes]


class _Search:
    """The search for one number of groups, over tables by option."""

    def __init__(self, problem: GenerationProblem, groups: int, limits: _Limits) -> None:
        self.problem, self.groups, self.limits = problem, groups, limits
        self.size = ceil(problem.load.concurrency / groups)
        cuts = problem.cuts
        self.decode, self.prefill = Tables(problem.decode(self.size), cuts), Tables(problem.prefill(), cuts)
        fits = np.isfinite(self.decode.compute) & np.isfinite(self.prefill.compute)
        self.step, self.first = (np.where(fits, t.compute, inf) for t in (self.decode, self.prefill))
        self.step_link, self.first_link = (self._links(t) for t in (self.decode, self.prefill))
        self.options = [Option(k, width) for k, width in problem.options]
        self.counts = [len(c.hosts) for c in problem.pool.classes]

    def _links(self, tables: Tables) -> Floats:
        return np.moveaxis(tables.transfers, 2, 0) if self.decode.counts else np.zeros((self.decode.layers + 1, 0, 0))

    @cached_property
    def floor_s(self) -> float:
        """What no step is below: all groups' turns at all layers, on all devices at once without a pause."""
        problem = self.decode.pipeline
        if not self.options:
            return inf
        work = [[option.devices * t for t in c.time_s] for option, c in zip(self.options, problem.classes, strict=True)]
        return self.groups * float(np.min(work, axis=0).sum()) / sum(self.counts)

    @cached_property
    def paces(self) -> Floats:
        """All values that a bottleneck can have, ascending."""
        inner = self.step_link[1:-1]
        return np.unique(np.concatenate([self.step[np.isfinite(self.step)], inner[np.isfinite(inner)]]))

    def run(self, objective: str, clock: SearchClock, below: float) -> tuple[_Best | None, float]:
        """The best for this number of groups, if there is one within the limits (and, of steps, one below this), and a
        bound on the objective."""
        if not self.options or not len(self.paces):
            return None, inf
        floor, cap = self.limits.tokens_floor_s, self.limits.ttft_cap_s
        longest = inf if floor is None else self.problem.load.concurrency / floor
        if objective == "ttft":
            answer = self._least("first", longest / self.groups, longest, clock)
            best, bound = None if answer.stages is None else self._figures(answer.stages), answer.bound
        else:
            best, bound = self._fastest(inf if cap is None else cap, clock, below)
        if best is None:
            return None, bound
        value, most = (best.step_s, longest) if objective == "tokens" else (best.ttft_s, inf if cap is None else cap)
        if value > most * (1 + _NEAR):  # not found is not proven to be none, unless the bound says so
            return None, inf if bound > most else bound
        return best, bound

    def _fastest(self, cap: float, clock: SearchClock, below: float) -> tuple[_Best | None, float]:
        """The least step, if it is below one that is known: halve the bottlenecks until the latency that one allows
        meets the groups' turns at it."""
        paces, best, known = self.paces, None, below
        probed: list[tuple[int, float]] = []  # what was tried, and what no latency under it is below
        low, high = 0, len(paces) - 1
        at = high  # first with any bottleneck: whether there is a partition at all, and all there is to one group
        while low <= high:
            answer = self._least("step", float(paces[at]), cap, clock, known)
            insort(probed, (at, answer.bound))
            if answer.stages is not None:
                made = self._figures(answer.stages)
                if made.step_s < known:
                    best, known = made, made.step_s
            if self.groups == 1 or (answer.stages is None and at == len(paces) - 1):
                break
            if answer.stages is not None and answer.value <= self.groups * paces[at]:
                high = at - 1
            else:
                low = at + 1
            high = min(high, int(np.searchsorted(paces, known / self.groups)))  # turns at a slower one take longer
            at = (low + high) // 2
        return best, max(self._bound(probed), self.floor_s)

    def _bound(self, probed: Sequence[tuple[int, float]]) -> float:
        """What no step is below: between two bottlenecks that were tried, the latency that the larger allows, and the
        turns at the one above the smaller."""
        least, before = inf, -1
        for at, latency in probed:
            least = min(least, max(latency, self.groups * float(self.paces[before + 1])))
            before = at
        return least if before == len(self.paces) - 1 else min(least, self.groups * float(self.paces[before + 1]))

    def _least(self, cost: str, pace_s: float, cap: float, clock: SearchClock, below: float = inf) -> BoundedChain:
        """The chain of least decode latency (`step`) or time to first token (`first`), with the other within a cap and
        no stage or link of a decode above a pace."""
        ways = {"step": (self.step, self.step_link), "first": (self.first, self.first_link)}
        slow, slow_link = self.step > pace_s * (1 + _NEAR), self.step_link > pace_s * (1 + _NEAR)
        stage, link = (np.where(x, inf, t) for x, t in zip((slow, slow_link), ways[cost], strict=True))
        other, other_link = ways["first" if cost == "step" else "step"]
        none = np.zeros(len(self.options))
        capped = Capped(other, other_link, none, none, cap) if cap < inf else None
        chains = Chains(
            self.options, self.counts, stage, link, none, none, none, capped=capped, max_devices=self.limits.max_devices
        )
        return cheapest(chains, clock, below)

    def _figures(self, stages: Stages) -> _Best:
        """From the stages alone: a step and the time to first token."""
        chosen = [(self.options.index(option), i, j) for option, i, j in stages]
        times = [float(self.step[o, i, j]) for o, i, j in chosen]
        firsts = [float(self.first[o, i, j]) for o, i, j in chosen]
        hops = [(j, u, v) for (u, _, j), (v, _, _) in pairwise(chosen)]
        sends = [float(self.step_link[hop]) for hop in hops]
        step_s = max(sum(times) + sum(sends), self.groups * max([*times, *sends]))
        ttft_s = sum(firsts) + sum(float(self.first_link[hop]) for hop in hops)
        return _Best([(Option(o), i, j) for o, i, j in chosen], step_s, ttft_s, self.groups)


def _finished(problem: GenerationProblem, best: _Best, objective: GenerationObjective, bound: float) -> Plan:
    """The plan of a decode step with hosts by name, and beside it what prefill takes on the same stages."""
    load, model = problem.load, problem.model
    decode = _named(problem, best, problem.decode(ceil(load.concurrency / best.groups)))
    prefill = _named(problem, best, problem.prefill())
    kept_cuts = Constraints(allowed_cuts=frozenset(problem.cuts))
    made, first = (
        verified(finish(Tables(each, problem.cuts), kept_cuts, "throughput", Found(best.stages)))
        for each in (decode, prefill)
    )
    kept = [model.kv_bytes(i, load.context, problem.precision.cache_dtype) for i in range(len(model.blocks))]
    made.objective, made.value = objective, best.step_s if objective == "tokens" else best.ttft_s
    made.bound_s = min(bound, made.value)
    made.optimal = made.bound_s >= made.value * (1 - _NEAR)
    made.gap = 0.0 if made.optimal else made.value / made.bound_s - 1 if made.bound_s > 0 else None
    made.problem = regroup(decode, list(enumerate(decode.classes)))
    made.generation = GenerationFigures(
        prompt=load.prompt,
        context=load.context,
        concurrency=load.concurrency,
        groups=best.groups,
        ttft_s=first.latency_s,
        step_s=best.step_s,
        tokens_s=load.concurrency / best.step_s if best.step_s else 0.0,
        source=problem.source,
        prefill_s=[stage.compute_s for stage in first.stages],
        kv_mib=[load.concurrency * sum([0, *kept, 0][i:j]) / MIB for _, i, j in best.stages],
        widths=[problem.options[option.k][1] for option, _, _ in best.stages],
    )
    return made


def _named(problem: GenerationProblem, best: _Best, given: Pipeline) -> Pipeline:
    """The problem with the devices of every class shared out: groups first, as many as the stages need."""
    free = [list(c.hosts) for c in problem.pool.classes]
    hosts: list[list[str]] = [[] for _ in problem.options]
    for option, _, _ in best.stages:
        k, width = problem.options[option.k]
        if width > 1:
            hosts[option.k].append(" + ".join(free[k][:width]))
            del free[k][:width]
    for o, (k, width) in enumerate(problem.options):
        if width == 1:
            hosts[o] = free[k]
    return replace(given, classes=[replace(c, hosts=names) for c, names in zip(given.classes, hosts, strict=True)])


def _why_not(problem: GenerationProblem, limits: _Limits, groups: int | None) -> list[str]:
    """What leaves no partition: memory, or the limits that it would do without."""
    alone = replace(problem, widths=(1,))
    free = _tried(problem, _Limits(max_devices=limits.max_devices), groups)
    if free is None:
        if limits.max_devices is not None and _tried(problem, _Limits(), groups) is not None:
            return [f"--max-devices {limits.max_devices} leaves no plan: the model with its cache needs more of them"]
        return why_not(Tables(alone.prefill()), Constraints(), SearchClock(5.0))
    reasons = []
    if limits.ttft_cap_s is not None and free.ttft_s > limits.ttft_cap_s:
        reasons.append(f"--ttft-cap-s {limits.ttft_cap_s:g}: the least time to first token is {free.ttft_s:.6g} s")
    fast, _ = _best_of(problem, "tokens", _Limits(max_devices=limits.max_devices), groups, SearchClock(5.0))
    if limits.tokens_floor_s is not None and fast is not None:
        most = problem.load.concurrency / fast.step_s
        if most < limits.tokens_floor_s:
            reasons.append(f"--tokens-floor-s {limits.tokens_floor_s:g}: the most is {most:.6g} tokens/s")
    return reasons or ["--ttft-cap-s and --tokens-floor-s leave no plan together; each alone does"]


def _tried(problem: GenerationProblem, limits: _Limits, groups: int | None) -> _Best | None:
    """The first token soonest within these limits."""
    return _best_of(problem, "ttft", limits, groups, SearchClock(5.0))[0]


def max_context(
    problem: GenerationProblem,
    *,
    ttft_cap_s: float | None = None,
    tokens_floor_s: float | None = None,
    groups: int | None = None,
    max_devices: int | None = None,
    time_limit_s: float = 10.0,
    notice: Callable[[str], None] = lambda _: None,
) -> int:
    """The longest context for which there is a partition within memory and limits: a longer one keeps more and takes
    longer, so it is found by halving. No longer than the model was made for, where it says so; `InfeasibleError` if
    there is no room for a single token after the prompt.

    Where the time limit ends the search, it is the longest for which a partition was found, and `notice` is told.
    """
    limits = _Limits.given(ttft_cap_s, tokens_floor_s, max_devices)
    _check_time(time_limit_s)
    clock, open_from = SearchClock(time_limit_s), inf

    def possible(context: int) -> bool:
        nonlocal open_from
        longer = replace(problem, load=replace(problem.load, context=context))
        found, bound = _best_of(longer, "ttft", limits, groups, clock.part(clock.left_s / 2))
        if found is None and bound < inf:
            open_from = min(open_from, context)
        return found is not None

    least, most = problem.load.prompt + 1, problem.model.longest or _LONGEST
    if not possible(least):
        if open_from < inf:
            raise InfeasibleError([_not_in(time_limit_s)])
        shortest = replace(problem, load=replace(problem.load, context=least))
        raise InfeasibleError(_why_not(shortest, limits, groups))
    if least >= most or possible(most):
        return max(least, most)
    while most - least > 1 and not clock.over:
        middle = (least + most) // 2
        least, most = (middle, most) if possible(middle) else (least, middle)
    if most - least > 1 or open_from < inf:
        notice(f"context {least}: that none is longer is not proven in {time_limit_s:g} s (--time-limit-s)")
    return least
