"""Explanations: why a task waited, who went first, and what became of it, from the journal alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.explain import Explanation, explain, sentences
from dovetail.core.journal import Entry, Header, Reader, Writer
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraphRecord

HEADER = Header(
    level="any",
    policy="by hand",
    pool=Pool.parse("2", {}),
    graphs=(
        TaskGraphRecord("pair", (Task("a", "x"), Task("b", "y", 2)), (("a", "b"),)),
        TaskGraphRecord("one", (Task("c", "x"),)),
        TaskGraphRecord("stuck", (Task("d", "x"), Task("e", "z", 9)), (), {"e": "needs 9 GPUs, the pool has 2"}),
    ),
)
STEPS: list[tuple[float, list[Any]]] = [
    (0.0, [Arrived("p", "pair", (4.0, 6.0)), Start("p", "a", "x", (0,), 0.0, 4.0, "free", 1.0)]),
    (1.0, [Arrived("q", "one", (3.0,)), Start("q", "c", "x", (1,), 1.0, 3.0, "free")]),
    (2.0, [Arrived("bad", "nothing", fault="unknown workflow"), Reject("bad", "unknown workflow")]),
    (
        4.0,
        [Finished("q", "c"), Complete("q"), Arrived("r", "one", (2.0,)), Start("r", "c", "x", (1,), 4.0, 2.0, "warm")],
    ),
    (5.0, [Finished("p", "a")]),
    (
        6.0,
        [Finished("r", "c"), Complete("r"), Arrived("s", "one", (1.0,)), Start("s", "c", "x", (1,), 6.0, 1.0, "warm")],
    ),
    (
        7.0,
        [
            Failed("s", "c", "out of memory"),
            Start("p", "b", "y", (0, 1), 5.0, 6.0, "both free", 0.5, "x"),
            Arrived("t", "stuck", (1.0, 1.0)),
        ],
    ),
    (
        13.5,
        [
            Finished("p", "b"),
            Complete("p"),
            Start("s", "c", "x", (0,), 7.0, 1.0, "again"),
            Start("t", "d", "x", (1,), 7.0, 1.0, "free"),
        ],
    ),
    (14.5, [Failed("s", "c", "out of memory"), Reject("s", "failed twice"), Finished("t", "d")]),
    (14.5, [Reject("t", "node 'e' needs 9 GPUs")]),
]


@pytest.fixture
def journal(tmp_path: Path) -> Reader:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        for n, (t, events) in enumerate(STEPS, start=1):
            writer.step(n, t, events)
        writer.end(len(STEPS) + 1, 14.5, {})
    return Reader(path)


def story(journal: Reader, job: str, task: str) -> Explanation:
    (only,) = explain(journal, job, task)
    return only


def test_a_part_that_started_at_once(journal: Reader) -> None:
    assert sentences(story(journal, "p", "a")) == [
        "p/a needs x on 1 device; its job arrived at 0.00 s.",
        "It became ready at 0.00 s on arrival.",
        "It started at once.",
        "It started at 0.00 s on [0]: free.",
        "Making x resident took 1.00 s.",
        "It finished at 5.00 s.",
    ]


def test_a_part_that_waited_knows_who_held_the_devices_and_who_went_first(journal: Reader) -> None:
    found = story(journal, "p", "b")
    assert (found.ready_s, found.started_s, found.waited_s, found.free_when_ready) == (5.0, 7.0, 2.0, (0,))
    assert [(other.job, other.started_s) for other in found.holders] == [("r", 4.0)]
    assert [(other.job, other.started_s) for other in found.overtakers] == [("s", 6.0)]
    assert sentences(found) == [
        "p/b needs y on 2 devices; its job arrived at 0.00 s.",
        "It became ready at 5.00 s when a had finished.",
        "It waited 2.00 s.",
        "Only 1 device was free when it became ready; held were [1] by r/c (x).",
        "1 task became ready later and started earlier, first s/c (x, warm).",
        "It started at 7.00 s on [0, 1]: both free.",
        "Making y resident in the place of x took 0.50 s.",
        "It finished at 13.50 s.",
    ]


def test_only_who_was_ready_later_and_started_earlier_has_overtaken(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived(name, "one", (1.0,)) for name in ("it", "as early")])
        writer.step(2, 1.0, [Start("as early", "c", "x", (0,), 0.0, 1.0, "lucky")])
        writer.step(3, 2.0, [Finished("as early", "c"), Complete("as early"), Arrived("younger", "one", (1.0,))])
        together = [Start("younger", "c", "x", (0,), 2.0, 1.0, "free"), Start("it", "c", "x", (1,), 0.0, 1.0, "free")]
        writer.step(4, 3.0, together)
    assert story(Reader(path), "it", "c").overtaken_by == 0


def test_free_devices_are_told_when_the_policy_preferred_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("w", "one", (1.0,))])
        writer.step(2, 3.0, [Start("w", "c", "x", (0,), 0.0, 1.0, "at last")])
    found = story(Reader(path), "w", "c")
    assert (found.status, found.holders, found.free_when_ready) == ("running", [], (0, 1))
    assert "2 devices were free then, but the policy preferred others." in sentences(found)


def test_many_overtakers_are_counted_and_some_are_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("w", "one", (1.0,))])
        for i in range(1, 31):
            name = f"w{i}"
            writer.step(i + 1, float(i), [Arrived(name, "one", (0.5,)), Start(name, "c", "x", (0,), i, 0.5, "younger")])
        writer.step(32, 31.0, [Start("w", "c", "x", (1,), 0.0, 1.0, "at last")])
    found = story(Reader(path), "w", "c")
    assert (found.overtaken_by, len(found.overtakers)) == (30, 10)
    assert any(line.startswith("30 tasks became ready later") for line in sentences(found))


def test_the_last_attempt_is_told_and_what_became_of_it(journal: Reader) -> None:
    found = story(journal, "s", "c")
    assert (found.attempts, found.ready_s, found.started_s, found.status) == (2, 7.0, 13.5, "failed: out of memory")
    lines = sentences(found)
    assert lines[1] == "Its job was rejected: failed twice."
    assert lines[-2:] == ["That was attempt 2.", "It failed: out of memory."]


def test_a_part_that_can_never_be_ready_says_why(journal: Reader) -> None:
    found = story(journal, "t", "e")
    assert (found.status, found.ready_s) == ("rejected", None)
    assert sentences(found) == [
        "t/e needs z on 9 devices; its job arrived at 7.00 s.",
        "Its job was rejected: node 'e' needs 9 GPUs.",
        "It never became ready: it needs 9 GPUs, the pool has 2.",
    ]


def test_an_interrupted_journal_may_end_before_a_part_was_ready_or_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("p", "pair", (4.0, 6.0)), Start("p", "a", "x", (0,), 0.0, 4.0, "free")])
    first, second = explain(Reader(path), "p")
    assert (first.status, second.status) == ("running", "waiting")
    assert sentences(first)[-1] == "The journal breaks off at 0.00 s, before it ended."
    assert sentences(second)[-1] == "The journal breaks off at 0.00 s, before it became ready: it must wait for a."


def test_a_part_that_is_ready_and_has_not_started(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 2.0, [Arrived("w", "one", (4.0,))])
        writer.step(2, 3.0, [Arrived("v", "one", (1.0,)), Start("v", "c", "x", (0,), 3.0, 1.0, "younger")])
    lines = [
        "It became ready at 2.00 s on arrival.",
        "2 devices were free then, but the policy preferred others.",
        "1 task became ready later and started earlier, first v/c (x, younger).",
    ]
    found = sentences(story(Reader(path), "w", "c"))[1:]
    assert found == [*lines, "The journal breaks off at 3.00 s, before it started."]
    with path.open("a") as file:
        file.write('{"n":3,"t":4.0,"k":"ended"}\n')
    assert sentences(story(Reader(path), "w", "c"))[1:] == [*lines, "It has not started."]


def test_free_devices_that_are_no_neighbours_are_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    pool = Pool.parse("3", {})
    with Writer(path, Header(level="any", policy="x", pool=pool, graphs=HEADER.graphs)) as writer:
        writer.step(1, 0.0, [Arrived("q", "one", (9.0,)), Start("q", "c", "x", (1,), 0.0, 9.0, "free")])
        writer.step(2, 1.0, [Arrived("p", "pair", (1.0, 1.0)), Start("p", "a", "x", (0,), 1.0, 1.0, "free")])
        writer.step(3, 2.0, [Finished("p", "a")])
        writer.step(4, 9.0, [Finished("q", "c"), Complete("q"), Start("p", "b", "y", (0, 1), 2.0, 1.0, "room at last")])
    found = story(Reader(path), "p", "b")
    assert (found.free_when_ready, found.fragmented) == ((0, 2), True)
    assert sentences(found)[2:4] == ["It waited 7.00 s.", "2 devices were free then (0, 2), but no 2 side by side."]


def test_a_journal_is_read_once_however_many_parts_waited(journal: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Reader] = []
    read = Reader.__iter__

    def counted(self: Reader) -> Iterator[Entry]:
        passes.append(self)
        return read(self)

    monkeypatch.setattr(Reader, "__iter__", counted)
    assert len(explain(journal, "p")) == 2
    assert passes == [journal]


@pytest.mark.parametrize("task", [None, "c"])
def test_a_work_rejected_on_arrival_is_told(journal: Reader, task: str | None) -> None:
    (found,) = explain(journal, "bad", task)
    assert (found.status, found.rejected_why) == ("rejected", "unknown workflow")
    assert sentences(found) == ["bad arrived at 2.00 s and was rejected on arrival: unknown workflow."]


def test_a_work_of_a_known_shape_may_be_rejected_on_arrival(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("w", "pair", fault="no times"), Reject("w", "no times")])
    (found,) = explain(Reader(path), "w", "a")
    assert sentences(found) == ["w arrived at 0.00 s and was rejected on arrival: no times."]
    with pytest.raises(InputError, match="has no task 'z'"):
        explain(Reader(path), "w", "z")


def test_a_part_that_needs_no_device(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 2.0, [Arrived("w", "one", (4.0,)), Start("w", "c", "x", (), 2.0, 4.0, "needs no GPU")])
    assert "It started at 2.00 s on no device: needs no GPU." in sentences(story(Reader(path), "w", "c"))


def test_all_parts_of_a_work_come_in_the_order_of_its_shape(journal: Reader) -> None:
    assert [found.task for found in explain(journal, "p")] == ["a", "b"]


@pytest.mark.parametrize(
    ("job", "task", "message"),
    [
        ("pp", None, r"journal\.jsonl: any run: no job called 'pp' arrived; did you mean 'p'\?"),
        ("nobody", None, r"no job called 'nobody' arrived; known: bad, p, q, r, s, t"),
        ("p", "z", "'p' has no task 'z'; known: a, b"),
    ],
)
def test_an_unknown_name_is_bad_input(journal: Reader, job: str, task: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explain(journal, job, task)


def test_a_header_whose_shapes_make_no_sense_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    broken = TaskGraphRecord("one", (Task("c", "x"),), (("c", "nobody"),))
    with Writer(path, Header(level="any", policy="x", pool=HEADER.pool, graphs=(broken,))) as writer:
        writer.step(1, 0.0, [Arrived("w", "one", (1.0,))])
    with pytest.raises(InputError, match=r"journal\.jsonl:1: not a usable header: one: 'nobody' is not a task"):
        explain(Reader(path), "w")
