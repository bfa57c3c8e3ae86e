"""A CUDA device at work: a few slots, each with its stream and pinned memory, so that copies and kernels overlap.

`launch` only sends a chunk's inputs on their way; `collect` calls the function, oldest chunk first, and goes on to the
next one while the results of the oldest are still on their way back. So the copies are hidden also behind functions
that wait for the device themselves, as most solvers do. Kernels of different chunks overlap too (5 % on an H200).
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Event, Lock
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.core.errors import is_out_of_memory
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.inputs.trees import mapped
from dovetail.dispatch.live.assembly import Preallocated
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.input_changes import called_again
from dovetail.dispatch.live.worker import Ended


class _Slot:
    """One chunk in flight: its stream, its pinned staging memory, and what must live until it has ended.

    Slots are used again by later workers, for libraries keep memory for every stream that they meet.
    """

    _spare: ClassVar[dict[int, list[_Slot]]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, where: torch.device) -> None:
        self.stream = torch.cuda.Stream(where)  # type: ignore[no-untyped-call]
        self.ended = _event(blocking=True)
        self.marks = [_event(enable_timing=True) for _ in range(4)]  # begin, inputs there, computed, end
        self.staging: list[Tensor] = []
        self.clear()

    @classmethod
    def taken(cls, where: torch.device, count: int) -> list[_Slot]:
        with cls._lock:
            spare = cls._spare.setdefault(where.index, [])
            found, spare[:] = spare[:count], spare[count:]
        return found + [cls(where) for _ in range(count - len(found))]

    @classmethod
    def give_back(cls, where: torch.device, slots: Iterable[_Slot]) -> None:
        with cls._lock:
            for slot in slots:
                slot.staging = []
                cls._spare[where.index].append(slot)

    def clear(self) -> None:
        self.run: BatchRun | None = None
        self.chunk: Chunk | None = None
        self.call: Callable[[Any], Any] | None = None
        self.work: Any = None
        self.result: Any = None
        self.computed = False

    def stage(self, leaf: Tensor, index: int) -> Tensor:
        """The leaf in pinned memory of this slot, which grows to what was needed most."""
        size = leaf.numel() * leaf.element_size()
        while len(self.staging) <= index:
            self.staging.append(torch.empty(0, dtype=torch.uint8))
        if self.staging[index].numel() < size:
            self.staging[index] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = self.staging[index][:size].view(leaf.dtype).view(leaf.shape)
        return there.copy_(leaf)


class CudaWorker:
    """Keeps up to `slots` chunks on one CUDA device."""

    late = True

    def __init__(self, device: NodeDevice) -> None:
        self.device = device
        self.slots = device.in_flight
        self.where = torch.device(device.place)
        self._free: deque[_Slot] = deque()
        self._held: deque[_Slot] = deque()
        self._whole: dict[int, Tensor] = {}
        self._call: Callable[[Any], Any] = lambda work: work
        self._begun: Event | None = None  # the run whose chunks come now, by its event
        self._zero: tuple[Any, float] | None = None

    def start(self) -> None:
        torch.cuda.set_device(self.where)
        torch.linalg.inv(torch.ones(1, 1, device=self.where))  # its lazy start is not safe in several threads at once
        self._free.extend(_Slot.taken(self.where, self.slots))
        zero = _event(enable_timing=True)
        zero.record(torch.cuda.current_stream(self.where))
        zero.synchronize()
        self._zero = (zero, perf_counter())

    def begin(self, run: BatchRun) -> None:
        self._call = run.call_on(self.device, moved=True)
        self._begun = run.ended
        with torch.cuda.device(self.where):
            # What goes whole to every chunk is sent once, and has arrived before any stream needs it.
            self._whole = {id(leaf): leaf.to(self.where) for leaf in run.whole_leaves()}
            torch.cuda.current_stream().synchronize()

    def launch(self, chunk: Chunk) -> None:
        slot = self._free.pop()  # the one that was used last, for the memory that it has
        run: BatchRun = chunk.run
        try:
            slot.chunk, slot.run, slot.call = chunk, run, self._call
            with torch.cuda.device(self.where), torch.cuda.stream(slot.stream):
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
        index = -1

        def move(leaf: Any) -> Any:
            nonlocal index
            if not isinstance(leaf, Tensor):
                return leaf
            if (whole := self._whole.get(id(leaf))) is not None:
                return whole
            if leaf.is_cpu and not (leaf.is_contiguous() and leaf.is_pinned()):
                index += 1
                leaf = slot.stage(leaf, index)
            return leaf.to(self.where, non_blocking=True)

        return mapped(move, work)

    def _compute(self, slot: _Slot) -> None:
        chunk, run, call = slot.chunk, slot.run, slot.call
        assert chunk is not None
        assert run is not None
        assert call is not None
        with ExitStack() as modes, torch.cuda.device(self.where), torch.cuda.stream(slot.stream):
            if run.ended is not self._begun and run.modes is not None:  # the thread has those of another run by now
                run.modes.enter(modes)
            again = run.was_touched(chunk)  # only if a device worked in the batch's own memory
            result = called_again(call, slot.work, chunk.error, self.where != run.home) if again else call(slot.work)
            self._mark(slot, 2)
            if isinstance(run.output, Preallocated):
                run.output.write(chunk.start, chunk.stop, result)
                slot.result = result
            else:
                slot.result = mapped(lambda leaf: _sent_home(leaf, run.home), result)
            self._mark(slot, 3)
            slot.ended.record(slot.stream)
        slot.computed = True

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
            slot.ended.synchronize()
            if run.claim(chunk) and not isinstance(run.output, Preallocated):
                run.output.write(chunk.start, chunk.stop, slot.result)
            self._tell_spans(slot)
        except Exception as error:
            self._release(slot, error)
            return chunk, error
        slot.clear()
        self._free.append(slot)
        return chunk, None

    def _release(self, slot: _Slot, error: BaseException) -> None:
        """Take a slot back whose chunk failed; after a lack of memory, nothing may hold on to any."""
        slot.clear()
        self._free.append(slot)
        if is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)
            torch.cuda.empty_cache()

    def _mark(self, slot: _Slot, which: int) -> None:
        if slot.run is not None and slot.run.spans is not None:
            slot.marks[which].record(slot.stream)

    def _tell_spans(self, slot: _Slot) -> None:
        """When the chunk's copies and kernels ran, on the clock of the other rows."""
        if slot.run is None or slot.run.spans is None or self._zero is None:
            return
        zero, host_s = self._zero
        times = [host_s + zero.elapsed_time(mark) / 1000 for mark in slot.marks]
        assert slot.chunk is not None
        for name, begun_s, ended_s in zip(("copy in", "compute", "copy out"), times, times[1:], strict=False):
            slot.run.spans.append((slot.chunk.device, name, slot.chunk.start, begun_s, ended_s))

    def stop(self) -> None:
        _Slot.give_back(self.where, self._free)
        self._free.clear()
        self._whole = {}


def _event(**options: bool) -> Any:
    return torch.cuda.Event(**options)  # type: ignore[no-untyped-call]


def _sent_home(leaf: Any, home: torch.device | None) -> Any:
    """On its way to where the batch is; PyTorch takes pinned memory for it, so that nobody waits."""
    if not isinstance(leaf, Tensor) or home is None:
        return leaf
    return leaf.to(home, non_blocking=True)
