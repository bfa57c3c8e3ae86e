"""Sizes and devices that stalls cannot mislead, on a simulated clock: what runs cost, whatever was disturbed before."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random
from statistics import median
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.size_search import SizeSearch
from dovetail.dispatch.policies.base import DeviceState
from dovetail.dispatch.policies.finish_together import FinishTogether
from dovetail.dispatch.policies.floor import Floor, Way
from dovetail.dispatch.policies.one_cpu import OneCpuFloor
from dovetail.dispatch.scheduler import ChunkScheduler
from dovetail.dispatch.simulate import run, state_of

Stalls = Mapping[tuple[int, int], float]  # by device and its chunk: seconds


class Cost(NamedTuple):
    """Of one run, over one call on the best device: device time without stalls, time until the end, and how."""

    busy: float
    wall: float
    way: Way


def session(
    devices: list[SimDevice], items: int, stalls: Mapping[int, Stalls], runs: int, *, shared: bool, noise: float = 0.0
) -> list[Cost]:
    """One run after the other by what a dispatcher keeps between them."""
    states, costs = [state_of(device) for device in devices], []
    floor = OneCpuFloor() if shared else Floor()
    one_s = min(device.curve.seconds(items) for device in devices)
    for number in range(runs):
        states = [state.fork() for state in states]
        way = floor.choose(states, items, range(len(states)))
        found = run(devices, items, states=states, stalls=stalls.get(number, {}), noise=noise, seed=number)
        busy_s = sum(devices[row.device].curve.seconds(row.stop - row.start) for row in found.rows)
        floor.ended(way, items, found.makespan_s, busy_s)
        costs.append(Cost(busy_s / one_s, found.makespan_s / one_s, way))
    return costs


def curve(latency_s: float, rate: float, sharp: int | None) -> Curve:
    """A latency and a rate; above a sharp optimum calls are slower by a third."""
    if sharp is None:
        return Curve.linear(latency_s, rate, 1 << 24)
    points = [(1, latency_s), (sharp, latency_s + sharp / rate)]
    return Curve([*points, *((n, latency_s + 1.3 * n / rate) for n in (64 * sharp, 1 << 24))])


@st.composite
def stalled(draw: st.DrawFn) -> dict[int, dict[tuple[int, int], float]]:
    """1 to 8 chunks of the first two runs, one after the other or anywhere, on any device."""
    count, seconds = draw(st.integers(1, 8)), 10 ** draw(st.floats(-3, 0.5))
    found: dict[int, dict[tuple[int, int], float]] = {0: {}, 1: {}}
    if draw(st.booleans()):
        number, device, first = draw(st.integers(0, 1)), draw(st.integers(0, 2)), draw(st.integers(0, 60))
        found[number] = {(device, first + i): seconds for i in range(count)}
    else:
        for _ in range(count):
            place = draw(st.tuples(st.integers(0, 2), st.integers(0, 60)))
            found[draw(st.integers(0, 1))][place] = seconds
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.floats(-5.3, -2),
    st.floats(4, 8.5),
    st.sampled_from([None, None, 256, 4096]),
    st.floats(3, 5),
    stalled(),
)
@example(2, -4.3, 8.5, None, 5.99, {0: {(device, chunk): 0.05 for device in (0, 1) for chunk in range(2, 6)}})
def test_run_three_and_later_cost_hardly_more_than_one_call(
    count: int, latency: float, rate: float, sharp: int | None, size: float, stalls: Mapping[int, Stalls]
) -> None:
    """Several devices of one CPU: whatever stalled before, they never burn more than 1.3 times one plain call."""
    devices = [SimDevice(f"d{i}", curve(10**latency, 10**rate, sharp), known=False) for i in range(count)]
    costs = session(devices, int(10**size), stalls, 8, shared=True)
    assert max(cost.busy for cost in costs[2:]) <= 1.3


def looked(devices: list[SimDevice], batches: list[int], stalls: Mapping[int, Stalls], dearer: float) -> list[float]:
    """What runs cost over one call where chunks beside others, after the first run, take `dearer` times their time."""
    states, floor, costs = [state_of(device) for device in devices], OneCpuFloor(), []
    for number, items in enumerate(batches):
        one_s = devices[0].curve.seconds(items)
        states = [state.fork() for state in states]
        way = floor.choose(states, items, [0])
        scheduler = ChunkScheduler(LocalCursor(0, items), FinishTogether(), states, total=items, copied=0.04)
        busy: dict[int, tuple[float, Chunk, float]] = {}
        begun, now_s, used_s = [0] * len(devices), 0.0, 0.0
        while not scheduler.finished:
            for i, device in enumerate(devices):
                if i not in busy and (chunk := scheduler.take(i, now_s)) is not None:
                    alone = number == 0 or not busy or scheduler.view.too_dear
                    call_s = (1.0 if alone else dearer) * device.curve.seconds(len(chunk))
                    stall_s = stalls.get(number, {}).get((i, begun[i]), 0.0)
                    busy[i] = now_s + call_s + stall_s, chunk, call_s + stall_s
                    begun[i], used_s = begun[i] + 1, used_s + call_s
            i = min(busy, key=lambda each: busy[each][0])
            now_s, chunk, seconds = busy.pop(i)
            scheduler.claim(chunk)
            scheduler.done(chunk, now_s, seconds)
        floor.ended(way, items, now_s, scheduler.view.whole_s(used_s))
        costs.append(used_s / one_s)
    return costs


@settings(max_examples=60, deadline=None, derandomize=True)  # the bound is of what was tried, not proven
@given(
    st.integers(2, 3),
    st.floats(-5.3, -2),
    st.floats(4, 8.5),
    st.sampled_from([None, None, 256, 4096]),
    st.floats(3, 6),
    st.dictionaries(
        st.integers(0, 39),
        st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 20)), st.floats(1e-4, 3), max_size=8),
        max_size=8,
    ),
    st.floats(1, 4),
)
@example(2, -4.5, 7.0, None, 5.3, {}, 1.35)
@example(2, -4.5, 7.0, None, 5.3, {}, 3.0)
@example(2, -3.0, 5.0, None, 3.0, {13: {(0, 0): 1.0}, 14: {(0, 0): 1.0}}, 1.0)
@example(2, -2.0, 4.0, None, 4.0, {0: {(0, 0): 1.0}}, 2.0)
def test_a_look_at_another_way_costs_a_small_share_whatever_it_finds(
    count: int,
    latency: float,
    rate: float,
    sharp: int | None,
    size: float,
    stalls: Mapping[int, Stalls],
    dearer: float,
) -> None:
    """Devices of one CPU that are in each other's way, which no curve tells, and stalls in any run at any place."""
    devices = [SimDevice(f"d{i}", curve(10**latency, 10**rate, sharp), known=False) for i in range(count)]
    assume(
        devices[0].curve.seconds(10**size) < 5
    )  # no batch that takes longer is done with one call to see what it costs
    costs = looked(devices, 40 * [int(10**size)], stalls, dearer)
    assert max(costs[2:]) <= 1.3


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(2, 3),
    st.floats(-5.3, -3),
    st.floats(4, 7),
    st.floats(4, 6),
    st.floats(1, 4),
    st.integers(0, 99),
)
@example(2, -3.0, 5.0, 5.0, 2.0, 1)
def test_a_look_costs_a_small_share_whatever_the_size_of_batches(
    count: int, latency: float, rate: float, size: float, dearer: float, seed: int
) -> None:
    devices = [SimDevice(f"d{i}", curve(10**latency, 10**rate, None), known=False) for i in range(count)]
    random = Random(seed)
    batches = [int(10 ** (size + random.uniform(-2, 0))) for _ in range(40)]
    assume(devices[0].curve.seconds(min(batches)) > 2e-3)  # shorter ones go straight to the function
    assume(devices[0].curve.seconds(max(batches)) < 5)
    assert max(looked(devices, batches, {}, dearer)[4:]) <= 1.4  # what is known is of batches up to twice as large


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, -3), st.floats(4, 6)), min_size=2, max_size=3),
    st.floats(4, 5),
)
def test_adding_a_device_does_not_hurt(kinds: list[tuple[float, float]], size: float) -> None:
    """Unlike devices, calls of which do not only wait: the end is not later than with one call on the best of them."""
    devices = [SimDevice(f"d{i}", curve(10**t, 10**rate, None), known=False) for i, (t, rate) in enumerate(kinds)]
    costs = session(devices, int(10**size), {}, 12, shared=False)
    assert median(cost.wall for cost in costs[4:]) <= 1.3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(-5, -3), st.floats(0, 4)), min_size=1, max_size=2),
    st.floats(4, 6),
    st.floats(2, 5),
)
@example([(-0.65, 3.52)], 4.16, 3.85)
@example([(-3.0, 1.0)], 4.0, 2.0)
def test_a_device_that_others_outran_is_never_given_all(
    slow: list[tuple[float, float]], rate: float, size: float
) -> None:
    """Its chunks were done by others before it had ended: how slow it is has never shown."""
    kinds = [(-4.0, rate), *((latency, rate - slower) for latency, slower in slow)]
    devices = [SimDevice(f"d{i}", curve(10**t, 10**each, None), known=False) for i, (t, each) in enumerate(kinds)]
    costs = session(devices, int(10**size), {}, 30, shared=False)
    assert max(cost.wall for cost in costs[2:]) <= 2


