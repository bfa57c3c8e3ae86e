"""Jobs that grow: what the end of a task adds is followed by guard, checker, metrics and explanations alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dovetail.core.check import Check
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Arrived, Complete, Event, Failed, Finished, Grew, Reject, Start
from dovetail.core.explain import explain, sentences
from dovetail.core.journal import Ended, Header, Reader, Writer, in_time
from dovetail.core.loop.guard import Guard
from dovetail.core.metrics import Metrics, recount
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphError, TaskGraphRecord

GRAPH = TaskGraph("agent", [Task("think", "llm"), Task("answer", "llm"), Task("log", "cpu")], [("think", "answer")])
HEADER = Header(level="any", policy="by hand", pool=Pool.parse("2", {}), graphs=(TaskGraphRecord.of(GRAPH),))
LOOP = Grew(
    "j",
    "think",
    (Task("look", "web"), Task("think#2", "llm")),
    (("think", "look"), ("look", "think#2"), ("think#2", "answer")),
    (1.0, 3.0),
    "looks something up",
)
Steps = list[tuple[float, list[Event]]]


def clean() -> Steps:
    return [
        (0.0, [Arrived("j", "agent", (2.0, 4.0, 1.0)), Start("j", "think", "llm", (0,), 0.0, 2.0, "free")]),
        (2.0, [LOOP, Finished("j", "think"), Start("j", "look", "web", (1,), 2.0, 1.0, "free")]),
        (3.0, [Finished("j", "look"), Start("j", "think#2", "llm", (0,), 3.0, 3.0, "free")]),
        (3.5, [Start("j", "log", "cpu", (1,), 0.0, 1.0, "free")]),
        (4.5, [Finished("j", "log")]),
        (6.0, [Finished("j", "think#2"), Start("j", "answer", "llm", (0,), 6.0, 4.0, "free")]),
        (10.0, [Finished("j", "answer"), Complete("j")]),
    ]


def codes(steps: Steps) -> dict[str, int]:
    metrics, check = Metrics(HEADER.pool), Check(HEADER)
    for n, (t, events) in enumerate(steps, start=1):
        metrics.step(n, t, events)
        check.step(n, t, events)
    check.step(len(steps) + 1, steps[-1][0], [Ended(recount(metrics.figures()))])
    check.finish()
    return check.faults.counts


# --- graphs ---------------------------------------------------------------------------------------


def test_jobs_that_grow_alike_share_a_graph_and_tasks_keep_their_places() -> None:
    grown = GRAPH.grown(LOOP.tasks, LOOP.edges)
    assert [task.name for task in grown.tasks] == ["think", "answer", "log", "look", "think#2"]
    assert grown.after[1] == (0, 4)
    assert grown.tails([2.0, 4.0, 1.0, 1.0, 3.0]) == [10.0, 4.0, 1.0, 8.0, 7.0]
    assert GRAPH.grown(list(LOOP.tasks), list(LOOP.edges)) is grown
    assert GRAPH.grown(LOOP.tasks, LOOP.edges[:2]) is not grown
    further = grown.grown([Task("think#3", "llm")], [("think#2", "think#3")])
    del grown  # what still grows from it keeps it, so that others find the same
    assert GRAPH.grown(LOOP.tasks, LOOP.edges).grown([Task("think#3", "llm")], [("think#2", "think#3")]) is further
    with pytest.raises(TaskGraphError, match="same name"):
        GRAPH.grown([Task("log", "cpu")], [])
    with pytest.raises(TaskGraphError, match="cycle"):
        GRAPH.grown([Task("x", "cpu")], [("answer", "x"), ("x", "think")])


@pytest.mark.parametrize("seed", range(50))
def test_a_grown_graph_is_the_one_that_is_built_at_once(seed: int) -> None:
    rng = random.Random(seed)
    tasks, edges = [Task("0", "llm"), Task("1", "cpu", 2)], [("0", "1")]
    graph = TaskGraph("any", tasks, edges, {"1": "never runs"})
    for _ in range(12):
        more = [Task(str(len(tasks) + i), "llm", rng.randint(1, 3)) for i in range(rng.randint(0, 3))]
        names = [task.name for task in (*tasks, *more)]
        pairs = [rng.sample(range(len(names)), 2) for _ in range(rng.randint(0, 4))]
        new = [(names[i], names[j]) for i, j in (sorted(pair) if rng.random() < 0.8 else pair for pair in pairs)]
        try:
            whole = TaskGraph("any", (*tasks, *more), (*edges, *new), {"1": "never runs"})
        except TaskGraphError:
            with pytest.raises(TaskGraphError, match="cycle"):
                graph.grown(more, new)
            continue
        known, graph = graph, graph.grown(more, new)
        for field in ("tasks", "widths", "index", "before", "waits", "never", "roots"):
            assert getattr(graph, field) == getattr(whole, field), field
        assert [sorted(after) for after in graph.after] == [sorted(after) for after in whole.after]
        assert sorted(graph.topological) == list(range(len(names)))
        sizes = [rng.random() for _ in names]
        assert (graph.tails(sizes), graph.heads(sizes)) == (whole.tails(sizes), whole.heads(sizes))
        old = {(i, j) for i, targets in enumerate(known.before) for j in targets}
        assert sorted(graph.added) == sorted({(i, j) for i, js in enumerate(whole.before) for j in js} - old)
        tasks, edges = [*tasks, *more], [*edges, *new]
    assert len(tasks) > 2


# --- guard ----------------------------------------------------------------------------------------


def guard_at_the_end_of_think() -> Guard:
    guard = Guard(HEADER.pool, {"agent": GRAPH})
    guard.see(Arrived("j", "agent", (2.0, 4.0, 1.0)), 0.0)
    guard.allow(Start("j", "think", "llm", (0,), 0.0, 2.0, "free"), 0.0)
    return guard


def test_the_guard_follows_what_is_added() -> None:
    guard = guard_at_the_end_of_think()
    guard.see(LOOP, 2.0)
    guard.see(Finished("j", "think"), 2.0)
    with pytest.raises(PolicyError, match="must wait for think#2"):
        guard.allow(Start("j", "answer", "llm", (0,), 2.0, 4.0, "too early"), 2.0)
    with pytest.raises(PolicyError, match="it lacks answer, log, look, think#2"):
        guard.allow(Complete("j"), 2.0)
    for t, events in clean()[1:]:
        for event in events[2:] if t == 2.0 else events:
            if isinstance(event, Finished):
                guard.see(event, t)
            elif isinstance(event, Start | Complete):
                guard.allow(event, t)
    assert guard.open_jobs == []


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (replace(LOOP, task="answer"), "answer does not run"),
        (replace(LOOP, job="ghost"), "think does not run"),
        (replace(LOOP, sizes=(1.0,)), "found 1 sizes, expected one for each of the 2 tasks"),
        (replace(LOOP, sizes=(1.0, -3.0)), "expected seconds"),
        (replace(LOOP, tasks=(Task("look", "web", -1), LOOP.tasks[1])), "negative width"),
        (replace(LOOP, tasks=(Task("log", "web"), LOOP.tasks[1])), "two tasks have the same name"),
        (replace(LOOP, edges=(("think", "lock"),)), "'lock' is not a task"),
        (replace(LOOP, edges=(("look", "think"),)), "think is ready or has started"),
        (replace(LOOP, edges=(("look", "log"),)), "log is ready or has started"),
        (replace(LOOP, edges=(("look", "think#2"), ("think#2", "look"))), "cycle"),
    ],
)
def test_the_guard_refuses_what_cannot_be_added(event: Grew, why: str) -> None:
    with pytest.raises(InputError, match=why):
        guard_at_the_end_of_think().see(event, 2.0)


def test_what_a_rejected_job_would_have_got_is_of_no_account() -> None:
    guard = guard_at_the_end_of_think()
    guard.allow(Reject("j", "cancelled"), 1.0)
    guard.see(LOOP, 2.0)
    guard.see(Finished("j", "think"), 2.0)
    assert not guard.running


# --- checker --------------------------------------------------------------------------------------


def test_a_clean_run_passes() -> None:
    assert codes(clean()) == {}


def test_a_rejected_job_may_still_be_told_of_what_its_last_task_would_add() -> None:
    start, rejected = clean()[0], Reject("j", "cancelled")
    assert codes([start, (1.0, [rejected]), (2.0, [LOOP, Finished("j", "think")])]) == {}


def edit(at: int, i: int, *events: Event) -> Callable[[Steps], None]:
    def plant(steps: Steps) -> None:
        steps[at][1][i : i + 1] = events

    return plant


def without_think_again(steps: Steps) -> None:
    del steps[5]
    steps[2][1].pop()


PLANTED: list[tuple[str, str, Callable[[Steps], None]]] = [
    ("task", "a task that was never added", edit(1, 0)),
    ("growth", "added after its job was complete", lambda s: s.append((11.0, [LOOP]))),
    ("growth", "added by a task that has ended", edit(2, 0, replace(LOOP, tasks=(Task("x", "cpu"),)))),
    ("growth", "added before the task ended", lambda s: s.insert(1, (1.0, [s[1][1].pop(0)]))),
    ("growth", "an edge into a task that is ready", edit(1, 0, replace(LOOP, edges=(*LOOP.edges, ("look", "log"))))),
    (
        "growth",
        "an edge into a task that has ended",
        edit(5, 0, Grew("j", "think#2", (Task("x", "cpu"),), (("x", "log"),), (1.0,)), Finished("j", "think#2")),
    ),
    ("growth", "sizes that are not those of its tasks", edit(1, 0, replace(LOOP, sizes=(1.0,)))),
    ("number", "a size that is none", edit(1, 0, replace(LOOP, sizes=(1.0, float("inf"))))),
    ("growth", "a name that is taken", edit(1, 0, replace(LOOP, tasks=(Task("log", "web"), LOOP.tasks[1])))),
    ("growth", "tasks added by one that failed", edit(1, 1, Failed("j", "think", "?"))),
    ("order", "a join that does not wait", lambda s: s.insert(3, (3.2, [Start("j", "answer", "llm", (1,), 2, 4, "")]))),
    ("kind", "an added task run as another", edit(1, 2, Start("j", "look", "llm", (1,), 2.0, 1.0, ""))),
    ("missing", "an added task that did not run", without_think_again),
]


@pytest.mark.parametrize(("code", "what", "plant"), PLANTED, ids=[what for _, what, _ in PLANTED])
def test_a_planted_fault_is_found(code: str, what: str, plant: Callable[[Steps], None]) -> None:
    steps = clean()
    plant(steps)
    assert code in codes(steps)


# --- readers --------------------------------------------------------------------------------------


def test_added_tasks_are_counted_and_explained(tmp_path: Path) -> None:
    path, metrics = tmp_path / "journal.jsonl", Metrics(HEADER.pool)
    with Writer(path, HEADER) as writer:
        for n, (t, events) in enumerate(clean(), start=1):
            writer.step(n, t, events)
    reader = Reader(path)
    reader.feed(metrics)
    assert (metrics.figures().tasks, metrics.figures().grown) == (5, 2)
    think, answer, log, look, again = explain(reader, "j")
    assert (look.added_by, look.ready_s, look.after) == ("think", 2.0, ["think"])
    assert (again.ready_s, again.waited_s, answer.ready_s, answer.after) == (3.0, 0.0, 6.0, ["think", "think#2"])
    assert (think.added_by, log.waited_s) == ("", 3.5)
    assert "It was added when think ended: looks something up." in sentences(again)
    assert explain(reader, "j", "think#2") == [again]


def test_in_a_journal_sorted_by_time_what_is_added_comes_before_the_end_that_adds_it() -> None:
    steps = [(n, t, list(events)) for n, (t, events) in enumerate(clean(), start=1)]
    told = [type(event) for _, t, events in in_time(steps, 0.0) for event in events if t == 2.0]  # type: ignore[arg-type]
    assert told == [Grew, Finished, Start]
