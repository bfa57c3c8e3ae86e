"""Lower bounds: worked by hand, against every schedule, the exact optimum and long list schedules."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.every_schedule import every_schedule
from dovetail.workflow import bounds as module
from dovetail.workflow.bounds import Bounds, BoundsAccumulator
from dovetail.workflow.choices import Mode
from dovetail.workflow.optimise.exact import Placed, solve
from dovetail.workflow.policies.base import Place, WorkflowPolicy
from dovetail.workflow.policies.ready import ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.simulate import WorkflowRun, run

TYPES = {"gpu": DeviceType("gpu"), "slow": DeviceType("slow", speed=0.5), "fast": DeviceType("fast", speed=2.0)}

Arrivals = list[tuple[float, Arrived]]


def single(width: int, kind: str = "") -> TaskGraph:
    return TaskGraph(f"w{width}", [Task("a", kind or f"m{width}", width)], [])


def chain(name: str, *widths: int) -> TaskGraph:
    nodes = [Task(f"n{i}", f"m{width}", width) for i, width in enumerate(widths)]
    return TaskGraph(name, nodes, pairwise([node.name for node in nodes]))


def bound(
    pool: str,
    graphs: Sequence[TaskGraph],
    requests: Sequence[tuple[float, str, tuple[float, ...]]],
    setup_min: dict[str, float] | None = None,
    gains: dict[str, float] | None = None,
) -> Bounds:
    accumulator = BoundsAccumulator(
        Pool.parse(pool, TYPES), {graph.name: graph for graph in graphs}, setup_min or {}, gains or {}
    )
    for i, (arrival_s, of, sizes) in enumerate(requests):
        accumulator.add(arrival_s, Arrived(f"w{i}", of, sizes))
    return accumulator.result()


# --- by hand --------------------------------------------------------------------------------------


def test_area_counts_each_model_once_and_starts_at_the_first_arrival() -> None:
    """5 + (3 * 4 + 2 * 2 * 6 GPU-seconds of runs + 2 + 2 * 3 of setups) / 4."""
    requests = [(5.0, "w1", (4.0,))] * 3 + [(7.0, "w2", (6.0,))] * 2
    result = bound("4", [single(1), single(2)], requests, {"m1": 2.0, "m2": 3.0, "unused": 100.0})
    assert result.area_s == 5.0 + 44.0 / 4


def test_widths_that_fit_side_by_side_are_not_added_up() -> None:
    """3 + 5 on 8: one over `8 // width` each would give 10 / 2 + 10 = 15, but both run at once."""
    result = bound("8", [single(3), single(5)], [(0.0, "w3", (10.0,)), (0.0, "w5", (10.0,))])
    assert result.makespan_s == 10.0


def test_wide_parts_exclude_each_other() -> None:
    result = bound("8", [single(5)], [(0.0, "w5", (10.0,))] * 3, {"m5": 2.0})
    assert (result.wide_s, result.makespan_s, result.binding) == (32.0, 32.0, "wide")
    assert result.area_s == 32.0 * 5 / 8


def test_a_wide_part_is_as_many_blocks_as_it_contains() -> None:
    """In blocks of 3 on 8 GPUs, 6 fills both and 3 one of them: 10 + 5."""
    result = bound("8", [single(3), single(6)], [(0.0, "w3", (10.0,)), (0.0, "w6", (10.0,))])
    assert result.wide_s == 15.0


def test_beside_a_very_wide_part_only_narrow_ones_run() -> None:
    """7 of 8 leaves room for widths below 2 only: 10 + 10 * 2 / 8."""
    result = bound("8", [single(2), single(7)], [(0.0, "w2", (10.0,)), (0.0, "w7", (10.0,))])
    assert result.wide_s == 12.5


def test_on_a_mixed_pool_a_window_is_as_fast_as_its_slowest_gpu() -> None:
    """A pair never runs faster than the second fastest GPU, and there is one pair: 20 s, not 40 / (2 + 1 + 0.5)."""
    result = bound("fast:1,gpu:1,slow:1", [single(2)], [(0.0, "w2", (10.0,))] * 2)
    assert result.area_s == pytest.approx(40 / 3.5)
    assert (result.wide_s, result.path_s) == (20.0, 10.0)


def test_on_a_mixed_pool_the_second_pair_is_slower() -> None:
    result = bound("fast:2,slow:2", [single(2)], [(0.0, "w2", (10.0,))] * 4)
    assert result.wide_s == 40 / (2.0 + 0.5)


def test_the_widest_part_needs_the_slowest_gpu() -> None:
    result = bound("fast:1,slow:1", [single(1), single(2)], [(0.0, "w2", (10.0,)), (0.0, "w1", (10.0,))])
    assert result.path_s == 20.0
    assert result.wide_s == 10.0 / 0.5 + 10.0 / 2.5


def test_path_waits_for_arrival_and_for_the_first_load() -> None:
    """The late request can find its models loaded; the early one alone waits for both, one after the other."""
    graphs = [chain("c", 1, 2)]
    late = bound("4", graphs, [(0.0, "c", (1.0, 1.0)), (20.0, "c", (2.0, 3.0))], {"m1": 2.0, "m2": 9.0})
    assert (late.path_s, late.binding) == (25.0, "path")
    early = bound("4", graphs, [(0.0, "c", (1.0, 1.0))], {"m1": 2.0, "m2": 9.0})
    assert early.path_s == 2.0 + 1.0 + 9.0 + 1.0


def test_a_model_of_several_requests_is_first_loaded_for_whoever_can_be_ready_first() -> None:
    """The second model is needed from 3 s on by the first request, if its first is loaded at once, and then takes 9."""
    graphs = [chain("c", 1, 2), single(2)]
    together = [(0.0, "c", (1.0, 1.0)), (2.0, "c", (1.0, 1.0))]
    assert bound("4", graphs, together, {"m1": 2.0, "m2": 9.0}).path_s == 13.0
    assert bound("4", graphs, [*together, (1.0, "w2", (1.0,))], {"m1": 2.0, "m2": 9.0}).path_s == 11.0


def test_only_what_follows_another_model_is_switched_in_the_rest_is_loaded() -> None:
    """Loads of 10 and 12 s, switches of 1 s: the first model is loaded, and the second then replaces it."""
    prices = {"m1": (10.0, 1.0), "m2": (12.0, 1.0)}
    for of, sizes, path_s in (("w1", (5.0,), 15.0), ("w2", (5.0,), 17.0), ("c", (5.0, 4.0), 10.0 + 5.0 + 1.0 + 4.0)):
        accumulator = BoundsAccumulator(
            Pool.parse("2", {}), {g.name: g for g in (single(1), single(2), chain("c", 1, 2))}, prices
        )
        accumulator.add(0.0, Arrived("r", of, sizes))
        assert accumulator.result().path_s == path_s


def test_a_rejected_request_may_have_loaded_a_model() -> None:
    accumulator = BoundsAccumulator(Pool.parse("2", {}), {"w1": single(1)}, {"m1": 5.0})
    accumulator.step(1, 0.0, [Arrived("gone", "w1", (1.0,))])
    accumulator.step(2, 6.0, [Reject("gone", "enough")])
    accumulator.step(3, 10.0, [Arrived("here", "w1", (1.0,))])
    accumulator.step(4, 11.0, [Complete("here")])
    assert accumulator.result().path_s == 11.0


def test_nodes_of_an_adapter_load_its_base_and_wait_for_it() -> None:
    """The adapter's node is ready at 0 s: base and adapter take 4 + 1, and the base's own node finds it from 4 s on."""
    nodes = [Task("a", "adapter"), Task("b", "base")]
    graphs = {"g": TaskGraph("g", nodes, [("a", "b")]), "w": TaskGraph("w", [Task("b", "base")], [])}
    ends = {}
    for name, sizes in (("g", (2.0, 3.0)), ("w", (3.0,))):
        accumulator = BoundsAccumulator(
            Pool.parse("2", {}), graphs, {"base": 4.0, "adapter": 1.0}, bases={"adapter": "base"}
        )
        accumulator.add(0.0, Arrived("r", name, sizes))
        ends[name] = accumulator.result().path_s
    assert ends == {"g": 4.0 + 1.0 + 2.0 + 3.0, "w": 4.0 + 3.0}


def test_models_of_nodes_that_may_be_added_can_be_loaded_from_the_first_arrival_on() -> None:
    for later, path_s in (((), 2.0 + 1.0 + 9.0 + 1.0), (("m2",), 9.0 + 1.0)):
        accumulator = BoundsAccumulator(
            Pool.parse("4", {}), {"c": chain("c", 1, 2)}, {"m1": 2.0, "m2": 9.0}, later=later
        )
        accumulator.add(0.0, Arrived("r", "c", (1.0, 1.0)))
        assert accumulator.result().path_s == path_s


def test_head_body_tail() -> None:
    """Two nodes as wide as the pool, 4 s each, and 6 s that follow each of them: 8 + 6 is also the optimum."""
    result = bound("4", [chain("c", 4, 1)], [(0.0, "c", (4.0, 6.0))] * 2)
    assert (result.area_s, result.path_s) == (11.0, 10.0)
    assert (result.head_body_tail_s, result.binding) == (14.0, "head-body-tail")


def test_head_body_tail_waits_for_late_arrivals() -> None:
    result = bound("1", [single(1)], [(0.0, "w1", (1.0,)), (10.0, "w1", (4.0,)), (10.0, "w1", (4.0,))], {"m1": 3.0})
    assert (result.area_s, result.path_s, result.head_body_tail_s) == (12.0, 14.0, 18.0)


def test_setups_count_before_parts_with_a_tail() -> None:
    """Both models of the pool-wide nodes are loaded before the last 6 s: (2 + 4) + (3 + 4) + 6."""
    first, second = chain("c", 4, 1), TaskGraph("d", [Task("a", "x", 4), Task("b", "m1")], [("a", "b")])
    result = bound("4", [first, second], [(0.0, "c", (4.0, 6.0)), (0.0, "d", (4.0, 6.0))], {"m4": 2.0, "x": 3.0})
    assert result.head_body_tail_s == 19.0


def test_percentiles_at_one_arrival_are_sums_of_the_smallest_loads() -> None:
    """Ends are at least 1, 3, 6, 10 on two GPUs; the percentile is taken between two of them as numpy does."""
    result = bound("2", [single(1)], [(5.0, "w1", (size,)) for size in (8.0, 2.0, 6.0, 4.0)])
    ends = [2.0, 4.0, 6.0, 10.0]  # the two shortest cannot end before their own sizes
    assert result.median_s == np.percentile(ends, 50)
    assert result.p99_s == pytest.approx(np.percentile(ends, 99))
    assert result.mean_s == np.mean(ends)


def test_percentiles_of_a_burst() -> None:
    """Of two requests at 0 and three at 100, four respond within x only if two of the three do: 20 s on one GPU."""
    result = bound("1", [single(1)], [(at, "w1", (10.0,)) for at in (0.0, 0.0, 100.0, 100.0, 100.0)])
    assert result.median_s == 10.0
    assert result.p99_s == pytest.approx(20.0 + 0.96 * 10.0)


def test_mean_is_that_of_the_shortest_remaining_first() -> None:
    """On one GPU the short one overtakes the long one: 1 and 5 seconds, where first come first served has 4 and 4."""
    assert bound("1", [single(1)], [(0.0, "w1", (4.0,)), (1.0, "w1", (1.0,))]).mean_s == 3.0


def test_mean_sees_that_wide_parts_exclude_each_other() -> None:
    result = bound("8", [single(5)], [(0.0, "w5", (10.0,))] * 3)
    assert (result.mean_s, result.median_s) == (20.0, 20.0)


def test_batching_shrinks_areas_but_no_path() -> None:
    result = bound("1", [single(1)], [(0.0, "w1", (10.0,))] * 4, {"m1": 3.0}, gains={"m1": 4.0})
    assert (result.area_s, result.path_s, result.makespan_s) == (13.0, 13.0, 13.0)
    assert result.mean_s == 13.0


def test_nothing_to_do() -> None:
    assert bound("2", [single(1)], []) == Bounds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "area")


def test_of_works_that_cannot_complete_only_what_runs_counts_and_only_for_the_makespan() -> None:
    ghost = TaskGraph(
        "ghost", [Task("a", "m1"), Task("b", "m1")], [], never={"b": "waits for a name that is not a node"}
    )
    graphs = {graph.name: graph for graph in (single(1), single(4), ghost)}
    accumulator = BoundsAccumulator(Pool.parse("2", {}), graphs, {"m4": 50.0})
    accumulator.add(0.0, Arrived("x", "w1", (3.0,)))
    alone = accumulator.result()
    accumulator.add(0.0, Arrived("too wide", "w4", (100.0,)))
    accumulator.add(0.0, Arrived("faulty", "unknown", (), fault="unknown workflow"))
    assert accumulator.result() == alone
    accumulator.add(0.0, Arrived("stuck", "ghost", (100.0, 1000.0)))
    partly = accumulator.result()
    assert partly.makespan_s == partly.path_s == 100.0
    assert (partly.mean_s, partly.median_s, partly.p99_s) == (alone.mean_s, alone.median_s, alone.p99_s)


def test_a_rejected_work_that_ran_in_part_counts_unless_something_failed() -> None:
    ghost = TaskGraph(
        "ghost", [Task("a", "m1"), Task("b", "m1")], [], never={"b": "waits for a name that is not a node"}
    )
    for failed, expected in (([], 100.0), ([Failed("stuck", "a", "out of memory")], 0.0)):
        accumulator = BoundsAccumulator(Pool.parse("2", {}), {"ghost": ghost}, {})
        accumulator.step(1, 0.0, [Arrived("stuck", "ghost", (100.0, 1000.0))])
        accumulator.step(2, 100.0, [*failed, Reject("stuck", "waits")])
        assert accumulator.result().makespan_s == expected


def test_where_nothing_can_be_said_there_are_no_bounds() -> None:
    accumulator = BoundsAccumulator(Pool.parse("2", {}), {"w1": single(1)}, {}, void="run times are not exact")
    accumulator.add(0.0, Arrived("x", "w1", (3.0,)))
    assert (accumulator.result().makespan_s, accumulator.result().void) == (0.0, "run times are not exact")


def test_sizes_must_match_the_graph() -> None:
    with pytest.raises(ValueError, match="w0 has 2 sizes, but w1 has 1 nodes"):
        bound("1", [single(1)], [(0.0, "w1", (1.0, 2.0))])


# --- one request after another -----------------------------------------------------------------------


def some_requests(seed: int, count: int) -> tuple[dict[str, TaskGraph], Arrivals]:
    rng = random.Random(seed)
    graphs = {graph.name: graph for graph in (single(1), chain("c", 1, 2, 1), chain("d", 4, 3), chain("e", 1, 5))}
    requests: Arrivals = []
    now = 0.0
    for i in range(count):
        now += rng.choice([0.0, 0.0, rng.expovariate(0.2)])
        graph = rng.choice(list(graphs.values()))
        requests.append((now, Arrived(f"r{i}", graph.name, tuple(rng.uniform(0.1, 30.0) for _ in graph.tasks))))
    return graphs, requests


def assert_close(one: Bounds, other: Bounds) -> None:
    figures = [name for name in Bounds.__struct_fields__ if name not in ("binding", "void")]
    assert [getattr(one, f) for f in figures] == pytest.approx([getattr(other, f) for f in figures], rel=1e-12)
    assert one.binding == other.binding


def test_pieces_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handled seven at a time, and asked in between, the requests give what they give at once."""
    graphs, requests = some_requests(1, 60)
    pool = Pool.parse("8", {})
    whole, pieces = (BoundsAccumulator(pool, graphs, {"m2": 3.0}) for _ in range(2))
    for arrival_s, request in requests:
        whole.add(arrival_s, request)
        pieces.add(arrival_s, request)
        pieces.result()
    expected = whole.result()
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert_close(pieces.result(), expected)


