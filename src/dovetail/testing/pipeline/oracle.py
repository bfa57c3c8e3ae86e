"""Every plan of a small pipeline problem, host by host, from what the files and options mean.

Nothing here is the planner's: the files' dicts are read again, links are looked up between hosts, widths are tried one
by one. Slow, and meant to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product
from math import ceil, inf
from typing import Any, NamedTuple

from msgspec import Struct, field

from dovetail.pipeline.plan import Objective, Plan

TOLERANCE = 1e-9
OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "batch", "devices", "energy", "money")
_BITS = {"torch.float32": 32, "torch.float16": 16, "torch.bfloat16": 16, "torch.float64": 64, "torch.int8": 8}
_MIB = 2.0**20


class Case(Struct, kw_only=True):
    """What a user asks: the files as dicts, and the options by the names that `pipeline.load` and `plan` give them."""

    models: dict[str, Any]
    device_types: dict[str, Any]
    devices: dict[str, list[str]]
    links: dict[str, Any] | None = None
    dtype: str = "torch.float32"
    batch_sizes: list[int] = field(default_factory=lambda: [1])
    buffers_in: int = 2
    buffers_out: int = 2
    microbatches: int = 8
    slack: float = 0.0
    limits: dict[str, Any] = field(default_factory=dict)  # the constraints, without those that are left out


class StageAt(NamedTuple):
    """A stage of a plan: who holds which layers, and how wide it sends."""

    hosts: tuple[str, ...]
    first: int
    last: int
    bits: int


class DefinedFigures(NamedTuple):
    """What a plan gives."""

    batch_size: int
    bottleneck_s: float
    latency_s: float
    devices: int
    energy_j: float
    money: float


class BrokenError(Exception):
    """A plan is none, or breaks what was asked; the message says how."""


class Definition:
    """What plans are and give, for one batch size of a case."""

    def __init__(self, case: Case, batch_size: int) -> None:
        self.case, self.batch_size = case, batch_size
        (name, model), *_ = case.models.items()
        self.layers: int = model["layers"]
        self.weights_mib: list[float] = model["mem_MB"]
        self.tied: list[dict[str, Any]] = model.get("tied", [])
        each = _BITS[case.dtype] // 8 * batch_size
        out = model["parameters_out"]
        self.cut_bytes = [each * model["parameters_in"], *(each * out[i % len(out)] for i in range(self.layers))]
        self.kind: dict[str, dict[str, Any]] = {}  # of each host that has a profile
        self.type_of: dict[str, str] = {}
        self.time_s: dict[str, list[float]] = {}
        self.stage_s: dict[str, float] = {}
        for kind, entry in case.device_types.items():
            for profile in entry["model_profiles"].get(name, []):
                if (profile["dtype"], profile["batch_size"]) == (case.dtype, batch_size):
                    for host in case.devices.get(kind, []):
                        self.kind[host], self.type_of[host], self.time_s[host] = entry, kind, profile["time_s"]
                        self.stage_s[host] = profile.get("stage_s", 0.0)
        self.hosts = list(self.kind)
        self.links = {(a, b): self._link(a, b) for a in self.hosts for b in self.hosts if a != b}

    def _link(self, a: str, b: str) -> tuple[float, float]:
        """Mbit/s and seconds of latency from one host to another."""
        table = self.case.links
        plain = min(self.kind[a]["bw_Mbps"], self.kind[b]["bw_Mbps"])
        if table is None:
            return plain, 0.0
        if "links" not in table and "latency_s" not in table:  # the map of neighbours
            ways = [(table.get(x) or {}).get(y, {}).get("bw_Mbps", 0.0) for x, y in ((a, b), (b, a))]
            return min(ways), 0.0
        mbps, latency_s = plain, table.get("latency_s", 0.0)
        named = {a: (a, self.type_of[a]), b: (b, self.type_of[b])}
        for hosts in (0, 1, 2):  # what names more hosts counts before what names fewer; then the later entry
            for link in table.get("links", []):
                if sum(end in self.kind for end in (link["from"], link["to"])) != hosts:
                    continue
                ways = [(link["from"], link["to"])] + ([] if link.get("one_way") else [(link["to"], link["from"])])
                if any(source in named[a] and target in named[b] for source, target in ways):
                    mbps, latency_s = link.get("bw_Mbps", mbps), link.get("latency_s", 0.0)
        return mbps, latency_s

    def is_known(self, objective: Objective) -> bool:
        """Whether anything is known of what the objective is about, for some host."""
        keys = {"energy": ("watts_busy", "watts_idle"), "money": ("price_per_hour",)}.get(objective)
        return keys is None or any(kind.get(key) for kind in self.kind.values() for key in keys)

    def alike(self, a: str, b: str) -> bool:
        """Whether two hosts could change places without anybody noticing: such hosts may take turns at a stage."""
        others = [x for x in self.hosts if x not in (a, b)]
        return (
            self.type_of[a] == self.type_of[b]
            and all(self.links[a, x] == self.links[b, x] and self.links[x, a] == self.links[x, b] for x in others)
            and self.links[a, b] == self.links[b, a]
        )

    def figures(self, stages: Sequence[StageAt]) -> DefinedFigures:
        """What a plan gives, or `BrokenError`."""
        limits = self.case.limits
        at, used = 0, set[str]()
        pace_s, latency_s, price = 0.0, 0.0, 0.0
        busy_s: list[float] = []
        for x, stage in enumerate(stages):
            hosts, r = stage.hosts, len(stage.hosts)
            _demand(stage.first == at + 1 <= stage.last, "stage {} does not go on from layer {}", x, at)
            at = stage.last
            for host in hosts:
                _demand(host in self.kind and host not in used, "{} cannot be used, or not twice", host)
                used.add(host)
            _demand(1 <= r <= limits.get("replicas", 1), "stage {} has {} hosts", x, r)
            _demand(all(self.alike(a, b) for a, b in combinations(hosts, 2)), "hosts of stage {} differ", x)
            kind = self.kind[hosts[0]]
            need = self.memory(stage.first, stage.last)
            _demand(kind["mem_MB"] * _MIB > need, "stage {} needs {} bytes", x, need)
            time_s = sum(self.time_s[hosts[0]][stage.first - 1 : stage.last]) + self.stage_s[hosts[0]]
            pace_s, latency_s = max(pace_s, time_s / r), latency_s + time_s
            busy_s.append(time_s / r)
            price += r * kind.get("price_per_hour", 0.0) / 3600
            if stage.last < self.layers and "cuts" in limits:
                _demand(stage.last in limits["cuts"], "there is a cut after layer {}", stage.last)
        _demand(at == self.layers, "layers end at {}", at)
        for here, there in pairwise(stages):
            _demand(here.bits in limits.get("link_bits", (32,)), "a link has {} bits", here.bits)
            send_s = self.send_s(here.hosts[0], there.hosts[0], here.last, here.bits)
            _demand(send_s < inf, "there is no link from {} to {}", here.hosts[0], there.hosts[0])
            pace_s, latency_s = max(pace_s, send_s / min(len(here.hosts), len(there.hosts))), latency_s + send_s
        for stage, cut in ((stages[0], 0), (stages[-1], self.layers)):
            data_s = self.data_s(stage.hosts[0], cut)
            _demand(data_s < inf, "{} does not reach the data host", stage.hosts[0])
            pace_s, latency_s = max(pace_s, data_s), latency_s + data_s
        items = self.batch_size
        _demand(latency_s <= limits.get("latency_cap_s", inf) * (1 + TOLERANCE), "latency is {}", latency_s)
        floor = limits.get("throughput_floor_items_s", 0.0)
        _demand(pace_s * floor <= items * (1 + TOLERANCE), "the bottleneck is {}", pace_s)
        _demand(len(used) <= limits.get("max_stages", inf), "{} devices are used", len(used))
        for key, end in (("first", 0), ("last", -1)):
            _demand(key not in limits or limits[key] in stages[end].hosts, "{} is {}", key, stages[end].hosts)
        drawn = sum(self._drawn_j(stage, own_s, pace_s) for stage, own_s in zip(stages, busy_s, strict=True))
        return DefinedFigures(items, pace_s, latency_s, len(used), drawn / items, pace_s * price / items)

    def _drawn_j(self, stage: StageAt, busy_s: float, pace_s: float) -> float:
        """What the devices of a stage draw for a microbatch: while busy, and while they wait for the slowest."""
        kind = self.kind[stage.hosts[0]]
        waits_j = (pace_s - busy_s) * kind.get("watts_idle", 0.0)
        return float(len(stage.hosts) * (busy_s * kind.get("watts_busy", 0.0) + waits_j))

    def memory(self, first: int, last: int) -> float:
        """Bytes: weights, one copy of what comes and goes, and buffers; the first stage receives into none."""
        come, go = float(self.cut_bytes[first - 1]), float(self.cut_bytes[last])
        received = self.case.buffers_in * come if first > 1 else 0
        weights = sum(self.weights_mib[first - 1 : last])
        for group in self.tied:  # each layer counts them, a stage holds them once
            weights -= group["mem_MB"] * max(0, sum(first <= layer <= last for layer in group["layers"]) - 1)
        return weights * _MIB + received + self.case.buffers_out * go + come + go

    def send_s(self, a: str, b: str, cut: int, bits: int) -> float:
        """What one microbatch takes over a link; 32 bits are values as they are."""
        mbps, latency_s = self.links[a, b]
        share = 1.0 if bits == 32 else min(1.0, bits / _BITS[self.case.dtype])
        return float(self.cut_bytes[cut] * share / (mbps * _MIB / 8) + latency_s) if mbps > 0 else inf

    def data_s(self, host: str, cut: int) -> float:
        if "data_mbps" not in self.case.limits:
            return 0.0
        mbps: float = min(self.case.limits["data_mbps"], self.kind[host]["bw_Mbps"])
        return float(self.cut_bytes[cut] / (mbps * _MIB / 8)) if mbps > 0 else inf

    def chains(self) -> Iterator[list[StageAt]]:
        """Every chain of stages: all cuts, all groups of hosts, all widths. What is none is left to `figures`."""
        most, widths = self.case.limits.get("replicas", 1), tuple(self.case.limits.get("link_bits", (32,)))

        def extend(at: int, free: tuple[str, ...]) -> Iterator[list[StageAt]]:
            for r in range(1, min(most, len(free)) + 1):
                for hosts in combinations(free, r):
                    if any(self.type_of[host] != self.type_of[hosts[0]] for host in hosts):
                        continue
                    left = tuple(host for host in free if host not in hosts)
                    for last in range(at + 1, self.layers + 1):
                        if last == self.layers:
                            yield [StageAt(hosts, at + 1, last, 32)]
                            continue
                        for rest, bits in product(extend(last, left), widths):
                            yield [StageAt(hosts, at + 1, last, bits), *rest]

        yield from extend(0, tuple(self.hosts))

    def plans(self) -> Iterator[DefinedFigures]:
        """The figures of every plan that keeps what was asked."""
        for chain in self.chains():
            try:
                yield self.figures(chain)
            except BrokenError:
                continue


class Oracle:
    """All plans of a case at all its batch sizes, and the best of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.definitions = {size: Definition(case, size) for size in case.batch_sizes}
        self.every = [f for definition in self.definitions.values() for f in set(definition.plans())]

    def value(self, objective: Objective, figures: DefinedFigures) -> float:
        """What an objective makes small; sizes compare in items, and a batch is as many items whatever the size."""
        items = self.case.microbatches * max(self.case.batch_sizes)
        waits = ceil(items / figures.batch_size) - 1
        return {
            "throughput": figures.bottleneck_s / figures.batch_size,
            "latency": figures.latency_s,
            "batch": figures.latency_s + waits * figures.bottleneck_s,
            "devices": float(figures.devices),
            "energy": figures.energy_j,
            "money": figures.money,
        }[objective]

    def best(self, objective: Objective) -> float | None:
        """The least value; None if there is no plan."""
        able = [f for f in self.every if objective != "devices" or self.within_slack(f)]
        able = [f for f in able if self.definitions[f.batch_size].is_known(objective)]
        return min((self.value(objective, f) for f in able), default=None)

    def within_slack(self, figures: DefinedFigures) -> bool:
        least = min(self.value("throughput", f) for f in self.every)
        return self.value("throughput", figures) <= least * (1 + self.case.slack) * (1 + TOLERANCE)

    def front_faults(self, shown: Sequence[Plan]) -> Iterator[str]:
        """What is wrong with a complete front: plans that none of it covers, some that are beaten, some twice."""
        points = [(p.bottleneck_s, p.latency_s, len(p.hosts)) for p in shown]
        for point, other in permutations(points, 2):
            if _covers(other, point):
                yield f"{point} is beaten by {other}, which is listed too"
        for figures in self.every:
            plan = figures.bottleneck_s, figures.latency_s, figures.devices
            if not any(_covers(point, plan) for point in points):
                yield f"no plan of the front is as good as {plan}"
                return

    def figures(self, made: Plan) -> DefinedFigures:
        """What a plan that was made gives by the definition, or `BrokenError`."""
        stages = [StageAt(tuple(s.hosts), *s.layers, s.send_bits) for s in made.stages]
        return self.definitions[made.batch_size].figures(stages)


def _demand(kept: bool, broken: str, *found: object) -> None:
    if not kept:
        raise BrokenError(broken.format(*found))


def _covers(one: tuple[float, float, int], other: tuple[float, float, int]) -> bool:
    """Whether a plan is as good in all three, but for rounding."""
    return all(a <= b * (1 + TOLERANCE) + 1e-15 for a, b in zip(one, other, strict=True))
