"""Live-like runs of every policy: restarts, failures, nodes that go and come, changes of policy, all at once."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.cluster.check import check_journal
from dovetail.cluster.explain import account, explain
from dovetail.cluster.live.as_it_was import live_workload
from dovetail.cluster.policies import make
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run as simulate
from dovetail.core.check import check_journal as check_events
from dovetail.core.errors import InputError
from dovetail.core.findings import Findings
from dovetail.core.journal import Reader
from dovetail.testing.cluster.fuzz import random_case
from dovetail.testing.cluster.live_like import ClusterTrouble, LiveLikeRun, live_policies


def _trouble(seed: int) -> ClusterTrouble:
    policies = tuple(Random(seed).sample(live_policies(), seed % 3))
    return ClusterTrouble(policies=policies, late=0.5 if seed % 4 == 3 else 0.02)


@pytest.mark.parametrize("policy", live_policies())
def test_a_live_run_is_valid_whatever_happens_and_decided_again(policy: str, tmp_path: Path) -> None:
    """No job twice at once, no accelerator given twice, restarts follow what was decided, the checker finds nothing,
    and a replay decides the same."""
    seed = live_policies().index(policy)
    path = tmp_path / "run.jsonl"
    run = LiveLikeRun(seed, policy, trouble=_trouble(seed))
    assert run.run(path) == []
    counted = check_journal(path).counted
    assert counted["arrived"] == counted["completed"] + counted["rejected"]


def test_both_kinds_of_readers_agree_and_every_job_has_its_story(tmp_path: Path) -> None:
    """Columns read at once, and the same told as single events; a story ends as the journal says."""
    path, told = tmp_path / "run.jsonl", set[str]()
    for seed in range(6):
        run = LiveLikeRun(seed, "max_min_fairness_perf", trouble=ClusterTrouble(failing=0.3, cancelled=0.3))
        assert run.run(path) == []
        report, faults = check_journal(path), Findings()
        figures = check_events(Reader(path), faults)
        assert faults.counts == {}
        counted = report.counted
        for key in ("arrived", "completed", "rejected"):
            assert counted[key] == getattr(figures, key), key
        assert counted["leases"] == figures.tasks + figures.failures
        for job in run.agents.steps:
            story = explain(Reader(path), str(job))
            assert (story.completed_s is None) == bool(story.rejected_why)
            told |= {story.rejected_why, *(lease.end for lease in story.leases)}
    assert {"it was cancelled", "it was done", "others' turn", "its process failed (exit code 1)"} <= told
    assert any("failed 5 times" in why for why in told)


CALM = ClusterTrouble(
    failing=0.0,
    unsaved=0.0,
    poisonous=0.0,
    cancelled=0.0,
    away=0.0,
    drained=0.0,
    restarts=0,
    noise=0.0,
    late=0.0,
    learns=False,
)


@pytest.mark.parametrize(
    "policy", ["max_min_fairness_perf", "fifo_perf", "finish_time_fairness_perf", "shortest_remaining"]
)
@pytest.mark.parametrize(("decide_at", "ahead_s"), [(0.5, None), (0.5, 1.0), (1.0, None)])
def test_a_live_run_simulated_as_it_was_gives_the_same(
    policy: str, decide_at: float, ahead_s: float | None, tmp_path: Path
) -> None:
    """Where nothing goes wrong and rates are as they were thought, the simulator ends every job when it really ended:
    the two differ by their clocks alone. Starts that were planned ahead may cost less."""
    path, compared = tmp_path / "run.jsonl", 0
    for seed in range(8):
        rules = RoundRules(round_s=100.0, restart_s=5.0, decide_at=decide_at)
        assert LiveLikeRun(seed, policy, rules, replace(CALM, ahead_s=ahead_s), wide=False).run(path) == []
        work = live_workload(path)
        found = work.simulate()
        assert found.completion_s == pytest.approx(work.live_jct_s, rel=1e-6), seed
        compared += len(work.live_jct_s)
    assert compared > 30


def test_costs_are_those_that_a_run_measured_by_kind_of_start(tmp_path: Path) -> None:
    """Whatever was thought of them: those that were planned ahead, and others."""
    path, seen, ahead = tmp_path / "run.jsonl", set[float](), set[float]()
    rules = RoundRules(round_s=100.0, restart_s=8.0, decide_at=0.5)
    for seed in range(4):
        assert LiveLikeRun(seed, "max_min_fairness_perf", rules, replace(CALM, ahead_s=2.0), wide=False).run(path) == []
        path.write_text(
            re.sub(r'"setup_s":\[[^]]*\]', lambda found: re.sub(r"[\d.]+", "0.5", found[0]), path.read_text())
        )
        setup = live_workload(path).setup
        for table, values in ((setup.restarts, seen), (setup.restarts_ahead, ahead)):
            assert table is not None
            values |= {*table[~np.isnan(table)].round(6).tolist()}
    assert (seen, ahead) == ({8.0}, {2.0})


def test_a_seed_lets_jobs_take_more_or_less_as_live_ones_did(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert LiveLikeRun(2, "fifo", trouble=replace(CALM, noise=0.3), wide=False).run(path) == []
    work = live_workload(path)
    assert work.noise > 0
    drawn = [work.simulate(seed=seed).figures.makespan_s for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len({*drawn}) == 3


def test_what_is_not_as_it_was_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = LiveLikeRun(3, "fifo", trouble=ClusterTrouble(policies=("max_min_fairness_perf",), drained=1.0))
    assert run.run(path) == []
    work = live_workload(path)
    assert [note.split(" ")[-1] for note in work.notes]
    assert any("the policy became max_min_fairness_perf" in note for note in work.notes)
    assert work.simulate("max_min_fairness_perf").figures.completed == len(list(work.setup.jobs))


def test_a_simulated_run_is_no_live_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    case = random_case(1)
    simulate(case.setup, make("fifo"), case.rules, name="fifo", journal=path)
    with pytest.raises(InputError, match="expected the journal of a live run, found a simulated one"):
        live_workload(path)


def test_a_job_of_a_live_run_that_goes_on_has_a_story_until_now(tmp_path: Path) -> None:
    """What waits has waited so far, nothing broke off, and what a start takes was expected."""
    whole, path, told = tmp_path / "run.jsonl", tmp_path / "now.jsonl", ""
    run = LiveLikeRun(3, "max_min_fairness_perf", RoundRules(round_s=100.0, restart_s=5.0, decide_at=0.5))
    assert run.run(whole) == []
    lines = whole.read_text().splitlines()
    path.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    for job in run.agents.steps:
        try:
            story = explain(Reader(path), str(job))
        except InputError:  # it had not come yet
            continue
        text = account(Reader(path), str(job)).text
        if story.completed_s is None and not story.rejected_why:
            assert "It is not complete yet" in text
            assert "breaks off" not in text
            assert story.waits == [] or story.waits[-1].to_s is not None or story.waited_s > 0
        told += text
    assert " to now: " in told
    assert "s expected to start" in told
