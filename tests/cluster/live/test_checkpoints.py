"""The fence around a job's checkpoints: whoever writes when, the newest lease's stay."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dovetail.cluster.live import checkpoints
from dovetail.cluster.live.checkpoints import FencedError, JobFolder, KeptCheckpoint, has_news
from dovetail.cluster.live.wire import TrainingCommand
from dovetail.core.errors import DovetailError


def save(folder: JobFolder, epoch: int, text: str, steps: int, last: bool = False) -> None:
    (folder.attempt(epoch) / "model").write_text(text)
    folder.commit(epoch, steps, last)


def kept(folder: JobFolder) -> KeptCheckpoint:
    found = folder.current()
    assert found is not None
    return found


def test_a_commit_is_what_the_next_lease_begins_with(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "1")
    assert folder.begin(1) == 0
    (folder.attempt(1) / "best").mkdir()
    (folder.attempt(1) / "best" / "model").write_text("old")
    save(folder, 1, "at 10", 10)
    save(folder, 1, "at 20", 20, last=True)
    assert not any(folder.attempt(1).iterdir())
    assert folder.begin(2) == 20
    assert (folder.attempt(2) / "model").read_text() == "at 20"
    assert (folder.attempt(2) / "best" / "model").read_text() == "old"
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["1-2-20"]
    (folder.attempt(2) / "model").write_text("half")
    assert folder.begin(3) == 20
    assert (folder.attempt(3) / "model").read_text() == "at 20"


def test_a_lease_may_begin_with_what_a_lost_one_has_left(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "1")
    folder.begin(1, takes_left=True)
    save(folder, 1, "committed", 0, last=True)
    (folder.attempt(1) / "log").write_text("of a rank that left later")
    folder.begin(2, takes_left=True)
    assert kept(folder).epoch == 1
    assert [path.name for path in folder.attempt(2).iterdir()] == ["model"]  # what was left is not all of it
    (folder.attempt(2) / "model").write_text("left")
    folder.raise_fence(3)  # who was paused goes on, in its folder
    folder.begin(4, takes_left=True)
    assert (folder.attempt(4) / "model").read_text() == "left"
    assert kept(folder).epoch == 3
    assert not folder.attempt(2).exists()
    (folder.attempt(4) / "model").write_bytes(bytes(2 << 20))
    folder.begin(5, takes_left=True, most_mib=1.0)
    assert (folder.attempt(5) / "model").read_text() == "left"


def test_an_older_lease_can_neither_commit_nor_begin(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "1")
    folder.begin(1)
    save(folder, 1, "one", 10)
    folder.raise_fence(2)
    for last in (False, True):
        with pytest.raises(FencedError, match="the lease of epoch 1 is over: epoch 2 has begun"):
            save(folder, 1, "late", 90, last)
    with pytest.raises(FencedError):
        folder.begin(1)
    assert (kept(folder).path / "model").read_text() == "one"


def test_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "1")
    folder.begin(1)
    with pytest.raises(DovetailError, match="there is nothing in its checkpoint folder"):
        folder.commit(1, 10)


def test_who_was_stopped_after_its_commit_removes_no_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder(tmp_path / "1")
    folder.begin(1)
    save(folder, 1, "one", 10)
    remove = shutil.rmtree

    def stopped(path: Path, ignore_errors: bool = False) -> None:
        """The process is stopped while it cleans up, and a newer lease begins and commits meanwhile."""
        monkeypatch.setattr(shutil, "rmtree", remove)
        folder.begin(2)
        save(folder, 2, "two", 30)
        remove(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", stopped)
    save(folder, 1, "still one", 20)
    assert (kept(folder).epoch, kept(folder).steps) == (2, 30)
    assert (kept(folder).path / "model").read_text() == "two"


def test_many_writers_at_once_leave_the_newest_ones_checkpoint_whole(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "1")
    over = threading.Event()
    seen: list[int] = []

    def write(epoch: int) -> None:
        steps = 0
        with suppress(FencedError, OSError):  # its folder is gone with its lease
            while not over.is_set():
                steps += 1
                save(folder, epoch, f"{epoch}-{steps}", steps)

    def look() -> None:
        while not over.is_set():
            found = folder.current()
            if found is not None:
                with suppress(FileNotFoundError):  # it has just been followed by a newer one
                    assert (found.path / "model").read_text() == f"{found.epoch}-{found.steps}"
                    seen.append(found.epoch)

    threads = [threading.Thread(target=look)]
    threads[0].start()
    for epoch in range(1, 7):
        folder.begin(epoch)
        threads.append(threading.Thread(target=write, args=(epoch,)))
        threads[-1].start()
        while (found := folder.current()) is None or found.epoch < epoch:
            pass
    over.set()
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)
    assert kept(folder).epoch == 6


def test_what_is_no_file_is_left_out_and_waited_for_by_nobody(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "7")
    job.begin(1)
    os.mkfifo(job.attempt(1) / "pipe")
    (job.attempt(1) / "model").write_text("x")
    job.commit(1, steps=1)
    job.commit(1, steps=2, last=True)  # the folder itself, with the pipe
    assert job.begin(2) == 2
    assert [path.name for path in job.attempt(2).iterdir()] == ["model"]


def test_holes_stay_holes(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "7")
    job.begin(1)
    model = job.attempt(1) / "model"
    with model.open("wb") as file:
        file.seek(40 << 20)
        file.write(b"amid")
        file.truncate(80 << 20)
    before = model.stat()
    job.commit(1, steps=1)
    job.begin(2)
    copy = job.attempt(2) / "model"
    assert copy.stat().st_size == before.st_size
    assert copy.stat().st_blocks * 512 < 1 << 20
    assert copy.read_bytes() == (job.path / "current" / "model").read_bytes()
    assert copy.read_bytes()[40 << 20 :][:5] == b"amid\0"


@pytest.mark.parametrize("last", [False, True])
def test_what_is_too_long_is_refused_before_it_is_copied(tmp_path: Path, last: bool) -> None:
    folder = JobFolder(tmp_path / "1")
    folder.begin(1)
    save(folder, 1, "at 10", 10)
    with (folder.attempt(1) / "sparse").open("wb") as file:
        file.truncate(3 << 20)  # next to nothing on the disk
    assert folder.size_mib() < 1
    with pytest.raises(DovetailError, match=r"its files are 3 MiB long, more than the 2\.5 MiB of job_mib"):
        folder.commit(1, 20, last, most_mib=2.5)
    assert kept(folder).steps == 10
    folder.commit(1, 20, last, most_mib=3.5)
    assert kept(folder).steps == 20


@pytest.mark.parametrize("where", ["attempt", "folder", "deep", "named", "flag", "state", "nowhere", "many"])
def test_what_a_command_has_written_is_found_where_it_may_be(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own folder, where it runs, or where it says; not in the state of the service."""
    monkeypatch.setattr(checkpoints, "_MOST_FILES", 5)
    runs, named = tmp_path / "runs", tmp_path / "named"
    state = runs / "state"
    attempt = state / "jobs" / "1" / "attempts" / "1"
    for each in (attempt, runs / "a" / "b", named):
        each.mkdir(parents=True)
    places = {"attempt": attempt, "folder": runs, "deep": runs / "a" / "b", "named": named, "flag": named}
    places |= {"state": state, "nowhere": tmp_path, "many": runs}
    words = ("python", "-c", "pass", f"--out={named}" if where == "flag" else str(named))
    command = TrainingCommand(words, str(state / "jobs" / "1"), cwd=str(runs))
    for path in (attempt / "old", runs / "old", named / "old"):
        path.touch()
        os.utime(path, (1000, 1000))
    files = [places[where] / f"new{i}" for i in range(6 if where == "many" else 1)]
    for path in files:
        path.touch()
        os.utime(path, (3000, 3000) if where != "many" else (1000, 1000))
    assert has_news(command, attempt, since=2000.0) == (where not in ("state", "nowhere"))
    assert has_news(command, attempt, since=2000.0, failed=True) == (where == "attempt")


