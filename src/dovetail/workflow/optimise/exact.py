"""The exact optimum of a small case, by constraint programming: what policies and bounds are held against in tests.

Times are whole ticks inside the model. Run times, prices and arrivals are rounded up to the next tick, so the schedule
found can be carried out as it is; it may be later than the true optimum by less than one tick for every rounded figure
on its critical chain, and `bound_s` is lowered by that much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, MissingExtraError
from dovetail.core.events import Arrived
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph


class Placed(NamedTuple):
    """One part of an optimal schedule: set up from `setup_start_s` to `start_s`, run until `end_s`."""

    work: str
    part: str
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
    works: Iterable[tuple[float, Arrived]],
    shapes: Mapping[str, TaskGraph],
    pool: Pool,
    load_s: Mapping[str, float],
    switch_s: Callable[[str, str], float],
    aligned: bool = False,
    time_limit_s: float = 30.0,
    objective: Literal["makespan", "mean"] = "makespan",
    ticks_per_s: int = 1000,
    workers: int = 1,
) -> Exact:
    """The optimum over all windows of neighbouring GPUs (with `aligned`, those that start at a multiple of the width).

    A GPU holds the model of its last part, and at first none. A ready part takes its window, sets it up for the
    longest price among its GPUs (`load_s` for an empty one, `switch_s(old, new)` for another model), and then runs at
    the speed of the slowest. Works with a fault are left out. Some fifteen parts are solved to the end in seconds;
    with more, the best found comes back with its bound. One worker gives the same schedule every time.

    >>> from dovetail.core.tasks import Task
    >>> shapes = {"one": TaskGraph("one", [Task("a", "llm")], [])}
    >>> works = [(0.0, Arrived(name, "one", (10.0,))) for name in ("x", "y", "z")]
    >>> best = solve(works, shapes, Pool.parse("2", {}), {"llm": 3.0}, lambda old, new: 5.0)
    >>> best.value_s, best.optimal  # one GPU loads once and runs two of them
    (23.0, True)
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError("exact", "ortools", "the exact optimum") from None
    arrivals = [(arrival_s, work) for arrival_s, work in works if not work.fault]
    tasks, parts_of = _tasks(arrivals, shapes, pool, aligned)
    if not tasks:
        return Exact(0.0, 0.0, True, [])
    clock = _Clock(ticks_per_s, tasks, _prices(load_s, switch_s, {task.kind for task in tasks}))
    plan = _Plan(cp_model.CpModel(), tasks, clock, len(pool))
    if objective == "makespan":
        plan.model.minimize(plan.makespan)
        count, sum_of_arrivals_s = 1, 0.0
    else:
        plan.model.minimize(sum(plan.last_end(parts) for parts in parts_of if parts))
        count = len(arrivals)
        sum_of_arrivals_s = sum(arrival_s for arrival_s, work in arrivals if work.sizes)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = workers
    solver.parameters.linearization_level = 0  # relaxations cost more than they prune here
    status = solver.solve(plan.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise DovetailError(f"no schedule of {len(tasks)} parts found in {time_limit_s} s")
    return Exact(
        value_s=(clock.seconds(solver.objective_value) - sum_of_arrivals_s) / count,
        bound_s=(clock.seconds(solver.best_objective_bound) - sum_of_arrivals_s) / count - clock.slack_s,
        optimal=status == cp_model.OPTIMAL,
        starts=plan.starts(solver),
    )


class _Task(NamedTuple):
    """A part that may run in one of some windows; `before` are all tasks that it must wait for, `after` the nearest."""

    work: str
    part: str
    kind: str
    arrival_s: float
    windows: tuple[tuple[int, ...], ...]
    runs_s: tuple[float, ...]
    after: tuple[int, ...]
    before: frozenset[int]


def _tasks(
    arrivals: Sequence[tuple[float, Arrived]], shapes: Mapping[str, TaskGraph], pool: Pool, aligned: bool
) -> tuple[list[_Task], list[list[int]]]:
    """All parts of all works, and for each work where its parts are."""
    speeds = pool.speeds
    tasks: list[_Task] = []
    parts_of: list[list[int]] = []
    for arrival_s, work in arrivals:
        shape = shapes[work.of]
        at: dict[int, int] = {}
        for i in shape.topological:
            part = shape.tasks[i]
            windows = pool.windows(part.width, aligned) if part.width else ()
            if not windows or i in shape.never:
                raise InputError(f"{work.job}/{part.name} cannot run on this pool; expected a work that can complete")
            runs_s = tuple(work.sizes[i] / min(speeds[gpu] for gpu in window) for window in windows)
            after = tuple(at[j] for j in shape.after[i])
            before = frozenset(after).union(*(tasks[j].before for j in after))
            at[i] = len(tasks)
            tasks.append(_Task(work.job, part.name, part.kind, arrival_s, windows, runs_s, after, before))
        parts_of.append(list(at.values()))
    return tasks, parts_of


_Prices = dict[tuple[str | None, str], float]


def _prices(load_s: Mapping[str, float], switch_s: Callable[[str, str], float], kinds: Iterable[str]) -> _Prices:
    """What a GPU that held the first model (or none) costs to make ready for the second, in seconds."""
    kinds = sorted(kinds)
    prices: _Prices = {(None, new): load_s[new] for new in kinds}
    return prices | {(old, new): switch_s(old, new) if old != new else 0.0 for old in kinds for new in kinds}


class _Clock:
    """Seconds into ticks, upwards, in the largest unit that divides them all: small numbers are solved much faster.

    A millionth of a tick is taken for floating-point noise. `slack_s` is what rounding may add to one chain of a
    schedule: less than a tick for an arrival, and for each part's price and run.
    """

    def __init__(self, ticks_per_s: int, tasks: Sequence[_Task], prices: _Prices) -> None:
        self._ticks_per_s = ticks_per_s
        self._unit = 1
        figures = [*prices.values(), *(s for task in tasks for s in (task.arrival_s, *task.runs_s))]
        self._unit = math.gcd(*map(self.ticks, figures)) or 1
        self.prices = {pair: self.ticks(price_s) for pair, price_s in prices.items()}
        rounded = int(any(self._rounds(task.arrival_s) for task in tasks))
        rounded += len(tasks) * any(map(self._rounds, prices.values()))
        rounded += sum(any(map(self._rounds, task.runs_s)) for task in tasks)
        self.slack_s = rounded / ticks_per_s

    def ticks(self, seconds: float) -> int:
        return math.ceil(seconds * self._ticks_per_s - 1e-6) // self._unit

    def seconds(self, ticks: float) -> float:
        return ticks * self._unit / self._ticks_per_s

    def _rounds(self, seconds: float) -> bool:
        return self.ticks(seconds) * self._unit - seconds * self._ticks_per_s > 1e-6


class _Plan:
    """The constraint model: for each part a window and a time, for each GPU a round trip through its parts.

    A part holds its window from `begin` to `end`, its setup being whatever it does not run; longer than the price is
    the same as waiting, so the price is only a lower limit.
    """

    def __init__(self, model: Any, tasks: Sequence[_Task], clock: _Clock, gpus: int) -> None:
        self.model = model
        self._tasks = tasks
        self._clock = clock
        runs = [[clock.ticks(run_s) for run_s in task.runs_s] for task in tasks]
        arrivals = [clock.ticks(task.arrival_s) for task in tasks]
        dearest = max(clock.prices.values())
        self._horizon = max(arrivals) + sum(max(run) + dearest for run in runs)
        self._begins = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._starts = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._ends = [model.new_int_var(arrival, self._horizon, "") for arrival in arrivals]
        self._lengths = [model.new_int_var(0, self._horizon, "") for _ in tasks]
        self._on = [[model.new_bool_var("") for _ in task.windows] for task in tasks]
        self._arcs: list[tuple[int | None, int, Any]] = []  # which part follows which on some GPU, if the literal holds
        for i, task in enumerate(tasks):
            model.add_exactly_one(self._on[i])
            run = sum(ticks * on for ticks, on in zip(runs[i], self._on[i], strict=True))
            model.add(self._ends[i] == self._starts[i] + run)
            model.add(self._starts[i] >= self._begins[i])
            for j in task.after:
                model.add(self._begins[i] >= self._ends[j])
        for gpu in range(gpus):
            self._round_trip(gpu)
        self.makespan = self.last_end(range(len(tasks)))
        self._add_area(gpus)

    def _add_area(self, gpus: int) -> None:
        """Follows from the round trips, but lets the search see early that the GPUs are full."""
        model, widths = self.model, [len(task.windows[0]) for task in self._tasks]
        times = zip(self._begins, self._lengths, self._ends, strict=True)
        model.add_cumulative([model.new_interval_var(*time, "") for time in times], widths, gpus)
        first = min(self._clock.ticks(task.arrival_s) for task in self._tasks)
        held = sum(width * length for width, length in zip(widths, self._lengths, strict=True))
        model.add(gpus * (self.makespan - first) >= held)

    def _round_trip(self, gpu: int) -> None:
        """From the empty GPU through its parts and back; each step charges the price of the model change."""
        model, tasks = self.model, self._tasks
        here: dict[int, Any] = {}
        for i, task in enumerate(tasks):
            on = [lit for lit, window in zip(self._on[i], task.windows, strict=True) if gpu in window]
            if on:
                here[i] = model.new_bool_var("")
                model.add(sum(on) == here[i])
        unused = model.new_bool_var("")
        arcs: list[tuple[int, int, Any]] = [(0, 0, unused)]
        for j, on_gpu in here.items():
            model.add_implication(unused, ~on_gpu)
            arcs += [(j + 1, j + 1, ~on_gpu), (j + 1, 0, model.new_bool_var(""))]
            for before in (None, *(i for i in here if i != j and j not in tasks[i].before)):
                follows = model.new_bool_var("")
                arcs.append((0 if before is None else before + 1, j + 1, follows))
                self._arcs.append((before, j, follows))
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
        return self._clock.prices[None if i is None else self._tasks[i].kind, self._tasks[j].kind]

    def last_end(self, tasks: Iterable[int]) -> Any:
        """A variable for the last end of some tasks."""
        last = self.model.new_int_var(0, self._horizon, "")
        self.model.add_max_equality(last, [self._ends[i] for i in tasks])
        return last

    def starts(self, solver: Any) -> list[Placed]:
        """The schedule found, in order of time, with setups no longer than their price."""
        setups = [0] * len(self._tasks)
        for i, j, follows in self._arcs:
            if solver.boolean_value(follows):
                setups[j] = max(setups[j], self._price(i, j))
        found = []
        for i, task in enumerate(self._tasks):
            start, end = solver.value(self._starts[i]), solver.value(self._ends[i])
            window = next(w for w, on in zip(task.windows, self._on[i], strict=True) if solver.boolean_value(on))
            times = map(self._clock.seconds, (start - setups[i], start, end))
            found.append(Placed(task.work, task.part, window, *times))
        return sorted(found, key=lambda placed: (placed.setup_start_s, placed.end_s))
