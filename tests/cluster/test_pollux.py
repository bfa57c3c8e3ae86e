"""What the policy `pollux` finds, and that it finds it again."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.cluster.policies import make
from dovetail.cluster.policies.pollux import _mend
from dovetail.core.errors import InputError
from tests.cluster.test_goodput_lookahead import asked
from tests.cluster.test_sia import given, problem


def test_the_same_seed_decides_the_same() -> None:
    case = asked(steps_left=1e5, restart_s=30.0, jobs=3)
    first, again = (given(make("pollux", {"seed": 5}).allocate(case)) for _ in range(2))
    assert first == again


def test_all_jobs_have_something_and_nobody_too_much() -> None:
    found = given(make("pollux").allocate(asked(steps_left=1e5, restart_s=30.0, jobs=3)))
    assert all(1 <= width <= 8 for _, width in found)
    assert sum(width for on, width in found if on == 0) <= 8
    assert sum(width for on, width in found if on == 1) <= 4


def test_new_jobs_begin_with_one_accelerator() -> None:
    assert [width for _, width in given(make("pollux").allocate(problem(4)))] == [1] * 4


def test_a_good_plan_is_kept() -> None:
    """Without anything new the search goes on from where it was, and never gets worse."""
    policy, case = make("pollux", {"generations": 5}), asked(steps_left=1e5, restart_s=30.0, jobs=4)
    worth = [policy.allocate(case).value for _ in range(4)]
    assert None not in worth
    assert worth[1:] == sorted(worth[1:], key=lambda value: value or 0.0)


def test_a_plan_is_remembered_as_it_was_carried_out() -> None:
    """Of several types a job keeps one, and the search goes on from that, not from what it never had."""
    policy, case = make("pollux", {"generations": 20}), asked(steps_left=1e5, restart_s=30.0, jobs=2)
    for _ in range(4):
        found = given(policy.allocate(case))
        plan = policy._plans[0]  # type: ignore[attr-defined]  # two servers of T4, one of A100
        by_type = np.stack([plan[:, :2].sum(axis=1), plan[:, 2]], axis=1)
        assert ((by_type > 0).sum(axis=1) == 1).all()
        assert [(int(row.argmax()), int(row.max())) for row in by_type] == found


def test_of_as_many_of_two_types_the_faster_is_kept() -> None:
    policy, case = make("pollux", {"generations": 2}), asked(steps_left=1e5, restart_s=30.0)
    policy._plans, policy._ids = np.tile([[1, 0, 1]], (100, 1, 1)), [0]  # type: ignore[attr-defined]
    policy._children = lambda plans, worth, room: plans  # type: ignore[attr-defined]
    assert given(policy.allocate(case)) == [(1, 1)]


def test_fits_are_kept_for_what_jobs_have_seen_last() -> None:
    policy, case = make("pollux", {"generations": 2}), asked(steps_left=1e5, restart_s=30.0, jobs=2)
    for longer in range(1, 4):
        for seen in case.adaptive.points:
            seen[0] = seen[0] * [1, 1, 1, 1 + longer / 10, 1]
        policy.allocate(case)
        assert len(policy._fits) == 1  # type: ignore[attr-defined]  # both have seen the same


def test_plans_are_mended() -> None:
    random = np.random.default_rng(0)
    room, most = np.array([4, 4, 2]), np.array([1, 3, 8, 8])
    plans = _mend(random.integers(0, 5, (200, 4, 3)), room, most, np.array([2, 0, 1, 3]))
    assert (plans.sum(axis=1) <= room).all()
    assert (plans.sum(axis=2) <= most).all()
    several = ((plans > 0).sum(axis=2) > 1)[:, :, None] & (plans > 0)
    assert several.sum(axis=1).max() <= 1
    assert (plans.sum(axis=(1, 2)) > 5).any()


def test_rigid_jobs_come_first() -> None:
    found = given(make("pollux").allocate(problem(3, adaptive=1, width=np.array([1, 3, 6]))))
    assert found[1:] == [(1, 3), (0, 6)]


@pytest.mark.parametrize("option", ["population", "generations"])
def test_bad_options(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} is 1, expected 2 to 1000"):
        make("pollux", {option: 1})
