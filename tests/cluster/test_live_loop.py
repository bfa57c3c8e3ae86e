"""Rounds on wall-clock time, step by step: what comes in, what is decided, what is carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.cluster.live.loop import LiveLoop, RowsInbox
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.leases import HeldLease
from dovetail.cluster.rounding.replayed import as_read
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError, ReplayError
from dovetail.core.events import Rows
from tests.cluster.conftest import Make, Table

RULES = RoundRules(round_s=100.0, restart_s=10.0, decide_at=0.5)
TWO = Table({0: [0.6, 0], 1: [0.4, 0]})


def arrived(*ids: int) -> Rows:
    count = len(ids)
    return Rows("arrived", {"id": [*ids], "kind": [0] * count, "steps": [4000.0] * count})


class Carried:
    """An executor that only remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, list[str], float]] = []
        self.restored: dict[int, HeldLease] = {}

    def carry(self, rows: Sequence[Rows], now: float, ends_s: float) -> None:
        self.steps.append((now, [each.of for each in rows], ends_s))

    def restore(self, leases: Mapping[int, HeldLease], now: float, ends_s: float, drained: Iterable[int]) -> None:
        self.restored = dict(leases)

    def close(self) -> None:
        pass


class Script(RowsInbox):
    """What happens at which second; time jumps there, or to when the loop wants to be woken, each time too late."""

    def __init__(self, happens: Sequence[tuple[float, Rows]], late_s: float = 0.0, until_s: float = 1e9) -> None:
        super().__init__()
        self._happens, self._late_s, self._until_s = list(happens), late_s, until_s
        self.now = 0.0

    def take(self, timeout_s: float | None) -> list[Rows] | None:
        due_s = self.now + timeout_s + self._late_s if timeout_s is not None else float("inf")
        next_s = self._happens[0][0] if self._happens else float("inf")
        self.now = min(due_s, next_s)
        if self.now > self._until_s:
            return None
        return [self._happens.pop(0)[1] for _ in list(self._happens) if self._happens[0][0] <= self.now]


