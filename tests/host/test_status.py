"""What is known of programs, from events alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Defer,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
)
from dovetail.host.metrics import Programs, ProgramStatus


def start(*devices: int) -> Start:
    return Start("a", "run", "program", devices, 0.0, 0.0, "2 of 2 asked")


def board(*steps: tuple[float, Sequence[Any]]) -> ProgramStatus:
    found = Programs(2)
    found.step(1, 0.0, [Arrived("a", "program", (0.0,), facts={"cores": 2})])
    for n, (t, events) in enumerate(steps, start=2):
        found.step(n, t, events)
    return found.rows["a"]


def test_times_and_core_seconds() -> None:
    row = board(
        (1.0, [Defer("a", "run", "behind b")]),
        (2.0, [start(0, 1)]),
        (5.0, [Pause("a", "run", "its turn is over")]),
        (9.0, [Resume("a", "run", (1,), 0.0, "")]),
        (10.0, [Resize("a", "run", (0, 1), 0.0, "")]),
        (14.0, [Finished("a", "run"), Complete("a")]),
    )
    assert (row.status, row.started_s, row.ended_s, row.closed_s, row.attempts) == ("completed", 2.0, 14.0, 14.0, 1)
    assert row.until(99.0) == (8.0, 3 * 2 + 1 + 4 * 2)
    assert row.waited_s(99.0) == row.waiting_s == 6.0
    assert (row.pauses, row.resizes, row.wanted) == (1, 1, "")


def test_what_ought_to_be_is_known_at_any_time() -> None:
    cases: list[tuple[list[tuple[float, list[Any]]], str, tuple[int, ...], str]] = [
        ([(1.0, [start(0)])], "run", (0,), "running"),
        ([(1.0, [start(0)]), (2.0, [Pause("a", "run", "")])], "pause", (), "paused"),
        ([(1.0, [start(0)]), (2.0, [Stop("a", "run", "requeue")])], "stop", (0,), "stopping"),
        ([(1.0, [start(0)]), (2.0, [Failed("a", "run", "exit code 1")])], "", (), "waiting"),
    ]
    for steps, wanted, devices, state in cases:
        row = board(*steps)
        assert (row.wanted, row.devices, row.status) == (wanted, devices, state)


def test_a_cancelled_program_is_closed_when_it_has_ended() -> None:
    stop = [Asked("a", "cancel"), Stop("a", "run", "cancelled by its user")]
    row = board((1.0, [start(0)]), (2.0, stop))
    assert (row.status, row.closed_s) == ("stopping", None)
    row = board(
        (1.0, [start(0)]),
        (2.0, stop),
        (3.0, [Failed("a", "run", ""), Reject("a", "cancelled by its user", cancelled=True)]),
    )
    assert (row.status, row.cancelled, row.closed_s, row.why) == ("rejected", True, 3.0, "cancelled by its user")


def test_a_second_attempt_counts() -> None:
    row = board((1.0, [start(0)]), (2.0, [Failed("a", "run", "exit code 1"), start(1)]))
    assert (row.attempts, row.wanted, row.devices, row.started_s) == (2, "run", (1,), 1.0)


def test_users_wishes_show() -> None:
    row = board((1.0, [Asked("a", "priority", 3), Asked("a", "resize", 1)]))
    assert row.asks == {"priority": 3, "cores": 1}
    assert (row.asked, row.priority) == (2, 0)  # as it came, for the figures
