"""The exact optimum against hand-made cases, against every schedule there is, and against the rules it must keep."""

import builtins
import math
import os
import signal
import threading
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError, MissingExtraError
from dovetail.core.events import Arrived
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.every_schedule import every_schedule
from dovetail.testing.workflow.small_cases import small_case
from dovetail.workflow.optimise.annealing import Starts
from dovetail.workflow.optimise.exact import Placed, optimum, solve
from dovetail.workflow.simulate import run

WIDTHS = {"a": 1, "b": 2, "c": 1}
LOAD_S = {"a": 3.0, "b": 2.0, "c": 0.5}
TYPES = {"gpu": DeviceType("gpu"), "slow": DeviceType("slow", speed=0.5)}

Arrivals = list[tuple[float, Arrived]]


def switch_s(old: str, new: str) -> float:
    return 1.0 + WIDTHS[old] + 2 * WIDTHS[new]


def chain(name: str, kinds: str) -> TaskGraph:
    names = [f"n{i}" for i in range(len(kinds))]
    nodes = [Task(n, kind, WIDTHS[kind]) for n, kind in zip(names, kinds, strict=True)]
    return TaskGraph(name, nodes, pairwise(names))


GRAPHS = {kinds: chain(kinds, kinds) for kinds in ("a", "b", "c", "ab", "ca")}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pool, Arrivals, bool]:
    pool = Pool.parse(draw(st.sampled_from(["2", "3", "gpu:1,slow:1", "gpu:2,slow:1"])), TYPES)
    requests: Arrivals = []
    left = 4
    while left:
        of = draw(st.sampled_from([name for name in GRAPHS if len(name) <= left]))
        sizes = tuple(draw(st.integers(0, 12)) / 2 for _ in of)
        requests.append((draw(st.sampled_from([0.0, 0.0, 1.5, 4.0])), Arrived(f"w{len(requests)}", of, sizes)))
        left -= len(of)
    return pool, requests, draw(st.booleans())


def makespan_s(schedule: list[Placed]) -> float:
    return max(placed.end_s for placed in schedule)


def mean_s(schedule: list[Placed], requests: Arrivals) -> float:
    done = {
        request.job: max(placed.end_s for placed in schedule if placed.request == request.job)
        for _, request in requests
    }
    return sum(done[request.job] - arrival_s for arrival_s, request in requests) / len(requests)


def assert_valid(schedule: list[Placed], requests: Arrivals, pool: Pool, aligned: bool) -> None:
    """Each node once, after its arrival and predecessors, alone on its window, set up for what the window held."""
    at = {(placed.request, placed.node): placed for placed in schedule}
    assert len(at) == len(schedule) == sum(len(GRAPHS[request.of].tasks) for _, request in requests)
    kinds = {}
    for arrival_s, request in requests:
        graph = GRAPHS[request.of]
        for i, node in enumerate(graph.tasks):
            placed = at[request.job, node.name]
            kinds[request.job, node.name] = node.kind
            assert placed.gpus in pool.windows(node.width, aligned)
            ready_s = max([arrival_s, *(at[request.job, graph.tasks[j].name].end_s for j in graph.after[i])])
            assert placed.setup_start_s >= ready_s - 1e-9
            run_s = request.sizes[i] / min(pool.speeds[gpu] for gpu in placed.gpus)
            assert placed.end_s - placed.start_s == pytest.approx(run_s)
    free, held = [-math.inf] * len(pool), [""] * len(pool)
    for placed in schedule:
        kind = kinds[placed.request, placed.node]
        prices = [0.0 if held[g] == kind else switch_s(held[g], kind) if held[g] else LOAD_S[kind] for g in placed.gpus]
        assert placed.setup_start_s >= max(free[gpu] for gpu in placed.gpus) - 1e-9
        assert placed.start_s - placed.setup_start_s == pytest.approx(max(prices))
        for gpu in placed.gpus:
            free[gpu], held[gpu] = placed.end_s, kind


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases())
def test_no_schedule_is_better(case: tuple[Pool, Arrivals, bool]) -> None:
    pool, requests, aligned = case
    schedules = list(every_schedule(requests, GRAPHS, pool, LOAD_S, switch_s, aligned))
    fast = solve(requests, GRAPHS, pool, LOAD_S, switch_s, aligned, ticks_per_s=2)
    assert fast.optimal
    assert fast.value_s == fast.bound_s == pytest.approx(min(map(makespan_s, schedules)))
    short = solve(requests, GRAPHS, pool, LOAD_S, switch_s, aligned, objective="mean", ticks_per_s=2)
    assert short.optimal
    assert short.value_s == pytest.approx(min(mean_s(schedule, requests) for schedule in schedules))
    assert makespan_s(fast.starts) == pytest.approx(fast.value_s)
    assert mean_s(short.starts, requests) == pytest.approx(short.value_s)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cases())
def test_the_schedules_keep_the_rules(case: tuple[Pool, Arrivals, bool]) -> None:
    pool, requests, aligned = case
    best = solve(requests, GRAPHS, pool, LOAD_S, switch_s, aligned, ticks_per_s=2)
    assert_valid(best.starts, requests, pool, aligned)
    for schedule in islice(every_schedule(requests, GRAPHS, pool, LOAD_S, switch_s, aligned), 50):
        assert_valid(schedule, requests, pool, aligned)


