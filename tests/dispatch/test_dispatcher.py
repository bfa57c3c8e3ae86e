"""A dispatched call is the call itself: every mode, hook and form of batch, and what happens when devices fail."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail.core.errors import DovetailError, InputError
from dovetail.dispatch import Device, Dispatcher, Pieces, Pool, Slices
from dovetail.dispatch.chunk import InputChangedError
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.live.progress import RunProgress
from dovetail.dispatch.policies.base import View
from tests.waiting import until

TWO = [Device("a", where="cpu"), Device("b", where="cpu")]
THREE = [*TWO, Device("c", where="cpu")]


def stress(work: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"stress": work["strain"] * work["temperature"]}


class Placed:
    """A function that is another one on each device."""

    def __init__(self, **functions: Callable[[Any], Any]) -> None:
        self.functions = functions

    def on(self, device: Device) -> Callable[[Any], Any]:
        return self.functions[device.name]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("devices", [["cpu"], TWO])
def test_slices_with_reduce_and_hooks_as_the_older_dispatcher(mode: Any, devices: list[str | Device]) -> None:
    def run(cut: slice) -> int:
        return int(cut.start * cut.stop * cut.step)

    source = Slices(50, 2000)
    options: dict[str, Any] = {"sizes": 345, "capacities": 800, "mode": mode, "cache": False}
    with Dispatcher(run, devices, join="list", **options) as plain:
        assert plain.run(source) == [19750, 292300, 802900, 1551550, 2538250, 3550000]
    with Dispatcher(run, devices, reduce=sum, **options) as summed:
        assert summed.run(source) == 8754750
    hooks: dict[str, Any] = {
        "preprocess": lambda cut, device: slice(cut.start + 1, cut.stop - 1, 1),
        "postprocess": lambda result, device: result + 1,
    }
    with Dispatcher(run, devices, reduce=sum, **hooks, **options) as hooked:
        assert hooked.run(source) == 8756700


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("size", [3, 4, 10, 23, 0, None])
@pytest.mark.parametrize("devices", [["cpu"], TWO, THREE])
def test_a_map_with_a_broadcast_entry(mode: Any, size: int | None, devices: list[str | Device]) -> None:
    work = {"strain": torch.rand(5, 100, 5, 6), "temperature": torch.rand(5, 1, 5, 1)}
    with Dispatcher(stress, devices, sizes=size, dim=1, mode=mode, cache=False) as dispatcher:
        for _ in range(2):
            found = dispatcher.run(work)
            assert torch.equal(found["stress"], stress(work)["stress"])


def test_several_arguments_are_cut_alike() -> None:
    x, y = torch.rand(20, 3), torch.rand(20, 1)
    with Dispatcher(lambda a, b, *, c: (a * b, c), "cpu", sizes=7, cache=False) as dispatcher:
        product, scale = dispatcher.run(x, y, c=torch.tensor(2.0))
    assert torch.equal(product, x * y)
    assert scale == 2.0


def test_a_module_and_its_derivatives() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    x = torch.rand(10, 3, requires_grad=True)
    with Dispatcher(model, TWO, sizes=3, cache=False) as dispatcher:
        found = dispatcher.run(x)
        assert torch.allclose(found, model(x))
        found.sum().backward()
        assert x.grad is not None
        with torch.no_grad():
            assert not dispatcher.run(x).requires_grad
            model.weight.zero_()
            assert torch.allclose(dispatcher.run(x), model(x))


def test_the_callers_modes_reach_the_workers() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def look(x: Tensor) -> Tensor:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        return x

    with Dispatcher(look, TWO, sizes=5, cache=False) as dispatcher:
        x = torch.rand(10)
        dispatcher.run(x)
        with torch.inference_mode():
            dispatcher.run(x)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            dispatcher.submit(x).result()
    assert set(seen[:2]) == {(True, False, False)}
    assert set(seen[2:4]) == {(False, True, False)}
    assert set(seen[4:]) == {(False, False, True)}


COUNTED = ContextVar("COUNTED", default=0)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("sizes", [None, 5])
def test_the_callers_context_reaches_the_workers_and_stays_the_callers(mode: Any, sizes: int | None) -> None:
    def look(x: Tensor) -> Tensor:
        found = x * COUNTED.get()
        COUNTED.set(COUNTED.get())
        return found

    with Dispatcher(look, TWO, mode=mode, sizes=sizes, cache=False) as dispatcher:
        for value in (5, 7, 0):
            token = COUNTED.set(value)
            assert set(dispatcher.run(torch.ones(20)).tolist()) == {float(value)}
            assert set(dispatcher.submit(torch.ones(20)).result().tolist()) == {float(value)}
            assert {float(v) for piece in dispatcher.stream(torch.ones(20)) for v in piece.value} == {float(value)}
            COUNTED.reset(token)
        assert set(dispatcher.run(torch.ones(20)).tolist()) == {0.0}
    with (
        Dispatcher(lambda x: 1 / x, TWO, mode=mode, sizes=sizes, cache=False) as divide,
        np.errstate(divide="raise"),
        pytest.raises(FloatingPointError),
    ):
        divide.run(np.zeros(20))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_empty_batch_gives_an_empty_result(mode: Any) -> None:
    with Dispatcher(lambda x: x.sum(1), TWO, mode=mode, cache=False) as dispatcher:
        assert dispatcher.run(torch.rand(0, 3)).shape == (0,)


def test_generators_sized_and_not() -> None:
    def pieces() -> Iterator[Tensor]:
        for start in range(0, 50, 7):
            yield torch.arange(start, min(start + 7, 50))

    for source in (pieces(), Pieces(pieces(), total=50)):
        with Dispatcher(lambda x: 2 * x, TWO, sizes=4, cache=False) as dispatcher:
            assert dispatcher.run(source).tolist() == list(range(0, 100, 2))
    with Dispatcher(lambda x: 2 * x, TWO, cache=False) as tuning:
        assert tuning.run(pieces()).tolist() == list(range(0, 100, 2))


def test_a_generator_that_fails_is_reported() -> None:
    def broken() -> Iterator[Tensor]:
        yield torch.zeros(3)
        raise ValueError("the disk is gone")

    with Dispatcher(lambda x: x, TWO, sizes=2, cache=False) as dispatcher:
        with pytest.raises(ValueError, match="the disk is gone"):
            dispatcher.run(broken())
        assert dispatcher.run(torch.zeros(3)).tolist() == [0, 0, 0]


def test_a_stream_in_order_holds_little_and_one_that_is_left_stops() -> None:
    x = torch.arange(100)
    ran: list[int] = []

    def double(part: Tensor) -> Tensor:
        ran.append(int(part[0]))
        return 2 * part

    with Dispatcher(double, TWO, sizes=1, cache=False) as dispatcher:
        pieces = list(dispatcher.stream(x))
        assert [piece.start for piece in pieces] == list(range(100))
        assert torch.equal(torch.cat([piece.value for piece in pieces]), 2 * x)
        ran.clear()
        stream = dispatcher.stream(x, ahead=1)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert dispatcher.run(x).tolist() == (2 * x).tolist()  # the workers are free again
        assert len(ran) < 100 + 20


def test_an_unordered_stream_has_every_piece_once() -> None:
    with Dispatcher(lambda x: x, THREE, sizes=7, cache=False) as dispatcher:
        pieces = list(dispatcher.stream(torch.arange(100), ordered=False))
    assert sorted(value for piece in pieces for value in piece.value.tolist()) == list(range(100))


def test_a_stream_tells_of_a_failure_behind_what_it_has() -> None:
    def picky(x: Tensor) -> Tensor:
        if 5 in x:
            raise ValueError("five")
        return x

    with Dispatcher(picky, "cpu", sizes=1, cache=False) as dispatcher:
        stream = dispatcher.stream(torch.arange(10))
        assert [next(stream).start for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="five"):
            next(stream)


def test_submitted_runs_are_futures_also_for_asyncio() -> None:
    async def both(dispatcher: Dispatcher) -> list[Tensor]:
        small, large = (asyncio.wrap_future(dispatcher.submit(torch.arange(n))) for n in (5, 9))
        return [await small, await large]

    with Dispatcher(lambda x: x + 1, TWO, sizes=2, cache=False) as dispatcher:
        small, large = asyncio.run(both(dispatcher))
    assert small.tolist() == [1, 2, 3, 4, 5]
    assert large.tolist() == list(range(1, 10))


def test_init_and_teardown_run_once_per_device_on_its_thread() -> None:
    seen: list[tuple[str, str]] = []
    with Dispatcher(
        lambda x: x,
        TWO,
        sizes=2,
        cache=False,
        init=lambda device: seen.append((device.name, threading.current_thread().name)),
        teardown=lambda device: seen.append((device.name, threading.current_thread().name)),
    ) as dispatcher:
        for _ in range(3):
            dispatcher.run(torch.rand(10))
    assert sorted(seen) == sorted([("a", "dovetail a"), ("b", "dovetail b")] * 2)


def test_an_init_that_fails_takes_its_device_out() -> None:
    def picky(device: Device) -> None:
        if device.name == "a":
            raise RuntimeError("no licence")

    with Dispatcher(lambda x: x + 1, TWO, sizes=2, cache=False, init=picky) as dispatcher:
        assert dispatcher.run(torch.zeros(9)).tolist() == [1] * 9
        assert dispatcher.report.devices[0].items == 0
    with (
        Dispatcher(lambda x: x, TWO[:1], sizes=2, cache=False, init=picky) as alone,
        pytest.raises(RuntimeError, match="no licence"),
    ):
        alone.run(torch.zeros(9))


# -- faults


def test_what_does_not_fit_is_halved_and_the_device_takes_no_more_than_that() -> None:
    sizes: list[int] = []

    def tight(x: Tensor) -> Tensor:
        if x.shape[0] > 300:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        sizes.append(x.shape[0])
        return 2 * x

    x = torch.rand(8192)
    with Dispatcher(tight, "cpu", sizes=4096, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(x), 2 * x)
        failed = [row for row in dispatcher.report.rows if row.state != "done"]
    assert len(failed) == 4  # 4096, 2048, 1024, 512
    assert max(sizes) == 256


def test_a_direct_call_without_memory_is_cut_after_all() -> None:
    def tight(x: Tensor) -> Tensor:
        if x.shape[0] > 10:
            raise MemoryError
        return 2 * x

    with Dispatcher(tight, "cpu", sizes=0, cache=False) as dispatcher:
        assert dispatcher.run(torch.arange(64)).tolist() == list(range(0, 128, 2))


@pytest.mark.parametrize("progress", [None, lambda _: None], ids=["direct", "engine"])
def test_rows_that_were_changed_are_not_done_again_for_want_of_memory(progress: Any) -> None:
    calls: list[int] = []

    def doubles(x: Tensor) -> Tensor:
        calls.append(x.mul_(2).shape[0])
        if len(calls) == 1:
            raise MemoryError
        return x

    with (
        Dispatcher(doubles, "cpu", sizes=100, cache=False, progress=progress) as dispatcher,
        pytest.raises(InputChangedError, match="changes its input in place"),
    ):
        dispatcher.run(torch.ones(8))


def test_memory_for_not_even_one_item_moves_the_work_or_is_an_error() -> None:
    def never(x: Tensor) -> Tensor:
        raise MemoryError("none at all")

    with Dispatcher(Placed(a=never, b=lambda x: x + 1), TWO, sizes=4, cache=False) as dispatcher:
        assert dispatcher.run(torch.zeros(10)).tolist() == [1] * 10
    with (
        Dispatcher(never, "cpu", sizes=4, cache=False) as alone,
        pytest.raises(MemoryError, match="none at all"),
    ):
        alone.run(torch.zeros(10))


def test_the_ranges_of_a_failing_device_move() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("broken")

    with Dispatcher(Placed(a=broken, b=lambda x: x + 1), TWO, sizes=2, cache=False) as dispatcher:
        assert dispatcher.run(torch.zeros(50)).tolist() == [1] * 50
        report = dispatcher.report
        assert report.devices[1].items == 50
        assert sum(row.state.startswith("RuntimeError") for row in report.rows) <= 4


def test_a_lost_device_stays_out() -> None:
    calls: list[int] = []

    def lost(x: Tensor) -> Tensor:
        calls.append(len(x))
        raise DeviceLostError("gone")

    with Dispatcher(Placed(a=lost, b=lambda x: x + 1), TWO, sizes=2, cache=False) as dispatcher:
        for _ in range(3):
            assert dispatcher.run(torch.zeros(50)).tolist() == [1] * 50
    assert len(calls) <= 1


def test_an_error_of_the_function_itself_is_raised_unchanged_with_its_place() -> None:
    def picky(x: Tensor) -> Tensor:
        if 5 in x:
            raise ValueError("five")
        return x

    with Dispatcher(picky, TWO, sizes=2, cache=False) as dispatcher:
        with pytest.raises(ValueError, match="five") as caught:
            dispatcher.run(torch.arange(10))
        assert any("items 4 to 6, attempt 2" in note for note in caught.value.__notes__)
        assert dispatcher.run(torch.arange(4)).tolist() == [0, 1, 2, 3]  # and the dispatcher goes on


def test_several_errors_are_a_group_and_the_rest_is_there() -> None:
    def picky(x: Tensor) -> Tensor:
        if x[0] % 20 == 0:
            raise ValueError(f"item {x[0]}")
        return x + 1

    with Dispatcher(picky, TWO, sizes=10, on_error="skip", cache=False) as dispatcher:
        outcome = dispatcher.attempt(torch.arange(60))
        assert outcome.missing == [(0, 10), (20, 30), (40, 50)]
        assert outcome.result[10:20].tolist() == list(range(11, 21))
        assert {(f.start, f.stop) for f in outcome.failures} == {(0, 10), (20, 30), (40, 50)}
        with pytest.raises(ExceptionGroup, match="3 chunks failed") as caught:
            outcome.unwrap()
        assert caught.value.outcome is outcome  # type: ignore[attr-defined]


def test_an_outcome_can_be_resumed() -> None:
    sick = True
    calls: list[int] = []

    def sometimes(x: Tensor) -> Tensor:
        if sick and 25 in x:
            raise ValueError("not now")
        calls.append(len(x))
        return 2 * x

    with Dispatcher(sometimes, TWO, sizes=10, on_error="skip", backup=False, cache=False) as dispatcher:
        first = dispatcher.attempt(torch.arange(60))
        assert first.missing == [(20, 30)]
        sick = False
        calls.clear()
        second = dispatcher.attempt(torch.arange(60), resume=first)
    assert calls == [10]
    assert second.missing == []
    assert second.unwrap().tolist() == list(range(0, 120, 2))


def test_fail_stops_at_the_first_error() -> None:
    calls: list[int] = []

    def broken(x: Tensor) -> Tensor:
        calls.append(len(x))
        raise ValueError("no")

    with (
        Dispatcher(broken, TWO, sizes=1, on_error="fail", cache=False) as dispatcher,
        pytest.raises((ValueError, ExceptionGroup)),
    ):
        dispatcher.run(torch.zeros(1000))
    assert len(calls) <= 2


def test_an_interrupt_stops_handing_out_and_drains() -> None:
    done: list[int] = []

    def interrupt(x: Tensor) -> Tensor:
        if x[0] == 4:
            raise KeyboardInterrupt
        done.append(int(x[0]))
        return x

    with Dispatcher(interrupt, "cpu", sizes=1, cache=False) as dispatcher:
        with pytest.raises(KeyboardInterrupt) as stopped:
            dispatcher.run(torch.arange(100))
        assert done == [0, 1, 2, 3]
        outcome = stopped.value.outcome  # type: ignore[attr-defined]
        assert outcome.missing == [(4, 100)]
        assert outcome.result[:4].tolist() == done
        assert dispatcher.run(torch.arange(3)).tolist() == [0, 1, 2]


def test_an_interrupt_of_the_caller_leaves_no_worker_behind() -> None:
    begun = threading.Event()
    done: list[int] = []

    def slow(x: Tensor) -> Tensor:
        begun.set()
        done.append(int(x[0]))
        return x

    class Interrupting:
        """RunProgress of progress while the run goes on, and then stopped by the user."""

        def __call__(self, told: RunProgress) -> None:
            begun.wait()
            raise KeyboardInterrupt

    with Dispatcher(slow, TWO, sizes=1, progress=Interrupting(), cache=False) as dispatcher:
        gate = threading.Event()

        def held(x: Tensor) -> Tensor:
            begun.set()
            gate.wait(0.3)
            return x

        dispatcher.function = lambda device: held
        with pytest.raises(KeyboardInterrupt):
            dispatcher.run(torch.arange(1000))
        assert not dispatcher.pool.runs
        gate.set()
        dispatcher.progress = None
        assert dispatcher.run(torch.arange(3)).tolist() == [0, 1, 2]


def test_a_dispatcher_keeps_no_batch_alive() -> None:
    with Dispatcher(lambda x: 2 * x, TWO, sizes=10, cache=False) as dispatcher:
        batch = torch.arange(100)
        dispatcher.run(batch)
        watched = weakref.ref(batch)
        del batch
        until(lambda: dispatcher.pool.waiting == len(dispatcher.pool.threads))  # who ended it has let go of it
        gc.collect()
        assert watched() is None
        assert dispatcher.report.items == 100


def test_a_generator_cannot_be_resumed() -> None:
    with Dispatcher(lambda x: x, TWO, sizes=10, cache=False) as dispatcher:
        first = dispatcher.attempt(torch.arange(30))
        with pytest.raises(InputError, match="read from a generator"):
            dispatcher.attempt(Pieces(torch.arange(10) for _ in range(3)), resume=first)


def test_a_single_call_too_has_its_teardown_and_checks_the_dimension() -> None:
    ended: list[str] = []
    with Dispatcher(lambda x: x, "cpu", sizes=0, teardown=lambda device: ended.append(device.name), cache=False) as d:
        d.run(torch.arange(3))
    assert ended == ["cpu"]
    with Dispatcher(lambda x: x, "cpu", sizes=0, dim=1, cache=False) as other:
        assert other.run(torch.ones(2, 3)).shape == (2, 3)
        with pytest.raises(InputError, match="has no dimension 1"):
            other.run(torch.arange(3))


@pytest.mark.parametrize("devices", ["cpu", TWO])
def test_a_closed_dispatcher_says_so(devices: Any) -> None:
    dispatcher = Dispatcher(lambda x: x, devices, sizes=10, cache=False)
    dispatcher.run(torch.arange(30))
    dispatcher.close()
    for call in (dispatcher.run, dispatcher.attempt, dispatcher.stream):
        with pytest.raises(DovetailError, match="closed"):
            call(torch.arange(3))


# -- the last straggler


def test_an_idle_device_redoes_what_the_last_one_is_late_with() -> None:
    release = threading.Event()
    stuck = threading.Event()

    def slow(x: Tensor) -> Tensor:
        if armed and not stuck.is_set():
            stuck.set()
            release.wait()
        return x + 1

    def quick(x: Tensor) -> Tensor:
        if armed:
            stuck.wait()
        return x + 1

    armed = False
    with Dispatcher(Placed(a=slow, b=quick), TWO, "finish_together", sizes=50, cache=False) as dispatcher:
        for _ in range(3):
            dispatcher.run(torch.zeros(1000))
        armed = True
        assert dispatcher.run(torch.zeros(1000)).tolist() == [1] * 1000  # though `a` is still at its chunk
        assert stuck.is_set()
        release.set()


def test_without_backup_nothing_is_done_twice() -> None:
    seen: list[int] = []

    def count(x: Tensor) -> Tensor:
        seen.extend(x.tolist())
        return x

    with Dispatcher(count, THREE, "finish_together", backup=False, cache=False) as dispatcher:
        for _ in range(5):
            seen.clear()
            dispatcher.run(torch.arange(500))
            assert sorted(seen) == list(range(500))


# -- what surrounds it


def test_a_report_a_trace_and_progress(tmp_path: Path) -> None:
    told: list[RunProgress] = []
    trace = tmp_path / "trace.json"
    with Dispatcher(lambda x: x, TWO, sizes=10, trace=trace, progress=told.append, cache=False) as dispatcher:
        with pytest.raises(InputError, match="nothing has run"):
            _ = dispatcher.report
        dispatcher.run(torch.rand(95))
        report = dispatcher.report
    assert report.items == sum(device.items for device in report.devices) == 95
    assert sum(device.chunks for device in report.devices) == 10
    assert told[-1].done == told[-1].total == 95
    events = json.loads(trace.read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert len(tasks) == 10
    assert {event["args"]["device"] for event in tasks} <= {"a", "b"}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in tasks)


def test_bad_arguments_are_refused() -> None:
    for wrong, match in (
        ({"mode": "both"}, "mode 'both'"),
        ({"on_error": "hope"}, "on_error 'hope'"),
        ({"sizes": -1}, "size >= 0"),
        ({"sizes": [1, 2]}, "expected 1 value for size"),
        ({"sizes": 8, "capacities": 4}, "capacity 4 is below size 8"),
        ({"policy": "finish_togther"}, "did you mean 'finish_together'"),
        ({"policy": "guided", "options": {"kk": 1}}, "no option 'kk'"),
        ({"backend": "threads"}, "did you mean 'thread'"),
        ({"devices": "cuda:99"}, "does not exist"),
        ({"devices": ["cpu", "cpu"]}, "given twice"),
        ({"devices": []}, "at least one device"),
        ({"devices": "gpu"}, "device 'gpu'"),
        ({"weight": 0.0}, "weight 0: expected more than 0"),
        ({"weight": "much"}, "weight 'much': expected more than 0"),
        ({"retries": -1}, "retries -1: expected 0 or more"),
        ({"retries": None}, "retries None: expected 0 or more"),
        ({"dim": 0.5}, "dim 0.5: expected a dimension, a whole number"),
        ({"pool": "cpu"}, "pool 'cpu': expected a dispatch.Pool"),
        ({"preprocess": 3}, "preprocess 3: expected a function"),
        ({"progress": "yes"}, "progress 'yes': expected a function"),
        ({"trace": 3}, "trace: expected a path, found 3"),
        ({"cache": 3}, "cache: expected a path, found 3"),
    ):
        with pytest.raises(DovetailError, match=match):
            Dispatcher(lambda x: x, **{"cache": False, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a function"):
        Dispatcher(3)


class Broken:
    """A policy that always declines."""

    def next(self, device: int, view: View) -> int:
        return 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_policy_that_always_declines_cannot_leave_work_behind(mode: Any) -> None:
    with Dispatcher(lambda x: x + 1, TWO, Broken(), mode=mode, cache=False) as dispatcher:
        assert dispatcher.run(torch.zeros(20)).tolist() == [1] * 20


def test_several_tasks_share_a_pool() -> None:
    results: dict[int, Tensor] = {}
    with Pool(TWO) as pool:

        def task(k: int) -> None:
            dispatcher = Dispatcher(lambda x: k * x, pool=pool, sizes=5, cache=False, weight=1.0 + k)
            for _ in range(5):
                results[k] = dispatcher.run(torch.arange(200))

        threads = [threading.Thread(target=task, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {k: found.tolist() for k, found in results.items()} == {k: [k * i for i in range(200)] for k in range(4)}


def test_the_one_that_had_less_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on one device, chunk by chunk, each of which takes a second: the heavier one gets twice the chunks."""
    order: list[str] = []
    monkeypatch.setattr("dovetail.dispatch.live.pool.perf_counter", lambda: float(len(order)))
    gate = threading.Event()

    def work(name: str) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            gate.wait()
            order.append(name)
            return x

        return call

    with Pool([Device("a", where="cpu")]) as pool:
        light = Dispatcher(work("light"), pool=pool, sizes=1, cache=False, weight=1.0)
        heavy = Dispatcher(work("heavy"), pool=pool, sizes=1, cache=False, weight=2.0)
        futures = [light.submit(torch.zeros(90)), heavy.submit(torch.zeros(90))]
        while len(pool.runs) < 2:
            pass
        gate.set()
        for future in futures:
            future.result()
        light.close()
        heavy.close()
    first = order[:90]
    assert (first.count("heavy"), first.count("light")) == (60, 30)


