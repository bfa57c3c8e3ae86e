"""Rows told as single events: which, when, under which names; and what columns make no sense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Rows, Start
from dovetail.core.journal.rows import Unroller
from dovetail.core.words import Words

WORDS = Words(task="lease", device="accelerator")
FACTS = {"kinds": [["cnn", 1], "llm"], "why": ["its turn", "free"], "restart_s": 5.0}


def told(*rows: Rows, n: int = 1, t: float = 10.0, unroller: Unroller | None = None) -> list[tuple[float, Any]]:
    unroller = unroller or Unroller(WORDS, FACTS)
    return [each for row in rows for each in unroller.tell(n, t, row)]


ARRIVED = Rows(
    "arrived", {"id": [4, 5], "kind": [0, 1], "at_s": [7.5, 10.0], "name": ["", "bert"], "due_s": [None, 9.0]}
)


def test_arrivals_come_at_their_own_time_with_the_words_of_the_level() -> None:
    assert told(ARRIVED) == [
        (7.5, Arrived("job 4", "cnn", facts={"id": 4})),
        (10.0, Arrived("job 5 bert", "llm", due_s=9.0, facts={"id": 5})),
    ]


def test_a_stay_is_a_task_and_a_job_waits_from_its_arrival_or_its_last_stay() -> None:
    unroller = Unroller(WORDS, FACTS)
    first = Rows("started", {"id": [4], "devices": [[0, 1]], "why": [1]})
    _, _, (t, start) = told(ARRIVED, first, unroller=unroller)
    assert (t, start) == (10.0, Start("job 4", "lease 1", "cnn", (0, 1), 7.5, 0.0, "free", 5.0))
    assert told(Rows("stopped", {"id": [4]}), n=2, t=20.0, unroller=unroller) == [(20.0, Finished("job 4", "lease 1"))]
    again = Rows("started", {"id": [4], "devices": [[2]], "why": [0], "setup_s": [0.0]})
    ((_, second),) = told(again, n=3, t=25.0, unroller=unroller)
    assert second == Start("job 4", "lease 2", "cnn", (2,), 20.0, 0.0, "its turn")
    end = (
        Rows("stopped", {"id": [4]}),
        Rows("completed", {"id": [4]}),
        Rows("rejected", {"id": [5], "why": ["too wide"]}),
    )
    assert [event for _, event in told(*end, n=4, t=30.0, unroller=unroller)] == [
        Finished("job 4", "lease 2"),
        Complete("job 4"),
        Reject("job 5 bert", "too wide"),
    ]


def test_who_shares_devices_is_one_batch_and_others_are_not() -> None:
    columns = {"id": [4, 5], "devices": [[0], [0]], "why": [0, 0], "beside": [5, 4]}
    both = [event for _, event in told(ARRIVED, Rows("started", columns))][2:]
    assert both[0].batch == both[1].batch > 0
    assert both[0].why == "its turn; it shares with job 5 bert"
    alone = [event for _, event in told(ARRIVED, Rows("started", columns | {"beside": [-1, -1]}))][2:]
    assert [start.batch for start in alone] == [0, 0]


def test_a_stay_that_loses_its_device_has_failed_but_only_in_that_step() -> None:
    unroller = Unroller(WORDS, FACTS)
    begin = Rows("started", {"id": [4, 5], "devices": [[0], [1]], "why": [0, 0]})
    told(ARRIVED, begin, unroller=unroller)
    failed = Rows("failed", {"device": [1], "jobs": [[5]]})
    events = [event for _, event in told(failed, Rows("stopped", {"id": [5]}), n=2, unroller=unroller)]
    assert events == [failed, Failed("job 5 bert", "lease 1", "accelerator 1 failed")]
    told(Rows("started", {"id": [5], "devices": [[1]], "why": [0]}), n=3, unroller=unroller)
    ((_, end),) = told(Rows("stopped", {"id": [5]}), n=4, unroller=unroller)
    assert end == Finished("job 5 bert", "lease 2")


def test_a_whole_life_in_one_row() -> None:
    columns = {
        "job": ["x", "y"],
        "kind": ["call", 1],
        "devices": [[0], [1, 2]],
        "from_s": [1.0, 2.0],
        "to_s": [3.0, 2.5],
        "why": ["small", 1],
        "outcome": ["", "lost"],
        "items": [[0, 9], [9, 12]],
    }
    assert told(Rows("ran", columns)) == [
        (1.0, Arrived("x", "call", facts={"items": [0, 9]})),
        (1.0, Start("x", "lease", "call", (0,), 1.0, 2.0, "small")),
        (3.0, Finished("x", "lease")),
        (3.0, Complete("x")),
        (2.0, Arrived("y", "llm", facts={"items": [9, 12]})),
        (2.0, Start("y", "lease", "llm", (1, 2), 2.0, 0.5, "free")),
        (2.5, Failed("y", "lease", "lost")),
        (2.5, Reject("y", "lost")),
    ]
    *_, end, closed = told(Rows("ran", {**columns, "unused": [False, True]}))
    assert (end, closed) == ((2.5, Finished("y", "lease")), (2.5, Reject("y", "lost")))


def test_rows_that_only_the_level_knows_stay_rows() -> None:
    prices = Rows("prices", {"price": [1.0]})
    assert told(prices, t=3.0) == [(3.0, prices)]


@pytest.mark.parametrize(
    "rows",
    [
        Rows("arrived", {"id": [1], "kind": [2], "at_s": [0.0]}),
        Rows("arrived", {"id": [1], "kind": [-1], "at_s": [0.0]}),
        Rows("arrived", {"id": [1], "kind": [0], "at_s": ["now"]}),
        Rows("arrived", {"id": [1, 2], "kind": [0], "at_s": [0.0]}),
        Rows("started", {"id": [4], "devices": [[0]], "why": [0]}),
        Rows("started", {"id": [4], "devices": [0], "why": [0]}),
        Rows("stopped", {"id": [4]}),
        Rows("completed", {}),
        Rows("ran", {"id": [1], "kind": [0], "device": [0, 1], "from_s": [0.0], "to_s": [1.0]}),
        Rows("ran", {"id": [1], "kind": [0], "device": [0], "from_s": [0.0], "to_s": [1.0], "items": []}),
    ],
)
def test_columns_that_make_no_sense_are_refused(rows: Rows) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        told(rows)


@pytest.mark.parametrize("facts", [{"kinds": 3}, {"kinds": [[]]}, {"why": [1]}, {"restart_s": "x"}])
def test_facts_that_name_nothing_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        Unroller(WORDS, facts)
