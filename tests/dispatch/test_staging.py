"""Staging through pinned memory, and the CUDA worker around it, on a card that is only played by the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dovetail.core.errors import InputError
from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.live import staging
from dovetail.dispatch.live.cuda import CudaWorker
from dovetail.dispatch.live.staging import Returning, StagingPool
from dovetail.dispatch.live.worker import BACKENDS


class Lazy:
    """A stream that does nothing before somebody waits for it: what is overwritten too early shows as a wrong value."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], object]] = []
        self.done = 0

    def copy(self, to: Tensor, given: Tensor) -> None:
        self.begun.append(lambda: to.copy_(given))

    def mark(self) -> Moment:
        return Moment(self, len(self.begun))

    def work_until(self, number: int) -> None:
        while self.done < number:
            self.begun[self.done]()
            self.done += 1


class Moment:
    def __init__(self, stream: Lazy, number: int) -> None:
        self._stream, self._number = stream, number

    def query(self) -> bool:
        return self._stream.done >= self._number

    def synchronize(self) -> None:
        self._stream.work_until(self._number)


def plain(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=8)
TYPES = st.sampled_from([torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64])


@given(SHAPES, TYPES, st.integers(1, 12), st.booleans(), st.randoms())
def test_what_is_sent_arrives_whatever_the_blocks(
    shapes: list[tuple[int, int]], dtype: torch.dtype, blocks: int, turned: bool, random: Any
) -> None:
    pool = StagingPool(blocks * 64, plain, block_bytes=64)
    streams = [Lazy(), Lazy()]
    pairs = []
    for shape in shapes:
        given = torch.arange(shape[0] * shape[1]).reshape(shape).to(dtype)
        given = given.T if turned else given
        pairs.append((given.clone(), to := torch.empty(given.shape, dtype=dtype)))
        pool.send(given, to, random.choice(streams))
        given.zero_()  # it may be changed at once
    assert pool.made <= max(2, blocks)
    for stream in streams:
        stream.mark().synchronize()
    assert all(torch.equal(*pair) for pair in pairs)


@given(SHAPES, TYPES, st.integers(1, 12), st.booleans(), st.booleans())
def test_what_returns_arrives_whatever_the_blocks(
    shapes: list[tuple[int, int]], dtype: torch.dtype, blocks: int, turned: bool, own: bool
) -> None:
    pool = StagingPool(blocks * 64, plain, block_bytes=64)
    stream = Lazy()
    made = [torch.arange(a * b).reshape(a, b).to(dtype) for a, b in shapes]
    made = [each.T for each in made] if turned else made
    for each in made:
        pool.send(each, torch.empty(each.shape, dtype=dtype), stream)  # blocks that are on their way elsewhere
    coming = [Returning(each, pool, stream) for each in made]
    for each, one in zip(made, coming, strict=True):
        places = [torch.empty(each.shape, dtype=dtype), torch.empty(each.T.shape, dtype=dtype).T]
        for place in places:
            one.into(place)
        found = [one.own()] if own else places
        assert all(torch.equal(each, got) for got in found)
        one.release()
    assert pool.made <= max(2, blocks)
    assert pool._held == 0


def test_blocks_are_used_again_and_a_result_that_nobody_wants_harms_nobody() -> None:
    pool = StagingPool(4 * 64, plain, block_bytes=64)
    stream = Lazy()
    first = Returning(torch.ones(16), pool, stream)
    first.release()  # its copy has not been done: the block must not be overwritten by it later
    to = torch.empty(16)
    pool.send(torch.full((16,), 2.0), to, stream)
    stream.mark().synchronize()
    assert to.tolist() == [2.0] * 16
    for i in range(100):
        pool.send(torch.full((16,), float(i)), to, stream)
        stream.mark().synchronize()
        assert to[0] == i
    assert pool.made <= 2


def test_where_the_system_gives_no_pinned_memory_copies_go_without() -> None:
    def refuse(size: int) -> Tensor:
        raise RuntimeError("CUDA error: out of memory")

    pool, stream = StagingPool(1024, refuse, block_bytes=64), Lazy()
    given = torch.arange(100.0)
    pool.send(given, to := torch.empty(100), stream)
    returning = Returning(given, pool, stream)
    stream.mark().synchronize()
    assert torch.equal(to, given)
    assert torch.equal(returning.own(), given)


def test_how_much_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_PINNED_MIB", raising=False)
    assert staging.pinned_bytes() >= staging.LEAST_BYTES
    monkeypatch.setenv("DOVETAIL_PINNED_MIB", "96")
    assert staging.pinned_bytes() == 96 << 20
    for wrong in ("0", "many", "-3", "1.5"):
        monkeypatch.setenv("DOVETAIL_PINNED_MIB", wrong)
        with pytest.raises(InputError, match="expected a number of MiB"):
            staging.pinned_bytes()


# -- the worker, on a card that is played