def test_without_a_folder_names_are_seen_from_the_jobs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag without a value names nothing: what lies where the agent was started is not looked at."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "state" / "jobs" / "1"
    attempt = folder / "attempts" / "1"
    for each in (elsewhere, attempt, folder / "out"):
        each.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    (elsewhere / "new").touch()
    command = TrainingCommand(("python", "train.py", "--flag=", "--out=out"), str(folder))
    assert not has_news(command, attempt, since=0.0)
    (folder / "out" / "new").touch()
    assert has_news(command, attempt, since=0.0)


def test_of_two_commits_at_once_the_newer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waited too long for its commit makes another, which overtakes it."""
    job = JobFolder(tmp_path / "7")
    job.begin(1)
    model = job.attempt(1) / "model"
    model.write_text("old")
    copy = checkpoints._copy_into

    def slow(source: Path, target: Path) -> None:
        monkeypatch.setattr(checkpoints, "_copy_into", copy)
        copy(source, target)
        model.write_text("new")
        job.commit(1, steps=20)

    monkeypatch.setattr(checkpoints, "_copy_into", slow)
    with pytest.raises(FencedError, match="a newer checkpoint, of step 20, is there already"):
        job.commit(1, steps=10)
    assert job.saved == 20
    assert (job.path / "current" / "model").read_text() == "new"
    assert len(list((job.path / "checkpoints").iterdir())) == 1


def test_a_broken_fence_is_told_by_its_name(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "7")
    job.begin(1)
    (job.path / "fence").write_text("")
    with pytest.raises(DovetailError, match=r"7/fence: expected the number of an epoch, found ''"):
        job.begin(2)
