"""Pinned memory between the host and its accelerators: a few blocks, made once, that the chunks of all runs go through.

A copy between ordinary memory and a device keeps the host waiting, unless it goes through memory that the system does
not move. To get such memory takes long, and others cannot use it, so there is a bounded number of blocks of one size:
a tensor goes piece by piece, and while one piece is on its way the host copies the next one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.host_memory import populate, with_large_pages

BLOCK_BYTES = 32 << 20  # 0.6 ms of a fast bus: long beside what a copy costs to begin
SHARE = 128  # of the machine's memory, the part that may be pinned
LEAST_BYTES = 64 << 20
_AHEAD = 4  # pieces on their way: more would only take more blocks


class CopyMark(Protocol):
    """A moment in the work of a device, as an event of CUDA is."""

    def query(self) -> bool: ...

    def synchronize(self) -> object: ...


class CopyLink(Protocol):
    """Copies to and from one device, which are done in the order in which they were begun."""

    def copy(self, to: Tensor, given: Tensor) -> None:
        """Begin to copy; between pinned memory and the device nobody waits for it."""

    def mark(self) -> CopyMark:
        """The moment when all that was begun is done."""


class PinnedBlock:
    """Some pinned memory, and when the copy that goes through it is done."""

    __slots__ = ("mark", "memory")

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.mark: CopyMark | None = None

    def alike(self, piece: Tensor) -> Tensor:
        """Room for a piece."""
        size = piece.numel() * piece.element_size()
        return self.memory[:size].view(piece.dtype).view(piece.shape)


class StagingPool:
    """Blocks of pinned memory, up to a bound. All that is here can be called by several threads."""

    def __init__(self, most_bytes: int, allocate: Callable[[int], Tensor], block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.made = 0  # blocks
        self._most = max(2, most_bytes // block_bytes)
        self._allocate = allocate
        self._free: list[PinnedBlock] = []
        self._sent: deque[PinnedBlock] = deque()  # free when their copies are done; the oldest first
        self._held = 0  # blocks with results, which somebody will fetch
        self._lock = Lock()

    def send(self, given: Tensor, to: Tensor, link: CopyLink) -> None:
        """Begin to copy a tensor of the host to one like it on a device; the host's may be changed afterwards."""
        for piece, there in zip(self._pieces(given), self._pieces(to), strict=True):
            block = self._for_sending()
            if block is None:
                link.copy(there, piece)
                continue
            link.copy(there, block.alike(piece).copy_(piece))
            self.free_after(block, link.mark())

    def _pieces(self, tensor: Tensor) -> Iterator[Tensor]:
        """Parts that fit into a block; one that fits as a whole is as it is."""
        size = tensor.element_size()
        if tensor.numel() * size <= self.block_bytes:
            return iter((tensor,))
        return iter(torch.split(tensor.contiguous().view(-1), self.block_bytes // size))

    def _for_sending(self) -> PinnedBlock | None:
        """A block that is free, or will be next; None if all wait to be fetched."""
        with self._lock:
            if self._sent and (mark := self._sent[0].mark) is not None and mark.query():
                return self._sent.popleft()
            if (block := self._spare(len(self._sent) < _AHEAD)) is not None or not self._sent:
                return block
            block = self._sent.popleft()
        assert block.mark is not None
        block.mark.synchronize()
        return block

    def hold(self) -> PinnedBlock | None:
        """A block for results, until it is given back; at most half of them, or nothing could be sent any more."""
        with self._lock:
            if 2 * self._held >= self._most:
                return None
            if self._sent and (mark := self._sent[0].mark) is not None and mark.query():
                block: PinnedBlock | None = self._sent.popleft()
            else:
                block = self._spare()
            self._held += block is not None
            return block

    def _spare(self, more: bool = True) -> PinnedBlock | None:
        """One that is free, or a new one."""
        if self._free:
            return self._free.pop()
        if not more or self.made >= self._most:
            return None
        try:
            block = PinnedBlock(self._allocate(self.block_bytes))
        except RuntimeError:  # the system gives no more
            self._most = max(2, self.made)
            return None
        self.made += 1
        return block

    def give_back(self, block: PinnedBlock, mark: CopyMark | None) -> None:
        """What was held is free, at once or after a mark."""
        with self._lock:
            self._held -= 1
            block.mark = mark
            self._free.append(block) if mark is None else self._sent.append(block)

    def free_after(self, block: PinnedBlock, mark: CopyMark) -> None:
        """A block is free when its copy is done."""
        with self._lock:
            block.mark = mark
            self._sent.append(block)


class Returning:
    """A tensor of a device on its way to the host: as many of its pieces at once as there are blocks for."""

    def __init__(self, tensor: Tensor, pool: StagingPool, link: CopyLink) -> None:
        self._tensor, self._pool, self._link = tensor, pool, link
        self._pieces = list(pool._pieces(tensor.contiguous()))
        self._blocks: list[PinnedBlock] = []
        for piece in self._pieces:
            block = pool.hold()
            if block is None:
                break
            link.copy(block.alike(piece), piece)
            self._blocks.append(block)
        self._mark = link.mark() if self._blocks else None
        self._arrived: Tensor | None = None
        self._room: Tensor | None = None

    def into(self, place: Tensor) -> None:
        """Wait for the tensor, and put it there."""
        if self._arrived is not None:  # it is in the result twice
            place.copy_(self._arrived)
            return
        self._arrived = place
        if self._mark is not None:
            self._mark.synchronize()
        if len(self._pieces) == 1:
            self._fetch(0, place)
            return
        whole = place if place.is_contiguous() else torch.empty(place.shape, dtype=place.dtype)
        for i, there in enumerate(self._pool._pieces(whole)):
            self._fetch(i, there)
        if whole is not place:
            place.copy_(whole)

    def _fetch(self, i: int, there: Tensor) -> None:
        piece = self._pieces[i]
        if i < len(self._blocks):
            there.copy_(self._blocks[i].alike(piece))
        elif self._blocks:  # there was no room for it: it goes through the first block, which has done its work
            self._link.copy(self._blocks[0].alike(piece), piece)
            self._link.mark().synchronize()
            there.copy_(self._blocks[0].alike(piece))
        else:
            self._link.copy(there, piece)
            self._link.mark().synchronize()

    def make_room(self) -> None:
        """Make the tensor that `own` gives, while it is on its way."""
        self._room = with_large_pages(torch.empty_like(self._tensor, device="cpu", requires_grad=False))
        populate(self._room)

    def own(self) -> Tensor:
        """Wait for the tensor: one with memory of its own, on the host."""
        if self._room is None:
            self.make_room()
        assert self._room is not None
        found, self._room = self._room, None
        self.into(found)
        return found

    def release(self) -> None:
        """Nobody needs the tensor any more, whether or not it has come."""
        done = self._mark is None or self._mark.query()
        for block in self._blocks:
            self._pool.give_back(block, None if done else self._mark)
        self._blocks = []


def is_staged(tensor: Any) -> bool:
    """Whether its numbers are all there is to a tensor of the host, so that they can be copied by hand."""
    if type(tensor) is not Tensor or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return not tensor.requires_grad and prod(tensor.shape) > 0


@cache
def pinned_pool() -> StagingPool:
    """The one of this process."""
    return StagingPool(pinned_bytes(), lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True))


def pinned_bytes() -> int:
    """How much may be pinned: $DOVETAIL_PINNED_MIB, else a share of the machine's memory."""
    if given := os.environ.get("DOVETAIL_PINNED_MIB"):
        if not given.isdecimal() or not int(given):
            raise InputError(f"DOVETAIL_PINNED_MIB={given}: expected a number of MiB")
        return int(given) << 20
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return max(LEAST_BYTES, memory // SHARE)
