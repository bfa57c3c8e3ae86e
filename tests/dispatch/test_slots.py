"""Workers that hold several chunks at once, as those of accelerators do: whatever the mode, all chunks come back."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.dispatch import Device, Dispatcher, SharedScheduler
from dovetail.dispatch.check import check_journal
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.live.worker import BACKENDS, Ended


class Deferred:
    """Computes a chunk only when it is collected, oldest first."""

    late = False
    most: ClassVar[int] = 0

    def __init__(self, device: Device) -> None:
        self.device = device
        self.slots = device.slots or 3
        self._held: deque[Chunk] = deque()
        self._calls: dict[int, Any] = {}
        self._call: Any = None

    def start(self) -> None:
        pass

    def begin(self, run: Any) -> None:
        self._call = run.call_on(self.device)

    def launch(self, chunk: Chunk) -> None:
        assert len(self._held) < self.slots
        self._held.append(chunk)
        self._calls[id(chunk)] = self._call
        Deferred.most = max(Deferred.most, len(self._held))

    def collect(self) -> list[Ended]:
        if not self._held:
            return []
        chunk = self._held.popleft()
        call = self._calls.pop(id(chunk))
        try:
            result = call(chunk.run.slice(chunk.start, chunk.stop))
        except Exception as error:
            return [(chunk, error)]
        if chunk.run.claim(chunk):
            chunk.run.output.write(chunk.start, chunk.stop, result)
        return [(chunk, None)]

    def stop(self) -> None:
        assert not self._held


def make(device: Device, devices: list[Device]) -> Deferred:
    return Deferred(device)


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "thread", f"{__name__}:make")
    Deferred.most = 0


def double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("sizes", [None, 7, 50])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_chunks_come_back(mode: Literal["sync", "async"], sizes: int | None, count: int) -> None:
    devices = [Device(f"d{i}", where="cpu") for i in range(count)]
    with Dispatcher(double, devices, sizes=sizes, mode=mode, cache=False) as dispatcher:
        for items in (0, 1, 30, 500, 20_000):
            x = torch.rand(items, 3)
            assert torch.equal(dispatcher.run(x), 2 * x)
        if items and mode == "async":
            x = torch.rand(500, 3)
            assert torch.equal(torch.cat([piece.value for piece in dispatcher.stream(x)]), 2 * x)


def test_the_slots_are_used() -> None:
    with Dispatcher(double, [Device("a", where="cpu"), Device("b", where="cpu")], sizes=10, cache=False) as dispatcher:
        dispatcher.run(torch.rand(2000))
    assert Deferred.most == 3


class Greedy(Deferred):
    """Says that it holds two chunks at once, and after its start takes three."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.slots = 2

    def start(self) -> None:
        self.slots = 3


def make_greedy(device: Device, devices: list[Device]) -> Greedy:
    return Greedy(device)


def test_a_journal_has_a_device_for_each_slot(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    devices = [Device("a", where="cpu"), Device("b", where="cpu", slots=2)]
    for sizes in (None, 10):
        with Dispatcher(double, devices, sizes=sizes, cache=False, journal=path) as dispatcher:
            for _ in range(2):
                dispatcher.run(torch.rand(2000))
                report = check_journal(path)
                assert report.valid, report.faults
                assert replay_journal(path).difference is None
    assert [device.type for device in Reader(path).header.pool.devices] == ["a", "a", "a", "b", "b"]


def test_a_device_that_holds_more_than_it_said_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "thread", f"{__name__}:make_greedy")
    path = tmp_path / "run.jsonl"
    devices = [Device("a", where="cpu"), Device("b", where="cpu")]
    with Dispatcher(double, devices, sizes=10, capacities=100, cache=False, journal=path) as dispatcher:
        dispatcher.run(torch.rand(2000))
    assert Deferred.most == 3
    assert "overlap" in check_journal(path).faults_by_code


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_failures_move_and_halves_fit(mode: Literal["sync", "async"]) -> None:
    def small(x: Tensor) -> Tensor:
        if len(x) > 100:
            raise MemoryError
        return 2 * x

    with Dispatcher(small, [Device("a", where="cpu")], sizes=5000, mode=mode, cache=False) as dispatcher:
        x = torch.rand(20_000)
        assert torch.equal(dispatcher.run(x), 2 * x)


def test_two_tasks_share_it() -> None:
    with SharedScheduler([Device("a", where="cpu"), Device("b", where="cpu")]) as shared:
        one, other = shared.dispatcher(double, cache=False), shared.dispatcher(lambda x: 3 * x, cache=False)
        x = torch.rand(3000)
        pairs = [(one.submit(x), other.submit(x)) for _ in range(10)]
        for first, second in pairs:
            assert torch.equal(first.result(), 2 * x)
            assert torch.equal(second.result(), 3 * x)
