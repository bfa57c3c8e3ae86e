"""Cores one by one to whom they make fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from dovetail.host.program import Program


def give_where_it_gains(members: Sequence[Program], widths: dict[str, int], most: Mapping[str, int], left: int) -> None:
    """Add so many cores to `widths`, each where it adds most speed by the programs' own curves, the first of equals
    first; none where it adds nothing, or beyond the most of a program."""
    gains = [(-p.curve.gain(widths[p.id], most[p.id]), i, p) for i, p in enumerate(members)]
    heapify(gains)
    while left > 0 and gains and gains[0][0] < -1e-12:
        _, i, p = gains[0]
        widths[p.id] += 1
        left -= 1
        heapreplace(gains, (-p.curve.gain(widths[p.id], most[p.id]), i, p))
