"""Journals of runs, real and simulated: written while they go on, with what was seen, and replayed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from threading import Barrier, Event
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dovetail.cli import main
from dovetail.core.errors import InputError, cannot_write
from dovetail.core.events import Arrived, Failed, Reject, Rows, Start
from dovetail.core.journal import Reader, Writer, recorder
from dovetail.core.loop.engine import replay
from dovetail.dispatch import Device, Dispatcher, Pool
from dovetail.dispatch.check import check_journal
from dovetail.dispatch.chunk import ResultFormError, gaps
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.policies.base import DeviceState
from dovetail.dispatch.policies.fixed import Fixed
from dovetail.dispatch.recording import LIVE, BatchJournal, header_of
from dovetail.dispatch.replay import RecordedScheduler, scheduler_for
from dovetail.dispatch.simulate import run as simulate
from dovetail.testing.dispatch import Emulated, Sleeper
from tests.waiting import until

TWO = [Device("first", where="cpu"), Device("second", where="cpu")]
POLICIES = ["factoring", "finish_together", "fixed", "guided", "proportional"]


def events(path: Path, kind: type[Any]) -> list[Any]:
    return [entry.event for entry in Reader(path) if isinstance(entry.event, kind)]


def decisions(path: Path, policy: Any = None) -> list[tuple[Any, Any]]:
    """What is decided again and what is recorded, at each step."""
    reader = Reader(path)
    return [(again, recorded) for _, _, again, recorded in replay(scheduler_for(reader, policy), reader)]


def check_replay(path: Path, policy: Any = None) -> None:
    found = decisions(path, policy)
    assert found
    for again, recorded in found:
        assert again == recorded


curves = st.builds(
    Curve.linear, st.floats(1e-4, 1e-2), st.floats(1e3, 1e6), st.sampled_from([1 << 10, 1 << 20])
)  # latency, rate, largest call


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    given_curves=st.lists(curves, min_size=1, max_size=4),
    items=st.integers(1, 300_000),
    policy=st.sampled_from(POLICIES),
    noise=st.sampled_from([0.0, 0.5]),
    slower=st.sampled_from([1.0, 4.0]),
    slots=st.integers(1, 3),
    seed=st.integers(0, 9),
    known=st.booleans(),
    fails=st.booleans(),
)
def test_any_simulated_run_gives_a_valid_journal_that_replays(
    given_curves: list[Curve],
    items: int,
    policy: str,
    noise: float,
    slower: float,
    slots: int,
    seed: int,
    known: bool,
    fails: bool,
    tmp_path: Path,
) -> None:
    size = 5000 if policy == "fixed" else None
    devices = [
        SimDevice(f"d{i}", curve, slower if i else 1.0, size=size, slots=slots, known=known)
        for i, curve in enumerate(given_curves)
    ]
    if fails:
        devices.append(SimDevice("mortal", given_curves[0], size=size, fails_after_s=0.05))
    path = tmp_path / "run.jsonl"
    outcome = simulate(devices, items, policy, noise=noise, seed=seed, journal=path)
    report = check_journal(path)
    assert report.valid, report.faults
    assert not noise or not report.notes or "best rate" in report.notes[0]
    assert report.counted["makespan_s"] == pytest.approx(outcome.makespan_s, abs=1e-6)
    check_replay(path)


def test_a_recorded_run_decides_as_one_that_is_not(tmp_path: Path) -> None:
    devices = [
        SimDevice("a", Curve.linear(0.004, 2e5, 1 << 20), known=False),
        SimDevice("b", Curve.linear(1e-3, 3e4, 99)),
    ]
    recorded = simulate(devices, 100_000, noise=0.3, journal=tmp_path / "run.jsonl")
    assert msgspec.structs.replace(recorded, claims={}) == simulate(devices, 100_000, noise=0.3)


def recorded(path: Path, slots: int, items: int = 9) -> tuple[RecordedScheduler, BatchJournal]:
    states = [DeviceState("a", size=5, slots=slots, capacity=100), DeviceState("b", size=4)]
    scheduler = RecordedScheduler(LocalCursor(0, items), Fixed(), states, total=items)
    header = header_of(scheduler, policy="fixed", mode=LIVE, items=items, peaks=[None, None], zero_s=100.0)
    return scheduler, BatchJournal(path, header, scheduler)


def test_chunks_that_a_device_holds_at_once_have_a_slot_each_and_their_own_times(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    scheduler, journal = recorded(path, slots=2)
    first, second = scheduler.take(0, 100.0), scheduler.take(0, 101.0)
    for chunk, at_s in ((first, 104.0), (second, 106.0)):
        assert chunk is not None
        scheduler.claim(chunk)
        scheduler.done(chunk, at_s, 1.0)
    with journal:
        journal.end(106.5)
    begun = events(path, Start)
    assert [(start.devices, start.ready_s, start.run_s) for start in begun] == [((0,), 0.0, 4.0), ((1,), 1.0, 5.0)]
    assert [device.type for device in Reader(path).header.pool.devices] == ["a", "a", "b"]
    assert check_journal(path).valid


def test_an_end_that_could_not_be_written_is_told_to_who_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, states = Event(), [DeviceState("a", size=5)]
    monkeypatch.setattr(recorder, "_FLUSH_S", 3600.0)
    scheduler = RecordedScheduler(LocalCursor(0, 9), Fixed(), states, total=9)
    header = header_of(scheduler, policy="fixed", mode=LIVE, items=9, peaks=[None])
    journal = BatchJournal(tmp_path / "run.jsonl", header, scheduler, ended=ended)

    def full(_: Writer) -> None:
        raise cannot_write(tmp_path / "run.jsonl", OSError(errno.ENOSPC, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "flush", full)
        ended.set()
        with pytest.raises(InputError, match="No space left"):
            journal._follow()  # as the recorder's thread does it
    with pytest.raises(InputError, match="No space left"):
        journal.end(1.0)


def test_more_chunks_at_once_than_slots_are_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    scheduler, journal = recorded(path, slots=2, items=15)
    chunks = [scheduler.take(0, 100.0 + i) for i in range(3)]  # a worker that takes more than it said
    for i, chunk in enumerate(chunks):
        assert chunk is not None
        scheduler.claim(chunk)
        scheduler.done(chunk, 110.0 + i, 1.0)
    with journal:
        journal.end(113.0)
    report = check_journal(path)
    assert report.faults_by_code == {"overlap": 1}


def test_retries_and_copies_are_recorded_as_such(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    curve = Curve.linear(0.1, 10.0, 100)
    states = [DeviceState(name, curve, size=5) for name in "ab"]
    scheduler = RecordedScheduler(LocalCursor(0, 10), Fixed(), states, total=10)
    header = header_of(scheduler, policy="fixed", mode=LIVE, items=10, peaks=[None, None])
    journal = BatchJournal(path, header, scheduler)
    one, two = scheduler.take(0, 0.0), scheduler.take(1, 0.0)
    assert one is not None
    assert two is not None
    scheduler.failed(one, 0.5, ValueError("no"))
    scheduler.claim(two)
    scheduler.done(two, 0.6, 0.6)
    again = scheduler.take(1, 0.6)
    assert again is not None
    assert again.attempt == 2
    scheduler.failed(again, 0.7, ValueError("no"), lost=True)
    assert scheduler.finished
    with journal:
        journal.end(0.8)
    assert [event.of for event in events(path, Arrived)] == ["chunk", "chunk", "retry"]
    assert [event.why for event in events(path, Failed)] == ["ValueError: no", "ValueError: no"]
    assert [event.job for event in events(path, Reject)] == ["chunk 0", "chunk 2"]
    assert events(path, Start)[-1].why == "another device failed on it"
    report = check_journal(path)
    assert report.valid, report.faults
    assert "0 to 5" in report.notes[0]
    check_replay(path)


def test_a_call_that_came_second_is_rejected_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    curve = Curve.linear(0.01, 1e4, 1000)
    late, fast = SimDevice("late", curve, slower=5.0, size=100), SimDevice("fast", curve, size=100)
    simulate([SimDevice("long", curve, size=10_000), late, fast], 10_200, "fixed", journal=path)
    assert "copy" in [event.of for event in events(path, Arrived)]
    assert {event.why for event in events(path, Reject)} == {"another device was first"}
    assert not events(path, Failed)
    assert check_journal(path).valid
    check_replay(path)
    assert main(["report", str(path)]) == 0
    page = (tmp_path / "run.html").read_text()
    assert "another device was first" in page
    assert "Failed calls" not in page


def test_gaps_between_ranges() -> None:
    assert gaps([], 0) == []
    assert gaps([], 5) == [(0, 5)]
    assert gaps([(3, 5), (0, 3)], 5) == []
    assert gaps([(0, 4), (1, 2)], 5) == [(4, 5)]


# --- real runs --------------------------------------------------------------------------------------


def refuses(*numbers: int) -> Callable[[Tensor], Tensor]:
    def function(batch: Tensor) -> Tensor:
        if any((batch == number).any() for number in numbers):
            raise ValueError(f"found one of {numbers}")
        return batch + 1

    return function


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_real_run_is_valid_and_replays_under_every_policy(policy: str, mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    sizes = 37 if policy == "fixed" else None
    with Dispatcher(torch.sin, TWO, policy, sizes=sizes, mode=mode, cache=False, journal=path) as dispatcher:
        for items in (1, 700, 5000):  # sizes are searched, then known
            dispatcher.run(torch.rand(items))
            report = check_journal(path)
            assert report.valid, report.faults
            check_replay(path)
    header = Reader(path).header
    assert (header.policy, header.mode, header.order) == (policy, "live", "written")
    assert header.clock.source == "monotonic"
    assert header.clock.error_s < 1e-6
    assert header.hardware == {"first": "cpu", "second": "cpu"}
    assert header.words.jobs == "chunks"


def test_times_are_those_that_the_report_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr(recorder, "_FLUSH_S", 3600.0)  # all rows in one batch, also on a slow machine
    with Dispatcher(torch.sin, TWO, sizes=10, cache=False, journal=path) as dispatcher:
        rows = dispatcher.attempt(torch.rand(500)).report.rows
    zero_s = Reader(path).header.facts["zero_s"]
    (ran,) = [
        event for _, _, step in Reader(path).rows() for event in step if isinstance(event, Rows) and event.of == "ran"
    ]
    assert ran.columns["from_s"] == [row.begun_s - zero_s for row in rows]
    assert ran.columns["to_s"] == [row.ended_s - zero_s for row in rows]
    assert ran.columns["device"] == [row.device for row in rows]


class Halves:
    """A policy that has no name, and a memory of its own."""

    def __init__(self) -> None:
        self.asked = 0

    def next(self, device: int, view: Any) -> int:
        self.asked += 1
        return max(1, int(view.remaining) // (2 + self.asked % 3))


def test_the_header_says_which_devices_are_emulated(tmp_path: Path) -> None:
    sleeper = Sleeper((Emulated("fast", 0.0, 1e9),))
    devices = [*sleeper.devices, Device("cuda:7", where="cpu"), Device("second", where="cpu")]
    with Dispatcher(torch.sin, devices, sizes=10, cache=False, journal=tmp_path / "run.jsonl") as dispatcher:
        dispatcher.run(torch.arange(100.0))
    hardware = Reader(tmp_path / "run.jsonl").header.hardware
    assert hardware == {"fast": "emulated on cpu", "cuda:7": "emulated on cpu", "second": "cpu"}


def test_a_policy_without_a_name_replays_if_it_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Dispatcher(torch.sin, TWO, Halves(), cache=False, journal=path) as dispatcher:
        dispatcher.run(torch.rand(500))
    check_replay(path, Halves())
    with pytest.raises(InputError, match="Halves, was given as an object"):
        scheduler_for(Reader(path))


def test_a_replay_with_another_policy_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    simulate([SimDevice("a", Curve.linear(0.004, 2e5, 1 << 20))], 100_000, "guided", journal=path)
    assert any(again != recorded for again, recorded in decisions(path, Fixed(size=100)))


def test_runs_that_share_devices_have_a_journal_each_that_replays(tmp_path: Path) -> None:
    both = Barrier(2)

    def together(batch: Tensor) -> Tensor:
        if batch[0] == 0:
            both.wait(timeout=900)
        return batch

    with Pool(TWO) as pool:
        made = [
            Dispatcher(
                together,
                pool=pool,
                policy=policy,
                sizes=20,
                backup=False,
                cache=False,
                journal=tmp_path / f"{policy}.jsonl",
            )
            for policy in ("fixed", "finish_together")
        ]
        for future in [dispatcher.submit(torch.arange(400)) for dispatcher in made]:
            assert future.result().tolist() == list(range(400))
    for path in tmp_path.glob("*.jsonl"):
        report = check_journal(path)
        assert report.valid, report.faults
        check_replay(path)


def test_a_device_that_runs_out_of_memory_replays(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def small(batch: Tensor) -> Tensor:
        if len(batch) > 20:
            raise MemoryError
        return batch

    with Dispatcher(small, TWO, sizes=100, cache=False, journal=path) as dispatcher:
        assert dispatcher.run(torch.arange(400)).tolist() == list(range(400))
    assert check_journal(path).valid
    check_replay(path)


class Flawed:
    """Squares rows; on all devices but the first it lacks memory, fails now and then, or the device goes away."""

    def __init__(self, random: Random) -> None:
        self.flaws = {f"cpu {i}": (random.choice(FLAWS) if i else "", random.randrange(1, 6)) for i in range(4)}

    def on(self, device: Device) -> Callable[[Tensor], Tensor]:
        flaw, at = self.flaws[device.name]
        calls = count(1)
        if flaw == "begin":
            raise ValueError("not on this one")

        def call(x: Tensor) -> Tensor:
            n = next(calls)
            if flaw == "memory" and len(x) > at:
                raise MemoryError
            if flaw == "error" and n % at == 0:
                raise ValueError("now and then")
            if flaw == "lost" and n == at:
                raise DeviceLostError("gone")
            return x * x

        return call


FLAWS = ("", "memory", "error", "lost", "begin")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_is_recorded_and_replays(seed: int, tmp_path: Path) -> None:
    random, path = Random(seed), tmp_path / "run.jsonl"
    devices = [Device(f"cpu {i}", where="cpu") for i in range(random.randrange(2, 5))]
    batch = torch.rand(random.choice((1, 7, 100, 1000)), 2)
    mode: Any = random.choice(("sync", "async"))
    with Dispatcher(
        Flawed(random),
        devices,
        random.choice(POLICIES),
        sizes=random.choice((None, 1 + len(batch) // 50, 1 + len(batch) // 7)),
        mode=mode,
        retries=len(devices),
        backup=random.random() < 0.5,
        cache=False,
        journal=path,
    ) as dispatcher:
        for _ in range(3):
            ordered = random.choice((None, True, False))
            if ordered is None:
                assert torch.equal(dispatcher.run(batch), batch * batch)
            else:
                assert sum(len(piece.value) for piece in dispatcher.stream(batch, ordered=ordered)) == len(batch)
            report = check_journal(path)
            assert report.valid, report.faults
            check_replay(path)


def test_a_result_of_another_form_is_not_tried_again_and_replays(tmp_path: Path) -> None:
    path, calls = tmp_path / "run.jsonl", []

    def odd(batch: Tensor) -> Tensor:
        calls.append(batch)
        if (batch == 55).any():
            raise ResultFormError("of another form")  # as of a worker that stores before it claims
        return batch

    with (
        Dispatcher(odd, TWO, sizes=10, cache=False, journal=path) as dispatcher,
        pytest.raises(InputError, match="of another form"),
    ):
        dispatcher.run(torch.arange(100))
    assert sum(bool((batch == 55).any()) for batch in calls) == 1
    assert check_journal(path).valid
    check_replay(path)


def test_a_real_run_with_failures_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    options: dict[str, Any] = {"sizes": 10, "cache": False, "on_error": "skip", "journal": path}
    broken = [33, 77]

    def function(batch: Tensor) -> Tensor:
        return refuses(*broken)(batch)

    with Dispatcher(function, TWO, **options) as dispatcher:
        outcome = dispatcher.attempt(torch.arange(100))
        assert sorted(outcome.missing) == [(30, 40), (70, 80)]
        report = check_journal(path)
        assert report.valid, report.faults
        assert "30 to 40, 70 to 80" in report.notes[0]
        check_replay(path)
        broken.clear()
        assert not dispatcher.attempt(torch.arange(100), resume=outcome).missing
        report = check_journal(path)
        assert report.valid, report.faults
        assert report.counted["arrived"] == 2
        check_replay(path)


def test_every_kind_of_batch_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Dispatcher(refuses(), TWO, cache=False, journal=path) as dispatcher:
        dispatcher.run(torch.arange(4) for _ in range(5))
        assert Reader(path).header.facts["items"] is None
        assert check_journal(path).valid
        check_replay(path)
        list(dispatcher.stream(torch.arange(500), ordered=False))
        assert check_journal(path).valid
        check_replay(path)
        list(dispatcher.stream(torch.arange(500), ordered=False, cursor=LocalCursor(0, 100)))
        assert check_journal(path).valid  # others may have done the rest
    with Dispatcher(refuses(), "cpu", sizes=0, cache=False, journal=path) as one:
        one.run(torch.arange(4))
        assert check_journal(path).valid


def test_an_abandoned_stream_ends_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Dispatcher(refuses(), TWO, sizes=10, cache=False, journal=path) as dispatcher:
        pieces: Any = dispatcher.stream(torch.arange(5000))
        next(pieces)
        pieces.close()
        until(lambda: b'"k":"ended"' in path.read_bytes())
    report = check_journal(path)
    assert report.valid, report.faults
    assert "these items have no result" in report.notes[0]


def test_an_interrupted_run_leaves_a_journal_of_what_was_done(tmp_path: Path) -> None:
    path, reached = tmp_path / "run.jsonl", Event()

    def interrupt(progress: Any) -> None:
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
    assert report.valid, report.faults
    assert "these items have no result" in report.notes[0]


def test_a_journal_that_cannot_be_written_is_an_error_before_the_first_chunk(tmp_path: Path) -> None:
    calls = Event()

    def function(batch: Tensor) -> Tensor:
        calls.set()
        return batch

    with (
        Dispatcher(function, "cpu", sizes=1, cache=False, journal=tmp_path / "nowhere" / "run.jsonl") as dispatcher,
        pytest.raises(InputError, match="nowhere"),
    ):
        dispatcher.run(torch.arange(30))
    assert not calls.is_set()


# --- while it goes on -------------------------------------------------------------------------------


def test_the_journal_is_written_while_the_run_goes_on(tmp_path: Path) -> None:
    path, go_on = tmp_path / "run.jsonl", Event()

    def function(batch: Tensor) -> Tensor:
        if batch[0] >= 50:
            assert go_on.wait(timeout=900)
        return batch

    with Dispatcher(function, TWO, sizes=10, cache=False, journal=path) as dispatcher:
        future = dispatcher.submit(torch.arange(100))
        try:
            until(lambda: path.exists() and path.read_bytes().count(b'"of":"ran"') > 0)
            report = check_journal(path)
        finally:
            go_on.set()
        future.result()
    assert report.faults_by_code == {"end": 1}
    assert check_journal(path).valid


RUN = """
import sys, time, torch
from dovetail.dispatch import Device, Dispatcher

