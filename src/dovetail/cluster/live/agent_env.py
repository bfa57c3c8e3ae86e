"""What a training process finds in its environment: who it is, which accelerators it has, and where its agent is."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from dovetail.cluster import compat
from dovetail.cluster.live.wire import NodeLease

_NAME = re.compile(r"\$\{(DOVETAIL_\w+|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\}")
_MOST_WORDS = 500  # of a process that failed
_MPS = "nvidia-cuda-mps-control"
_MPS_LIMIT_S = 20.0


def environment(
    lease: NodeLease,
    rank: int,
    checkpoints: Path,
    agent: Path,
    base: Mapping[str, str],
    mps: Path | None = None,
    renew_at: float = 0.75,
) -> dict[str, str]:
    """For one rank of a lease. Where the job has GPUs it sees all of its own on this machine, and LOCAL_RANK says which
    is the rank's. An older script finds the iterator that it imports."""
    local = lease.ranks.index(rank)
    found = {name: value for name, value in base.items() if not name.startswith(("DOVETAIL_JOB", "CUDA_MPS_"))}
    found |= {"PYTHONUNBUFFERED": "1", **lease.command.env}
    path = [str(Path(compat.__path__[0]) / "gavel_shim"), found.get("PYTHONPATH", "")]
    found |= {
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
        "DOVETAIL_JOB": str(lease.job),
        "DOVETAIL_EPOCH": str(lease.epoch),
        "DOVETAIL_RANK": str(rank),
        "DOVETAIL_WORLD_SIZE": str(lease.world),
        "DOVETAIL_LOCAL_RANK": str(local),
        "DOVETAIL_DEVICE": lease.type,
        "DOVETAIL_CHECKPOINT_DIR": str(checkpoints),
        "DOVETAIL_AGENT": str(agent),
        "DOVETAIL_RENEW_AT": str(renew_at),
        "RANK": str(rank),
        "WORLD_SIZE": str(lease.world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(len(lease.ranks)),
        "MASTER_ADDR": lease.master,
        "MASTER_PORT": str(lease.port),
        "GAVEL_JOB_ID": str(lease.job),
        "GAVEL_WORKER_ID": str(rank),
        "GAVEL_ROUND_ID": str(lease.epoch),
        "GAVEL_SCHED_ADDR": "127.0.0.1",
        "GAVEL_SCHED_PORT": "0",
    }
    found.pop("DOVETAIL_BESIDE", None)
    if lease.beside:
        found["DOVETAIL_BESIDE"] = lease.beside
    if all(gpu >= 0 for gpu in lease.gpus):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, lease.gpus))
        if mps is not None:
            found["CUDA_MPS_PIPE_DIRECTORY"] = str(mps)
    return found


def filled(words: Iterable[str], env: Mapping[str, str]) -> list[str]:
    """A command in which ${NAME} is what its environment says, of names that an agent sets; others stay as they are.

    >>> filled(["train", "--rank=${RANK}", "${HOME}"], {"RANK": "1", "HOME": "/y"})
    ['train', '--rank=1', '${HOME}']
    """
    return [_NAME.sub(lambda found: env.get(found[1], found[0]), word) for word in words]


class SharedGpus:
    """NVIDIA's service by which processes of several jobs compute on one GPU at once: started when the first pair
    comes, where it is installed; without it they take turns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "mps"
        self._running = False

    def pipes(self, lease: NodeLease) -> Path | None:
        """Where a lease's processes reach it, if they are to."""
        if not lease.beside or any(gpu < 0 for gpu in lease.gpus) or shutil.which(_MPS) is None:
            return None
        if not self._running:
            self._folder.mkdir(exist_ok=True)
            self._running = self._call("-d")
        return self._folder if self._running else None

    def close(self) -> None:
        if self._running:
            self._call(told="quit\n")

    def _call(self, *words: str, told: str = "") -> bool:
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(self._folder), "CUDA_MPS_LOG_DIRECTORY": str(self._folder)}
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [_MPS, *words],
                input=told,
                text=True,
                env={**os.environ, **pipes},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_MPS_LIMIT_S,
            )
            return done.returncode == 0
        return False


def last_line(log: Path) -> str:
    """What a process has written last."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _MOST_WORDS, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
    return ""


def free_ports(count: int = 4) -> tuple[int, ...]:
    """Ports on which nobody listens just now."""
    found: list[socket.socket] = []
    with suppress(OSError):
        for _ in range(count):
            found.append(socket.socket())
            found[-1].bind(("", 0))
    ports = tuple(each.getsockname()[1] for each in found)
    for each in found:
        each.close()
    return ports
