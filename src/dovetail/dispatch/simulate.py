"""Policies without hardware: the scheduler in virtual time, on curves, with noise and devices unlike theirs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from dovetail.core import registry
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.files.plain import scalar
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.run import JournalFile, JournalPath
from dovetail.dispatch.bounds import peak_rate
from dovetail.dispatch.chunk import Chunk, ChunkRow
from dovetail.dispatch.inputs.cursor import LocalCursor
from dovetail.dispatch.inputs.curve_files import Curves, SimDevice, load, with_size
from dovetail.dispatch.inputs.devices import several
from dovetail.dispatch.metrics import DispatchRun
from dovetail.dispatch.policies import chosen
from dovetail.dispatch.policies.base import DeviceState, Policy
from dovetail.dispatch.policies.fixed import Fixed
from dovetail.dispatch.recording import SIMULATED, BatchJournal, header_of
from dovetail.dispatch.replay import RecordedScheduler
from dovetail.dispatch.scheduler import ChunkScheduler

_MOST_ITEMS = 10**9  # some seconds for each policy


class SimulatedRun(Struct, frozen=True):
    """What a simulated run came to. `efficiency`: throughput over the sum of the devices' own peak rates."""

    makespan_s: float
    efficiency: float
    chunks: int
    items: dict[str, int]
    rows: list[ChunkRow]
    claims: dict[str, Any] = {}  # what the journal ends with, if there is one


class LostError(RuntimeError):
    """A simulated device that went away."""


def run(
    devices: Sequence[SimDevice],
    items: int,
    policy: str | Policy | type[Policy] = "finish_together",
    options: Mapping[str, Any] | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    states: list[DeviceState] | None = None,
    stalls: Mapping[tuple[int, int], float] = MappingProxyType({}),
    journal: Path | None = None,
) -> SimulatedRun:
    """Run one batch in virtual time. `states`: what is known of the devices, if they have run before.

    `stalls`: by device and the number of its chunk, how many seconds longer it takes. With `journal`, a record of the
    run is left there.
    """
    name, made = chosen(policy, options)
    states = [state_of(device) for device in devices] if states is None else states
    kind = ChunkScheduler if journal is None else RecordedScheduler
    scheduler = kind(LocalCursor(0, items), made, states, total=items, backup=backup)
    virtual = _VirtualRun(scheduler, devices, noise, Random(seed), stalls)
    claims: dict[str, Any] = {}
    if journal is not None and isinstance(scheduler, RecordedScheduler):
        header = header_of(
            scheduler,
            policy=name,
            mode=SIMULATED,
            items=items,
            peaks=[peak_rate(device.curve, items) / device.slower for device in devices],
            options=options,
            seed=seed,
            facts={"noise": noise, "by_name": isinstance(policy, str)},
        )
        with BatchJournal(journal, header, scheduler) as record:
            makespan = virtual.to_the_end()
            claims = record.end(makespan)
    else:
        makespan = virtual.to_the_end()
    peak = sum(1 / (d.slower / d.curve.rate) for d in devices if d.fails_after_s == inf)
    done = {d.name: 0 for d in devices}
    for row in scheduler.log:
        if row.state == "done":
            done[devices[row.device].name] += row.stop - row.start
    efficiency = items / makespan / peak if makespan and peak else 0.0
    return SimulatedRun(makespan, efficiency, len(scheduler.rows), done, scheduler.log, claims)


