"""The policies alone: shares against brute force, cores that are kept, and policies of others."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.core.registry import policy, promise
from dovetail.host.cores import choose
from dovetail.host.curves import curve
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.policies import Assignment, Planning, make, names
from dovetail.host.policies.base import MachineView
from dovetail.host.policies.efficient import Efficient
from dovetail.host.policies.fcfs import FirstComeFirstServed
from dovetail.host.policies.max_prop import proportional
from dovetail.host.program import Ask, Program
from dovetail.host.simulate import run


@given(st.data())
def test_shares_are_whole_within_bounds_and_as_fair_as_can_be(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    weights = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    lows = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    highs = [low + data.draw(st.integers(0, 6)) for low in lows]
    total = data.draw(st.integers(sum(lows), 16)) if sum(lows) <= 16 else sum(lows)
    shares = proportional(weights, lows, highs, total)
    assert sum(shares) == min(total, sum(highs))
    assert all(low <= share <= high for low, share, high in zip(lows, shares, highs, strict=True))

    def unfair(given: tuple[int, ...] | list[int]) -> float:
        """The sum of share^2 / weight is least where shares are proportional."""
        return sum(share**2 / weight for share, weight in zip(given, weights, strict=True))

    spans = [range(low, high + 1) for low, high in zip(lows, highs, strict=True)]
    best = min(unfair(each) for each in product(*spans) if sum(each) == sum(shares))
    assert unfair(shares) <= best + sum(1 / weight for weight in weights)  # the roundings differ by less than one each


def test_equal_remainders_go_to_the_oldest() -> None:
    assert proportional([12, 12, 12], [1] * 3, [16] * 3, 16) == [6, 5, 5]


def view_of(cores: int, *texts: str) -> MachineView:
    view = MachineView(cores, HostOptions(assign="efficient"))
    view.shrinks = True
    for i, text in enumerate(texts):
        program = Program(f"p{i}", "p", i, Ask(1), 100.0, curve(text), 0.0)
        program.most = cores
        view.running.append(program)
        view.widths[program.id] = 1
    return view


@pytest.mark.parametrize("texts", [("linear", "amdahl:0.9"), ("amdahl:0.5", "amdahl:0.95", "amdahl:0.8")])
def test_efficient_is_as_fast_as_any_division_of_the_cores(texts: tuple[str, ...]) -> None:
    view = view_of(8, *texts)
    found = Efficient().spread(view)

    def speed(widths: tuple[int, ...]) -> float:
        return sum(curve(text).speed(n) for text, n in zip(texts, widths, strict=True))

    most = [Efficient().most(program, view) for program in view.running]
    options = [w for w in product(*(range(1, m + 1) for m in most)) if sum(w) <= 8]
    assert speed(tuple(found.values())) == pytest.approx(max(map(speed, options)))


def test_efficient_never_goes_beyond_a_sweet_spot() -> None:
    view = view_of(16, "table:1=100,2=55,4=40,8=50")
    assert Efficient().spread(view) == {"p0": 4}


def test_efficient_admits_as_many_as_pay() -> None:
    """By this curve, as measured, four programs at once do more on 16 cores than three or five."""
    text = "table:2=785,3=425,4=313,5=248,8=171,16=101"
    facts = [{"cores": 16, "curve": text, "least": 2} for _ in range(8)]
    from dovetail.core.events import Arrived
    from dovetail.host.program import program_graph

    arrivals = tuple((0.0, Arrived(f"p{i}", "p", (1570.0,), facts=fact)) for i, fact in enumerate(facts))
    outcome = run(Workload(16, arrivals, {"p": program_graph("p", 16)}), HostOptions(assign="efficient"))
    assert sum(row.started_s == 0 for row in outcome.rows) == 4
    fair = run(Workload(16, arrivals, {"p": program_graph("p", 16)}), HostOptions(assign="max_prop", min_cores=2))
    assert outcome.totals.throughput_per_h > fair.totals.throughput_per_h


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=20))
def test_cores_are_disjoint_and_kept(changes: list[tuple[int, int]]) -> None:
    free = set(range(12))
    held: dict[int, tuple[int, ...]] = dict.fromkeys(range(4), ())
    for who, count in changes:
        if count > len(held[who]) + len(free):
            continue
        before = held[who]
        after = choose(free, before, count)
        held[who] = after
        assert len(after) == count
        assert set(after) <= set(before) or set(before) <= set(after)
    owned = [core for own in held.values() for core in own]
    assert len(owned) == len(set(owned))
    assert len(owned) + len(free) == 12


def test_names_and_promises() -> None:
    assert names(Planning) == ["fcfs", "priority", "rr"]
    assert names(Assignment) == ["always_attend", "efficient", "max_prop", "strict"]
    assert all(promise("host", name).endswith(".") for name in (*names(Planning), *names(Assignment)))


def test_a_planning_is_no_assignment() -> None:
    with pytest.raises(InputError, match="'fcfs' is no assignment policy; assignment policies: always_attend"):
        make("fcfs", Assignment)
    with pytest.raises(InputError, match="did you mean 'strict'"):
        make("strickt", Assignment)


def test_a_third_party_adds_a_policy() -> None:
    from dovetail.core import registry
    from dovetail.core.events import Arrived
    from dovetail.host.program import program_graph

    @policy("youngest", level="host")
    class Youngest(FirstComeFirstServed):
        """The youngest goes first."""

        def order(self, view: MachineView) -> list[Program]:
            return super().order(view)[::-1]

    try:
        facts = {"cores": 4}
        arrivals = tuple((0.0, Arrived(name, "p", (40.0,), facts=facts)) for name in ("a", "b"))
        outcome = run(Workload(4, arrivals, {"p": program_graph("p", 4)}), HostOptions(plan="youngest"))
        assert [row.started_s for row in outcome.rows] == [10.0, 0.0]
    finally:
        del registry._policies["host", "youngest"]