def test_a_device_that_delays_the_whole_is_left_out_and_looked_at_again() -> None:
    slow, fast = curve(0.05, 2e4, None), curve(1e-4, 1e7, None)
    devices = [SimDevice("fast", fast, known=False), SimDevice("slow", slow, known=False)]
    costs = session(devices, 100_000, {}, 200, shared=False)
    ways = [cost.way.serving for cost in costs[4:]]
    assert ways.count((0,)) > 0.9 * len(ways)
    assert sum(cost.wall for cost in costs[4:]) < 1.1 * len(ways)


def test_a_way_that_was_disturbed_is_taken_again_soon() -> None:
    """Two of the last three runs were: that is what counts, but one of them was better than all other ways."""
    states = [
        DeviceState("fast", Curve.linear(4e-3, 2e5, 50_000)),
        DeviceState("slow", Curve.linear(1e-3, 3e4, 50_000)),
    ]
    alone, both, floor = Way((0,)), Way((0, 1)), Floor(runs=10)
    for way, wall_s in ((alone, 0.1), (alone, 0.1), (both, 0.09), (both, 0.15), (both, 0.18)):
        floor.ended(way, 20_000, wall_s)
    ways = []
    for _ in range(40):
        ways.append(floor.choose(states, 20_000, once=[]))
        floor.ended(ways[-1], 20_000, 0.09 if ways[-1] == both else 0.1)
    assert ways[:8].count(both) >= 2
    assert ways[8:].count(both) >= 29
    for _ in range(40):  # now it is always slower
        ways.append(floor.choose(states, 20_000, once=[]))
        floor.ended(ways[-1], 20_000, 0.18 if ways[-1] == both else 0.1)
    assert ways[-30:].count(both) <= 3


