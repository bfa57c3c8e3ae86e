"""What newcomers get wrong: each is an error that says what was found and what was expected, never a wrong result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail.core.errors import InputError
from dovetail.dispatch import Device, Dispatcher

TWO = [Device("first", where="cpu"), Device("second", where="cpu")]


def double(batch: Any) -> Any:
    return 2 * batch


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.ones((10, 2)), "expected a tensor, found an array; torch.from_numpy"),
        ({"x": np.ones((10, 2)), "y": torch.ones(10)}, "batch.x: expected a tensor, found an array"),
        ("abc", "found str"),
        (b"abc", "found bytes"),
        (None, "found NoneType"),
        (torch.tensor(1.0), "has no dimension 0"),
        ([1.0, 2.0], "no tensor of the batch has the dimension 0"),
        (((3, 4) for _ in range(2)), "no tensor of the batch"),
        ((iter([1]) for _ in range(2)), "expected tensors or trees of them from the iterable, found list_iterator"),
    ],
)
def test_what_is_no_batch_is_refused(batch: Any, message: str) -> None:
    with Dispatcher(double, "cpu", cache=False) as dispatcher, pytest.raises(InputError, match=message):
        dispatcher.run(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 2.5}, "size 2.5: expected a whole number"),
        ({"sizes": "64"}, "size '64': expected a whole number"),
        ({"capacities": [1.5]}, "capacity 1.5: expected a whole number"),
        ({"priorities": "high"}, "priority 'high': expected a number"),
        ({"devices": None}, "device None: expected a name such as"),
        ({"devices": [0]}, "device 0: expected a name such as"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dispatcher(double, **{"devices": "cpu", "cache": False, **options})


def test_torch_devices_are_devices() -> None:
    devices: Any = [torch.device("cpu")]
    with Dispatcher(double, devices, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(torch.arange(10)), 2 * torch.arange(10))


@pytest.mark.parametrize("devices", ["cpu", TWO])
def test_dictionaries_of_chunks_may_differ_in_order_but_not_in_keys(devices: Any) -> None:
    def swapping(batch: Tensor) -> dict[str, Tensor]:
        made = {"a": batch, "b": -batch}
        return made if int(batch[0]) % 20 == 0 else dict(reversed(made.items()))

    def growing(batch: Tensor) -> dict[str, Tensor]:
        return {"a": batch} if int(batch[0]) % 20 == 0 else {"a": batch, "b": batch}

    def other(batch: Tensor) -> dict[str, Tensor]:
        return {str(int(batch[0])): batch}

    batch = torch.arange(100)
    with Dispatcher(swapping, devices, sizes=10, cache=False) as dispatcher:
        found = dispatcher.run(batch)
        assert torch.equal(found["a"], batch)
        assert torch.equal(found["b"], -batch)
    for function in (growing, other):
        with Dispatcher(function, devices, sizes=10, cache=False, on_error="fail") as dispatcher:
            with pytest.raises((InputError, ExceptionGroup)) as caught:
                dispatcher.run(batch)
            errors = getattr(caught.value, "exceptions", [caught.value])
            assert all("chunks differ in what they return" in str(error) for error in errors)
