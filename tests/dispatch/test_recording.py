"""Journals of runs, real and simulated: what they tell, and that they are valid schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dovetail.cli import main
from dovetail.core import registry
from dovetail.core.events import Arrived, Failed, Reject, Start
from dovetail.core.journal import Reader
from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.check import check_journal
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.recording import LIVE, RecordedRun, gaps, record_simulated, write
from dovetail.dispatch.scheduler import ChunkRow
from dovetail.dispatch.simulate import SimDevice, simulate

TWO = [Device("first", where="cpu"), Device("second", where="cpu")]


def events(path: Path, kind: type[Any]) -> list[Any]:
    return [entry.event for entry in Reader(path) if isinstance(entry.event, kind)]


def run_of(rows: list[ChunkRow], items: int | None = None, ended_s: float = 10.0) -> RecordedRun:
    return RecordedRun(policy="fixed", mode=LIVE, devices=["a", "b"], peaks=[], items=items, rows=rows, ended_s=ended_s)


curves = st.builds(
    Curve.linear, st.floats(1e-4, 1e-2), st.floats(1e3, 1e6), st.sampled_from([1 << 10, 1 << 20])
)  # latency, rate, largest call


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_curves=st.lists(curves, min_size=1, max_size=4),
    items=st.integers(1, 300_000),
    policy=st.sampled_from(["factoring", "finish_together", "fixed", "guided", "proportional"]),
    noise=st.sampled_from([0.0, 0.5]),
    slower=st.sampled_from([1.0, 4.0]),
    slots=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_any_simulated_run_gives_a_valid_journal(
    given_curves: list[Curve],
    items: int,
    policy: str,
    noise: float,
    slower: float,
    slots: int,
    seed: int,
    tmp_path: Path,
) -> None:
    size = 5000 if policy == "fixed" else None
    devices = [
        SimDevice(f"d{i}", curve, slower if i else 1.0, size=size, slots=slots) for i, curve in enumerate(given_curves)
    ]
    path = tmp_path / "run.jsonl"
    outcome = simulate(devices, items, policy, noise=noise, seed=seed)
    figures = record_simulated(path, devices, items, policy, outcome.rows, outcome.makespan_s, noise=noise, seed=seed)
    report = check_journal(path)
    assert report.valid, report.faults
    assert report.notes == []
    assert figures.makespan_s == pytest.approx(outcome.makespan_s, abs=1e-6)
    assert policy in registry.names("dispatch")


def test_chunks_that_a_device_holds_at_once_are_told_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, run_of([ChunkRow(0, 0, 5, 0.0, 4.0, 1, "done"), ChunkRow(0, 5, 9, 1.0, 6.0, 1, "done")], items=9))
    first, second = events(path, Start)
    assert (first.ready_s, first.run_s) == (0.0, 4.0)
    assert (second.ready_s, second.run_s) == (1.0, 2.0)  # it waited from 1 s to 4 s
    assert check_journal(path).valid


def test_chunks_that_end_at_the_same_instant_still_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, run_of([ChunkRow(0, 0, 5, 0.0, 4.0, 1, "done"), ChunkRow(0, 5, 9, 0.0, 4.0, 1, "done")]))
    assert check_journal(path).valid


def test_failed_and_lost_copies_are_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [
        ChunkRow(0, 0, 5, 0.0, 1.0, 1, "ValueError: no"),
        ChunkRow(1, 0, 5, 1.0, 3.0, 2, "done"),
        ChunkRow(1, 5, 9, 3.5, 9.0, 1, "done"),
        ChunkRow(0, 5, 9, 6.0, 12.0, 1, "lost"),
    ]
    figures = write(path, run_of(rows, items=9))
    assert (figures.completed, figures.rejected, figures.failures) == (2, 2, 2)
    assert figures.makespan_s == 10.0  # what is late when the run is over is not waited for
    assert [event.why for event in events(path, Failed)] == ["ValueError: no", "another device was first"]
    assert {event.job for event in events(path, Reject)} == {"items 0 to 5 on a", "items 5 to 9 on a"}
    assert [event.of for event in events(path, Arrived)] == ["chunk", "retry", "chunk", "copy"]
    assert events(path, Start)[-1].why == "the one that has it is late"
    assert check_journal(path).valid


def test_a_measured_bound_that_was_surpassed_is_not_told(tmp_path: Path) -> None:
    rows = [ChunkRow(0, 0, 100, 0.0, 10.0, 1, "done")]
    for peak, told in ((20.0, True), (5.0, False)):
        path = tmp_path / f"{peak}.jsonl"
        run = RecordedRun(policy="fixed", mode=LIVE, devices=["a"], peaks=[peak], items=100, rows=rows, ended_s=10.0)
        write(path, run)
        assert ("bound_makespan_s" in Reader(path).header.facts) is told
        assert check_journal(path).valid


def test_gaps_between_ranges() -> None:
    assert gaps([], 0) == []
    assert gaps([], 5) == [(0, 5)]
    assert gaps([(3, 5), (0, 3)], 5) == []
    assert gaps([(0, 4), (1, 2)], 5) == [(4, 5)]


def refuses(*numbers: int) -> Callable[[Tensor], Tensor]:
    def function(batch: Tensor) -> Tensor:
        if any((batch == number).any() for number in numbers):
            raise ValueError(f"found one of {numbers}")
        return batch + 1

    return function


def test_a_real_run_with_failures_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    options: dict[str, Any] = {"sizes": 10, "cache": False, "on_error": "skip", "journal": path}
    with Dispatcher(refuses(33, 77), TWO, **options) as dispatcher:
        outcome = dispatcher.attempt(torch.arange(100))
        assert sorted(outcome.missing) == [(30, 40), (70, 80)]
        report = check_journal(path)
        assert report.valid, report.faults
        assert "30 to 40, 70 to 80" in report.notes[0]
        again = dispatcher.attempt(torch.arange(100), resume=outcome)
        again.report.write_journal(path)
        assert check_journal(path).valid


def test_every_kind_of_run_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Dispatcher(refuses(), TWO, cache=False) as dispatcher:
        dispatcher.run(torch.arange(0))
        dispatcher.report.write_journal(path)
        assert check_journal(path).counted["arrived"] == 0
        dispatcher.run(torch.arange(500))
        dispatcher.report.write_journal(str(path))
        assert Reader(path).header.policy == "finish_together"
        assert check_journal(path).valid
        dispatcher.run(torch.arange(4) for _ in range(5))
        dispatcher.report.write_journal(path)
        assert Reader(path).header.facts["items"] == 20
        list(dispatcher.stream(torch.arange(500), ordered=False))
        dispatcher.report.write_journal(path)
        assert check_journal(path).valid
    with Dispatcher(refuses(), "cpu", sizes=0, cache=False) as direct:
        direct.run(torch.arange(4))
        direct.report.write_journal(path)
        assert check_journal(path).valid


def test_an_interrupted_run_leaves_a_journal_of_what_was_done(tmp_path: Path) -> None:
    path, reached = tmp_path / "run.jsonl", Event()

    def interrupt(told: Any) -> None:
        if reached.is_set():
            raise KeyboardInterrupt

    def function(batch: Tensor) -> Tensor:
        reached.set()
        return batch

    with (
        Dispatcher(function, "cpu", sizes=1, cache=False, progress=interrupt, journal=path) as dispatcher,
        pytest.raises(KeyboardInterrupt),
    ):
        dispatcher.run(torch.arange(3000))
    report = check_journal(path)
    assert report.valid
    assert "these items have no result" in report.notes[0]


def test_check_and_report_read_it_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    words = ["dispatch", "simulate", "--model", "radret", "--policy", "guided", "--items", "500000"]
    assert main([*words, "--journal", str(path)]) == 0
    assert main([*words, "--journal", str(path)]) == 2
    assert main([*words, "--journal", str(path), "--force"]) == 0
    assert main(["check", str(path)]) == 0
    assert "no less than" in capsys.readouterr().out
    assert main(["report", str(path), "--png", "--perfetto", "--format", "json"]) == 0
    assert {found.name for found in tmp_path.iterdir()} >= {"run.html", "run.png", "run.trace.json"}
    assert "cuda" in (tmp_path / "run.html").read_text()
