"""Batches that go straight to the function, on the caller's thread: of every type, with the same results and errors."""

from __future__ import annotations

import copy
from math import inf
from threading import current_thread
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from dovetail.core.errors import DovetailError, InputError
from dovetail.dispatch import Dispatcher, Slices
from dovetail.dispatch.chunk import InputChangedError
from dovetail.dispatch.inputs.batch import Source, TensorBatch, TreeBatch, form_of
from dovetail.dispatch.inputs.devices import NodeDevice as Device
from dovetail.dispatch.live.direct import LAST, CallsLeft, DirectCalls, OneCall
from dovetail.dispatch.live.outcome import BatchOutcome
from dovetail.dispatch.policies.floor import ONE_CALL
from dovetail.dispatch.policies.one_cpu import OneCpuFloor
from tests.waiting import until

TWO = [Device("a", where="cpu"), Device("b", where="cpu")]
BATCHES: dict[str, Any] = {
    "tensor": torch.arange(40.0),
    "ndarray": np.arange(120.0).reshape(40, 3),
    "DataFrame": pandas.DataFrame({"x": np.arange(40.0), "y": list("ab") * 20}),
    "Series": pandas.Series(np.arange(40.0)),
    "list": [f"text {i}" for i in range(40)],
    "dict": {"x": torch.arange(40), "scale": torch.ones(1), "y": np.arange(40)},
    "tuple": (torch.arange(40), [np.arange(40), None]),
    "range": range(3, 43),
    "Slices": Slices(3, 43),
}


