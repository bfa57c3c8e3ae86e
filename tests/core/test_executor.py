"""The simulated executor: draws that depend on the seed and the names alone, durations that vary, tasks that fail."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import pytest

from dovetail.core.events import Failed, Finished, Start
from dovetail.core.loop.executor import SimExecutor, _between, chance

MANY = 20_000


def start(job: str, task: str = "a", run_s: float = 1.0, setup_s: float = 0.0, batch: int = 0) -> Start:
    return Start(job, task, "x", (0,), 0.0, run_s, "test", setup_s, None, batch)


def run_s(executor: SimExecutor, job: str, task: str = "a") -> float:
    return executor.start(start(job, task), 0.0)[0]


# --- draws ------------------------------------------------------------------------------------------


def test_a_draw_is_never_nought_and_never_one() -> None:
    assert 0.0 < _between(0) < _between((1 << 52) - 1) < 1.0


def test_draws_are_spread_evenly() -> None:
    counts = [0] * 20
    for i in range(MANY):
        counts[int(20 * chance(0, f"req_{i}", "node"))] += 1
    expected = MANY / 20
    assert sum((count - expected) ** 2 / expected for count in counts) < 43.8, "chi-squared, 19 degrees, p = 0.001"


def test_a_draw_depends_on_the_seed_and_on_every_name() -> None:
    drawn = {chance(seed, *names) for seed in (1, 2) for names in [("a", "b"), ("b", "a"), ("ab",), ("a", "b", 1), ()]}
    assert len(drawn) == 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda i: chance(1, f"req_{i}", "a", 1), lambda i: chance(1, f"req_{i}", "a", 2)),
        (lambda i: chance(1, f"req_{i}", "a"), lambda i: chance(2, f"req_{i}", "a")),
        (lambda i: chance(1, f"req_{i}", "a"), lambda i: chance(1, f"req_{i}", "b")),
        (lambda i: chance(1, f"req_{i}", "a"), lambda i: chance(1, f"req_{i + 1}", "a")),
    ],
    ids=["attempts", "seeds", "tasks", "requests"],
)
def test_one_draw_tells_nothing_about_another(one, other) -> None:  # type: ignore[no-untyped-def]
    """Of the tasks that failed, one in five fails again, and no more or fewer."""
    failed = [i for i in range(MANY) if one(i) < 0.2]
    again = sum(other(i) < 0.2 for i in failed)
    spread = sqrt(len(failed) * 0.2 * 0.8)
    assert abs(again - 0.2 * len(failed)) < 4 * spread


# --- durations --------------------------------------------------------------------------------------


def test_without_noise_everything_takes_as_long_as_expected() -> None:
    order = start("w", run_s=2.5, setup_s=0.25)
    assert SimExecutor().start(order, 10.0) == (12.75, Finished("w", "a"))


def test_with_noise_durations_vary_about_what_was_expected() -> None:
    executor = SimExecutor(seed=5, noise=0.5)
    drawn = [run_s(executor, f"req_{i}") for i in range(MANY)]
    mean = sum(drawn) / MANY
    spread = sqrt(sum((value - mean) ** 2 for value in drawn) / MANY)
    assert all(value > 0 for value in drawn)
    assert mean == pytest.approx(1.0, abs=4 * 0.5 / sqrt(MANY))
    assert spread == pytest.approx(0.5, rel=0.1)


def test_noise_is_on_the_run_and_not_on_the_setup() -> None:
    executor = SimExecutor(noise=0.5)
    assert executor.start(start("w", run_s=0.0, setup_s=3.0), 1.0)[0] == 4.0


def test_policies_meet_the_same_draws_in_whatever_order_they_start() -> None:
    names = [(f"req_{i}", task) for i in range(20) for task in "ab"]
    there = SimExecutor(seed=3, noise=0.3, failure_rate=0.2)
    back = SimExecutor(seed=3, noise=0.3, failure_rate=0.2)
    forwards = {name: there.start(start(*name), 0.0) for name in names}
    backwards = {name: back.start(start(*name), 0.0) for name in reversed(names)}
    assert forwards == backwards
    assert forwards != {name: SimExecutor(4, 0.3, 0.2).start(start(*name), 0.0) for name in names}


def test_the_parts_of_a_batch_take_equally_long() -> None:
    executor = SimExecutor(noise=0.5)
    ends = {executor.start(start(job, batch=7), 0.0)[0] for job in "abcdef"}
    assert len(ends) == 1
    assert ends != {executor.start(start("a", batch=8), 0.0)[0]}


# --- failures ---------------------------------------------------------------------------------------


def test_a_failure_comes_half_way_through_the_run() -> None:
    always = SimExecutor(failure_rate=1.0)
    order = start("w", run_s=4.0, setup_s=0.5)
    assert always.start(order, 10.0) == (12.5, Failed("w", "a", "injected failure"))


def test_as_many_attempts_fail_as_was_asked_for() -> None:
    executor = SimExecutor(failure_rate=0.3)
    failed = sum(isinstance(executor.start(start(f"req_{i}"), 0.0)[1], Failed) for i in range(MANY))
    assert failed == pytest.approx(0.3 * MANY, abs=4 * sqrt(MANY * 0.3 * 0.7))


def test_each_attempt_has_a_draw_of_its_own() -> None:
    executor = SimExecutor(failure_rate=0.5)
    attempts = [isinstance(executor.start(start("w"), 0.0)[1], Failed) for _ in range(1000)]
    changes = sum(one != other for one, other in pairwise(attempts))
    assert changes == pytest.approx(500, abs=4 * sqrt(1000 * 0.25))
