"""A training job whose ranks wait for each other after each step, as those do that exchange gradients."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from dovetail.cluster import LeaseIterator
from dovetail.testing.cluster.paced import Endless


def neighbour(rank: int) -> socket.socket:
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(place) as listener:
            return listener.accept()[0]
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(place)
        time.sleep(0.01)


def main(trace: str, rate: str) -> None:
    """Each rank writes each step that it begins, and where it stops."""
    state = Path(os.environ["DOVETAIL_CHECKPOINT_DIR"], "steps")
    batches = LeaseIterator(Endless(), save=lambda: state.write_text(str(batches.steps)))
    batches.load_checkpoint()
    rank, epoch = batches.lease.rank, os.environ["DOVETAIL_EPOCH"]
    with open(f"{trace}.{epoch}.{rank}", "a", buffering=1) as file, neighbour(rank) as other:
        for _ in batches:
            file.write(f"{batches.steps}\n")
            time.sleep(1 / float(rate))
            other.sendall(b".")
            if not other.recv(1):
                raise SystemExit(f"the other rank stopped before step {batches.steps}")
        file.write(f"stops at {batches.steps}\n")
    batches.save_checkpoint()


if __name__ == "__main__":
    main(*sys.argv[1:])
