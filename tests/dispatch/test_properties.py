"""Random batches, devices, policies and faults: the result is the direct call's, and every item is done once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.live.errors import DeviceLostError


class Faulty:
    """Doubles rows; on some devices it fails as told, and it counts what it was given."""

    def __init__(self, faults: dict[str, str]) -> None:
        self.faults = faults
        self.lock = threading.Lock()
        self.seen: list[int] = []

    def on(self, device: Device) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
        fault = self.faults.get(device.name, "")
        calls = 0

        def call(work: dict[str, Tensor]) -> dict[str, Tensor]:
            nonlocal calls
            rows = work["x"].shape[0]
            calls += 1
            if fault == "memory" and rows > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            if fault == "error" and calls % 3 == 2:
                raise ValueError("now and then")
            if fault == "lost" and calls > 2:
                raise DeviceLostError("gone")
            with self.lock:
                self.seen.extend(work["id"].tolist())
            return {"y": 2 * work["x"] + work["shift"], "id": work["id"]}

        return call


@settings(max_examples=40, deadline=None)
@given(
    items=st.integers(1, 300),
    faults=st.lists(st.sampled_from(["", "", "memory", "error", "lost"]), min_size=0, max_size=3),
    size=st.sampled_from([None, 0, 1, 4, 17]),
    policy=st.sampled_from([None, "fixed", "proportional", "guided", "factoring", "finish_together"]),
    mode=st.sampled_from(["sync", "async"]),
    backup=st.booleans(),
)
def test_the_result_is_the_direct_calls(
    items: int, faults: list[str], size: int | None, policy: str | None, mode: Any, backup: bool
) -> None:
    work = {"x": torch.rand(items, 3), "shift": torch.rand(1, 3), "id": torch.arange(items)}
    names = [f"d{i}" for i in range(len(faults) + 1)]  # the last one is always sound
    function = Faulty(dict(zip(names, faults, strict=False)))
    devices = [Device(name, where="cpu") for name in names]
    with Dispatcher(
        function, devices, policy, sizes=size, mode=mode, backup=backup, retries=len(names), cache=False
    ) as dispatcher:
        for _ in range(2):
            function.seen.clear()
            found = dispatcher.run(work)
            assert torch.equal(found["y"], 2 * work["x"] + work["shift"])
            assert torch.equal(found["id"], work["id"])
            report = dispatcher.report
            if not report.rows:
                continue
            done = sorted((row.start, row.stop) for row in report.rows if row.state == "done")
            assert [start for start, _ in done] == [0] + [stop for _, stop in done[:-1]]
            assert done[-1][1] == items
            if not backup:
                assert sorted(function.seen) == list(range(items))


@pytest.mark.parametrize("dim", [0, 1, -1])
@settings(max_examples=15, deadline=None)
@given(items=st.integers(1, 40), size=st.integers(1, 50), devices=st.integers(1, 3))
def test_any_dimension(dim: int, items: int, size: int, devices: int) -> None:
    shape = [4, 5, 6]
    shape[dim] = items
    x = torch.rand(shape)
    with Dispatcher(
        lambda t: (t + 1, {"z": t * t}), [Device(f"d{i}", where="cpu") for i in range(devices)], sizes=size, dim=dim,
        cache=False,
    ) as dispatcher:  # fmt: skip
        found, more = dispatcher.run(x)
    assert torch.equal(found, x + 1)
    assert torch.equal(more["z"], x * x)
