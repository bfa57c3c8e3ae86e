"""The loop: what happens in which order, what ends a run, and that whatever a policy does, its journal is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.check import Check
from dovetail.core.errors import DovetailError, InputError, PolicyError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Decided,
    Failed,
    Finished,
    Instruction,
    Observed,
    Reject,
    Rows,
    Start,
    Stimulus,
    WakeAt,
    Woke,
)
from dovetail.core.journal import Header, Reader, Writer
from dovetail.core.journal.recorder import Recorder
from dovetail.core.loop.engine import replay, serve, simulate
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord
from dovetail.testing.clock import TimedInbox

Arrivals = list[tuple[float, Arrived]]


class Fifo:
    """First come, first served over tasks: nobody overtakes the oldest. What failed is tried again for ever; with
    `batching`, the waiting tasks of its kind run along with the oldest one."""

    def __init__(self, pool: Pool, graphs: Mapping[str, TaskGraph], batching: bool = False) -> None:
        self._graphs = graphs
        self._batching = batching
        self._free = list(range(len(pool)))
        self._queue: list[tuple[str, int, float]] = []  # job, task, since when it is ready
        self._jobs: dict[str, tuple[Arrived, list[int], set[int]]] = {}  # what each task waits for, what is left
        self._on: dict[tuple[str, str], tuple[int, ...]] = {}
        self._batch = 0

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        orders: list[Instruction] = []
        for event in stimuli:
            if isinstance(event, Arrived):
                orders += self._arrived(event, now)
            elif isinstance(event, Finished):
                orders += self._finished(event, now)
            elif isinstance(event, Failed):
                self._release(event)
                self._queue.append((event.job, self._graph(event.job).index[event.task], now))
        return orders + self._start()

    def close(self, now: float) -> list[Instruction]:
        return [Reject(job, "a task can never run") for job in self._jobs if self._graph(job).never]

    def _graph(self, job: str) -> TaskGraph:
        return self._graphs[self._jobs[job][0].of]

    def _arrived(self, event: Arrived, now: float) -> list[Instruction]:
        if event.fault:
            return [Reject(event.job, event.fault)]
        graph = self._graphs[event.of]
        if not graph.tasks:
            return [Complete(event.job)]
        self._jobs[event.job] = (event, [len(after) for after in graph.after], set(range(len(graph.tasks))))
        self._queue += [(event.job, i, now) for i in graph.roots]
        return []

    def _finished(self, event: Finished, now: float) -> list[Instruction]:
        self._release(event)
        graph, (_, waiting, left) = self._graph(event.job), self._jobs[event.job]
        i = graph.index[event.task]
        left.discard(i)
        for j in graph.before[i]:
            waiting[j] -= 1
            if not waiting[j] and j not in graph.never:
                self._queue.append((event.job, j, now))
        if left:
            return []
        del self._jobs[event.job]
        return [Complete(event.job)]

    def _release(self, event: Finished | Failed) -> None:
        devices = self._on.pop((event.job, event.task), ())
        if devices not in self._on.values():  # a batch holds its devices until its last task has ended
            self._free += devices

    def _start(self) -> list[Instruction]:
        orders: list[Instruction] = []
        while self._queue:
            job, i, _ = self._queue[0]
            task = self._graph(job).tasks[i]
            if task.width > len(self._free):
                break
            same = [entry for entry in self._queue if self._graph(entry[0]).tasks[entry[1]] == task]
            chosen = same if self._batching and task.width else same[:1]
            devices = tuple(self._free[: task.width])
            del self._free[: task.width]
            self._batch += len(chosen) > 1
            run_s = max(self._jobs[job][0].sizes[i] for job, i, _ in chosen)
            for job, i, ready_s in chosen:
                self._queue.remove((job, i, ready_s))
                self._on[job, task.name] = devices
                batch = self._batch if len(chosen) > 1 else 0
                orders.append(Start(job, task.name, task.kind, devices, ready_s, run_s, "oldest", batch=batch))
        return orders


class Recorded:
    """Keeps what happened, as (time, event)."""

    def __init__(self, before: int = 0) -> None:
        self.events: list[tuple[float, Any]] = []
        self.steps: list[list[Any]] = []
        self.instants: list[float] = []
        self._before = before

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        assert n == self._before + len(self.steps) + 1
        self.steps.append(list(events))
        self.instants.append(t)
        self.events += [(t, event) for event in events]

    def times(self, kind: type, attribute: str = "job") -> list[tuple[float, str]]:
        return [(t, getattr(event, attribute)) for t, event in self.events if isinstance(event, kind)]


POOL = Pool.parse("2", {})
ONE = TaskGraph("one", [Task("a", "x")], [])
GRAPHS = {
    "one": ONE,
    "chain": TaskGraph("chain", [Task("a", "x"), Task("b", "x"), Task("c", "x")], [("a", "b"), ("b", "c")]),
    "wide": TaskGraph("wide", [Task("w", "y", 2)], []),
    "stuck": TaskGraph("stuck", [Task("a", "x"), Task("b", "x")], [], never={"b": "waits for nothing that exists"}),
    "empty": TaskGraph("empty", [], []),
}


def one(name: str, size: float = 1.0) -> Arrived:
    return Arrived(name, "one", (size,))


def run(
    arrivals: Iterable[tuple[float, Arrived]],
    scheduler: Any = None,
    executor: Any = None,
    pool: Pool = POOL,
    graphs: Mapping[str, TaskGraph] = GRAPHS,
) -> Recorded:
    seen = Recorded()
    simulate(scheduler or Fifo(pool, graphs), pool, graphs, arrivals, executor or SimExecutor(), [seen])
    return seen


# --- time and order ---------------------------------------------------------------------------------


class FailsFirst(SimExecutor):
    """The first attempt at some jobs fails when it should have finished."""

    def __init__(self, *jobs: str) -> None:
        super().__init__()
        self._jobs = set(jobs)

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]:
        at_s, finished = super().start(order, now)
        if order.job not in self._jobs:
            return at_s, finished
        self._jobs.remove(order.job)
        return at_s, Failed(order.job, order.task, "broken")


def test_at_one_instant_completions_come_before_failures_before_wakes_before_arrivals() -> None:
    class Wakeful(Fifo):
        def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
            return [*super().handle(stimuli, now), *([WakeAt(2.0)] if now == 0.0 else [])]

    pool = Pool.parse("4", {})
    arrivals = [(0.0, one(name, 2.0)) for name in ("f", "b", "a")] + [(2.0, one("d")), (2.0, one("c"))]
    seen = run(arrivals, Wakeful(pool, GRAPHS), FailsFirst("f"), pool)
    stimuli = [event for event in seen.steps[1] if isinstance(event, Stimulus)]
    assert stimuli == [
        Finished("b", "a"),
        Finished("a", "a"),
        Failed("f", "a", "broken"),
        Woke(),
        one("d"),
        one("c"),
    ]


def test_a_part_without_duration_ends_at_the_same_instant_in_a_later_step() -> None:
    seen = run([(3.0, Arrived("z", "chain", (0.0, 0.0, 0.0)))])
    assert [t for t, _ in seen.events] == [3.0] * 8
    assert len(seen.steps) == 4
    assert seen.times(Complete) == [(3.0, "z")]


def test_setup_comes_before_the_run() -> None:
    class WithSetup(Fifo):
        def _start(self) -> list[Instruction]:
            return [replace(order, setup_s=0.25) for order in super()._start()]

    assert run([(1.0, one("w", 2.0))], WithSetup(POOL, GRAPHS)).times(Complete) == [(3.25, "w")]


def test_time_may_begin_before_zero() -> None:
    assert run([(-5.0, one("w", 2.0))]).times(Complete) == [(-3.0, "w")]


def test_nothing_to_do_takes_no_step() -> None:
    assert simulate(Fifo(POOL, GRAPHS), POOL, GRAPHS, [], SimExecutor()) == (0, 0.0)


def test_the_number_of_steps_and_the_last_instant_are_told() -> None:
    assert simulate(Fifo(POOL, GRAPHS), POOL, GRAPHS, [(1.0, one("w", 2.0))], SimExecutor()) == (2, 3.0)


def test_arrivals_are_drawn_when_they_are_due() -> None:
    drawn: list[float] = []

    def arrivals() -> Iterable[tuple[float, Arrived]]:
        for i in range(4):
            drawn.append(float(i))
            yield float(i), one(f"w{i}", 0.5)

    class Watching(Recorded):
        def step(self, n: int, t: float, events: Sequence[Any]) -> None:
            assert len(drawn) <= int(t) + 2
            super().step(n, t, events)

    simulate(Fifo(POOL, GRAPHS), POOL, GRAPHS, arrivals(), SimExecutor(), [Watching()])
    assert len(drawn) == 4


def test_what_failed_is_ready_again_at_once_and_its_device_is_free() -> None:
    seen = run([(0.0, one("f", 2.0)), (0.0, one("g", 3.0)), (1.0, one("h", 3.0))], executor=FailsFirst("f"))
    starts = [(t, e.job, e.devices, e.ready_s) for t, e in seen.events if isinstance(e, Start)]
    assert starts == [(0.0, "f", (0,), 0.0), (0.0, "g", (1,), 0.0), (2.0, "h", (0,), 1.0), (3.0, "f", (1,), 2.0)]
    assert seen.times(Complete) == [(3.0, "g"), (5.0, "h"), (5.0, "f")]


# --- arrivals that are refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([(1.0, one("a")), (0.5, one("b"))], r"not in order of time: b at 0\.5 s, after 1\.0 s"),
        ([(0.0, one("a")), (0.0, one("a"))], "arrival of a refused: it arrived before"),
        ([(0.0, Arrived("a", "nothing", (1.0,)))], "there is no graph 'nothing'"),
        ([(0.0, Arrived("a", "one"))], "found 0 sizes, expected one for each of the 1 tasks"),
        ([(0.0, Arrived("a", "one", (1.0, 2.0)))], "found 2 sizes, expected one for each of the 1 tasks"),
        ([(0.0, one("a", -1.0))], r"found sizes \[-1\.0\], expected seconds"),
        ([(0.0, one("a", nan))], "expected seconds"),
        ([(0.0, one("a", inf))], "expected seconds"),
    ],
)
def test_an_arrival_that_makes_no_sense_is_bad_input(arrivals: Arrivals, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(arrivals)


@pytest.mark.parametrize("at_s", [nan, inf])
def test_an_arrival_at_no_time_ends_the_run_instead_of_hanging(at_s: float) -> None:
    with pytest.raises(DovetailError, match=f"after step 1 at 0.0 s, something was to happen at {at_s} s"):
        run([(0.0, one("a", 0.5)), (at_s, one("b"))], scheduler=Idle())


def test_a_faulty_arrival_is_there_and_is_rejected() -> None:
    seen = run([(1.0, Arrived("bad", "no such thing", fault="unknown workflow")), (1.0, one("good"))])
    assert seen.times(Reject, "why") == [(1.0, "unknown workflow")]
    assert seen.times(Complete) == [(2.0, "good")]


# --- how a run ends ---------------------------------------------------------------------------------


class Idle:
    """Does nothing."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        return []

    def close(self, now: float) -> list[Instruction]:
        return []


