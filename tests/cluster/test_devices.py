"""Placement: nobody gets a device twice, and wide jobs get as few servers as there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cluster.rounding.devices import Devices
from dovetail.core.errors import DovetailError


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=3), st.data())
def test_devices_are_never_held_twice(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    devices = Devices([count for count, _ in shape], [size for _, size in shape])
    free = [{d for d, of in enumerate(devices.type_of) if of == j} for j in range(len(shape))]
    held: list[tuple[int, ...]] = []
    for _ in range(30):
        back: bool = data.draw(st.booleans())
        if held and back:
            given_back = held.pop(data.draw(st.integers(0, len(held) - 1)))
            devices.give(given_back)
            free[int(devices.type_of[given_back[0]])] |= set(given_back)
            continue
        j, width = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 6))
        servers: dict[int, int] = {}
        for device in free[j]:
            servers[devices.server_of[device]] = servers.get(devices.server_of[device], 0) + 1
        taken = devices.take(j, width)
        if len(free[j]) < width:
            assert taken is None
            continue
        assert taken is not None
        assert len(set(taken)) == width
        assert set(taken) <= free[j]
        least, left = 0, width
        for room in sorted(servers.values(), reverse=True):
            if left > 0:
                least, left = least + 1, left - room
        assert devices.servers(taken) == least
        free[j] -= set(taken)
        held.append(taken)
        assert devices.free == [len(each) for each in free]


def test_a_failed_device_is_out_until_it_is_mended() -> None:
    devices = Devices([2], [2])
    devices.fail(0)
    assert devices.take(0, 2) is None
    assert devices.take(0, 1) == (1,)
    devices.fail(1)
    devices.give((1,))
    assert devices.take(0, 1) is None
    devices.mend(0)
    assert devices.take(0, 1) == (0,)


def test_the_last_server_may_be_smaller() -> None:
    devices = Devices([5], [2])
    assert [devices.take(0, 2), devices.take(0, 2), devices.take(0, 2)] == [(0, 1), (2, 3), None]
    assert devices.take(0, 1) == (4,)


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_given_back_twice_is_found(size: int) -> None:
    devices = Devices([2], [size])
    taken = devices.take(0, 1)
    assert taken is not None
    devices.give(taken)
    with pytest.raises(DovetailError, match=f"accelerator {taken[0]} was given back twice"):
        devices.give(taken)
