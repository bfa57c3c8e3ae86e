"""Stamps may be wrong by as much as the header says of its clock: that much is allowed, told, and no more."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.check import Check
from dovetail.core.events import Added, Arrived, Complete, Event, Failed, Finished, Pause, Reject, Resume, Start, Stop
from dovetail.core.journal import Clock, Ended, Header, in_time
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraphRecord

ERROR_S = 0.1
Records = list[tuple[float, Event]]


def header(error_s: float = ERROR_S) -> Header:
    return Header(
        level="any",
        policy="by hand",
        mode="live",
        pool=Pool.parse("3", {}),
        graphs=(
            TaskGraphRecord("one", (Task("a", "x"),)),
            TaskGraphRecord("pair", (Task("a", "x"), Task("b", "x")), (("a", "b"),)),
        ),
        clock=Clock("measured offset", error_s),
        order="written",
        hardware={"gpu": "cpu"},
    )


def examine(records: Records, error_s: float = ERROR_S, ended: bool = True) -> Check:
    """Check records in the order of time, as a reader gives them."""
    steps: list[tuple[int, float, list[Any]]] = [(n, t, [event]) for n, (t, event) in enumerate(records, start=1)]
    if ended:
        steps.append((len(steps) + 1, max(t for t, _ in records), [Ended()]))
    check = Check(header(error_s), exact=False)
    for n, t, events in in_time(steps, error_s):
        check.step(n, t, events)
    check.finish()
    return check


def start(job: str, task: str, device: int, ready_s: float) -> Start:
    return Start(job, task, "x", (device,), ready_s, 0.0, "by hand")


def life(job: str, device: int, from_s: float, to_s: float) -> Records:
    return [
        (from_s, Arrived(job, "one", (0.0,))),
        (from_s, start(job, "a", device, from_s)),
        (to_s, Finished(job, "a")),
        (to_s, Complete(job)),
    ]


# --- one gap, just inside and just outside ----------------------------------------------------------

GAPS: dict[str, Callable[[float], Records]] = {
    "a device taken before it is free": lambda gap: [*life("p", 0, 0.0, 5.0), *life("q", 0, 5.0 - gap, 9.0)],
    "a start before its predecessor's end": lambda gap: [
        (0.0, Arrived("p", "pair", (0.0, 0.0))),
        (0.0, start("p", "a", 0, 0.0)),
        (5.0, Finished("p", "a")),
        (5.0 - gap, start("p", "b", 1, 5.0)),
        (9.0, Finished("p", "b")),
        (9.0, Complete("p")),
    ],
    "a start before the arrival": lambda gap: [
        (1.0, Arrived("p", "one", (0.0,))),
        (1.0 - gap, start("p", "a", 0, 1.0)),
        (2.0, Finished("p", "a")),
        (2.0, Complete("p")),
    ],
    "an end before its start": lambda gap: [
        (1.0, Arrived("p", "one", (0.0,))),
        (1.0, start("p", "a", 0, 1.0)),
        (1.0 - gap, Finished("p", "a")),
        (1.0, Complete("p")),
    ],
    "a completion before the last end": lambda gap: [*life("p", 0, 0.0, 5.0)[:3], (5.0 - gap, Complete("p"))],
    "a completion after the last end": lambda gap: [*life("p", 0, 0.0, 5.0)[:3], (5.0 + gap, Complete("p"))],
    "a rejection before the arrival": lambda gap: [(1.0, Arrived("p", "one", (0.0,))), (1.0 - gap, Reject("p", "no"))],
    "a task ready before its predecessor's end": lambda gap: [
        (0.0, Arrived("p", "pair", (0.0, 0.0))),
        (0.0, start("p", "a", 0, 0.0)),
        (5.0, Finished("p", "a")),
        (6.0, start("p", "b", 1, 5.0 - gap)),
        (9.0, Finished("p", "b")),
        (9.0, Complete("p")),
    ],
    "a resumption before its pause": lambda gap: [
        *life("p", 0, 0.0, 5.0)[:2],
        (2.0, Pause("p", "a", "for others")),
        (2.0 - gap, Resume("p", "a", (1,), 3.0, "again")),
        *life("p", 0, 0.0, 5.0)[2:],
    ],
}
CODES = ("overlap", "order", "arrival", "finish", "missing", "complete", "arrival", "ready", "change")


@pytest.mark.parametrize(("what", "code"), list(zip(GAPS, CODES, strict=True)))
def test_a_gap_within_the_clocks_error_is_told_and_a_larger_one_is_a_fault(what: str, code: str) -> None:
    inside = examine(GAPS[what](0.99 * ERROR_S))
    assert inside.faults.counts == {}
    (note,) = inside.faults.notes
    assert "inside the clock's error of 0.1 s (measured offset), the largest by 0.099 s" in note
    assert code in examine(GAPS[what](1.01 * ERROR_S)).faults.counts
    exact = examine(GAPS[what](0.0))
    assert (exact.faults.counts, exact.faults.notes) == ({}, [])
    assert code in examine(GAPS[what](1e-3), error_s=0.0).faults.counts


def test_the_records_are_counted_and_the_largest_gap_is_named() -> None:
    runs = [*life("p", 0, 0.0, 5.0), *life("q", 0, 4.98, 7.0), *life("r", 0, 6.95, 9.0), *life("s", 0, 9.0, 10.0)]
    (note,) = examine(runs).faults.notes
    assert note.startswith("2 records lie inside")
    assert note.endswith("the largest by 0.05 s")


def test_an_allowance_does_not_add_up_along_a_chain() -> None:
    """Each start lies within the error of the end before it, but the last one not within that of the first."""
    pushed = [*life("p", 0, 0.0, 5.0), *life("q", 0, 4.93, 4.96), *life("r", 0, 4.88, 9.0)]
    assert examine(pushed).faults.counts == {"overlap": 1}
    assert "holds since 0.0 s" in examine(pushed).faults.first[0].message


@pytest.mark.parametrize("error_s", [0.0, 0.01, ERROR_S])
@pytest.mark.parametrize("long_s", [0.0, 0.01])
def test_what_runs_in_the_middle_of_another_overlaps_it_however_short_it_is(long_s: float, error_s: float) -> None:
    brief = [record for i in range(9) for record in life(f"q{i}", 0, 1.0 + i / 4, 1.0 + i / 4 + long_s)]
    assert examine([*life("p", 0, 0.0, 5.0), *brief], error_s).faults.counts == {"overlap": 9}


def test_a_job_without_a_graph_may_begin_again_within_the_error_but_do_nothing_twice() -> None:
    def codes(again: str, gap: float) -> dict[str, int]:
        check = Check(replace(header(), graphs=()), exact=False)
        steps: list[list[tuple[float, Event]]] = [
            [(0.0, Arrived("p", "x")), (0.0, start("p", "1", 0, 0.0))],
            [(5.0 - gap, start("p", again, 1, 5.0 - gap))],
            [(5.0, Finished("p", "1"))],
            [(9.0, Finished("p", again)), (9.0, Complete("p")), (9.0, Ended())],
        ]
        for n, records in enumerate(sorted(steps, key=lambda records: records[0][0]), start=1):
            check.step(n, records[0][0], [event for _, event in records])
        check.finish()
        return check.faults.counts

    assert (codes("2", 0.09), codes("2", -1.0)) == ({}, {"ready": 1})
    assert "twice" in codes("2", 0.11)
    assert "twice" in codes("1", -0.05)


def test_the_largest_gap_is_counted_from_what_all_waited_for() -> None:
    chain: Records = [
        (0.0, Arrived("p", "pair", (0.0, 0.0))),
        (0.0, start("p", "a", 0, 0.0)),
        (4.96, start("p", "b", 1, 5.0)),
        (4.97, Finished("p", "b")),
        (4.93, Complete("p")),
        (5.0, Finished("p", "a")),
    ]
    check = examine(chain)
    assert check.faults.counts == {}
    assert check.faults.notes[0].endswith("the largest by 0.07 s")


def test_a_fault_is_named_where_it_is_not_where_it_was_judged() -> None:
    (fault,) = examine([*life("p", 0, 0.0, 5.0), *life("q", 0, 2.0, 9.0)]).faults.first
    assert (fault.code, fault.where) == ("overlap", "step 6 at 2 s: q/a")


def test_what_follows_a_record_that_waits_is_not_lost() -> None:
    """The start is early and the task is over before its predecessor's end comes."""
    check = examine(
        [
            (0.0, Arrived("p", "pair", (0.0, 0.0))),
            (0.0, start("p", "a", 0, 0.0)),
            (4.92, start("p", "b", 1, 5.0)),
            (4.95, Finished("p", "b")),
            (5.0, Finished("p", "a")),
            (5.0, Complete("p")),
        ]
    )
    assert check.faults.counts == {}
    assert check.finish().completed == 1


