"""Services that kill themselves at their n-th write, in the middle of it or around it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from dovetail.core.journal import Writer
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]


def serve(module: str, folder: Path, die_at: int) -> subprocess.CompletedProcess[str]:
    """Run the `main` of a module in a process of its own; it is killed at that write, or goes on to its end for 0."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; from {module} import main; main(*sys.argv[1:])", str(folder), str(die_at)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def killed_often(module: str, folder: Path, seed: int, times: int) -> str:
    """Serve again and again, each time killed at another write, then to the end; gives what is printed there."""
    chance = random.Random(seed)
    for _ in range(times):
        died = serve(module, folder, chance.randrange(1, 60))
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
    ended = serve(module, folder, 0)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def die_at(n: int, *writes: tuple[type, str]) -> None:
    """Count the moments around these methods and within writes of the journal; the n-th is the last. 0 is none."""
    moments = count(1)

    def moment() -> bool:
        return next(moments) == n

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def around(write: Callable[..., Any]) -> Callable[..., Any]:
        def both(*given: Any) -> Any:
            if moment():
                die()
            done = write(*given)
            if moment():
                die()
            return done

        return both

    flush = Writer.flush

    def torn(writer: Writer) -> None:
        if writer._buffer and moment():
            writer._file.write(bytes(writer._buffer[: len(writer._buffer) * (n % 5) // 4]))
            writer._file.flush()
            die()
        flush(writer)

    for owner, name in writes:
        setattr(owner, name, around(getattr(owner, name)))
    Writer.flush = torn  # type: ignore[assignment,method-assign]
