"""What the policy `goodput_lookahead` makes of the work that is left, of restarts, and of other jobs' experience."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.cluster.goodput.throughput import compute_s, iteration_s
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError
from tests.cluster.test_sia import NUMBERS, given, problem


def points(*widths: int) -> Floats:
    """What a job sees at these widths, at two local batches each."""
    rows = []
    for width in widths:
        for local in (16, 32):
            step = float(iteration_s(NUMBERS, -(-width // 4), width, local))
            rows.append((-(-width // 4), width, local, step, step - float(compute_s(NUMBERS, local))))
    return np.array(rows)


def asked(*, steps_left: float, restart_s: float, jobs: int = 1, **changes: Any) -> Any:
    """Jobs with two T4 that could have four or eight."""
    known: dict[str, Any] = {
        "numbers": np.tile(np.where(np.arange(2)[:, None] == 0, NUMBERS, np.nan), (jobs, 1, 1)),
        "widest": np.tile([4, 0], (jobs, 1)),
        "on": np.zeros(jobs, dtype=np.int64),
        "width": np.full(jobs, 2),
    } | changes
    found = problem(jobs, **known)
    assert found.adaptive is not None
    found.adaptive.points = [{0: points(1, 2, 4)} for _ in range(jobs)]
    application = found.adaptive.applications[0]
    found.adaptive.applications = (msgspec.structs.replace(application, restart_s=restart_s),)
    found.steps_left = np.full(jobs, steps_left)
    return found


def test_a_change_must_pay_over_the_work_that_is_left() -> None:
    long, short = asked(steps_left=1e5, restart_s=60.0), asked(steps_left=20.0, restart_s=60.0)
    assert given(make("goodput_lookahead").allocate(long))[0][1] > 2
    assert given(make("goodput_lookahead").allocate(short)) == [(0, 2)]
    free = asked(steps_left=20.0, restart_s=0.0)
    assert given(make("goodput_lookahead").allocate(free))[0][1] > 2
    assert given(make("goodput_lookahead", {"caution": 0}).allocate(short))[0][1] > 2


def test_a_price_keeps_jobs_narrow() -> None:
    case = asked(steps_left=1e5, restart_s=0.0)
    widths = [given(make("goodput_lookahead", {"price": price}).allocate(case))[0][1] for price in (0.0, 0.1, 10.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_long_jobs_waste_little_where_there_is_one_type() -> None:
    """Noise is low, so wide batches bring little: whoever is soon done has them all the same."""
    widths = {}
    for steps_left in (50.0, 1e6):
        case = asked(steps_left=steps_left, restart_s=0.0, grad_var=[0.5])
        case.types, case.counts, case.prices, case.rates = ("t4",), case.counts[:1], case.prices[:1], case.rates[:, :1]
        known = case.adaptive
        known.per_server, known.numbers, known.widest = known.per_server[:1], known.numbers[:, :1], known.widest[:, :1]
        widths[steps_left] = given(make("goodput_lookahead", {"price": 0}).allocate(case))[0][1]
    assert widths == {50.0: 8, 1e6: 2}


def test_new_jobs_profit_from_what_others_saw() -> None:
    """A job that never ran has a type in mind: the one that is faster by what another job of its kind saw."""
    policy = make("goodput_lookahead")
    policy.allocate(asked(steps_left=1e5, restart_s=60.0))
    new = problem(1)
    assert given(policy.allocate(new)) == [(1, 1)]


def test_nobody_waits_while_there_is_room() -> None:
    assert all(width > 0 for _, width in given(make("goodput_lookahead").allocate(problem(12))))
    crowd = given(make("goodput_lookahead").allocate(problem(20)))
    assert sum(width for _, width in crowd) == 12


def test_who_is_restarting_keeps_what_it_has() -> None:
    case = asked(steps_left=1e5, restart_s=60.0, pause_s=[30.0])
    assert given(make("goodput_lookahead").allocate(case)) == [(0, 2)]


def test_rigid_jobs_have_their_width() -> None:
    found = given(make("goodput_lookahead").allocate(problem(2, adaptive=0, width=np.array([3, 6]))))
    assert found == [(1, 3), (0, 6)]


@pytest.mark.parametrize(("option", "value"), [("power", 0.0), ("caution", -1.0), ("price", 11.0)])
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{option} is {value:g}, expected"):
        make("goodput_lookahead", {option: value})