def test_a_run_counts_what_it_completed() -> None:
    """As an observer: rejected requests, faulty ones and those left open leave no trace but the first arrival."""
    graphs, requests = some_requests(2, 50)
    pool = Pool.parse("8", {})
    observer, expected = (BoundsAccumulator(pool, graphs, {"m2": 3.0}) for _ in range(2))
    for n, (arrival_s, request) in enumerate(requests):
        observer.step(n, arrival_s, [request, Arrived(f"bad{n}", "unknown", (), fault="no such workflow")])
    for n, (arrival_s, request) in enumerate(requests):
        if n and n % 3 == 0:
            observer.step(100 + n, 1000.0, [Reject(request.job, "failed too often"), Reject(f"bad{n}", "fault")])
        elif n % 7 != 6:
            observer.step(100 + n, 1000.0, [Finished(request.job, "n0"), Complete(request.job)])
            expected.add(arrival_s, request)
    assert observer.result() == expected.result()


# --- never above a schedule -----------------------------------------------------------------------


def figures_of(schedule: Sequence[Placed], requests: Arrivals) -> list[float]:
    ends: dict[str, float] = {}
    for placed in schedule:
        ends[placed.request] = max(placed.end_s, ends.get(placed.request, 0.0))
    responses = [ends[request.job] - arrival_s for arrival_s, request in requests]
    return [max(ends.values()), *map(float, (np.mean(responses), *np.percentile(responses, [50, 99])))]


