"""What live runs teach of rates and costs: what is told to the policy, what is guessed, what noise does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.live.jobs import CurrentLease, JobTable
from dovetail.cluster.live.learned import BESIDE, Knowledge, LearnedTable
from dovetail.cluster.live.measures import LeaseMeasures
from dovetail.cluster.live.wire import LeaseState, ProcessEvent
from dovetail.core.events import Rows

TYPES = ("fast", "slow")


def table(knowledge: Knowledge | None = None) -> LearnedTable:
    return LearnedTable(TYPES, knowledge or Knowledge())


def told(rows: list[Rows], of: str = "learned") -> dict[Any, float]:
    found: dict[Any, float] = {}
    for each in rows:
        if each.of == of:
            spread = each.columns.get("spread") or [False] * len(each.columns["kind"])
            keys = zip(each.columns["kind"], each.columns["on"], spread, strict=True)
            found |= dict(zip(keys, each.columns["rate"], strict=True))
    return found


def test_noise_is_not_told_and_a_change_is() -> None:
    learned, chance = table(), random.Random(1)
    learned.add("lm", [1])
    first = learned.see_rate(0, 0, 100.0)
    assert told(first)[0, 0, False] == 100.0
    rows = [learned.see_rate(0, 0, 100.0 * chance.uniform(0.97, 1.03)) for _ in range(500)]
    assert sum(map(len, rows)) == 0
    later = [told(learned.see_rate(0, 0, 150.0)) for _ in range(20)]
    moved = [each[0, 0, False] for each in later if each]
    assert 1 <= len(moved) <= 8  # on the way there, and not for ever
    assert moved[-1] == pytest.approx(150.0, rel=0.06)


def test_a_type_that_was_not_tried_is_guessed_by_the_ratio_of_types() -> None:
    learned = table()
    learned.add("a", [1])
    learned.see_rate(0, 0, 80.0), learned.see_rate(0, 1, 20.0)
    learned.add("b", [1])
    rows = learned.see_rate(1, 0, 8.0)
    assert told(rows)[1, 0, False] == 8.0
    assert told(rows)[1, 1, False] == pytest.approx(2.0, rel=1e-3)
    assert (0, 0, False) not in told(rows)  # what was measured is not moved by a guess
    again = learned.see_rate(1, 1, 3.0)
    assert told(again)[1, 1, False] == 3.0


def test_a_width_that_was_not_tried_is_guessed_from_others_of_its_model() -> None:
    learned = table()
    learned.add("a", [1])
    learned.see_rate(0, 0, 10.0), learned.see_rate(0, 1, 5.0)
    rows = learned.add("a", [2, 1, 4])
    name = "a at widths 1, 2, 4"
    assert [(each.columns["model"], each.columns["width"]) for each in rows] == [([name] * 3, [2, 1, 4])]
    np.testing.assert_allclose(rows[0].columns["alone"], [[20.0, 10.0], [10.0, 5.0], [40.0, 20.0]], rtol=1e-3)
    assert learned.add("a", [4, 2, 1]) == []
    assert learned.add("a", [4])[0].columns["model"] == ["a at width 4"]  # a rigid job is no choice of an elastic one
    assert [learned.place("a", 1), learned.place("a", 1, [1, 2, 4]), learned.place("a", 4)] == [0, 2, 4]
    moved = told(learned.see_rate(2, 0, 15.0))
    assert (moved[0, 0, False], moved[2, 0, False]) == (15.0 * 0.5 + 5.0, 15.0 * 0.5 + 5.0)  # alike by whatever name


def test_what_a_user_says_counts_until_it_is_measured() -> None:
    learned = table()
    rows = learned.add("a", [1], given={"fast": 40.0, "slow": 10.0})
    assert rows[0].columns["alone"] == [[40.0, 10.0]]
    assert told(learned.see_rate(0, 0, 30.0))[0, 0, False] == 30.0
    other = learned.add("b", [1], types=["slow"])
    assert other[0].columns["alone"][0][0] == 0.0  # it cannot run there
    assert other[0].columns["alone"][0][1] > 0


def test_over_several_servers_counts_apart() -> None:
    learned = table()
    learned.add("a", [2])
    rows = told(learned.see_rate(0, 0, 10.0))
    assert (rows[0, 0, False], rows[0, 0, True]) == (10.0, 10.0)  # nothing better is known
    assert told(learned.see_rate(0, 0, 6.0, spread=True)) == {(0, 0, True): 6.0}
    assert learned.see_rate(0, 0, 10.0) == []


def test_pairs_are_guessed_then_measured_and_told_to_who_packs() -> None:
    learned = table()
    learned.add("a", [1]), learned.add("b", [1]), learned.add("w", [2])
    learned.see_rate(0, 0, 10.0), learned.see_rate(1, 0, 20.0)
    assert not learned.packs
    rows = learned.all_pairs()
    c = rows[0].columns
    pairs = dict(zip(zip(c["kind"], c["beside"], c["on"], strict=True), c["rate"], strict=True))
    assert pairs[0, 1, 0] == pytest.approx(10.0 * BESIDE)
    assert (0, 2, 0) not in pairs  # of other width
    assert learned.all_pairs() == []
    measured = learned.see_pair(0, 1, 0, 9.0)
    assert (measured[0].of, measured[0].columns["rate"]) == ("learned_pairs", [9.0])
    assert learned.see_pair(0, 1, 0, 9.1) == []
    assert learned._shares()["a", "a"] == pytest.approx(0.905)  # it suffers little, as far as is known
    new = learned.add("c", [1])
    assert [each.of for each in new] == ["kinds", "learned_pairs"]
    alone = learned.see_rate(3, 0, 50.0)
    assert [each.of for each in alone] == ["learned", "learned_pairs"]  # guesses follow the rates alone


def test_costs_are_told_when_they_differ_by_more_than_nothing() -> None:
    learned = table()
    learned.add("a", [1])
    assert learned.see_cost(0, 0, 0.01) == []
    rows = learned.see_cost(0, 0, 8.0)
    assert rows[0].of == "costs"
    assert [bool(learned.see_cost(0, 0, rows[0].columns["restart_s"][0])) for _ in range(5)] == [False] * 5


def test_costs_are_told_by_kind_of_start_as_soon_as_both_are_known() -> None:
    learned = table()
    learned.add("a", [1])
    assert [each.columns for each in learned.see_cost(0, 0, 1.0, ahead=True)] == [
        {"kind": [0], "on": [0], "restart_s": [1.0]}  # nothing else is known of others
    ]
    assert [each.columns for each in learned.see_cost(0, 0, 8.0)] == [
        {"kind": [0], "on": [0], "restart_s": [8.0], "ahead": [False]}
    ]
    assert learned.see_cost(0, 0, 1.0, ahead=True) == []
    again = LearnedTable(TYPES, Knowledge.of(learned.knowledge.plain()))
    assert again.add("a", [1])[1].columns == {
        "kind": [0, 0],
        "on": [0, 0],
        "restart_s": [8.0, 1.0],
        "ahead": [False, True],
    }
    assert again.see_cost(0, 0, 8.0) == []


def test_what_is_known_is_known_in_the_next_journal() -> None:
    learned = table()
    learned.add("a", [1])
    learned.see_rate(0, 0, 50.0), learned.see_rate(0, 1, 10.0), learned.see_cost(0, 0, 3.0)
    again = LearnedTable(TYPES, Knowledge.of(learned.knowledge.plain()))
    rows = again.add("a", [1])
    assert [each.of for each in rows] == ["kinds", "costs"]
    assert rows[0].columns["alone"] == [[50.0, 10.0]]
    assert rows[1].columns["restart_s"] == [3.0]


def test_a_journal_that_is_gone_through_again_tells_nothing_twice() -> None:
    learned = table()
    rows = [*learned.add("a", [1]), *learned.see_rate(0, 0, 50.0), *learned.see_cost(0, 0, 3.0), *learned.all_pairs()]
    again = LearnedTable(TYPES, learned.knowledge)
    for each in rows:
        again.recall(each)
    assert again.add("a", [1]) == []
    assert again.see_rate(0, 0, 50.0) == []
    assert again.see_cost(0, 0, 3.0) == []
    assert again.all_pairs() == []


# --- which stretches of work tell something ---------------------------------------------------------------------


def measures(lease: CurrentLease) -> tuple[LeaseMeasures, JobTable]:
    jobs, learned = JobTable(TYPES), table()
    learned.add("a", [1])
    jobs.leases[7] = lease
    return LeaseMeasures(jobs, learned, round_s=10.0), jobs


def state(steps: int, seconds: float, epoch: int = 1, what: Any = "running") -> LeaseState:
    return LeaseState(7, epoch, what, steps, 0, seconds)


def test_a_stretch_begins_after_the_first_report_and_is_long_enough() -> None:
    found, jobs = measures(CurrentLease(0, epoch=1, on=0, holds=True))
    assert found.see(state(0, 0.0)) == []
    assert found.see(state(5, 4.0)) == []  # the first steps are slow, and are not counted
    assert found.see(state(15, 5.0)) == []  # too short
    assert told(found.see(state(25, 6.0)))[0, 0, False] == 10.0
    jobs.leases[7].epoch = 2
    assert found.see(state(95, 16.0)) == []  # of the lease before
    assert found.see(state(30, 1.0, 2)) == []
    assert told(found.see(state(50, 1.7, 2, "gone"))) != {}  # its last word counts if it is short
    assert found.see(LeaseState(8, 1, "running", 50, 0, 10.0)) == []


def test_company_that_changes_begins_a_new_stretch() -> None:
    found, jobs = measures(CurrentLease(0, epoch=1, on=0, holds=True))
    found.see(state(10, 1.0))
    jobs.leases[7].beside = 9
    assert found.see(state(100, 9.0)) == []
    assert found.see(state(120, 12.0)) == []  # nobody is known there
    jobs.leases[9] = CurrentLease(0, epoch=4, on=0, holds=True)
    assert found.see(state(140, 15.0)) == []  # and now somebody who does not work yet
    found.see(LeaseState(9, 4, "running", 1, 0, 0.1))
    assert found.see(state(150, 16.0)) == []
    rows = found.see(state(170, 19.0))
    assert [(each.of, each.columns["rate"]) for each in rows] == [("learned_pairs", [20 / 3])]
    found.see(LeaseState(9, 4, "gone", 1, 0, 0.1))
    assert found.see(state(200, 25.0)) == []


def test_a_start_costs_from_go_to_the_first_step_and_the_last_save() -> None:
    found, _ = measures(CurrentLease(0, epoch=1, on=0, holds=True))

    def happened(name: str, at: float, rank: int = 0) -> list[Rows]:
        return found.see(ProcessEvent(7, 1, rank, name, at))

    assert happened("go", 100.0) == happened("go", 90.0, rank=1) == []
    assert happened("first_step", 102.0)[0].columns["restart_s"] == [2.0]
    assert happened("first_step", 109.0) == []
    happened("save_begin", 110.0), happened("save_end", 110.5)
    found._events.clear()
    found._epochs.clear()
    happened("go", 120.0)
    assert found._saves_s == {(0, 0): 0.5}
    rows = happened("first_step", 150.0)
    assert rows[0].columns["restart_s"][0] <= 9.0  # a restart is never told as longer than a round


def test_a_type_that_nobody_was_on_is_taken_for_a_little_better_than_the_best() -> None:
    learned = LearnedTable(("fast", "slow", "new"), Knowledge())
    learned.add("a", [1])
    rows = told(learned.see_rate(0, 1, 10.0))
    assert rows[0, 0, False] > 10.0  # so that it is tried when it is free
    assert rows[0, 2, False] > 10.0
    rows = told(learned.see_rate(0, 0, 40.0))
    assert rows[0, 2, False] > 40.0
    learned.see_rate(0, 2, 5.0)
    np.testing.assert_allclose(learned.guessed([0])[0], [40.0, 10.0, 5.0], rtol=1e-6)


def test_a_thousand_models_are_learned_of_in_little_time() -> None:
    learned = table()
    for i in range(1000):
        learned.add(f"m{i}", [1])
    assert learned._fitted is not None  # what is guessed is not computed for each of them
    assert len(learned.kinds) == 1000
