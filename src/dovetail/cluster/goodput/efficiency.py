"""What a larger batch is worth: training per optimiser step, by the noise of its gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def gain(grad_sqr: ArrayLike, grad_var: ArrayLike, scale: ArrayLike) -> Floats:
    """Progress of one step at `scale` times the initial batch, in steps at the initial one: from 1 to `scale`.

    >>> gain(1.0, 3.0, [1.0, 2.0, 1e9]).round(6).tolist()
    [1.0, 1.6, 4.0]
    """
    sqr, var = np.asarray(grad_sqr, dtype=np.float64), np.asarray(grad_var, dtype=np.float64)
    found: Floats = (var + sqr) / (var / np.asarray(scale) + sqr)
    return found


def efficiency(grad_sqr: ArrayLike, grad_var: ArrayLike, scale: ArrayLike) -> Floats:
    """Progress per sample, 1 at the initial batch and falling: the more noise, the later.

    >>> efficiency(1.0, 3.0, [1.0, 2.0, 4.0]).round(6).tolist()
    [1.0, 0.8, 0.571429]
    """
    found: Floats = gain(grad_sqr, grad_var, scale) / np.asarray(scale)
    return found
