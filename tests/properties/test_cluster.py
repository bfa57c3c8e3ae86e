"""Random clusters x every policy: the checker is clean, nothing is below a bound, every job ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.simulate import Checkpointing, run
from dovetail.core import registry
from dovetail.core.events import Rows
from dovetail.core.journal import open_journal
from dovetail.core.loop.replay import replay_journal
from dovetail.testing.cluster.fuzz import ClusterCase, check_case, check_seed, policies_for, random_case

CASES = 120  # bench/cluster.py runs 2,000
BLOCK = 10


@pytest.mark.parametrize("first", range(0, CASES, BLOCK))
def test_every_policy_gives_a_valid_run_of_everything(first: int) -> None:
    assert [fault for seed in range(first, first + BLOCK) for fault in check_seed(seed)] == []


@pytest.mark.parametrize("seed", [115, 418, 1170, 1417, 1471, 1682])
def test_cases_that_once_failed(seed: int) -> None:
    """Rare ones: slivers of work left, types that a job does not run on, pairs of strict policies, kinks of demands."""
    assert check_seed(seed) == []


def test_every_policy_is_tried() -> None:
    tried = {name for seed in range(CASES) for name in policies_for(random_case(seed))}
    assert tried == set(registry.names("cluster"))


def features(case: ClusterCase) -> set[str]:
    """What is special about a case."""
    setup, rules = case.setup, case.rules
    found = {rules.priority, f"{len(setup.types)} types", "inside" if rules.inside else "at ends only"}
    found |= {"global queue"} if rules.global_queue else set()
    found |= {"seldom asked"} if rules.allocate_every_s else set()
    found |= {"outages"} if setup.outages else set()
    found |= {"moment's outage"} if any(o.at_s == o.until_s for o in setup.outages) else set()
    found |= {"window"} if setup.window else set()
    found |= {"entities"} if setup.entities else set()
    found |= {"pairs"} if setup.throughputs.pairs is not None else set()
    found |= {"prices change"} if setup.prices.next_change(0.0) < np.inf else set()
    for job in case.jobs:
        found |= {"wide"} if job.width > 1 else set()
        found |= {"too wide"} if job.width > setup.counts.max() else set()
        found |= {"due"} if job.due_s is not None else set()
        found |= {"heavy"} if job.weight > 1 else set()
        found |= {"nothing to do"} if job.steps == 0 else set()
    return found


def test_the_cases_try_everything() -> None:
    counted = Counter(feature for seed in range(CASES) for feature in features(random_case(seed)))
    wanted = {"owed", "fraction", "1 types", "3 types", "inside", "at ends only", "global queue", "seldom asked"}
    wanted |= {"outages", "moment's outage", "window", "entities", "pairs", "prices change", "wide", "too wide"}
    wanted |= {"due", "heavy", "nothing to do"}
    assert {feature: counted[feature] for feature in wanted if counted[feature] < CASES // 20} == {}


def test_the_cases_make_everything_happen(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    for seed in range(0, CASES, 2):
        case, journal = random_case(seed), tmp_path / "run.jsonl"
        policy = "elastic_throughput" if seed % 4 else "max_min_fairness_packed"
        run(case.setup, make(policy), case.rules, name=policy, journal=journal)
        came_as: dict[int, int] = {}
        for _, _, events in open_journal(journal).rows():
            for event in events:
                if not isinstance(event, Rows):
                    continue
                counted[event.of] += 1
                if event.of == "arrived":
                    came_as |= dict(zip(event.columns["id"], event.columns["kind"], strict=True))
                elif event.of == "started":
                    counted["beside"] += "beside" in event.columns
                    kinds = zip(event.columns["id"], event.columns.get("kind", []), strict=False)
                    counted["another width"] += any(came_as[job] != kind for job, kind in kinds)
                elif event.of == "failed":
                    counted["unlucky"] += any(event.columns["jobs"])
    happened = {"arrived", "started", "stopped", "completed", "rejected", "failed", "mended", "prices", "envy"}
    assert {
        name: counted[name] for name in happened | {"beside", "another width", "unlucky"} if counted[name] < 5
    } == {}


class KilledError(Exception):
    """Stands for a run that is killed."""


class Killer:
    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._left -= 1
        if self._left < 0:
            raise KilledError


@pytest.mark.parametrize(
    "policy",
    [
        "max_min_fairness_packed",
        "finish_time_fairness_perf",
        "elastic_throughput",
        "gandiva",
        "fifo",
        "tiresias_gittins",
        "shockwave",
        "optimus",
    ],
)
def test_a_run_that_is_killed_again_and_again_gives_the_same_bytes(tmp_path: Path, policy: str) -> None:
    killed = 0
    for seed in range(12):
        case = random_case(seed)

        def go(name: str, observers: Sequence[Killer] = (), case: ClusterCase = case, seed: int = seed) -> bytes:
            saving = Checkpointing(tmp_path / f"{name}{seed}", every_rounds=2, resume=True)
            journal = tmp_path / f"{name}{seed}.jsonl"
            run(case.setup, make(policy), case.rules, name=policy, journal=journal, observers=observers, saving=saving)
            return journal.read_bytes()

        whole = go("whole")
        for steps in (4, 7, 13):
            try:
                go("parts", [Killer(steps)])
            except KilledError:
                killed += 1
        assert go("parts") == whole
        assert replay_journal(tmp_path / f"parts{seed}.jsonl").difference is None
    assert killed > 10


class Greedy:
    """Claims all of every type for everybody, and at another width than a job has."""

    agnostic, packs, strict = False, False, False

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def allocate(self, problem: Problem) -> Allocation:
        return Allocation(share=np.ones((problem.jobs, len(problem.types))), kind=problem.kind * 0 + self._kind)


def test_a_policy_that_breaks_the_rules_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases can fail: a policy that turns jobs into others is stopped, and told by its name."""
    monkeypatch.setattr("dovetail.testing.cluster.fuzz.policies_for", lambda case: ["fifo"])
    monkeypatch.setattr("dovetail.testing.cluster.fuzz.make", lambda name: Greedy(0))
    found = [fault for seed in range(20) for fault in check_case(random_case(seed), str(seed), tmp_path / "run.jsonl")]
    assert any("another model" in fault for fault in found)
