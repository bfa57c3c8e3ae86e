"""Sizes where chunks overlap: a card with a copier for each way and one computer, in virtual time."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import pytest

from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.policies.base import DeviceState
from dovetail.dispatch.policies.finish_together import FinishTogether, _overlapping
from dovetail.dispatch.policies.floor import Floor, Way
from dovetail.dispatch.scheduler import ChunkScheduler

RUNS = 20


class VirtualCard(NamedTuple):
    """Seconds of each stage: a part for every call, and one for every item."""

    into: float
    call: float
    compute: float
    out: float

    def run(self, state: DeviceState, items: int) -> tuple[float, int]:
        """One batch, as the engine does it: how long it takes, and in how many chunks."""
        scheduler = ChunkScheduler(LocalCursor(0, items), FinishTogether(), [state], total=items, backup=False)
        held: list[tuple[Chunk, float]] = []
        now, served, chunks = 0.0, 0.0, 0
        copied_in = computed = copied_out = 0.0
        while not scheduler.finished:
            while len(held) < state.slots and (chunk := scheduler.take(0, now)) is not None:
                n, chunks = len(chunk), chunks + 1
                copied_in = max(now, copied_in) + n * self.into
                computed = max(copied_in, computed) + self.call + n * self.compute
                copied_out = max(computed, copied_out) + n * self.out
                held.append((chunk, copied_out))
            chunk, now = held.pop(0)
            scheduler.claim(chunk)
            scheduler.done(chunk, now, now - max(chunk.begun_s, served))
            served = now
        return now, chunks

    def in_chunks(self, items: int, chunks: int) -> float:
        """Equal chunks, all of which overlap."""
        n = items / chunks
        stages = n * self.into, self.call + n * self.compute, n * self.out
        return sum(stages) + (chunks - 1) * max(stages)


def settled(card: VirtualCard, items: int) -> tuple[list[float], list[Way]]:
    """What the runs of a fresh dispatcher take, and the ways they are done."""
    floor, known = Floor(), DeviceState("card", slots=3)
    took, ways = [], []
    for _ in range(RUNS):
        state = known.fork()
        way = floor.choose([state], items, [0])
        seconds, _ = card.run(state, items)
        floor.ended(way, items, seconds, probed=state.probed)
        known = state.fork()
        took.append(seconds)
        ways.append(way)
    return took, ways


@pytest.mark.parametrize(
    ("card", "items"),
    [
        (VirtualCard(into=6e-9, call=5e-4, compute=37e-9, out=1e-9), 1_048_576),  # an implicit update
        (VirtualCard(into=15e-6, call=2e-4, compute=5e-6, out=3e-8), 2048),  # pictures: the copies take longest
        (VirtualCard(into=2e-8, call=1e-2, compute=55e-6, out=2e-8), 4096),  # an encoder: nothing to hide
        (VirtualCard(into=1e-7, call=1e-4, compute=1e-7, out=1e-7), 1_000_000),  # all stages alike
    ],
)
def test_later_runs_overlap_as_far_as_it_pays(card: VirtualCard, items: int) -> None:
    took, ways = settled(card, items)
    best = min(card.in_chunks(items, chunks) for chunks in range(1, 65))
    usual = sorted(took[-9:])[4]
    assert usual <= card.in_chunks(items, 1) * 1.02, (took, ways)  # never slower than one call
    assert usual <= 1.03 * best, (took, best, ways)


@pytest.mark.parametrize(
    ("rate", "alone_s"),
    [(2_000.0, 0.055), (5_000.0, 0.055), (9_000.0, 0.055), (14_000.0, 0.055), (9_000.0, 0.3), (14_000.0, 0.3)],
)
def test_a_card_is_tried_without_the_processor_that_was_in_its_way(rate: float, alone_s: float) -> None:
    """Its curve was measured beside the processor, which takes the host's memory from its copies, and in runs that
    had to get their memory first."""
    floor, items, ways = Floor(runs=5), 2048, []
    for _ in range(40):
        states = [
            DeviceState("card", Curve.linear(1e-3, rate, 4096), slots=3),
            DeviceState("processor", Curve.linear(1e-3, 1_300.0, 256)),
        ]
        way = floor.choose(states, items, once=[0, 1])
        assert [state.out for state in states] == [i not in way.serving for i in range(2)]
        floor.ended(way, items, alone_s if way.serving == (0,) else 0.13)
        ways.append(way)
    alone = [way.serving == (0,) for way in ways]
    assert any(alone[:8]), ways
    assert all(alone[8:]) if alone_s < 0.13 else sum(alone) <= 6, ways  # who lost is looked at again, seldom


@pytest.mark.parametrize(
    ("call_s", "sizes"),
    [
        (1e-6, [171, 342, 512, 512, 256, 255]),  # nothing hides the first copy in, and what is done to the last chunk
        (1e-2, [512, 512, 512, 512]),  # each call costs more than what it would hide
    ],
)
def test_the_first_and_last_of_overlapping_chunks_are_small_where_calls_cost_little(
    call_s: float, sizes: list[int]
) -> None:
    state = DeviceState("card", Curve([(n, call_s + n * 1e-5) for n in (64, 512, 2048)]), slots=3)
    state.cuts = 4
    cursor, found = LocalCursor(0, 2048), []
    scheduler = ChunkScheduler(cursor, FinishTogether(), [state], total=2048, backup=False)
    while (chunk := scheduler.take(0, 0.0)) is not None:
        found.append(len(chunk))
        scheduler.claim(chunk)
        scheduler.done(chunk, 0.0, 1.0)
    assert found == sizes


@pytest.mark.parametrize("call_s", [1e-6, 0.1])
@pytest.mark.parametrize(("most", "total"), [(500, 2048), (600, 1400), (512, 2048), (1000, 1400), (1000, 700)])
def test_no_overlapping_chunk_is_larger_than_the_largest_that_is_trusted(call_s: float, most: int, total: int) -> None:
    state = DeviceState("card", Curve([(n, call_s + n * 1e-5) for n in (64, 512, 2048)]), slots=3)
    remaining, found = total, list[int]()
    while remaining > 0:
        found.append(min(ceil(_overlapping(state, most, total - remaining, remaining)), remaining))
        remaining -= found[-1]
    assert max(found) <= most, found
    if call_s == 0.1:  # each call costs more than it would hide: no more of them than need be
        assert len(found) == ceil(total / most)