def test_two_equal_devices_do_share_what_is_worth_it() -> None:
    devices = [SimDevice(name, curve(1e-5, 1e6, None), known=False) for name in ("one", "other")]
    costs = session(devices, 200_000, {}, 10, shared=True)
    assert all(cost.wall < 0.55 for cost in costs[4:])


def _floor_of_two(runs: int, *took: tuple[Way, float, float]) -> tuple[OneCpuFloor, list[DeviceState]]:
    """Two devices of one CPU that promise to take half the time of one call, and what runs of 1,000 items took."""
    floor = OneCpuFloor(runs=runs)
    for way, wall_s, cpu_s in took:
        floor.ended(way, 1000, wall_s, cpu_s)
    return floor, [DeviceState(name, Curve.linear(1e-6, 1e4, 10_000)) for name in ("a", "b")]


ONE, BOTH = Way((0,), whole=True), Way((0, 1))


def test_together_and_one_call_are_known_after_three_runs() -> None:
    floor, states = _floor_of_two(1)
    assert floor.choose(states, 1000, once=[0]) == BOTH
    floor.ended(BOTH, 1000, 0.05, 0.1)
    assert floor.choose(states, 1000, once=[0]) == ONE
    floor.ended(ONE, 1000, 0.1, 0.1)
    assert floor.choose(states, 1000, once=[0]) == BOTH
    assert floor.decided


def test_what_lost_at_no_cost_is_tried_once_more_and_what_was_dear_is_not() -> None:
    floor, states = _floor_of_two(3, (BOTH, 0.3, 0.105), (ONE, 0.1, 0.1))
    assert floor.choose(states, 1000, once=[0]) == BOTH
    assert not any(state.one_s for state in states)
    floor, states = _floor_of_two(3, (BOTH, 0.05, 0.15), (ONE, 0.1, 0.1))
    assert floor.choose(states, 1000, once=[0]) == ONE
    assert floor.decided


def test_one_call_that_was_stalled_is_made_again() -> None:
    floor, states = _floor_of_two(3, (BOTH, 0.2, 0.1), (ONE, 0.9, 0.1))
    assert floor.choose(states, 1000, once=[0]) == ONE
    assert not floor.decided


