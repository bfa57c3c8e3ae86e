"""Pools: what --gpus may say, runs of neighbouring devices, and who holds what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.core.resources import Device, DeviceType, Ledger, Pool

TYPES = {"a100": DeviceType("a100", memory_mib=81920), "l4": DeviceType("l4", memory_mib=24576, speed=0.4)}


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("2", ["gpu", "gpu"]),
        ("002", ["gpu", "gpu"]),
        ("a100:2,l4:1", ["a100", "a100", "l4"]),
        (" a100:1 , l4:1 , a100:1 ", ["a100", "l4", "a100"]),
        ("l4:0,a100:1", ["a100"]),
        ("gpu:1,l4:1", ["gpu", "l4"]),
        ("1,l4:1", ["gpu", "l4"]),
    ],
)
def test_a_pool_is_a_count_or_counts_of_types(text: str, types: list[str]) -> None:
    pool = Pool.parse(text, TYPES)
    assert [device.type for device in pool.devices] == types
    assert [device.id for device in pool.devices] == list(range(len(pool)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--gpus : '' is not a count; expected 4, or a100:2,l4:4"),
        ("four", "--gpus four: 'four' is not a count; expected 4, or a100:2,l4:4"),
        ("-1", "--gpus -1: '-1' is not a count; expected 4, or a100:2,l4:4"),
        ("2.5", "--gpus 2.5: '2.5' is not a count; expected 4, or a100:2,l4:4"),
        ("²", "--gpus ²: '²' is not a count; expected 4, or a100:2,l4:4"),
        ("1_000", "--gpus 1_000: '1_000' is not a count; expected 4, or a100:2,l4:4"),
        ("a100:", "--gpus a100:: '' is not a count; expected 4, or a100:2,l4:4"),
        ("a100:2,", "--gpus a100:2,: '' is not a count; expected 4, or a100:2,l4:4"),
        ("a10:2", "--gpus a10:2: 'a10' is not a GPU type; did you mean 'a100'?"),
        (":2", "--gpus :2: '' is not a GPU type; known: a100, l4"),
        ("0", "--gpus 0: expected at least one GPU"),
        ("a100:0,l4:0", "--gpus a100:0,l4:0: expected at least one GPU"),
        ("2000000", "--gpus 2000000: expected at most 1048576 GPUs"),
        ("1000000,l4:1000000", "--gpus 1000000,l4:1000000: expected at most 1048576 GPUs"),
        ("9" * 5000, "--gpus " + "9" * 5000 + ": expected at most 1048576 GPUs"),
    ],
)
def test_what_is_no_pool_is_bad_input(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Pool.parse(text, TYPES)
    assert str(caught.value) == message


def test_a_configuration_may_say_what_a_plain_gpu_is() -> None:
    pool = Pool.parse("2", {"gpu": DeviceType("gpu", memory_mib=1000, speed=2.0)})
    assert (pool.speeds, pool.memories) == ([2.0, 2.0], [1000, 1000])


def test_a_device_has_the_speed_and_memory_of_its_type() -> None:
    pool = Pool.parse("a100:1,l4:1,gpu:1", TYPES)
    assert pool.speeds == [1.0, 0.4, 1.0]
    assert pool.memories == [81920, 24576, None]


def test_neighbouring_devices_share_a_host() -> None:
    assert [device.host for device in Pool.parse("5", {}, per_host=2).devices] == [0, 0, 1, 1, 2]
    with pytest.raises(InputError, match="expected at least one GPU per server, found 0"):
        Pool.parse("5", {}, per_host=0)


def test_windows_are_runs_of_neighbours() -> None:
    pool = Pool.parse("5", {})
    assert pool.windows(2) == ((0, 1), (2, 3))
    assert pool.windows(2, aligned=False) == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert pool.windows(5) == ((0, 1, 2, 3, 4),)
    assert pool.windows(6) == pool.windows(6, aligned=False) == ()


@pytest.mark.parametrize("aligned", [True, False])
def test_what_needs_no_device_has_one_window_that_is_empty(aligned: bool) -> None:
    assert Pool.parse("3", {}).windows(0, aligned) == ((),)


@given(st.integers(1, 40), st.integers(1, 45))
def test_aligned_windows_are_windows_and_never_share_a_device(devices: int, width: int) -> None:
    pool = Pool(tuple(Device(i, "gpu") for i in range(devices)), {"gpu": DeviceType("gpu")})
    aligned, every = pool.windows(width), pool.windows(width, aligned=False)
    assert set(aligned) <= set(every)
    assert len(aligned) == devices // width
    assert len(every) == max(devices - width + 1, 0)
    used = [device for window in aligned for device in window]
    assert len(set(used)) == len(used)


def test_a_device_is_held_by_one_part_until_it_is_freed() -> None:
    ledger = Ledger(Pool.parse("3", {}))
    assert ledger.conflict((0, 1)) is None
    ledger.take((0, 1), ("w", "a"))
    assert ledger.conflict((1, 2)) == "device 1 is held by w/a"
    assert ledger.conflict((2,)) is None
    ledger.free((0, 1))
    assert ledger.conflict((1, 2)) is None
    assert ledger.conflict((2, 2)) == "device named twice in [2, 2]"
    assert ledger.conflict((3,)) == "device 3 does not exist (pool of 3)"
    assert ledger.conflict(()) is None