def test_a_policy_that_stops_deciding_is_told_so() -> None:
    with pytest.raises(PolicyError, match=r"\[4.00s\] the policy stopped deciding with 2 jobs unfinished, first a"):
        run([(3.0, one("a")), (4.0, one("b"))], Idle())


def test_a_policy_that_only_ever_asks_to_be_woken_is_told_so() -> None:
    class Dreamer(Idle):
        def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
            return [WakeAt(now + 1.0)]

    with pytest.raises(PolicyError, match="woken 100000 times in a row to start nothing"):
        simulate(Dreamer(), POOL, GRAPHS, [(0.0, one("a"))], SimExecutor())


def test_a_policy_may_be_woken_as_often_as_it_likes_while_something_runs() -> None:
    class Wakeful(Fifo):
        def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
            return [*super().handle(stimuli, now), *([WakeAt(now + 1.0)] if now < 100_010.0 else [])]

    steps, _ = simulate(Wakeful(POOL, GRAPHS), POOL, GRAPHS, [(0.0, one("long", 100_020.0))], SimExecutor())
    assert steps == 1 + 100_010 + 1


def test_what_can_never_be_completed_is_rejected_in_a_last_step_of_its_own() -> None:
    seen = run([(1.0, Arrived("s", "stuck", (2.0, 2.0))), (1.0, one("w"))])
    assert seen.steps[-1] == [Reject("s", "a task can never run")]
    assert seen.times(Reject) == [(3.0, "s")]


