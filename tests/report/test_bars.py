"""However long a run is, its bars stay few and lose nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.events import Finished, Start
from dovetail.core.resources import Pool
from dovetail.report.data.bars import FAILED, Bar, Bars, Shelf
from dovetail.report.data.timeline import Timeline


def bar(device: int, start: float, length: float, setup: float = 0.0, **more: Any) -> Bar:
    run = length - setup
    names = {"job": "w", "task": "p", "kind": "llm", "why": "", **more}
    return Bar((device,), start, setup, run, start + length, wait_s=0.0, longest_s=run, **names)


def fill(shelf: Shelf, count: int, devices: int = 4) -> None:
    for i in range(count):
        shelf.put(bar(i % devices, float(i // devices), 1.0, 0.25, kind=f"k{i % 3}"))


def test_few_bars_stay_as_they_are() -> None:
    shelf = Shelf(limit=100)
    fill(shelf, 100)
    bars = shelf.take()
    assert (len(bars), shelf.resolution_s) == (100, 0.0)
    assert [b.start_s for b in bars] == sorted(b.start_s for b in bars)


def test_many_bars_are_merged_and_no_second_is_lost() -> None:
    shelf = Shelf(limit=100)
    fill(shelf, 10_000)
    bars = shelf.take()
    assert 25 < len(bars) <= 100
    assert shelf.seen == sum(b.merged for b in bars) == 10_000
    assert sum(b.setup_s for b in bars) == pytest.approx(2_500)
    assert sum(b.run_s for b in bars) == pytest.approx(7_500)
    assert all(b.end_s - b.start_s <= 2 * shelf.resolution_s for b in bars)


def test_a_long_bar_is_never_merged() -> None:
    shelf = Shelf(limit=50)
    shelf.put(bar(0, 0.0, 5_000.0, job="long"))
    for i in range(1_000):
        shelf.put(bar(1, i * 5.0, 5.0))
    long = [b for b in shelf.take() if b.job == "long"]
    assert [(b.merged, b.end_s) for b in long] == [(1, 5_000.0)]


def test_a_merged_bar_is_named_after_its_longest_and_remembers_a_failure() -> None:
    shelf = Shelf(limit=2)
    shelf.put(bar(0, 0.0, 1.0, job="short", state=FAILED))
    shelf.put(bar(0, 1.0, 2.0, job="longest"))
    shelf.put(bar(0, 3.0, 1.0, job="last"))
    (one,) = shelf.take()
    assert (one.job, one.merged, one.tasks, one.state) == ("longest", 3, 3, FAILED)


def test_more_devices_than_bars_allowed_is_slow_for_nobody() -> None:
    shelf = Shelf(limit=10)
    fill(shelf, 4_000, devices=100)
    assert len(shelf.take()) <= shelf.limit


stretches = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e4), st.floats(0, 100)), max_size=120)


@given(stretches, st.integers(4, 30))
def test_merging_conserves_work(stretches: list[tuple[int, float, float]], limit: int) -> None:
    shelf = Shelf(limit)
    for device, start, length in stretches:
        shelf.put(bar(device, start, length))
    bars = shelf.take()
    assert sum(b.merged for b in bars) == len(stretches)
    assert sum(b.run_s for b in bars) == pytest.approx(sum(length for _, _, length in stretches), rel=1e-6, abs=1e-6)
    assert len(bars) <= max(limit, 2 * 4)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)), min_size=1, max_size=60))
def test_a_timeline_conserves_seconds_while_its_bins_widen(stretches: list[tuple[float, float]]) -> None:
    line = Timeline(rows=1)
    for start, length in stretches:
        line.add(0, start, start + length)
    end = max(start + length for start, length in stretches)
    strip = line.strip(end)
    (means,) = strip.means
    assert len(means) <= 400
    if end > 0:
        total = sum(means[:-1]) * strip.bin_s + means[-1] * (end - (len(means) - 1) * strip.bin_s)
        assert total == pytest.approx(sum(length for _, length in stretches), rel=1e-6, abs=1e-6)


def test_tasks_in_slots_lie_in_lanes_and_their_devices_are_used_once() -> None:
    """As many lanes are filled from the top as there are slots taken; who leaves makes room for who comes."""
    bars = Bars(Pool.parse("2", {}), "run")

    def start(job: str, setup_s: float = 0.0) -> Start:
        return Start(job, "a", "llm", (0, 1), 0.0, 5.0, "", setup_s, slots=4)

    assert list(bars.step(0.0, [start("x", 2.0), start("y", 2.0)])) == []
    (first,) = bars.step(3.0, [Finished("x", "a"), start("z")])
    assert (first.place, first.sharing, first.slot, first.whole) == (0, 4, 0, None)
    (second,) = bars.step(6.0, [Finished("y", "a")])
    assert (second.place, second.whole) == (1, None)
    (last,) = bars.step(9.0, [Finished("z", "a")])
    assert (last.place, last.slot) == (0, 0)
    assert last.whole is not None
    assert (last.whole.start_s, last.whole.setup_s, last.whole.run_s) == (0.0, 2.0, 7.0)


def test_many_slots_are_drawn_over_each_other() -> None:
    bars = Bars(Pool.parse("1", {}), "run")
    starts = [Start(f"r{i}", "a", "llm", (0,), 0.0, 5.0, "", slots=32) for i in range(32)]
    list(bars.step(0.0, starts))
    drawn = list(bars.step(5.0, [Finished(f"r{i}", "a") for i in range(32)]))
    assert {bar.sharing for bar in drawn} == {8}
    assert [bar.place for bar in drawn] == [i // 4 for i in range(32)]