@pytest.fixture
def all_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call is one of the short ones, however long a busy machine takes for it."""
    monkeypatch.setattr("dovetail.dispatch.live.direct._SHORT_S", 1e6)


def warm(dispatcher: Dispatcher, *args: Any, **kwargs: Any) -> None:
    """Until such batches go straight to the function: when each device has done a chunk, so its thread was woken."""

    def straight() -> bool:
        dispatcher.run(*args, **kwargs)
        return dispatcher.report.way.startswith("one call on")

    until(straight)
    until(lambda: not any(dispatcher.pool.holding))  # a chunk that was done twice may still be at it


@pytest.mark.usefixtures("all_short")
@pytest.mark.parametrize("devices", ["cpu", TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_of_any_type_goes_straight_to_the_function(kind: str, devices: Any) -> None:
    calls: list[tuple[Any, Any]] = []

    def seen(batch: Any) -> Any:
        calls.append((batch, current_thread()))
        return torch.zeros(batch.stop - batch.start) if isinstance(batch, slice) else batch

    batch = BATCHES[kind]
    with Dispatcher(seen, devices, cache=False) as dispatcher:
        warm(dispatcher, batch)
        calls.clear()
        result = dispatcher.run(batch)
        report = dispatcher.report
    (given, thread), *others = calls
    assert not others
    assert thread is current_thread()
    if isinstance(given, slice):
        assert given == slice(3, 43, 1)
        assert len(result) == 40
    else:
        assert given is batch
        assert result is batch
    assert report.items == report.total == 40
    assert len(report.rows) == 1


@pytest.mark.usefixtures("all_short")
def test_several_arguments_go_as_they_are() -> None:
    x, y = torch.arange(10), np.arange(10)
    with Dispatcher(lambda x, y, scale: (x * scale, y), TWO, cache=False) as dispatcher:
        warm(dispatcher, x, y, scale=3)
        found = dispatcher.run(x, y, scale=3)
    assert found[0].tolist() == list(range(0, 30, 3))
    assert found[1] is y


def failing_once() -> tuple[Any, list[int]]:
    """A function that fails when the list of its calls was cleared by the test, and then no more."""
    calls: list[int] = [0]

    def function(batch: Any) -> Any:
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError("once")
        return batch

    return function, calls


@pytest.mark.usefixtures("all_short")
def test_a_call_that_fails_is_tried_on_another_device_and_told_like_a_chunk() -> None:
    function, calls = failing_once()
    x = np.arange(40)
    with Dispatcher(function, TWO, cache=False) as dispatcher:
        warm(dispatcher, x)
        calls.clear()
        assert dispatcher.run(x).tolist() == x.tolist()
        states = [row.state for row in dispatcher.report.rows]
    assert states[0] == "ValueError: once"
    assert calls[0] == 40
    with Dispatcher(function, "cpu", cache=False) as alone:
        warm(alone, x)
        calls.clear()
        with pytest.raises(ValueError, match="once") as caught:
            alone.run(x)
    assert caught.value.outcome.missing == [(0, 40)]  # type: ignore[attr-defined]
    assert caught.value.__notes__ == ["on cpu, items 0 to 40, attempt 1"]


@pytest.mark.usefixtures("all_short")
@pytest.mark.parametrize("kind", ["tensor", "ndarray", "DataFrame", "items", "dict"])
def test_rows_that_a_failed_call_changed_are_not_done_again(kind: str) -> None:
    batch = [[float(i)] for i in range(40)] if kind == "items" else copy.deepcopy(BATCHES[kind])
    changing: list[str] = []

    def changes(batch: Any) -> Any:
        if not changing:
            return batch
        if kind == "items":
            for row in batch:
                row[0] += 1
        elif kind in ("DataFrame", "dict"):
            batch["x"] += 1
        else:
            batch += 1
        if changing.pop() == "fail":
            changing.append("go on")
            raise ValueError("once")
        return batch

    with Dispatcher(changes, TWO, cache=False) as dispatcher:
        warm(dispatcher, batch)
        changing.append("fail")
        with pytest.raises(InputChangedError) as caught:
            dispatcher.run(batch)
    assert isinstance(caught.value.__cause__, ValueError)


def test_short_calls_that_become_long_are_looked_at_again() -> None:
    calls = DirectCalls()
    calls.short("form", 100)
    for _ in range(3):
        assert calls.take("form", 100)
        calls._check_short("form", 0.5)
    assert not calls.take("form", 100)
    calls.short("form", 100)  # the engine's chunks do not tell it
    assert not calls.take("form", 100)


def test_long_calls_are_compared_and_looked_at_again() -> None:
    calls, floor = DirectCalls(), OneCpuFloor()
    calls.sure("form", 100)
    taken = sum(calls.take("form", 100) for _ in range(200))
    assert taken == 64
    floor.ended(ONE_CALL, 100, 0.5, 0.4)
    floor.ended(ONE_CALL, 100, 0.5, 0.4)
    assert floor.is_sure(ONE_CALL, 100)


@pytest.mark.usefixtures("all_short")
def test_books_are_kept_of_the_calls_that_count_in_the_next_comparison() -> None:
    calls, floor = DirectCalls(), OneCpuFloor()
    once, booked = OneCall("form", 0, 100, ONE_CALL), []
    calls.sure("form", 100)
    for made in range(1, 65):
        if once.left.calls > LAST:  # as a dispatcher does it
            once.left.calls -= 1
            once.left.unseen += 1
            continue
        assert calls.take("form", 100)
        assert calls.call(abs, once, floor, None, (-1,), {})[0] == 1
        calls._short.clear()  # however short it was
        booked.append(made)
        assert floor.ran == made - len(booked)  # short ones are not compared
    assert booked == [1, 62, 63, 64]
    assert calls._sure == {("form", 7): CallsLeft()}
    assert not calls.take("form", 100)


@pytest.mark.usefixtures("all_short")
def test_of_batches_that_are_not_known_again_books_are_kept() -> None:
    calls, floor, frame = DirectCalls(), OneCpuFloor(), TreeBatch(BATCHES["DataFrame"])
    calls.sure("form", 40)
    for left in range(63, -1, -1):
        assert calls.take("form", 40)
        once = calls.meet(frame, "form", 0)
        calls.call(len, once, floor, frame, (frame.tree,), {})
        assert once.left.unseen == floor.ran == 0
        assert calls._sure == {("form", 6): CallsLeft(left)}
        calls._short.clear()  # however short it was


def test_short_ones_that_become_long_have_the_calls_of_their_size() -> None:
    calls, floor = DirectCalls(), OneCpuFloor()
    once = OneCall("form", 0, 100, ONE_CALL)
    calls.short("form", 100)
    calls.call(abs, once, floor, None, (-1,), {})
    assert once.left == CallsLeft(63 + LAST, most_s=8e-3)
    calls._short.clear()
    calls.sure("form", 100)
    calls.call(abs, once, floor, None, (-1,), {})
    assert once.left is calls._sure["form", 7]
    assert once.left.most_s == inf


@pytest.mark.parametrize("lengths", [1, 2, 30, 200], ids=lambda lengths: f"{lengths} lengths")
def test_batches_of_about_one_size_are_compared_as_seldom_as_of_one_size(
    lengths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their lengths, they have one account, and a call is counted when it is made."""
    monkeypatch.setattr("dovetail.dispatch.live.direct._SHORT_S", -1.0)  # none is short
    compared: list[int] = []
    many = 260
    with Dispatcher(lambda x: x, TWO, cache=False) as dispatcher:
        direct = dispatcher._direct
        assert direct is not None
        form = form_of(TensorBatch(torch.zeros(600)), 0)
        floor = dispatcher.tuning.floor(form)
        assert isinstance(floor, OneCpuFloor)
        at = direct.device_of(TensorBatch(torch.zeros(600)))
        assert at is not None

        def compare(self: Dispatcher, source: Source, *_: Any) -> BatchOutcome:
            """As the engine does when one call is as good as ever."""
            compared.append(source.total or 0)
            outcome = self._call_once(direct, direct.meet(source, form, at), source, (source.tensor,), {})  # type: ignore[attr-defined]
            direct.sure(form, source.total or 0)
            return outcome

        monkeypatch.setattr(Dispatcher, "_attempt", compare)
        for i in range(many):
            x = torch.zeros(520 + 7 * i % lengths)
            assert dispatcher.run(x) is x
            assert floor.ran <= i + 1
        pending = sum(left.unseen for left in direct._sure.values())
    assert len(compared) <= many / 64 + 2
    assert floor.ran + pending == many


