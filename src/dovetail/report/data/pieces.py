"""Bars as compressed columns that a page keeps inside itself and its script reads back, one piece at a time.

A piece holds its bars in two parts: the names of its jobs, which a search goes through, and all else. A column has four
bytes for each bar, the first bytes of all together, then the second ones: so they compress well. Ends are steps from
one to the next in ticks of the piece; lengths, set-ups and waits are kept to one part in 65,000. What is common to many
bars (their devices; their kind, state and so on) stands in tables that columns point into.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64encode
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy

import numpy as np
from msgspec import Struct
from msgspec.json import encode as json
from numpy.typing import NDArray

from dovetail.core.resources import runs_of
from dovetail.report.data.bars import Bar

ROWS = 8192  # of a piece of the finest level
_TICKS = 2**24  # from the first to the last end in such a piece
_TICKS_WHOLE = 2**28
_MOST = 3e38  # that single precision can hold; a damaged journal may have more
_WHY = 500  # characters of a reason that are kept

On = Callable[[Sequence[int]], str]
"""What the devices of a bar are called together."""


class BarPiece(Struct, frozen=True):
    """Some bars. The first of them ends at `base_s`, the others whole ticks later."""

    count: int
    base_s: float
    tick_s: float
    names: bytes
    columns: bytes

    def texts(self) -> tuple[str, str]:
        """Both parts as text that can stand in a page."""
        return b64encode(self.names).decode(), b64encode(self.columns).decode()


class _Table:
    """Each entry once, by its number."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}

    def number(self, entry: Hashable) -> int:
        return self.places.setdefault(entry, len(self.places))


def encode(bars: Iterable[Bar], on: On, ticks: int = _TICKS_WHOLE) -> BarPiece:
    """A piece of these bars. One on devices that do not lie side by side is there once for each stretch of them."""
    jobs, strings, groups, alike = _Table(), _Table(), _Table(), _Table()
    whole, times = [], []
    stretches: dict[tuple[int, ...], list[int]] = {}  # of devices, by number
    for bar in sorted(bars, key=lambda bar: (bar.end_s, bar.start_s)):
        ran_s = bar.run_s if bar.merged > 1 else 0.0
        common = (strings.number(bar.kind), strings.number(bar.replaces), bar.tasks, bar.merged, bar.state)
        others = alike.number((*common, bar.place, bar.sharing))
        if bar.devices not in stretches:
            name = strings.number(on(bar.devices))
            stretches[bar.devices] = [groups.number((*stretch, name)) for stretch in runs_of(bar.devices)]
        task, why = strings.number(bar.task), strings.number(bar.why[:_WHY])
        for group in stretches[bar.devices]:
            times.append((bar.end_s, bar.end_s - bar.start_s, bar.setup_s, bar.wait_s, ran_s))
            known = len(jobs.places)
            back = known - jobs.number(bar.job)  # most are those of a moment ago; 0 is a new one
            whole.append((back, task, why, group, others))
    numbers, figures = np.array(whole, np.uint32).reshape(-1, 5), np.array(times, np.float64).reshape(-1, 5)
    ends = figures[:, 0]
    base_s, last_s = (float(ends[0]), float(ends[-1])) if whole else (0.0, 0.0)
    tick_s = (last_s - base_s) / ticks or 1e-9
    steps = np.diff(np.rint((ends - base_s) / tick_s).astype(np.uint32), prepend=np.uint32(0))
    columns = [steps, *(_rounded(column) for column in figures[:, 1:].T), *numbers.T]
    tables = json([list(table.places) for table in (strings, groups, alike)])
    body = [*(plane.tobytes() for column in columns for plane in _planes(column)), tables]
    return BarPiece(len(whole), base_s, tick_s, _compressed([json(list(jobs.places))]), _compressed(body))


def _rounded(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Single precision of which the last eight bits are left out, to the nearest."""
    bits = values.clip(-_MOST, _MOST).astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x80) & 0xFFFFFF00).astype(np.uint32)


def _planes(column: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return column.astype("<u4").view(np.uint8).reshape(-1, 4).T


def _compressed(parts: Sequence[bytes]) -> bytes:
    """Each part has a code of its own: what is frequent in one is not in the next."""
    packer = zlib.compressobj(9, memLevel=9, strategy=zlib.Z_FILTERED)
    return b"".join(packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts) + packer.flush()


class Kept(Struct, frozen=True):
    """A piece of the finest level, and from when to when its short bars reach."""

    from_s: float
    to_s: float
    piece: BarPiece


class Finest:
    """Every bar of a run as it came, in pieces that are packed as soon as they are full, up to `limit` bars.

    Beyond the limit there is no finest level, and `pieces` gives none.
    """

    def __init__(self, limit: int, on: On) -> None:
        self._left = limit
        self._on = on
        self._open: list[Bar] = []
        self._packed: list[tuple[BarPiece, array[float], array[float]]] = []

    def put(self, bar: Bar) -> None:
        self._left -= 1
        if self._left < 0:
            self._open.clear()
            self._packed.clear()
            return
        self._open.append(copy(bar))  # which may be merged with others elsewhere
        if len(self._open) == ROWS:
            self._pack()

    def pieces(self, short_s: float) -> list[Kept]:
        """All of them; where a piece reaches to, its bars of up to this length say: longer ones are drawn from afar
        too."""
        if self._open:
            self._pack()
        kept = []
        for piece, starts, ends in self._packed:
            near = [(start, end) for start, end in zip(starts, ends, strict=True) if end - start <= short_s]
            # Of long ones alone nothing is to be drawn; their names and figures can be found all the same.
            low, high = (
                min((start for start, _ in near), default=ends[0]),
                max((end for _, end in near), default=ends[0]),
            )
            kept.append(Kept(low, high, piece))
        return kept

    def _pack(self) -> None:
        starts, ends = array("d", (bar.start_s for bar in self._open)), array("d", (bar.end_s for bar in self._open))
        self._packed.append((encode(self._open, self._on, _TICKS), starts, ends))
        self._open = []
