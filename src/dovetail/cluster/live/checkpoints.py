"""A job's folder, which all nodes share, and the fence that keeps an older lease from spoiling a newer checkpoint.

    fence                  the epoch of the lease that may commit
    attempts/EPOCH/        what a lease's processes load from and write to; begins as a copy of the current checkpoint
    checkpoints/NAME/      whole checkpoints, which nobody writes to; the name is EPOCH-NUMBER-STEPS
    current                a link to one of them

The fence only rises, and before a new lease begins. A checkpoint becomes current only under a lock, and only if its
epoch is the fence's. Copies are made outside of the lock: who is stopped amid a copy holds up nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dovetail.cluster.live.wire import TrainingCommand
from dovetail.core.errors import DovetailError

_MOST_FILES = 10_000
_CLOCKS_S = 2.0  # by which the clock of a file server may be behind
_FICLONE = 0x40049409  # the request to share a file's blocks until one side writes
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class FencedError(DovetailError):
    """A newer lease of the job has begun: this one's checkpoint is not taken."""


class KeptCheckpoint(NamedTuple):
    path: Path
    epoch: int
    steps: int


class JobFolder:
    """
    >>> import tempfile
    >>> job = JobFolder(Path(tempfile.mkdtemp()) / "7")
    >>> job.begin(1)
    0
    >>> _ = (job.attempt(1) / "model").write_text("at 40")
    >>> job.commit(1, steps=40)
    >>> job.begin(2), (job.attempt(2) / "model").read_text()
    (40, 'at 40')
    >>> job.commit(1, steps=50)
    Traceback (most recent call last):
    dovetail.cluster.live.checkpoints.FencedError: the lease of epoch 1 is over: epoch 2 has begun
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def attempt(self, epoch: int) -> Path:
        return self.path / "attempts" / str(epoch)

    def log(self, epoch: int, rank: int) -> Path:
        return self.path / "logs" / f"{epoch}.{rank}.log"

    @property
    def fence(self) -> int:
        path = self.path / "fence"
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            raise DovetailError(f"{path}: expected the number of an epoch, found {path.read_text()!r}") from None

    def current(self) -> KeptCheckpoint | None:
        """The checkpoint that the next lease begins with."""
        try:
            path = self.path / os.readlink(self.path / "current")
        except FileNotFoundError:
            return None
        epoch, _, steps = path.name.split("-")
        return KeptCheckpoint(path, int(epoch), int(steps))

    @property
    def saved(self) -> int:
        """The steps of the current checkpoint."""
        kept = self.current()
        return kept.steps if kept else 0

    # --- the service's side -----------------------------------------------------------------------------

    def raise_fence(self, epoch: int) -> None:
        """From now on nothing of an older epoch becomes current."""
        with self._locked():
            self._check(epoch)
            part = self.path / "fence.part"
            part.write_text(str(epoch))
            _to_disk(part)
            part.replace(self.path / "fence")
            _to_disk(self.path)

    def begin(self, epoch: int, takes_left: bool = False, most_mib: float | None = None) -> int:
        """Raise the fence, and give a new lease the current checkpoint to begin with; gives the steps in it. With
        `takes_left` that is what the lease before has left, if its node was lost and nobody has committed it."""
        if takes_left:
            self._take_left(epoch, most_mib)
        self.raise_fence(epoch)
        (self.path / "logs").mkdir(exist_ok=True)
        attempts = self.path / "attempts"
        attempts.mkdir(exist_ok=True)
        for old in attempts.iterdir():
            if old.name.isdecimal() and int(old.name) > epoch:
                continue  # of a lease that is planned
            if old.name != str(epoch):
                shutil.rmtree(old, ignore_errors=True)  # what is not committed is lost, and who writes there still, too
        mine = self.attempt(epoch)
        if mine.exists():
            for each in mine.iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        kept = self.current()
        mine.mkdir(exist_ok=True)
        if kept is not None:
            _copy_into(kept.path, mine)
        return kept.steps if kept else 0

    def _take_left(self, epoch: int, most_mib: float | None) -> None:
        with suppress(FileNotFoundError):
            found = [int(old.name) for old in (self.path / "attempts").iterdir() if old.name.isdecimal()]
            last = self.attempt(max((each for each in found if each < epoch), default=0))
            kept = self.current()
            committed = kept is not None and kept.epoch >= self.fence  # what came later is not all of it
            if self.fence < epoch and not committed and last.is_dir() and any(last.iterdir()):
                with suppress(DovetailError):  # it is too large
                    self.commit(self.fence, self.saved, attempt=last, most_mib=most_mib)

    # --- the agent's side -------------------------------------------------------------------------------

    def commit(
        self,
        epoch: int,
        steps: int,
        last: bool = False,
        attempt: Path | None = None,
        most_mib: float | None = None,
    ) -> None:
        """Make what the lease has written the job's current checkpoint: of the `last` one the folder itself, else a
        copy. Raises FencedError if a newer lease has begun, OSError if the disk is full, and DovetailError if its files
        are longer than `most_mib` together: holes count, because not every copy keeps them."""
        mine = attempt or self.attempt(epoch)
        self._check(epoch)
        if not mine.is_dir() or not any(mine.iterdir()):
            self._check(epoch)  # its folder goes with its lease
            raise DovetailError("there is nothing in its checkpoint folder")
        if most_mib is not None and (mib := _length_mib(mine)) > most_mib:
            raise DovetailError(f"its files are {mib:.0f} MiB long, more than the {most_mib:g} MiB of job_mib")
        home = self.path / "checkpoints"
        home.mkdir(exist_ok=True)
        number = 1 + max(map(_number, home.iterdir()), default=0)
        name = f"{epoch}-{number}-{steps}"
        part = home / f".{name}.{os.getpid()}"
        try:
            if not last:
                part.mkdir()
                _copy_into(mine, part)
            self._make_current(mine if last else part, name, epoch)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            self._check(epoch)  # its folder goes with its lease
            raise
        _to_disk(self.path)  # without the lock: who is stopped while the disk is slow holds up nobody
        if last:
            mine.mkdir(exist_ok=True)  # its process may still look
        for old in home.iterdir():
            if _number(old) < number:  # never a newer one: it may be long since the lock was given back
                shutil.rmtree(old, ignore_errors=True)

    def _make_current(self, checkpoint: Path, name: str, epoch: int) -> None:
        with self._locked():
            self._check(epoch)
            if self.fence < epoch:
                raise FencedError(f"the lease of epoch {epoch} has not begun")
            kept = self.current()
            if kept is not None and _number(kept.path) > _number(Path(name)):
                raise FencedError(f"a newer checkpoint, of step {kept.steps}, is there already")
            checkpoint.rename(self.path / "checkpoints" / name)
            link = self.path / "current.part"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("checkpoints", name))
            link.replace(self.path / "current")

    def _check(self, epoch: int) -> None:
        if self.fence > epoch:
            raise FencedError(f"the lease of epoch {epoch} is over: epoch {self.fence} has begun")

    def size_mib(self) -> float:
        """What it holds."""
        return sum(found.st_blocks * 512 for found in _files_in(self.path)) / 2**20

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _number(checkpoint: Path) -> int:
    """
    >>> _number(Path("3-12-4000")), _number(Path(".3-13-4100.812"))
    (12, 13)
    """
    return int(checkpoint.name.split("-")[1])


def has_news(command: TrainingCommand, attempt: Path, since: float, failed: bool = False) -> bool:
    """Whether a file was written since then in a lease's folder; or, unless it `failed`, in the one that the command
    runs in, or at a place that it names, where others may write: of places that hold too much to look at, that is
    supposed."""
    state = Path(command.folder).parent.parent  # where logs and journals are written
    words = [part for word in command.words[1:] for part in word.split("=")]
    named = [Path(command.cwd or command.folder, word) for word in words if word]
    places = [attempt] if failed else [attempt, *([Path(command.cwd)] if command.cwd else []), *named]
    looked = 0
    for place in places:
        for found in _files_in(place, but=state if place != attempt else None):
            looked += 1
            if found.st_mtime >= since - _CLOCKS_S or looked > _MOST_FILES:
                return True
    return False


def _files_in(folder: Path, but: Path | None = None) -> Iterator[os.stat_result]:
    """What is known of the files below a folder, as far as they are there when it looks; of a file, of that."""
    with suppress(OSError, ValueError):
        if not folder.is_dir():
            yield folder.stat()
    look = [str(folder)]
    while look:
        with suppress(OSError), os.scandir(look.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if but is None or entry.path != str(but):
                            look.append(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False)


def _length_mib(folder: Path) -> float:
    return sum(found.st_size for found in _files_in(folder)) / 2**20


def _copy_into(source: Path, target: Path) -> None:
    """All files in a folder, sharing blocks where the file system can."""
    shutil.copytree(source, target, symlinks=True, copy_function=_clone, dirs_exist_ok=True)


def _clone(source: str, target: str) -> None:
    """A file of its own with the same content and holes. What is no file (a pipe, a device) is left out, unread."""
    old = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(old).st_mode):
            return
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _copy_data(old, new)
        finally:
            os.close(new)
    finally:
        os.close(old)
    shutil.copystat(source, target)


def _copy_data(old: int, new: int) -> None:
    try:
        fcntl.ioctl(new, _FICLONE, old)
        return
    except OSError as error:
        if error.errno not in _NO_CLONES:
            raise
    size = os.fstat(old).st_size
    os.ftruncate(new, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(old, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        end = os.lseek(old, at, os.SEEK_HOLE)
        os.lseek(new, at, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(new, old, at, min(end - at, 1 << 24))
            if not sent:
                raise OSError(errno.EIO, "it became shorter while it was copied")
            at += sent


def _to_disk(path: Path) -> None:
    """What a file holds, or which names a folder has, outlives a power cut from now on."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