def simulate(
    curves: Curves = None,
    *,
    model: str | None = None,
    items: int = 100_000,
    policy: str | Policy | type[Policy] = "finish_together",
    options: Mapping[str, Any] | None = None,
    slower: Mapping[str, float] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    journal: JournalPath = None,
) -> DispatchRun:
    """Run one batch under a policy on the curves of devices, without the devices.

    >>> curves = {"devices": {"fast": {"latency_s": 0.004, "rate": 2e5}, "slow": {"latency_s": 0.001, "rate": 3e4}}}
    >>> found = simulate(curves, items=100_000)
    >>> found.efficiency > 0.9, sum(found.items.values()), found.check().valid
    (True, 100000, True)

    Parameters
    ----------
    curves, model, slower
        The devices, as `load` takes them.
    items
        Items in the batch.
    policy, options
        Its name, `file.py:name`, or one of your own; `options` are of one by name. `fixed` takes the best size of each
        curve, if no sizes are given.
    noise, seed
        How much the time of a chunk varies, as the sigma of a lognormal factor with mean 1.
    backup
        Whether an idle device redoes what the last one is late with.
    journal
        Where the record of the run is kept: a path, a temporary file, or nowhere (False).
    """
    devices, file = load(curves, model=model, slower=slower), JournalFile(journal)
    items, noise, seed = _checked(scalar(items), scalar(noise), scalar(seed))
    if file.path is not None:
        refuse_overwrite([file.path], [Path(curves)] if isinstance(curves, str | PathLike) else [])
    name, made = chosen(policy, options)
    found = run(
        _sized(devices, made, items), items, policy, options, noise=noise, seed=seed, backup=backup, journal=file.path
    )
    metrics = {"policy": name, "makespan_s": found.makespan_s, "efficiency": found.efficiency, "chunks": found.chunks}
    own = None if isinstance(policy, str) else made
    return DispatchRun(file, metrics | {"items": found.items} | found.claims, own)


def compare(
    curves: Curves = None,
    *,
    model: str | None = None,
    items: int = 100_000,
    policies: str | Policy | Sequence[str | Policy | type[Policy]] | None = None,
    slower: Mapping[str, float] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
) -> Comparison:
    """The same batch under several policies (all by default), and on each device alone; see `simulate`.

    `efficiency` is the throughput over the sum of all devices' peak rates.

    >>> compare(model="radret", items=1_000_000).best("makespan_s")["policy"]
    'finish_together'
    """
    devices = load(curves, model=model, slower=slower)
    items, noise, seed = _checked(scalar(items), scalar(noise), scalar(seed))
    peak = sum(device.curve.rate / device.slower for device in devices)
    cases: list[tuple[str, Any, Sequence[SimDevice]]] = [
        (chosen(policy)[0], policy, devices) for policy in several("policies", policies or registry.names("dispatch"))
    ]
    cases += [(f"{device.name} alone", "finish_together", [device]) for device in devices]
    rows = []
    for title, policy, given in cases:
        sized = _sized(given, chosen(policy)[1], items)
        found = run(sized, items, policy, noise=noise, seed=seed, backup=backup)
        share = items / found.makespan_s / peak
        rows.append({"policy": title, "makespan_s": found.makespan_s, "efficiency": share, "chunks": found.chunks})
    return Comparison(rows)


def _checked(items: Any, noise: Any, seed: Any) -> tuple[int, float, int]:
    if not isinstance(items, int) or isinstance(items, bool) or not 1 <= items <= _MOST_ITEMS:
        raise InputError(f"items {items!r}: expected a whole number from 1 to {_MOST_ITEMS:,}")
    if not isinstance(noise, int | float) or not 0 <= noise < 10:
        raise InputError(f"noise {noise!r}: expected a number from 0 to 10")
    if not isinstance(seed, int):
        raise InputError(f"seed {seed!r}: expected a whole number")
    return items, noise, seed


def _sized(devices: Sequence[SimDevice], policy: Policy, items: int) -> Sequence[SimDevice]:
    """The devices with sizes, if the policy needs to be given some."""
    if not isinstance(policy, Fixed) or policy.size:
        return devices
    return [with_size(device, items // len(devices)) for device in devices]


def state_of(device: SimDevice) -> DeviceState:
    """What a policy knows of a device before its first batch."""
    curve = device.curve if device.known else None
    return DeviceState(device.name, curve, device.size, device.capacity, device.priority, device.slots)


class _VirtualRun:
    def __init__(
        self,
        scheduler: ChunkScheduler,
        devices: Sequence[SimDevice],
        noise: float,
        random: Random,
        stalls: Mapping[tuple[int, int], float],
    ) -> None:
        self.scheduler, self.devices, self.stalls = scheduler, devices, stalls
        self.begun = [0] * len(devices)  # chunks
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
                    seconds += self.stalls.get((i, self.begun[i]), 0.0)
                    self.begun[i] += 1
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
                raise PolicyError("the policy left work that no device takes")
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
