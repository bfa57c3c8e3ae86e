"""Wait for what comes, however long a busy machine takes for it; no test waits for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300.0  # only a test that fails waits so long


def until(true: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    limit = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.01)
