"""What a run tells of how far it is."""

from __future__ import annotations

import pytest
import torch

from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.live import progress
from dovetail.dispatch.live.progress import RunProgress


@pytest.mark.parametrize("unsized", [False, True])
def test_every_item_is_counted_once(unsized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    told: list[RunProgress] = []
    two = [Device("first", where="cpu"), Device("second", where="cpu")]
    with Dispatcher(lambda x: x, two, sizes=10, mode="sync", progress=told.append, cache=False) as dispatcher:
        dispatcher.run((torch.ones(20) for _ in range(5)) if unsized else torch.ones(100))
    counts = [each.done for each in told]
    assert len(counts) > 5
    assert counts == sorted(counts)
    assert counts[-1] == 100
    assert set(told[-1].rates) == {"first", "second"}
    assert (told[-1].total, told[-1].left_s) == ((None, None) if unsized else (100, 0.0))
