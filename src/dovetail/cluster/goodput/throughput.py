"""How long one optimiser step takes: seven numbers for a job on a type.

The last axis of `numbers` holds `NUMBERS`; everything broadcasts. A step computes `steps + 1` local batches on each of
`replicas` accelerators in `nodes` servers; the last one overlaps with the exchange of gradients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

NUMBERS = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
LEAST = 1e-8  # of every number but gamma, which is between 1 and `MOST_OVERLAP`
MOST_OVERLAP = 10.0


def compute_s(numbers: Floats, local: ArrayLike) -> Floats:
    """Seconds that an accelerator works on a local batch."""
    found: Floats = numbers[..., 0] + numbers[..., 1] * np.asarray(local)
    return found


def exchange_s(numbers: Floats, nodes: ArrayLike, replicas: ArrayLike) -> Floats:
    """Seconds that gradients take from everybody to everybody: next to nothing for one accelerator alone."""
    nodes, replicas = np.asarray(nodes), np.asarray(replicas)
    beyond_two = np.maximum(replicas - 2, LEAST)
    inside = numbers[..., 4] + numbers[..., 5] * beyond_two
    across = numbers[..., 2] + numbers[..., 3] * beyond_two
    found: Floats = np.where(replicas > 1, np.where(nodes > 1, across, inside), LEAST)
    return found


def overlapped_s(gamma: Floats | float, compute: Floats, exchange: Floats) -> Floats:
    """Seconds of the exchanging step: the sum of both at gamma 1, nearly the larger of the two at 10.

    >>> round(float(overlapped_s(1.0, np.array(3.0), np.array(4.0))), 9)
    7.0
    >>> round(float(overlapped_s(2.0, np.array(3.0), np.array(4.0))), 9)
    5.0
    """
    found: Floats = np.exp(np.log(compute**gamma + exchange**gamma) / gamma)
    return found


def iteration_s(
    numbers: Floats, nodes: ArrayLike, replicas: ArrayLike, local: ArrayLike, steps: ArrayLike = 0
) -> Floats:
    """Seconds of one optimiser step with `steps` local batches before the exchanging one."""
    compute = compute_s(numbers, local)
    last = overlapped_s(numbers[..., 6], compute, exchange_s(numbers, nodes, replicas))
    found: Floats = np.asarray(steps) * compute + last
    return found
