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


def test_a_change_must_pay_while_it_lasts() -> None:
    """However much a job has left, two hours of restart are too dear beside jobs that will soon be gone."""
    for steps_left in (1e7, 1e9):
        widths = {}
        for others, restart_s in ((0, 7200.0), (4, 7200.0), (4, 60.0)):
            case = asked(steps_left=20.0, restart_s=restart_s, jobs=1 + others)
            case.steps_left[0], case.counts = steps_left, np.array([16, 0])
            widths[others, restart_s] = given(make("goodput_lookahead").allocate(case))[0][1]
        assert widths[4, 7200.0] == 2
        assert min(widths[0, 7200.0], widths[4, 60.0]) > 2


def test_a_price_keeps_jobs_narrow() -> None:
    case = asked(steps_left=1e5, restart_s=0.0)
    widths = [given(make("goodput_lookahead", {"price": price}).allocate(case))[0][1] for price in (0.0, 0.1, 10.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_jobs_grow_as_far_as_they_waste_little() -> None:
    """Noise is low, so wide batches bring little: they are for those who have much of it, or pay nothing."""
    widths = {}
    for noise, price in ((0.01, 0.5), (0.01, 0.0), (100.0, 0.5)):
        case = asked(steps_left=1e4, restart_s=0.0, grad_var=[noise])
        case.counts = np.array([8, 0])
        widths[noise, price] = given(make("goodput_lookahead", {"price": price}).allocate(case))[0][1]
    assert widths == {(0.01, 0.5): 2, (0.01, 0.0): 8, (100.0, 0.5): 8}


def test_who_will_have_been_here_longer_has_more() -> None:
    """Jobs alike but for their age share what is too little for all, whichever of them is the first."""
    for oldest in range(3):
        age_s = np.where(np.arange(3) == oldest, 20000.0, 100.0)
        case = asked(steps_left=2000.0, restart_s=0.0, jobs=3, age_s=age_s, widest=np.tile([0, 4], (3, 1)))
        case.counts = np.array([0, 4])
        widths = [width for _, width in given(make("goodput_lookahead").allocate(case))]
        assert widths == [2 if job == oldest else 1 for job in range(3)]


def test_who_takes_hours_of_accelerators_counts_no_more() -> None:
    """The same three jobs, but the oldest has so much to do that it would hold up all others."""
    case = asked(steps_left=2000.0, restart_s=0.0, jobs=3, widest=np.tile([0, 4], (3, 1)))
    case.age_s, case.counts = np.array([20000.0, 100.0, 100.0]), np.array([0, 4])
    assert [width for _, width in given(make("goodput_lookahead").allocate(case))] == [2, 1, 1]
    known = case.adaptive
    known.applications = (msgspec.structs.replace(known.applications[0], progress=[1e9]), known.applications[0])
    case.steps_left = np.array([1e9, 2000.0, 2000.0])
    known.application = np.array([0, 1, 1])
    assert [width for _, width in given(make("goodput_lookahead").allocate(case))] == [0, 2, 2]


def after_others(price: float, *seen: int) -> Any:
    """The policy, when nine short jobs have come and gone, which had these widths."""
    policy = make("goodput_lookahead", {"price": price})
    others = asked(steps_left=10.0, restart_s=0.0, jobs=9)
    others.ids, others.counts = np.arange(10, 19), np.array([16, 0])
    others.adaptive.points = [{0: points(*(seen or (1, 2, 4)))}] * 9
    policy.allocate(others)
    return policy


def test_large_jobs_count_again_when_little_is_left_if_they_will_be_the_longest() -> None:
    widths = {}
    for steps_left, age_s in ((50.0, 3e4), (50.0, 0.0), (5e4, 3e4)):
        case = asked(steps_left=steps_left, restart_s=0.0, age_s=np.array([age_s]), grad_var=[0.3])
        case.counts, known = np.array([8, 0]), case.adaptive
        known.applications = (msgspec.structs.replace(known.applications[0], progress=[1e9]),)
        widths[steps_left, age_s] = given(after_others(0.3).allocate(case))[0][1]
    assert widths[50.0, 3e4] > widths[50.0, 0.0] == widths[5e4, 3e4]


def test_large_jobs_pay_for_width_and_not_for_a_slow_type() -> None:
    """Eight slow accelerators are faster than a fast one: small jobs save accelerator time, large ones their own."""
    given_to = {}
    for size in (1000.0, 1e9):
        case = asked(steps_left=size, restart_s=0.0, grad_var=[100.0])
        case.counts, known = np.array([8, 1]), case.adaptive
        known.applications = (msgspec.structs.replace(known.applications[0], progress=[size]),)
        [given_to[size]] = given(make("goodput_lookahead", {"price": 0.3}).allocate(case))
    assert given_to == {1000.0: (1, 1), 1e9: (0, 8)}


def test_who_will_be_the_longest_tries_what_nobody_had() -> None:
    """Four accelerators look hardly better than two: who will be the last hopes that they are, until it is seen, or
    three other widths tell."""
    widths = []
    for seen in ((1, 2), (2, 3), (1, 2, 3), (1, 2, 4)):
        last: dict[str, Any] = {"age_s": np.array([3e4]), "widest": np.array([[3, 0]])}
        case = asked(steps_left=1e3, restart_s=0.0, grad_var=[0.3], **last)
        case.counts, case.adaptive.points = np.array([8, 0]), [{0: points(*seen)}]
        widths.append(given(after_others(10.0, *seen).allocate(case))[0][1])
    assert widths == [4, 4, 2, 2]


def test_who_will_be_the_longest_counts_twice_as_much_again() -> None:
    age_s, widest = np.array([2e4, 100.0, 100.0, 100.0]), np.tile([0, 4], (4, 1))
    case = asked(steps_left=2000.0, restart_s=0.0, jobs=4, age_s=age_s, widest=widest)
    case.counts = np.array([0, 8])
    widths = [width for _, width in given(after_others(0.07).allocate(case))]
    assert (widths[0], sorted(widths[1:])) == (4, [1, 1, 2])


def test_no_way_to_run_costs_as_much_as_to_wait() -> None:
    """Else whoever counts more could as well be narrow: beside two that are nearly done it has what they leave."""
    age_s = np.array([10.0, 10.0, 20000.0])
    case = asked(steps_left=2000.0, restart_s=0.0, jobs=3, age_s=age_s)
    case.steps_left, case.counts = np.array([1.0, 1.0, 2000.0]), np.array([8, 0])
    assert given(make("goodput_lookahead").allocate(case)) == [(0, 2), (0, 2), (0, 4)]


def test_new_jobs_profit_from_what_others_saw() -> None:
    """A job that never ran has a type in mind: the one that is faster by what another job of its kind saw."""
    policy = make("goodput_lookahead")
    policy.allocate(asked(steps_left=1e5, restart_s=60.0))
    new = problem(1)
    assert given(policy.allocate(new))[0][0] == 1


def test_jobs_of_a_known_application_begin_as_wide_as_pays() -> None:
    """Another job had eight accelerators and is done: a new one needs not double from one."""
    policy = make("goodput_lookahead")
    before = asked(steps_left=1e5, restart_s=60.0, widest=[[8, 0]])
    before.adaptive.points = [{0: points(1, 2, 4, 8)}]
    policy.allocate(before)
    new = problem(1)
    new.ids, new.steps_left, new.counts = np.array([7]), np.array([1e5]), np.array([8, 0])
    assert given(policy.allocate(new))[0][1] > 1
    assert given(make("goodput_lookahead").allocate(new)) == [(0, 1)]


def test_the_first_of_an_application_begins_on_the_fastest_type() -> None:
    first = problem(1)
    known = first.adaptive
    assert known is not None
    speeds = [known.applications[0].types[name].one_gpu for name in first.types]
    assert given(make("goodput_lookahead").allocate(first)) == [(int(np.argmax(speeds)), 1)]


def test_noise_that_others_saw_with_larger_batches_is_believed() -> None:
    """With little noise a job stays narrow, until another one with a larger batch saw much in the same epoch."""
    policy, widths = make("goodput_lookahead", {"price": 0.5}), []
    for noise, local in ((0.001, 16), (500.0, 64), (0.001, 16)):
        case = asked(steps_left=1e5, restart_s=0.0, grad_var=[noise], local=[local])
        case.counts = np.array([8, 0])
        widths.append(given(policy.allocate(case))[0][1])
    assert widths[0] < widths[1] == widths[2]


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
