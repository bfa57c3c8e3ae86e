"""What stages and links take under the constraints, and what they cost for an objective at a pace."""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.problem import DTYPE_BYTES
from dovetail.pipeline.optimise.chains import Capped, Chains
from dovetail.pipeline.optimise.stages import Option, Stages
from dovetail.pipeline.optimise.tables import Floats, Tables, data_s
from dovetail.pipeline.plan import Constraints, Objective

_ALONE = 1 + 1e-9  # of a cap: surely more than rounding
AS_IT_IS = 32  # this width, and any that a dtype does not exceed, leaves values as they are


def width_share(dtype: str, bits: int) -> float:
    """Which part of the bytes is sent with so many bits per value.

    >>> width_share("torch.float32", 8), width_share("torch.float16", 8), width_share("torch.float64", 32)
    (0.25, 0.5, 1.0)
    """
    return 1.0 if bits == AS_IT_IS else min(1.0, bits / (8 * DTYPE_BYTES[dtype]))


class Costs:
    """Times of stages and links by option, for one microbatch and as the pace that they allow.

    Links have the narrowest width: nothing gets better by a wider one. What a constraint forbids is infinite.
    """

    def __init__(self, tables: Tables, constraints: Constraints) -> None:
        self.tables = tables
        self.constraints = constraints
        p = tables.pipeline
        self.options = [
            Option(k, r)
            for k, count in enumerate(tables.counts)
            for r in range(1, min(constraints.replicas, count) + 1)
        ]
        k = [o.k for o in self.options]
        devices = np.array([o.devices for o in self.options], dtype=float)
        # Replicas take turns: they divide the pace of a stage and its links, not the time of one microbatch.
        self.stage_s = np.array([self._times(o) for o in self.options]) if k else np.zeros((0, 1, 1))
        self.stage_pace_s = self.stage_s if (devices == 1).all() else self.stage_s / devices[:, None, None]
        wait_s = np.array(p.link_s) if p.link_s else np.zeros((len(p.classes), len(p.classes)))
        sent = (tables.transfers - wait_s[:, :, None]) * width_share(p.dtype, min(constraints.link_bits))
        by_cut = np.moveaxis(sent + wait_s[:, :, None], 2, 0)[:, k][:, :, k]
        if constraints.first is not None and constraints.first == constraints.last:
            by_cut = np.full_like(by_cut, inf)  # one host, so one stage
        together = devices[:, None] + devices[None, :]
        scarce = (np.array(k)[:, None] == np.array(k)[None, :]) & (together > np.array(tables.counts)[k])
        by_cut[:, scarce] = inf  # a class has no devices for two such stages
        self.link_s = by_cut
        self.link_pace_s = by_cut / np.minimum(devices[:, None], devices[None, :])
        self.enter_s = np.array([self._end(o, 0, constraints.first) for o in self.options])
        self.leave_s = np.array([self._end(o, p.layers, constraints.last) for o in self.options])
        floor = constraints.throughput_floor_items_s
        self.most_pace_s = inf if floor is None else p.batch_size / floor * (1 + 5e-10)

    def _times(self, option: Option) -> Floats:
        """Times of intervals; the whole model is none for one device where two of the class must hold its ends."""
        times: Floats = self.tables.compute[option.k]
        pinned = set(self.constraints.pinned)
        if option.devices < len(pinned) and pinned <= set(self.tables.pipeline.classes[option.k].hosts):
            times = times.copy()
            times[0, -1] = inf
        return times

    def _end(self, option: Option, cut: int, host: str | None) -> float:
        p = self.tables.pipeline
        if host is not None and host not in p.classes[option.k].hosts:
            return inf
        return data_s(p, option.k, cut, self.constraints.data_mbps)

    @cached_property
    def paces(self) -> Floats:
        """All values that the pace can have, ascending."""
        inner = self.link_pace_s[1:-1]
        values = [x[np.isfinite(x)] for x in (self.stage_pace_s, inner, self.enter_s, self.leave_s)]
        every = np.unique(np.concatenate(values))
        return every[every <= self.most_pace_s]

    def chains(
        self, tariff: Tariff, low_s: float, high_s: float, max_devices: int | None = None, cap: bool = True
    ) -> Chains:
        """The chains of a pace from `low_s` to `high_s`, none costing more than at its own pace: what is charged by the
        pace is charged to a stage by its own, and by `low_s` if that is slower. Without `cap` their latency may be what
        it is."""
        high_s = min(high_s, self.most_pace_s, 1e300)  # what is forbidden stays so without a limit
        cap_s = self.constraints.latency_cap_s if cap else None
        most_s = inf if cap_s is None else cap_s * _ALONE  # what takes longer is in no chain, and no number of a solver

        def within(pace: Floats, alone_s: Floats) -> Floats:
            return np.where((pace <= high_s) & (alone_s <= most_s), 0.0, inf)

        link_off = within(self.link_pace_s, self.link_s)
        enter_off, leave_off = within(self.enter_s, self.enter_s), within(self.leave_s, self.leave_s)
        stage_s, link_s, enter_s, leave_s = self._allowed
        capped = None if cap_s is None else Capped(stage_s, link_s, enter_s, leave_s, cap_s)
        limits = [x for x in (self.constraints.max_stages, max_devices) if x is not None]
        return Chains(
            self.options,
            self.tables.counts,
            self._stages(tariff, low_s, high_s, most_s),
            tariff.link * link_s + link_off,
            tariff.link * enter_s + enter_off,
            tariff.link * leave_s + leave_off,
            tariff.fixed + tariff.fixed_by_pace * low_s if low_s else tariff.fixed,
            capped,
            min(limits, default=None),
            tariff.whole,
        )

    @cached_property
    def _allowed(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The times of what is not forbidden, else 0."""
        stage, link, enter, leave = (
            np.where(np.isfinite(x), x, 0.0) for x in (self.stage_s, self.link_s, self.enter_s, self.leave_s)
        )
        return stage, link, enter, leave

    def _stages(self, tariff: Tariff, low_s: float, high_s: float, most_s: float) -> Floats:
        """What stages cost that are no slower than `high_s` and alone take no longer than `most_s`."""
        at, option, alone_s, pace_s = self._possible
        kept = np.nonzero((pace_s <= high_s) & (alone_s <= most_s))[0]
        option = option[kept]
        above_s = pace_s[kept] - low_s
        cost = tariff.stage[option] * alone_s[kept]
        if low_s < high_s and tariff.fixed_by_pace.any():
            cost += tariff.fixed_by_pace[option] * np.maximum(above_s, 0.0)
        if tariff.waiting.any():
            cost += tariff.waiting[option] * np.maximum(-above_s, 0.0)
        stage = np.full(self.stage_s.shape, inf)
        stage.ravel()[at[kept]] = cost
        return stage

    @cached_property
    def _possible(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
        """The stages that keep the floor: where each stands in a table, its option, its time and its pace."""
        at = np.flatnonzero(np.isfinite(self.stage_s) & (self.stage_pace_s <= self.most_pace_s))
        cuts = self.stage_s.shape[1]
        return at, at // (cuts * cuts), self.stage_s.ravel()[at], self.stage_pace_s.ravel()[at]

    def pace_s(self, stages: Stages) -> float:
        """The pace of a chain."""
        index = {option: o for o, option in enumerate(self.options)}
        chosen = [(index[option], i, j) for option, i, j in stages]
        paces = [self.enter_s[chosen[0][0]], self.leave_s[chosen[-1][0]]]
        for x, (o, i, j) in enumerate(chosen):
            paces.append(self.stage_pace_s[o, i, j])
            if x:
                paces.append(self.link_pace_s[i, chosen[x - 1][0], o])
        return float(max(paces))

    def value(self, tariff: Tariff, stages: Stages) -> float:
        """What a chain costs at its own pace."""
        index = {option: o for o, option in enumerate(self.options)}
        chosen, pace_s = [(index[option], i, j) for option, i, j in stages], self.pace_s(stages)
        cost = tariff.by_pace * pace_s + tariff.link * float(self.enter_s[chosen[0][0]] + self.leave_s[chosen[-1][0]])
        for x, (o, i, j) in enumerate(chosen):
            waits_s = pace_s - self.stage_pace_s[o, i, j]
            cost += float(tariff.stage[o] * self.stage_s[o, i, j] + tariff.waiting[o] * waits_s)
            cost += float(tariff.fixed[o] + tariff.fixed_by_pace[o] * pace_s)
            if x:
                cost += tariff.link * float(self.link_s[i, chosen[x - 1][0], o])
        return cost

    def tariff(self, objective: Objective, microbatches: int = 1) -> Tariff:
        """What an objective charges."""
        p, count = self.tables.pipeline, len(self.options)
        devices = np.array([o.devices for o in self.options], dtype=float)
        zero, one = np.zeros(count), np.ones(count)
        free = Tariff(stage=zero, link=0.0, fixed=zero, fixed_by_pace=zero, waiting=zero)
        if objective == "throughput":
            return free
        if objective == "latency":
            return free._replace(stage=one, link=1.0)
        if objective == "batch":
            return free._replace(stage=one, link=1.0, by_pace=float(microbatches - 1))
        if objective == "devices":
            return free._replace(fixed=devices, whole=True)
        k = [o.k for o in self.options]
        busy, idle, price = (
            np.array([getattr(c, key) for c in p.classes])[k] / p.batch_size
            for key in ("watts_busy", "watts_idle", "price_per_hour")
        )
        if objective == "energy" and (busy.any() or idle.any()):
            return free._replace(stage=busy, waiting=idle * devices)
        if objective == "money" and price.any():
            return free._replace(fixed_by_pace=price / 3600 * devices)
        need = "watts_busy and watts_idle" if objective == "energy" else "price_per_hour"
        raise InputError(f"objective {objective} needs {need} of the device types")


class Tariff(NamedTuple):
    """What an objective charges: per second of a stage by option, per second of links and ends, per stage of an option,
    per stage and second of pace, per stage and second that its devices wait in, and per second of pace once."""

    stage: Floats
    link: float
    fixed: Floats
    fixed_by_pace: Floats
    waiting: Floats
    by_pace: float = 0.0
    whole: bool = False