def assert_below(result: Bounds, figures: Sequence[float]) -> None:
    claimed = [result.makespan_s, result.mean_s, result.median_s, result.p99_s]
    for name, claim, reached in zip(("makespan", "mean", "median", "p99"), claimed, figures, strict=True):
        assert claim <= reached * (1 + 1e-9) + 1e-9, f"the {name} bound is {claim}, yet a schedule reaches {reached}"
    assert result.makespan_s == max(result.area_s, result.wide_s, result.path_s, result.head_body_tail_s)


class Case:
    """A random pool, models with prices, graphs and requests that all fit."""

    def __init__(self, draw: st.DrawFn, pools: Sequence[str], nodes: int) -> None:
        self.pool = Pool.parse(draw(st.sampled_from(pools)), TYPES)
        width = st.integers(1, len(self.pool))
        price = st.integers(0, 6).map(lambda n: n / 2)
        self.widths = {kind: draw(width) for kind in "xyz"}
        self.load_s = {kind: draw(price) for kind in self.widths}
        self.prices = {(old, new): draw(price) for old in self.widths for new in self.widths if old != new}
        self.graphs: dict[str, TaskGraph] = {}
        self.requests: Arrivals = []
        together = draw(st.booleans())
        left = nodes
        while left:
            graph = self._graph(draw, min(left, 3))
            self.graphs[graph.name] = graph
            left -= len(graph.tasks)
            sizes = tuple(draw(st.integers(0, 10)) / 2 for _ in graph.tasks)
            arrival_s = 1.0 if together else draw(st.integers(0, 8)) / 2
            self.requests.append((arrival_s, Arrived(f"r{len(self.requests)}", graph.name, sizes)))

    def _graph(self, draw: st.DrawFn, most: int) -> TaskGraph:
        kinds = draw(st.lists(st.sampled_from(sorted(self.widths)), min_size=1, max_size=most))
        names = [f"n{i}" for i in range(len(kinds))]
        pairs = [(names[i], names[j]) for j in range(len(names)) for i in range(j)]
        edges = [pair for pair in pairs if draw(st.booleans())]
        nodes = [Task(name, kind, self.widths[kind]) for name, kind in zip(names, kinds, strict=True)]
        return TaskGraph(f"s{len(self.graphs)}", nodes, edges)

    def switch_s(self, old: str, new: str) -> float:
        return self.prices[old, new]

    def bounds(self) -> Bounds:
        least = {
            new: min([self.load_s[new], *(price for (_, to), price in self.prices.items() if to == new)])
            for new in self.widths
        }
        accumulator = BoundsAccumulator(self.pool, self.graphs, least)
        for arrival_s, request in self.requests:
            accumulator.add(arrival_s, request)
        return accumulator.result()

    def __repr__(self) -> str:
        return f"Case({self.pool.speeds}, {self.widths}, {self.load_s}, {self.prices}, {self.requests})"


