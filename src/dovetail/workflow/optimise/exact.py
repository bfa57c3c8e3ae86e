"""The exact optimum of a small case, by constraint programming: what policies and bounds are held against in tests.

Times are whole ticks inside the model. Run times, prices and arrivals are rounded up to the next tick, so the schedule
found can be carried out as it is; it may be later than the true optimum by less than one tick for every rounded figure
on its critical chain, and `bound_s` is lowered by that much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from itertools import pairwise
from threading import Thread
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, MissingExtraError
from dovetail.core.events import Arrived
from dovetail.core.resources import Pool
from dovetail.core.service.interrupts import interrupts
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.optimise.annealing import Starts
from dovetail.workflow.optimise.planner import optimise
from dovetail.workflow.policies.ready import OpenRequest
from dovetail.workflow.policies.view import View
from dovetail.workflow.problem import WorkflowProblem, checked, growth_unknown

MOST_NODES = 30  # for which an optimum is searched
_AGAIN_S = 0.05  # until it is looked again whether a search is to end


class Placed(NamedTuple):
    """One node of an optimal schedule: set up from `setup_start_s` to `start_s`, run until `end_s`."""

    request: str
    node: str
    gpus: tuple[int, ...]
    setup_start_s: float
    start_s: float
    end_s: float


class Exact(Struct, frozen=True):
    """The best schedule found, its makespan or mean response, and a bound that no schedule beats.

    `optimal` says that the search proved it, to the tick.
    """

    value_s: float
    bound_s: float
    optimal: bool
    starts: list[Placed]


def solve(
    requests: Iterable[tuple[float, Arrived]],
    graphs: Mapping[str, TaskGraph],
    pool: Pool,
    load_s: Mapping[str, float],
    switch_s: Callable[[str, str], float],
    aligned: bool = False,
    time_limit_s: float = 30.0,
    objective: Literal["makespan", "mean"] = "makespan",
    ticks_per_s: int = 1000,
    workers: int = 1,
    known: Starts = (),
    at_least_s: float = 0.0,
) -> Exact:
    """The optimum over all windows of neighbouring GPUs (with `aligned`, those that start at a multiple of the width).

    A GPU holds the model of its last node, and at first none. A ready node takes its window, sets it up for the
    longest price among its GPUs (`load_s` for an empty one, `switch_s(old, new)` for another model), and then runs at
    the speed of the slowest. Requests with a fault are left out. Some fifteen nodes are solved to the end in seconds;
    with more, the best found comes back with its bound. One worker gives the same schedule every time. The search
    begins with a `known` schedule, nodes in the order of their starts with their windows, and with the bound
    `at_least_s` on the makespan or mean.

    >>> from dovetail.core.tasks import Task
    >>> graphs = {"one": TaskGraph("one", [Task("a", "llm")], [])}
    >>> requests = [(0.0, Arrived(name, "one", (10.0,))) for name in ("x", "y", "z")]
    >>> best = solve(requests, graphs, Pool.parse("2", {}), {"llm": 3.0}, lambda old, new: 5.0)
    >>> best.value_s, best.optimal  # one GPU loads once and runs two of them
    (23.0, True)
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError("exact", "ortools", "the exact optimum") from None
    arrivals = [(arrival_s, request) for arrival_s, request in requests if not request.fault]
    nodes, nodes_of = _nodes(arrivals, graphs, pool, aligned)
    if not nodes:
        return Exact(0.0, 0.0, True, [])
    clock = _Clock(ticks_per_s, nodes, _prices(load_s, switch_s, {node.kind for node in nodes}))
    plan = _Plan(cp_model.CpModel(), nodes, clock, len(pool))
    total, count, sum_of_arrivals_s = plan.makespan, 1, 0.0
    if objective == "mean":
        total, count = sum(plan.last_end(nodes) for nodes in nodes_of if nodes), len(arrivals)
        sum_of_arrivals_s = sum(arrival_s for arrival_s, request in arrivals if request.sizes)
    plan.model.minimize(total)
    if at_least_s > 0:
        plan.model.add(total >= clock.ticks((at_least_s * count + sum_of_arrivals_s) * (1 - 1e-12)))
    if known:
        plan.hint(known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = workers
    solver.parameters.linearization_level = 0  # relaxations cost more than they prune here
    status = _search(solver, plan.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise DovetailError(f"no schedule of {len(nodes)} nodes found in {time_limit_s} s")
    return Exact(
        value_s=(clock.seconds(solver.objective_value) - sum_of_arrivals_s) / count,
        bound_s=max(
            at_least_s, (clock.seconds(solver.best_objective_bound) - sum_of_arrivals_s) / count - clock.slack_s
        ),
        optimal=status == cp_model.OPTIMAL,
        starts=plan.starts(solver),
    )


def _search(solver: Any, model: Any) -> Any:
    """The solver's status. Ctrl-C ends the search, as it ends anything else: the solver's own way of hearing it would
    give back what it has so far, and leave a process behind that the next Ctrl-C kills without a word."""
    solver.parameters.catch_sigint_signal = False
    search: Future[Any] = Future()

    def work() -> None:
        try:
            search.set_result(solver.solve(model))
        except BaseException as error:
            search.set_exception(error)

    pressed: list[bool] = []
    with interrupts(lambda: pressed.append(True)):
        Thread(target=work, name="exact search").start()
        while not search.done():
            if pressed:
                solver.stop_search()  # which one that has just begun may not hear
            wait([search], _AGAIN_S)
    if pressed:
        raise KeyboardInterrupt
    return search.result()


def optimum(problem: WorkflowProblem, time_limit_s: float = 60.0, known: Starts | None = None) -> Exact:
    """The best makespan of a small problem, by CP-SAT (`pip install 'dovetail[exact]'`), where its rules of price are
    the default ones. The search begins with a plan: `known`, or that of the policy `optimise`."""
    if not isinstance(time_limit_s, int | float) or not 0 < time_limit_s < math.inf:
        raise InputError(f"--time-limit-s {time_limit_s!r}: expected a positive number of seconds")
    if checked(problem).costs != CostRules(problem.costs.pcie_gb_s, problem.costs.overhead_s) or problem.rates:
        raise InputError("--exact knows only the default rules of price: no cost extension and no rate table")
    if any(model.adapter_of for model in problem.models.values()):
        raise InputError("--exact knows no adapters: it counts what a switch costs by the last model alone")
    if any(model.prefix is not None for model in problem.models.values()):
        raise InputError(
            "--exact knows no prefixes: nodes take as long wherever they run; leave prefix_cache_tokens out"
        )
    if problem.gpus_over_time is not None:
        raise InputError("--exact knows no gpus_over_time: it has all GPUs at all times")
    if any(model.slots for model in problem.models.values()):
        raise InputError("--exact knows no slots (max_concurrency): in its schedules a node has its GPUs for itself")
    if problem.growth:
        raise InputError(f"--exact needs to know all nodes{growth_unknown(problem)}")
    used = [problem.graphs[request.of] for _, request in problem.requests.arrivals() if not request.fault]
    if (nodes := sum(len(graph.tasks) for graph in used)) > MOST_NODES:
        raise InputError(f"--exact is for {MOST_NODES} nodes at most, these requests have {nodes}")
    if problem.tenancy is not None and problem.tenancy.tenants:
        raise InputError("--exact knows no turns and quotas of tenants")
    view, windows = problem.new_view(), problem.pool.windows
    for name, model in problem.models.items():
        if len(view.roomy_windows(name, aligned=False)) < len(windows(model.width, aligned=False)):
            raise InputError(f"--exact knows no limits of memory, and {name!r} does not fit on every GPU")
    loads = {name: model.load_s for name, model in problem.models.items()}
    arrivals = [(at_s, request) for at_s, request in problem.requests.arrivals() if not request.fault]
    return solve(
        arrivals,
        problem.graphs,
        problem.pool,
        loads,
        view.residents.reload_s,
        time_limit_s=time_limit_s,
        known=_best_known(view, problem.graphs, arrivals) if known is None else known,
        at_least_s=problem.lower_bounds().makespan_s,
    )


def _best_known(view: View, graphs: Mapping[str, TaskGraph], arrivals: Sequence[tuple[float, Arrived]]) -> Starts:
    """The best schedule that planning finds, whenever requests arrive."""
    requests = [
        OpenRequest(request.job, graphs[request.of], request.sizes, at_s, None, 1.0) for at_s, request in arrivals
    ]
    return optimise(view, requests).starts if requests else []


class _Node(NamedTuple):
    """A node that may run in one of some windows; `before` are all nodes that it must wait for, `after` the nearest."""

    request: str
    node: str
    kind: str
    arrival_s: float
    windows: tuple[tuple[int, ...], ...]
    runs_s: tuple[float, ...]
    after: tuple[int, ...]
    before: frozenset[int]


def _nodes(
    arrivals: Sequence[tuple[float, Arrived]], graphs: Mapping[str, TaskGraph], pool: Pool, aligned: bool
) -> tuple[list[_Node], list[list[int]]]:
    """All nodes of all requests, and for each request where its nodes are."""
    speeds = pool.speeds
    nodes: list[_Node] = []
    nodes_of: list[list[int]] = []
    for arrival_s, request in arrivals:
        graph = graphs[request.of]
        at: dict[int, int] = {}
        for i in graph.topological:
            node = graph.tasks[i]
            windows = pool.windows(node.width, aligned) if node.width else ()
            if not windows or i in graph.never:
                raise InputError(
                    f"{request.job}/{node.name} cannot run on this pool; expected a request that can complete"
                )
            runs_s = tuple(request.sizes[i] / min(speeds[gpu] for gpu in window) for window in windows)
            after = tuple(at[j] for j in graph.after[i])
            before = frozenset(after).union(*(nodes[j].before for j in after))
            at[i] = len(nodes)
            nodes.append(_Node(request.job, node.name, node.kind, arrival_s, windows, runs_s, after, before))
        nodes_of.append(list(at.values()))
    return nodes, nodes_of


_Prices = dict[tuple[str | None, str], float]


def _prices(load_s: Mapping[str, float], switch_s: Callable[[str, str], float], kinds: Iterable[str]) -> _Prices:
    """What a GPU that held the first model (or none) costs to make ready for the second, in seconds."""
    kinds = sorted(kinds)
    prices: _Prices = {(None, new): load_s[new] for new in kinds}
    return prices | {(old, new): switch_s(old, new) if old != new else 0.0 for old in kinds for new in kinds}


class _Clock:
    """Seconds into ticks, upwards, in the largest unit that divides them all: small numbers are solved much faster.

    A millionth of a tick is taken for floating-point noise. `slack_s` is what rounding may add to one chain of a
    schedule: less than a tick for an arrival, and for each node's price and run.
    """

    def __init__(self, ticks_per_s: int, nodes: Sequence[_Node], prices: _Prices) -> None:
        self._ticks_per_s = ticks_per_s
        self._unit = 1
        figures = [*prices.values(), *(s for node in nodes for s in (node.arrival_s, *node.runs_s))]
        self._unit = math.gcd(*map(self.ticks, figures)) or 1
        self.prices = {pair: self.ticks(price_s) for pair, price_s in prices.items()}
        rounded = int(any(self._rounds(node.arrival_s) for node in nodes))
        rounded += len(nodes) * any(map(self._rounds, prices.values()))
        rounded += sum(any(map(self._rounds, node.runs_s)) for node in nodes)
        self.slack_s = rounded / ticks_per_s

    def ticks(self, seconds: float) -> int:
        return math.ceil(seconds * self._ticks_per_s - 1e-6) // self._unit

    def seconds(self, ticks: float) -> float:
        return ticks * self._unit / self._ticks_per_s

    def _rounds(self, seconds: float) -> bool:
        return self.ticks(seconds) * self._unit - seconds * self._ticks_per_s > 1e-6


class _Plan:
    """The constraint model: for each node a window and a time, for each GPU a round trip through its nodes.

    A node holds its window from `begin` to `end`, its setup being whatever it does not run; longer than the price is
    the same as waiting, so the price is only a lower limit.
    """

    def __init__(self, model: Any, nodes: Sequence[_Node], clock: _Clock, gpus: int) -> None:
        self.model = model
        self._nodes = nodes
        self._clock = clock
        runs = [[clock.ticks(run_s) for run_s in node.runs_s] for node in nodes]
        arrivals = [clock.ticks(node.arrival_s) for node in nodes]
        dearest = max(clock.prices.values())
        self._horizon = max(arrivals) + sum(max(run) + dearest for run in runs)
        self._begins = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._starts = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._ends = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._lengths = [model.new_int_var(0, self._horizon, "") for _ in nodes]
        self._on = [[model.new_bool_var("") for _ in node.windows] for node in nodes]
        # which node follows which (None: the empty GPU, before or after all) on which GPU, if the literal holds
        self._arcs: list[tuple[int | None, int | None, int, Any]] = []
        self._last_ends: list[tuple[Any, list[int]]] = []
        for i, node in enumerate(nodes):
            model.add_exactly_one(self._on[i])
            run = sum(ticks * on for ticks, on in zip(runs[i], self._on[i], strict=True))
            model.add(self._ends[i] == self._starts[i] + run)
            model.add(self._starts[i] >= self._begins[i])
            for j in node.after:
                model.add(self._begins[i] >= self._ends[j])
        for gpu in range(gpus):
            self._round_trip(gpu)
        self.makespan = self.last_end(range(len(nodes)))
        self._add_area(gpus)

    def _add_area(self, gpus: int) -> None:
        """Follows from the round trips, but lets the search see early that the GPUs are full."""
        model, widths = self.model, [len(node.windows[0]) for node in self._nodes]
        times = zip(self._begins, self._lengths, self._ends, strict=True)
        model.add_cumulative([model.new_interval_var(*time, "") for time in times], widths, gpus)
        first = min(self._clock.ticks(node.arrival_s) for node in self._nodes)
        held = sum(width * length for width, length in zip(widths, self._lengths, strict=True))
        model.add(gpus * (self.makespan - first) >= held)

    def _round_trip(self, gpu: int) -> None:
        """From the empty GPU through its nodes and back; each step charges the price of the model change."""
        model, nodes = self.model, self._nodes
        here: dict[int, Any] = {}
        for i, node in enumerate(nodes):
            on = [lit for lit, window in zip(self._on[i], node.windows, strict=True) if gpu in window]
            if on:
                here[i] = model.new_bool_var("")
                model.add(sum(on) == here[i])
        unused = model.new_bool_var("")
        self._arcs.append((None, None, gpu, unused))
        arcs: list[tuple[int, int, Any]] = [(0, 0, unused)]
        for j, on_gpu in here.items():
            model.add_implication(unused, ~on_gpu)
            last = model.new_bool_var("")
            self._arcs.append((j, None, gpu, last))
            arcs += [(j + 1, j + 1, ~on_gpu), (j + 1, 0, last)]
            for before in (None, *(i for i in here if i != j and j not in nodes[i].before)):
                follows = model.new_bool_var("")
                arcs.append((0 if before is None else before + 1, j + 1, follows))
                self._arcs.append((before, j, gpu, follows))
                model.add(self._starts[j] >= self._begins[j] + self._price(before, j)).only_enforce_if(follows)
                if before is not None:
                    model.add(self._begins[j] >= self._ends[before]).only_enforce_if(follows)
        model.add_circuit(arcs)
        model.add_no_overlap(
            [
                model.new_optional_interval_var(self._begins[i], self._lengths[i], self._ends[i], on_gpu, "")
                for i, on_gpu in here.items()
            ]
        )

    def _price(self, i: int | None, j: int) -> int:
        return self._clock.prices[None if i is None else self._nodes[i].kind, self._nodes[j].kind]

    def last_end(self, nodes: Iterable[int]) -> Any:
        """A variable for the last end of some nodes."""
        last, some = self.model.new_int_var(0, self._horizon, ""), list(nodes)
        self.model.add_max_equality(last, [self._ends[i] for i in some])
        self._last_ends.append((last, some))
        return last

    def hint(self, known: Starts) -> None:
        """Begin the search with a schedule: every node as soon as this order of starts allows."""
        place = {(node.request, node.node): i for i, node in enumerate(self._nodes)}
        ends, free, lines = [0] * len(place), dict[int, int](), dict[int, list[int | None]]()
        add = self.model.add_hint
        for key, window in known:
            i = place[key]
            node = self._nodes[i]
            begin = max([self._clock.ticks(node.arrival_s), *[ends[j] for j in node.after]])
            begin = max([begin, *[free.get(gpu, 0) for gpu in window]])
            lasts = [lines.get(gpu, [None])[-1] for gpu in window]
            start = begin + max(self._price(last, i) for last in lasts)
            ends[i] = start + self._clock.ticks(node.runs_s[node.windows.index(window)])
            for gpu in window:
                free[gpu] = ends[i]
                lines.setdefault(gpu, [None]).append(i)
            for variable, value in (
                (self._begins[i], begin),
                (self._starts[i], start),
                (self._ends[i], ends[i]),
                (self._lengths[i], ends[i] - begin),
                *((on, chosen == window) for on, chosen in zip(self._on[i], node.windows, strict=True)),
            ):
                add(variable, value)
        for last, some in self._last_ends:
            add(last, max(ends[i] for i in some))
        steps = {(gpu, *pair) for gpu, line in lines.items() for pair in pairwise([*line, None])}
        for before, after, gpu, follows in self._arcs:
            add(follows, (gpu, before, after) in steps or (before is None and after is None and gpu not in lines))

    def starts(self, solver: Any) -> list[Placed]:
        """The schedule found, in order of time, with setups no longer than their price."""
        setups = [0] * len(self._nodes)
        for i, j, _, follows in self._arcs:
            if j is not None and solver.boolean_value(follows):
                setups[j] = max(setups[j], self._price(i, j))
        found = []
        for i, node in enumerate(self._nodes):
            start, end = solver.value(self._starts[i]), solver.value(self._ends[i])
            window = next(w for w, on in zip(node.windows, self._on[i], strict=True) if solver.boolean_value(on))
            times = map(self._clock.seconds, (start - setups[i], start, end))
            found.append(Placed(node.request, node.node, window, *times))
        return sorted(found, key=lambda placed: (placed.setup_start_s, placed.end_s))
