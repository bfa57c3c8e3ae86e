"""The older scheduler's grants against its formulas written down in another way, and its habits."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from itertools import product

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Asked, Resize, Start
from dovetail.host.compat.grants import always_attend, max_prop, strict
from dovetail.host.compat.scheduler import LegacyScheduler
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.program import Ask, program_graph
from dovetail.host.simulate import run

GRAPHS = {"p": program_graph("p", 16)}


def rounded(x: Fraction) -> int:
    """Half to even, in exact arithmetic."""
    return int((Decimal(x.numerator) / Decimal(x.denominator)).quantize(Decimal(1), ROUND_HALF_EVEN))


def expected_always(need: int, available: int) -> tuple[int, int] | None:
    if available < 2:
        return None
    if need <= available:
        return 1, need - 1
    inter = rounded(Fraction(available, need))
    intra = rounded(Fraction(available * (need - 1), need))
    if inter == 0:
        inter, intra = 1, intra - 1
    if intra == 0:
        inter, intra = inter - 1, 1
    return (1 if inter > 1 else inter), intra


def test_strict_is_all_or_nothing() -> None:
    for need, available in product(range(1, 33), range(33)):
        assert strict((1, need - 1), available) == ((1, need - 1) if need <= available else None)


def test_always_attend_by_the_formula() -> None:
    for need, available in product(range(2, 33), range(33)):
        assert always_attend((1, need - 1), available) == expected_always(need, available)


def test_always_attend_loses_a_core_at_exact_halves() -> None:
    lost = [
        (need, available)
        for need, available in product(range(2, 33), range(2, 33))
        if need > available and sum(always_attend((1, need - 1), available) or ()) < available
    ]
    assert lost == [(need, need // 2) for need in (6, 10, 14, 18, 22, 26, 30)]


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 3.0])
def test_max_prop_by_the_formula(factor: float) -> None:
    for need, available, most in product(range(1, 33), range(33), (4, 16)):
        found = max_prop((1, need - 1), available, factor, most)
        if available < 2:
            assert found is None
        elif available == 2:
            assert found == (1, 1)
        else:
            share = int((need - 1) / factor)
            expected = sorted((1, min(most, share), available - 1))
            assert found == (1, expected[1] if min(most, share) >= 1 else 1)


def scheduler(**options: object) -> LegacyScheduler:
    return LegacyScheduler(16, GRAPHS, msgspec.convert({"profile": "legacy", **options}, HostOptions))


def arrive(name: str, cores: int, priority: int = 0) -> Arrived:
    return Arrived(name, "p", (100.0,), facts=msgspec.to_builtins(Ask(cores, priority=priority)))


def started(orders: object) -> list[tuple[str, int]]:
    assert isinstance(orders, list)
    return [(order.job, len(order.devices)) for order in orders if isinstance(order, Start)]


def test_pending_requests_go_before_new_ones_whatever_their_priority() -> None:
    old = scheduler(plan="priority")
    assert started(old.handle([arrive("a", 12)], 0.0)) == [("a", 12)]
    assert started(old.handle([arrive("late", 6, 4)], 1.0)) == []  # refused: pending from now on
    from dovetail.core.events import Finished

    orders = old.handle([Finished("a", "run"), arrive("urgent", 12, 0)], 2.0)
    assert started(orders) == [("late", 6)]


def test_an_update_of_two_threads_to_twelve() -> None:
    """The manual's example."""
    arrivals: tuple[tuple[float, Arrived | Asked], ...] = ((0.0, arrive("0", 2)), (60.0, Asked("0", "resize", 12)))
    outcome = run(Workload(16, arrivals, GRAPHS), HostOptions(profile="legacy"))
    assert outcome.rows[0].ended_s == 50.0  # it was over before
    longer = (0.0, Arrived("0", "p", (360.0,), facts=msgspec.to_builtins(Ask(2))))
    outcome = run(Workload(16, (longer, arrivals[1]), GRAPHS), HostOptions(profile="legacy"))
    assert outcome.rows[0].ended_s == 60 + (360 - 120) / 12
    assert outcome.rows[0].resizes == 1


def test_a_short_update_makes_a_second_inter_thread_of_the_whole() -> None:
    old = scheduler(assign="always_attend")
    old.handle([arrive("a", 2), arrive("b", 10)], 0.0)
    orders = old.handle([Asked("a", "resize", 12)], 1.0)
    assert [len(order.devices) for order in orders if isinstance(order, Resize)] == [6]


def test_an_update_under_max_prop_is_an_error_here_too() -> None:
    old = scheduler(assign="max_prop")
    old.handle([arrive("a", 2)], 0.0)
    with pytest.raises(InputError, match="update of a"):
        old.handle([Asked("a", "resize", 4)], 1.0)


def test_what_it_dropped_silently_is_rejected_with_a_reason() -> None:
    outcome = run(Workload(16, ((0.0, arrive("big", 17)),), GRAPHS), HostOptions(profile="legacy"))
    assert (outcome.rows[0].status, outcome.rows[0].why) == ("rejected", "asks for 17 cores, the machine has 16")


def test_what_it_would_never_start_is_rejected_in_the_end() -> None:
    outcome = run(
        Workload(16, ((0.0, arrive("one", 1)),), GRAPHS), HostOptions(profile="legacy", assign="always_attend")
    )
    assert outcome.rows[0].status == "rejected"


@pytest.mark.parametrize(
    "options",
    [
        HostOptions(plan="rr", profile="legacy"),
        HostOptions(assign="efficient", profile="legacy"),
        HostOptions(plan="priority", preemptive=True, profile="legacy"),
        HostOptions(overtaking="backfill", profile="legacy"),
    ],
)
def test_what_it_did_not_know_is_refused(options: HostOptions) -> None:
    with pytest.raises(InputError, match="legacy profile"):
        LegacyScheduler(16, GRAPHS, options)


@pytest.mark.parametrize(
    ("plan", "assign", "cores", "jobs", "expected"),
    [
        # Whom nothing is left for is pending from then on, and goes before whoever comes later, however urgent.
        (
            "priority",
            "strict",
            2,
            [(0, 2, 100, 3), (1, 2, 100, 3), (2, 2, 100, 0), (60, 2, 100, 0)],
            [50, 150, 100, 200],
        ),
        # Nobody grows when the second ends, because who started last is more urgent than the first.
        ("priority", "always_attend", 24, [(0, 9, 900, 2), (10, 13, 130, 1), (12, 10, 600, 1)], [100, 20, 142.4]),
        # The third grows from 7 to 17 cores, and 6 of 24 are believed to be in use ever after.
        (
            "fcfs",
            "max_prop",
            24,
            [(0, 9, 850, 0), (25, 13, 154, 0), (30, 10, 891, 0), (60, 10, 170, 0)],
            [50, 47, 101.176, 111.176],
        ),
    ],
)
def test_its_habits(
    plan: str, assign: str, cores: int, jobs: list[tuple[int, int, int, int]], expected: list[float]
) -> None:
    """Ends as the older scheduler's own queues and grants give them."""
    arrivals = tuple(
        (float(at_s), Arrived(str(i), "p", (float(work),), facts=msgspec.to_builtins(Ask(asked, priority=priority))))
        for i, (at_s, asked, work, priority) in enumerate(jobs)
    )
    options = HostOptions(plan=plan, assign=assign, profile="legacy")
    outcome = run(Workload(cores, arrivals, {"p": program_graph("p", cores)}), options)
    assert [row.ended_s for row in outcome.rows] == pytest.approx(expected, abs=1e-3)
