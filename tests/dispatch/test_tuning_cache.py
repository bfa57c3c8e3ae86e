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


def measure(state: DeviceState, disturbed: float = 1.0) -> None:
    """Until a best size is found, and larger ones have been looked at again."""
    while state.search is None or not state.search.looks:
        size = state.best if state.search is None or state.settled else state.search.size
        state.observed(size, disturbed * (0.001 + size / 1e5))


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


def test_a_curve_that_nothing_has_confirmed_is_not_kept(tmp_path: Path) -> None:
    known = tuned(tmp_path)
    states = known.states("form")
    while not states[0].settled:
        assert states[0].search is not None
        states[0].observed(states[0].search.size, 0.001 + states[0].search.size / 1e5)
    known.learn("form", states)
    assert list(tmp_path.iterdir()) == []
    measure(states[0])
    known.learn("form", states)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_kept_curve_is_held_against_the_first_chunks(tmp_path: Path) -> None:
    known = tuned(tmp_path)
    states = known.states("form")
    measure(states[0], disturbed=20.0)
    known.learn("form", states)
    again = tuned(tmp_path).states("form")[0]
    assert again.settled
    for _ in range(3):
        again.observed(again.best, 0.001 + again.best / 1e5)
    assert not again.settled
    assert again.search is not None
    assert again.search.times == {}


def test_above_the_best_size_of_a_kept_curve_is_looked_at_soon() -> None:
    state = DeviceState("cpu")
    state.known(Curve([(32, 1.0e-4), (128, 1.1e-4), (512, 0.05)]))  # the last one was disturbed
    for _ in range(3):
        state.observed(state.best, 1.1e-4)
    assert not state.settled
    while not state.settled:
        assert state.search is not None
        state.observed(state.search.size, 1e-4 + state.search.size / 1e7)
    assert state.best > 4000


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
        states[0].curve, states[0].search = Curve([(1, 0.001), (10_000, 0.002)]), None
        dispatcher.tuning.learn(form, states)
        x = torch.rand(100, 6)
        dispatcher.run(x)
        assert len(dispatcher.report.rows) == 1
        assert dispatcher.report.way == "one call on cpu"
        assert torch.equal(dispatcher.run(x), 2 * x)
        assert dispatcher.report.items == 100
        other = torch.rand(100, 7)  # another form, for which nothing is known
        assert torch.equal(dispatcher.run(other), 2 * other)
