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
        (np.array(1.0), r"nothing of the batch, a ndarray of shape \[\], has the dimension 0"),
        ({"x": np.ones((9, 2)), "y": torch.ones(10)}, "expected 1 or 9, found 10 for batch.y; what goes whole"),
        ("abc", "found str"),
        (b"abc", "found bytes"),
        (None, "found NoneType"),
        (torch.tensor(1.0), "has no dimension 0"),
        ((1.0, 2.0), "nothing of the batch, a tuple, has the dimension 0"),
        (((3, 4) for _ in range(2)), "nothing of the batch"),
        ((iter([1]) for _ in range(2)), "expected batches of known size from the iterable, found list_iterator"),
        (iter([torch.ones(3), np.ones(3)]), "pieces of the iterable differ: piece cannot be joined"),
        (iter([{"a": torch.ones(3)}, {"b": torch.ones(3)}]), r"piece\.[ab] is not in all of them"),
        (torch.zeros(4, device="meta"), "found one of the device meta"),
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
        ({"sizes": True}, "size True: expected a whole number"),
        ({"priorities": float("nan")}, "priority nan: expected a number"),
        ({"backup": "no"}, "backup 'no': expected True or False"),
        ({"backend": ["thread"]}, "no back end is called"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dispatcher(double, **{"devices": "cpu", "cache": False, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cursor": 5}, "cursor 5: expected an object with take"),
        ({"resume": 5}, "resume 5: expected the outcome of an earlier attempt"),
    ],
)
def test_what_cannot_be_attempted_is_refused(options: dict[str, Any], message: str) -> None:
    with Dispatcher(double, TWO, sizes=3, cache=False) as dispatcher:
        with pytest.raises(InputError, match=message):
            dispatcher.attempt(torch.ones(9), **options)
        with pytest.raises(InputError, match="is of a batch of 9 items, found one of 8"):
            dispatcher.attempt(torch.ones(8), resume=dispatcher.attempt(torch.ones(9)))
        with pytest.raises(InputError, match="ahead 'x': expected 0 or more"):
            dispatcher.stream(torch.ones(9), ahead=options.get("ahead", "x"))


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


@pytest.mark.parametrize("kind", [torch.arange, np.arange, lambda n: {"x": torch.arange(n)}, lambda n: list(range(n))])
def test_the_outcome_of_another_batch_is_not_resumed(kind: Any) -> None:
    fails = [True]

    def failing(batch: Any) -> Any:
        if fails:
            raise ValueError("no")
        return batch

    batch, other = kind(50), kind(60)[10:] if not isinstance(kind(1), dict) else {"x": torch.arange(60)[10:]}
    with Dispatcher(failing, TWO, sizes=10, on_error="skip", cache=False) as dispatcher:
        outcome = dispatcher.attempt(batch)
        assert outcome.missing == [(0, 50)]
        fails.clear()
        with pytest.raises(InputError, match="the outcome is of another batch"):
            dispatcher.attempt(other, resume=outcome)
        assert len(dispatcher.attempt(kind(50), resume=outcome).unwrap()) == len(batch)
