"""What a report tells of a run."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Start
from dovetail.report import perfetto
from dovetail.report.data.bars import DONE, FAILED, OPEN
from dovetail.report.data.collect import QUEUE, RUN, SETUP, collect
from dovetail.report.html import page

Write = Callable[..., Path]


def test_bars_say_what_ran_where_and_when(write: Write) -> None:
    story = collect(write())
    rows = [(b.job, b.task, b.devices, b.start_s, b.setup_end_s, b.end_s, b.wait_s, b.state) for b in story.bars]
    assert rows == [
        ("a", "x", (0,), 0.0, 2.0, 6.0, 0.0, DONE),
        ("b", "x", (1, 2), 1.0, 2.0, 4.0, 0.0, FAILED),
        ("b", "x", (1, 2), 6.0, 6.0, 9.0, 2.0, DONE),
        ("a", "y", (0,), 7.0, 8.0, 9.0, 1.0, DONE),
    ]
    assert [b.replaces for b in story.bars] == [None, None, None, "llm"]
    assert story.left_out == []
    assert story.ended


def test_figures_and_claims_come_from_the_journal(write: Write) -> None:
    story = collect(write())
    assert story.figures.makespan_s == 9.0
    assert sorted(story.responses_s) == [8.0, 9.0]
    assert story.claim("bound_makespan_s") == 6.0
    assert story.claim("bound_p99_s") is None  # not a number
    assert [(i.job, i.what, i.why) for i in story.rejected] == [("c", "nope", "no such <workflow>")]
    assert [(i.job, i.what, i.why) for i in story.failed] == [("b", "x", "out of memory")]


def test_curves_hold_the_same_seconds_as_the_bars(write: Write) -> None:
    story = collect(write())
    width, count = story.strip.bin_s, len(story.strip.means[RUN])
    assert 200 <= count <= 400
    last = story.end_s - (count - 1) * width

    def seconds(row: int) -> float:
        means = story.strip.means[row]
        return sum(means[:-1]) * width + means[-1] * last

    assert seconds(RUN) * 3 == pytest.approx(sum(b.run_s * len(b.devices) for b in story.bars))
    assert seconds(SETUP) * 3 == pytest.approx(sum(b.setup_s * len(b.devices) for b in story.bars))
    assert seconds(QUEUE) == pytest.approx(3.0)  # b waited 2 s after its failure, a/y 1 s


def test_kinds_add_up(write: Write) -> None:
    story = collect(write())
    kinds = {k.kind: k for k in story.kinds}
    assert (kinds["llm"].tasks, kinds["llm"].run_device_s, kinds["llm"].setup_device_s) == (1, 4.0, 2.0)
    assert (kinds["sd"].tasks, kinds["sd"].failures, kinds["sd"].setups, kinds["sd"].wait_s) == (3, 1, 2, 3.0)
    assert [(t.type, t.arrived, t.completed) for t in story.types] == [("chain", 1, 1), ("nope", 1, 0), ("wide", 1, 1)]


def test_a_window_limits_the_bars_and_not_the_figures(write: Write) -> None:
    story = collect(write(), from_s=6.5, to_s=8.0)
    assert [(b.job, b.task) for b in story.bars] == [("b", "x"), ("a", "y")]
    assert story.figures.makespan_s == 9.0
    assert story.strip.from_s == 6.5
    assert story.strip.bin_s * len(story.strip.means[RUN]) == pytest.approx(1.5)
    assert "2 of 4 bars lie outside" in story.left_out[0]


@pytest.mark.parametrize(("from_s", "to_s"), [(3.0, 3.0), (3.0, 2.0), (None, 0.0), (float("nan"), None)])
def test_an_empty_window_is_an_error(write: Write, from_s: float | None, to_s: float | None) -> None:
    with pytest.raises(InputError, match="window"):
        collect(write(), from_s=from_s, to_s=to_s)


def test_an_interrupted_run_is_told_as_far_as_it_goes(write: Write) -> None:
    path = write(summary=None)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"k":"finished"')])
    story = collect(path)
    assert (story.ended, story.torn, story.unfinished, story.end_s) == (False, True, 2, 4.0)
    assert [(b.job, b.end_s, b.state) for b in story.bars] == [("a", 4.0, OPEN), ("b", 4.0, FAILED)]
    assert story.left_out[0].startswith("This run did not end")


def test_a_batch_is_one_bar_but_its_parts_wait_each(write: Write) -> None:
    start = [Start(w, "p", "llm", (0,), 0.0, 2.0, "", 1.0, batch=7) for w in "ab"]
    steps = [
        (0.0, [Arrived(w, "t") for w in "ab"]),
        (1.0, start),
        (4.0, [Finished("a", "p"), Finished("b", "p"), Complete("a"), Complete("b")]),
    ]
    story = collect(write(steps=steps))
    assert [(b.job, b.tasks, b.start_s, b.end_s) for b in story.bars] == [("a", 2, 1.0, 4.0)]
    assert [(k.tasks, k.starts, k.run_device_s, k.wait_s) for k in story.kinds] == [(2, 2, 2.0, 2.0)]
    assert max(story.strip.means[QUEUE]) == pytest.approx(2.0)


def test_a_run_without_work_has_a_story(write: Write) -> None:
    story = collect(write(steps=[]))
    assert (story.bars, story.kinds, story.end_s, list(story.responses_s)) == ([], [], 0.0, [])


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ([(1.0, [Finished("a", "x")])], "a/x ended at 1.0 s but had not started"),
        ([(1.0, [Complete("a")])], "a was closed at 1.0 s but is not open"),
        ([(1.0, [Start("a", "x", "llm", (9,), 0.0, 1.0, "")])], r"on devices \[9\]; the pool has 0 to 2"),
        ([(1.0, [Start("a", "x", "llm", (0,), 0.0, 1.0, "")] * 2)], "started again at 1.0 s while it was running"),
    ],
)
def test_a_contradictory_journal_is_an_error(write: Write, steps: list[object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        collect(write(steps=steps))


def test_what_is_no_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found a folder$"):
        collect(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"found a folder with empty\.jsonl"):
        collect(tmp_path)
    with pytest.raises(InputError, match="found an empty file"):
        collect(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="no such file"):
        collect(tmp_path / "missing.jsonl")
    for content in (b"{}\n", b"\x89PNG\r\n\x1a\n\xff\xfe", b"models:\n  - a\n"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(InputError, match="not a Dovetail journal"):
            collect(tmp_path / "other")


def test_a_part_that_needs_no_device_is_counted_and_not_drawn(write: Write) -> None:
    path = write(
        steps=[
            (0.0, [Arrived("a", "chain"), Start("a", "x", "cpu", (), 0.0, 4.0, "it needs no device")]),
            (4.0, [Finished("a", "x"), Start("a", "y", "llm", (0,), 4.0, 3.0, "it is free", 2.0)]),
            (9.0, [Finished("a", "y"), Complete("a")]),
        ]
    )
    story = collect(path)
    assert [(bar.kind, bar.start_s, bar.end_s) for bar in story.bars] == [("llm", 4.0, 9.0)]
    assert story.bars_seen == 1
    assert [(kind.kind, kind.tasks, kind.run_device_s) for kind in story.kinds] == [("llm", 1, 3.0), ("cpu", 1, 0.0)]
    assert story.figures.tasks == 2
    assert "cpu" in page([story])
    trace = BytesIO()
    assert perfetto.write(path, trace) == 2


def test_a_run_broken_off_in_a_part_that_needs_no_device_is_drawn(write: Write) -> None:
    steps = [(0.0, [Arrived("a", "chain"), Start("a", "x", "cpu", (), 0.0, 4.0, "it needs no device")])]
    story = collect(write(steps=steps, summary=None))
    assert story.bars == []
    assert page([story])
