"""Many small runs at once, and what must never hang: nested runs, readers that stop, devices and threads that die."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.core.errors import DovetailError
from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.batch import Pieces
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.live.pool import WorkerPool as Pool
from dovetail.dispatch.live.threads import HostWorker
from dovetail.dispatch.live.tuning_cache import TuningCache
from dovetail.dispatch.live.worker import Ended
from dovetail.dispatch.policies.base import DeviceState, View
from dovetail.dispatch.policies.finish_together import finish_s

POLICIES = ("fixed", "proportional", "guided", "factoring", "finish_together")
X = torch.arange(100.0)
HANG_S = 900.0  # so long no busy machine takes for any of this


def cpus(count: int) -> list[str | Device]:
    return [Device(f"cpu {i}", where="cpu") for i in range(count)]


def within(call: Callable[[], Any], seconds: float = HANG_S) -> Any:
    """What a call returns or raises; a failed test, not a hang, if it does neither for very long."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        pytest.fail(f"no end after {seconds} s")
    result, error = found[0]
    if error is not None:
        raise error
    return result


class Flawed:
    """Squares rows; on some devices it is slow now and then, lacks memory or fails, or the device goes away."""

    def __init__(self, random: Random, devices: int) -> None:
        flaws = ("", "slow", "memory", "error", "lost", "begin")
        self.flaws = [random.choice(("", "slow"))] + [
            random.choice(flaws) for _ in range(devices - 1)
        ]  # one device is always sound
        self.at = [random.randrange(1, 6) for _ in range(devices)]

    def on(self, device: Device) -> Callable[[Tensor], Tensor]:
        i = int(device.name.split()[1])
        flaw, at, calls = self.flaws[i], self.at[i], 0
        if flaw == "begin":
            raise ValueError("not on this one")

        def call(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if flaw == "slow" and calls % at == 0:
                time.sleep(0.001)
            if flaw == "memory" and len(x) > at:
                raise MemoryError
            if flaw == "error" and calls % at == 0:
                raise ValueError("now and then")
            if flaw == "lost" and calls == at:
                raise DeviceLostError("gone")
            return x * x

        return call


def one_run(random: Random, pool: Pool | None = None) -> None:
    count = random.randrange(1, 5) if pool is None else len(pool.devices)
    given: Any = {"devices": cpus(count), "mode": random.choice(("sync", "async"))} if pool is None else {"pool": pool}
    batch = torch.rand(random.choice((0, 1, 7, 100, 1000, 5000)), 2)
    dispatcher = Dispatcher(
        Flawed(random, count),
        policy=random.choice(POLICIES),
        sizes=random.choice((None, 1 + len(batch) // 50, 1 + len(batch) // 7)),
        retries=count,
        backup=random.random() < 0.5,
        weight=random.choice((0.5, 1.0, 3.0)),
        cache=False,
        **given,
    )
    with dispatcher:
        for _ in range(random.randrange(1, 4)):
            way = random.choice(("run", "submit", "ordered", "unordered", "generator", "left"))
            if way == "run":
                found = dispatcher.run(batch)
            elif way == "submit":
                found = dispatcher.submit(batch).result()
            elif way == "generator":
                found = dispatcher.run(iter(torch.split(batch, 1 + len(batch) // 9))) if len(batch) else batch
            elif way == "left":
                next(dispatcher.stream(batch), None)
                continue
            else:
                pieces = list(dispatcher.stream(batch, ordered=way == "ordered"))
                assert way == "unordered" or pieces == sorted(pieces, key=lambda piece: piece.start)
                pieces.sort(key=lambda piece: piece.start)
                assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
                found = torch.cat([piece.value for piece in pieces]) if pieces else batch
            assert torch.equal(found, batch * batch), way


@pytest.mark.parametrize("seed", range(8))
def test_random_runs_give_what_one_call_gives(seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        within(lambda: one_run(random))


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_share_a_pool(seed: int) -> None:
    """Ways to lose a device are left out: it would be lost to all."""
    random = Random(seed)
    errors: list[BaseException] = []

    class Sound(Flawed):
        def __init__(self, random: Random, devices: int) -> None:
            super().__init__(random, devices)
            self.flaws = [flaw if flaw in ("", "slow", "error", "memory") else "" for flaw in self.flaws]

    def task(seed: int, pool: Pool) -> None:
        try:
            mine = Random(seed)
            for _ in range(6):
                one_run(mine, pool)
        except BaseException as error:
            errors.append(error)

    with pytest.MonkeyPatch.context() as patch, Pool(cpus(3)) as pool:
        patch.setitem(globals(), "Flawed", Sound)
        threads = [threading.Thread(target=task, args=(random.random(), pool), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert not any(thread.is_alive() for thread in threads)
        assert not errors
    assert not pool.runs
    assert pool.holding == [[], [], []]


# -- ends


@pytest.mark.parametrize("ordered", [True, False])
def test_a_stream_goes_on_behind_what_failed(ordered: bool) -> None:
    def fails(x: Tensor) -> Tensor:
        if int(x[0]) % 10 == 0:
            raise ValueError("round")
        return x

    def read() -> list[int]:
        starts: list[int] = []
        with Dispatcher(fails, cpus(2), sizes=1, on_error="skip", cache=False) as dispatcher:
            with pytest.raises(ExceptionGroup, match="10 chunks"):
                starts.extend(piece.start for piece in dispatcher.stream(X, ordered=ordered))
            return starts

    starts = within(read)
    assert sorted(starts) == [i for i in range(100) if i % 10]
    assert not ordered or starts == sorted(starts)


def test_a_stream_does_not_lose_room_to_what_is_cut_and_done_again() -> None:
    """Ten halvings and more on the way down to one item."""

    def cramped(x: Tensor) -> Tensor:
        if len(x) > 1:
            raise MemoryError
        return x

    with Dispatcher(cramped, cpus(1), sizes=4096, cache=False) as dispatcher:
        assert within(lambda: sum(len(piece.value) for piece in dispatcher.stream(torch.arange(5000)))) == 5000


def test_a_stream_that_is_read_after_the_end_of_the_pool_says_so() -> None:
    with Dispatcher(lambda x: x, cpus(2), sizes=2, cache=False) as dispatcher:
        pieces = dispatcher.stream(X)
        next(pieces)
        while dispatcher.pool.waiting < 2:  # until there is no room for more
            pass
    with pytest.raises(DovetailError, match="closed"):
        within(lambda: list(pieces))


def test_closing_a_pool_during_a_run_is_told_to_the_run() -> None:
    begun, gate = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        begun.set()
        gate.wait(HANG_S)
        return x

    dispatcher = Dispatcher(wait, cpus(2), sizes=2, cache=False)
    future = dispatcher.submit(X)
    begun.wait()
    closing = threading.Thread(target=dispatcher.pool.close)
    closing.start()
    while not dispatcher.pool.closed:
        pass
    gate.set()
    with pytest.raises(DovetailError, match="closed") as told:
        future.result(HANG_S)
    closing.join(HANG_S)
    done = sum(row.stop - row.start for row in told.value.outcome.report.rows)  # type: ignore[attr-defined]
    assert 0 < done < 100
    dispatcher.close()


def test_a_closed_pool_takes_nothing_and_tears_down_once() -> None:
    torn: list[str] = []
    modes: list[Any] = ["sync", "async"]
    for mode in modes:
        pool = Pool(cpus(2), teardown=lambda device: torn.append(device.name))
        dispatcher = Dispatcher(lambda x: x, pool=pool, sizes=9, mode=mode, cache=False)
        dispatcher.run(X)
        pool.close()
        pool.close()
        with pytest.raises(DovetailError, match="closed"):
            dispatcher.run(X)
    assert sorted(torn) == ["cpu 0", "cpu 0", "cpu 1", "cpu 1"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_teardown_that_fails_is_raised_when_all_is_closed(count: int) -> None:
    def fail(device: Device) -> None:
        raise ValueError(device.name)

    dispatcher = Dispatcher(lambda x: x, cpus(count), sizes=9, teardown=fail, cache=False)
    dispatcher.run({"x": X})
    with pytest.raises((ValueError, ExceptionGroup)):
        dispatcher.close()
    assert not any(thread.is_alive() for thread in dispatcher.pool.threads)


def test_hooks_follow_the_thread() -> None:
    """On the calling thread first, then on one of its own: begun and ended on each."""
    told: list[tuple[str, int]] = []
    with Dispatcher(
        lambda x: x,
        sizes=9,
        cache=False,
        init=lambda device: told.append(("init", threading.get_ident())),
        teardown=lambda device: told.append(("teardown", threading.get_ident())),
    ) as dispatcher:
        dispatcher.run(X)
        assert len(list(dispatcher.stream(X))) == 12
        other = dispatcher.pool.threads[0].ident
    me = threading.get_ident()
    assert told == [("init", me), ("teardown", me), ("init", other), ("teardown", other)]


# -- what dies


@pytest.mark.parametrize("how", ["lost", "init"])
def test_all_jobs_of_a_pool_hear_of_a_device_that_is_gone(how: str) -> None:
    gate = threading.Event()

    def go(x: Any) -> Any:
        gate.wait(HANG_S)
        raise DeviceLostError("gone")

    pool = Pool(cpus(1), init=go if how == "init" else None)
    dispatchers = [Dispatcher(go, pool=pool, sizes=5, cache=False) for _ in range(5)]
    futures = [dispatcher.submit(X) for dispatcher in dispatchers]
    while len(pool.runs) < 5:
        pass
    gate.set()
    assert [type(future.exception(HANG_S)) for future in futures] == [DeviceLostError] * 5
    for dispatcher in dispatchers:
        dispatcher.close()
    pool.close()


@pytest.mark.parametrize("where", ["init", "call", "begin"])
def test_what_ends_a_thread_only_costs_the_device(where: str) -> None:
    def leave(device: Device) -> None:
        if device.name == "cpu 0":
            sys.exit(3)

    class Leaving:
        def on(self, device: Device) -> Callable[[Tensor], Tensor]:
            if where == "begin":
                leave(device)

            def call(x: Tensor) -> Tensor:
                if where == "call":
                    leave(device)
                return x

            return call

    with Dispatcher(Leaving(), cpus(2), sizes=5, init=leave if where == "init" else None, cache=False) as dispatcher:
        assert torch.equal(within(lambda: dispatcher.run(X)), X)
        assert torch.equal(within(lambda: dispatcher.run(X)), X)


def test_a_worker_that_breaks_only_costs_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = HostWorker.collect

    def collect(self: HostWorker) -> list[Ended]:
        if self.device.name == "cpu 1":
            raise RuntimeError("broken")
        return plain(self)

    monkeypatch.setattr(HostWorker, "collect", collect)
    with Dispatcher(lambda x: x + 1, cpus(2), sizes=5, cache=False) as dispatcher:
        outcome = within(lambda: dispatcher.attempt(X))
        assert torch.equal(outcome.unwrap(), X + 1)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_function_that_cannot_be_placed_on_a_device_moves(mode: Any) -> None:
    class Picky:
        def on(self, device: Device) -> Callable[[Tensor], Tensor]:
            if device.name == "cpu 0":
                raise ValueError("not there")
            return lambda x: x

    with Dispatcher(Picky(), cpus(2), sizes=5, mode=mode, cache=False) as dispatcher:
        assert torch.equal(within(lambda: dispatcher.run(X)), X)


def test_an_interrupt_on_the_calling_thread_leaves_every_device_free() -> None:
    calls = 0

    def interrupt(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return x

    with Dispatcher(interrupt, cpus(2), sizes=5, mode="sync", cache=False) as dispatcher:
        with pytest.raises(KeyboardInterrupt):
            dispatcher.run(X)
        assert dispatcher.pool.holding == [[], []]
        assert torch.equal(dispatcher.run(X), X)


def test_an_interrupt_while_threads_start_leaves_no_device_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == "dovetail cpu 1" and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        plain(self)

    interrupted: list[bool] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    with Dispatcher(lambda x: x, cpus(3), sizes=5, cache=False) as dispatcher:
        with pytest.raises(KeyboardInterrupt):
            dispatcher.run(X)
        assert torch.equal(within(lambda: dispatcher.run(X)), X)
        assert all(thread.is_alive() for thread in dispatcher.pool.threads)


# -- what would wait for itself


@pytest.mark.parametrize(("count", "mode"), [(1, "async"), (2, "async"), (2, "sync")])
def test_a_run_inside_a_run_of_the_same_pool_is_refused(count: int, mode: Any) -> None:
    def inner(x: Any) -> Any:
        return dispatcher.run((x["x"],))

    dispatcher: Dispatcher
    with Dispatcher(inner, cpus(count), sizes=5, mode=mode, cache=False) as dispatcher:
        with pytest.raises((DovetailError, ExceptionGroup)) as refused:
            within(lambda: dispatcher.run({"x": X}))
        assert "same pool" in str(getattr(refused.value, "exceptions", [refused.value])[0])


def test_a_generator_that_reads_from_the_same_pool_is_refused() -> None:
    with Pool(cpus(2)) as pool:
        first = Dispatcher(lambda x: x + 1, pool=pool, sizes=5, cache=False)
        second = Dispatcher(lambda x: 2 * x, pool=pool, sizes=7, cache=False)
        with pytest.raises(DovetailError, match="same pool"):
            within(lambda: second.run(piece.value for piece in first.stream(X)))
        begun = first.stream(X)
        next(begun)
        with pytest.raises(DovetailError, match="same pool"):
            within(lambda: second.run(piece.value for piece in begun))
    with Pool(cpus(1)) as pool:  # one of its own will do
        third = Dispatcher(lambda x: 2 * x, pool=pool, sizes=7, cache=False)
        with Dispatcher(lambda x: x + 1, cpus(2), sizes=5, cache=False) as fourth:
            assert torch.equal(within(lambda: third.run(p.value for p in fourth.stream(X))), 2 * (X + 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_threads() -> None:
    import signal

    with Dispatcher(lambda x: x, cpus(2), sizes=5, cache=False) as dispatcher:
        dispatcher.run(X)
        child = os.fork()
        if not child:
            signal.alarm(int(HANG_S))
            code = 1
            try:
                dispatcher.run(X)
            except DovetailError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def test_a_stream_that_nobody_reads_any_more_may_end_on_a_thread_that_has_the_lock() -> None:
    with Dispatcher(lambda x: x, cpus(2), sizes=5, cache=False) as dispatcher:
        pieces: Iterator[Any] | None = dispatcher.stream(X)
        next(pieces)  # type: ignore[arg-type]

        def drop() -> None:
            nonlocal pieces
            with dispatcher.pool.lock:
                pieces = None
                gc.collect()

        within(drop)
        assert torch.equal(dispatcher.run(X), X)  # and the pool is free for others


def test_the_end_is_found_however_late_the_clock_is() -> None:
    """A thousandth of the time left is below what a double can tell after months."""
    random = Random(0)
    curves = [Curve([(32, 2e-6), (4096, 1e-5)]), Curve([(32, 3e-6), (4096, 2e-5)])]

    def plan() -> None:
        for late_s in (1e6, 1e7, 1e8, 1e9):
            for _ in range(200):
                view = View([DeviceState(str(i), curve) for i, curve in enumerate(curves)], 10_000)
                view.remaining, view.now_s = random.randrange(1, 10_000), late_s + random.random()
                assert finish_s(view) >= view.now_s

    within(plan)


# -- what is left behind


def test_overlapping_pools_leave_the_switching_of_threads_as_it_was() -> None:
    before = sys.getswitchinterval()
    gates = [threading.Event(), threading.Event()]
    first = Dispatcher(lambda x: (gates[0].wait(HANG_S), x)[1], cpus(2), sizes=50, cache=False)
    second = Dispatcher(lambda x: (gates[1].wait(HANG_S), x)[1], cpus(2), sizes=50, cache=False)
    with first, second:
        futures = [first.submit(X), second.submit(X)]
        while not (first.pool.runs and second.pool.runs):
            pass
        assert sys.getswitchinterval() < before
        for gate, future in zip(gates, futures, strict=True):
            assert sys.getswitchinterval() < before
            gate.set()
            future.result(HANG_S)
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("ordered", [None, True, False])
def test_of_what_a_generator_gave_only_what_is_not_done_is_kept(ordered: bool | None) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def made() -> Iterator[Tensor]:
        nonlocal most
        for _ in range(50):
            piece = torch.ones(10)
            alive.append(weakref.ref(piece))
            most = max(most, sum(ref() is not None for ref in alive))
            yield piece

    with Dispatcher(lambda x: x + 1, cpus(1), sizes=10, cache=False) as dispatcher:
        batch = Pieces(made())
        if ordered is None:
            assert len(dispatcher.run(batch)) == 500
        else:
            assert sum(len(piece.value) for piece in dispatcher.stream(batch, ordered=ordered)) == 500
    assert most <= 3


def test_idle_workers_keep_no_batch_alive() -> None:
    with Pool(cpus(2)) as pool:
        batch = torch.ones(100)
        gone = weakref.ref(batch)
        dispatcher = Dispatcher(lambda x: x + 1, pool=pool, sizes=10, cache=False)
        dispatcher.run(batch)
        del dispatcher, batch
        while pool.waiting < 2:
            pass
        gc.collect()
        assert gone() is None


def test_a_calling_thread_keeps_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    during: list[int] = []
    devices: list[str | Device] = [Device("cpu 0", where="cpu", threads=before + 1)]

    def look(x: Tensor) -> Tensor:
        during.append(torch.get_num_threads())
        return x

    with Dispatcher(look, devices, sizes=9, cache=False) as dispatcher:
        dispatcher.run(X)
    assert set(during) == {before + 1}
    assert torch.get_num_threads() == before


def test_idle_workers_do_not_poll_for_a_reader_who_pauses() -> None:
    """A time to wake that is past must not keep workers awake that have nothing to give."""
    with Dispatcher(lambda x: x, cpus(2), sizes=1, cache=False) as dispatcher:
        pool = dispatcher.pool
        pieces = dispatcher.stream(X)
        next(pieces)
        while pool.waiting < 2:
            pass
        asked: list[Any] = []
        plain = pool.changed.wait

        def wait(timeout: float | None = None) -> bool:
            asked.append(timeout)
            return plain(timeout)

        pool.changed.wait = wait  # type: ignore[method-assign]
        with pool.lock:
            pool.runs[0].scheduler.wake_s = 0.0
            pool.changed.notify_all()
        while len(asked) < 2:
            pass
        assert asked[:2] == [None, None]
        assert len(list(pieces)) == 99


def test_a_device_that_was_busy_elsewhere_is_free_when_it_is() -> None:
    """Another run's chunk was expected to take a minute, and took none."""
    with Pool(cpus(2)) as pool:
        dispatcher = Dispatcher(lambda x: x, pool=pool, sizes=10, cache=False)
        source, spread = dispatcher._source((X,), {})
        states = [dispatcher.tuning.states(None) for _ in range(2)]
        run, other = (dispatcher._batch_run(source, dispatcher._output(source), spread, each) for each in states)
        chunk = Chunk(0, 10, 1)
        chunk.run, chunk.due_s = other, 160.0
        pool.holding[1].append(chunk)
        pool._tell_away(run, 100.0)
        state = run.scheduler.view.devices[1]
        assert (state.away, state.busy_until_s) == (True, 160.0)
        pool.holding[1].clear()
        pool._tell_away(run, 101.0)
        assert (state.away, state.free_s(101.0)) == (False, 101.0)


def test_threads_ask_what_is_known_while_others_learn() -> None:
    known = TuningCache(None, [Device("cpu")], [1], None)
    form, stop = "form", threading.Event()

    def learn() -> None:
        while not stop.is_set():
            known.learn(form, known.states(form))

    threads = [threading.Thread(target=learn, daemon=True) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(5000):
            assert len(known.states(form)) == 1
    finally:
        sys.setswitchinterval(before)
        stop.set()
        for thread in threads:
            thread.join(HANG_S)


def test_modes_are_taken_over_whatever_they_were() -> None:
    from contextlib import ExitStack

    from dovetail.dispatch.live.batch_run import Modes

    plain = Modes()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), ExitStack() as stack:
        plain.enter(stack)
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


def test_jobs_are_cancelled_whether_or_not_they_were_added() -> None:
    with Pool(cpus(1)) as pool:
        dispatcher = Dispatcher(lambda x: x, pool=pool, sizes=10, cache=False)
        source, spread = dispatcher._source((X,), {})
        states = dispatcher.tuning.states(None)
        run: BatchRun = dispatcher._batch_run(source, dispatcher._output(source), spread, states)
        pool.cancel(run)
        assert run.ended.is_set()


LEFT = """
import torch
from dovetail.dispatch import Device, Dispatcher

two = [Device(name, where="cpu") for name in "ab"]
for _ in range(6):
    dispatcher = Dispatcher(lambda x: torch.linalg.inv(torch.eye(6) + x[:, :, None]), two, sizes=2000, cache=False)
    for piece in dispatcher.stream(torch.rand(100_000, 6)):
        break
"""


def test_a_program_may_end_with_chunks_under_way() -> None:
    """Several times, for it takes some luck that a thread is inside PyTorch just then."""
    codes = [subprocess.run([sys.executable, "-c", LEFT], timeout=HANG_S, check=False).returncode for _ in range(4)]
    assert codes == [0] * 4


ABANDONED = """
import time
import torch
from dovetail.dispatch import Dispatcher

def teardown(device):
    time.sleep(0.5)  # the program comes to its end meanwhile
    torch.ones(3).sum()
    print("torn down")

dispatcher = Dispatcher(torch.neg, sizes=10, teardown=teardown, cache=False)
dispatcher.run(torch.ones(100))
del dispatcher
"""


def test_a_program_waits_for_the_end_of_a_pool_that_nobody_uses_any_more() -> None:
    command = [sys.executable, "-c", ABANDONED]
    ended = subprocess.run(command, timeout=HANG_S, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "torn down\n", "")
