"""The cluster in virtual time, against timelines worked out by hand."""

from __future__ import annotations

import pickle
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import cluster
from dovetail.cluster.check import check_journal
from dovetail.cluster.explain import explain
from dovetail.cluster.inputs.choices import JournalMode
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.failures import RandomFailures
from dovetail.cluster.inputs.prices import Prices
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.metrics import ClusterResult
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.rounding import records, stimuli
from dovetail.cluster.rounding.active import Active
from dovetail.cluster.rounds import Rounds, scheduler_for
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import Checkpointing, run
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Arrived, Complete, Rows
from dovetail.core.journal import open_journal
from dovetail.core.loop.replay import replay_journal
from dovetail.report.data.collect import collect
from tests.cluster.conftest import THROUGHPUTS, Make, Table

NO_RESTART = RoundRules(restart_s=0.0)


class Notes:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, dict[str, Any]]] = []

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.seen += [(t, event.of, event.columns) for event in events if isinstance(event, Rows)]

    def times(self, of: str) -> list[tuple[float, list[int]]]:
        return [(t, [int(job) for job in columns["id"]]) for t, what, columns in self.seen if what == of]


def _run(setup: ClusterSetup, policy: Any, rules: RoundRules, tmp_path: Path) -> tuple[ClusterResult, Notes]:
    notes, journal = Notes(), tmp_path / "run.jsonl"
    outcome = run(setup, policy, rules, name="table", journal=journal, observers=[notes])
    report = check_journal(journal)
    assert report.valid, report.faults[:5]
    return outcome, notes


def test_a_job_ends_when_its_steps_are_done(make_setup: Make, tmp_path: Path) -> None:
    outcome, notes = _run(make_setup([Job(id=0, model="A", steps=400)]), Table({0: [1, 0]}), NO_RESTART, tmp_path)
    assert outcome.figures.makespan_s == 100.0
    assert outcome.figures.avg_jct_s == 100.0
    assert outcome.figures.utilization == 0.25
    assert outcome.figures.total_cost == pytest.approx(100 * 3.6 / 3600)
    assert notes.times("completed") == [(100.0, [0])]


def test_a_start_costs_a_restart_but_staying_does_not(make_setup: Make, tmp_path: Path) -> None:
    outcome, notes = _run(
        make_setup([Job(id=0, model="A", steps=4000)]), Table({0: [1, 0]}), RoundRules(restart_s=50.0), tmp_path
    )
    assert outcome.figures.makespan_s == 1050.0  # three rounds, one lease
    assert outcome.figures.leases == 1
    assert notes.times("stopped") == [(1050.0, [0])]


def test_who_waits_starts_inside_the_round_when_another_ends(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400), Job(id=1, model="A", steps=400)]
    setup = make_setup(jobs, counts=(1, 0))
    outcome, _ = _run(setup, Table({0: [1, 0], 1: [0.5, 0]}), NO_RESTART, tmp_path)
    assert outcome.completion_s == {0: 100.0, 1: 200.0}
    setup = make_setup(jobs, counts=(1, 0))
    outcome, _ = _run(setup, Table({0: [1, 0], 1: [0.5, 0]}), RoundRules(restart_s=0.0, inside=False), tmp_path)
    assert outcome.completion_s == {0: 100.0, 1: 460.0}  # at the next boundary


def test_who_arrives_inside_a_round_starts_at_once_if_there_is_room(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=4000), Job(id=1, model="A", steps=400, arrival_s=30.0)]
    outcome, _ = _run(make_setup(jobs), Table({0: [1, 0], 1: [1, 0]}), NO_RESTART, tmp_path)
    assert outcome.completion_s == {0: 1000.0, 1: 100.0}


def test_idle_time_before_an_arrival_is_not_billed(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400), Job(id=1, model="A", steps=400, arrival_s=100_000.0)]
    outcome, _ = _run(make_setup(jobs), Table({0: [1, 0], 1: [1, 0]}), NO_RESTART, tmp_path)
    assert outcome.figures.makespan_s == 100_100.0
    assert outcome.figures.total_cost == pytest.approx(200 * 3.6 / 3600)


@pytest.mark.parametrize("first_s", [0.0, 1e5, 1.7e9])
def test_a_run_counts_from_its_first_arrival(make_setup: Make, tmp_path: Path, first_s: float) -> None:
    jobs = [Job(id=0, model="A", steps=400, arrival_s=first_s), Job(id=1, model="A", steps=400, arrival_s=first_s + 50)]
    setup, policy = make_setup(jobs, counts=(1, 0)), Table({0: [0.5, 0], 1: [0.5, 0]})
    outcome, _ = _run(setup, policy, NO_RESTART, tmp_path)
    assert (outcome.figures.makespan_s, outcome.bound_makespan_s) == (200.0, 200.0)
    assert outcome.figures.utilization == 1.0
    path = tmp_path / "counted.jsonl"
    run(setup, policy, NO_RESTART, journal=path)
    assert check_journal(path).counted["makespan_s"] == 200.0
    shown = collect(path).figures
    assert (shown.makespan_s, shown.devices[0].utilisation) == (200.0, 1.0)
    assert run(setup, policy, ideal=True).figures.makespan_s == 250.0  # nobody takes what is left over


