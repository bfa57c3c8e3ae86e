"""What the MPI scheduler decides, without MPI; ranks for real are in tests/e2e/test_dispatch_mpi.py."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import DovetailError, InputError, MissingExtraError

pytest.importorskip("torch")

from dovetail.dispatch.compat.mpi import SimpleMPIScheduler, device_index, rank_on_host
from dovetail.dispatch.live.mpi import agreed, mpi
from dovetail.dispatch.live.mpi_batch import missing_of


class Alone:
    """A communicator of one rank among several whose answers are known."""

    rank, size = 0, 2

    def __init__(self, *others: Any) -> None:
        self.others = others

    def allgather(self, value: Any) -> list[Any]:
        return [value, *self.others]


@pytest.mark.parametrize(("ranks", "devices", "expected"), [(4, 2, [0, 1, 0, 1]), (2, 2, [0, 1]), (3, 2, [0, 1, 0])])
def test_ranks_take_turns(ranks: int, devices: int, expected: list[int]) -> None:
    assert [device_index(r, ranks, devices, "round_robin", "error") for r in range(ranks)] == expected


def test_each_rank_has_its_own_or_there_is_an_error() -> None:
    assert [device_index(rank, 3, 3) for rank in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="4 ranks on one host share 2 devices"):
        device_index(0, 4, 2)


def test_idle_devices_are_allowed_or_not() -> None:
    assert device_index(0, 1, 2) == 0
    with pytest.raises(InputError, match="1 ranks on one host leave 1 of 2 devices idle"):
        device_index(0, 1, 2, fewer_ranks="error")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_ranks_of_a_host_are_numbered_without_gaps(hosts: list[str], devices: int) -> None:
    for host in set(hosts):
        here = [rank_on_host(hosts, rank) for rank, each in enumerate(hosts) if each == host]
        assert here == [(i, len(here)) for i in range(len(here))]
        used = [device_index(i, n, devices, "round_robin") for i, n in here]
        assert max(used.count(d) for d in used) - min(used.count(d) for d in range(devices)) <= 1  # evenly


@given(st.lists(st.integers(1, 5), max_size=8), st.data())
@settings(max_examples=50, deadline=None)
def test_missing_is_what_was_taken_and_is_not_done(sizes: list[int], data: st.DataObject) -> None:
    taken, done, at = [], [], 0
    for size in sizes:
        taken.append((at, at + size))
        cut = data.draw(st.integers(0, size))  # a range may come back in parts, after a failure
        done += [
            part for part in ((at, at + cut), (at + cut, at + size)) if part[0] < part[1] and data.draw(st.booleans())
        ]
        at += size + data.draw(st.integers(0, 3))
    items = {i for start, stop in taken for i in range(start, stop)} - {i for a, b in done for i in range(a, b)}
    found = [i for start, stop in missing_of(taken, done) for i in range(start, stop)]
    assert sorted(found) == sorted(items)
    assert len(found) == len(items)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": []}, "at least one device"),
        ({"devices": ["cuda", "cuda:0"]}, "'cuda:0' is given twice"),
        ({"devices": ["gpu"]}, "device 'gpu'"),
        ({"devices": ["cuda:0", "cpu"], "sub_batch_sizes": [1, 2, 3]}, "1 or 2 values"),
        ({"devices": ["cpu"], "sub_batch_sizes": [8], "capacities": [4]}, "capacity 4 is below"),
        ({"devices": ["cpu"], "sub_batch_sizes": [-1]}, "size >= 0, found -1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SimpleMPIScheduler(**options)


def test_devices_need_not_exist_before_a_rank_asks() -> None:
    made = SimpleMPIScheduler(devices=["cuda:5", "cuda:6"], sub_batch_sizes=[8])
    assert made.sub_batch_sizes == [8]


def test_an_error_of_another_rank_is_an_error_here() -> None:
    assert agreed(Alone(None), lambda: 3) == 3
    with pytest.raises(DovetailError, match="rank 1 of 2 failed: ValueError: no"):
        agreed(Alone("ValueError: no"), lambda: 3)
    with pytest.raises(KeyError):
        agreed(Alone(None), lambda: dict[str, int]()["x"])


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(MissingExtraError, match=r"the MPI scheduler needs mpi4py.*pip install 'dovetail\[mpi\]'"):
        mpi()