class Kept:
    """An observer that keeps steps as a journal has them."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, list[Rows]]] = []

    def step(self, n: int, t: float, events: Sequence[Rows]) -> None:
        self.steps.append((n, t, as_read(list(events))))


def run(
    make_setup: Make, happens: Sequence[tuple[float, Rows]], late_s: float = 0.0, until_s: float = 290.0
) -> tuple[Carried, Kept, LiveLoop]:
    inbox, kept, carried = Script(happens, late_s, until_s), Kept(), Carried()
    loop = LiveLoop(
        Rounds(make_setup([], counts=(1, 0)), TWO, RULES, reported=True), carried, lambda: inbox.now, [kept], inbox
    )
    loop.run()
    return carried, kept, loop


def test_the_next_round_is_decided_at_half_time_and_told(make_setup: Make) -> None:
    """Two jobs for one accelerator take turns; who will stop and who will begin is known half a round ahead."""
    carried, kept, _ = run(make_setup, [(0.0, arrived(0, 1))], until_s=110.0)
    assert carried.steps == [
        (0.0, ["arrived", "envy", "started"], 100.0),
        (50.0, ["due", "planned"], 200.0),
        (100.0, ["due", "stopped", "started"], 200.0),
    ]
    planned, started = kept.steps[1][2][1], kept.steps[2][2][2]
    assert planned.columns == {"id": [0, 1], "on": [-1, 0], "devices": [[], [0]], "epoch": [1, 1]}
    assert (started.columns["id"], started.columns["devices"], started.columns["epoch"]) == ([1], [[0]], [1])


def test_who_would_follow_is_told_as_soon_as_a_job_is_about_to_end(make_setup: Make) -> None:
    """And begins there at the price of a start that was planned ahead; before, the job had long to go."""
    rules, first = replace(RULES, spares=True), Table({0: [1, 0], 1: [0, 0]})
    rounds = Rounds(make_setup([], counts=(1, 0)), first, rules, reported=True)

    def step(now: float, *rows: Rows) -> dict[str, dict[str, Any]]:
        return {each.of: each.columns for each in as_read(rounds.handle(rows, now))}

    come = arrived(0, 1)
    costs = records.costs([0], [0], [1.0], [True])
    begun = step(0.0, costs, Rows("arrived", come.columns | {"at_s": [0.0, 0.0]}))
    assert begun["started"]["setup_s"] == [10.0]
    assert "spares" not in begun
    step(30.0, records.progress([0], [1], [3900.0], [0.0]))  # of 4000, at 4 a second
    assert step(50.0, records.due("plan"))["spares"] == {"id": [1], "devices": [[0]], "epoch": [1]}
    followed = step(56.0, records.completed([0], [56.0]))
    assert (followed["started"]["id"], followed["started"]["setup_s"]) == ([1], [1.0])


def test_work_is_what_was_reported(make_setup: Make) -> None:
    """Not what the rate would have given; and what comes after the end of a lease counts for the job."""
    told = [
        (0.0, arrived(0, 1)),
        (60.0, records.progress([0], [1], [50.0], [0.0])),
        (103.0, records.progress([0], [1], [70.0], [70.0])),
        (130.0, records.progress([1], [1], [5.0], [5.0])),
        (140.0, records.progress([0], [0], [999.0], [999.0])),  # nobody of that epoch may say anything any more
    ]
    _, kept, loop = run(make_setup, told, until_s=145.0)
    stopped = [rows.columns for _, _, step in kept.steps for rows in step if rows.of == "stopped"]
    assert [columns["steps"] for columns in stopped] == [[50.0]]
    assert loop.rounds.jobs.left(140.0).tolist()[0] == 3930.0
    assert sum(rows.of == "progress" for _, _, step in kept.steps for rows in step) == 3


@pytest.mark.parametrize(("late_s", "ends"), [(5.0, [200.0, 300.0]), (20.0, [200.0, 300.0]), (40.0, [240.0, 380.0])])
def test_a_loop_that_is_a_little_late_keeps_pace_and_one_that_is_very_late_begins_anew(
    make_setup: Make, late_s: float, ends: list[float]
) -> None:
    """Up to a fifth of a round late, the next round ends when it would have; later than that, it has its full length:
    no round is shorter than four fifths."""
    rounds = Rounds(make_setup([], counts=(1, 0)), TWO, RULES, reported=True)
    rounds.handle([Rows("arrived", arrived(0, 1).columns | {"at_s": [0.0, 0.0]})], 0.0)
    found = []
    for _ in range(2):
        due_s = rounds.next_round_s
        rounds.handle(rounds.due(due_s - 50.0), due_s - 50.0)
        rounds.handle(rounds.due(due_s + late_s), due_s + late_s)
        found.append(rounds.next_round_s)
    assert found == ends


def test_a_restart_follows_what_was_decided_and_finds_its_leases(make_setup: Make) -> None:
    _, kept, before = run(make_setup, [(0.0, arrived(0, 1)), (60.0, records.progress([0], [1], [50.0], [50.0]))], 3.0)
    inbox, carried, more = Script([], until_s=500.0), Carried(), Kept()
    inbox.now = 431.0
    again = LiveLoop(
        Rounds(make_setup([], counts=(1, 0)), TWO, RULES, reported=True), carried, lambda: inbox.now, [more], inbox
    )
    again.follow(kept.steps)
    assert again.n == before.n
    assert again.rounds.leases() == before.rounds.leases()
    again.run()
    assert carried.restored == before.rounds.leases()
    assert [(n, t) for n, t, _ in more.steps[:1]] == [(before.n + 1, 431.0)]  # what is overdue comes at once


def test_another_history_is_noticed(make_setup: Make) -> None:
    _, kept, _ = run(make_setup, [(0.0, arrived(0, 1))])
    n, t, rows = kept.steps[0]
    rows[-1].columns["devices"][0] = [1]
    again = LiveLoop(Rounds(make_setup([], counts=(1, 0)), TWO, RULES, reported=True), Carried(), lambda: 0.0)
    with pytest.raises(ReplayError, match=r"step 1 at 0\.0 s"):
        again.follow([(n, t, rows)])


def test_a_clock_that_is_set_back_does_not_turn_time_back(make_setup: Make) -> None:
    inbox, kept = Script([(0.0, arrived(0)), (40.0, arrived(1))], until_s=90.0), Kept()
    setback = iter([0.0, 0.0, 40.0, 40.0, 12.0, 13.0])
    loop = LiveLoop(
        Rounds(make_setup([], counts=(1, 0)), TWO, RULES, reported=True),
        Carried(),
        lambda: next(setback, inbox.now),
        [kept],
        inbox,
    )
    loop.run()
    times = [t for _, t, _ in kept.steps]
    assert times == sorted(times)
    assert len(times) >= 2


class Fails(Table):
    """It has no answer while a second job is there."""

    error: BaseException = DovetailError("there is no solution")

    def allocate(self, problem: Problem) -> Allocation:
        if problem.jobs == 2:
            raise self.error
        return super().allocate(problem)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DovetailError("there is no solution"), "there is no solution"),
        (ZeroDivisionError("planted"), "ZeroDivisionError: planted"),
        (SystemExit(0), "SystemExit: 0"),
    ],
)
def test_a_policy_without_an_answer_stops_nothing(make_setup: Make, error: BaseException, why: str) -> None:
    policy = Fails({0: [1.0, 0], 1: [1.0, 0]})
    policy.error = error
    rounds = Rounds(make_setup([], counts=(2, 0)), policy, RULES, reported=True)
    times = {"at_s": [0.0]}
    rounds.handle([Rows("arrived", arrived(0).columns | times)], 0.0)
    rounds.handle([Rows("arrived", arrived(1).columns | times)], 10.0)
    found = rounds.handle(rounds.due(50.0), 50.0)
    assert [rows.of for rows in found] == ["due", "undecided"]
    assert found[1].columns == {"why": [why]}
    rounds.handle(rounds.due(100.0), 100.0)
    assert rounds.leases().keys() == {0, 1}


def test_rates_are_learned_while_two_share_whom_the_new_policy_will_part(make_setup: Make) -> None:
    rounds = Rounds(make_setup([], counts=(1, 0)), Table({}, {(0, 1): [1.0, 0.0]}), RULES, reported=True)
    rounds.handle([Rows("arrived", arrived(0, 1).columns | {"at_s": [0.0, 0.0]})], 0.0)
    assert [lease.beside for lease in rounds.leases().values()] == [1, 0]
    told = [records.policy("max_min_fairness_perf"), records.learned([0], [0], [7.0])]
    assert [rows.of for rows in rounds.handle(told, 20.0)] == ["policy", "learned"]
    rounds.handle(rounds.due(50.0), 50.0)
    rounds.handle(rounds.due(100.0), 100.0)
    assert [lease.beside for lease in rounds.leases().values()] == [-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it keeps nothing
@given(st.data())
def test_who_can_go_on_only_where_it_was_is_never_leased_elsewhere(make_setup: Make, data: st.DataObject) -> None:
    """Unless that is gone. Everybody has its turns all the same."""
    count = data.draw(st.integers(1, 3))
    name = data.draw(
        st.sampled_from(["max_min_fairness_perf", "fifo", "max_min_fairness", "finish_time_fairness_perf"])
    )
    stays = data.draw(st.lists(st.booleans(), min_size=2, max_size=6))
    rounds = Rounds(make_setup([], counts=(count, 0)), make(name), RULES, reported=True)
    come = arrived(*range(len(stays)))
    come.columns.update(stays=stays, at_s=[0.0] * len(stays))
    rounds.handle([come], 0.0)
    places: dict[int, set[tuple[int, ...]]] = {job: set() for job in range(len(stays))}
    ended: set[int] = set()
    for _ in range(24):
        if not rounds.busy:
            break
        now = rounds.next_s
        rounds.handle(rounds.due(now), now)
        if data.draw(st.integers(0, 9)) == 0 and rounds.leases():
            job = data.draw(st.sampled_from(sorted(rounds.leases())))
            what = data.draw(st.sampled_from(["completed", "exited"]))
            gone = [records.exited([job], [rounds.leases()[job].epoch], ["x"])]
            rounds.handle([records.completed([job], [now])] if what == "completed" else gone, now)
            ended |= {job}
        for job, lease in rounds.leases().items():
            places[job].add(lease.devices)
    for job, found in places.items():
        assert len(found) <= 1 or not stays[job] or job in ended
