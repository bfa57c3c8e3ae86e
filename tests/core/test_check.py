"""The checker of all levels: a clean run passes, and every kind of fault planted in it is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.check import CODES, Check, check_journal
from dovetail.core.check.follow import told_late
from dovetail.core.check.jobs import _some
from dovetail.core.errors import InputError
from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Event,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
    WakeAt,
    Woke,
)
from dovetail.core.findings import Findings
from dovetail.core.journal import Clock, Ended, Header, Reader, Writer
from dovetail.core.metrics import Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraphRecord

Steps = list[tuple[float, list[Event]]]

HEADER = Header(
    level="any",
    policy="by hand",
    pool=Pool.parse("3", {}),
    graphs=(
        TaskGraphRecord("pair", (Task("a", "x"), Task("b", "y", 2)), (("a", "b"),)),
        TaskGraphRecord("one", (Task("c", "x"),)),
        TaskGraphRecord("elastic", (Task("m", "x", 2, 1, 3),)),
        TaskGraphRecord("stuck", (Task("d", "x"), Task("e", "x")), (), {"e": "waits for nothing that exists"}),
    ),
)


def clean() -> Steps:
    """Two jobs share device 0, one of them then takes devices 1 and 2; one is faulty, one gets stuck."""
    return [
        (0.0, [Arrived("p", "pair", (4.0, 6.0)), Start("p", "a", "x", (0,), 0.0, 4.0, "free", 1.0)]),
        (1.0, [Arrived("o", "one", (2.0,)), Arrived("bad", "pair", fault="no times"), Reject("bad", "no times")]),
        (2.0, [Arrived("s", "stuck", (1.0, 1.0)), Start("s", "d", "x", (1,), 2.0, 1.0, "free")]),
        (3.0, [Finished("s", "d"), WakeAt(4.0)]),
        (4.0, [Woke()]),
        (
            5.0,
            [
                Finished("p", "a"),
                Start("o", "c", "x", (0,), 1.0, 2.0, "warm"),
                Start("p", "b", "y", (1, 2), 5.0, 6.0, "free", 0.5, "x"),
            ],
        ),
        (7.0, [Finished("o", "c"), Complete("o")]),
        (11.5, [Finished("p", "b"), Complete("p")]),
        (11.5, [Reject("s", "e waits for nothing that exists")]),
    ]


def figures(steps: Steps) -> dict[str, float]:
    metrics = Metrics(HEADER.pool)
    for n, (t, events) in enumerate(steps, start=1):
        metrics.step(n, t, events)
    return recount(metrics.figures())


SUMMARY = figures(clean())


def codes(steps: Steps, ended: bool = True, exact: bool = True) -> dict[str, int]:
    check = Check(HEADER, exact=exact)
    for n, (t, events) in enumerate(steps, start=1):
        check.step(n, t, events)
    if ended:
        check.step(len(steps) + 1, steps[-1][0], [Ended(SUMMARY)])
    check.finish()
    return check.faults.counts


def test_a_clean_run_passes() -> None:
    assert codes(clean()) == {}
    assert SUMMARY["makespan_s"] == 11.5
    assert (SUMMARY["completed"], SUMMARY["rejected"], SUMMARY["switches"], SUMMARY["loads"]) == (2, 2, 1, 1)


# --- planted faults: the code that must be among those found, and what was changed -----------------


def edit(at: int, i: int, event: Event | None = None) -> Callable[[Steps], None]:
    """Replace (or with None remove) the i-th event of a step."""

    def plant(steps: Steps) -> None:
        steps[at][1][i : i + 1] = [] if event is None else [event]

    return plant


def insert(at: int, *events: Event) -> Callable[[Steps], None]:
    return lambda steps: steps[at][1].extend(events)


def retime(at: int, t: float) -> Callable[[Steps], None]:
    def plant(steps: Steps) -> None:
        steps[at] = (t, steps[at][1])

    return plant


def new_step(at: int, t: float, *events: Event) -> Callable[[Steps], None]:
    return lambda steps: steps.insert(at, (t, list(events)))


def together(*plants: Callable[[Steps], None]) -> Callable[[Steps], None]:
    def plant(steps: Steps) -> None:
        for one in plants:
            one(steps)

    return plant


PLANTED: list[tuple[str, str, Callable[[Steps], None]]] = [
    ("time", "a step before the last one", retime(6, 4.9)),
    ("time", "an endless time", retime(8, float("inf"))),
    ("time", "not a number", retime(8, float("nan"))),
    ("time", "woken in the past", edit(3, 1, WakeAt(2.0))),
    ("number", "a negative setup", edit(0, 1, Start("p", "a", "x", (0,), 0.0, 4.0, "", -1.0))),
    ("number", "a run without end", edit(0, 1, Start("p", "a", "x", (0,), 0.0, float("inf"), "", 1.0))),
    ("number", "a negative size", edit(1, 0, Arrived("o", "one", (-2.0,)))),
    ("graph", "an unknown graph", edit(1, 0, Arrived("o", "two", (2.0,)))),
    ("graph", "a size too many", edit(1, 0, Arrived("o", "one", (2.0, 1.0)))),
    ("arrival", "arrived twice", insert(2, Arrived("o", "one", (2.0,)))),
    ("arrival", "arrived again when done", insert(7, Arrived("o", "one", (2.0,)), Reject("o", "again"))),
    ("arrival", "started before it arrived", edit(1, 0, None)),
    ("arrival", "completed without arriving", insert(7, Complete("ghost"))),
    ("arrival", "rejected without arriving", insert(7, Reject("ghost", "unknown"))),
    ("task", "a task that is none", edit(5, 1, Start("o", "zzz", "x", (0,), 1.0, 2.0, ""))),
    ("order", "before its predecessor ended", new_step(4, 3.5, Start("p", "b", "y", (1, 2), 3.5, 6.0, ""))),
    ("order", "one that can never be ready", insert(3, Start("s", "e", "x", (1,), 2.0, 1.0, ""))),
    ("twice", "run again after it finished", insert(6, Start("p", "a", "x", (0,), 7.0, 4.0, ""))),
    ("twice", "started while it runs", insert(0, Start("p", "a", "x", (1,), 0.0, 4.0, ""))),
    ("ready", "ready too early", edit(5, 2, Start("p", "b", "y", (1, 2), 4.0, 6.0, "", 0.5, "x"))),
    ("ready", "ready before it arrived", edit(5, 1, Start("o", "c", "x", (0,), 0.0, 2.0, ""))),
    ("kind", "another kind", edit(5, 1, Start("o", "c", "y", (0,), 1.0, 2.0, ""))),
    ("width", "one device instead of two", edit(5, 2, Start("p", "b", "y", (1,), 5.0, 6.0, "", 0.5, "x"))),
    ("width", "no device", edit(5, 1, Start("o", "c", "x", (), 1.0, 2.0, ""))),
    ("device", "one that does not exist", edit(5, 1, Start("o", "c", "x", (3,), 1.0, 2.0, ""))),
    ("device", "a negative one", edit(5, 1, Start("o", "c", "x", (-1,), 1.0, 2.0, ""))),
    ("device", "named twice", edit(5, 2, Start("p", "b", "y", (1, 1), 5.0, 6.0, "", 0.5, "x"))),
    ("overlap", "on the first device of a window", edit(5, 1, Start("o", "c", "x", (1,), 1.0, 2.0, ""))),
    ("overlap", "on the second device of a window", edit(5, 1, Start("o", "c", "x", (2,), 1.0, 2.0, ""))),
    ("overlap", "not yet released", new_step(5, 4.5, Start("o", "c", "x", (0,), 1.0, 2.0, ""))),
    ("finish", "ended twice", insert(6, Finished("o", "c"))),
    ("finish", "failed without running", insert(6, Failed("p", "a", "?"))),
    ("duration", "shorter than expected", retime(6, 6.5)),
    ("duration", "longer than expected", retime(7, 11.6)),
    (
        "duration",
        "failed later than it would have ended",
        together(edit(6, 0, Failed("o", "c", "?")), retime(6, 8)),
    ),
    ("complete", "called complete too late", together(edit(6, 1, None), insert(7, Complete("o")))),
    ("missing", "a task never ran", together(edit(7, 0, None), edit(5, 2, None))),
    ("missing", "a faulty job completed", edit(1, 2, Complete("bad"))),
    ("closed", "completed twice", insert(6, Complete("o"))),
    ("closed", "rejected after completion", insert(6, Reject("o", "late"))),
    ("closed", "started after rejection", insert(2, Start("bad", "a", "x", (2,), 1.0, 1.0, ""))),
    ("reason", "rejected without a reason", edit(1, 2, Reject("bad", ""))),
    ("running", "never finished", edit(7, 0, None)),
    ("unclosed", "neither completed nor rejected", edit(7, 1, None)),
    ("end", "goes on after its end", lambda s: s.insert(7, (11.5, [Ended(SUMMARY)]))),
    ("end", "ends twice", lambda s: s.append((s[-1][0], [Ended(SUMMARY)]))),
    ("summary", "counts one job more", new_step(9, 11.5, Arrived("q", "one", (1.0,)), Reject("q", "no"))),
]


@pytest.mark.parametrize(("code", "what", "plant"), PLANTED, ids=[f"{code}: {what}" for code, what, _ in PLANTED])
def test_a_planted_fault_is_found(code: str, what: str, plant: Callable[[Steps], None]) -> None:
    steps = clean()
    plant(steps)
    assert code in codes(steps)
    assert code in CODES


def test_every_code_has_a_planted_fault() -> None:
    assert {code for code, _, _ in PLANTED} | {"batch", "bound", "change", "growth", "preload", "slots"} == set(CODES)


# --- changes of what runs ---------------------------------------------------------------------------


def changing() -> Steps:
    """A task grows, is paused, goes on with fewer devices, and ends when its last change said."""
    return [
        (0.0, [Arrived("e", "elastic", (12.0,)), Start("e", "m", "x", (0,), 0.0, 12.0, "free")]),
        (2.0, [Resize("e", "m", (0, 1), 5.0, "more are free")]),
        (3.0, [Pause("e", "m", "its turn is over")]),
        (9.0, [Resume("e", "m", (2,), 8.0, "its turn again")]),
        (17.0, [Finished("e", "m"), Complete("e")]),
    ]


CHANGED: list[tuple[str, str, Callable[[Steps], None]]] = [
    ("change", "a pause of what is paused", insert(2, Pause("e", "m", "again"))),
    ("change", "a resize of what is paused", insert(2, Resize("e", "m", (0,), 1.0, "?"))),
    ("change", "a resume of what runs", edit(2, 0, Resume("e", "m", (1,), 1.0, "?"))),
    ("change", "a stop of what has ended", insert(4, Stop("e", "m", "late"))),
    (
        "change",
        "a pause of what is being stopped",
        together(edit(2, 0, Stop("e", "m", "?")), edit(3, 0, Pause("e", "m", "?"))),
    ),
    ("width", "more devices than it can use", edit(1, 0, Resize("e", "m", (0, 1, 2, 0), 5.0, "?"))),
    ("width", "resumed on none", edit(3, 0, Resume("e", "m", (), 8.0, "?"))),
    ("device", "one that does not exist", edit(1, 0, Resize("e", "m", (0, 7), 5.0, "?"))),
    ("number", "an endless rest", edit(1, 0, Resize("e", "m", (0, 1), float("inf"), "?"))),
    ("reason", "paused without a reason", edit(2, 0, Pause("e", "m", ""))),
    ("duration", "an end by the old pace", retime(4, 12.0)),
    ("duration", "an end while paused", edit(3, 0, None)),
    (
        "overlap",
        "a device that another took meanwhile",
        insert(2, Arrived("o", "one", (9.0,)), Start("o", "c", "x", (2,), 3.0, 9.0, "free")),
    ),
]


def test_a_part_may_change_while_it_runs() -> None:
    assert set(codes(changing())) == {"summary"}  # the summary is another run's


@pytest.mark.parametrize(("code", "what", "plant"), CHANGED, ids=[f"{code}: {what}" for code, what, _ in CHANGED])
def test_a_wrong_change_is_found(code: str, what: str, plant: Callable[[Steps], None]) -> None:
    steps = changing()
    plant(steps)
    assert code in codes(steps)


def test_a_stopped_part_may_fail_at_once() -> None:
    steps = changing()[:2]
    steps += [(2.5, [Stop("e", "m", "cancelled")]), (2.5, [Failed("e", "m", "cancelled"), Reject("e", "cancelled")])]
    assert set(codes(steps)) == {"summary"}


# --- batches, failures, noise ----------------------------------------------------------------------


def batch_of_two(second: Start, ends: float = 3.0) -> dict[str, int]:
    steps: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Arrived("v", "one", (1.0,))]),
        (0.0, [Start("u", "c", "x", (0,), 0.0, 3.0, "", batch=7), second]),
        (ends, [Finished("u", "c"), Finished("v", "c"), Complete("u"), Complete("v")]),
    ]
    check = Check(HEADER)
    for n, (t, events) in enumerate(steps, start=1):
        check.step(n, t, events)
    check.step(9, ends, [Ended()])
    check.finish()
    return check.faults.counts


def test_members_of_a_batch_share_their_devices() -> None:
    assert batch_of_two(Start("v", "c", "x", (0,), 0.0, 3.0, "", batch=7)) == {}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (Start("v", "c", "x", (0,), 0.0, 3.0, "", batch=8), {"overlap"}),
        (Start("v", "c", "x", (0,), 0.0, 3.0, ""), {"overlap"}),
        (Start("v", "c", "x", (1,), 0.0, 3.0, "", batch=7), {"batch"}),
        (Start("v", "c", "x", (0,), 0.0, 2.0, "", batch=7), {"batch", "overlap", "duration"}),
        (Start("v", "c", "y", (0,), 0.0, 3.0, "", batch=7), {"batch", "overlap", "kind"}),
        (Start("v", "c", "x", (0,), 0.0, 3.0, "", 0.0, "y", batch=7), {"batch", "overlap"}),
    ],
)
def test_members_of_a_batch_that_differ_are_found(second: Start, expected: set[str]) -> None:
    assert set(batch_of_two(second)) == expected


def test_a_batch_cannot_be_joined_later_or_used_again() -> None:
    late: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Arrived("v", "one", (1.0,))]),
        (0.0, [Start("u", "c", "x", (0,), 0.0, 3.0, "", batch=7)]),
        (1.0, [Start("v", "c", "x", (0,), 0.0, 3.0, "", batch=7)]),
        (3.0, [Finished("u", "c"), Complete("u")]),
        (4.0, [Finished("v", "c"), Complete("v")]),
    ]
    assert set(codes(late)) >= {"batch", "overlap"}
    late[2:5] = [
        (3.0, [Finished("u", "c"), Complete("u"), Start("v", "c", "x", (0,), 0.0, 3.0, "", batch=7)]),
        (6.0, [Finished("v", "c"), Complete("v")]),
    ]
    assert "batch" in codes(late)


def test_a_member_of_a_batch_may_be_stopped_but_not_changed() -> None:
    steps: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Arrived("v", "one", (1.0,))]),
        (0.0, [Start(job, "c", "x", (0,), 0.0, 3.0, "", batch=7) for job in "uv"]),
        (1.0, [Stop("u", "c", "cancelled")]),
        (1.0, [Failed("u", "c", "cancelled"), Reject("u", "cancelled")]),
        (3.0, [Finished("v", "c"), Complete("v")]),
    ]
    assert set(codes(steps)) == {"summary"}
    steps[2] = (1.0, [Pause("u", "c", "cancelled")])
    assert "change" in codes(steps)


def sharing(*starts: Start) -> dict[str, int]:
    """Jobs u, v and w on shared devices, each for another time; they end one after the other."""
    steps: Steps = [(0.0, [Arrived(job, "one", (2.0,)) for job in "uvw"]), (0.0, list(starts))]
    steps += [(3.0 + i, [Finished(start.job, "c"), Complete(start.job)]) for i, start in enumerate(starts)]
    return codes(steps)


def test_as_many_as_there_are_slots_share_devices() -> None:
    starts = [Start(job, "c", "x", (0,), 0.0, 3.0, "", slots=2) for job in "uvw"]
    assert set(sharing(*starts[:2])) == {"summary", "unclosed"}  # w never starts
    assert sharing(*starts)["slots"] == 1


@pytest.mark.parametrize("second", [{"slots": 3}, {"slots": 0}, {"kind": "y"}, {"devices": (0, 1)}, {"batch": 1}])
def test_who_does_not_share_alike_overlaps(second: dict[str, Any]) -> None:
    start = Start("u", "c", "x", (0,), 0.0, 3.0, "", slots=2)
    assert sharing(start, replace(start, job="v", **second))["overlap"] == 1


def test_who_shares_may_be_stopped_but_not_changed() -> None:
    steps: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Start("u", "c", "x", (0,), 0.0, 3.0, "", slots=2)]),
        (1.0, [Pause("u", "c", "to see")]),
        (3.0, [Finished("u", "c"), Complete("u")]),
    ]
    assert "change" in codes(steps)


def failing(ready_s: float) -> Steps:
    return [
        (0.0, [Arrived("u", "one", (2.0,)), Start("u", "c", "x", (0,), 0.0, 2.0, "")]),
        (1.0, [Failed("u", "c", "injected"), Start("u", "c", "x", (0,), ready_s, 2.0, "again")]),
        (3.0, [Finished("u", "c"), Complete("u")]),
    ]


def test_a_part_that_failed_may_run_again() -> None:
    assert set(codes(failing(1.0))) == {"summary"}  # the summary is that of another run
    assert set(codes(failing(0.0))) == {"summary", "ready"}


def test_with_noise_only_the_setup_has_a_fixed_length() -> None:
    steps = clean()
    retime(7, 13.0)(steps)
    retime(8, 13.0)(steps)
    assert set(codes(steps, exact=False)) == {"summary"}
    assert "duration" in codes(steps, exact=True)
    early: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Start("u", "c", "x", (0,), 0.0, 2.0, "", 1.0)]),
        (0.5, [Finished("u", "c"), Complete("u")]),
    ]
    assert "duration" in codes(early, exact=False)
    early.insert(1, (0.25, [Pause("u", "c", "for others"), Resume("u", "c", (1,), 0.5, "free")]))
    assert set(codes(early, exact=False)) == {"summary"}  # what is left of the setup is in the new run


def test_an_overlap_is_found_under_a_longer_one() -> None:
    """A third task that meets the first, after the second, which met it as well, has ended."""
    steps: Steps = [
        (0.0, [Arrived(job, "one", (1.0,)) for job in "uvw"] + [Start("u", "c", "x", (0,), 0.0, 9.0, "")]),
        (1.0, [Start("v", "c", "x", (0,), 0.0, 1.0, "")]),
        (2.0, [Finished("v", "c"), Complete("v")]),
        (3.0, [Start("w", "c", "x", (0,), 0.0, 1.0, "")]),
        (4.0, [Finished("w", "c"), Complete("w")]),
        (9.0, [Finished("u", "c"), Complete("u")]),
    ]
    assert codes(steps)["overlap"] == 2


# --- the summary -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SUMMARY)
def test_every_figure_of_the_summary_is_recounted(key: str) -> None:
    for wrong in (SUMMARY[key] + 1e-3, None, "many", True):
        check = Check(HEADER)
        for n, (t, events) in enumerate(clean(), start=1):
            check.step(n, t, events)
        check.step(99, 11.5, [Ended(SUMMARY | {key: wrong})])
        check.finish()
        assert check.faults.counts == {"summary": 1}
        assert check.faults.first[0].where == key


def test_all_faults_are_counted_and_the_first_are_kept() -> None:
    faults = Findings(limit=2)
    check = Check(HEADER, faults)
    check.step(1, 0.0, [Finished(f"w{i}", "c") for i in range(5)] + [Complete("w0")])
    assert faults.counts == {"finish": 5, "arrival": 1}
    assert [fault.where for fault in faults.first] == [
        "step 1 at 0 s: w0/c",
        "step 1 at 0 s: w1/c",
        "step 1 at 0 s: w0",
    ]


# --- files -----------------------------------------------------------------------------------------


def write(path: Path, steps: Steps, ended: bool = True) -> Path:
    with Writer(path, HEADER) as writer:
        for n, (t, events) in enumerate(steps, start=1):
            writer.step(n, t, events)
        if ended:
            writer.end(len(steps) + 1, steps[-1][0], SUMMARY)
    return path


def check_file(path: Path) -> dict[str, int]:
    faults = Findings()
    check_journal(Reader(path), faults)
    return faults.counts


def test_a_clean_journal_passes(tmp_path: Path) -> None:
    assert check_file(write(tmp_path / "journal.jsonl", clean())) == {}


def test_a_run_that_did_not_end_is_a_fault(tmp_path: Path) -> None:
    assert check_file(write(tmp_path / "journal.jsonl", clean(), ended=False)) == {"end": 1}


def test_a_torn_file_is_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", clean())
    path.write_bytes(path.read_bytes()[:-20])
    faults = Findings()
    check_journal(Reader(path), faults)
    assert [fault.message for fault in faults.first] == ["did not end: 0 jobs unfinished, its last line is torn"]
    with write(path, clean()).open("ab") as file:
        file.write(b'{"n":99,')
    assert check_file(path) == {"end": 1}


def test_steps_are_numbered_upwards_and_have_one_time(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", clean())
    text = path.read_text()
    path.write_text(text.replace('{"n":7,"t":7.0,"k":"completed"', '{"n":7,"t":7.5,"k":"completed"'))
    assert check_file(path) == {"time": 1, "complete": 1, "summary": 4}
    path.write_text(text.replace('"n":8,', '"n":3,'))
    assert check_file(path) == {"time": 1}


def test_a_header_that_cannot_be_followed_is_bad_input(tmp_path: Path) -> None:
    odd = Header(level="any", policy="", pool=Pool((Device(4, "gpu"),), {"gpu": DeviceType("gpu")}))
    Writer(tmp_path / "journal.jsonl", odd).close()
    with pytest.raises(InputError, match="not numbered from 0"):
        check_file(tmp_path / "journal.jsonl")


@pytest.mark.parametrize(
    ("source", "error_s"),
    [
        ("virtual", 1e-9),
        ("monotonic", 1.0),
        ("system", 1.0),
        ("measured offset", -1.0),
        ("measured offset", 10.0),
        ("measured offset", 0.1),
    ],
)
def test_a_clock_that_cannot_be_so_wrong_is_bad_input(tmp_path: Path, source: Any, error_s: float) -> None:
    Writer(tmp_path / "journal.jsonl", replace(HEADER, clock=Clock(source, error_s))).close()
    with pytest.raises(InputError, match=r"the error of the clock|clocks whose offset was measured, but no hardware"):
        check_file(tmp_path / "journal.jsonl")


def test_only_a_real_executor_may_be_too_late_to_pause() -> None:
    steps: Steps = [
        (0.0, [Arrived("u", "one", (2.0,)), Start("u", "c", "x", (0,), 0.0, 2.0, "")]),
        (1.0, [Pause("u", "c", "for others")]),
        (1.5, [Finished("u", "c"), Complete("u")]),
    ]
    for clock, expected in ((Clock(), {"duration": 1}), (Clock("monotonic", 1e-9), {})):
        check = Check(replace(HEADER, clock=clock), exact=False)
        for n, (t, events) in enumerate(steps, start=1):
            check.step(n, t, events)
        assert check.faults.counts == expected


def test_jobs_whose_graphs_are_gone_from_the_header_are_found() -> None:
    check = Check(replace(HEADER, graphs=()))
    check.step(1, 0.0, [Arrived("u", "x"), Arrived("p", "pair", (4.0, 6.0))])
    assert check.faults.counts == {"graph": 1}


def test_a_job_without_a_graph_needs_devices() -> None:
    check = Check(replace(HEADER, graphs=()))
    check.step(1, 0.0, [Arrived("u", "x"), Start("u", "c", "x", (), 0.0, 1.0, "")])
    assert check.faults.counts == {"width": 1}


def test_devices_of_a_type_that_nobody_described_cannot_join() -> None:
    for types, codes in (({}, {"device": 1}), ({"l4": DeviceType("l4")}, {})):
        check = Check(HEADER)
        check.step(1, 0.0, [Added("a host came", (Device(3, "l4"),), types)])
        assert check.faults.counts == codes


def test_a_graph_that_joins_is_used_if_it_is_one() -> None:
    for edges, codes in ((("a", "b"),), {}), ((("a", "b"), ("b", "a")), {"graph": 2}):
        check = Check(HEADER)
        late = TaskGraphRecord("late", (Task("a", "x"), Task("b", "x")), edges)
        check.step(1, 0.0, [Added("a workflow came", graphs=(late,)), Arrived("j", "late", (1.0, 1.0))])
        assert check.faults.counts == codes


@pytest.mark.parametrize(
    ("names", "told"), [("a", "a"), ("abcde", "a, b, c, d, e"), ("abcdef", "a, b, c, d, e and 1 more")]
)
def test_at_most_five_names_are_told(names: str, told: str) -> None:
    assert _some(list(names)) == told


def test_only_arrivals_without_graphs_are_told_with_the_next_round() -> None:
    graph = TaskGraphRecord("g", (Task("a", "x"),), ())
    rounds = Header(level="any", policy="none", pool=Pool.parse("1", {}))
    known = Header(level="any", policy="none", pool=Pool.parse("1", {}), graphs=(graph,))
    arrived, woke = Arrived("w", of="g"), Woke()
    assert told_late(rounds, [arrived, arrived])
    assert not told_late(rounds, [arrived, woke])
    assert not told_late(known, [arrived])