def test_threads_may_share_a_dispatcher() -> None:
    with Dispatcher(lambda x: x + 1, TWO, sizes=3, cache=False) as dispatcher:
        futures = [dispatcher.submit(torch.full((50,), float(k))) for k in range(8)]
        for k, future in enumerate(futures):
            assert future.result().tolist() == [k + 1.0] * 50


def test_devices_on_the_cpu_share_its_cores() -> None:
    """Each kernel of one would else wait for threads that are at another's."""
    cores = len(os.sched_getaffinity(0))

    def threads(batch: Any) -> Any:
        return torch.full((len(batch),), torch.get_num_threads())

    def new_thread() -> int:
        with ThreadPoolExecutor(1) as pool:
            return int(pool.submit(torch.get_num_threads).result())

    before = torch.get_num_threads(), new_thread()
    with Dispatcher(threads, TWO, cache=False, sizes=1) as both:
        assert set(both.run(torch.ones(8)).tolist()) == {max(1, cores // 2)}
        until(lambda: (torch.get_num_threads(), new_thread()) == before)  # when both have begun
    with Dispatcher(threads, [Device("own", where="cpu", threads=3)], cache=False, sizes=1) as own:
        assert set(own.run(torch.ones(8)).tolist()) == {3}
        assert new_thread() == before[1]
    assert (torch.get_num_threads(), new_thread()) == before


def test_a_program_that_closes_no_dispatcher_ends_quietly() -> None:
    program = """
import torch
from dovetail.dispatch import Device, Dispatcher
two = [Device("a", where="cpu"), Device("b", where="cpu")]
found = Dispatcher(torch.sin, two, cache=False, sizes=10)
print(len(found.run(torch.rand(100))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("100\n", "")
