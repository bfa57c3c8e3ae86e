"""Who is let in: feed it arrivals and departures, ask for how long one would wait."""

from __future__ import annotations

import pytest

from dovetail.workflow.inputs.tenants import Sharing, Tenancy, Tenant
from dovetail.workflow.live.door import Door
from dovetail.workflow.live.runs import BusyError
from dovetail.workflow.live.settings import LiveSettings


def test_the_wait_is_what_is_estimated_until_it_is_measured() -> None:
    door = Door(LiveSettings(), None, gpus=2)
    for i in range(20):
        door.enter(f"r{i}", "", 3.0)
    assert door.wait_s(0.0) == 20 * 3.0 / 2
    for i in range(10):
        door.leave(f"r{i}", 5.0 * i, started=True)
    assert door.wait_s(45.0) == 10 * 5.0


def test_gaps_without_anybody_waiting_say_nothing_of_the_speed() -> None:
    door = Door(LiveSettings(), None, gpus=1)
    for i in range(100):
        door.enter(f"r{i}", "", 0.5)
        door.leave(f"r{i}", 1000.0 * i, started=True)
    door.enter("last", "", 0.5)
    assert door.wait_s(1e6) == 0.5


def test_a_queue_that_stands_still_is_not_taken_for_a_fast_one() -> None:
    door = Door(LiveSettings(), None, gpus=1)
    for i in range(100):
        door.enter(f"r{i}", "", 1.0)
    for i in range(50):
        door.leave(f"r{i}", 0.01 * i, started=True)
    assert door.wait_s(0.5) == pytest.approx(0.5)
    assert door.wait_s(6400.5) > 50 * 99


def test_one_who_leaves_without_a_start_is_no_sign_of_speed() -> None:
    door = Door(LiveSettings(), None, gpus=1)
    for i in range(40):
        door.enter(f"r{i}", "", 2.0)
    for i in range(30):
        door.leave(f"r{i}", 0.0, started=False)
    assert (door.waiting, door.wait_s(0.0)) == (10, 20.0)


@pytest.mark.parametrize(
    ("tenancy", "most", "said"),
    [
        (None, 4, "4 requests wait, and max_queue is 4"),
        (Tenancy({}, Sharing(max_queue=2)), 2, "2 requests wait, and max_queue is 2"),
        (Tenancy({"lab": Tenant(max_queue=1)}), 1, "1 requests of tenant 'lab' wait, and its max_queue is 1"),
    ],
)
def test_the_smallest_bound_counts(tenancy: Tenancy | None, most: int, said: str) -> None:
    door = Door(LiveSettings(max_queue=4), tenancy, gpus=1)
    for i in range(most):
        door.check("lab", 0.0)
        door.enter(f"r{i}", "lab", 30.0)
    with pytest.raises(BusyError, match=said) as busy:
        door.check("lab", 0.0)
    assert busy.value.retry_after_s == 30.0


def test_the_answer_to_one_who_would_wait_too_long_is_when_to_come_again() -> None:
    door = Door(LiveSettings(max_wait_s=100.0), None, gpus=1)
    for i in range(26):
        door.enter(f"r{i}", "", 5.0)
    with pytest.raises(BusyError, match="it would wait some 130 s, and max_wait_s is 100") as busy:
        door.check("", 0.0)
    assert busy.value.retry_after_s == 50.0  # four fifths of max_wait_s may wait