def test_an_interrupted_run_does_not_judge_what_waits() -> None:
    cut = [*life("p", 0, 0.0, 5.0)[:2], *life("q", 0, 4.95, 6.0)[:2], (4.95, Finished("r", "a"))]
    assert examine(cut, ended=False).faults.counts == {"end": 1}


def test_devices_and_graphs_that_join_later_are_used_like_others() -> None:
    more = Added(
        "a host came", (Device(3, "l4"),), {"l4": DeviceType("l4")}, (TaskGraphRecord("new", (Task("a", "x"),)),)
    )
    after = [(2.0, Arrived("p", "new", (0.0,))), *life("p", 3, 2.0, 4.0)[1:]]
    check = examine([(1.0, more), *after])
    assert check.faults.counts == {}
    assert check.finish().devices[3].busy_s == 2.0
    assert examine(after).faults.counts.keys() >= {"graph", "device"}
    wrong = Added("a host came", (Device(7, "l4"),), {"l4": DeviceType("l4")})
    assert "device" in examine([(1.0, wrong), *life("p", 0, 2.0, 3.0)]).faults.counts


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_what_ends_when_it_is_changed_was_changed_first(gap: float) -> None:
    rejected: Records = [*life("p", 0, 0.0, 5.0)[:2], (2.0, Stop("p", "a", "no")), (2.0 - gap, Failed("p", "a", "no"))]
    assert examine([*rejected, (2.0, Reject("p", "no"))]).faults.counts == {}
    resumed: Records = [*life("p", 0, 0.0, 5.0)[:2], (1.0, Pause("p", "a", "wait"))]
    resumed += [(2.0, Resume("p", "a", (1,), 0.0, "go on")), (2.0 - gap, Finished("p", "a")), (2.0, Complete("p"))]
    assert examine(resumed).faults.counts == {}