def test_two_models_on_two_gpus_are_not_mixed() -> None:
    """Each GPU keeps one model: 3 + 4 + 4 on one, 0.5 + 4 + 4 on the other. Mixing would pay 4 seconds for a switch."""
    requests = [(0.0, Arrived(f"{kind}{i}", kind, (4.0,))) for kind in "ac" for i in range(2)]
    best = solve(requests, GRAPHS, Pool.parse("2", {}), LOAD_S, switch_s)
    assert (best.value_s, best.bound_s, best.optimal) == (11.0, 11.0, True)
    assert len({(placed.request[0], placed.gpus) for placed in best.starts}) == 2


def test_a_window_pays_for_its_dearest_gpu() -> None:
    """Two loads of `a` and `c` end at 4 and 1.5; `b` then replaces `a` (6) and `c` (6) on both GPUs."""
    requests = [(0.0, Arrived("x", "a", (1.0,))), (0.0, Arrived("y", "c", (1.0,))), (9.0, Arrived("z", "b", (1.0,)))]
    best = solve(requests, GRAPHS, Pool.parse("2", {}), {**LOAD_S, "b": 20.0}, switch_s)
    assert best.value_s == 9.0 + 6.0 + 1.0
    assert best.starts[-1] == Placed("z", "n0", (0, 1), 9.0, 15.0, 16.0)


def test_alignment_and_speed_narrow_the_choice() -> None:
    requests = [(0.0, Arrived("x", "b", (4.0,)))]
    pool = Pool.parse("slow:1,gpu:2", TYPES)
    assert solve(requests, GRAPHS, pool, LOAD_S, switch_s).starts[0].gpus == (1, 2)
    assert solve(requests, GRAPHS, pool, LOAD_S, switch_s, aligned=True).starts[0].gpus == (
        1,
        2,
    )  # aligned among its type
    mixed = Pool.parse("slow:1,gpu:1,slow:1", TYPES)
    aligned = solve(requests, GRAPHS, mixed, LOAD_S, switch_s, aligned=True)
    assert aligned.starts == [Placed("x", "n0", (0, 1), 0.0, 2.0, 10.0)]  # no type has two in a row


def test_rounding_is_upwards_and_the_bound_allows_for_it() -> None:
    requests = [(0.0, Arrived("x", "a", (1.0001,)))]
    best = solve(requests, GRAPHS, Pool.parse("1", {}), LOAD_S, switch_s)
    assert best.value_s == pytest.approx(4.001)
    assert best.bound_s == pytest.approx(4.0)
    assert best.bound_s <= 4.0001 <= best.value_s


def test_it_begins_with_the_best_plan_and_the_bounds() -> None:
    for seed in range(6):
        problem = small_case(seed, least=9, most=12)
        best = optimum(problem, time_limit_s=2.0)
        planned = run(problem, "optimise", journal=False).figures.makespan_s
        assert problem.lower_bounds().makespan_s <= best.bound_s <= best.value_s + 1e-9
        assert best.value_s <= planned + 0.001 * 2 * len(best.starts), f"case {seed}: rounded up, yet no worse"


def test_a_known_schedule_may_be_any_that_keeps_the_rules() -> None:
    """Also a bad one: nothing but where the search begins depends on it."""
    graphs = {"one": TaskGraph("one", [Task("a", "x"), Task("b", "y")], [("a", "b")])}
    requests = [(float(i), Arrived(f"r{i}", "one", (4.0, 3.0))) for i in range(2)]
    inputs = (requests, graphs, Pool.parse("2", {}), {"x": 3.0, "y": 5.0}, lambda old, new: 2.0)
    bad: Starts = [((f"r{i}", node), (0,)) for i in (1, 0) for node in "ab"]
    plain, hinted = solve(*inputs), solve(*inputs, known=bad, at_least_s=9.0)
    assert plain.optimal
    assert hinted.optimal
    assert plain.value_s == hinted.value_s


def test_faulty_works_are_left_out() -> None:
    requests = [(0.0, Arrived("x", "nothing", (), fault="unknown workflow"))]
    assert solve(requests, GRAPHS, Pool.parse("1", {}), LOAD_S, switch_s).starts == []


def test_a_work_that_cannot_complete_is_refused() -> None:
    with pytest.raises(InputError, match="x/n0 cannot run on this pool"):
        solve([(0.0, Arrived("x", "b", (1.0,)))], GRAPHS, Pool.parse("1", {}), LOAD_S, switch_s)


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ortools"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"dovetail\[exact\]"):
        solve([], GRAPHS, Pool.parse("1", {}), LOAD_S, switch_s)


def test_ctrl_c_ends_a_search_and_python_hears_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    begun, search = threading.Event(), cp_model.CpSolver.solve

    def searched(*given: Any) -> Any:
        begun.set()
        return search(*given)

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cp_model.CpSolver, "solve", searched)
    requests = [(0.0, Arrived(f"w{i}", "ab", (1.0 + i % 7 / 3, 2.0 + i % 5 / 7))) for i in range(30)]
    for _ in range(2):
        begun.clear()
        pressed = threading.Thread(target=interrupt)
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            solve(requests, GRAPHS, Pool.parse("3", TYPES), LOAD_S, switch_s, time_limit_s=1e6)
        pressed.join()
