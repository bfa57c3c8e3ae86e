"""A pipeline as arrays: time, memory and transfer of every interval of layers on every class of device.

Cuts are numbered 0 (before the first layer) to L (after the last); a stage (i, j] holds layers i+1 to j.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from dovetail.pipeline.inputs.problem import BYTES_PER_S, MIB, Pipeline

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Tables:
    """`compute[k, i, j]` is the time of stage (i, j] on class k, infinite where it does not fit or may not be cut."""

    def __init__(self, pipeline: Pipeline, allowed_cuts: set[int] | None = None) -> None:
        self.pipeline = pipeline
        self.layers = pipeline.layers
        self.counts = [len(c.hosts) for c in pipeline.classes]
        self.cut_bytes = np.array(pipeline.cut_bytes, dtype=float)
        cuts = self.layers + 1
        open_cuts = np.ones(cuts, dtype=bool)
        if allowed_cuts is not None:
            open_cuts[:] = [j in allowed_cuts or j in (0, self.layers) for j in range(cuts)]
        self.need_bytes = self._need()
        later = np.arange(cuts)[None, :] > np.arange(cuts)[:, None]
        self.fits = np.zeros((len(self.counts), cuts, cuts), dtype=bool)
        self.compute = np.full((len(self.counts), cuts, cuts), np.inf)
        for k, c in enumerate(pipeline.classes):
            self.fits[k] = later & (c.mem_mib * MIB > self.need_bytes)
            times = _interval_sums(c.time_s) + c.stage_s
            usable = self.fits[k] & open_cuts[None, :] & open_cuts[:, None]
            self.compute[k][usable] = times[usable]

    def _need(self) -> Floats:
        """Bytes that stage (i, j] occupies: weights, one copy of input and output, and the buffers.

        The first stage has no receive buffers; the last has send buffers all the same.
        """
        p = self.pipeline
        into = self.cut_bytes[:, None]
        out = self.cut_bytes[None, :]
        received = np.where(np.arange(self.layers + 1)[:, None] > 0, into * p.buffers_in, 0.0)
        weights = _interval_sums(p.mem_mib)
        for group in p.tied:
            inside = _interval_sums([layer in group.layers for layer in range(1, self.layers + 1)])
            weights -= np.maximum(inside - 1, 0) * group.mib
        need: Floats = weights * MIB + received + out * p.buffers_out + into + out
        return need

    def transfer(self, u: int, v: int) -> Floats:
        """Seconds to send each cut from class u to class v; infinite over a link without bandwidth."""
        p = self.pipeline
        mbps = min(p.classes[u].bw_mbps, p.classes[v].bw_mbps) if p.link_mbps is None else p.link_mbps[u][v]
        latency_s = 0.0 if p.link_s is None else p.link_s[u][v]
        if mbps <= 0:
            return np.full(self.layers + 1, np.inf)
        return self.cut_bytes / (mbps * BYTES_PER_S) + latency_s

    @cached_property
    def transfers(self) -> Floats:
        """`transfers[u, v, j]`: seconds to send cut j from class u to class v."""
        count = len(self.counts)
        return np.array([[self.transfer(u, v) for v in range(count)] for u in range(count)])

    @cached_property
    def candidates(self) -> Floats:
        """All values that a bottleneck can have, ascending: times of stages that fit, and transfers of inner cuts."""
        times = self.compute[np.isfinite(self.compute)]
        inner = self.transfers[:, :, 1 : self.layers].ravel() if self.counts else np.zeros(0)
        return np.unique(np.concatenate([times, inner[np.isfinite(inner)]]))


def _interval_sums(values: Sequence[float]) -> Floats:
    """Sums of values[i:j] at [i, j], added from left to right as a loop would."""
    count = len(values)
    sums = np.zeros((count + 1, count + 1))
    for i in range(count):
        sums[i, i + 1 :] = np.cumsum(values[i:])
    return sums


def data_s(p: Pipeline, k: int, cut: int, data_mbps: float | None) -> float:
    if data_mbps is None:
        return 0.0
    mbps = min(data_mbps, p.classes[k].bw_mbps)
    return p.cut_bytes[cut] / (mbps * BYTES_PER_S) if mbps > 0 else inf
