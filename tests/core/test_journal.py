"""Journals: what is written is read back, a cut one as far as it goes, and a resumed run gives the same bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import dovetail
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start, WakeAt, Woke
from dovetail.core.journal import VERSION, Ended, Entry, Header, Reader, Writer, in_time, is_journal, open_journal
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord

HEADER = Header(
    level="any",
    policy="fcfs",
    options={"patience_s": 2.5},
    mode="online",
    seed=7,
    pool=Pool.parse("a100:2,gpu:1", {"a100": DeviceType("a100", memory_mib=81920, speed=2.0)}),
    graphs=(
        TaskGraphRecord("chäin", (Task("ä", "x"), Task("b", "y", 2)), (("ä", "b"),)),
        TaskGraphRecord("stuck", (Task("c", "x"),), (), {"c": "waits for “nothing”"}),
    ),
    facts={"models": {"x": {"memory_gb": 1.5}}},
)
STEPS: list[tuple[float, list[Any]]] = [
    (0.0, [Arrived("ré1", "chäin", (1.5, 0.1), due_s=9.0, weight=2.0), WakeAt(0.25)]),
    (0.25, [Woke(), Start("ré1", "ä", "x", (0,), 0.0, 1.5, 'the "oldest"\n', 0.5, "y", 3)]),
    (1.1, [Arrived("bad", "chäin", fault="no times"), Reject("bad", "no times")]),
    (2.25, [Failed("ré1", "ä", "out of memory"), Start("ré1", "ä", "x", (2,), 2.25, 1.5, "again")]),
    (3.75, [Finished("ré1", "ä"), Start("ré1", "b", "y", (0, 1), 3.75, 0.1, "ready")]),
    (3.85, [Finished("ré1", "b"), Complete("ré1")]),
]
SUMMARY = {"completed": 1, "rejected": 1}
ENTRIES = [Entry(n, t, event) for n, (t, events) in enumerate(STEPS, start=1) for event in events]


def write(path: Path, resume: bool = False, steps: Sequence[Any] = STEPS, header: Header = HEADER) -> bytes:
    with Writer(path, header, resume) as journal:
        for n, (t, events) in enumerate(steps, start=1):
            journal.step(n, t, events)
        journal.end(len(steps) + 1, steps[-1][0], SUMMARY)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run_journal.jsonl"


@pytest.fixture
def whole(path: Path) -> bytes:
    return write(path)


# --- what is written is read back -------------------------------------------------------------------


def test_the_header_is_read_back_as_it_was_written(path: Path, whole: bytes) -> None:
    assert Reader(path).header == HEADER


def test_the_first_line_tells_its_version_and_who_wrote_it(whole: bytes) -> None:
    first = msgspec.json.decode(whole.splitlines()[0])
    assert first["journal"] == VERSION
    assert first["made_by"] == f"dovetail {dovetail.__version__}"


def test_shapes_are_read_back_as_they_were(path: Path, whole: bytes) -> None:
    graph = TaskGraph(
        "s", [Task("a", "x"), Task("b", "x"), Task("c", "y", 4)], [("b", "c"), ("a", "c")], {"b": "waits"}
    )
    built = TaskGraphRecord.of(graph).build()
    assert (built.tasks, built.before, built.never, built.roots) == (graph.tasks, graph.before, graph.never, (0,))
    assert set(Reader(path).header.build_graphs()) == {"chäin", "stuck"}


def test_every_kind_of_event_is_read_back_as_it_was_written(path: Path, whole: bytes) -> None:
    kinds = {type(entry.event) for entry in ENTRIES}
    assert kinds == {Arrived, Finished, Failed, Woke, Start, Complete, Reject, WakeAt}
    *entries, last = Reader(path)
    assert entries == ENTRIES
    assert last == Entry(7, 3.85, Ended(SUMMARY))
    assert not Reader(path).torn


def test_entries_come_grouped_by_step_and_can_be_followed(path: Path, whole: bytes) -> None:
    class Follower:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def step(self, n: int, t: float, events: Sequence[Any]) -> None:
            self.seen.append((n, t, list(events)))

    one, two = Follower(), Follower()
    Reader(path).feed(one, two)
    assert one.seen == two.seen == list(Reader(path).steps())
    assert [(t, events) for _, t, events in one.seen[:-1]] == STEPS


def test_a_reader_can_be_read_again(path: Path, whole: bytes) -> None:
    reader = Reader(path)
    assert list(reader) == list(reader)


def test_numpy_numbers_are_written_as_numbers(path: Path) -> None:
    start = Start("w", "a", "x", tuple(np.arange(2)), 0.0, np.float64(1.5), "computed")
    with Writer(path, HEADER) as journal:
        journal.step(1, 0, [Woke()])
        journal.step(2, np.float64(0.1), [start])
    written = Start("w", "a", "x", (0, 1), 0.0, 1.5, "computed")
    assert list(Reader(path)) == [Entry(1, 0.0, Woke()), Entry(2, 0.1, written)]


def test_an_event_that_cannot_be_written_is_the_policys_fault_and_leaves_no_trace(path: Path) -> None:
    order = Start("w", "a", "x", (object(),), 0.0, 1.0, "whatever")  # type: ignore[arg-type]
    with Writer(path, HEADER) as journal:
        journal.step(1, 0.5, [Woke()])
        with pytest.raises(PolicyError, match=r"step 2 at 1\.0 s cannot be written: <object .*> is not a number"):
            journal.step(2, 1.0, [Woke(), order])
    assert list(Reader(path)) == [Entry(1, 0.5, Woke())]


def test_what_was_flushed_can_be_read_while_the_run_goes_on(path: Path) -> None:
    with Writer(path, HEADER) as journal:
        journal.step(1, 0.5, [Woke()])
        journal.flush()
        assert list(Reader(path)) == [Entry(1, 0.5, Woke())]


# --- what is no journal -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b'{"journal":2,"made_by":"x"}\n', True),
        (b'\n {"journal":1}', True),
        (b"", False),
        (b'{"requests":[]}', False),
        (b"\x80\x81", False),
    ],
)
def test_a_journal_is_known_by_how_it_begins(path: Path, content: bytes, answer: bool) -> None:
    path.write_bytes(content)
    assert is_journal(path) is answer


def test_a_written_journal_is_a_journal(path: Path, whole: bytes) -> None:
    assert is_journal(path)


@pytest.mark.parametrize(
    "first", [b"", b"not JSON\n", b"[1]\n", b'{"level":"any"}\n', b'{"journal":2}\n', b'{"journal":2,"level":"\xff"}\n']
)
def test_a_file_without_a_header_is_refused(path: Path, first: bytes) -> None:
    path.write_bytes(first)
    with pytest.raises(InputError, match=r"run_journal\.jsonl:1: not a Dovetail journal: "):
        Reader(path)


def test_a_header_that_does_not_tell_its_version_is_refused(path: Path, whole: bytes) -> None:
    path.write_bytes(whole.replace(b'"journal":%d,' % VERSION, b""))
    with pytest.raises(InputError, match="not a Dovetail journal"):
        Reader(path)


def test_a_journal_of_a_later_version_is_refused_whatever_it_holds(path: Path) -> None:
    path.write_bytes(b'{"journal":%d,"levels":["two","at once"]}\n' % (VERSION + 1))
    with pytest.raises(InputError, match=rf":1: journal version {VERSION + 1}; this Dovetail reads up to {VERSION}$"):
        Reader(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    for function in (Reader, is_journal):
        with pytest.raises(InputError, match="missing: no such file"):
            function(tmp_path / "missing")
        with pytest.raises(InputError, match="is a folder; expected a file"):
            function(tmp_path)


@pytest.mark.parametrize(
    "garbage", [b"garbage\n", b"\n", b"{}\n", b'{"n":1,"t":0.0,"k":"exploded"}\n', b'{"n":1,"t":0.0,"k":"woke\xff"}\n']
)
def test_a_line_of_garbage_is_named(path: Path, whole: bytes, garbage: bytes) -> None:
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], garbage, *lines[4:]]))
    entries: list[Entry] = []
    with pytest.raises(InputError, match=r"run_journal\.jsonl:5: not a journal record: "):
        entries.extend(Reader(path))
    assert entries == ENTRIES[:2]  # the steps before it


# --- cut ones ---------------------------------------------------------------------------------------


def test_a_journal_cut_anywhere_is_read_as_far_as_it_is_whole(path: Path, whole: bytes) -> None:
    expected = [*ENTRIES, Entry(7, 3.85, Ended(SUMMARY))]
    header = whole.index(b"\n")
    for cut in range(header, len(whole) + 1):
        path.write_bytes(whole[:cut])
        reader = Reader(path)
        entries = list(reader)
        lines = whole[:cut].splitlines()[1:]
        partial = bool(lines) and lines[-1] not in whole.splitlines()
        assert entries == expected[: len(lines) - partial]
        assert reader.torn is partial


def test_a_journal_cut_in_its_header_is_none(path: Path, whole: bytes) -> None:
    for cut in range(whole.index(b"\n")):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="not a Dovetail journal"):
            Reader(path)


def test_a_run_resumed_at_any_byte_gives_the_bytes_of_an_uninterrupted_one(path: Path, whole: bytes) -> None:
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert write(path, resume=True) == whole, cut


def test_a_resumed_run_may_be_cut_again(path: Path, whole: bytes) -> None:
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with Writer(path, HEADER, resume=True) as journal:
            for n, (t, events) in enumerate(STEPS[:3], start=1):
                journal.step(n, t, events)
        assert len(path.read_bytes()) >= cut
        assert whole.startswith(path.read_bytes())
    assert write(path, resume=True) == whole


def test_resuming_what_does_not_exist_begins_it(path: Path) -> None:
    expected = write(path)
    path.unlink()
    assert write(path, resume=True) == expected


def test_without_resume_what_was_there_is_replaced(path: Path, whole: bytes) -> None:
    path.write_bytes(b"something else, and longer " * 1000)
    assert write(path) == whole


CHANGED = [
    *STEPS[:3],
    (2.25, [Failed("ré1", "ä", "out of memory"), Start("ré1", "ä", "x", (1,), 2.25, 1.5, "again")]),
    *STEPS[4:],
]


def test_a_run_that_goes_another_way_is_refused_and_the_file_stays_as_it_was(path: Path, whole: bytes) -> None:
    different = whole.index(b'"devices":[2]')
    for cut in range(different + 12, len(whole) + 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"cannot resume: step 4 at 2\.25 s differs from the recorded one"):
            write(path, resume=True, steps=CHANGED)
        assert path.read_bytes() == whole[:cut]


@pytest.mark.parametrize("header", [replace(HEADER, seed=8), replace(HEADER, policy="sjf")])
def test_a_run_with_another_header_is_refused_and_the_file_stays_as_it_was(
    path: Path, whole: bytes, header: Header
) -> None:
    with pytest.raises(InputError, match="cannot resume: its header differs"):
        write(path, resume=True, header=header)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"a letter to a friend", b"a letter\nof two lines\n", b'{"journal":'[:4] + b"!"])
def test_a_file_that_is_no_journal_is_not_overwritten_by_resuming(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot resume: its header differs"):
        write(path, resume=True)
    assert path.read_bytes() == content


def test_a_journal_that_goes_on_after_the_end_is_refused(path: Path, whole: bytes) -> None:
    path.write_bytes(whole + b"more\n")
    with pytest.raises(InputError, match="cannot resume: it goes on after the end of this run"):
        write(path, resume=True)
    assert path.read_bytes() == whole + b"more\n"


def test_a_resumed_run_that_is_interrupted_again_leaves_what_it_found(path: Path, whole: bytes) -> None:
    with Writer(path, HEADER, resume=True) as journal:
        journal.step(1, *STEPS[0])
    assert path.read_bytes() == whole


def test_a_long_journal_is_resumed_too(path: Path) -> None:
    steps = [(float(i), [Woke(), WakeAt(i + 1.0), Reject(f"job {i}", "too long " * 20)]) for i in range(9000)]
    whole = write(path, steps=steps)
    assert len(whole) > 2 << 20
    for cut in (1 << 20, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert write(path, resume=True, steps=steps) == whole


# --- where nothing can be written -------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    for resume in (False, True):
        with pytest.raises(InputError, match="missing/journal: cannot be written: No such file or directory"):
            Writer(tmp_path / "missing" / "journal", HEADER, resume)
        with pytest.raises(InputError, match="cannot be written: Is a directory"):
            Writer(tmp_path, HEADER, resume)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_without_a_traceback() -> None:
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device") as caught:
        write(Path("/dev/full"))
    assert caught.value.exit_code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_fills_up_during_the_run_ends_it() -> None:
    journal = Writer(Path("/dev/full"), HEADER)
    with pytest.raises(InputError, match="No space left on device"):
        journal.step(1, 0.0, [Reject("w", "x" * (2 << 20))])
    journal.close()  # what could not be written is not tried again


def test_a_journal_can_go_to_no_file_at_all() -> None:
    with Writer(Path(os.devnull), HEADER) as journal:
        journal.step(1, 0.0, [Woke()])
    assert Path(os.devnull).is_char_device()


def test_a_journal_of_an_older_version_is_refused_by_its_version(path: Path, whole: bytes) -> None:
    path.write_bytes(whole.replace(b'"journal":%d,' % VERSION, b'"journal":1,'))
    with pytest.raises(InputError, match=rf":1: journal version 1, of an older Dovetail; expected {VERSION}$"):
        Reader(path)


def test_nothing_follows_a_line_that_was_not_written_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be room again later; a journal that is torn in its middle could not be read at all."""
    journal = Writer(path, HEADER)
    journal.step(1, *STEPS[0])
    journal.flush()
    file = journal._file

    class Full:
        def write(self, lines: bytes) -> None:
            file.write(lines[:9])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "_file", Full())
    for n, room in ((2, False), (3, True)):
        journal.step(n, *STEPS[n - 1])
        with pytest.raises(InputError, match="No space left"):
            journal.flush()
        if not room:
            monkeypatch.setattr(journal, "_file", file)
    journal.close()
    reader = Reader(path)
    assert ([entry.n for entry in reader], reader.torn) == ([1, 1], True)


def test_what_was_written_late_is_read_in_time_and_what_follows_the_end_behind_it() -> None:
    first, second, end, late = Woke(), Arrived("w", of="g"), Ended({}), Woke()
    steps: list[tuple[int, float, list[Any]]] = [(1, 2.0, [second]), (2, 1.0, [first])]
    steps += [(3, 1.5, [end]), (4, 0.5, [late])]
    assert list(in_time(steps, 0.0)) == [steps[1], steps[0], steps[2], steps[3]]


@pytest.mark.parametrize(
    ("names", "hint"),
    [("", ""), ("ab", " with a.jsonl, b.jsonl"), ("abcde", " with a.jsonl, b.jsonl, c.jsonl, d.jsonl, e.jsonl")],
)
def test_a_folder_is_no_journal_but_may_hold_some(tmp_path: Path, names: str, hint: str) -> None:
    for name in names:
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(InputError) as raised:
        open_journal(tmp_path)
    assert str(raised.value) == f"{tmp_path}: expected a journal, found a folder{hint}"
    if len(names) == 5:
        (tmp_path / "f.jsonl").touch()
        with pytest.raises(InputError, match=r"e\.jsonl and 1 more$"):
            open_journal(tmp_path)
