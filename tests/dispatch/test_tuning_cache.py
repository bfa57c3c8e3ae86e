"""Curves outlive the program that measured them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dovetail.dispatch import Dispatcher
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.devices import NodeDevice as Device
from dovetail.dispatch.live.tuning_cache import TuningCache, cache_folder, function_name
from dovetail.dispatch.policies.base import DeviceState


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


def multiply(n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: n * x


def tuned(folder: Path, function: object = double) -> TuningCache:
    return TuningCache(function, [Device("cpu")], [1], folder)


def measure(state: DeviceState) -> None:
    while state.search is not None:
        state.observed(state.search.size, 0.001 + state.search.size / 1e5)


def test_a_curve_that_settled_is_there_in_the_next_program(tmp_path: Path) -> None:
    known = tuned(tmp_path)
    states = known.states("form")
    measure(states[0])
    states[0].lower_limit(4096)
    known.learn("form", states)
    again = tuned(tmp_path).states("form")[0]
    assert again.settled
    assert again.curve is not None
    assert states[0].curve is not None
    assert again.curve.points == states[0].curve.points
    assert again.limit == 4096
    assert not tuned(tmp_path).states("another form")[0].settled
    assert not tuned(tmp_path, triple).states("form")[0].settled


def test_measuring_goes_on_where_no_batch_was_large_enough(tmp_path: Path) -> None:
    known = tuned(tmp_path)
    states = known.states("form")
    for _ in range(7):
        assert states[0].search is not None
        states[0].observed(states[0].search.size, 0.001)
    known.learn("form", states)
    again = tuned(tmp_path).states("form")[0]
    assert not again.settled
    assert again.curve is not None
    assert again.search is not None
    before = states[0]
    assert before.curve is not None
    assert before.search is not None
    assert (again.curve.points, again.search.size) == (before.curve.points, before.search.size)
    measure(again)
    assert again.settled
    assert again.best > 100


def test_what_cannot_be_read_is_measured_again(tmp_path: Path) -> None:
    known = tuned(tmp_path)
    states = known.states("form")
    measure(states[0])
    known.learn("form", states)
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert not tuned(tmp_path).states("form")[0].settled


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Dispatcher(double, "cpu", cache=tmp_path / "file" / "below") as dispatcher:
        for _ in range(4):
            assert torch.equal(dispatcher.run(torch.arange(5000)), 2 * torch.arange(5000))


def test_names_follow_the_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert function_name(double) != function_name(triple)
    assert function_name(lambda x: 2 * x) != function_name(lambda x: 3 * x)
    assert function_name(multiply(2)) == function_name(multiply(2)) != function_name(multiply(3))
    assert function_name(torch.nn.Linear(2, 3)) == function_name(torch.nn.Linear(2, 3))
    assert function_name(torch.nn.Linear(2, 3)) != function_name(torch.nn.Linear(3, 3))
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "dispatch"


def test_a_tuned_dispatcher_calls_small_batches_directly() -> None:
    with Dispatcher(double, "cpu", cache=False) as dispatcher:
        form = (torch.float32, torch.Size([6]))
        states = dispatcher.tuning.states(form)
        states[0].curve, states[0].search, states[0].settled = Curve([(1, 0.001), (10_000, 0.002)]), None, True
        dispatcher.tuning.learn(form, states)
        x = torch.rand(100, 6)
        dispatcher.run(x)
        assert len(dispatcher.report.rows) == 1
        assert dispatcher._direct_up_to >= 10_000
        assert torch.equal(dispatcher.run(x), 2 * x)
        assert dispatcher.report.items == 100
        other = torch.rand(100, 7)  # another form, for which nothing is known
        assert torch.equal(dispatcher.run(other), 2 * other)
