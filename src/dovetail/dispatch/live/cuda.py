"""A CUDA device at work: a few slots, each with its stream, so that copies and kernels overlap.

`launch` only sends a chunk's inputs on their way; `collect` calls the function, oldest chunk first, and goes on to the
next one while the results of the oldest are still on their way back. So the copies are hidden also behind functions
that wait for the device themselves, as most solvers do. Kernels of different chunks overlap too (5 % on an H200), but
for a batch that is on the device already: there is nothing to hide there, and its chunks follow each other on one
stream as those of a loop do.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Event, Lock, get_ident
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import is_out_of_memory
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.inputs.host_memory import populate
from dovetail.dispatch.inputs.trees import leaves, mapped
from dovetail.dispatch.live.assembly import Preallocated
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.card import Card
from dovetail.dispatch.live.input_changes import called_again
from dovetail.dispatch.live.staging import Returning, StagingPool, is_staged, pinned_pool
from dovetail.dispatch.live.torch_threads import usable_cores, use_torch_threads
from dovetail.dispatch.live.worker import Ended

_COPY_THREADS = 8  # so many copy about as fast as a bus takes it; one does a fifth of that


class _Slot:
    """One chunk in flight: its stream, and what must live until it has ended.

    Slots are used again by later workers, for libraries keep memory for every stream that they meet.
    """

    _spare: ClassVar[dict[torch.device, list[_Slot]]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, card: Card) -> None:
        self.own = card.stream()
        self.stream = self.own  # of the chunk that it has now
        self.ended = card.event()
        self.marks = [card.event(enable_timing=True) for _ in range(4)]  # begin, inputs there, computed, end
        self.returning: dict[int, Returning] = {}
        self.clear()

    @classmethod
    def taken(cls, card: Card, count: int) -> list[_Slot]:
        with cls._lock:
            spare = cls._spare.setdefault(card.where, [])
            found, spare[:] = spare[:count], spare[count:]
        return found + [cls(card) for _ in range(count - len(found))]

    @classmethod
    def give_back(cls, card: Card, slots: Iterable[_Slot]) -> None:
        with cls._lock:
            cls._spare[card.where] += slots

    def clear(self) -> None:
        for each in self.returning.values():
            each.release()
        self.returning = {}
        self.run: BatchRun | None = None
        self.chunk: Chunk | None = None
        self.call: Callable[[Any], Any] | None = None
        self.work: Any = None
        self.result: Any = None
        self.computed = False


class CudaWorker:
    """Keeps up to `slots` chunks on one CUDA device."""

    late = True

    def __init__(self, device: NodeDevice, card: Card | None = None, pool: StagingPool | None = None) -> None:
        self.device = device
        self.slots = device.in_flight
        self.card = card or Card(device.place)
        self._pool = pool
        self._free: deque[_Slot] = deque()
        self._held: deque[_Slot] = deque()
        self._in_order: Any = None  # the stream of batches that are on the device
        self._whole: dict[int, Tensor] = {}
        self._call: Callable[[Any], Any] = lambda work: work
        self._begun: Event | None = None  # the run whose chunks come now, by its event
        # Copies of the host's memory are ours, whatever a DataLoader or torchrun left to threads that begin later: one.
        self._made_by, self._threads = (
            get_ident(),
            max(torch.get_num_threads(), min(_COPY_THREADS, usable_cores() // 2)),
        )

    def start(self) -> None:
        if get_ident() != self._made_by:  # the thread of a caller stays as it is
            use_torch_threads(self._threads)
        self.card.start()
        if self._pool is None:
            self._pool = pinned_pool()
        self._free.extend(_Slot.taken(self.card, self.slots))
        self._in_order = self._free[0].own

    def begin(self, run: BatchRun) -> None:
        self._call = run.call_on(self.device, moved=True)
        self._begun = run.ended
        with self.card.current():
            # What goes whole to every chunk is sent once, and has arrived before any stream needs it.
            self._whole = {id(leaf): leaf.to(self.card.where) for leaf in run.whole_leaves()}
            self.card.synchronize()

    def launch(self, chunk: Chunk) -> None:
        slot = self._free.pop()  # the one that was used last, for the memory that it has
        run: BatchRun = chunk.run
        try:
            slot.chunk, slot.run, slot.call = chunk, run, self._call
            slot.stream = self._in_order if self.card.has(run.home) else slot.own
            with self.card.within(slot.stream):
                if run.ready is not None:
                    slot.stream.wait_event(run.ready)
                self._mark(slot, 0)
                work = run.slice(chunk.start, chunk.stop)
                slot.work = work if run.calling.preprocess else self._moved(work, slot)
                if run.touches(self.device):
                    run.touched.append((chunk.start, chunk.stop))
                self._mark(slot, 1)
        except BaseException as error:
            self._release(slot, error)
            raise
        self._held.append(slot)

    def _moved(self, work: Any, slot: _Slot) -> Any:
        assert self._pool is not None
        pool, link = self._pool, self.card.link(slot.stream)

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if (whole := self._whole.get(id(leaf))) is not None:
                return whole
            if not is_staged(leaf) or (leaf.is_contiguous() and self.card.is_pinned(leaf)):
                return leaf.to(self.card.where, non_blocking=True)
            pool.send(leaf, there := self.card.empty(leaf), link)
            return there

        return mapped(move, work)

    def _compute(self, slot: _Slot) -> None:
        chunk, run, call = slot.chunk, slot.run, slot.call
        assert chunk is not None
        assert run is not None
        assert call is not None
        with ExitStack() as modes, self.card.within(slot.stream):
            if run.ended is not self._begun and run.modes is not None:  # the thread has those of another run by now
                run.modes.enter(modes)
            again = run.was_touched(chunk)  # only if a device worked in the batch's own memory
            moved = not self.card.has(run.home)
            slot.result = called_again(call, slot.work, chunk.error, moved) if again else call(slot.work)
            self._mark(slot, 2)
            if _comes_home(run):
                self._send_home(slot, slot.result)
            elif isinstance(run.output, Preallocated):
                run.output.write(chunk.start, chunk.stop, slot.result)
            else:
                slot.result = mapped(lambda leaf: _sent(leaf, run.home), slot.result)
            self._mark(slot, 3)
            slot.ended.record(slot.stream)
        slot.computed = True

    def _send_home(self, slot: _Slot, result: Any) -> None:
        """Begin to copy the tensors of a result to the host."""
        assert self._pool is not None
        link = self.card.link(slot.stream)
        for _, leaf in leaves(result):
            if self.card.is_made_here(leaf) and id(leaf) not in slot.returning:
                slot.returning[id(leaf)] = Returning(leaf, self._pool, link)

    def collect(self) -> list[Ended]:
        if not self._held:
            return []
        oldest = self._held[0]
        for slot in list(self._held):
            try:
                if not slot.computed:
                    self._compute(slot)
            except Exception as error:
                chunk = slot.chunk
                assert chunk is not None
                self._held.remove(slot)
                self._release(slot, error)
                return [(chunk, error)]
            if oldest.ended.query():
                break
        return [self._finished()]

    def _finished(self) -> Ended:
        slot = self._held.popleft()
        chunk, run = slot.chunk, slot.run
        assert chunk is not None
        assert run is not None
        try:
            if not slot.ended.query():
                _make_room(slot, chunk, run)
                slot.ended.synchronize()
            if run.claim(chunk):
                self._write(slot, chunk, run)
            self._tell_spans(slot)
        except Exception as error:
            self._release(slot, error)
            return chunk, error
        slot.clear()
        self._free.append(slot)
        return chunk, None

    def _write(self, slot: _Slot, chunk: Chunk, run: BatchRun) -> None:
        output, returning = run.output, slot.returning
        if not _comes_home(run):
            if not isinstance(output, Preallocated):  # where it is written to at once
                output.write(chunk.start, chunk.stop, slot.result)
            return
        places = output.places(chunk.start, chunk.stop, slot.result) if isinstance(output, Preallocated) else None
        if places is None or any(id(part) not in returning for part, _ in places):
            output.write(chunk.start, chunk.stop, mapped(lambda leaf: _arrived(leaf, returning), slot.result))
            return
        for part, there in places:
            returning[id(part)].into(there)

    def _release(self, slot: _Slot, error: BaseException) -> None:
        """Take a slot back whose chunk failed; after a lack of memory, nothing may hold on to any."""
        slot.clear()
        self._free.append(slot)
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)
            self.card.free_memory()

    def _mark(self, slot: _Slot, which: int) -> None:
        if slot.run is not None and slot.run.spans is not None:
            slot.marks[which].record(slot.stream)

    def _tell_spans(self, slot: _Slot) -> None:
        """When the chunk's copies and kernels ran, on the clock of the other rows."""
        if slot.run is None or slot.run.spans is None or self.card.zero is None:
            return
        zero, host_s = self.card.zero
        times = [host_s + zero.elapsed_time(mark) / 1000 for mark in slot.marks]
        assert slot.chunk is not None
        for name, begun_s, ended_s in zip(("copy in", "compute", "copy out"), times, times[1:], strict=False):
            slot.run.spans.append((slot.chunk.device, name, slot.chunk.start, begun_s, ended_s))

    def stop(self) -> None:
        _Slot.give_back(self.card, self._free)
        self._free.clear()
        self._whole = {}


def _make_room(slot: _Slot, chunk: Chunk, run: BatchRun) -> None:
    """Memory for what is on its way home: the host has nothing better to do before it comes."""
    places = run.output.places(chunk.start, chunk.stop, slot.result) if isinstance(run.output, Preallocated) else None
    if places is not None and _comes_home(run):
        for _, there in places:
            populate(there)
    elif places is None:
        for each in slot.returning.values():
            each.make_room()


def _comes_home(run: BatchRun) -> bool:
    """Whether results go to the host's memory."""
    return run.home is not None and run.home.type == "cpu" and run.calling.postprocess is None


def _arrived(leaf: Any, returning: dict[int, Returning]) -> Any:
    """A part of a result, on the host; what is more than its numbers, such as its graph, goes there by itself."""
    if (found := returning.get(id(leaf))) is not None:
        return found.own()
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


def _sent(leaf: Any, home: torch.device | None) -> Any:
    """On its way to where the batch is; what is there stays as it is."""
    return leaf.to(home, non_blocking=True) if isinstance(leaf, Tensor) and home is not None else leaf
