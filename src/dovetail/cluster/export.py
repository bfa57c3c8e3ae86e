"""What a run gave, as a row of figures for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec.structs import asdict

from dovetail.cluster.metrics import ClusterResult, by_name

QUANTILES = 100  # steps in which the distribution of completion times is kept


def figures(outcome: ClusterResult) -> dict[str, Any]:
    """All figures of a run by name, those of its records first, then what it took."""
    took = asdict(outcome)
    del took["figures"], took["completion_s"]
    return by_name(outcome.figures) | took


def measured(outcome: ClusterResult, window: tuple[int, int] | None) -> dict[int, float]:
    """Completion times by job id, of the window if there is one."""
    first, end = window or (0, float("inf"))
    return {job: time_s for job, time_s in outcome.completion_s.items() if first <= job < end}


def quantiles(times_s: Iterable[float]) -> list[float]:
    """The distribution of completion times, from the least to the largest; nothing if there are none.

    >>> quantiles([])
    []
    >>> quantiles(range(201))[:3]
    [0.0, 2.0, 4.0]
    """
    values = np.fromiter(times_s, dtype=np.float64)
    return np.quantile(values, np.linspace(0, 1, QUANTILES + 1)).tolist() if len(values) else []