class Played:
    """What `Card` is, on the host. Results are on the card; copies from there come when they are waited for."""

    zero = None

    def __init__(self) -> None:
        self.where = torch.device("cpu")

    def start(self) -> None:
        pass

    def stream(self) -> Lazy:
        return Lazy()

    def event(self, **_: bool) -> PlayedEvent:
        return PlayedEvent()

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        yield

    def current(self) -> Any:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def link(self, stream: Lazy) -> Any:
        return Prompt(stream)

    def has(self, home: torch.device | None) -> bool:
        return False

    def empty(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype)

    def is_made_here(self, leaf: Any) -> bool:
        return type(leaf) is Tensor and not leaf.requires_grad

    def is_pinned(self, leaf: Tensor) -> bool:
        return False

    def free_memory(self) -> None:
        pass


class PlayedEvent:
    """An event that has happened when somebody has waited for it."""

    moment: Moment | None = None

    def record(self, stream: Lazy) -> None:
        self.moment = stream.mark()

    def query(self) -> bool:
        return self.moment is None or self.moment.query()

    def synchronize(self) -> None:
        if self.moment is not None:
            self.moment.synchronize()


class Prompt(Lazy):
    """Copies to the card are done at once, for the function is; those from it when they are waited for."""

    def __init__(self, stream: Lazy) -> None:
        self._stream = stream
        self._sent: set[int] = set()

    def copy(self, to: Tensor, given: Tensor) -> None:
        self._stream.copy(to, given)
        if not any(to.untyped_storage().data_ptr() == block.data_ptr() for block in BLOCKS):
            self._stream.mark().synchronize()

    def mark(self) -> Moment:
        return self._stream.mark()


BLOCKS: list[Tensor] = []
POOL: list[StagingPool] = []


def remembered(size: int) -> Tensor:
    BLOCKS.append(plain(size))
    return BLOCKS[-1]


def make(device: Device, devices: list[Device]) -> CudaWorker:
    return CudaWorker(device, Played(), POOL[0])  # type: ignore[arg-type]


@pytest.fixture
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "thread", f"{__name__}:make")
    BLOCKS.clear()
    POOL[:] = [StagingPool(16 * 256, remembered, block_bytes=256)]


def three(x: Tensor) -> dict[str, Any]:
    return {"twice": 2 * x, "turned": (x + 1).T.contiguous().T, "sum": x.sum(1), "name": "same"}


@pytest.mark.usefixtures("_played")
@pytest.mark.parametrize("sizes", [None, 7, 50, 0])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_worker_gives_what_the_plain_call_gives(sizes: int | None, mode: Any) -> None:
    device = [Device("card", where="cpu", slots=3, emulated=True)]
    with (
        Dispatcher(three, device, sizes=sizes, mode=mode, cache=False) as dispatcher,
        Dispatcher(torch.square, device, sizes=sizes, mode=mode, cache=False) as single,
    ):
        for items in (1, 30, 500, 500, 500):
            x = torch.rand(items, 3)
            found, expected = dispatcher.run(x), three(x)
            assert found["name"] == "same"
            assert all(torch.equal(found[key], expected[key]) for key in ("twice", "turned", "sum"))
            assert torch.equal(single.run(x), x * x)
        if mode == "async":
            assert torch.equal(torch.cat([piece.value for piece in single.stream(x)]), x * x)
    assert POOL[0]._held == 0
    assert POOL[0].made <= 16


def test_a_worker_copies_with_several_threads_whatever_others_left_to_new_ones() -> None:
    """A DataLoader with pinned memory leaves one of PyTorch's threads to each thread that begins after it."""
    before, found = torch.get_num_threads(), dict[str, int]()

    def in_a_thread(do: Callable[[], object]) -> None:
        thread = Thread(target=do)
        thread.start()
        thread.join()

    def works() -> None:
        worker.start()
        found["worker"] = torch.get_num_threads()
        worker.stop()

    device = Device("card", where="cpu", slots=3, emulated=True)
    try:
        torch.set_num_threads(2)
        worker = CudaWorker(device, Played(), StagingPool(1024, plain, block_bytes=64))  # type: ignore[arg-type]
        in_a_thread(lambda: torch.set_num_threads(1))
        in_a_thread(works)
        in_a_thread(lambda: found.update(later=torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found["worker"] >= 2
    assert found["later"] == 1


@pytest.mark.usefixtures("_played")
def test_the_worker_keeps_graphs_and_gives_blocks_back_after_failures() -> None:
    device = [Device("card", where="cpu", slots=3, emulated=True)]

    def picky(x: Tensor) -> Tensor:
        if bool((x[:, 0] == 7).any()):
            raise ValueError("no seven")
        return 2 * x

    with Dispatcher(picky, device, sizes=5, cache=False, on_error="skip") as dispatcher:
        x = torch.arange(60.0).reshape(20, 3)
        x[12, 0] = 7
        outcome = dispatcher.attempt(x)
        assert outcome.missing == [(10, 15)]
        assert torch.equal(outcome.result[:10], 2 * x[:10])
    with Dispatcher(torch.square, device, sizes=6, cache=False) as graphs:
        y = torch.rand(20, 3, requires_grad=True)
        graphs.run(y).sum().backward()
        assert y.grad is not None
        assert torch.allclose(y.grad, 2 * y)
    assert POOL[0]._held == 0
