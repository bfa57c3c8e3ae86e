"""Policies without hardware: the scheduler in virtual time, on curves, with noise and devices unlike theirs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from dovetail.core import registry
from dovetail.dispatch.bounds import peak_rate
from dovetail.dispatch.chunk import Chunk, ChunkRow
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curve_files import SimDevice, with_size
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.policies import name_of, policy_of
from dovetail.dispatch.policies.base import DeviceState, Policy
from dovetail.dispatch.recording import SIMULATED, BatchJournal, header_of
from dovetail.dispatch.replay import RecordedScheduler
from dovetail.dispatch.scheduler import ChunkScheduler

__all__ = ["Compared", "Curve", "SimDevice", "SimulatedRun", "compare", "simulate", "state_of"]


class SimulatedRun(Struct, frozen=True):
    """What a simulated run came to. `efficiency`: throughput over the sum of the devices' own peak rates."""

    makespan_s: float
    efficiency: float
    chunks: int
    items: dict[str, int]
    rows: list[ChunkRow]


class LostError(RuntimeError):
    """A simulated device that went away."""


def simulate(
    devices: Sequence[SimDevice],
    items: int,
    policy: str | Policy = "finish_together",
    options: Mapping[str, Any] | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    states: list[DeviceState] | None = None,
    journal: Path | None = None,
) -> SimulatedRun:
    """Run one batch in virtual time. `states`: what is known of the devices, if they have run before.

    With `journal`, a record of the run is left there.

    >>> fast, slow = Curve.linear(0.004, 200_000, 100_000), Curve.linear(0.001, 30_000, 100_000)
    >>> found = simulate([SimDevice("fast", fast), SimDevice("slow", slow)], 100_000)
    >>> found.efficiency > 0.95, sum(found.items.values())
    (True, 100000)
    """
    states = [state_of(device) for device in devices] if states is None else states
    kind = ChunkScheduler if journal is None else RecordedScheduler
    scheduler = kind(LocalCursor(0, items), policy_of(policy, options), states, total=items, backup=backup)
    run = _VirtualRun(scheduler, devices, noise, Random(seed))
    if journal is not None and isinstance(scheduler, RecordedScheduler):
        header = header_of(
            scheduler,
            policy=name_of(policy),
            mode=SIMULATED,
            items=items,
            peaks=[peak_rate(device.curve, items) / device.slower for device in devices],
            options=options,
            seed=seed,
            facts={"noise": noise, "by_name": isinstance(policy, str)},
        )
        with BatchJournal(journal, header, scheduler) as record:
            makespan = run.to_the_end()
            record.end(makespan)
    else:
        makespan = run.to_the_end()
    peak = sum(1 / (d.slower / d.curve.rate) for d in devices if d.fails_after_s == inf)
    done = {d.name: 0 for d in devices}
    for row in scheduler.log:
        if row.state == "done":
            done[devices[row.device].name] += row.stop - row.start
    efficiency = items / makespan / peak if makespan and peak else 0.0
    return SimulatedRun(makespan, efficiency, len(scheduler.rows), done, scheduler.log)


class Compared(Struct, frozen=True):
    """A policy, or one device alone, on a batch. `efficiency`: throughput over the sum of all devices' peak rates."""

    policy: str
    makespan_s: float
    efficiency: float
    chunks: int


def compare(
    devices: Sequence[SimDevice],
    items: int,
    policy: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    journal: Path | None = None,
) -> list[Compared]:
    """Run a batch under one policy, which may leave a journal; by default under each, and on each device alone."""
    peak = sum(device.curve.rate / device.slower for device in devices)
    cases: list[tuple[str, str, Sequence[SimDevice]]] = [
        (name, name, devices) for name in ([policy] if policy else registry.names("dispatch"))
    ]
    if policy is None:
        cases += [(f"{device.name} alone", "finish_together", [device]) for device in devices]
    found = []
    for title, name, given in cases:
        sized = [with_size(device, items // len(given)) for device in given] if name == "fixed" else given
        run = simulate(sized, items, name, options, noise=noise, seed=seed, backup=backup, journal=journal)
        found.append(Compared(title, run.makespan_s, items / run.makespan_s / peak, run.chunks))
    return found


def state_of(device: SimDevice) -> DeviceState:
    """What a policy knows of a device before its first batch."""
    curve = device.curve if device.known else None
    return DeviceState(device.name, curve, device.size, device.capacity, device.priority, device.slots)


class _VirtualRun:
    def __init__(self, scheduler: ChunkScheduler, devices: Sequence[SimDevice], noise: float, random: Random) -> None:
        self.scheduler, self.devices = scheduler, devices
        self.noise, self.random = noise, random
        self.events: list[tuple[float, int, int, Chunk | None, float]] = []
        self.sequence = 0
        self.woken_s = inf
        self.free_s = [0.0] * len(devices)

    def push(self, at: float, device: int, chunk: Chunk | None, seconds: float = 0.0) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at, self.sequence, device, chunk, seconds))

    def ask(self, now: float) -> None:
        """Offer work to every free device, until none takes any."""
        asked = True
        while asked:
            asked = False
            for i, state in enumerate(self.scheduler.view.devices):
                if state.chunks >= state.slots or not state.alive:
                    continue
                chunk = self.scheduler.take(i, now)
                if chunk is not None:
                    asked = True
                    device = self.devices[i]
                    factor = self.random.lognormvariate(-(self.noise**2) / 2, self.noise) if self.noise else 1.0
                    seconds = device.slower * device.curve.seconds(len(chunk)) * factor
                    self.free_s[i] = max(now, self.free_s[i]) + seconds
                    self.push(self.free_s[i], i, chunk, seconds)
        if self.scheduler.wake_s < self.woken_s and self.scheduler.wake_s > now:
            self.woken_s = self.scheduler.wake_s
            self.push(self.woken_s, -1, None)

    def to_the_end(self) -> float:
        now = 0.0
        self.ask(now)
        while not self.scheduler.finished:
            if not self.events:
                raise RuntimeError("the policy left work that nobody takes")
            now, _, device, chunk, seconds = heapq.heappop(self.events)
            if chunk is None:
                self.woken_s = self.scheduler.wake_s = inf
            elif now > self.devices[device].fails_after_s:
                self.scheduler.failed(chunk, now, LostError(self.devices[device].name), lost=True)
            else:
                self.scheduler.claim(chunk)
                self.scheduler.done(chunk, now, seconds)
            self.ask(now)
        if self.scheduler.failures:
            raise self.scheduler.failures[0][1]
        return now