def test_by_gavels_rules_a_run_counts_from_zero(make_setup: Make) -> None:
    setup = make_setup([Job(id=0, model="A", steps=400, arrival_s=900.0)], counts=(1, 0))
    found = run(setup, Table({0: [1, 0]}), compat=True)
    assert (found.figures.makespan_s, found.bound_makespan_s) == (1000.0, 1000.0)
    assert found.figures.utilization == 1.0  # idle gaps count as busy


def test_what_can_never_run_is_told_although_servers_fail_for_ever(make_setup: Make) -> None:
    forever = RandomFailures(parse_cluster({"types": {"fast": {"count": 2, "failure_s": 5000}}}), seed=0)
    setup = replace(make_setup([Job(id=0, model="A", steps=4000)]), outages=forever)
    policy = Table({})
    policy.strict = True
    with pytest.raises(InputError, match="job 0 can never run"):
        run(setup, policy, NO_RESTART)


def test_what_fails_after_the_last_end_is_no_part_of_a_run(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup([Job(id=0, model="A", steps=400)], outages=[Outage(150.0, 200.0, (1,))])
    outcome, notes = _run(setup, Table({0: [1, 0]}), NO_RESTART, tmp_path)
    assert outcome.figures.makespan_s == 100.0
    assert not [of for _, of, _ in notes.seen if of == "failed"]


def test_a_wide_job_in_two_servers_is_slower(make_setup: Make, tmp_path: Path) -> None:
    wide = [Job(id=0, model="A", width=2, steps=800)]
    together, _ = _run(make_setup(wide, per_server=(2, 2)), Table({0: [1, 0]}), NO_RESTART, tmp_path)
    apart, _ = _run(make_setup(wide, per_server=(1, 1)), Table({0: [1, 0]}), NO_RESTART, tmp_path)
    assert together.figures.makespan_s == 100.0
    assert apart.figures.makespan_s == pytest.approx(800 / 6)


def test_two_jobs_share_a_device_and_who_stays_goes_on_alone(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=200), Job(id=1, model="B", steps=350)]
    policy = Table({}, {(0, 1): [1.0, 0.0]})
    outcome, notes = _run(make_setup(jobs, counts=(1, 0)), policy, RoundRules(restart_s=0.0, inside=False), tmp_path)
    # Together 2 and 1.5 steps a second; after 100 s the second has 200 left, alone 2 a second.
    assert outcome.completion_s == {0: 100.0, 1: 200.0}
    assert notes.times("started") == [(0.0, [0, 1]), (100.0, [1])]
    assert outcome.figures.utilization == 1.0
    assert outcome.figures.total_cost == pytest.approx(200 * 3.6 / 3600)


def test_a_failed_device_costs_the_work_of_the_round(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup(
        [Job(id=0, model="A", steps=4000)], counts=(1, 0), outages=[Outage(at_s=500.0, until_s=700.0, devices=(0,))]
    )
    outcome, notes = _run(setup, Table({0: [1, 0]}), NO_RESTART, tmp_path)
    # 360 s saved, 140 s lost; it starts again at the first boundary with a device, 720 s.
    assert [t for t, _ in notes.times("started")] == [0.0, 720.0]
    assert outcome.figures.makespan_s == 720.0 + 1000 - 360


def test_a_window_ends_the_run(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=i, model="A", steps=400, arrival_s=50.0 * i) for i in range(20)]
    outcome, _ = _run(make_setup(jobs, window=(3, 5)), Table({i: [1, 0] for i in range(20)}), NO_RESTART, tmp_path)
    assert outcome.figures.jobs == 2
    assert outcome.figures.completed < 20


def test_a_job_that_fits_nowhere_is_rejected_with_the_reason(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=40), Job(id=1, model="B", width=4, steps=9)]
    outcome, notes = _run(make_setup(jobs, counts=(2, 4)), Table({0: [1, 0]}), NO_RESTART, tmp_path)
    assert (outcome.figures.completed, outcome.figures.rejected) == (1, 1)
    assert notes.times("rejected") == [(0.0, [1])]
    reasons = [columns["why"] for _, of, columns in notes.seen if of == "rejected"]
    assert reasons == [["no type has enough accelerators that it runs on"]]


def test_a_job_that_its_policy_never_lets_run_is_told(make_setup: Make) -> None:
    policy = Table({})
    policy.strict = True
    with pytest.raises(InputError, match="job 7 can never run on this cluster under this policy"):
        run(make_setup([Job(id=7, model="A", steps=9)]), policy)