def cases(pools: Sequence[str], nodes: int) -> st.SearchStrategy[Case]:
    return st.composite(lambda draw: Case(draw, pools, nodes))()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(cases(["1", "2", "3", "slow:1,gpu:1", "fast:1,gpu:1,slow:1", "5"], nodes=4))
def test_no_schedule_is_below(case: Case) -> None:
    schedules = every_schedule(case.requests, case.graphs, case.pool, case.load_s, case.switch_s)
    best = np.min([figures_of(schedule, case.requests) for schedule in schedules], axis=0)
    assert_below(case.bounds(), best)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases(["4", "8", "slow:2,fast:2"], nodes=7))
def test_the_optimum_is_not_below(case: Case) -> None:
    inputs: tuple[Arrivals, dict[str, TaskGraph], Pool, dict[str, float], Callable[[str, str], float]]
    inputs = (case.requests, case.graphs, case.pool, case.load_s, case.switch_s)
    fast = solve(*inputs, ticks_per_s=4, time_limit_s=10)
    short = solve(*inputs, ticks_per_s=4, time_limit_s=10, objective="mean")
    result = case.bounds()
    assert result.makespan_s <= fast.value_s + 1e-9
    assert result.mean_s <= short.value_s + 1e-9
    for best in (fast, short):
        assert_below(result, figures_of(best.starts, case.requests))


