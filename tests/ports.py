"""A port that stays free until somebody who was told of it listens there."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def lasting_port() -> int:
    """Below those that the kernel gives out to whoever asks for any, and above those that Ray takes for itself."""
    choice = random.SystemRandom()  # others that begin with the same seed look for one too
    while True:
        port = choice.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
