"""The schedulers under their old names: options, checks, and that they do what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.core.errors import InputError
from dovetail.dispatch import Device, SharedScheduler, SimpleScheduler, StaticHybridScheduler
from dovetail.dispatch.inputs.devices import canonical, devices_with, resolve


def test_the_simple_scheduler_cuts_as_told() -> None:
    seen: list[int] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[0])
        return x

    with SimpleScheduler("cpu", 23, 55).dispatcher(look, cache=False) as dispatcher:
        x = torch.rand(100)
        assert torch.equal(dispatcher.run(x), x)
    assert seen == [23, 23, 23, 23, 8]
    seen.clear()
    with SimpleScheduler().dispatcher(look, cache=False) as whole:
        whole.run(x)
    assert seen == [100]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"device": "cpu", "sub_batch_size": 8, "capacity": 4}, "capacity 4 is below size 8"),
        ({"device": "cpu", "sub_batch_size": -1}, "size >= 0"),
        ({"device": "cpu:1"}, "there is one CPU"),
        ({"device": "cuda:x"}, "a number after the colon"),
        ({"device": "cda"}, "did you mean 'cuda'"),
        ({"device": "cuda:77"}, "does not exist: PyTorch sees"),
    ],
)
def test_what_the_simple_scheduler_refuses(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        SimpleScheduler(**options).dispatcher(lambda x: x)


@pytest.mark.parametrize(
    ("devices", "sizes", "options", "match"),
    [
        ([], [4], {}, "at least one device"),
        (["cpu", "cpu"], [4], {}, "given twice"),
        (["cuda", "cuda:0"], [4], {}, "'cuda:0' is given twice"),
        (["cpu"], [0], {}, "at least 1 item"),
        (["cpu"], [], {}, "at least 1 item"),
        (["cpu"], [4, 5], {}, "expected 1 value for size"),
        (["cpu"], [4], {"capacities": [3]}, "capacity 3 is below size 4"),
        (["cpu"], [4], {"priorities": [1.0, 2.0]}, "1 value for priority"),
    ],
)
def test_what_the_hybrid_scheduler_refuses(
    devices: list[str], sizes: list[int], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        StaticHybridScheduler(devices, sizes, **options).resolved()


def test_one_value_stands_for_all_devices() -> None:
    found = devices_with(["cuda:0", "cuda:1", "cpu"], [8], 16, [3, 2, 1], exist=False)
    assert [(device.name, device.size, device.capacity, device.priority) for device in found] == [
        ("cuda:0", 8, 16, 3),
        ("cuda:1", 8, 16, 2),
        ("cpu", 8, 16, 1),
    ]


def test_the_hybrid_scheduler_gives_equal_results() -> None:
    with StaticHybridScheduler(["cpu"], [17], [18], [2.0]).dispatcher(torch.sin, cache=False) as dispatcher:
        x = torch.rand(100, dtype=torch.float64)
        assert torch.equal(dispatcher.run(x), torch.sin(x))


def test_names_are_canonical() -> None:
    assert [canonical(name) for name in ("cuda", "CUDA:0", "cuda:01", "cpu", "mps", "xpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
        "mps",
        "xpu:0",
    ]
    two = resolve([Device("left", where="cpu"), Device("right", where="cpu")])
    assert [device.place for device in two] == ["cpu", "cpu"]


def test_tasks_share_devices() -> None:
    with SharedScheduler([Device("a", where="cpu"), Device("b", where="cpu")]) as shared:
        one = shared.dispatcher(lambda x: x + 1, sizes=3, cache=False)
        two = shared.dispatcher(lambda x: x * 2, sizes=4, weight=2.0, cache=False)
        futures = [one.submit(torch.arange(50)), two.submit(torch.arange(50))]
        assert futures[0].result().tolist() == list(range(1, 51))
        assert futures[1].result().tolist() == list(range(0, 100, 2))
        one.close()
        two.close()
