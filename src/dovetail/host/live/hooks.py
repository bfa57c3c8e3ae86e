"""What is run when a program has ended: a command of its user, with the outcome in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dovetail.host.live.specs import Spec
from dovetail.host.live.status import LiveProgram

LOG = "hooks.log"
_LIMIT_S = 60.0
_AT_ONCE = 4


class Hooks:
    """Runs hooks beside what the service does, a few at a time, and tells when each was run: one that a killed daemon
    was not told of is run again by the next."""

    def __init__(self, folder: Path, done: Callable[[str], None]) -> None:
        self._log, self._done = folder / "logs" / LOG, done
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hook")

    def run(self, spec: Spec, ended: LiveProgram) -> None:
        """Run the hook of a program that has ended so."""
        with suppress(RuntimeError):  # the daemon ends: the next one runs it
            self._pool.submit(self._run, spec, ended)

    def _run(self, spec: Spec, ended: LiveProgram) -> None:
        words, cwd = ["sh", "-c", spec.hook], spec.cwd if Path(spec.cwd or "-").is_dir() else "/"
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY)
        try:  # no pipe: what it leaves running goes on writing
            how = _done(words, cwd, spec.env | outcome(ended), log)
        except (OSError, ValueError) as error:  # a null character that an earlier version let pass
            how = str(getattr(error, "strerror", error))
        with suppress(OSError):
            os.write(log, f"hook of {ended.id}: {how}\n".encode() if how else b"")
        os.close(log)
        self._done(ended.id)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _done(words: list[str], cwd: str, env: dict[str, str], out: int) -> str:
    """Run a command until it ends, or to the limit with its group of processes; what is to be said of that."""
    null = subprocess.DEVNULL
    hook = subprocess.Popen(words, cwd=cwd, env=env, stdin=null, stdout=out, stderr=out, start_new_session=True)
    try:
        code = hook.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(hook.pid, signal.SIGKILL)
        hook.wait()
        return f"killed after {_LIMIT_S:g} s"
    return f"exit code {code}" if code else ""


def outcome(ended: LiveProgram) -> dict[str, str]:
    """How a program ended, as variables.

    >>> outcome(LiveProgram(id="3", name="train", cores=1, state="failed", exit_codes=(2,)))["DOVETAIL_EXIT_CODE"]
    '2'
    """
    return {
        "DOVETAIL_PROGRAM": ended.id,
        "DOVETAIL_NAME": ended.name,
        "DOVETAIL_GROUP": ended.group,
        "DOVETAIL_STATE": ended.state,
        "DOVETAIL_EXIT_CODE": str(ended.exit_status),
        "DOVETAIL_WHY": ended.why,
        "DOVETAIL_ATTEMPTS": str(ended.attempts),
        "DOVETAIL_SERVICE_S": f"{ended.service_s or 0.0:.3f}",
        "DOVETAIL_LOG": ended.log,
    }
