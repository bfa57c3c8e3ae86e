"""Explanations: why a part waited, who went first, and what became of it, from the journal alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.explain import Explanation, explain, sentences
from dovetail.core.journal import Header, Reader, ShapeRecord, Writer
from dovetail.core.resources import Pool
from dovetail.core.work import Part

HEADER = Header(
    level="any",
    policy="by hand",
    pool=Pool.parse("2", {}),
    shapes=(
        ShapeRecord("pair", (Part("a", "x"), Part("b", "y", 2)), (("a", "b"),)),
        ShapeRecord("one", (Part("c", "x"),)),
        ShapeRecord("stuck", (Part("d", "x"), Part("e", "z", 9)), (), {"e": "needs 9 GPUs, the pool has 2"}),
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
    return Reader(path)


def story(journal: Reader, work: str, part: str) -> Explanation:
    (only,) = explain(journal, work, part)
    return only


def test_a_part_that_started_at_once(journal: Reader) -> None:
    assert sentences(story(journal, "p", "a")) == [
        "p/a needs x on 1 device; its work arrived at 0.00 s.",
        "It became ready at 0.00 s on arrival.",
        "It started at once.",
        "It started at 0.00 s on [0]: free.",
        "Making x resident took 1.00 s.",
        "It finished at 5.00 s.",
    ]


def test_a_part_that_waited_knows_who_held_the_devices_and_who_went_first(journal: Reader) -> None:
    found = story(journal, "p", "b")
    assert (found.ready_s, found.started_s, found.waited_s, found.free_when_ready) == (5.0, 7.0, 2.0, 1)
    assert [(other.work, other.started_s) for other in found.holders] == [("r", 4.0)]
    assert [(other.work, other.started_s) for other in found.overtakers] == [("s", 6.0)]
    assert sentences(found) == [
        "p/b needs y on 2 devices; its work arrived at 0.00 s.",
        "It became ready at 5.00 s when a had finished.",
        "It waited 2.00 s.",
        "Only 1 device was free when it became ready; held were [1] by r/c (x).",
        "1 part became ready later and started earlier, first s/c (x, warm).",
        "It started at 7.00 s on [0, 1]: both free.",
        "Making y resident in the place of x took 0.50 s.",
        "It finished at 13.50 s.",
    ]


def test_who_starts_at_the_same_instant_has_not_overtaken(journal: Reader) -> None:
    """t/d became ready when s/c did, and they started together."""
    assert story(journal, "s", "c").overtaken_by == 0
    assert story(journal, "t", "d").overtaken_by == 0


def test_free_devices_are_told_when_the_policy_preferred_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("w", "one", (1.0,))])
        writer.step(2, 3.0, [Start("w", "c", "x", (0,), 0.0, 1.0, "at last")])
    found = story(Reader(path), "w", "c")
    assert (found.status, found.holders, found.free_when_ready) == ("running", [], 2)
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
    assert any(line.startswith("30 parts became ready later") for line in sentences(found))


def test_the_last_attempt_is_told_and_what_became_of_it(journal: Reader) -> None:
    found = story(journal, "s", "c")
    assert (found.attempts, found.ready_s, found.started_s, found.status) == (2, 7.0, 13.5, "failed: out of memory")
    lines = sentences(found)
    assert lines[1] == "Its work was rejected: failed twice."
    assert lines[-2:] == ["That was attempt 2.", "It failed: out of memory."]


def test_a_part_that_can_never_be_ready_says_why(journal: Reader) -> None:
    found = story(journal, "t", "e")
    assert (found.status, found.ready_s) == ("rejected", None)
    assert sentences(found) == [
        "t/e needs z on 9 devices; its work arrived at 7.00 s.",
        "Its work was rejected: node 'e' needs 9 GPUs.",
        "It never became ready: it needs 9 GPUs, the pool has 2.",
    ]


def test_a_part_whose_predecessor_did_not_finish_was_never_ready(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 0.0, [Arrived("p", "pair", (4.0, 6.0)), Start("p", "a", "x", (0,), 0.0, 4.0, "free")])
    first, second = explain(Reader(path), "p")
    assert (first.status, second.status) == ("running", "waiting")
    assert sentences(first)[-1] == "It started at 0.00 s on [0]: free."
    assert sentences(second)[-1] == "It never became ready: it must wait for a."


def test_a_part_that_is_ready_and_has_not_started(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 2.0, [Arrived("w", "one", (4.0,))])
    assert sentences(story(Reader(path), "w", "c"))[1:] == [
        "It became ready at 2.00 s on arrival.",
        "It has not started.",
    ]


def test_a_part_that_needs_no_device(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, HEADER) as writer:
        writer.step(1, 2.0, [Arrived("w", "one", (4.0,)), Start("w", "c", "x", (), 2.0, 4.0, "needs no GPU")])
    assert "It started at 2.00 s on no device: needs no GPU." in sentences(story(Reader(path), "w", "c"))


def test_all_parts_of_a_work_come_in_the_order_of_its_shape(journal: Reader) -> None:
    assert [found.part for found in explain(journal, "p")] == ["a", "b"]


@pytest.mark.parametrize(
    ("work", "part", "message"),
    [
        ("pp", None, r"journal\.jsonl: no work called 'pp' arrived; did you mean 'p'\?"),
        ("nobody", None, r"no work called 'nobody' arrived; known: bad, p, q, r, s, t"),
        ("p", "z", "'p' has no part 'z'; known: a, b"),
        ("bad", None, "'bad' was rejected on arrival: unknown workflow"),
    ],
)
def test_an_unknown_name_is_bad_input(journal: Reader, work: str, part: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explain(journal, work, part)


def test_a_header_whose_shapes_make_no_sense_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    broken = ShapeRecord("one", (Part("c", "x"),), (("c", "nobody"),))
    with Writer(path, Header(level="any", policy="x", pool=HEADER.pool, shapes=(broken,))) as writer:
        writer.step(1, 0.0, [Arrived("w", "one", (1.0,))])
    with pytest.raises(InputError, match=r"journal\.jsonl:1: not a usable header: one: 'nobody' is not a part"):
        explain(Reader(path), "w")
