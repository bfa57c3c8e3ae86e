"""What each policy promises, fed by hand and in simulation."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.dispatch.chunk import InputChangedError
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.inputs.curves import PUBLISHED, Curve
from dovetail.dispatch.inputs.size_search import SizeSearch
from dovetail.dispatch.policies.base import DECLINE, WAIT, DeviceState, View
from dovetail.dispatch.policies.finish_together import FinishTogether
from dovetail.dispatch.policies.fixed import Fixed
from dovetail.dispatch.scheduler import ChunkScheduler
from dovetail.dispatch.simulate import SimulatedRun, state_of
from dovetail.dispatch.simulate import run as simulate

NAMES = ["factoring", "finish_together", "fixed", "guided", "proportional"]


def test_the_policies_are_registered_with_what_they_promise() -> None:
    assert set(NAMES) <= set(registry.names("dispatch"))
    for name in NAMES:
        assert len(registry.promise("dispatch", name)) > 30
    with pytest.raises(InputError, match="expected k >= 1"):
        registry.create("dispatch", "guided", {"k": 0})
    with pytest.raises(InputError, match="expected a size >= 0"):
        registry.create("dispatch", "fixed", {"size": -3})
    with pytest.raises(InputError, match="expected smallest >= 1"):
        registry.create("dispatch", "factoring", {"smallest": 0})


# -- fixed: what the older schedulers did


def picks(states: list[DeviceState], total: int) -> tuple[View, Fixed]:
    return View(states, total), Fixed()


def test_fixed_fills_a_device_up_to_its_capacity() -> None:
    state = DeviceState("cpu", size=345, capacity=800)
    view, fixed = picks([state], 1950)
    assert fixed.next(0, view) == 345
    state.load = 345
    assert fixed.next(0, view) == 345
    state.load = 690
    assert fixed.next(0, view) == WAIT


def test_fixed_leaves_the_last_chunks_to_the_higher_priority() -> None:
    cpu, cuda = DeviceState("cpu", size=4, capacity=4, priority=1), DeviceState("cuda", size=4, capacity=8, priority=2)
    view, fixed = picks([cpu, cuda], 100)
    view.remaining = 8  # cuda has room for two chunks, which is all there is
    assert [fixed.next(0, view), fixed.next(1, view)] == [WAIT, 4]
    cuda.load, view.remaining = 8, 4
    assert [fixed.next(0, view), fixed.next(1, view)] == [4, WAIT]
    view.remaining, cuda.load, cuda.alive = 4, 0, False
    assert fixed.next(0, view) == 4


def test_fixed_without_a_size_takes_all_at_once() -> None:
    view, fixed = picks([DeviceState("cpu", size=0)], 77)
    assert fixed.next(0, view) == 77


# -- finish together


def linear(latency_s: float, rate: float) -> Curve:
    return Curve.linear(latency_s, rate, 1_000_000)


def confirmed(name: str, latency_s: float, rate: float) -> DeviceState:
    """A device whose curve has been found to hold."""
    state = DeviceState(name, linear(latency_s, rate))
    state.seen = 1
    return state


def test_a_slow_device_declines_what_it_would_only_delay() -> None:
    fast, slow = confirmed("fast", 0.001, 1_000_000), confirmed("slow", 0.5, 1000)
    view = View([fast, slow], 10_000)
    policy = FinishTogether()
    assert policy.next(1, view) == DECLINE
    assert policy.next(0, view) == 10_000


def test_shares_end_together_and_count_what_the_others_are_busy_with() -> None:
    one, other = confirmed("one", 0.004, 200_000), confirmed("other", 0.004, 150_000)
    view = View([one, other], 20_000)
    policy = FinishTogether()
    first = policy.next(0, view)
    assert abs(one.seconds(first) - other.seconds(20_000 - first)) < 0.002
    other.chunks, other.busy_until_s = 1, 0.05
    assert policy.next(0, view) > first + 2000


def test_a_device_that_is_slower_than_its_curve_gets_less() -> None:
    states = [confirmed("one", 0.1, 1000), confirmed("other", 0.1, 1000)]
    view = View(states, 1000)
    policy = FinishTogether()
    equal = policy.next(1, view)
    states[1].observed(100, 0.6)
    assert abs(states[1].factor - 3.0) < 0.01
    assert policy.next(1, view) < 0.6 * equal


def test_sizes_are_measured_on_the_first_chunks() -> None:
    state = DeviceState("gpu")
    view = View([state], 1_000_000)
    sizes = []
    while not state.settled:
        size = FinishTogether().next(0, view)
        sizes.append(size)
        state.observed(size, 0.001 + max(0, size - 5000) / 1e6)
    assert sizes[:9] == [32, 128, 512, 2048, 8192, 8192, 8192, 8192, 32768]  # what does not gain is tried again
    assert state.curve is not None
    assert state.best == 4096


def test_a_device_that_changes_is_noticed_while_sizes_are_still_measured() -> None:
    """The batch is too small for the next size, so that the measurements never come to their end."""
    state = DeviceState("cpu")
    for _ in range(7):
        assert state.search is not None
        state.observed(state.search.size, 0.001)
    assert state.curve is not None
    largest = int(state.curve.sizes[-1])
    for _ in range(8):
        state.observed(largest, 0.003)
    assert not state.settled
    assert state.seconds(largest) == pytest.approx(0.003, rel=0.1)


def test_a_sharp_optimum_is_found() -> None:
    search = SizeSearch()
    while not search.settled:
        search.add(search.size, 0.001 + search.size * (1e-5 if search.size <= 64 else 1e-4))
    curve = search.curve()
    assert curve is not None
    assert curve.best in (32, 64)


def test_a_sweep_ends_at_what_fits() -> None:
    state = DeviceState("gpu")
    for _ in range(7):
        assert state.search is not None
        state.observed(state.search.size, 0.001)
    assert state.best == 131072
    state.lower_limit(300)
    assert state.settled
    assert state.best <= 300


# -- all of them, in virtual time


@st.composite
def nodes(draw: st.DrawFn) -> list[SimDevice]:
    devices = []
    for i in range(draw(st.integers(1, 4))):
        curve = linear(draw(st.floats(1e-6, 0.1)), draw(st.floats(10, 1e6)))
        slower = draw(st.sampled_from([1.0, 1.0, 0.5, 3.0, 20.0]))
        size = draw(st.sampled_from([None, 1, 7, 100]))
        capacity = None if size is None else size * draw(st.integers(1, 3))
        devices.append(
            SimDevice(
                f"d{i}",
                curve,
                slower,
                size,
                capacity,
                draw(st.sampled_from([1.0, 2.0])),
                fails_after_s=draw(st.sampled_from([inf, inf, 0.01])) if i else inf,
                known=draw(st.booleans()),
                slots=draw(st.sampled_from([1, 1, 2, 3])),
            )
        )
    return devices


@settings(max_examples=80, deadline=None)
@given(nodes(), st.integers(1, 3000), st.sampled_from(NAMES), st.booleans(), st.integers(0, 5))
def test_every_item_is_done_once_whatever_the_policy(
    devices: list[SimDevice], items: int, name: str, backup: bool, seed: int
) -> None:
    found = simulate(devices, items, name, noise=0.2, seed=seed, backup=backup)
    done = sorted((row.start, row.stop) for row in found.rows if row.state == "done")
    assert done[0][0] == 0
    assert done[-1][1] == items
    assert all(one[1] == other[0] for one, other in pairwise(done))
    if not backup:
        assert all(row.state != "lost" for row in found.rows)
    for i, device in enumerate(devices):  # a device holds no more chunks than it has slots
        mine = sorted((row.begun_s, row.ended_s) for row in found.rows if row.device == i)
        assert all(one[1] <= other[0] for one, other in zip(mine, mine[device.slots :], strict=False))
        if name == "fixed" and device.size:
            assert all(row.stop - row.start <= device.size for row in found.rows if row.device == i)


def batches(devices: list[SimDevice], items: int, count: int, name: str = "finish_together") -> list[SimulatedRun]:
    """Batches one after the other, each with what the ones before taught."""
    states = [state_of(device) for device in devices]
    found = []
    for seed in range(count):
        states = [state.fork() for state in states]
        found.append(simulate(devices, items, name, noise=0.03, seed=seed, states=states))
    return found


ACCELERATOR = Curve([(256, 0.0025), (4096, 0.0025), (65536, 0.003), (262144, 0.0082), (1048576, 0.0315)])
SLOW_CPU = Curve([(32, 0.0015), (128, 0.0019), (512, 0.0036), (8192, 0.0277), (26696, 0.040), (65536, 0.1)])


def test_chunks_overlap_as_soon_as_no_larger_size_can_be_measured() -> None:
    device = SimDevice("cuda", ACCELERATOR, known=False, slots=3)
    last = batches([device], 1_000_000, 6)[-1]
    rows = sorted(last.rows, key=lambda row: row.begun_s)
    assert len(rows) > 1
    assert rows[1].begun_s < rows[0].ended_s


def test_an_accelerator_beside_a_slow_processor_is_measured_to_its_best_size() -> None:
    devices = [SimDevice("cuda", ACCELERATOR, known=False, slots=3), SimDevice("cpu", SLOW_CPU, known=False)]
    found = batches(devices, 1_000_000, 12)
    alone = batches(devices[:1], 1_000_000, 12)
    assert min(run.makespan_s for run in found[6:]) <= 1.02 * min(run.makespan_s for run in alone[6:])
    assert found[0].makespan_s < 5 * found[-1].makespan_s  # the first batch, in which all sizes are tried


def test_a_fixed_size_without_capacity_fills_the_slots() -> None:
    state = DeviceState("cuda", size=10, slots=3)
    view, fixed = picks([state], 100)
    for _ in range(3):
        assert fixed.next(0, view) == 10
        state.load += 10
    assert fixed.next(0, view) == WAIT
    state.capacity = 10
    state.load = 10
    assert fixed.next(0, view) == WAIT


def test_what_overlapped_chunks_take_together_counts_not_when_each_ends() -> None:
    state = DeviceState("cuda", linear(1e-3, 1000), slots=3)
    for seconds in (0.003, 0.0, 0.0) * 4:
        state.observed(1, seconds * state.seconds(1) / 0.001 / state.factor)
    assert state.factor == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-5, 0.02), st.floats(1e3, 1e6)), min_size=1, max_size=4), st.integers(1, 200_000))
def test_finish_together_is_never_worse_than_the_best_device_alone(
    curves: list[tuple[float, float]], items: int
) -> None:
    devices = [SimDevice(f"d{i}", linear(*curve)) for i, curve in enumerate(curves)]
    alone = min(simulate([device], items).makespan_s for device in devices)
    assert simulate(devices, items).makespan_s <= alone * 1.03


@pytest.mark.parametrize(
    ("items", "slower", "least"), [(100_000, 1.0, 0.85), (1_000_000, 1.0, 0.99), (1_000_000, 3.0, 0.99)]
)
def test_efficiency_on_published_curves(items: int, slower: float, least: float) -> None:
    found = []
    for curves in PUBLISHED.values():
        devices = [SimDevice("cuda", curves["cuda"].curve()), SimDevice("cpu", curves["cpu"].curve(), slower)]
        found += [simulate(devices, items, noise=0.1, seed=seed).efficiency for seed in range(20)]
    assert sum(found) / len(found) >= least


def test_a_backup_copy_saves_the_batch_from_a_straggler() -> None:
    devices = [SimDevice("fast", linear(0.001, 100_000)), SimDevice("slow", linear(0.001, 20_000), slower=50.0)]
    without = simulate(devices, 20_000, backup=False)
    with_copy = simulate(devices, 20_000)
    assert with_copy.makespan_s < without.makespan_s / 2
    assert sum(with_copy.items.values()) == 20_000


def test_the_static_split_is_good_with_right_rates_and_bad_with_wrong_ones() -> None:
    right = [SimDevice("a", linear(1e-4, 100_000)), SimDevice("b", linear(1e-4, 50_000))]
    wrong = [right[0], SimDevice("b", linear(1e-4, 50_000), slower=4.0)]
    assert simulate(right, 100_000, "proportional", backup=False).efficiency > 0.97
    assert simulate(wrong, 100_000, "proportional", backup=False).efficiency < 0.5
    assert simulate(wrong, 100_000, "finish_together").efficiency > 0.85


# -- the scheduler, by hand


def scheduler(count: int, items: int = 100, size: int = 10, **options: Any) -> ChunkScheduler:
    states = [DeviceState(f"d{i}", size=size) for i in range(count)]
    return ChunkScheduler(LocalCursor(0, items), Fixed(), states, total=items, **options)


def test_a_failed_range_goes_to_another_device_and_then_fails_for_good() -> None:
    book = scheduler(2, 20)
    first = book.take(0, 0.0)
    assert first is not None
    book.failed(first, 1.0, ValueError("no"))
    again = book.take(1, 1.0)
    assert again is not None
    assert (again.start, again.stop, again.attempt) == (0, 10, 2)
    book.failed(again, 2.0, ValueError("no"))
    assert [(chunk.start, chunk.attempt) for chunk, _ in book.failures] == [(0, 2)]
    assert book.finished
    assert book.missing(20) == [(0, 20)]


def test_bad_data_takes_no_device_out_and_a_bad_device_goes() -> None:
    data = scheduler(2, 100, on_error="skip")
    for _ in range(3):
        for device in (0, 1):
            chunk = data.take(device, 0.0)
            assert chunk is not None
            data.failed(chunk, 0.0, ValueError("bad row"))
    assert all(state.alive for state in data.view.devices)
    hardware = scheduler(2, 100)
    for _ in range(2):
        chunk = hardware.take(0, 0.0)
        assert chunk is not None
        hardware.failed(chunk, 0.0, ValueError("bad device"))
        other = hardware.take(1, 0.0)
        assert other is not None
        assert other.attempt == 2
        hardware.claim(other)
        hardware.done(other, 1.0, 1.0)
    assert [state.alive for state in hardware.view.devices] == [False, True]


def test_halving_keeps_every_item() -> None:
    book = scheduler(1, 10)
    chunk = book.take(0, 0.0)
    assert chunk is not None
    book.halved(chunk, 0.0, MemoryError())
    assert book.view.devices[0].limit == 5
    seen = []
    while not book.finished:
        chunk = book.take(0, 0.0)
        assert chunk is not None
        seen.append((chunk.start, chunk.stop))
        book.claim(chunk)
        book.done(chunk, 0.0, 0.1)
    assert seen == [(0, 5), (5, 10)]


def test_of_two_copies_the_first_counts() -> None:
    states = [DeviceState("slow", linear(0.1, 100)), DeviceState("fast", linear(0.001, 10_000))]
    book = ChunkScheduler(LocalCursor(0, 10), Fixed(size=10), states, total=10)
    original = book.take(0, 0.0)
    assert original is not None
    copy = book.take(1, 0.0)
    assert copy is not None
    assert (copy.start, copy.stop) == (original.start, original.stop)
    assert book.claim(copy)
    book.done(copy, 0.002, 0.002)
    assert book.finished
    assert not book.claim(original)
    book.done(original, 0.3, 0.3)
    assert [row.state for row in book.log] == ["done", "lost"]
    assert book.done_items == 10


def test_a_copy_that_fails_leaves_the_original_to_it() -> None:
    states = [DeviceState("slow", linear(0.1, 100)), DeviceState("fast", linear(0.001, 10_000))]
    book = ChunkScheduler(LocalCursor(0, 10), Fixed(size=10), states, total=10)
    original, copy = book.take(0, 0.0), book.take(1, 0.0)
    assert original is not None
    assert copy is not None
    book.failed(copy, 0.001, ValueError("no"))
    assert not book.finished
    assert not book.failures
    assert book.claim(original)
    book.done(original, 0.2, 0.2)
    assert book.finished


def test_a_copy_that_is_refused_is_the_last_one() -> None:
    states = [DeviceState("slow", linear(0.1, 100)), DeviceState("fast", linear(0.001, 10_000))]
    book = ChunkScheduler(LocalCursor(0, 10), Fixed(size=10), states, total=10)
    original, copy = book.take(0, 0.0), book.take(1, 0.0)
    assert original is not None
    assert copy is not None
    assert (original.again, copy.again) == (False, True)
    book.failed(copy, 0.001, InputChangedError("no"))
    assert book.take(1, 0.002) is None
    assert not book.failures
    assert book.claim(original)
    book.done(original, 0.2, 0.2)
    assert book.finished
