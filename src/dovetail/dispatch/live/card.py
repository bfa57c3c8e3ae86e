"""What a worker needs of a CUDA device: streams, events, memory, and copies between it and the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from dovetail.dispatch.live.torch_threads import usable_cores

_SPARE = 4  # cores for each device, with which a thread may wait for it awake: to be woken takes 0.3 ms and more


class Card:
    """One CUDA device. Tests have another one like it, which computes on the host."""

    def __init__(self, place: str) -> None:
        self.where = torch.device(place)
        self.zero: tuple[Any, float] | None = None  # an event, and what the host's clock said then
        self._sleeps = usable_cores() < _SPARE * torch.cuda.device_count()

    def start(self) -> None:
        """Called once, on the thread that works with it."""
        torch.cuda.set_device(self.where)
        torch.linalg.inv(torch.ones(1, 1, device=self.where))  # its lazy start is not safe in several threads at once
        zero = self.event(enable_timing=True)
        zero.record(torch.cuda.current_stream(self.where))
        zero.synchronize()
        self.zero = (zero, perf_counter())

    def stream(self) -> Any:
        return torch.cuda.Stream(self.where)  # type: ignore[no-untyped-call]

    def event(self, **options: bool) -> Any:
        return torch.cuda.Event(blocking=self._sleeps, **options)  # type: ignore[no-untyped-call]

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        """What is begun inside goes to this stream."""
        with torch.cuda.device(self.where), torch.cuda.stream(stream):
            yield

    def current(self) -> AbstractContextManager[None]:
        return torch.cuda.device(self.where)

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.where).synchronize()

    def link(self, stream: Any) -> StreamLink:
        return StreamLink(self, stream)

    def has(self, home: torch.device | None) -> bool:
        """Whether what is at home there is on this device."""
        return home == self.where

    def empty(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=self.where)

    def is_made_here(self, leaf: Any) -> bool:
        """Whether a part of a result is a tensor on this device, and nothing but numbers."""
        return type(leaf) is Tensor and leaf.is_cuda and leaf.layout is torch.strided and not leaf.requires_grad

    def is_pinned(self, leaf: Tensor) -> bool:
        return leaf.is_pinned()

    def free_memory(self) -> None:
        torch.cuda.empty_cache()


class StreamLink:
    """Copies on one stream."""

    def __init__(self, card: Card, stream: Any) -> None:
        self._card, self._stream = card, stream

    def copy(self, to: Tensor, given: Tensor) -> None:
        if torch.cuda.current_stream(self._card.where) == self._stream:  # to enter it again would take longer than this
            to.copy_(given, non_blocking=True)
            return
        with self._card.within(self._stream):
            to.copy_(given, non_blocking=True)

    def mark(self) -> Any:
        event = self._card.event()
        event.record(self._stream)
        return event
