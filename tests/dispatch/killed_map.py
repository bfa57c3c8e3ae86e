"""A map that is killed at its n-th moment of writing, for each n, and gone on with: `python killed_map.py IN OUT`.

Every attempt is a process of its own, forked from this one so that PyTorch is imported once. Prints how many.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.live.mapping.shard_files import FORMATS

TWO = [Device("first", where="cpu", threads=1), Device("second", where="cpu", threads=1)]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def die_at(n: int) -> None:
    """Count the moments around and within writes; the n-th is the last."""
    moments = count(1)

    def moment() -> None:
        if next(moments) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(write: Callable[..., Any]) -> Callable[..., Any]:
        def both(*given: Any) -> Any:
            moment()
            done = write(*given)
            moment()
            return done

        return both

    whole = FORMATS["npy"].write

    def torn(file: BinaryIO, result: Any) -> None:
        whole(file, result)
        if next(moments) == n:
            file.truncate(file.tell() * (n % 5) // 4)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    FORMATS["npy"] = FORMATS["npy"]._replace(write=torn)
    Path.replace = around(Path.replace)  # type: ignore[method-assign]
    os.fsync = around(os.fsync)


def attempt(data: Path, out: Path, n: int) -> int:
    """The exit status of a map that dies at its n-th moment."""
    if not (child := os.fork()):
        die_at(n)
        with Dispatcher(doubled, TWO, sizes=7, cache=False) as dispatcher:
            dispatcher.map(data, out, items=20)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main(data: str, out: str) -> None:
    for n in count(1):
        folder = Path(out, f"{n:03d}")
        killed = attempt(Path(data), folder, n)
        assert killed in (0, signal.SIGKILL), killed
        assert attempt(Path(data), folder, 0) == 0
        if not killed:
            print(n)
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
