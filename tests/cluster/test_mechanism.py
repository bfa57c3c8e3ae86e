"""Rounds out of shares: in the long run everybody gets what was allotted, and no type is over-full."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import cluster
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.rounding.mechanism import Mechanism, fitting
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError
from tests.cluster.conftest import THROUGHPUTS, Table


@given(st.lists(st.integers(1, 8), max_size=30), st.integers(0, 40))
def test_fitting_is_first_come_first_served_with_passing_over(widths: list[int], capacity: int) -> None:
    taken, left = [], capacity
    for i, width in enumerate(widths):
        if width <= left:
            taken.append(i)
            left -= width
    assert fitting(np.array(widths, dtype=np.int64), capacity).tolist() == taken


def _paired(pairs: list[list[int]], share: list[list[float]]) -> Allocation:
    return Allocation(share=np.zeros((2, 2)), pairs=np.array(pairs), pair_share=np.array(share))


def _mechanism(policy: Table, rules: RoundRules, counts: tuple[int, int] = (1, 1)) -> Mechanism:
    return Mechanism(
        policy,
        THROUGHPUTS.types,
        np.array(counts),
        THROUGHPUTS.alone,
        THROUGHPUTS.pairs,
        rules,
        random.Random(0),
        kinds=THROUGHPUTS.kinds,
    )


def _arrived(kinds: Sequence[int], steps: float = 9.0) -> dict[str, Any]:
    count = len(kinds)
    return {"id": list(range(count)), "kind": list(kinds), "steps": [steps] * count, "at_s": [0.0] * count}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_shares_are_met_whatever_the_order_of_types_and_however_little_there_is_to_do(data: st.DataObject) -> None:
    """All at once, without restarts: the last ends hardly later than with shares that are carried out exactly."""
    types = data.draw(st.permutations(["a", "b", "c"]))
    counts = {name: data.draw(st.integers(1, 5)) for name in types}
    speeds = {(m, t): data.draw(st.sampled_from([0.3, 1.0, 2.0, 5.0, 10.0])) for m in "mno" for t in types}
    rates = [{"model": m, "type": t, "steps_per_s": speed} for (m, t), speed in speeds.items()]
    work = st.tuples(st.sampled_from("mno"), st.sampled_from([50_000, 100_000, 200_000]))
    trace = [{"arrival_s": 0.0, "model": m, "steps": n} for m, n in data.draw(st.lists(work, min_size=3, max_size=9))]

    def makespan_s(order: list[str], **how: Any) -> float:
        named = {"types": {name: {"count": counts[name]} for name in order}, "order": order}
        jobs = cluster.load(cluster=named, throughputs=rates, trace=trace)
        found: float = cluster.simulate(jobs, "min_total_duration_perf", restart_s=0.0, **how).figures.makespan_s
        return found

    took_s = makespan_s(types)
    assert took_s <= 1.2 * makespan_s(types, ideal=True) + 3 * 360.0
    assert took_s <= 1.2 * makespan_s(sorted(types)) + 3 * 360.0


@pytest.mark.parametrize("priority", ["owed", "fraction"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_long_run_time_follows_the_shares(priority: Literal["owed", "fraction"], data: st.DataObject) -> None:
    """Shares that fill both types exactly are met to within two rounds each, by either rule."""
    jobs = 4
    matrix = np.array(data.draw(st.lists(st.integers(1, 9), min_size=jobs, max_size=jobs)), dtype=np.float64)
    first = matrix / matrix.sum()  # of one fast device
    second = (1 - first) / (1 - first).sum()  # of one slow device, for who is elsewhere less
    shares = {i: [first[i], min(second[i], 1 - first[i])] for i in range(jobs)}
    rules = RoundRules(priority=priority, restart_s=0.0)
    mechanism = _mechanism(Table(shares), rules)
    mechanism.arrive(_arrived([0] * jobs, 1e12))
    total = np.zeros((jobs, 2))
    rounds = 400
    for n in range(rounds):
        mechanism.update(n * rules.round_s)
        choice = mechanism.choose()
        rows = np.flatnonzero(choice.on >= 0)
        mechanism.receive(rows, choice.on[rows], np.full(len(rows), rules.round_s))
        total[rows, choice.on[rows]] += 1
    wanted = np.array([shares[i] for i in range(jobs)]) * rounds
    assert (total >= wanted - 8).all(), (total, wanted)


def test_rounds_respect_capacity_and_widths() -> None:
    mechanism = _mechanism(Table({i: [0.5, 0.5] for i in range(6)}), RoundRules(), counts=(3, 2))
    kinds = [0, 2, 0, 3, 1, 2]
    mechanism.arrive(_arrived(kinds))
    mechanism.update(0.0)
    choice = mechanism.choose()
    for j, count in enumerate((3, 2)):
        assert mechanism.jobs.width[choice.on == j].sum() <= count
    assert choice.on[3] == -1  # four wide, and only three are there


def test_pairs_run_together_or_not_at_all() -> None:
    mechanism = _mechanism(Table({0: [0, 0], 1: [0, 0], 2: [0, 1]}, {(0, 1): [1.0, 0.0]}), RoundRules())
    mechanism.arrive(_arrived([0, 1, 0]))
    mechanism.update(0.0)
    choice = mechanism.choose()
    assert choice.on.tolist() == [0, 0, 1]
    assert choice.beside.tolist() == [1, 0, -1]


def test_one_queue_for_all_types_takes_the_best_rank_anywhere() -> None:
    mechanism = _mechanism(Table({0: [0.1, 0.9], 1: [0.2, 0.3]}), RoundRules(global_queue=True))
    mechanism.arrive(_arrived([0, 0]))
    mechanism.update(0.0)
    assert mechanism.choose().on.tolist() == [1, 0]


def test_a_strict_policy_leaves_jobs_without_share_idle() -> None:
    policy = Table({0: [1, 0]})
    policy.strict = True
    mechanism = _mechanism(policy, RoundRules())
    mechanism.arrive(_arrived([0, 0]))
    mechanism.update(0.0)
    assert mechanism.choose().on.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Allocation(share=np.zeros((3, 2))), r"share is \(3, 2\), expected \(2, 2\)"),
        (Allocation(share=np.array([[np.nan, 0.0], [0.0, 0.0]])), "no share of time"),
        (Allocation(share=np.array([[-0.5, 0.0], [0.0, 0.0]])), "no share of time"),
        (Allocation(share=np.array([[2.0, 0.0], [0.0, 0.0]])), "no share of time"),
        (
            Allocation(share=cast("Any", [[1.0, 0.0], [0.0, 0.0]])),
            "Wrong gave an allocation .*: share is a list, expected an array",
        ),
        (np.zeros((2, 2)), "policy Wrong: allocate gave ndarray, expected an Allocation"),
        (None, "policy Wrong: allocate gave NoneType, expected an Allocation"),
        (_paired([[0, 1]], [[0.5]]), r"pair_share is \(1, 1\)"),
        (_paired([[1, 0]], [[0.5, 0.0]]), "no two jobs"),
        (_paired([[0, 2]], [[0.5, 0.0]]), "no two jobs"),
    ],
)
def test_a_policy_that_answers_something_else_is_stopped(answer: Any, fault: str) -> None:
    class Wrong(Table):
        def allocate(self, problem: Problem) -> Allocation:
            return cast("Allocation", answer)

    mechanism = _mechanism(Wrong({}, {(0, 1): [0.5, 0.0]}), RoundRules())
    mechanism.arrive(_arrived([0, 0], 100.0))
    with pytest.raises(DovetailError, match=fault):
        mechanism.update(0.0)


def test_pairs_of_a_policy_that_does_not_pack_are_refused() -> None:
    class Wrong(Table):
        def allocate(self, problem: Problem) -> Allocation:
            return _paired([[0, 1]], [[0.5, 0.0]])

    mechanism = _mechanism(Wrong({}), RoundRules())
    mechanism.arrive(_arrived([0, 0], 100.0))
    with pytest.raises(DovetailError, match="does not pack"):
        mechanism.update(0.0)


def test_an_allocation_at_the_very_beginning_counts_as_one() -> None:
    """With a least time between allocations, a job that comes soon after the first one waits for the next."""
    mechanism = _mechanism(Table({0: [1.0, 0.0], 1: [0.0, 1.0]}), RoundRules(allocate_every_s=1000.0))
    mechanism.arrive(_arrived([0]))
    assert mechanism.update(0.0)
    mechanism.arrive(_arrived([0]) | {"id": [1], "at_s": [360.0]})
    assert not mechanism.update(360.0)
    assert not mechanism.update(999.0)
    assert mechanism.update(1000.0)
    assert mechanism.jobs.share.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("begin_s", [0.0, 360.0, 5e5])
@pytest.mark.parametrize("often", [False, True])
def test_between_two_allocations_at_least_so_much_time_passes(begin_s: float, often: bool) -> None:
    """Whenever the first was, at 0 s too, for policies that want to be asked before every round too; at the very time
    the next one is due."""

    class Asked(Table):
        every_round = often

    mechanism = _mechanism(Asked({i: [1.0, 0.0] for i in range(9)}), RoundRules(allocate_every_s=720.0))
    found = []
    for i in range(9):
        mechanism.arrive(_arrived([0]) | {"id": [i], "at_s": [begin_s + 360.0 * i]})
        found.append(mechanism.update(begin_s + 360.0 * i))
    assert found == [True, False] * 4 + [True]
    assert not mechanism.update(begin_s + 8 * 360.0)  # at the same time again: nothing is due
    always = _mechanism(Asked({0: [1.0, 0.0]}), RoundRules())
    always.arrive(_arrived([0]))
    assert [always.update(begin_s), always.update(begin_s)] == [True, often]
