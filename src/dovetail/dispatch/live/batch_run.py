"""One run of one batch: its scheduler, where items come from and go to, and how the function is called on a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, copy_context
from functools import partial
from math import inf
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dovetail.core.errors import InputError, is_out_of_memory
from dovetail.core.results.run import JournalFile
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.export import Span
from dovetail.dispatch.inputs.batch import Source, TreeBatch, WholeBatch
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.inputs.kinds import kind_of
from dovetail.dispatch.inputs.trees import leaves, mapped, parts_of
from dovetail.dispatch.live.assembly import BatchOutput
from dovetail.dispatch.live.compiled import CompiledSizes
from dovetail.dispatch.live.replicas import Replicas
from dovetail.dispatch.policies.floor import Way
from dovetail.dispatch.recording import BatchJournal
from dovetail.dispatch.scheduler import ChunkScheduler

Hook = Callable[[Any, NodeDevice], Any]
_AUTOCAST = ("cpu", "cuda")
NOWHERE = JournalFile(False)


class Modes:
    """What is kept per thread, as the caller had it: derivatives, inference, autocast, and the context variables.

    Other processes get none of the latter.
    """

    def __init__(self) -> None:
        self.context: Context | None = copy_context()
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = {kind: torch.get_autocast_dtype(kind) for kind in _AUTOCAST if torch.is_autocast_enabled(kind)}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "context": None}

    def enter(self, stack: ExitStack) -> None:
        if self.inference != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for kind in _AUTOCAST:
            if (dtype := self.autocast.get(kind)) is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))


def placed_on(function: Any) -> Callable[[NodeDevice], Callable[..., Any]]:
    """How to get the function on a device."""
    if isinstance(function, torch.nn.Module):
        function = Replicas(function)
    if hasattr(function, "on"):
        placed: Callable[[NodeDevice], Callable[..., Any]] = function.on
        return placed
    if not callable(function):
        raise InputError(f"expected a function, a module or an object with on(device), found {type(function).__name__}")
    return partial(_anywhere, function)


def _anywhere(function: Callable[..., Any], device: NodeDevice) -> Callable[..., Any]:
    """A plain function is the same on every device. Unlike a lambda, this can be sent to another process."""
    return function


class Calling(NamedTuple):
    """The function and its hooks, and how the arguments are spread: as one, or as positional and keyword ones."""

    place: Callable[[NodeDevice], Callable[..., Any]]
    preprocess: Hook | None
    postprocess: Hook | None
    spread: bool

    def on(self, device: NodeDevice, home: torch.device | None, moved: bool = False) -> Callable[[Any], Any]:
        """One call from the work of a chunk, as the source cut it or already on the device, to the result."""
        function, before, after = self.place(device), self.preprocess, self.postprocess
        if self.spread:
            plain = function

            def function(work: Any) -> Any:
                return plain(*work[0], **work[1])

        there = torch.device(device.place)
        if before is None and not moved and home is not None and home != there:
            function = _moving(function, there)
        if before is None and after is None:
            return function

        def call(work: Any) -> Any:
            result = function(before(work, device) if before else work)
            return after(result, device) if after else result

        return call


def _moving(function: Callable[[Any], Any], there: torch.device) -> Callable[[Any], Any]:
    def move(leaf: Any) -> Any:
        return leaf.to(there) if isinstance(leaf, Tensor) else leaf

    return lambda work: function(mapped(move, work))


class BatchRun:
    """What workers need for one run. The pool's lock guards the scheduler."""

    def __init__(
        self,
        source: Source,
        scheduler: ChunkScheduler,
        output: BatchOutput,
        calling: Calling,
        devices: list[NodeDevice],
        lock: AbstractContextManager[Any],
        weight: float = 1.0,
    ) -> None:
        self.source = source
        self.slice = source.slice
        self.forgets = not isinstance(source, WholeBatch)
        self.scheduler = scheduler
        self.output = output
        self.calling = calling
        self.devices = devices
        self.home = home_of(source)
        self.modes: Modes | None = None
        self.ended = Event()
        self.weight = weight
        self.used_s = 0.0  # device time it had, for a fair share among runs
        self.room: float = inf  # results that may wait for a reader
        self.begun_s = self.ended_s = 0.0
        self.spans: list[Span] | None = None  # when an accelerator copied and computed, if somebody wants to know
        self.way: Way | None = None  # which devices do it, if that was chosen
        self.told = ""  # and why
        self.cpu_s = 0.0  # of this process when it began
        self.file = NOWHERE
        self.record: Callable[[Event], BatchJournal] | None = None  # opens its journal
        self.journal: BatchJournal | None = None
        self.ready = _ready(self.home)
        self.touched: list[tuple[int, int]] = []  # ranges that the function was given in the batch's own memory
        self.sizes: CompiledSizes | None = None  # of what is compiled
        self._lock = lock
        self._calls: dict[str, Callable[[Any], Any]] = {}

    def begin_journal(self) -> None:
        """If there is to be a journal, it begins now."""
        if self.record is not None:
            self.journal, self.record = self.record(self.ended), None

    def begin_failed(self, device: int, begun_s: float, error: Exception) -> bool:
        """One call with all items has failed on a device, which began then; True if that is the end."""
        scheduler, self.begun_s = self.scheduler, begun_s
        items = self.source.total or 0
        chunk = scheduler.give(device, items, begun_s)
        assert chunk is not None
        self.touched.append((0, items))
        (scheduler.halved if is_out_of_memory(error) else scheduler.failed)(chunk, perf_counter(), error)
        return scheduler.finished

    def call_on(self, device: NodeDevice, moved: bool = False) -> Callable[[Any], Any]:
        """The function as it is called on a device, placed there once per run."""
        call = self._calls.get(device.name)
        if call is None:
            call = self.calling.on(device, self.home, moved)
            if self.modes is not None and self.modes.context is not None:
                call = _within(self.modes.context.copy(), call)  # two threads cannot be in one
            self._calls[device.name] = call
        return call

    def touches(self, device: NodeDevice) -> bool:
        """Whether the function gets the batch's own memory on a device, and not a copy."""
        if self.calling.preprocess is not None or self.home in (None, torch.device(device.place)):
            return True
        tree = getattr(self.source, "tree", None)  # only tensors are moved
        return any(kind_of(part) is not None and not isinstance(part, Tensor) for _, part in parts_of(tree))

    def was_touched(self, chunk: Chunk) -> bool:
        """Whether the function may have changed a chunk's items, in an attempt before this one."""
        return chunk.again and any(start < chunk.stop and chunk.start < stop for start, stop in self.touched)

    def whole_leaves(self) -> list[Tensor]:
        """The tensors that go whole to every chunk."""
        if not isinstance(self.source, TreeBatch):
            return []
        return self.source.whole()

    def claim(self, chunk: Chunk) -> bool:
        """Whether this result counts: it is the only one for its range, or the first."""
        if chunk.rival is None and not self.scheduler.backup:
            chunk.claimed = True
            return True
        with self._lock:
            return self.scheduler.claim(chunk)


def _within(context: Context, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda work: context.run(call, work)


def _ready(home: torch.device | None) -> Any:
    """An event after which a batch that is on a CUDA device may be read by other streams."""
    if home is None or home.type != "cuda":
        return None
    return torch.cuda.current_stream(home).record_event()


def home_of(source: Source) -> torch.device | None:
    """Where a batch's tensors are, and its results shall be; None when the source does not show any tensors."""
    tree = getattr(source, "tensor", getattr(source, "tree", None))
    return next((leaf.device for _, leaf in leaves(tree) if isinstance(leaf, Tensor)), None)
