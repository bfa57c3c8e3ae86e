"""What a test leaves behind: processes, threads and temporary files. A fixture of all tests fails the one that does."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

MARK = "DOVETAIL_STARTED_BY_TEST"  # in the environment of whatever a test starts, and of what that starts
PATIENCE_S = 120.0  # to end what is ending; only a test that fails waits so long
_numbers = count()
# Started once by a library, for the rest of the process, whichever test happens to be the first.
_LASTING_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_LASTING_THREADS = ("asyncio_", "pin_memory")
_LASTING_FILES = ("torchinductor_", "torch_", "matplotlib-", "pymp-", "ray", "playwright")


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if what runs inside leaves a process, a thread or a temporary file behind."""
    mark = f"{os.getpid()}.{next(_numbers)}"
    processes, threads, files = _process_ids(), set(threading.enumerate()), _files()
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before
    found = _found(mark, processes, threads, files)
    until = time.monotonic() + PATIENCE_S
    while found and time.monotonic() < until:
        time.sleep(0.02)
        found = _found(mark, processes, threads, files)
    assert not found, f"left behind: {'; '.join(found)}"


def _found(mark: str, processes: set[str], threads: set[threading.Thread], files: set[str]) -> list[str]:
    running = [_command(pid) for pid in _process_ids() - processes if _started_by(pid, mark)]
    return [
        *(f"process {command}" for command in running if not any(word in command for word in _LASTING_PROCESSES)),
        *(f"thread {t.name}" for t in set(threading.enumerate()) - threads if _is_ours(t)),
        *(f"file {name}" for name in _files() - files if not name.startswith((".", *_LASTING_FILES))),
    ]


def _is_ours(thread: threading.Thread) -> bool:
    """A library's class of thread (a progress bar's clock, ...) is not a test's to end."""
    home = type(thread).__module__.partition(".")[0]
    return home in ("threading", "dovetail", "tests") and not thread.name.startswith(_LASTING_THREADS)


def _process_ids() -> set[str]:
    return {name for name in os.listdir("/proc") if name.isdecimal()} if Path("/proc/self").exists() else set()


def _started_by(pid: str, mark: str) -> bool:
    try:
        return f"{MARK}={mark}\0".encode() in Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return False  # it has ended, or is not ours


def _command(pid: str) -> str:
    try:
        return f"{pid}: {Path('/proc', pid, 'cmdline').read_text().replace(chr(0), ' ')[:200]}"
    except OSError:
        return pid


def _files() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))
