"""A process per device, for functions that Python itself slows down: threads of one process would wait for each other.

Chunks and results go through shared memory. Each process has a second chunk waiting while it is at the first, so it
never waits for its next one. When a process dies, its chunks move to the other devices, and the next run has a new one.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.live.packing import Receiver, Sender
from dovetail.dispatch.live.remote import Orders, Remote, dumps, sendable
from dovetail.dispatch.live.worker import Ended, Worker

_SLOTS = 2
_BEGIN, _END, _HOOK = 255, 254, 253  # said in place of a slot's number
_GRACE_S = 5.0
_MUCH = 4096  # bytes, that a pipe takes whether or not anybody reads


class ProcessWorker:
    """The near end of a device's process, driven by one thread."""

    late = False

    def __init__(self, device: NodeDevice, threads: int = 0) -> None:
        self.device = device
        self.slots = device.slots or _SLOTS
        self._threads = threads
        self._process: Any = None
        self._held: dict[int, Chunk] = {}  # by slot, in the order of launching
        self._heard: deque[tuple[int, Any] | None] = deque()  # answers that had to be read before their time

    def start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        process = context.Process(
            target=_serve, args=(far, self.device, self._threads), name=f"dovetail {self.device.name}", daemon=True
        )
        resource_tracker.ensure_running()  # it would undo what follows
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores it
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        far.close()  # else the end of the process would go unseen
        self._orders = Orders(dumps)
        self._senders = [Sender() for _ in range(self.slots)]
        self._receivers = [Receiver() for _ in range(self.slots)]
        self._process = process
        if self._answer() is None:  # once it is ready, no chunk is charged for its imports
            raise self._lost()

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._process.pid)

    def revived(self) -> bool:
        """Start a new process if this one is gone; whether it was."""
        if self._process is not None and self._process.is_alive():
            return False
        self.start()
        return True

    def begin(self, run: BatchRun) -> None:
        order = self._orders.begin(run)
        if order is not None:
            self._tell(_BEGIN, order)

    def _tell(self, number: int, value: Any) -> None:
        message = _message(number, value)
        if len(message) > _MUCH:  # if the process has much to say too, both would wait for the other to read
            self._heard.extend([self._hear() for _ in range(len(self._held) - len(self._heard))])
        with suppress(OSError):  # a process that is gone is noticed when its chunks are collected
            self._near.send_bytes(message)

    def hook(self, function: Any, device: NodeDevice) -> None:
        """Call one of the user's hooks in the process."""
        self._tell(_HOOK, dumps(function))
        message = self._answer()
        if message is None:
            raise self._lost()
        if message[1] is not None:
            raise message[1]

    def launch(self, chunk: Chunk) -> None:
        slot = next(slot for slot in range(self.slots) if slot not in self._held)
        sender = self._senders[slot]
        try:
            self._tell(slot, sender.send(chunk.run.slice(chunk.start, chunk.stop)))
        except BaseException:
            sender.repeat()
            raise
        self._held[slot] = chunk

    def collect(self) -> list[Ended]:
        if not self._held:
            return []
        message = self._answer()
        if message is None:
            error = self._lost()
            chunks, self._held = list(self._held.values()), {}
            return [(chunk, error) for chunk in chunks]
        slot, answer = message
        chunk = self._held.pop(slot)
        if isinstance(answer, BaseException):
            return [(chunk, answer)]
        try:
            keep = not getattr(chunk.run.output, "copies", False)  # the next one will overwrite these bytes
            result = self._receivers[slot].receive(answer, keep=keep)
            if chunk.run.claim(chunk):
                chunk.run.output.write(chunk.start, chunk.stop, result)
        except Exception as error:
            return [(chunk, error)]
        return [(chunk, None)]

    def _answer(self) -> tuple[int, Any] | None:
        """Wait for what the process says; None if it is gone without a word."""
        return self._heard.popleft() if self._heard else self._hear()

    def _hear(self) -> tuple[int, Any] | None:
        try:
            return _heard(self._near)
        except (EOFError, OSError):
            return None
        except Exception:  # something that only the process knows; it counts on us to have understood
            self._process.kill()
            raise

    def _lost(self) -> DeviceLostError:
        self._process.join(timeout=_GRACE_S)
        code = self._process.exitcode
        how = (
            f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
        )
        return DeviceLostError(f"{self.device.name}: its process {how}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            self._near.send_bytes(_message(_END))
        process.join(timeout=_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        self._near.close()
        for sender in self._senders:
            sender.close()
        self._held.clear()
        self._heard.clear()


def _message(number: int, value: Any = None) -> bytes:
    """A number of one byte (the slot, or one of our words), and what goes with it if there is anything."""
    return bytes((number,)) if value is None else bytes((number,)) + pickle.dumps(value)


def _heard(connection: Connection) -> tuple[int, Any]:
    message = connection.recv_bytes()
    return message[0], pickle.loads(message[1:]) if len(message) > 1 else None


def _serve(near: Connection, device: NodeDevice, threads: int) -> None:
    """The process of a device."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that began the run says when to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    remote = Remote(device, threads)
    ends: dict[int, tuple[Receiver, Sender]] = {}
    wrong: BaseException | None = None
    with suppress(EOFError, OSError):  # the other end is gone: so is the reason to be here
        near.send_bytes(_message(_BEGIN))
        while True:
            slot, message = _heard(near)
            if slot == _END:
                break
            if slot == _BEGIN:
                wrong = _error_of(remote.begin, message)
                continue
            if slot == _HOOK:
                near.send_bytes(_message(slot, _error_of(lambda message: pickle.loads(message)(device), message)))
                continue
            receiver, sender = ends.setdefault(slot, (Receiver(), Sender()))
            try:
                if wrong is not None:
                    raise wrong
                answer = _message(slot, sender.send(remote.call(receiver.receive(message))))
            except BaseException as error:
                sender.repeat()
                answer = _message(slot, sendable(error))
            near.send_bytes(answer)


def _error_of(function: Callable[[bytes], None], argument: bytes) -> BaseException | None:
    try:
        function(argument)
    except BaseException as error:
        return sendable(error)
    return None


def make(device: NodeDevice, devices: list[NodeDevice]) -> Worker:
    """The worker for a device that has a process to itself; processes on the CPU share its cores."""
    threads = device.threads
    if not threads and device.kind == "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // len(devices))
    return ProcessWorker(device, threads)


class SharedCursor:
    """A cursor for several processes of one machine, each with a dispatcher of its own over the same batch.

    Give it to the processes when they are started, and to `stream` or `attempt` as `cursor`.

    >>> cursor = SharedCursor(10)
    >>> cursor.take(7), cursor.take(7), cursor.take(7), cursor.remaining
    ((0, 7), (7, 10), (10, 10), 0.0)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._at = multiprocessing.get_context("spawn").Value("q", 0)

    @property
    def remaining(self) -> float:
        return float(max(0, self.total - self._at.value))

    def take(self, n: int) -> tuple[int, int]:
        with self._at.get_lock():
            start = self._at.value
            stop = min(start + n, self.total)
            self._at.value = stop
        return start, stop