class _Given(WorkflowPolicy):
    """Takes the choices that it is given, then always the first; `choices` are how many there were each time."""

    def __init__(self, picks: Sequence[int], requests: int) -> None:
        self._picks = iter(picks)
        self._requests = requests
        self._arrived: set[str] = set()
        self.choices: list[int] = []

    def rank(self, node: ReadyNode, view: View) -> int:
        self._arrived.add(node.request.id)
        return node.seq

    def choose(self, view: View) -> Place | None:
        nodes = [node for queue in view.queues.values() for node in queue.nodes()]
        found = [Place(node, w, "given") for node in nodes for w in view.free_windows(node.model, aligned=False)]
        waits = view.free_count < len(view.pool) or len(self._arrived) < self._requests
        self.choices.append(len(found) + waits)
        pick = next(self._picks, 0)
        return found[pick] if pick < len(found) else None


def every_run(problem: WorkflowProblem, most: int) -> Iterator[WorkflowRun]:
    """A run for every sequence of choices: which node on which window, or none until something happens."""
    picks: list[int] = []
    for _ in range(most):
        policy = _Given(picks, len(problem.requests))
        yield run(problem, policy, journal=False)
        picks += [0] * (len(policy.choices) - len(picks))
        while picks and picks[-1] + 1 >= policy.choices[len(picks) - 1]:
            picks.pop()
        if not picks:
            return
        picks[-1] += 1


