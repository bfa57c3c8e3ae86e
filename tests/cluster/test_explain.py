"""What is told of a job: where it ran, why it waited, how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from dovetail import cli
from dovetail.cluster.explain import explain
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.narrate import BEFORE, JobParts, JobStory, _parts
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.testing.cluster.fuzz import policies_for, random_case
from tests.cluster.conftest import Make, Table

FIRST_ONLY = {0: [1.0, 0.0], 1: [0.5, 0.0], 2: [0.2, 0.0]}


def _tell(
    setup: ClusterSetup, policy: Any, tmp_path: Path, job: str, rules: RoundRules | None = None, **how: Any
) -> JobStory:
    path = tmp_path / "run.jsonl"
    run(setup, policy, rules or RoundRules(restart_s=0.0), name="table", journal=path, **how)
    return explain(Reader(path), job)


def _jobs(count: int, **changes: Any) -> list[Job]:
    return [Job(id=i, model="A", steps=400, **changes) for i in range(count)]


def test_a_wait_names_who_held_the_accelerators(make_setup: Make, tmp_path: Path) -> None:
    story = _tell(make_setup(_jobs(3), counts=(1, 0)), Table(FIRST_ONLY), tmp_path, "2")
    (wait,) = story.waits
    assert (wait.from_s, wait.to_s) == (0.0, 200.0)
    (then,) = wait.types
    assert (then.type, then.free, then.count, then.holders) == ("fast", 0, 1, [0])
    assert (wait.others, wait.later, wait.first) == (1, 0, [1])  # job 1 began at 100 s
    assert [(lease.from_s, lease.to_s, lease.devices) for lease in story.leases] == [(200.0, 300.0, (0,))]
    assert story.leases[0].why == "accelerators were free"
    assert story.leases[0].end == "it was done"
    assert (story.completed_s, story.waited_s) == (300.0, 200.0)
    # With a third of the device at first, then a half, then all: 100/3 + 100/2 + 100 of 100 s.
    assert story.rho == pytest.approx((100 / 3 + 50 + 100) / 100)
    told = "\n".join(row[-1] for row in story.course())
    assert "none of 1 fast free, held by job 0; meanwhile 1 lease of others began there (first job 1)" in told


def test_later_arrivals_that_went_first_are_counted(make_setup: Make, tmp_path: Path) -> None:
    jobs = [
        Job(id=0, model="A", steps=4000),
        Job(id=1, model="A", steps=4000),
        Job(id=2, model="A", steps=4000, arrival_s=50.0),
    ]
    shares = {0: [0.5, 0.0], 1: [0.01, 0.0], 2: [0.49, 0.0]}
    story = _tell(make_setup(jobs, counts=(1, 0)), Table(shares), tmp_path, "1")
    wait = next(wait for wait in story.waits if wait.later)
    assert wait.later <= wait.others
    assert 2 in wait.first
    assert any(f"{wait.later} of them of later arrivals" in row[-1] for row in story.course())


def test_an_arrival_inside_a_round_may_be_seen_late(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=4000), Job(id=1, model="A", steps=400, arrival_s=50.0)]
    rules = RoundRules(restart_s=0.0, inside=False)
    story = _tell(make_setup(jobs), Table({0: [1, 0], 1: [1, 0]}), tmp_path, "1", rules)
    assert [(wait.from_s, wait.to_s) for wait in story.waits] == [(50.0, 360.0)]
    assert "was seen when that was over" in story.course()[0][-1]


def test_a_failure_and_a_move_end_leases(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup(
        [Job(id=0, model="A", steps=4000)], counts=(1, 0), outages=[Outage(at_s=500.0, until_s=700.0, devices=(0,))]
    )
    story = _tell(setup, Table({0: [1, 0]}), tmp_path, "job 0")
    assert [lease.end for lease in story.leases] == ["accelerator 0 failed", "it was done"]
    (wait,) = story.waits
    assert (wait.types[0].free, wait.types[0].down) == (0, 1)
    assert "none of 1 fast free, 1 down" in story.course()[1][-1]


def test_company_that_changes_is_told(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=200), Job(id=1, model="B", steps=350)]
    rules = RoundRules(restart_s=7.0, inside=False)
    story = _tell(make_setup(jobs, counts=(1, 0)), Table({}, {(0, 1): [1.0, 0.0]}), tmp_path, "1", rules)
    first, second = story.leases
    assert (first.beside, first.end, first.setup_s) == (0, "only its company changed", 7.0)
    assert (second.beside, second.why, second.setup_s) == (None, "kept its place: only its company changed", 0.0)


def test_deadline_weight_and_name_are_told(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400, due_s=80.0, weight=5.0, name="nightly"), Job(id=1, model="A", steps=400)]
    story = _tell(make_setup(jobs), Table({0: [1, 0], 1: [1, 0]}), tmp_path, "nightly")
    text = "\n".join([*story.opening(), *story.closing()])
    assert "Job 0 (nightly) arrived at 0.00 s: 400 steps of A on 1 accelerator." in text
    assert "Its weight is 5." in text
    assert "That was 20.00 s after its deadline." in text
    assert "and never waited." in text
    assert explain(Reader(tmp_path / "run.jsonl"), "1").due_s is None


def test_a_summary_tells_the_ends_only(make_setup: Make, tmp_path: Path) -> None:
    story = _tell(make_setup(_jobs(3), counts=(1, 0)), Table(FIRST_ONLY), tmp_path, "2", mode="summary")
    assert (story.leases, story.waits, story.completed_s) == ([], [], 300.0)
    assert story.rho is not None
    assert "it holds no leases" in story.opening()[-1]


def test_a_run_that_ends_or_breaks_off_before_the_job(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400), Job(id=1, model="A", steps=4000)]
    story = _tell(make_setup(jobs, window=(0, 1)), Table({0: [1, 0], 1: [1, 0]}), tmp_path, "1")
    assert story.leases[-1].end == "the run ended"
    assert story.closing()[-1] == "It was not complete when the run ended at 100.00 s."
    path = tmp_path / "run.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    cut = explain(Reader(path), "1")
    assert cut.closing()[-1] == "The journal breaks off at 0.00 s, before it was complete."
    assert cut.course()[-1][-1].endswith("still running")


def test_unknown_jobs_and_other_levels_are_named(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=0, model="A", steps=400, name="nightly")]
    with pytest.raises(InputError, match=r"no job 'nigthly'; jobs 0 to 0 arrived; did you mean 'nightly'\?"):
        _tell(make_setup(jobs), Table({0: [1, 0]}), tmp_path, "nigthly")


# --- in words, from the journal's data --------------------------------------------------------------------------------


def _leases(path: Path) -> list[dict[str, Any]]:
    """All leases of a run, from its rows."""
    found: list[dict[str, Any]] = []
    running: dict[int, dict[str, Any]] = {}
    for _, t, events in Reader(path).rows():
        for rows in events:
            if not isinstance(rows, Rows) or rows.of not in ("started", "stopped"):
                continue
            columns = rows.columns
            for i, job in enumerate(columns["id"]):
                if rows.of == "stopped":
                    found.append(running.pop(job) | {"to": t})
                    continue
                shared = "beside" in columns and columns["beside"][i] >= 0
                many = len(columns["devices"][i]) * (0.5 if shared else 1.0)
                running[job] = {"job": job, "on": columns["on"][i], "from": t, "many": many}
    return found


@pytest.mark.parametrize("seed", [3, 8, 11, 17, 20, 32, 40, 41, 42, 43, 44, 45])
def test_the_numbers_add_up(seed: int, tmp_path: Path) -> None:
    case, path = random_case(seed), tmp_path / "run.jsonl"
    rules = replace(case.rules, inside=True)
    for policy in policies_for(case)[seed % 3 :: 6]:
        run(case.setup, make(policy), rules, name=policy, journal=path)
        leases = _leases(path)
        for job in case.jobs[::2]:
            story = explain(Reader(path), str(job.id))
            if story.parts is not None:
                assert story.completed_s is not None
                took_s = story.completed_s - story.arrived_s
                parts = asdict(story.parts)
                best_s, slower_s = parts.pop("best_s"), parts.pop("slower_s")
                assert sum(parts.values()) == pytest.approx(took_s, abs=1e-6)
                assert best_s + slower_s == pytest.approx(parts["work_s"])
                assert min(best_s, slower_s, *parts.values()) >= 0
            for wait in (wait for wait in story.waits if wait.to_s is not None and not wait.why):
                usable = [then.type for then in wait.types]
                for (j, name), there in product(enumerate(case.setup.types), (True, False)):
                    told = sum(
                        each.accelerator_s
                        for each in wait.went_first
                        if each.type == name and (each.reason == BEFORE) == there
                    )
                    held = sum(
                        max(min(lease["to"], wait.to_s) - max(lease["from"], wait.from_s), 0) * lease["many"]
                        for lease in leases
                        if lease["on"] == j and lease["job"] != job.id and name in usable
                        if (lease["from"] < wait.from_s) == there
                    )
                    assert told == pytest.approx(held, abs=1e-6)


def test_a_wait_says_why_others_went_first(make_setup: Make, tmp_path: Path) -> None:
    jobs = [Job(id=i, model="A", steps=4000, entity=f"e{i % 3}", due_s=1500.0) for i in range(4)]
    setup = make_setup(jobs, counts=(1, 0))
    setup.entities = {"e0": 1.0, "e1": 1.0, "e2": 1.0}
    story = _tell(setup, Table({i: [0.25, 0.0] for i in range(4)}), tmp_path, "3", RoundRules(restart_s=10.0))
    assert story.entity == "e0"
    owed = next(each for wait in story.waits for each in wait.went_first if each.reason == records.ROUND)
    assert owed.type == "fast"
    assert "e0" not in owed.entities  # its own
    text = "\n".join(story.closing())
    assert "2 entities were owed more on fast (e1, e2; 3 jobs, 1 of its own entity, " in text
    assert "there before it" not in text  # all four came at once
    assert "It waited " in text
    assert "after its deadline." in text
    assert "Most of what came on top of its work was waiting, " in text
    assert " of work at its best" in text


def test_failures_and_deadlines_that_nobody_could_keep(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup(
        [Job(id=0, model="A", steps=4000, due_s=900.0)],
        counts=(1, 0),
        outages=[Outage(at_s=500.0, until_s=700.0, devices=(0,))],
    )
    story = _tell(setup, Table({0: [1, 0]}), tmp_path, "0", RoundRules(restart_s=10.0))
    assert story.parts is not None
    assert story.parts.lost_s == pytest.approx(140.0)  # since the round began, at 360 s
    assert (story.parts.waits_s, story.parts.restarts_s, story.parts.best_s) == (220.0, 20.0, 1000.0)
    text = "\n".join(story.closing())
    assert "Failures cost it 2 min 20 s of work." in text
    assert "No schedule could have kept it: its work takes 16 min 40 s at its best." in text


def test_a_start_that_a_failure_cuts_short_took_no_longer(make_setup: Make, tmp_path: Path) -> None:
    outages = [Outage(500.0, 700.0, (0,)), Outage(505.0, 700.0, (1,))]
    setup = make_setup([Job(id=0, model="A", steps=4000)], counts=(2, 0), outages=outages)
    story = _tell(setup, Table({0: [1, 0]}), tmp_path, "0", RoundRules(restart_s=10.0))
    assert [lease.end for lease in story.leases] == ["accelerator 0 failed", "accelerator 1 failed", "it was done"]
    assert story.parts is not None
    assert story.parts.restarts_s == 25.0
    assert "It was moved twice; restarts took 15 s." in "\n".join(story.closing())


def _main(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["cluster", "explain", "3"]) == 2
    assert "no *.jsonl of a cluster in this folder" in capsys.readouterr().err
    _main(["cluster", "simulate", "--jobs", "9", "-c", "1:1:1", "--journal", "run.jsonl"], capsys)
    newer = tmp_path / "host.jsonl"  # of another level
    newer.write_bytes((tmp_path / "run.jsonl").read_bytes().splitlines()[0].replace(b'"cluster"', b'"host"', 1) + b"\n")
    os.utime(newer, ns=(2**62, 2**62))
    text = _main(["cluster", "explain", "3"], capsys)
    assert "Job 3 arrived at 0.00 s" in text
    assert "waited" in text
    assert "Its finish-time rho is" in text
    data = json.loads(_main(["cluster", "explain", "3", "--journal", "run.jsonl", "--format", "json"], capsys))
    assert data["job"] == 3
    assert data["leases"][-1]["end"] == "it was done"
    assert "leases run, makespan" in _main(["check", "run.jsonl"], capsys)
    assert "page: run.html" in _main(["report", "run.jsonl"], capsys)


def test_other_jobs_of_the_same_name_are_told(make_setup: Make, tmp_path: Path) -> None:
    setup = make_setup(_jobs(3, name="bert"), counts=(1, 0))
    assert (
        "3 jobs have this name, of which it is the first; others: 1, 2."
        in _tell(setup, Table(FIRST_ONLY), tmp_path, "bert").opening()
    )
    assert _tell(setup, Table(FIRST_ONLY), tmp_path, "1").namesakes == []


def test_what_rounding_leaves_is_no_time() -> None:
    parts = JobParts(waits_s=0.0, restarts_s=10.0, lost_s=0.0, work_s=3600.0, best_s=3600.0, slower_s=1.82e-12)
    assert _parts(parts) == "10 s starting, 1 h 0 min of work at its best"
