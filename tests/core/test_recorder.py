"""The recorder: what was noted is on the disk as it was noted, from any thread, also if nobody ends the run."""

from __future__ import annotations

import errno
from math import inf, nan
from pathlib import Path
from threading import Barrier, Event, Thread
from threading import enumerate as enumerate_threads

import pytest

from dovetail.core.errors import DovetailError, InputError, PolicyError, cannot_write
from dovetail.core.events import Measured, Observed
from dovetail.core.journal import Clock, Ended, Header, Reader, Writer
from dovetail.core.journal.recorder import Recorder, host_clock
from dovetail.core.resources import Pool
from tests.waiting import until

HEADER = Header(level="any", policy="none", pool=Pool.parse("1", {}), clock=Clock("monotonic", 1e-9), order="written")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def test_times_are_written_as_they_were_given_in_the_order_of_writing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path, HEADER) as recorder:
        for t in (2.0, 0.5, 1.25):
            recorder.note(t, Observed(f"at {t}"))
        recorder.end(3.0, {"seen": 3})
    raw = [line.split(b",")[1] for line in path.read_bytes().splitlines()[1:]]
    assert raw == [b'"t":2.0', b'"t":0.5', b'"t":1.25', b'"t":3.0']


def test_a_header_is_on_the_disk_before_anything_happens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl", HEADER)
    assert Reader(tmp_path / "run.jsonl").header == HEADER
    recorder.close()


def test_a_journal_that_nobody_closes_does_not_keep_a_program_alive(tmp_path: Path) -> None:
    before = set(enumerate_threads())
    recorder = Recorder(tmp_path / "run.jsonl", HEADER)
    assert [thread.daemon for thread in set(enumerate_threads()) - before] == [True]
    recorder.close()


def test_what_was_noted_is_written_soon_though_nothing_follows_and_nobody_closes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl", HEADER, flush_s=0.01)
    recorder.note(10.0, Observed("first"))
    until(lambda: lines(tmp_path / "run.jsonl") == 2)
    recorder.close()


@pytest.mark.parametrize("flush_s", [0, -1.0, nan, inf])
def test_a_flush_without_end_or_never_is_refused(tmp_path: Path, flush_s: float) -> None:
    with pytest.raises(InputError, match="flush_s: expected a positive number of seconds"):
        Recorder(tmp_path / "run.jsonl", HEADER, flush_s=flush_s)
    assert not (tmp_path / "run.jsonl").exists()


def test_a_flush_sends_what_was_noted_on_its_way_at_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl", HEADER, flush_s=1e6)
    recorder.note(10.0, Observed("first"))
    assert lines(tmp_path / "run.jsonl") == 1
    recorder.flush()
    assert lines(tmp_path / "run.jsonl") == 2
    recorder.close()


def test_what_a_run_only_logs_is_gathered_before_each_flush(tmp_path: Path) -> None:
    logged, ready, gathered = ["first"], Event(), Event()

    def gather() -> None:
        ready.wait()
        if logged:
            recorder.note(1.0, Observed(logged.pop()))
            recorder.end(2.0, {})
            recorder.close()
            gathered.set()

    recorder = Recorder(tmp_path / "run.jsonl", HEADER, flush_s=0.001, gather=gather)
    ready.set()
    gathered.wait()
    assert [type(event) for _, _, event in Reader(tmp_path / "run.jsonl")] == [Observed, Ended]


def test_nothing_can_be_noted_after_the_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl", HEADER)
    recorder.close()
    recorder.close()
    with pytest.raises(DovetailError, match="after the journal was closed"):
        recorder.note(1.0, Observed("late"))


def test_a_disk_that_was_full_is_told_at_the_next_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Event()

    def full(_: Writer) -> None:
        told.set()
        raise cannot_write(tmp_path / "run.jsonl", OSError(errno.ENOSPC, "No space left on device"))

    recorder = Recorder(tmp_path / "run.jsonl", HEADER, flush_s=0.01)
    monkeypatch.setattr(Writer, "flush", full)
    assert told.wait(60.0)
    for thread in enumerate_threads():
        if thread.name == "journal":
            thread.join(60.0)
    with pytest.raises(InputError, match="No space left"):
        recorder.note(1.0, Observed("late"))
    with pytest.raises(InputError, match="No space left"):
        recorder.close()


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.jsonl", HEADER) as recorder:
        for t, event in ((nan, Observed("when")), (1.0, Measured("j", "t", 1, inf)), (1.0, Observed("\ud800"))):
            with pytest.raises(PolicyError, match="cannot be written"):
                recorder.note(t, event)
        recorder.note(1.0, Observed("nothing", {"known": None}))
    assert [event for _, _, event in Reader(tmp_path / "run.jsonl")] == [Observed("nothing", {"known": None})]


def test_threads_may_note_at_the_same_time(tmp_path: Path) -> None:
    together = Barrier(4)

    def note(who: int) -> None:
        together.wait()
        for i in range(500):
            recorder.note(float(i), Observed(f"{who} {i}"))

    with Recorder(tmp_path / "run.jsonl", HEADER, flush_s=0.001) as recorder:
        threads = [Thread(target=note, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [event.what for _, _, event in Reader(tmp_path / "run.jsonl") if isinstance(event, Observed)]
    assert len(found) == 2000
    for who in range(4):
        mine = [what for what in found if what.startswith(f"{who} ")]
        assert sorted(mine) == sorted(f"{who} {i}" for i in range(500))


def test_without_a_file_observers_are_told() -> None:
    class Seen:
        def __init__(self) -> None:
            self.steps: list[tuple[int, float, int]] = []

        def step(self, n: int, t: float, events: object) -> None:
            assert isinstance(events, tuple)
            self.steps.append((n, t, len(events)))

    seen = Seen()
    with Recorder(None, HEADER, [seen]) as recorder:
        recorder.note(0.0, Observed("a"), Observed("b"))
        recorder.rows("ran", {"id": [1]}, 0.5)
        recorder.end(1.0, {})
    assert seen.steps == [(1, 0.0, 2), (2, 0.5, 1), (3, 1.0, 1)]


def test_the_clock_of_one_host_is_known_to_its_resolution() -> None:
    assert host_clock().source == "monotonic"
    assert 0 < host_clock().error_s <= 1e-3
