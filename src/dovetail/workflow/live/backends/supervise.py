"""Run a command for as long as somebody holds the other end of standard input, and then end all that it started.

    python supervise.py GRACE_S COMMAND ...

Run as a file, by itself: a worker that is killed cannot tidy up, but its end of the pipe closes. SIGTERM goes to the
command's process group, SIGKILL after GRACE_S seconds to whatever is left, also of those that left the group.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_in_own_group)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while child.poll() is None:
        readable = select.select([0, ended], [], [])[0]
        if 0 in readable or (ended in readable and signal.SIGTERM in os.read(ended, 64)):
            break
    _end(child, grace_s)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _in_own_group() -> None:
    os.setpgid(0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    while left := _children():  # adopted: whatever had a group of its own
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    sys.exit(main())
