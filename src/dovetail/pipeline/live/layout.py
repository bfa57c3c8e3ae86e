"""One layout of a stage: threads that receive, compute and send side by side, with bounded buffers between them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dovetail.pipeline.live.links import Channel, ClosedError, Inlet, Outlet
from dovetail.pipeline.live.quantise import decode, encode
from dovetail.pipeline.live.width import choose_bits
from dovetail.pipeline.live.wire import Beat, Connection, Items, StageJob, Trace, Trouble, Visit, WireMessage
from dovetail.pipeline.models.spec import one_line

if TYPE_CHECKING:
    from dovetail.pipeline.live.decoding import DecodeStep
    from dovetail.pipeline.models.spec import Value

_WINDOW = 8  # microbatches between two looks at the rate of a link


class Reports:
    """What a stage tells its coordinator. Any thread may; who is gone is not told."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._traces: deque[Trace] = deque()

    def tell(self, message: WireMessage) -> None:
        with suppress(OSError):  # the thread that receives ends the process
            self._control.send(message)

    def note(self, trace: Trace) -> None:
        """Something was computed: it goes with the next sign of life."""
        self._traces.append(trace)

    def beat(self, layout: Layout | None) -> None:
        traces = [self._traces.popleft() for _ in range(len(self._traces))]
        self.tell(Beat(0 if layout is None else layout.generation, traces))


class Layout:
    """Runs from the moment it is made until it is stopped or a connection breaks.

    Replicas take turns: microbatch n is for replica n mod replicas of every stage, so whoever receives knows from whom
    the next one comes, and order needs no sorting.
    """

    def __init__(
        self,
        job: StageJob,
        run: Callable[[Value, DecodeStep | None], Value],
        inlets: Sequence[Inlet],
        outlets: Sequence[Outlet],
        device: str,
        reports: Reports,
    ) -> None:
        self.generation = job.generation
        self._job, self._run, self._device = job, run, device
        self._inlets, self._outlets = inlets, outlets
        self._reports = reports
        self._stopped = False
        # What is received is bounded by what senders may send before a buffer is free.
        self._inbox: Channel[tuple[Items, Value, list[Visit], Inlet]] = Channel(job.buffers * len(inlets))
        self._outbox: Channel[tuple[Items, Value, list[Visit]]] = Channel(job.buffers)
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True, name=loop.__name__)
            for loop in (self._receive, self._compute, self._send)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close everything and wait until nothing runs any more."""
        self._stopped = True
        self._close()
        for thread in self._threads:
            thread.join()

    def _close(self) -> None:
        ends: list[Inlet | Outlet | Channel[Any]] = [*self._inlets, *self._outlets, self._inbox, self._outbox]
        for end in ends:
            end.close()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except ClosedError:
            pass
        except OSError as error:
            self._fail(str(error), fatal=False)
        except Exception as error:
            self._fail(one_line(error), fatal=True)

    def _fail(self, why: str, fatal: bool) -> None:
        if not self._stopped:
            self._stopped = True
            self._close()
            self._reports.tell(Trouble(self._job.generation, why, fatal))

    def _receive(self) -> None:
        job = self._job
        number = job.first + (job.place - job.first) % job.replicas
        with _own_stream(self._device) as wait_for_device:
            while True:
                inlet = self._inlets[number % job.senders]
                items, buffers = inlet.take(job.generation, number)
                visits = [*items.visits, inlet.visit(items, buffers)]
                value = decode(items.heads, buffers, items.single, self._device)
                wait_for_device()
                self._inbox.put((items, value, visits, inlet))
                number += job.replicas

    def _compute(self) -> None:
        job = self._job
        with _own_stream(self._device) as wait_for_device:
            while True:
                items, value, visits, inlet = self._inbox.get()
                start_s = time.monotonic()
                inlet.free()
                result = self._run(value, items.step)
                wait_for_device()  # before the input is let go: its memory belongs to another stream
                visits = [*visits, Visit(start_s, time.monotonic())]
                self._reports.note(Trace(job.generation, items.number, visits))
                self._outbox.put((items, result, visits))
                del value, result

    def _send(self) -> None:
        job, sent = self._job, 0
        with _own_stream(self._device) as wait_for_device:
            while True:
                taken, value, visits = self._outbox.get()
                number, single = taken.number, not isinstance(value, tuple)
                outlet = self._outlets[number % len(self._outlets)]
                heads, buffers = encode(value, outlet.bits, job.clip)
                wait_for_device()
                outlet.send(Items(job.generation, number, single, heads, visits, taken.step), buffers)
                sent += 1
                if job.budget_s is not None and sent % (_WINDOW * len(self._outlets)) == 0:
                    self._adapt(value, job.budget_s)

    def _adapt(self, value: Value, budget_s: float) -> None:
        tensors = value if isinstance(value, tuple) else (value,)
        full_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        full_bits = max((8 * t.element_size() for t in tensors if t.dtype.is_floating_point), default=32)
        for outlet in self._outlets:
            speed = outlet.measured()
            if speed.busy_s > 0:
                outlet.bits = choose_bits(outlet.bits, self._job.widths, full_bytes, full_bits, speed, budget_s)


@contextmanager
def _own_stream(device: str) -> Iterator[Callable[[], None]]:
    """On a CUDA device, a stream for this thread, so that copies in, kernels and copies out run side by side; gives a
    function that waits for what the thread has begun."""
    if not device.startswith("cuda"):
        yield lambda: None
        return
    import torch

    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield stream.synchronize
