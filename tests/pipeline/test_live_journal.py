"""Journals of live runs: what was seen is written at the time it was seen, and decisions can be made again from it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import check_journal
from dovetail.core.events import Added, Arrived, Complete, Decided, Finished, Observed, Reject, Start
from dovetail.core.journal import Reader
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.supervisor import Joined, Patience
from dovetail.pipeline.live.wire import Offset, Visit
from dovetail.pipeline.scheduler import scheduler_for
from dovetail.report.data.collect import collect
from dovetail.testing.pipeline_live import PlayedRun, even_plan

PATIENT = RunOptions(patience=Patience(heartbeat_limit_s=1000.0))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    skew_s=st.sampled_from([0.0, 0.2]),
    replicas=st.sampled_from([1, 2]),
    deaths=st.dictionaries(st.integers(1, 11), st.sampled_from(["h0", "h1", "h2"]), max_size=3),
)
def test_any_run_gives_a_valid_journal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, skew_s: float, replicas: int, deaths: dict[int, str]
) -> None:
    path = tmp_path_factory.mktemp("live") / "run.jsonl"
    plan = even_plan(4, replicas)
    played = PlayedRun(path, plan, seed=seed, deaths=deaths, skew_s=skew_s, error_s=0.01, options=PATIENT)
    report = check_journal(path)
    assert report.valid, report.faults
    assert played.counter.completed == report.counted["completed"] == 12


def _events(path: Path, kind: type) -> list[Any]:
    return [entry.event for entry in Reader(path) if isinstance(entry.event, kind)]


def test_interrupted_microbatches_come_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    PlayedRun(path, even_plan(2), 5, deaths={2: "h1"}, options=PATIENT)
    reader = Reader(path)
    assert (reader.header.mode, reader.header.order) == ("live", "written")
    assert [graph.name for graph in reader.header.graphs] == ["microbatch"]
    (added,) = _events(path, Added)
    assert [graph.name for graph in added.graphs] == ["microbatch (plan 2)"]
    completed = [event.job for event in _events(path, Complete)]
    assert completed[:3] == ["microbatch 1", "microbatch 2", "microbatch 3 (plan 2)"]
    rejected = _events(path, Reject)
    assert rejected[0].job == "microbatch 3"
    assert all("what h1 did at the last is not known" in event.why for event in rejected)


def test_times_are_written_as_they_were_seen(tmp_path: Path) -> None:
    """Every stamp of the journal is one that a host gave, and two microbatches at once on a stage are a finding."""
    path = tmp_path / "run.jsonl"
    played = PlayedRun(path, even_plan(3), 20, options=PATIENT)
    starts = {(e.event.job, e.event.task): e.t for e in Reader(path) if isinstance(e.event, Start)}
    ends = {(e.event.job, e.event.task): e.t for e in Reader(path) if isinstance(e.event, Finished)}
    stage = even_plan(3).stages[0].host
    seen = [ends[f"microbatch {n}", stage] - starts[f"microbatch {n}", stage] for n in range(1, 21)]
    result = played.counter.stages(1, even_plan(3), played.journal.ids)[0]
    assert result.compute_s == pytest.approx(median(seen[2:]))
    begun_s = starts["microbatch 5", stage]
    lines = path.read_text().splitlines(keepends=True)
    (at,) = [
        i
        for i, line in enumerate(lines)
        if f'"t":{begun_s}' in line and '"started"' in line and f'"task":"{stage}"' in line
    ]
    lines[at] = lines[at].replace(f'"t":{begun_s}', f'"t":{begun_s - 0.5}')
    path.write_text("".join(lines))
    assert "overlap" in check_journal(path).faults_by_code


def test_clock_errors_are_stated_and_allowed_no_further(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    PlayedRun(path, even_plan(3), 20, skew_s=0.2, error_s=0.01, options=PATIENT)
    clock = Reader(path).header.clock
    assert (clock.source, clock.error_s) == ("measured offset", 0.02)
    assert any("inside the clock's error" in note for note in check_journal(path).notes)
    path.write_text(path.read_text().replace('"error_s":0.02', '"error_s":0.0001', 1))
    assert not check_journal(path).valid
    PlayedRun(path, even_plan(3), 5, options=PATIENT)
    assert Reader(path).header.clock.source == "monotonic"


def _again(path: Path) -> tuple[int, list[Decided]]:
    """Feed the recorded observations to a fresh supervisor, turn by turn; the first step that differs, or 0."""
    reader = Reader(path)
    scheduler = scheduler_for(reader)
    decisions: list[Decided] = []
    for n, t, events in reader.rows():
        recorded = [event for event in events if isinstance(event, Decided)]
        if scheduler.handle([event for event in events if isinstance(event, Observed)], t) != recorded:
            return n, decisions
        decisions += recorded
    return 0, decisions


def test_the_supervisor_decides_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    PlayedRun(path, even_plan(4), 80, deaths={5: "h1"}, slow={30: ("h2", 3.0)}, options=PATIENT)
    assert check_journal(path).valid
    differs, decisions = _again(path)
    assert not differs
    halts = [decision.why for decision in decisions if decision.what == "halt"]
    assert halts[0] == "h1: its process was ended by SIGKILL"
    assert halts[1].startswith("h2 takes 2.")
    assert [d.why for d in decisions if d.what == "give up"] == ["its process was ended by SIGKILL"]
    assert all(decision.why for decision in decisions)
    # What was decided differs if what was seen does.
    lost = '"what":"lost","facts":{"host":"%s"'
    path.write_text(path.read_text().replace(lost % "h1", lost % "h0"))
    assert _again(path)[0]


def test_silence_is_decided_again(tmp_path: Path) -> None:
    """A supervisor that acts because nothing happens is told so in the journal."""
    path = tmp_path / "run.jsonl"
    PlayedRun(path, even_plan(3), 30, silent={10: "h1"}, options=PATIENT)
    assert check_journal(path).valid
    differs, decisions = _again(path)
    assert not differs
    assert [d.why for d in decisions if d.what == "give up"] == ["no heartbeat for 1000 s"]


def test_a_run_that_never_began_has_a_journal(tmp_path: Path) -> None:
    """It is there before anything is started, and says what was asked for."""
    path = tmp_path / "run.jsonl"
    journal = RunJournal(path, even_plan(2), 3, RunOptions(), {})
    assert [finding.message for finding in check_journal(path).faults] == ["did not end: 3 microbatches unfinished"]
    journal.turn(5.0, [Joined("h0")], [])
    journal.close()
    assert [finding.message for finding in check_journal(path).faults] == ["did not end: 3 microbatches unfinished"]
    assert [event.what for event in _events(path, Observed)] == ["joined"]
    assert "with 3 microbatches unfinished" in collect(path).left_out[0]


def test_a_header_is_made_anew_for_clocks_and_devices_that_were_not_known(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    carried = {host: Carrier("t", "cpu", "of node 10.0.0.7", "mapped") for host in even_plan(2).hosts}
    journal = RunJournal(path, even_plan(2), 3, RunOptions(), carried, clock=lambda: 7.0)
    before = Reader(path).header
    assert (before.clock.source, before.hardware["link"]) == ("monotonic", "TCP on this host")
    for host in carried:
        journal.joined(host, Offset(1.5, 0.001, shared=False), "a processor")
    assert Reader(path).header == before
    journal.open()
    journal.close()
    after = Reader(path).header
    assert (after.clock.source, after.clock.error_s) == ("measured offset", 0.002)
    assert after.hardware == {"cpu, planned as t": "cpu a processor", "link": "TCP between hosts"}
    assert check_journal(path).faults_by_code == {"end": 1}


def test_what_is_told_again_is_noted_once(tmp_path: Path) -> None:
    """Every host on its way tells what it knows of a microbatch, and the last one all of it."""
    path = tmp_path / "run.jsonl"
    carried = {host: Carrier("t", "cpu", "a processor", "mapped") for host in even_plan(2).hosts}
    journal = RunJournal(path, even_plan(2), 1, RunOptions(), carried, clock=lambda: 7.0)
    for host in carried:
        journal.joined(host, Offset(), "a processor")
    journal.open()
    journal.fed(1, 0, 10.0)
    visits = [Visit(10.0 + i, 10.5 + i, 0 if i % 2 else 32, 8) for i in range(5)]
    for known in (2, 1, 4, 3):
        journal.passed(1, 0, visits[:known])
    journal.delivered(1, 0, visits)
    journal.passed(1, 0, visits)
    journal.close()
    stations = ["data host to h0", "h0", "h0 to h1", "h1", "h1 to data host"]
    assert [event.task for event in _events(path, Start)] == stations
    assert [event.task for event in _events(path, Finished)] == stations


def test_a_killed_run_leaves_what_was_noted(tmp_path: Path) -> None:
    """Nobody closes the journal: what was noted a moment ago is in the file all the same."""
    path = tmp_path / "run.jsonl"
    now = [0.0]
    journal = RunJournal(path, even_plan(2), 3, RunOptions(), {}, clock=lambda: now[0])
    journal.open()
    journal.fed(1, 0, 0.1)
    journal.flush()
    report = check_journal(path)
    assert [finding.message for finding in report.faults] == ["did not end: 3 microbatches unfinished"]
    assert [event.job for event in _events(path, Arrived)] == ["microbatch 1"]
    journal.close()