def test_who_lost_is_looked_at_again_ever_more_seldom_and_watched() -> None:
    floor, states = _floor_of_two(3, (BOTH, 0.3, 0.15), (ONE, 0.1, 0.1))
    looks = []
    for number in range(3, 120):
        way = floor.choose(states, 1000, once=[0])
        dear = way == BOTH
        if dear:
            looks.append(number)
            assert all(state.one_s for state in states)
        floor.ended(way, 1000, 0.3 if dear else 0.1, 0.15 if dear else 0.1)
    assert [later - former for former, later in pairwise(looks)] == [32, 64]


@pytest.mark.parametrize(("one_s", "way"), [(0.1, BOTH), (0.01, ONE)])
def test_a_short_batch_that_was_dear_once_in_chunks_is_done_with_one_call(one_s: float, way: Way) -> None:
    took = [(BOTH, 0.6 * one_s, cost * one_s) for cost in (1.1, 1.5, 1.1)]
    floor, states = _floor_of_two(5, *took, (ONE, one_s, one_s))
    for state in states:
        state.curve = Curve.linear(1e-6, 1000 / one_s, 10_000)
    assert floor.choose(states, 1000, once=[0]) == way


def test_what_lost_at_a_bearable_cost_is_looked_at_soon_and_watched() -> None:
    """Other programs had the cores while all together were tried: a look costs no more than a quarter of one call."""
    floor, states = _floor_of_two(2, (BOTH, 0.11, 0.116), (ONE, 0.1, 0.1))
    for watched in (True, False, False, False):
        assert floor.choose(states, 1000, once=[0]) == BOTH
        assert all(bool(state.one_s) == watched for state in states)
        floor.ended(BOTH, 1000, 0.06, 0.105)


def test_what_was_never_tried_is_not_looked_at_soon() -> None:
    """Nothing has shown yet that it costs hardly more."""
    floor, states = _floor_of_two(3, (ONE, 0.1, 0.1))
    ways = []
    for _ in range(16):
        ways.append(floor.choose(states, 1000, once=[0]))
        floor.ended(ways[-1], 1000, 0.1, 0.1)
    assert ways == [ONE] * 15 + [BOTH]


def test_eight_stalls_in_a_row_are_seen_through_by_looking_again() -> None:
    search = SizeSearch()
    for _ in range(4):
        search.add(search.size, 1e-4 + search.size / 1e8)
    for _ in range(8):  # whatever is tried now seems to be slow
        search.add(search.size, 0.05)
    while not search.settled:
        search.add(search.size, 1e-4 + search.size / 1e8)
    found = search.curve()
    assert found is not None
    assert found.best < 10_000
    while search.looks < 1 or not search.settled:
        if search.settled:
            search.worked(found.best_s)
        else:
            search.add(search.size, 1e-4 + search.size / 1e8)
    found = search.curve()
    assert found is not None
    assert found.best > 100_000


def test_looking_again_costs_a_small_share_of_the_time() -> None:
    search, looked_s, worked_s = SizeSearch(), 0.0, 0.0

    def seconds(size: int) -> float:
        return 1e-4 + size / 1e6 if size <= 4096 else size / 2e5  # larger chunks are five times as slow

    while worked_s < 60:
        if search.settled:
            best = search.curve().best  # type: ignore[union-attr]
            worked_s += seconds(best)
            search.worked(seconds(best))
        else:
            looked_s += seconds(search.size) if search.looks else 0.0
            search.add(search.size, seconds(search.size))
    assert search.looks > 1
    assert looked_s < 0.1 * worked_s


def test_one_odd_time_is_forgotten_between_runs_and_a_lasting_change_is_not() -> None:
    state = DeviceState("cpu", Curve.linear(1e-3, 1e6, 10_000))
    state.observed(1000, 5.0)
    assert state.factor > 1000
    assert state.fork().factor == 1.0
    for _ in range(5):
        state.observed(1000, 0.006)
    assert 2.5 < state.fork().factor < 3.5


def test_a_run_tells_how_it_was_done() -> None:
    floor = Floor()
    floor.ended(Way((0, 1)), 1000, 0.5)
    assert floor.why(Way((1,), whole=True), 1000, ["a", "b"]) == "one call on b; all devices took 0.5 s"
    assert Way((1,)).told(["a", "b"]) == "only b"


def test_one_call_does_not_hide_that_results_cannot_be_joined() -> None:
    states = [DeviceState(name, Curve.linear(1e-2, 1e6, 10_000)) for name in ("a", "b")]
    floor = Floor(runs=10)
    assert floor.choose(states, 1000, once=[0, 1]).whole
    floor.unjoinable = True
    assert floor.choose(states, 1000, once=[0, 1]).serving == (0, 1)
