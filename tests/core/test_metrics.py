"""Figures: one run whose numbers are worked out by hand, and the cases in which they could easily be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start, WakeAt, Woke
from dovetail.core.journal import Header, Reader, Writer
from dovetail.core.metrics import DeviceFigures, Figures, Metrics, Spread
from dovetail.core.resources import Pool

POOL = Pool.parse("3", {})
Steps = list[tuple[float, list[Any]]]

# Device 0: p/a (loaded for 1 s), q/c (fails after 1 s, then runs), a batch of m/c and n/c. Devices 1 and 2: p/b.
RUN: Steps = [
    (0.0, [Arrived("p", "pair", (4.0, 6.0), due_s=10.0), Start("p", "a", "x", (0,), 0.0, 4.0, "free", 1.0)]),
    (1.0, [Arrived("q", "one", (2.0,), due_s=3.0), Arrived("bad", "one", fault="none"), Reject("bad", "none")]),
    (
        5.0,
        [
            Finished("p", "a"),
            Start("p", "b", "y", (1, 2), 5.0, 6.0, "free", 0.5, "x"),
            Start("q", "c", "x", (0,), 1.0, 2.0, "warm"),
        ],
    ),
    (6.0, [Failed("q", "c", "broken"), Start("q", "c", "x", (0,), 6.0, 2.0, "again"), WakeAt(7.0)]),
    (7.0, [Woke()]),
    (
        8.0,
        [
            Finished("q", "c"),
            Arrived("m", "one", (3.0,), due_s=3.5),
            Arrived("n", "one", (3.0,)),
            Complete("q"),
            Start("m", "c", "z", (0,), 8.0, 3.0, "together", 0.5, "x", 1),
            Start("n", "c", "z", (0,), 8.0, 3.0, "together", 0.5, "x", 1),
        ],
    ),
    (
        11.5,
        [
            *[Finished("m", "c"), Finished("n", "c"), Finished("p", "b")],
            *[Complete("m"), Complete("n"), Complete("p")],
        ],
    ),
]


def figures(steps: Steps, pool: Pool = POOL) -> Figures:
    metrics = Metrics(pool)
    for n, (t, events) in enumerate(steps, start=1):
        metrics.step(n, t, events)
    return metrics.figures()


def test_works_are_counted_by_how_they_ended() -> None:
    found = figures(RUN)
    assert (found.arrived, found.completed, found.rejected) == (5, 4, 1)
    assert found.late == 2, "q after 7 s instead of 3, p after 11.5 s instead of 10; m just in time"


def test_parts_are_counted_when_they_finish_and_failures_apart() -> None:
    found = figures(RUN)
    assert (found.tasks, found.failures) == (5, 1)
    assert found.kinds == {"x": 2, "y": 1, "z": 2}


def test_times_of_works_and_parts() -> None:
    found = figures(RUN)
    assert found.makespan_s == 11.5
    response, wait = found.response_s, found.task_wait_s
    assert (response.mean, response.median, response.min, response.max) == (6.375, 5.25, 3.5, 11.5)
    assert response.p99 == pytest.approx(7 + 0.97 * 4.5)
    assert (wait.mean, wait.median, wait.min, wait.max) == (4 / 6, 0.0, 0.0, 4.0)
    assert found.task_response_s.mean == pytest.approx((5 + 6.5 + 2 + 3.5 + 3.5) / 5)


def test_a_change_is_paid_once_per_window_and_once_per_batch() -> None:
    found = figures(RUN)
    assert (found.switches, found.switch_time_s) == (2, 1.0)
    assert (found.loads, found.load_time_s) == (1, 1.0)


def test_every_device_of_a_window_is_busy_while_it_is_set_up_or_runs() -> None:
    found = figures(RUN)
    assert found.devices == [
        DeviceFigures(id=0, executions=4, busy_s=11.5, setup_s=1.5, utilisation=1.0),
        DeviceFigures(id=1, executions=1, busy_s=6.5, setup_s=0.5, utilisation=6.5 / 11.5),
        DeviceFigures(id=2, executions=1, busy_s=6.5, setup_s=0.5, utilisation=6.5 / 11.5),
    ]
    assert found.utilisation == pytest.approx((11.5 + 6.5 + 6.5) / (3 * 11.5))


def test_the_figures_of_a_recorded_run_are_those_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Writer(path, Header(level="any", policy="by hand", pool=POOL)) as journal:
        for n, (t, events) in enumerate(RUN, start=1):
            journal.step(n, t, events)
        journal.end(len(RUN) + 1, 11.5, {})
    metrics = Metrics(Reader(path).header.pool)
    Reader(path).feed(metrics)
    assert metrics.figures() == figures(RUN)


def test_a_device_is_busy_until_the_last_part_of_a_batch_has_ended() -> None:
    steps: Steps = [
        (0.0, [Arrived("m", "one", (4.0,)), Arrived("n", "one", (4.0,))]),
        (1.0, [Start(job, "c", "x", (0,), 0.0, 4.0, "together", 1.0, None, 1) for job in "mn"]),
        (4.0, [Failed("m", "c", "broken")]),
        (6.0, [Finished("n", "c"), Complete("n"), Reject("m", "broken")]),
    ]
    found = figures(steps)
    assert found.devices[0] == DeviceFigures(id=0, executions=1, busy_s=5.0, setup_s=1.0, utilisation=5 / 6)
    assert (found.failures, found.tasks, found.loads) == (1, 1, 1)


def test_what_failed_during_its_setup_was_not_set_up_for_longer() -> None:
    steps: Steps = [
        (0.0, [Arrived("m", "one", (4.0,)), Start("m", "c", "x", (0,), 0.0, 4.0, "free", 3.0)]),
        (2.0, [Failed("m", "c", "broken"), Reject("m", "broken")]),
    ]
    device = figures(steps).devices[0]
    assert (device.busy_s, device.setup_s, device.executions) == (2.0, 2.0, 0)


def test_what_ends_after_its_work_was_rejected_still_kept_its_device_busy() -> None:
    steps: Steps = [
        (0.0, [Arrived("m", "one", (4.0,)), Start("m", "c", "x", (0,), 0.0, 4.0, "free")]),
        (1.0, [Reject("m", "given up")]),
        (4.0, [Finished("m", "c")]),
    ]
    found = figures(steps)
    assert (found.rejected, found.completed, found.makespan_s, found.devices[0].busy_s) == (1, 0, 4.0, 4.0)


def test_a_run_of_nothing_has_figures() -> None:
    found = figures([])
    assert (found.arrived, found.makespan_s, found.utilisation) == (0, 0.0, 0.0)
    assert found.response_s == Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    assert figures([], Pool((), {})).utilisation == 0.0


def test_what_takes_no_time_is_counted_all_the_same() -> None:
    steps: Steps = [
        (0.0, [Arrived("m", "one", (0.0,)), Start("m", "c", "x", (0,), 0.0, 0.0, "free")]),
        (0.0, [Finished("m", "c"), Complete("m")]),
    ]
    found = figures(steps)
    assert (found.tasks, found.completed) == (1, 1)
    assert found.devices[0] == DeviceFigures(id=0, executions=1, busy_s=0.0, setup_s=0.0, utilisation=0.0)


def test_a_part_that_needs_no_device_is_counted_and_makes_none_busy() -> None:
    steps: Steps = [
        (0.0, [Arrived("m", "one", (2.0,)), Start("m", "c", "cpu", (), 0.0, 2.0, "needs no GPU")]),
        (2.0, [Finished("m", "c"), Complete("m")]),
    ]
    found = figures(steps)
    assert (found.tasks, found.utilisation) == (1, 0.0)


def test_percentiles_interpolate_between_neighbours() -> None:
    values = [5.0, 1.0, 4.0, 2.0]
    spread = Spread.of(values)
    assert (spread.min, spread.median, spread.max, spread.mean) == (1.0, 3.0, 5.0, 3.0)
    assert spread.p99 == pytest.approx(float(np.quantile(values, 0.99)))
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0)