def function(batch):
    time.sleep(0.002)
    return batch

devices = [Device("first", where="cpu"), Device("second", where="cpu")]
with Dispatcher(function, devices, sizes=10, cache=False, journal=sys.argv[1]) as dispatcher:
    dispatcher.run(torch.arange(10_000_000))
"""


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    path = tmp_path / "run.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DOVETAIL_CACHE": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", RUN, str(path)], env=environment)
    try:
        until(lambda: process.poll() is not None or (path.exists() and path.read_bytes().count(b'"ran"') > 1))
        yield path, process
    finally:
        process.kill()
        process.wait()


def test_a_killed_run_leaves_a_journal_with_one_finding(
    under_way: tuple[Path, subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, process = under_way
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    report = check_journal(path)
    assert report.faults_by_code == {"end": 1}
    assert "did not end" in report.faults[0].message
    assert any("of 10000000 items had been done" in note for note in report.notes)
    assert main(["check", str(path)]) == 1
    assert "did not end" in capsys.readouterr().out
    check_replay(path)


def test_a_run_has_one_thread_for_its_journal_which_ends_with_it(tmp_path: Path) -> None:
    seen: list[threading.Thread] = []

    def function(batch: Tensor) -> Tensor:
        seen[:] = [thread for thread in threading.enumerate() if "journal" in thread.name]
        return batch

    with Dispatcher(function, TWO, sizes=10, cache=False, journal=tmp_path / "run.jsonl") as dispatcher:
        dispatcher.run(torch.arange(100))
    assert len(seen) == 1
    seen[0].join()


def test_check_and_report_read_it_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    words = ["dispatch", "simulate", "--model", "radret", "--policy", "guided", "--items", "500000"]
    assert main([*words, "--journal", str(path)]) == 0
    assert main([*words, "--journal", str(path)]) == 2
    assert main([*words, "--journal", str(path), "--force"]) == 0
    assert main(["check", str(path)]) == 0
    assert "no less than" in capsys.readouterr().out
    assert main(["replay", str(path)]) == 0
    assert "1 step was decided as it is recorded" in capsys.readouterr().out
    assert main(["report", str(path), "--png", "--perfetto", "--format", "json"]) == 0
    assert {found.name for found in tmp_path.iterdir()} >= {"run.html", "run.png", "run.trace.json"}
    assert "cuda" in (tmp_path / "run.html").read_text()
