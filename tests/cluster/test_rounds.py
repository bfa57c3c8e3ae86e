"""Rounds as a state machine: rows in, rows out, and the same again from a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.policies import make
from dovetail.cluster.rounds import Rounds, scheduler_for
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.testing.cluster.fuzz import policies_for, random_case
from tests.cluster.conftest import Make, Table

RULES = RoundRules(round_s=100.0, restart_s=10.0)


def _arrived(*ids: int, at_s: float = 0.0) -> Rows:
    count = len(ids)
    return Rows("arrived", {"id": [*ids], "kind": [0] * count, "steps": [4000.0] * count, "at_s": [at_s] * count})


def _brief(found: list[Rows]) -> list[tuple[str, list[int], bool]]:
    return [(rows.of, list(rows.columns.get("id", rows.columns.get("device", ()))), rows.decided) for rows in found]


def test_rows_go_in_and_rows_come_out(make_setup: Make) -> None:
    """Two jobs for one accelerator: the second starts when the first ends, or its device fails."""
    setup = make_setup([], counts=(1, 0))
    rounds = Rounds(setup, Table({0: [0.9, 0], 1: [0.1, 0]}), RULES)
    prices = Rows("prices", {"price": [1.0, 1.0]})
    first = rounds.handle([prices, _arrived(0, 1)], 0.0)
    assert _brief(first)[1:] == [("arrived", [0, 1], False), ("envy", [], True), ("started", [0], True)]
    assert (rounds.next_round_s, rounds.next_end_s()) == (100.0, float("inf"))  # 4000 steps at 4 per s take 1010 s
    assert rounds.handle([], 100.0) == []
    ended = rounds.handle([Rows("completed", {"id": [0], "at_s": [150.0]})], 150.0)
    assert _brief(ended) == [("stopped", [0], True), ("completed", [0], False), ("started", [1], True)]
    failed = rounds.handle([Rows("failed", {"device": [0]})], 170.0)
    assert _brief(failed) == [("failed", [0], False), ("stopped", [1], True)]
    assert failed[1].columns["steps"].tolist() == [0.0]
    assert rounds.handle([], 200.0) == []
    assert _brief(rounds.handle([Rows("mended", {"device": [0]})], 230.0)) == [("mended", [0], False)]
    assert [rows.of for rows in rounds.handle([], 300.0)] == ["started"]
    assert _brief(rounds.close(350.0)) == [("stopped", [1], True)]


def test_it_is_the_driver_that_says_what_time_it_is(make_setup: Make) -> None:
    """A round that comes late begins late: nothing is caught up."""
    rounds = Rounds(make_setup([], counts=(1, 0)), Table({0: [1, 0]}), RULES)
    rounds.handle([_arrived(0)], 7.0)
    assert rounds.next_round_s == 107.0
    rounds.handle([], 131.5)
    assert rounds.next_round_s == 231.5


def replayed(path: Path) -> list[str]:
    """Steps of a journal that are decided otherwise by the scheduler that its header names."""
    return [
        f"step {n} at {t} s: found {found}, recorded {recorded}"
        for n, t, found, recorded in replay(scheduler_for(Reader(path)), Reader(path))
        if found != recorded
    ]


@pytest.mark.parametrize("policy", registry.names("cluster"))
def test_a_recorded_run_is_decided_again(policy: str, tmp_path: Path) -> None:
    """Wide and elastic jobs, pairs, entities, outages, changing prices, all rules: every decision of every policy."""
    path, steps = tmp_path / "run.jsonl", 0
    for seed in range(40):
        case = random_case(seed)
        if policy in policies_for(case):
            run(case.setup, make(policy), case.rules, name=policy, journal=path)
            steps += path.read_bytes().count(b'"decided":true')
            assert replayed(path) == [], seed
    assert steps > 100


def test_a_policy_that_learns_pair_rates_is_replayed_with_what_it_believed(tmp_path: Path) -> None:
    path, policy = tmp_path / "run.jsonl", "max_min_fairness_packed"
    loaded = load(Scenario(cluster="2:2:2", jobs=20, profiled=0.3, references=2))
    run(loaded.setup, loaded.policy(policy), name=policy, options=loaded.options(policy), journal=path)
    assert b'"beside"' in path.read_bytes()
    assert replayed(path) == []


def test_another_decision_is_noticed(make_setup: Make, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loaded = load(Scenario(cluster="2:2:2", jobs=12))
    run(loaded.setup, make("fifo", {"seed": 3}), name="fifo", options={"seed": 3}, journal=path)
    assert replayed(path) == []
    path.write_bytes(path.read_bytes().replace(b'"options":{"seed":3', b'"options":{"seed":4'))
    assert replayed(path)


def test_a_summary_cannot_be_decided_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loaded = load(Scenario(jobs=3))
    run(loaded.setup, make("fifo"), name="fifo", journal=path, mode="summary")
    with pytest.raises(InputError, match="a summary holds no leases"):
        scheduler_for(Reader(path))