@pytest.mark.usefixtures("all_short")
@pytest.mark.parametrize("kind", ["tensor", "ndarray"])
def test_a_call_of_which_no_books_are_kept_is_told_like_others(kind: str) -> None:
    batch, wrong = BATCHES[kind], list[str]()

    def function(rows: Any) -> Any:
        if wrong:
            raise ValueError(wrong.pop())
        return rows + 1

    with Dispatcher(function, TWO, cache=False) as dispatcher:
        warm(dispatcher, batch)
        dispatcher.run(batch)
        assert dispatcher._direct is not None
        once = dispatcher._direct.met(batch)
        assert once is not None
        dispatcher.run(batch)
        left = once.left.calls
        assert left > LAST
        assert dispatcher.run(batch).tolist() == (batch + 1).tolist()
        assert once.left.calls == left - 1
        assert dispatcher.report.items == len(batch)
        assert dispatcher.recorded.metrics["way"] == "one call on a"
        wrong.append("once")
        assert dispatcher.run(batch).tolist() == (batch + 1).tolist()  # the other device has done it
        assert dispatcher.report.rows[0].state == "ValueError: once"
        once.left.calls, once.left.most_s = 8, -1.0  # any call takes longer
        dispatcher.run(batch)
        assert once.left.calls == 0
        dispatcher.run(batch)
        assert once.left.calls > LAST
        dispatcher.close()
        with pytest.raises(DovetailError, match="closed"):
            dispatcher.run(batch)


@pytest.mark.usefixtures("all_short")
def test_tensors_like_one_that_came_before_are_told_from_those_that_only_look_like_it() -> None:
    """What is remembered of a tensor holds for its shape, type, place and layout, and for no subclass."""
    calls: list[Any] = []

    def seen(batch: Any) -> Any:
        calls.append(batch)
        return batch

    class Marked(torch.Tensor):
        pass

    x = torch.arange(40.0)
    others = [
        torch.arange(40),
        torch.arange(80.0),
        torch.rand(40, 2),
        x.as_subclass(Marked),
        torch.rand(40).to_sparse(),
    ]
    with Dispatcher(seen, TWO, cache=False) as dispatcher:
        warm(dispatcher, x)
        for batch in (x, *others, x):
            found = dispatcher.run(batch)
            assert type(found) is type(batch)
            assert found.dtype is batch.dtype
            assert found.layout is batch.layout
            assert torch.equal(found.to_dense(), batch.to_dense())
            assert dispatcher.report.items == len(batch)
        calls.clear()
        dispatcher.run(x)
        assert calls[0] is x
        assert dispatcher.recorded.metrics["way"] == dispatcher.report.way == "one call on a"
        with pytest.raises(InputError, match="nested"):
            dispatcher.run(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged))


def test_shapes_that_were_met_are_not_kept_without_end() -> None:
    calls = DirectCalls()
    for items in range(1, 200):
        x = torch.zeros(items)
        calls.meet(TensorBatch(x), "form", 0)
        assert calls.met(x) == OneCall("form", 0, items, ONE_CALL)
    assert len(calls._met) <= 64


@pytest.mark.parametrize(("devices", "how"), [("cpu", "attempt"), ("cpu", "run"), (TWO, "run")])
def test_an_interrupted_call_has_an_outcome_to_go_on_from(devices: Any, how: str) -> None:
    stop = False

    def function(x: Any) -> Any:
        if stop:
            raise KeyboardInterrupt
        return 2 * x

    x = torch.arange(10)
    with Dispatcher(function, devices, cache=False) as dispatcher:
        for _ in range(20):
            dispatcher.run(x)
        stop = True
        with pytest.raises(KeyboardInterrupt) as stopped:
            getattr(dispatcher, how)(x)
        stop = False
        outcome = stopped.value.outcome  # type: ignore[attr-defined]
        assert outcome.missing == [(0, 10)]
        assert dispatcher.report.items == 0
        assert torch.equal(dispatcher.attempt(x, resume=outcome).unwrap(), 2 * x)
        with pytest.raises(InputError, match="of another batch"):
            dispatcher.attempt(x + 1, resume=outcome)
