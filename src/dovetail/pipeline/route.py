"""The way of a microbatch through a plan: stages and links in turn, each with the devices that take turns at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import lcm

from msgspec import Struct

from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.pipeline.bounds import makespan_s
from dovetail.pipeline.inputs.problem import DATA_HOST as DATA_HOST
from dovetail.pipeline.plan import Plan, Stage

LINK = "link"


class Station(Struct, frozen=True):
    """A stage or a link: the seconds that a microbatch takes there by the plan, and the devices that take turns."""

    name: str
    seconds: float
    devices: list[str]
    types: list[str]  # of each device

    def device(self, number: int) -> str:
        """Whose turn microbatch `number` is, counted from 0."""
        return self.devices[number % len(self.devices)]


class Route(Struct, frozen=True):
    stations: list[Station]

    @classmethod
    def planned(cls, plan: Plan) -> Route:
        """As the planner counts it. A link has as many lanes as the smaller of the stages at its ends has replicas;
        links to a data host are there only if they take time."""
        stations = []
        if plan.enter_s:
            stations.append(_lanes(DATA_HOST, plan.stages[0].host, plan.enter_s, 1))
        for stage, following in zip(plan.stages, [*plan.stages[1:], None], strict=True):
            stations.append(_stage(stage, {}))
            if following is not None:
                lanes = min(len(stage.hosts), len(following.hosts))
                stations.append(_lanes(stage.host, following.host, stage.send_s * lanes, lanes))
            elif stage.send_s:
                stations.append(_lanes(stage.host, DATA_HOST, stage.send_s, 1))
        return cls(stations)

    @classmethod
    def connected(cls, plan: Plan, types: Mapping[str, str]) -> Route:
        """As it is carried out: every pair of hosts that exchange microbatches has a link, also the data host.

        `types` says what hosts really are, where that is not what the plan says.
        """
        stations = [_pairs([DATA_HOST], plan.stages[0].hosts, plan.enter_s)]
        followers = [*(stage.hosts for stage in plan.stages[1:]), [DATA_HOST]]
        for stage, after in zip(plan.stages, followers, strict=True):
            stations.append(_stage(stage, types))
            stations.append(_pairs(stage.hosts, after, stage.send_s * min(len(stage.hosts), len(after))))
        return cls(stations)

    @property
    def devices(self) -> dict[str, str]:
        """The type of each device, by name."""
        return {
            name: kind for station in self.stations for name, kind in zip(station.devices, station.types, strict=True)
        }

    @property
    def lanes(self) -> list[list[int]]:
        """For each station, the pool's devices that take turns at it."""
        ends = list(accumulate(len(station.devices) for station in self.stations))
        return [list(range(a, b)) for a, b in pairwise([0, *ends])]

    @property
    def pool(self) -> Pool:
        return make_pool(list(self.devices.values()))

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(station.seconds for station in self.stations)

    def least_s(self, microbatches: int) -> float:
        """No makespan of so many microbatches is below this."""
        return makespan_s(self.seconds, [len(station.devices) for station in self.stations], microbatches)

    def graph(self, name: str = "microbatch") -> TaskGraph:
        names = [station.name for station in self.stations]
        return TaskGraph(name, [Task(station, station) for station in names], list(pairwise(names)))


def make_pool(types: Sequence[str]) -> Pool:
    """Devices of these types, numbered in this order."""
    return Pool(tuple(Device(i, kind) for i, kind in enumerate(types)), {kind: DeviceType(kind) for kind in types})


def _stage(stage: Stage, types: Mapping[str, str]) -> Station:
    kinds = [types.get(host, stage.type) for host in stage.hosts]
    return Station(" + ".join(stage.hosts), stage.compute_s * len(stage.hosts), stage.hosts, kinds)


def _link(name: str, seconds: float, devices: list[str]) -> Station:
    return Station(name, seconds, devices, [LINK] * len(devices))


def _lanes(source: str, target: str, seconds: float, lanes: int) -> Station:
    name = f"{source} to {target}"
    return _link(name, seconds, [name] if lanes == 1 else [f"{name} ({n + 1})" for n in range(lanes)])


def _pairs(senders: list[str], receivers: list[str], seconds: float) -> Station:
    return _link(f"{senders[0]} to {receivers[0]}", seconds, _pair_names(senders, receivers))


def _pair_names(senders: list[str], receivers: list[str]) -> list[str]:
    turns = range(lcm(len(senders), len(receivers)))
    return [f"{senders[n % len(senders)]} to {receivers[n % len(receivers)]}" for n in turns]


def connected_devices(stages: Sequence[list[str]]) -> list[str]:
    """What the devices are called, in the order of `Route.connected`, where stages have these hosts.

    >>> connected_devices([["a"], ["b"]])
    ['data host to a', 'a', 'a to b', 'b', 'b to data host']
    """
    ends = [[DATA_HOST], *stages, [DATA_HOST]]
    names = [name for before, after in pairwise(ends) for name in (*_pair_names(before, after), *after)]
    return list(dict.fromkeys(names[:-1]))