def test_what_joins_is_there_for_what_happens_at_that_instant() -> None:
    joined = Added("a host came", (Device(3, "l4"),), {"l4": DeviceType("l4")})
    assert examine([(1.0, joined), *life("p", 3, 1.0, 1.0)]).faults.counts == {}


# --- whole runs -------------------------------------------------------------------------------------


def random_run(random: Random) -> Records:
    """A correct run: chains on few devices, many tasks shorter than the clock's error, some that fail and run again."""
    free, records = [0.0] * 3, Records()
    for i in range(random.randint(1, 8)):
        job, kind = f"j{i}", random.choice(["one", "pair"])
        ready = random.choice([0.0, random.uniform(0.0, 3.0)])
        records.append((ready, Arrived(job, kind, (0.0,) if kind == "one" else (0.0, 0.0))))
        for task in ("a", "b")[: 1 + (kind == "pair")]:
            for last in [False] * random.randint(0, 2) + [True]:
                device = random.randrange(3)
                begin = max(ready, free[device]) + random.choice([0.0, 0.01, 1.0])
                end = begin + random.choice([0.0, 0.004, 0.05, 0.3, 2.0])
                records.append((begin, start(job, task, device, ready)))
                records.append((end, Finished(job, task) if last else Failed(job, task, "broken")))
                ready = free[device] = end
        records.append((ready, Complete(job)))
    order = sorted(range(len(records)), key=lambda i: records[i][0])
    return [records[i] for i in order]


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([0.001, 0.02, 0.1, 0.5]))
def test_a_correct_run_whose_stamps_are_wrong_by_less_than_half_the_error_passes(
    random: Random, error_s: float
) -> None:
    records = random_run(random)
    jittered = [(t + random.uniform(-0.499, 0.499) * error_s, event) for t, event in records]
    check = examine(jittered, error_s)
    assert check.faults.counts == {}, check.faults.first
    assert examine(records, error_s).faults.notes == []


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 400), st.integers(1, 400), st.integers(1, 200))
def test_an_overlap_is_found_if_and_only_if_the_error_cannot_explain_it(
    first: int, second: int, long: int, other: int, error: int
) -> None:
    """Either may have ended before the other began, if the stamps of that were wrong by so much."""
    ms = 1e-3
    runs = [*life("p", 0, first * ms, (first + long) * ms), *life("q", 0, second * ms, (second + other) * ms)]
    overlap = min(first + long - second, second + other - first)
    check = examine(runs, error * ms)
    assert ("overlap" in check.faults.counts) == (overlap > error)
    assert bool(check.faults.notes) == (0 < overlap <= error)


def test_a_device_that_joins_after_it_was_used_is_a_fault_and_no_accident() -> None:
    more = Added("a host came", (Device(3, "l4"),), {"l4": DeviceType("l4")})
    late = life("p", 3, 1.0, 4.0)
    assert examine([*late[:2], (2.0, more), *late[2:]]).faults.counts.keys() == {"device"}
