"""Jobs whose rate changes: epochs and batches by an application's profile, phases that a job comes with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dovetail import cluster
from dovetail.cluster.check import check_journal
from dovetail.cluster.inputs.scenario import LoadedScenario
from dovetail.cluster.policies.base import AdaptiveJobs, Allocation, Problem
from dovetail.cluster.rounding.phases import Phases
from dovetail.core.errors import DovetailError

LOCAL = (4, 8, 16, 32)
PLACES = {"1": 0.0, "2": 0.05, "4": 0.08, "44": 0.3, "22": 0.2}


class Doubling:
    """Jobs in order of arrival have twice what they had, as far as there is room; in a pause they keep it."""

    agnostic, packs, strict, elastic, every_round = False, False, True, True, True
    seen: ClassVar[list[tuple[int, AdaptiveJobs]]] = []  # by all copies

    def __init__(self, times: int = 1, most: int = 8) -> None:
        self.times, self.most = times, most

    def allocate(self, problem: Problem) -> Allocation:
        assert problem.adaptive is not None
        self.seen.append((int(problem.ids[0]), problem.adaptive))
        known, free = problem.adaptive, problem.counts.copy()
        assert problem.scaled is not None
        assert problem.kind_width is not None
        share, kind = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
        for job in range(problem.jobs):
            of = known.applications[known.application[job]]
            width = min(self.times * of.most_width(int(known.widest[job].max())), self.most)
            if known.pause_s[job] > 0:
                width = int(problem.width[job])
            while width > free[0]:
                width //= 2
            if width:
                same = problem.scaled[problem.kind[job]]
                kind[job] = next(k for k in same if k >= 0 and problem.kind_width[k] == width)
                share[job, 0] = 1.0
                free[0] -= width
        return Allocation(share=share, kind=kind, why="twice as many")


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """An application of ten epochs that can use larger batches later, and one of three."""
    for name, epochs, noise in (("vision", 10, 2.0), ("speech", 3, 0.5)):
        folder = tmp_path / "profiles" / name
        folder.mkdir(parents=True)
        rows = ["placement,local_bsz,step_time,sync_time"]
        for place, sync in PLACES.items():
            rows += [f"{place},{local},{0.1 + 0.02 * local + sync},{sync + 0.001}" for local in LOCAL]
        (folder / "placements-t.csv").write_text("\n".join(rows))
        for batch in (16, 64, 256):
            ends = (f"{100 * (e + 1) + batch / 64},1.0,{noise * (e + 1) ** 2}" for e in range(epochs))
            (folder / f"validation-{batch}.csv").write_text("\n".join(["progress,grad_sqr,grad_var", *ends]))
    return tmp_path / "profiles"


@pytest.fixture
def jobs(profiles: Path) -> LoadedScenario:
    rows = [
        {"name": f"{of}-{i}", "time": 70 * i, "application": of, "num_replicas": 2, "batch_size": 64}
        for i, of in enumerate(["vision", "speech", "vision", "speech"])
    ]
    return cluster.load(cluster="t=8", per_server=4, profiles=profiles, trace=rows)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The journal with rows changed; `change` is called for every one until it says that it did something."""
    done, lines = False, []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        done = done or bool(change(record))
        lines.append(json.dumps(record))
    assert done
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("policy", [Doubling(), "sia", "goodput_lookahead", "max_min_fairness_perf", "fifo"])
def test_runs_are_valid_and_decided_the_same_again(jobs: LoadedScenario, policy: Any) -> None:
    run = cluster.simulate(jobs, policy, interval=360 if policy in ("max_min_fairness_perf", "fifo") else 60)
    report = run.check()
    assert report.valid, report
    assert run.figures.completed == 4
    assert run.replay().difference is None
    assert run.metrics["bound_avg_jct_s"] < run.metrics["avg_jct_s"]


def test_runs_without_epochs_say_so(jobs: LoadedScenario) -> None:
    def told(notes: list[str]) -> list[str]:
        return [note for note in notes if "mean rate of the batch that they ask for" in note]

    assert not told(cluster.simulate(jobs, "fifo").notes)
    assert told(cluster.simulate(jobs, "fifo", ideal=True).notes)[0].startswith("ideal: ")
    assert told(cluster.simulate(jobs, "fifo", compat="gavel").notes)[0].startswith("compat gavel: ")
    assert told(cluster.compare(jobs, ["fifo"], ideal=True).notes)
    assert told(cluster.round_lengths(jobs, [360], ["fifo"], seeds=[0]).notes)
    assert not told(cluster.compare(cluster.load(cluster="v100=1", jobs=2), ["fifo"], ideal=True).notes)


