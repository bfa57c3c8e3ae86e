"""Who is let in: feed it arrivals and departures, ask for how long one would wait."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from dovetail.core.service.refusals import BusyError
from dovetail.workflow.inputs.tenants import Sharing, Tenancy, Tenant
from dovetail.workflow.live.door import Door
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


def test_a_workflow_that_is_put_last_is_judged_by_its_own_wait() -> None:
    door = Door(LiveSettings(max_wait_s=4.0), None, gpus=2)
    for i in range(3):
        door.enter(f"wide{i}", "", 2.0, "wide", 0.0)
    for i in range(40):
        door.enter(f"fast{i}", "", 0.1, "fast", 0.1 * i)
        door.leave(f"fast{i}", 0.1 * i + 0.05, started=True)
    for i in range(3):
        door.leave(f"wide{i}", 4.0, started=False)
    door.check("", 4.0, "wide")  # nobody is before it: it is tried
    door.enter("probe", "", 2.0, "wide", 4.0)
    with pytest.raises(BusyError, match="it would wait some 4 s, and max_wait_s is 4"):
        door.check("", 4.1, "wide")
    door.check("", 4.1, "fast")
    for i in range(8):  # it goes better now
        door.leave("probe", 4.2 + i, started=True)
        door.enter("probe", "", 2.0, "wide", 4.2 + i)
    door.check("", 13.0, "wide")


def test_who_started_meanwhile_counts_for_the_wait_of_a_workflow() -> None:
    door = Door(LiveSettings(), None, gpus=1)
    for i in range(6):
        door.enter(f"r{i}", "", 1.0, "slow", 0.0)
    assert door.wait_s(0.0, "slow") == 6.0
    for i in range(3):
        door.leave(f"r{i}", 5.0 * (i + 1), started=True)
    assert door.wait_s(15.0, "slow") == 3 * 5.0
    door.leave("r3", 16.0, started=False)  # cancelled: it says nothing
    assert door.wait_s(16.0, "slow") == 2 * 5.0


KINDS = {"fast": (0.1, 1), "slow": (2.0, 1), "wide": (1.0, 2)}  # seconds, GPUs
MOST_S = 4.0


class Crowd:
    """Far more requests than two GPUs can do, which take them in an order that somebody likes."""

    def __init__(self, order: str, seed: int, slower: float) -> None:
        self.order, self.slower, self.rng = order.split(), slower, Random(seed)
        self.door = Door(LiveSettings(max_wait_s=MOST_S, max_queue=20), None, gpus=2)
        self.waiting: list[tuple[str, float, str]] = []
        self.busy = [0.0, 0.0]
        self.accepted = self.late = 0
        times, t = list[float](), 0.0
        while (t := t + self.rng.expovariate(25.0)) < 12.0:
            times.append(t)
        self.happens = [(t, "", "arrives") for t in times]
        while self.happens:
            now, run, what = heapq.heappop(self.happens)
            if what == "arrives":
                self.arrive(now)
            elif what == "is late" and (found := [one for one in self.waiting if one[2] == run]):
                self.waiting.remove(found[0])
                self.late += 1
                self.door.leave(run, now, started=False)
            while self.start(now):
                pass

    def arrive(self, now: float) -> None:
        kind = self.rng.choice(list(KINDS))
        seconds, width = KINDS[kind]
        try:
            self.door.check("", now, kind, seconds * width, seconds)
        except BusyError:
            return
        self.accepted += 1
        run = f"{kind}{self.accepted}"
        self.door.enter(run, "", seconds * width, kind, now, seconds)
        self.waiting.append((kind, now, run))
        heapq.heappush(self.happens, (now + MOST_S, run, "is late"))

    def start(self, now: float) -> bool:
        free = [gpu for gpu in (0, 1) if self.busy[gpu] <= now]
        liked = sorted(self.waiting, key=lambda one: (self.order.index(one[0]) if self.order[1:] else 0, one[1]))
        able = [one for one in (liked if self.order[1:] else liked[:1]) if KINDS[one[0]][1] <= len(free)]
        if not able:
            return False
        kind, _, run = able[0]
        self.waiting.remove(able[0])
        self.door.leave(run, now, started=True)
        seconds, width = KINDS[kind]
        ends_s = now + seconds * self.slower * self.rng.uniform(0.9, 1.1)
        for gpu in free[:width]:
            self.busy[gpu] = ends_s
        heapq.heappush(self.happens, (ends_s, "", "ends"))
        return True


@pytest.mark.parametrize("slower", [1.0, 1.3])
@pytest.mark.parametrize("order", ["fast slow wide", "slow wide fast", "wide slow fast", "first"])
def test_who_is_let_in_is_served_whatever_the_order(order: str, slower: float) -> None:
    crowds = [Crowd(order, seed, slower) for seed in range(10)]
    accepted, late = sum(crowd.accepted for crowd in crowds), sum(crowd.late for crowd in crowds)
    assert accepted > 300
    assert late <= accepted / 50


def test_a_pool_without_gpus_is_no_reason_to_fall() -> None:
    """What needs none is still served there."""
    door = Door(LiveSettings(max_wait_s=100.0), None, gpus=0)
    for i in range(3):
        door.check("", 0.0, "tools", 1.0, 1.0)
        door.enter(str(i), "", 1.0, "tools", 0.0, 1.0)
    assert 0 < door.wait_s(0.0, "tools") < 100.0
    assert door.interval_s(0.0) == 1.0