def small_problem(seed: int) -> WorkflowProblem:
    """Three models, three or four nodes, two or three GPUs, and any mixture of the rules of price."""
    rng = random.Random(seed)
    gpus = rng.choice(["big:2", "big:1,small:1", "big:2,small:1"])
    types = {"big": {"memory_gb": 40}, "small": {"memory_gb": rng.choice([20, 40]), "speed": rng.choice([0.5, 2.0])}}
    models: dict[str, dict[str, object]] = {
        name: {
            "memory_gb": rng.choice([4, 8, 16]),
            "gpus_required": rng.choice([1, 1, 2]),
            "load_time_seconds": rng.choice([0, 1, 4, 20]),
            "batch_curve": [1.0, 1.5],
        }
        for name in "xyz"
    }
    if rng.random() < 0.4:
        models["y"] |= {"adapter_of": "x", "gpus_required": models["x"]["gpus_required"]}
    rules = {
        "resident": "memory",
        "window": "primary",
        "overlap": rng.choice([0.5, 1.0]),
        "dram_gb": rng.choice([10.0, 60.0]),
        "batching": True,
        "overhead_s": 0.0,
    }
    costs = {name: rule for name, rule in rules.items() if rng.random() < 0.35}
    workflows: dict[str, object] = {}
    rows: list[dict[str, object]] = []
    left = 4 if gpus == "big:2" else 3
    while left:
        count = rng.randint(1, left)
        left -= count
        nodes = [{"id": f"n{i}", "model": rng.choice("xyz")} for i in range(count)]
        edges = [{"from": f"n{i}", "to": f"n{j}"} for j in range(count) for i in range(j) if rng.random() < 0.7]
        name = f"w{len(rows)}"
        workflows[name] = {"nodes": nodes, "edges": edges}
        times = {f"n{i}": rng.choice([0.5, 1.0, 3.0, 8.0]) for i in range(count)}
        rows.append({"request_id": name, "workflow_id": name, "timestamp": rng.choice([0, 0, 2, 9])})
        rows[-1]["node_execution_times"] = times
    rates = None
    if rng.random() < 0.3:
        rates = {
            "rates": [
                {"kind": rng.choice("xyz"), "device": rng.choice(["big", "small"]), "rate": rng.choice([0.5, 3])}
            ],
            "switches": [{"from": "x", "to": "z", "seconds": 0.5}, {"to": "x", "seconds": 1.0}],
        }
    config = {"models": models, "workflows": workflows, "gpu_types": types}
    mode: Mode = "online" if rng.random() < 0.6 else "offline"
    return load(config, rows, gpus=gpus, mode=mode, on_error="reject", costs=costs, rates=rates)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_under_no_mixture_of_rules_is_any_schedule_below(first: int) -> None:
    for seed in range(first, first + 20):
        for found in every_run(small_problem(seed), most=200):
            figures, response = found.figures, found.figures.response_s
            assert_below(found.lower, [figures.makespan_s, response.mean, response.median, response.p99])


