"""Whatever comes, under every pair of policies: no rule is broken, nothing is lost, nobody starves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.core.events import Arrived, Asked, Resume, Start
from dovetail.core.loop.executor import SimExecutor
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.program import program_graph
from dovetail.host.simulate import run
from dovetail.testing.host import ASSIGNS, PLANS, describe, random_options, random_workload, verify

FINAL = {"completed", "rejected"}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 40), failure_rate=st.sampled_from([0.0, 0.0, 0.2]))
@example(seed=270, failure_rate=0.2)  # a turn ends in a full group, and nobody can take it
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("assign", ASSIGNS)
def test_no_rule_is_broken(plan: str, assign: str, seed: int, failure_rate: float) -> None:
    """Cores, minima and maxima, idle cores, memory, order, figures: the checkers know all of it."""
    rng = Random(seed)
    workload, options = random_workload(rng), random_options(rng, plan, assign)
    outcome, faults = verify(workload, options, SimExecutor(seed, failure_rate=failure_rate))
    assert not faults, (faults, describe(workload, options))
    arrived = [event.job for _, event in workload.arrivals if isinstance(event, Arrived)]
    assert [row.program for row in outcome.rows] == arrived
    assert {row.status for row in outcome.rows} <= FINAL


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.parametrize("assign", ASSIGNS)
def test_work_is_conserved(assign: str, seed: int) -> None:
    """With linear curves the core-seconds that programs get are those that they bring, however they are changed."""
    rng = Random(seed)
    cores = rng.randint(1, 16)
    arrivals: list[tuple[float, Arrived | Asked]] = []
    for i in range(rng.randint(1, 10)):
        facts = {"cores": rng.randint(1, cores), "priority": rng.randrange(5)}
        arrivals.append((5.0 * i, Arrived(f"p{i}", "p", (rng.uniform(1, 300),), facts=facts)))
    options = random_options(rng, rng.choice(PLANS), assign)
    outcome = run(Workload(cores, tuple(arrivals), {"p": program_graph("p", cores)}), options)
    for row, (_, event) in zip(outcome.rows, arrivals, strict=True):
        assert isinstance(event, Arrived)
        if row.status == "completed":
            assert row.core_s == pytest.approx(event.sizes[0], rel=1e-9)
    area = sum(event.sizes[0] for _, event in arrivals if isinstance(event, Arrived)) / cores
    if outcome.totals.completed == len(arrivals):
        assert outcome.totals.makespan_s >= area - 1e-6


class Watch:
    """Notes who starts while somebody waits who has come of age."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._waiting: dict[str, tuple[float, int]] = {}
        self._order: dict[str, int] = {}
        self.overtaken: list[tuple[str, str]] = []

    def step(self, n: int, t: float, events: list[object]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._order[event.job] = len(self._order)
                self._waiting[event.job] = (t, event.facts["priority"])
        started = [event.job for event in events if isinstance(event, Start | Resume)]
        for work in started:
            self._waiting.pop(work, None)
        for name, (since, priority) in self._waiting.items():
            if t - since > (priority + 1) * self._step_s + 1e-6:
                self.overtaken += [(name, work) for work in started if self._order[work] > self._order[name]]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.parametrize("overtaking", ["none", "first-fit", "backfill"])
@pytest.mark.parametrize("plan", ["fcfs", "priority"])
def test_nobody_starves_who_ages(plan: str, overtaking: str, seed: int) -> None:
    """Once it has waited for its priority and one step more, nobody that came later starts before it."""
    rng = Random(seed)
    arrivals: list[tuple[float, Arrived | Asked]] = []
    now = 0.0
    for i in range(rng.randint(5, 40)):
        now += rng.uniform(0, 6)
        facts = {"cores": rng.choice((1, 2, 3, 8)), "priority": rng.randrange(5)}
        arrivals.append((now, Arrived(f"p{i}", "p", (rng.uniform(5, 80),), facts=facts)))
    watch = Watch(8.0)
    options = HostOptions(plan=plan, age_step_s=8.0, overtaking=overtaking)  # type: ignore[arg-type]
    run(Workload(8, tuple(arrivals), {"p": program_graph("p", 8)}), options, [watch])  # type: ignore[list-item]
    assert watch.overtaken == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 40), failure_rate=st.sampled_from([0.0, 0.3]))
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("assign", ASSIGNS)
def test_groups_times_and_dependencies_are_kept(plan: str, assign: str, seed: int, failure_rate: float) -> None:
    """Never more of a group at once than may; none before its time; none after a failure of what it builds on."""
    rng = Random(seed)
    workload, options = random_workload(rng), random_options(rng, plan, assign)
    programs = run(workload, options, executor=SimExecutor(seed, failure_rate=failure_rate)).programs
    facts = {event.job: event.facts for _, event in workload.arrivals if isinstance(event, Arrived)}
    edited = {event.job for _, event in workload.arrivals if isinstance(event, Asked) and event.what == "edit"}
    on = {job: [s for s in programs.stretches.get(job, ()) if s.cores] for job in facts}
    for job, stretches in on.items():
        if not stretches:
            continue
        began_s, ask = stretches[0].from_s, facts[job]
        assert began_s >= ask.get("begin_s", 0.0) or job in edited
        for other in ask.get("after", ()):
            assert programs.rows[other].status == "completed"
            assert programs.rows[other].ended_s <= began_s  # type: ignore[operator]
        for other in ask.get("after_any", ()):
            assert all(stretch.to_s <= began_s for stretch in on[other])
            assert programs.rows[other].closed_s <= began_s  # type: ignore[operator]
        if group := ask.get("group"):
            for at_s in [stretch.from_s for stretch in stretches]:
                fellows = [each for each, a in facts.items() if a.get("group") == group]
                running = [each for each in fellows if any(s.from_s <= at_s < s.to_s for s in on[each])]
                assert len(running) <= ask["parallel"], (job, at_s, running)