def test_policies_are_told_what_a_restart_costs_by_the_rules(jobs: LoadedScenario) -> None:
    Doubling.seen.clear()
    cluster.simulate(jobs, Doubling(), interval=60, restart_s=25, journal=False)
    assert {of.restart_s for _, known in Doubling.seen for of in known.applications} == {25.0}


def test_jobs_without_an_application_may_come_beside_others(jobs: LoadedScenario) -> None:
    kinds = jobs.setup.adaptive
    assert kinds is not None
    some = replace(kinds, application=np.where(np.arange(len(kinds.application)) == 0, -1, kinds.application))
    phases = Phases(("t",), np.array([4]), some, True, False)
    phases.arrive({"id": [0, 1], "kind": [0, 1], "steps": [10.0, 10.0]})
    known = phases.columns(np.arange(2), np.arange(2), np.zeros(2))
    assert known is not None
    assert known.application.tolist()[0] == -1
    assert phases.place(0, 0, (1,), True) is None
    assert known.on.tolist() == [-1, -1]


def test_rounds_as_in_sias_simulator(jobs: LoadedScenario, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = cluster.simulate(jobs, Doubling(), interval=60, compat="sia", journal=path)
    assert run.check().valid
    assert run.replay().difference is None
    starts = [json.loads(line) for line in path.read_text().splitlines() if '"of":"started"' in line]
    for record in starts:
        if {0, 3} & set(record["columns"]["why"]):  # a new place; batches and epochs change in between
            assert record["t"] % 60 == 0


def test_small_jobs_move_for_nothing_where_a_wide_one_needs_a_server(profiles: Path, tmp_path: Path) -> None:
    """Two servers of four: two jobs of one are spread over both by chance of who ended; then one wants four."""
    rows = [
        {"name": f"{i}", "time": at, "application": of, "num_replicas": width, "batch_size": 64}
        for i, (at, of, width) in enumerate([(0, "speech", 3), (0, "vision", 1), (0, "vision", 2), (200, "vision", 4)])
    ]
    loaded = cluster.load(cluster="t=8", per_server=4, profiles=profiles, trace=rows)
    path = tmp_path / "run.jsonl"
    run = cluster.simulate(loaded, "fifo", interval=60, compat="sia", journal=path)
    assert run.check().valid, run.check()
    assert run.replay().difference is None
    starts = [json.loads(line)["columns"] for line in path.read_text().splitlines() if '"of":"started"' in line]
    moved = [(columns, i) for columns in starts for i, why in enumerate(columns["why"]) if why == 5]
    assert moved
    assert all(columns["setup_s"][i] == 0.0 for columns, i in moved)
    [wide] = [columns["devices"][columns["id"].index(3)] for columns in starts if 3 in columns["id"]][:1]
    assert len({device // 4 for device in wide}) == 1


def test_a_rigid_job_alone_takes_its_epochs_at_the_batch_that_it_asked_for(profiles: Path) -> None:
    row = {"name": "a", "time": 0, "application": "vision", "num_replicas": 2, "batch_size": 64}
    loaded = cluster.load(cluster="t=8", per_server=4, profiles=profiles, trace=[row])
    run = cluster.simulate(loaded, "fifo")
    seconds = 0.0
    for epoch in range(10):
        work = 100 * (epoch + 1) + 16 / 64 - (100 * epoch + 16 / 64 if epoch else 0)
        noise = 2.0 * (epoch + 1) ** 2
        seconds += work * (0.1 + 0.02 * 32 + 0.05) / ((noise + 1) / (noise / 4 + 1))
    assert run.completion_s[0] == pytest.approx(10 + seconds)  # and a restart


def test_jobs_choose_larger_batches_as_their_noise_grows(jobs: LoadedScenario) -> None:
    Doubling.seen.clear()
    cluster.simulate(jobs, Doubling(), interval=60)
    first = [known for job, known in Doubling.seen if job == 0]
    batches = [int(a.widest[0, 0] * a.local[0] * (a.steps[0] + 1)) for a in first]
    assert batches[1] == 16
    assert batches[-1] > 64
    assert np.isnan(first[0].numbers).all()
    assert np.isfinite(first[3].numbers[0]).all()
    assert len(first[-1].points[0][0]) > 1


def test_a_policy_that_more_than_doubles_is_stopped(jobs: LoadedScenario) -> None:
    with pytest.raises(DovetailError, match="it may have 1 by now"):
        cluster.simulate(jobs, Doubling(times=2), interval=60)


class Cheat(Doubling):
    """Would have smaller servers in this run, and in all others of these jobs."""

    def allocate(self, problem: Problem) -> Allocation:
        assert problem.adaptive is not None
        problem.adaptive.per_server[:] = 1
        return super().allocate(problem)


def test_a_policy_cannot_change_the_servers_that_it_is_shown(jobs: LoadedScenario) -> None:
    with pytest.raises(DovetailError, match=r"allocate failed: ValueError: .*read-only"):
        cluster.simulate(jobs, Cheat(), interval=60, journal=False)


class AsWideAsOthers(Doubling):
    """New jobs have four accelerators at once, if another one of their application had them."""

    wide_as_others = True

    def allocate(self, problem: Problem) -> Allocation:
        known = problem.adaptive
        assert known is not None
        for job, of in enumerate(known.application.tolist()):
            others = known.widest[(known.application == of) & (known.on >= 0)].max(initial=0)
            if others >= 2 and not known.widest[job].any():
                known.widest[job] = 2
        return super().allocate(problem)


def test_jobs_of_a_known_application_may_begin_wide(jobs: LoadedScenario, tmp_path: Path) -> None:
    """Also by the checker, whatever each of them had before."""
    journal = tmp_path / "run.jsonl"
    run = cluster.simulate(jobs, AsWideAsOthers(most=4), journal=journal, interval=60)
    first: dict[int, int] = {}
    for line in map(json.loads, journal.read_text().splitlines()):
        if line.get("of") == "started":
            for job, devices in zip(line["columns"]["id"], line["columns"]["devices"], strict=True):
                first.setdefault(job, len(devices))
    assert (first[0], first[2]) == (1, 4)
    assert run.check().valid, run.check()


def test_who_does_not_say_so_is_held_to_what_each_job_had(
    jobs: LoadedScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run, and by the checker of a journal that says nothing of it, as those of `sia` and `pollux`."""
    journal = tmp_path / "run.jsonl"
    cluster.simulate(jobs, AsWideAsOthers(most=4), journal=journal, interval=60)
    rewrite(journal, lambda record: record.get("facts", {}).pop("wide_as_others", False))
    report = check_journal(journal)
    assert set(report.faults_by_code) == {"width"}
    assert "it may have 1 accelerators by now, found 4" in str(report)
    monkeypatch.setattr(AsWideAsOthers, "wide_as_others", False)
    with pytest.raises(DovetailError, match="gave job 2 4 accelerators; it may have 1 by now"):
        cluster.simulate(jobs, AsWideAsOthers(most=4), interval=60, journal=False)


@pytest.mark.parametrize("policy", ["sia", "pollux", "goodput_lookahead"])
def test_journals_say_by_whose_width_jobs_double(jobs: LoadedScenario, tmp_path: Path, policy: str) -> None:
    journal = tmp_path / "run.jsonl"
    cluster.simulate(jobs, policy, journal=journal, interval=60)
    facts = json.loads(journal.read_text().splitlines()[0])["facts"]
    assert facts.get("wide_as_others", False) == (policy == "goodput_lookahead")


@pytest.mark.parametrize("policy", [Doubling(), "max_min_fairness_perf"])
def test_a_checkpoint_goes_on_with_the_same_bytes(jobs: LoadedScenario, tmp_path: Path, policy: Any) -> None:
    whole, parts, kept = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", tmp_path / "run.ckpt"
    interval = 60.0 if isinstance(policy, Doubling) else 360.0
    how: dict[str, Any] = {"checkpoint_every": 3, "interval": interval}
    cluster.simulate(jobs, policy, journal=whole, checkpoint_file=tmp_path / "whole.ckpt", **how)
    how |= {"journal": parts, "checkpoint_file": kept}
    cluster.simulate(jobs, policy, **how)  # the last checkpoint is some rounds before the end
    parts.write_bytes(parts.read_bytes()[:-200])
    cluster.simulate(jobs, policy, **how, resume=True)
    assert parts.read_bytes() == whole.read_bytes()


def shockwave(tmp_path: Path) -> LoadedScenario:
    line = "{}\trun\tfolder\t--steps\t1\t{}\t{}\t{}\t1\t-1\t1418\t{}\n"
    jobs = [("LM (batch size 10)", 200000, 1, "gns"), ("ResNet-18 (batch size 64)", 90000, 2, "accordion")] * 4
    path = tmp_path / "jobs.trace"
    path.write_text("".join(line.format(*job, 100 * i) for i, job in enumerate(jobs)))
    return cluster.load(cluster="v100=3,k80=2", per_server=2, trace=path)


@pytest.mark.parametrize(
    "policy", ["max_min_fairness_packed", "fifo", "elastic_throughput", "shortest_remaining", "shockwave"]
)
def test_phases_that_jobs_come_with_are_valid_alone_and_beside_others(tmp_path: Path, policy: str) -> None:
    run = cluster.simulate(shockwave(tmp_path), policy)
    report = run.check()
    assert report.valid, report
    assert run.replay().difference is None


def test_a_summary_of_jobs_in_phases_is_valid(tmp_path: Path, jobs: LoadedScenario) -> None:
    for loaded, policy in ((shockwave(tmp_path), "fifo"), (jobs, Doubling())):
        path = tmp_path / "run.jsonl"
        cluster.simulate(loaded, policy, interval=60, journal=path, journal_mode="summary")
        report = check_journal(path)
        assert report.valid, report


def test_a_job_alone_runs_through_its_phases(tmp_path: Path) -> None:
    path = tmp_path / "jobs.trace"
    path.write_text("LM (batch size 10)\trun\tfolder\t--steps\t1\t200000\t1\tgns\t1\t-1\t1418\t0\n")
    loaded = cluster.load(cluster="v100=1", trace=path)
    rates = dict(zip(loaded.setup.throughputs.kinds, loaded.setup.throughputs.alone[:, 0], strict=True))
    epoch = 5968.0
    parts = {"": 11 * epoch, " now 20": 10 * epoch, " now 40": 200000 - 21 * epoch}
    seconds = sum(steps / rates[f"LM (batch size 10){name}", 1] for name, steps in parts.items())
    run = cluster.simulate(loaded, "fifo")
    assert run.completion_s[0] == pytest.approx(10 + seconds)
    assert run.metrics["bound_avg_jct_s"] == pytest.approx(seconds)
    assert run.metrics["rho_mean"] == pytest.approx((10 + seconds) / seconds, rel=1e-3)


def test_policies_see_what_was_done_in_each_mode(tmp_path: Path) -> None:
    seen: list[tuple[list[list[int]], list[list[float]], list[float]]] = []

    def first_come(problem: Problem) -> Allocation:
        assert problem.phased is not None
        left = problem.steps_left.tolist()
        seen.append((problem.phased.modes.tolist(), problem.phased.done.tolist(), left))
        return Allocation(share=np.ones((problem.jobs, len(problem.types))))

    loaded = shockwave(tmp_path)
    cluster.simulate(loaded, first_come)
    for modes, done, left in seen:
        for of_job, steps, rest in zip(modes, done, left, strict=True):
            assert sum(steps) + rest in (pytest.approx(200000), pytest.approx(90000))
            assert all(n == 0 for mode, n in zip(of_job, steps, strict=True) if mode < 0)
    assert max(sum(n > 0 for n in steps) for _, done, _ in seen for steps in done) > 1


@pytest.mark.parametrize("policy", ["sia", "fifo_perf"])
def test_jobs_with_profiles_are_planned_for(policy: str, profiles: Path) -> None:
    """Every plan that a bound rules out fails in a simulation as well, and the answer is the best of all."""
    rows = [
        {"name": f"{name}-{i}", "time": 300 * i, "application": name, "num_replicas": 1 + i % 2, "batch_size": 64}
        for i, name in enumerate(("vision", "speech", "vision", "speech", "vision"))
    ]
    loaded = cluster.load(cluster="t=6", per_server=2, profiles=profiles, trace=rows)
    by_count = {}
    for count in (2, 4, 6):
        fewer = cluster.load(loaded.scenario, cluster=f"t={count}")
        by_count[count] = cluster.simulate(fewer, policy, journal=False).metrics["p95_jct_s"]
    limit_s = sorted(by_count.values())[1] * 1.001
    found = cluster.plan(loaded, policy, p95=limit_s, minimise="accelerators")
    assert found.plan is not None
    assert found.plan.accelerators == min(count for count, p95_s in by_count.items() if p95_s <= limit_s)
    assert found.plan.figures["p95"] == pytest.approx(by_count[found.plan.accelerators])
    assert 0 < found.alone["p95"] <= found.plan.figures["p95"]
    none = cluster.plan(loaded, policy, p95=found.alone["p95"] * 0.5)
    assert (none.plan, none.runs) == (None, 0)
    assert "no schedule has p95 below" in none.reason


def test_what_rates_that_change_make_unknown_is_not_told(jobs: LoadedScenario, tmp_path: Path) -> None:
    """A policy that is asked every round owes nobody time."""
    for loaded, policy in ((jobs, "sia"), (shockwave(tmp_path), "shockwave")):
        run = cluster.simulate(loaded, policy, interval=60)
        stories = [run.explain(str(job)).stories[0] for job in run.completion_s]
        for story in stories:
            assert (story.parts.best_s, story.parts.slower_s) == (None, None)
            parts = story.parts.waits_s + story.parts.restarts_s + story.parts.lost_s + story.parts.work_s
            assert parts == pytest.approx(story.completed_s - story.arrived_s)
        words = " ".join(run.explain(str(job)).text for job in run.completion_s)
        assert "owed" not in words
        assert "the policy chose it for this round" in words
        assert "of work" in words
        assert ("chosen by the policy on" in words) == (policy == "shockwave")  # the other cluster is never full


def test_numbers_are_fitted_only_for_who_looks_at_them(jobs: LoadedScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, fit = [], Phases._fit

    def counted(self: Phases, who: Any) -> None:
        fitted.append(who)
        fit(self, who)

    monkeypatch.setattr(Phases, "_fit", counted)
    cluster.simulate(jobs, "max_min_fairness_perf", interval=60, journal=False)
    assert not fitted
    cluster.simulate(jobs, "sia", interval=60, journal=False)
    assert fitted


def of(record: dict[str, Any], kind: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = record["columns"] if record.get("of") == kind else None
    return found


def larger_batch(record: dict[str, Any]) -> bool:
    columns = of(record, "started")
    if columns is None or columns["local"][0] >= 32:
        return False
    columns["local"][0] += 1
    return True


def batch_beyond_memory(record: dict[str, Any]) -> bool:
    columns = of(record, "started")
    if columns is None:
        return False
    columns["local"][0] = 33
    return True


def batch_beyond_the_largest(record: dict[str, Any]) -> bool:
    columns = of(record, "started")
    if columns is None:
        return False
    columns["accumulation"][0] = 64
    return True


def four_at_once(record: dict[str, Any]) -> bool:
    columns = of(record, "started")
    if columns is None:
        return False
    columns["kind"][0], columns["devices"][0] = columns["kind"][0] + 3, [0, 1, 2, 3]  # the first start of all
    return True


def pause_left_out(record: dict[str, Any]) -> bool:
    columns = of(record, "started")
    if columns is None or not columns["setup_s"][0]:
        return False
    columns["setup_s"][0] = 0.0
    return True


def phase_left_out(record: dict[str, Any]) -> bool:
    if of(record, "phase") is None:
        return False
    record.update({"of": "envy", "columns": {"share": [0.0]}, "decided": True})
    return True


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (larger_batch, "steps"),
        (batch_beyond_memory, "batch"),
        (batch_beyond_the_largest, "batch"),
        (four_at_once, "width"),
        (pause_left_out, "restart"),
        (phase_left_out, "phase"),
    ],
)
def test_planted_faults_are_found(
    jobs: LoadedScenario, tmp_path: Path, fault: Callable[[dict[str, Any]], bool], code: str
) -> None:
    path = tmp_path / "run.jsonl"
    cluster.simulate(jobs, Doubling(), interval=60, journal=path)
    assert check_journal(path).valid
    assert code in check_journal(rewrite(path, fault)).faults_by_code


@pytest.mark.parametrize("policy", ["optimus", "elastic_throughput"])
def test_elastic_policies_give_no_more_than_a_job_may_have(jobs: LoadedScenario, policy: str) -> None:
    run = cluster.simulate(jobs, policy, interval=60, restart_s=5)
    assert run.check().valid
    assert run.replay().difference is None
