"""Which load ahead of need a start finds."""

from __future__ import annotations

from dovetail.core.events import Prepare, PrepareEnded, Start
from dovetail.core.journal.preloads import Preloads


def order(id: int, kind: str = "llm", devices: tuple[int, ...] = (0,)) -> Prepare:
    return Prepare(id, kind, devices, 4.0, "soon")


def start(kind: str = "llm", devices: tuple[int, ...] = (0,), setup_s: float = 0.0) -> Start:
    return Start("q", "a", kind, devices, 0.0, 1.0, "ready", setup_s)


def test_a_start_finds_its_kind_on_its_devices_once() -> None:
    known: Preloads[str] = Preloads()
    known.begin(order(1, devices=(0, 1)), "wide")
    known.begin(order(2, "sdxl", (2,)), "other")
    assert known.find(start()) is None
    assert known.find(start("sdxl", (0, 1))) is None
    assert known.find(start(devices=(0, 1), setup_s=2.0)) == ("wide", True, True)
    assert known.find(start(devices=(0, 1))) is None  # the second beside it has company, and no load
    assert (len(known), known.begun, known.under_way) == (1, [1, 2], ["other"])
    assert known.end(PrepareEnded(1)) == ("wide", True)
    assert known.end(PrepareEnded(1)) is None


def test_one_that_is_over_is_of_use_unless_the_start_loads_all_the_same() -> None:
    for setup_s, used in ((0.0, True), (3.0, False)):
        known: Preloads[None] = Preloads()
        known.begin(order(1), None)
        assert known.end(PrepareEnded(1)) == (None, False)
        assert known.find(start(setup_s=setup_s)) == (None, False, used)


def test_one_that_failed_is_found_by_nobody_and_leaves_a_later_one() -> None:
    known: Preloads[int] = Preloads()
    known.begin(order(1), 1)
    known.begin(order(2), 2)
    assert known.end(PrepareEnded(1, "no memory")) == (1, True)  # another took its place
    assert known.find(start()) == (2, True, True)
    known.begin(order(3), 3)
    assert known.end(PrepareEnded(3, "no memory")) == (3, False)
    assert known.find(start()) is None