def test_a_work_without_parts_is_complete_on_arrival() -> None:
    assert run([(1.0, Arrived("e", "empty"))]).times(Complete) == [(1.0, "e")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((-1.0, Finished("w", "a")), r"after step 1 at 0\.0 s, something was to happen at -1\.0 s"),
        ((nan, Finished("w", "a")), "something was to happen at nan s"),
        ((1.0, Finished("w", "b")), "w/b ended, but it does not run"),
        ((1.0, Finished("v", "a")), "v/a ended, but it does not run"),
    ],
)
def test_an_executor_that_talks_nonsense_ends_the_run(answer: tuple[float, Stimulus], message: str) -> None:
    class Nonsense(SimExecutor):
        def start(self, order: Start, now: float) -> tuple[float, Stimulus]:
            return answer

    with pytest.raises(DovetailError, match=message):
        run([(0.0, one("w"))], executor=Nonsense())


# --- the same on a live loop --------------------------------------------------------------------------


class Waking(Fifo):
    """Asks to be woken now and then, for each arrival anew, and does nothing about it."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        arrived = sum(isinstance(stimulus, Arrived) for stimulus in stimuli)
        return [*super().handle(stimuli, now), *([WakeAt(now + 1.5)] * arrived)]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.5]),
)
def test_a_simulated_executor_under_the_live_loop_gives_the_simulation(
    jobs: list[tuple[int, int]], failure_rate: float
) -> None:
    """Times are eighths: exact, so that they coincide often."""
    arrivals: list[tuple[float, Arrived | Asked]] = []
    for i, (at, size) in enumerate(sorted(jobs)):
        arrivals += [(at / 8, Asked("all", "news")), (at / 8, one(f"j{i}", size / 8))]
    simulated, served = Recorded(), Recorded()
    simulate(Waking(POOL, GRAPHS), POOL, GRAPHS, arrivals, SimExecutor(3, 0.0, failure_rate), [simulated])
    inbox, executor = TimedInbox(arrivals), SimExecutor(3, 0.0, failure_rate)
    executor.report_to(inbox)
    serve(Waking(POOL, GRAPHS), POOL, GRAPHS, inbox, executor, inbox.now, [served])
    assert served.events == simulated.events


def test_observers_see_a_step_before_it_is_carried_out() -> None:
    class Slow(SimExecutor):
        def carry(self, orders: Sequence[Any], now: float) -> None:
            carried.append(len(seen.steps))
            super().carry(orders, now)

    carried: list[int] = []
    seen = Recorded()
    simulate(Fifo(POOL, GRAPHS), POOL, GRAPHS, [(0.0, one("a")), (5.0, one("b"))], Slow(), [seen])
    assert carried == [1, 3]


@pytest.mark.parametrize("kept", range(6))
def test_what_a_simulation_ran_is_lost_in_a_restart_and_run_again(kept: int) -> None:
    arrivals = [(0.0, one("a", 2.0)), (1.0, one("b", 2.0)), (1.5, one("c", 2.0))]
    whole = run(arrivals)
    history = [(n, t, events) for n, (t, events) in enumerate(zip(whole.instants, whole.steps, strict=True), start=1)]
    last_s = history[kept - 1][1] if kept else 0.0
    inbox, executor = TimedInbox([arrival for arrival in arrivals if not kept or arrival[0] > last_s]), SimExecutor()
    executor.report_to(inbox)
    seen = Recorded(kept)
    serve(Fifo(POOL, GRAPHS), POOL, GRAPHS, inbox, executor, inbox.now, [seen], history[:kept])
    before = {event.job for _, _, events in history[:kept] for event in events if isinstance(event, Complete)}
    assert before | {name for _, name in seen.times(Complete)} == {"a", "b", "c"}


class Watchman:
    """A scheduler of events of its own: it decides on what is observed, and by rows on rows."""

    hears, decides = (Observed, Rows), (Decided, Rows)

    def handle(self, heard: Sequence[Observed | Rows], now: float) -> list[Decided | Rows]:
        return [
            Rows("answer", event.columns, decided=True) if isinstance(event, Rows) else Decided("look", event.what)
            for event in heard
        ]


def test_a_scheduler_of_its_own_events_is_replayed_by_them_alone(tmp_path: Path) -> None:
    header = Header(level="any", policy="watchman", pool=POOL, order="written")
    with Recorder(tmp_path / "run.jsonl", header) as recorder:
        recorder.note(2.0, Observed("smoke"), Decided("look", "smoke"))
        recorder.note(1.0, one("a"))
        recorder.note(3.0, Rows("question", {"x": [1]}), Rows("answer", {"x": [1]}, decided=True))
        recorder.note(4.0, Decided("sleep", "it is late"))
    found = list(replay(Watchman(), Reader(tmp_path / "run.jsonl")))
    assert [(n, t, decided == recorded) for n, t, decided, recorded in found] == [
        (1, 2.0, True),
        (3, 3.0, True),
        (4, 4.0, False),
    ]


# --- the same as elsewhere --------------------------------------------------------------------------


def in_simpy(jobs: Sequence[tuple[float, float]], devices: int) -> list[float]:
    """When each of the jobs (arrival, duration) ends in a SimPy model of one queue before several devices."""
    environment = simpy.Environment()
    resource = simpy.Resource(environment, capacity=devices)
    ends = [nan] * len(jobs)

    def job(i: int, arrival_s: float, size: float) -> Any:
        yield environment.timeout(arrival_s)
        with resource.request() as device:
            yield device
            yield environment.timeout(size)
            ends[i] = environment.now

    for i, (arrival_s, size) in enumerate(jobs):
        environment.process(job(i, arrival_s, size))
    environment.run()
    return ends


TIMES = st.one_of(st.integers(0, 8).map(float), st.floats(0, 20, allow_subnormal=False))


@given(st.lists(st.tuples(TIMES, TIMES), max_size=25), st.integers(1, 4))
def test_one_queue_before_several_devices_runs_as_in_simpy(jobs: list[tuple[float, float]], devices: int) -> None:
    jobs.sort(key=lambda job: job[0])
    pool = Pool.parse(str(devices), {})
    seen = run([(at_s, one(str(i), size)) for i, (at_s, size) in enumerate(jobs)], pool=pool)
    ends = {int(job): t for t, job in seen.times(Complete)}
    assert [ends[i] for i in range(len(jobs))] == in_simpy(jobs, devices)


def test_a_journal_replayed_gives_the_same_instructions(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    header = Header(level="any", policy="fifo", pool=POOL, graphs=tuple(map(TaskGraphRecord.of, GRAPHS.values())))
    arrivals = [
        (0.0, Arrived("c", "chain", (1.0, 0.1, 0.7))),
        (0.1, Arrived("s", "stuck", (1.0, 1.0))),
        (0.3, Arrived("bad", "one", fault="no times")),
        (0.3, Arrived("w", "wide", (2.0,))),
        (1.1, one("f", 1.0)),
    ]
    with Writer(path, header) as journal:
        executor = SimExecutor(seed=3, noise=0.5, failure_rate=0.3)
        steps, end_s = simulate(Fifo(POOL, GRAPHS), POOL, GRAPHS, arrivals, executor, [journal])
        journal.end(steps + 1, end_s, {})
    reader = Reader(path)
    replayed = list(replay(Fifo(reader.header.pool, reader.header.build_graphs()), reader))
    assert [n for n, *_ in replayed] == list(range(1, steps + 1))
    assert any(isinstance(event, Failed) for _, _, event in reader)
    for _, _, decided, recorded in replayed:
        assert decided == recorded


# --- rule 4: a policy can never write an invalid journal --------------------------------------------

Change = Callable[[Any, float], list[Any]]


def _also(*more: Any) -> Change:
    return lambda order, now: [order, *more]


def _but(**fields: Any) -> Change:
    return lambda order, now: [replace(order, **fields)] if isinstance(order, Start) else [order]


CHANGES = st.one_of(
    st.just(lambda order, now: []),
    st.just(lambda order, now: [order, order]),
    st.builds(_also, st.builds(Complete, st.sampled_from(["w0", "w1", "w9"]))),
    st.builds(_also, st.builds(Reject, st.sampled_from(["w0", "w1", "w9"]), st.sampled_from(["", "full"]))),
    st.builds(_also, st.builds(WakeAt, st.sampled_from([-1.0, 0.0, 3.0, 99.0, nan, inf]))),
    st.builds(lambda later: _also(WakeAt(later)), st.floats(0, 30)),
    st.builds(lambda devices: _but(devices=devices), st.lists(st.integers(-1, 4), max_size=3).map(tuple)),
    st.builds(lambda run_s: _but(run_s=run_s), st.sampled_from([0.0, 0.5, -1.0, nan, inf])),
    st.builds(lambda setup_s: _but(setup_s=setup_s), st.sampled_from([0.0, 0.5, -1.0, nan, inf])),
    st.builds(lambda ready_s: _but(ready_s=ready_s), st.sampled_from([0.0, 1.0, 2.0, nan])),
    st.builds(lambda kind: _but(kind=kind), st.sampled_from("xyz")),
    st.builds(lambda job: _but(job=job), st.sampled_from(["w0", "w1", "w9"])),
    st.builds(lambda task: _but(task=task), st.sampled_from("abz")),
    st.builds(lambda batch: _but(batch=batch), st.integers(0, 3)),
    st.builds(lambda replaces: _but(replaces=replaces, setup_s=0.5), st.sampled_from(["x", "y"])),
)


class Careless(Fifo):
    """Means well, but some of its instructions come out changed."""

    changes: Mapping[int, Change] = {}
    given = 0

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        orders: list[Instruction] = []
        for order in super().handle(stimuli, now):
            self.given += 1
            orders += self.changes[self.given](order, now) if self.given in self.changes else [order]
        return orders


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    n = draw(st.integers(0, 3).map(lambda i: 3 - i))
    tasks = [Task("abc"[i], draw(st.sampled_from("xy")), draw(st.integers(0, 2))) for i in range(n)]
    edges = [("abc"[i], "abc"[j]) for i in range(n) for j in range(i + 1, n) if draw(st.booleans())]
    return TaskGraph(
        f"graph {draw(st.integers(0, 999))}", tasks, edges, {"a": "waits"} if n and draw(st.booleans()) else {}
    )


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[TaskGraph], Arrivals]:
    given = draw(st.lists(graphs(), min_size=1, max_size=3, unique_by=lambda graph: graph.name))
    arrivals: Arrivals = []
    for i, at_s in enumerate(sorted(draw(st.lists(TIMES, min_size=1, max_size=6)))):
        graph = draw(st.sampled_from(given))
        sizes = draw(st.lists(TIMES, min_size=len(graph.tasks), max_size=len(graph.tasks)))
        arrivals.append((at_s, Arrived(f"w{i}", graph.name, tuple(sizes))))
    return given, arrivals


def faults(workload: tuple[list[TaskGraph], Arrivals], batching: bool, failure_rate: float, changes: Any) -> set[str]:
    """The rules that a run breaks by the checker's own count; and `refused` if it was stopped."""
    pool = Pool.parse("3", {})
    known = {graph.name: graph for graph in workload[0]}
    header = Header(level="any", policy="careless", pool=pool, graphs=tuple(map(TaskGraphRecord.of, workload[0])))
    check = Check(header)
    scheduler = Careless(pool, known, batching)
    scheduler.changes = changes
    refused = set()
    try:
        simulate(scheduler, pool, known, workload[1], SimExecutor(failure_rate=failure_rate), [check])
    except PolicyError:
        refused.add("refused")
    check.finish()
    return refused | set(check.faults.counts) - {"end"}


FAILURE_RATES = st.sampled_from([0.0, 0.3])


@given(workloads(), st.booleans(), FAILURE_RATES)
def test_a_sound_policy_is_never_refused(
    workload: tuple[list[TaskGraph], Arrivals], batching: bool, failure_rate: float
) -> None:
    assert faults(workload, batching, failure_rate, {}) == set()


@settings(max_examples=300)
@given(workloads(), st.booleans(), FAILURE_RATES, st.dictionaries(st.integers(1, 5), CHANGES, min_size=1, max_size=2))
def test_whatever_a_policy_does_its_journal_is_valid(
    workload: tuple[list[TaskGraph], Arrivals], batching: bool, failure_rate: float, changes: dict[int, Change]
) -> None:
    found = faults(workload, batching, failure_rate, changes)
    assert found <= ({"refused", "running", "unclosed"} if "refused" in found else set())