def test_a_spread_job_moves_into_one_server_when_there_is_room(make_setup: Make, tmp_path: Path) -> None:
    """Narrow jobs hold a device of each server until 1000 s, so the wide one begins in two."""
    jobs = [
        Job(id=0, model="A", steps=4000),
        Job(id=1, model="A", steps=400),
        Job(id=2, model="A", steps=4000),
        Job(id=3, model="A", width=2, steps=8000, arrival_s=150.0),
    ]
    shares = {i: [1.0, 0.0] for i in range(4)}
    setup = make_setup(jobs, counts=(4, 0), per_server=(2, 1))
    _, notes = _run(setup, Table(shares), NO_RESTART, tmp_path)
    leases = [
        (t, list(places))
        for t, of, columns in notes.seen
        if of == "started"
        for job, places in zip(columns["id"], columns["devices"], strict=True)
        if job == 3
    ]
    first, second = leases[0], leases[1]
    assert first[0] == 150.0
    assert len({device // 2 for device in first[1]}) == 2
    assert second[0] == pytest.approx(1080.0)  # the first boundary after the others are done
    assert len({device // 2 for device in second[1]}) == 1


def test_rounds_that_change_nothing_are_skipped_without_a_trace(
    make_setup: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(id=i, model="AB"[i % 2], steps=90_000, arrival_s=40_000.0 * i) for i in range(6)]
    shares = {i: [1.0, 0.0] if i % 2 == 0 else [0.0, 1.0] for i in range(6)}
    fast, _ = _run(make_setup(jobs), Table(shares), RoundRules(), tmp_path)
    skipped = (tmp_path / "run.jsonl").read_bytes()
    boundaries = 0
    whole = Rounds._round

    def counted(rounds: Rounds, happened: Sequence[Rows], now: float, found: list[Rows]) -> None:
        nonlocal boundaries
        boundaries += 1
        whole(rounds, happened, now, found)

    monkeypatch.setattr(Rounds, "_round", counted)
    _run(make_setup(jobs), Table(shares), RoundRules(), tmp_path)
    assert boundaries < 100 < fast.rounds
    monkeypatch.setattr(Rounds, "_quiet_rounds", lambda rounds, until_s: 0)
    slow, _ = _run(make_setup(jobs), Table(shares), RoundRules(), tmp_path)
    assert slow.rounds == fast.rounds
    assert slow.figures == fast.figures
    assert (tmp_path / "run.jsonl").read_bytes() == skipped


def test_an_unknown_kind_is_told_with_the_known_ones(make_setup: Make) -> None:
    setup = make_setup([Job(id=0, model="A", width=8, steps=9)])
    with pytest.raises(InputError, match=r"no throughput for 'A' on 8 accelerators \(its widths are \[1, 2\]\)"):
        run(setup, Table({}))


def test_the_same_inputs_give_the_same_bytes(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=i, model="AB"[i % 2], steps=500 + 7 * i, arrival_s=13.0 * i) for i in range(40)]
    for name in ("a", "b"):
        policy = Table({i: [0.3, 0.4] for i in range(40)})
        run(make_setup(jobs), policy, name="table", journal=tmp_path / f"{name}.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.parametrize("clock", ["ideal", "compat"])
def test_every_clock_is_recorded_and_checked(make_setup: Make, tmp_path: Path, clock: str) -> None:
    """Prices change, jobs come and go, one is wide: figures, checker, the reader of all levels and explain agree."""
    jobs = [
        Job(id=i, model="A", width=1 + (i % 3 == 0), steps=5000 * (1 + i % 4), arrival_s=i * 100.0) for i in range(12)
    ]
    setup = replace(
        make_setup(jobs), prices=Prices(("fast", "slow"), (0.0, 1000.0), np.array([[1.0, 2.0], [3.0, 1.0]]))
    )
    journal, policy = tmp_path / "run.jsonl", make("max_min_fairness_perf")
    outcome = run(setup, policy, name="x", journal=journal, ideal=clock == "ideal", compat=clock == "compat")
    report = check_journal(journal)
    assert report.valid, report.faults
    assert "were checked" in report.notes[0]
    reader = open_journal(journal)
    ends = {entry.event.job: entry.t for entry in reader if isinstance(entry.event, Complete)}
    arrived = {entry.event.job: entry.t for entry in reader if isinstance(entry.event, Arrived)}
    assert {int(job[4:]): ends[job] - arrived[job] for job in ends} == pytest.approx(outcome.completion_s)
    assert list(ends.values()) == sorted(ends.values())
    assert explain(reader, "3").completed_s == ends["job 3"]
    with pytest.raises(InputError, match="holds no leases: there is nothing to decide again"):
        scheduler_for(reader)


def test_the_older_rules_do_not_beat_their_bound(make_setup: Make) -> None:
    """Where accelerators are makes no difference to them: two in two servers are as fast as in one."""
    jobs = [Job(id=0, model="A", width=2, steps=8000)]
    figures = run(make_setup(jobs, per_server=(1, 1)), Table({0: [1, 0]}), compat=True)
    assert figures.figures.avg_jct_s == figures.figures.bound_avg_jct_s == figures.bound_makespan_s == 1000.0


def test_an_ideal_run_refuses_more_than_there_is(make_setup: Make) -> None:
    jobs = [Job(id=i, model="A", steps=400) for i in range(3)]
    with pytest.raises(DovetailError, match="3 accelerators of type fast at a time, of 2"):
        run(make_setup(jobs), Table({i: [1, 0] for i in range(3)}), ideal=True)


def test_ideal_shares_are_exact(make_setup: Make) -> None:
    jobs = [Job(id=0, model="A", steps=400), Job(id=1, model="A", steps=400)]
    outcome = run(make_setup(jobs), Table({0: [0.5, 0.5], 1: [0.25, 0]}), ideal=True)
    assert outcome.completion_s == {0: 400 / 2.5, 1: 400.0}


class KilledError(Exception):
    """The run is stopped from outside."""


class Killer:
    """Ends the run when it has seen so many steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._left -= 1
        if not self._left:
            raise KilledError


@pytest.mark.parametrize("mode", ["changes", "summary"])
def test_a_run_resumed_at_a_checkpoint_gives_the_same_bytes(
    make_setup: Make, tmp_path: Path, mode: JournalMode
) -> None:
    jobs = [Job(id=i, model="AB"[i % 2], steps=3000 + 7 * i, arrival_s=70.0 * i) for i in range(60)]

    def go(name: str, observers: Sequence[Any] = (), saving: Checkpointing | None = None) -> ClusterResult:
        policy = Table({i: [0.3, 0.4] for i in range(60)}, {(0, 3): [0.5, 0.0]})
        journal = tmp_path / f"{name}.jsonl"
        return run(
            make_setup(jobs), policy, name="table", journal=journal, mode=mode, observers=observers, saving=saving
        )

    whole = go("whole", saving=Checkpointing(tmp_path / "whole", every_rounds=5))
    saving = Checkpointing(tmp_path / "saved", every_rounds=5, resume=True)
    with pytest.raises(KilledError):
        go("parts", [Killer(80)], saving)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "parts.jsonl").stat().st_size > 0
    parts = go("parts", saving=saving)
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert parts.figures == whole.figures
    assert parts.rounds == whole.rounds


class Warm(Table):
    """Answers otherwise while it is warm, as a solver may that goes on from its last solution."""

    calls = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "calls"}

    def allocate(self, problem: Problem) -> Allocation:
        self.calls += 1
        found = super().allocate(problem)
        found.share[:] = (1.0, 0.0) if self.calls % 5 < 2 else (0.0, 1.0)
        return found


def test_a_policy_that_answers_otherwise_when_it_is_warm_gives_the_same_bytes(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=i, model="A", steps=3000, arrival_s=200.0 * i) for i in range(20)]

    def go(name: str, observers: Sequence[Any] = ()) -> bytes:
        saving, journal = Checkpointing(tmp_path / name, every_rounds=3, resume=True), tmp_path / f"{name}.jsonl"
        run(make_setup(jobs), warm(), journal=journal, observers=observers, saving=saving)
        return journal.read_bytes()

    def warm() -> Warm:
        return Warm({i: [0.5, 0.5] for i in range(20)})

    with pytest.raises(KilledError):
        go("parts", [Killer(45)])
    assert go("parts") == go("whole")
    journal = tmp_path / "parts.jsonl"
    scheduler: Any = scheduler_for(open_journal(journal), warm())
    assert replay_journal(journal, scheduler).difference is None


@pytest.mark.parametrize("every_rounds", [1, 2, 5, 10])
def test_a_run_with_checkpoints_replays_where_a_job_comes_as_a_round_begins(
    make_setup: Make, tmp_path: Path, every_rounds: int
) -> None:
    jobs = [Job(id=0, model="A", steps=90_000), Job(id=1, model="A", steps=90_000, arrival_s=3_600.0)]
    saving = Checkpointing(tmp_path / "saved", every_rounds=every_rounds)
    journal = tmp_path / "run.jsonl"
    policy = "max_min_fairness_perf"
    run(make_setup(jobs, counts=(2, 2)), make(policy), name=policy, journal=journal, saving=saving)
    assert replay_journal(journal).difference is None


def test_a_service_goes_on_with_a_policy_that_cannot_be_saved(make_setup: Make) -> None:
    policy = Table({0: [1, 0]})
    policy.lock = threading.Lock()  # type: ignore[attr-defined]
    rounds = Rounds(make_setup([Job(id=0, model="A", steps=3000)]), policy, RoundRules(), reported=True)
    assert [rows.of for rows in rounds.handle([records.saved()], 0.0)] == ["saved"]
    assert rounds.mechanism.policy is policy


def test_what_happens_after_a_checkpoint_was_loaded_is_not_forgotten_when_a_job_arrives() -> None:
    jobs, widths = Active(2), np.array([1])
    columns = {"kind": [0], "steps": [9.0], "at_s": [0.0]}
    jobs.append(columns | {"id": [0]}, widths, 0.0)
    again: Active = pickle.loads(pickle.dumps(jobs))
    again.on[0] = 1
    again.append(columns | {"id": [1]}, widths, 0.0)
    assert again.on.tolist() == [1, -1]


def test_a_checkpoint_of_other_failures_is_refused(make_setup: Make, tmp_path: Path) -> None:
    saving = Checkpointing(tmp_path / "saved", every_rounds=1, resume=True)
    job, policy = Job(id=0, model="A", steps=90_000), Table({0: [1, 0]})
    run(make_setup([job], outages=[Outage(900.0, 950.0, (0,))]), policy, saving=saving)
    for outages in ([], [Outage(900.0, 990.0, (0,))]):
        with pytest.raises(InputError, match="checkpoint is of another run: its failures are not these"):
            run(make_setup([job], outages=outages), policy, saving=saving)


def test_outages_that_go_back_in_time_are_refused(make_setup: Make) -> None:
    outages = [Outage(at_s, at_s + 9.0, (0,)) for at_s in (100.0, 500.0, 150.0)]
    with pytest.raises(InputError, match="expected them in order of time, found 150 s after 500 s"):
        run(make_setup([Job(id=0, model="A", steps=9000)], outages=outages), Table({0: [1, 0]}))


def test_a_run_in_which_servers_only_fail_is_refused(make_setup: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stimuli, "_MOST_FAILURES", 50)
    outages = [Outage(5.0 + 9.0 * k, 13.0 + 9.0 * k, (0, 1, 2, 3)) for k in range(200)]
    setup = make_setup([Job(id=0, model="A", steps=9000)], outages=outages)
    with pytest.raises(InputError, match="servers failed 51 times while no job came or got done"):
        run(setup, Table({0: [1, 0]}))
    late = replace(setup, jobs=[Job(id=0, model="A", steps=400, arrival_s=3000.0)])  # nobody is there meanwhile
    assert run(late, Table({0: [1, 0]})).figures.completed == 1


@pytest.mark.parametrize("policy", ["max_min_fairness_perf", "fifo", "tiresias"])
def test_a_run_in_which_servers_are_mostly_down_is_refused(make_setup: Make, policy: str) -> None:
    outages = [Outage(9.0 + 1e8 * k, 1e8 * (k + 1), (0, 1, 2, 3)) for k in range(200)]
    with pytest.raises(InputError, match=r"while no job came or got done, and none ran for [34]..,...,... s"):
        run(make_setup([Job(id=0, model="A", steps=9e9)], outages=outages), make(policy), RoundRules(round_s=36_000.0))


@pytest.mark.parametrize("policy", ["max_min_fairness_perf", "fifo", "max_min_fairness_packed"])
@pytest.mark.parametrize("first_s", [0.0, 0.37])
def test_rounds_in_which_nobody_can_run_are_not_gone_through_and_change_nothing(
    make_setup: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, first_s: float
) -> None:
    jobs = [Job(id=i, model="AB"[i % 2], steps=3000 + 7 * i, arrival_s=first_s + 500.0 * i) for i in range(12)]
    outages = [Outage(900.0 + 90_000 * k, 900.0 + 72_000 * (k + 1), tuple(range(8))) for k in range(3)]
    asked: list[float] = []

    def go(name: str) -> bytes:
        run(make_setup(jobs, counts=(4, 4), outages=outages), make(policy), name=policy, journal=tmp_path / name)
        return (tmp_path / name).read_bytes()

    handle = Rounds.handle

    def heard(me: Rounds, rows: Sequence[Rows], now: float) -> list[Rows]:
        asked.append(now)
        return handle(me, rows, now)

    monkeypatch.setattr(Rounds, "handle", heard)
    short = go("short")
    few = len(asked)
    assert replay_journal(tmp_path / "short").difference is None
    asked.clear()
    monkeypatch.setattr(Rounds, "pass_over", lambda me, until_s: None)
    assert go("long") == short
    assert few < len(asked) - 150


@pytest.mark.parametrize("first_s", [0.0, 1.7e9 + 0.37])
def test_bounds_hold_whenever_jobs_come(make_setup: Make, tmp_path: Path, first_s: float) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        times = sorted(first_s + rng.uniform(0, 60) for _ in range(rng.randint(1, 8)))
        jobs = [Job(id=i, model="A", steps=rng.uniform(5, 60), arrival_s=at_s) for i, at_s in enumerate(times)]
        run(make_setup(jobs), make("fifo"), name="fifo", journal=tmp_path / "run.jsonl")
        assert check_journal(tmp_path / "run.jsonl").valid


def test_a_refused_checkpoint_leaves_the_journal_as_it_is(make_setup: Make, tmp_path: Path) -> None:
    """Of other jobs, of a journal that is another one, that is not there, or that was not kept."""
    one = Job(id=0, model="A", steps=9000)
    policy, file = Table({0: [1, 0]}), tmp_path / "one.jsonl"

    def go(job: Job, journal: Path | None, saved: str = "saved") -> None:
        saving = Checkpointing(tmp_path / saved, every_rounds=1, resume=True)
        run(make_setup([job]), policy, journal=journal, saving=saving)

    go(one, file)
    go(one, None, "without")
    strange = tmp_path / "strange.jsonl"
    strange.write_text("my own notes\n" * 9999)
    for job, journal, saved, words in (
        (replace(one, weight=2.0), file, "saved", "its jobs are not these"),
        (one, strange, "saved", "strange.jsonl: .*saved goes on with the journal whose first"),
        (one, tmp_path / "gone.jsonl", "saved", "gone.jsonl: .*saved goes on with the journal whose first"),
        (one, file, "without", "one.jsonl: .*without goes on with no journal"),
    ):
        before = journal.read_bytes() if journal.exists() else None
        with pytest.raises(InputError, match=words):
            go(job, journal, saved)
        assert (journal.read_bytes() if journal.exists() else None) == before


def test_a_checkpoint_of_another_run_is_refused(make_setup: Make, tmp_path: Path) -> None:
    saving = Checkpointing(tmp_path / "saved", every_rounds=1, resume=True)
    run(make_setup([Job(id=0, model="A", steps=9000)]), Table({0: [1, 0]}), saving=saving)
    with pytest.raises(InputError, match="checkpoint of another run"):
        run(make_setup([Job(id=0, model="A", steps=9000)], counts=(1, 1)), Table({0: [1, 0]}), saving=saving)
    first, other = Job(id=0, model="A", steps=9000), Job(id=1, model="A", steps=8)
    policy = Table({0: [1, 0], 1: [0, 1]})
    for jobs in ([replace(first, weight=2.0)], [first, other]):  # none of which the header tells
        with pytest.raises(InputError, match="checkpoint is of another run: its jobs"):
            run(make_setup(jobs), policy, saving=saving)


def test_a_wide_job_that_the_older_rules_drop_is_dropped_once(tmp_path: Path) -> None:
    trace, journal = tmp_path / "jobs.csv", tmp_path / "run.jsonl"
    trace.write_text("arrival_s,model,steps,width\n0,LM (batch size 20),2,4\n0,LM (batch size 20),1000000,1\n")
    found = cluster.simulate(cluster.load(trace=trace, cluster="8:0:0"), compat="gavel", journal=journal)
    assert found.figures.rejected == 1
    assert any("by the older rules a job with fewer steps left than accelerators fails" in note for note in found.notes)
    assert check_journal(journal).valid


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "print"),
        ("dovetail.cluster.checkpoint", "pickle.loads"),
        ("dovetail.cluster.sweeps.table", "import_module"),
        ("dovetail.cluster.export", "quantiles"),
    ],
)
def test_a_checkpoint_that_would_run_other_code_is_refused(
    make_setup: Make, tmp_path: Path, module: str, name: str
) -> None:
    path = tmp_path / "saved"
    named = "".join(f"\x8c{chr(len(word))}{word}" for word in (module, name)).encode("latin-1")
    path.write_bytes(b"dovetail cluster checkpoint 7\n\x80\x04" + named + b"\x93)R.")  # calls it without arguments
    with pytest.raises(InputError, match=re.escape(f"it holds {module}.{name}")):
        run(make_setup([Job(id=0, model="A", steps=9000)]), Table({0: [1, 0]}), saving=Checkpointing(path, resume=True))


def test_an_outage_of_no_time_ends_what_runs_there_and_no_more(make_setup: Make, tmp_path: Path) -> None:
    outages = [Outage(100.0, 100.0, (0,))]
    outcome, notes = _run(
        make_setup([Job(id=0, model="A", steps=4000)], counts=(1, 1), outages=outages),
        Table({0: [1, 0]}),
        NO_RESTART,
        tmp_path,
    )
    assert [of for _, of, _ in notes.seen if of in ("failed", "mended")] == ["failed", "mended"]
    assert outcome.figures.completed == 1


def test_a_server_fails_as_one_and_one_decision_follows(make_setup: Make, tmp_path: Path) -> None:
    """At 100 s the server of jobs 1 and 2 fails, job 0 ends on the other one, and job 4 comes; job 3 waits."""
    jobs = [Job(id=i, model="A", steps=4000 if i else 400) for i in range(4)]
    jobs.append(Job(id=4, model="A", steps=4000, arrival_s=100.0))
    setup = make_setup(jobs, counts=(3, 0), outages=[Outage(100.0, 5000.0, (0, 1))])
    for policy in (Table({i: [1, 0] for i in range(5)}), make("fifo")):
        _, notes = _run(setup, policy, NO_RESTART, tmp_path)
        then = [(of, columns) for t, of, columns in notes.seen if t == 100.0]
        assert [of for of, _ in then].count("failed") == 2
        (began,) = [columns for of, columns in then if of == "started"]
        assert (list(began["id"]), began["devices"]) == ([1], [(2,)])


def test_what_fails_when_the_first_job_comes_is_down_by_then(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup([Job(id=0, model="A", steps=400, arrival_s=50.0)], outages=[Outage(50.0, 900.0, (0, 1))])
    _, notes = _run(setup, Table({0: [1, 1]}), NO_RESTART, tmp_path)
    assert [columns["devices"] for _, of, columns in notes.seen if of == "started"] == [[(2,)]]


def test_time_never_goes_back_to_an_outage_while_nobody_was_there(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400), Job(id=1, model="A", steps=400, arrival_s=90_000.0)]
    outages = [Outage(5000.0, 6000.0, (0,)), Outage(80_000.0, 90_050.0, (1,))]
    outcome, notes = _run(make_setup(jobs, outages=outages), Table({0: [1, 0], 1: [1, 0]}), NO_RESTART, tmp_path)
    assert [t for t, of, _ in notes.seen if of in ("failed", "mended")] == [5000.0, 6000.0, 80_000.0, 90_050.0]
    assert outcome.figures.makespan_s == 90_100.0


def test_a_job_without_a_step_to_do_is_complete_at_once(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=0.0, arrival_s=5.0), Job(id=1, model="A", steps=400, arrival_s=5.0)]
    for ideal in (False, True):
        outcome = run(make_setup(jobs), Table({1: [1, 0]}), None if ideal else NO_RESTART, ideal=ideal)
        assert outcome.completion_s == {0: 0.0, 1: 100.0}


def test_an_ideal_run_sends_away_who_can_never_run(make_setup: Make) -> None:
    jobs = [Job(id=0, model="B", width=4, steps=100), Job(id=1, model="A", steps=400)]
    figures = run(make_setup(jobs), Table({0: [1, 1], 1: [1, 0]}), ideal=True).figures
    assert (figures.completed, figures.rejected) == (1, 1)


class Widen(Table):
    """Everybody is to be two wide."""

    elastic = True

    def allocate(self, problem: Problem) -> Allocation:
        found = super().allocate(problem)
        found.kind = np.full(problem.jobs, 2)
        return found


def test_an_elastic_policy_changes_widths_at_the_price_of_a_restart(make_setup: Make, tmp_path: Path) -> None:
    """It begins on one slow device inside a round, at 1 step/s, and has two fast ones, at 8, from the next round on."""
    jobs = [Job(id=0, model="A", steps=40), Job(id=1, model="A", steps=8000, arrival_s=10.0)]
    outcome, notes = _run(make_setup(jobs), Widen({0: [1, 0], 1: [1, 0]}), RoundRules(restart_s=20.0), tmp_path)
    widths = [len(each) for _, of, columns in notes.seen if of == "started" for each in columns["devices"]]
    assert widths == [2, 1, 2]
    assert outcome.completion_s[1] == pytest.approx(350 + 20 + (8000 - 330) / 8)
    assert outcome.figures.total_cost == pytest.approx((2 * 25 + 350 + 2 * (20 + 7670 / 8)) * 3.6 / 3600)


def test_a_policy_that_is_not_elastic_must_not_change_widths(make_setup: Make) -> None:
    policy = Widen({0: [1, 0]})
    policy.elastic = False
    with pytest.raises(DovetailError, match="not elastic"):
        run(make_setup([Job(id=0, model="A", steps=40)]), policy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": np.array([["1", "0"]])}, "share holds <U1, expected numbers"),
        ({"share": np.array([[1, None]])}, "share holds object, expected numbers"),
        ({"kind": np.array([2.0])}, "kind holds float64, expected whole numbers"),
        ({"kind": np.array([], dtype=int)}, r"kind is \(0,\), expected \(1,\)"),
        ({"pairs": np.array(5)}, r"pairs is \(\), expected \(1, 2\)"),
        ({"pairs": np.array([[0.0, 1.0]])}, "pairs holds float64, expected whole numbers"),
        ({"pairs": np.array([[0, 1, 2]]), "pair_share": np.ones((1, 2))}, r"pairs is \(1, 3\), expected \(1, 2\)"),
    ],
)
def test_an_allocation_of_the_wrong_kind_is_refused_in_words(
    make_setup: Make, given: dict[str, Any], message: str
) -> None:
    class Odd(Widen):
        def allocate(self, problem: Problem) -> Allocation:
            return replace(super().allocate(problem), **given)

    with pytest.raises(DovetailError, match=f"cannot be carried out: {message}"):
        run(make_setup([Job(id=0, model="A", steps=40)]), Odd({0: [1, 0]}))


@pytest.mark.parametrize("number", [np.int64, np.bool_, np.float32])
def test_shares_may_be_numbers_of_any_kind(make_setup: Make, tmp_path: Path, number: type[np.generic]) -> None:
    class Ones(Table):
        def allocate(self, problem: Problem) -> Allocation:
            found = super().allocate(problem)
            return replace(found, share=found.share.astype(number), pair_share=found.pair_share.astype(number))

    jobs = [Job(id=0, model="A", steps=2000), Job(id=1, model="B", steps=1500), Job(id=2, model="A", steps=40)]
    shares, pairs = {0: [0, 0], 1: [0, 0], 2: [0, 1]}, {(0, 1): [1, 0]}
    usual, _ = _run(make_setup(jobs), Table(shares, pairs), NO_RESTART, tmp_path)
    assert _run(make_setup(jobs), Ones(shares, pairs), NO_RESTART, tmp_path)[0].completion_s == usual.completion_s
    flows = [run(make_setup(jobs), each(shares, pairs), ideal=True).completion_s for each in (Table, Ones)]
    assert flows[0] == flows[1]


def test_shares_of_no_pairs_are_nobodys(make_setup: Make) -> None:
    class Odd(Table):
        def allocate(self, problem: Problem) -> Allocation:
            return replace(super().allocate(problem), pair_share=np.array([["x"]]))

    assert run(make_setup([Job(id=0, model="A", steps=40)]), Odd({0: [1, 0]}), NO_RESTART).figures.completed == 1


@pytest.mark.parametrize("of", ["counts", "prices", "ids", "kind", "rates", "width", "weight"])
def test_a_policy_cannot_change_what_it_is_shown(make_setup: Make, of: str) -> None:
    class Cheat(Table):
        def allocate(self, problem: Problem) -> Allocation:
            getattr(problem, of)[:] = 100
            return super().allocate(problem)

    with pytest.raises(DovetailError, match=r"allocate failed: ValueError: .*read-only"):
        run(make_setup([Job(id=0, model="A", steps=40)]), Cheat({0: [1, 0]}))


def test_rounds_must_be_longer_than_restarts() -> None:
    with pytest.raises(InputError, match="a restart of 10 s in rounds of 5 s"):
        RoundRules(round_s=5.0)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("it cannot"), "^it cannot"),
        (ZeroDivisionError("no"), "policy mine: allocate failed: ZeroDivisionErr"),
        (SystemExit(0), "policy mine: allocate failed: SystemExit: 0"),
    ],
)
def test_a_policy_that_fails_is_named_and_leaves_no_half_of_a_journal(
    make_setup: Make, tmp_path: Path, error: BaseException, message: str
) -> None:
    class Broken(Table):
        def allocate(self, problem: Problem) -> Allocation:
            raise error

    with pytest.raises(DovetailError, match=message):
        run(make_setup([Job(id=0, model="A", steps=40)]), Broken({}), name="mine", journal=tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_shares_that_are_none_are_refused_by_an_ideal_run_too(make_setup: Make) -> None:
    with pytest.raises(DovetailError, match="no share of time"):
        run(make_setup([Job(id=0, model="A", steps=40)]), Table({0: [float("nan"), 0]}), ideal=True)


def test_nobody_waits_for_shares_while_nothing_runs(make_setup: Make, tmp_path: Path) -> None:
    """The policy is asked at most every hour, but at once if the cluster would be idle otherwise."""

    class Strict(Table):
        strict = True

        def allocate(self, problem: Problem) -> Allocation:
            found = super().allocate(problem)
            found.share[1:] = 0.0
            return found

    jobs = [Job(id=i, model="A", steps=400) for i in range(2)]
    rules = RoundRules(restart_s=0.0, allocate_every_s=3600.0)
    outcome, _ = _run(make_setup(jobs), Strict({0: [1, 0], 1: [1, 0]}), rules, tmp_path)
    assert outcome.completion_s[1] <= 360 + 100


def test_an_ideal_run_gives_no_time_on_a_type_that_is_too_small(make_setup: Make) -> None:
    """Two wide jobs on one fast and two slow devices: the fast one is of no use to them, alone or together."""
    pairs = np.zeros((4, 4, 2))
    pairs[2, 2] = (6.0, 1.0)
    known = replace(THROUGHPUTS, pairs=pairs)
    jobs = [Job(id=i, model="A", width=2, steps=200) for i in range(2)]
    policy = Table({0: [0.1, 0.0], 1: [0.1, 0.0]}, {(0, 1): [0.4, 0.5]})
    outcome = run(make_setup(jobs, counts=(1, 2), throughputs=known), policy, ideal=True)
    assert outcome.completion_s == {0: 400.0, 1: 400.0}
