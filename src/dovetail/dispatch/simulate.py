"""Policies without hardware: the ledger in virtual time, on curves, with noise and devices that differ from theirs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any

from msgspec import Struct

from dovetail.core import registry
from dovetail.dispatch.cursor import LocalCursor
from dovetail.dispatch.curves import Curve
from dovetail.dispatch.ledger import Chunk, Ledger, Row
from dovetail.dispatch.policy import DeviceState, Policy


class SimDevice(Struct, frozen=True):
    """A device in virtual time. `slower`: its real time over what its curve, which the policy believes, says."""

    name: str
    curve: Curve
    slower: float = 1.0
    size: int | None = None
    capacity: int | None = None
    priority: float = 1.0
    fails_after_s: float = inf
    slots: int = 1  # chunks it holds at once; they are done one after the other
    known: bool = True  # whether the policy is given the curve


class Outcome(Struct, frozen=True):
    """What a simulated run came to. `efficiency`: throughput over the sum of the devices' own peak rates."""

    makespan_s: float
    efficiency: float
    chunks: int
    items: dict[str, int]
    rows: list[Row]


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
) -> Outcome:
    """Run one batch in virtual time. `states`: what is known of the devices, if they have run before.

    >>> fast, slow = Curve.linear(0.004, 200_000, 100_000), Curve.linear(0.001, 30_000, 100_000)
    >>> found = simulate([SimDevice("fast", fast), SimDevice("slow", slow)], 100_000)
    >>> found.efficiency > 0.95, sum(found.items.values())
    (True, 100000)
    """
    chosen: Policy = registry.create("dispatch", policy, options) if isinstance(policy, str) else policy
    states = [state_of(device) for device in devices] if states is None else states
    ledger = Ledger(LocalCursor(0, items), chosen, states, total=items, backup=backup)
    run = _Run(ledger, devices, noise, Random(seed))
    makespan = run.to_the_end()
    peak = sum(1 / (d.slower / d.curve.rate) for d in devices if d.fails_after_s == inf)
    done = {d.name: 0 for d in devices}
    for row in ledger.log:
        if row.state == "done":
            done[devices[row.device].name] += row.stop - row.start
    efficiency = items / makespan / peak if makespan and peak else 0.0
    return Outcome(makespan, efficiency, len(ledger.rows), done, ledger.log)


def state_of(device: SimDevice) -> DeviceState:
    """What a policy knows of a device before its first batch."""
    curve = device.curve if device.known else None
    return DeviceState(device.name, curve, device.size, device.capacity, device.priority, device.slots)


class _Run:
    def __init__(self, ledger: Ledger, devices: Sequence[SimDevice], noise: float, random: Random) -> None:
        self.ledger, self.devices = ledger, devices
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
            for i, state in enumerate(self.ledger.view.devices):
                if state.chunks >= state.slots or not state.alive:
                    continue
                chunk = self.ledger.take(i, now)
                if chunk is not None:
                    asked = True
                    device = self.devices[i]
                    luck = self.random.lognormvariate(-(self.noise**2) / 2, self.noise) if self.noise else 1.0
                    seconds = device.slower * device.curve.seconds(len(chunk)) * luck
                    self.free_s[i] = max(now, self.free_s[i]) + seconds
                    self.push(self.free_s[i], i, chunk, seconds)
        if self.ledger.wake_s < self.woken_s and self.ledger.wake_s > now:
            self.woken_s = self.ledger.wake_s
            self.push(self.woken_s, -1, None)

    def to_the_end(self) -> float:
        now = 0.0
        self.ask(now)
        while not self.ledger.finished:
            if not self.events:
                raise RuntimeError("the policy left work that nobody takes")
            now, _, device, chunk, seconds = heapq.heappop(self.events)
            if chunk is None:
                self.woken_s = self.ledger.wake_s = inf
            elif now > self.devices[device].fails_after_s:
                self.ledger.failed(chunk, now, LostError(self.devices[device].name), lost=True)
            else:
                self.ledger.claim(chunk)
                self.ledger.done(chunk, now, seconds)
            self.ask(now)
        if self.ledger.failures:
            raise self.ledger.failures[0][1]
        return now