@pytest.mark.parametrize("seed", range(10))
def test_of_one_request_alone_the_bound_is_the_optimum(seed: int) -> None:
    """A chain of unlike models of one size: each is loaded or replaces the one before, whatever is shorter."""
    rng = random.Random(seed)
    nodes = [{"id": name, "model": name} for name in "xyz"[: rng.randint(1, 3)]]
    edges = [{"from": a["id"], "to": b["id"]} for a, b in pairwise(nodes)]
    models = {n: {"memory_gb": 16, "gpus_required": 1, "load_time_seconds": rng.choice([1, 3, 30])} for n in "xyz"}
    config = {"models": models, "workflows": {"w": {"nodes": nodes, "edges": edges}}}
    times = {node["id"]: rng.uniform(1, 9) for node in nodes}
    row = {"request_id": "r", "workflow_id": "w", "timestamp": 5, "node_execution_times": times}
    problem = load(config, [row], gpus=3)
    best = min(found.figures.makespan_s for found in every_run(problem, most=500))
    assert problem.lower_bounds().makespan_s == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pool", ["8", "fast:2,gpu:4,slow:2"])
def test_long_list_schedules_are_not_below(seed: int, pool: str) -> None:
    """Two hundred requests, more than the thresholds that the bounds look at, placed one by one without setups."""
    graphs, requests = some_requests(seed, 200)
    gpus = Pool.parse(pool, TYPES)
    if seed % 2:
        requests = [(0.0, request) for _, request in requests]
    requests_of = {request.job: (arrival_s, graphs[request.of], request.sizes) for arrival_s, request in requests}
    free = [0.0] * len(gpus)
    schedule: list[Placed] = []
    for name in sorted(requests_of, key=lambda name: (requests_of[name][0], sum(requests_of[name][2]))):
        arrival_s, graph, sizes = requests_of[name]
        ends: dict[int, float] = {}
        for i in graph.topological:
            ready_s = max([arrival_s, *(ends[j] for j in graph.after[i])])
            options = []
            for window in gpus.windows(graph.tasks[i].width, aligned=False):
                start_s = max([ready_s, *(free[gpu] for gpu in window)])
                options.append((start_s + sizes[i] / min(gpus.speeds[gpu] for gpu in window), start_s, window))
            ends[i], start_s, window = min(options)
            schedule.append(Placed(name, graph.tasks[i].name, window, start_s, start_s, ends[i]))
            for gpu in window:
                free[gpu] = ends[i]
    accumulator = BoundsAccumulator(gpus, graphs, {})
    for arrival_s, request in requests:
        accumulator.add(arrival_s, request)
    assert_below(accumulator.result(), figures_of(schedule, requests))
