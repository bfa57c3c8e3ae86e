"""Random small questions to the pipeline planner: any of its options at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

from dovetail.testing.pipeline.oracle import Case, Definition, Oracle

MOST_CHAINS = 2500  # that an oracle is asked to look at
_DTYPES = ("torch.float32", "torch.float16", "torch.bfloat16", "torch.float64", "torch.int8")
_WIDTHS = ((32,), (32,), (16, 32), (8, 16, 32), (4, 8), (8,), (32, 12))


def random_case(seed: int) -> Case:
    """A question that an oracle can answer: tight memory, dead and slow links, free layers, equal times, and any of the
    options at once. Caps and floors are often met to the last digit by some plan."""
    rng = random.Random(seed)
    for size in (6, 6, 5, 5, 5, 4, 4, 3, 2, 1):
        case = _drawn(rng, size)
        if all(len(list(islice(Definition(case, b).chains(), MOST_CHAINS))) < MOST_CHAINS for b in case.batch_sizes):
            break
    _limit(case, rng)
    return case


def _drawn(rng: random.Random, size: int) -> Case:
    layers = min(size, rng.choice([1, 2, 3, 4, 4, 5, 5, 6]))
    dtype = rng.choice(_DTYPES) if rng.random() < 0.6 else "torch.float32"
    sizes = rng.choice([[1], [4], [8], [1, 4], [8, 4], [2, 3, 8]]) if rng.random() < 0.4 else [rng.choice([1, 4])]
    devices: dict[str, list[str]] = {}
    for k in range(rng.randint(1, 3)):
        held = sum(map(len, devices.values()))
        devices[f"type{k}"] = [f"h{k}{i}" for i in range(min(rng.choice([0, 1, 2, 2, 3, 3]), size - held))]
    if not any(devices.values()):
        devices["type0"] = ["h00"]
    spent = rng.random() < 0.8
    types = {name: _device_type(rng, layers, sizes, dtype, spent) for name in devices}
    limits: dict[str, Any] = {}
    hosts = [host for names in devices.values() for host in names]
    draws: dict[str, Callable[[], Any]] = {
        "first": lambda: rng.choice(hosts),
        "last": lambda: rng.choice(hosts),
        "max_stages": lambda: rng.choice([1, 2, 3, 3, 4]),
        "cuts": lambda: rng.sample(range(1, layers + 1), rng.randint(1, layers)),
        "data_mbps": lambda: rng.choice([1, 10, 100]),
        "replicas": lambda: rng.randint(1, 3),
        "link_bits": lambda: rng.choice(_WIDTHS),
    }
    for key, draw in draws.items():
        if rng.random() < (0.4 if key in ("replicas", "link_bits") else 0.15):
            limits[key] = draw()
    case = Case(
        models={
            "m": {
                "layers": layers,
                "mem_MB": [rng.choice([0.5, 1.0, 2.0, 5.0, 10.5]) for _ in range(layers)],
                "parameters_in": rng.choice([0, 1, 10, 100, 400]) * 1000,
                "parameters_out": [rng.choice([0, 1, 10, 100, 400]) * 1000 for _ in range(rng.randint(1, layers))],
            }
        },
        device_types=types,
        devices=devices,
        links=_links(rng, devices),
        dtype=dtype,
        batch_sizes=sizes,
        buffers_in=rng.choice([0, 1, 2]),
        buffers_out=rng.choice([0, 1, 2]),
        microbatches=rng.choice([1, 2, 8, 50]),
        slack=rng.choice([0.0, 0.05, 0.5, 1.0]),
        limits=limits,
    )
    if layers > 1 and rng.random() < 0.2:
        model = case.models["m"]
        tied = sorted(rng.sample(range(1, layers + 1), rng.randint(2, layers)))
        shared = min(model["mem_MB"][layer - 1] for layer in tied) * rng.choice([0.5, 1.0])
        model["tied"] = [{"layers": tied, "mem_MB": shared}]
    if rng.random() < 0.3:
        for entry in case.device_types.values():
            for profile in entry["model_profiles"]["m"]:
                profile["stage_s"] = rng.choice([0.0, 0.1, 0.4, rng.random()])
    return case


def _device_type(rng: random.Random, layers: int, sizes: list[int], dtype: str, spent: bool) -> dict[str, Any]:
    profiles = [
        {
            "batch_size": size,
            "dtype": dtype,
            "time_s": [rng.choice([0.0, 0.1, 0.5, 1.3, rng.random()]) for _ in range(layers)],
        }
        for size in sizes
        if rng.random() < 0.95
    ]
    drawn = {
        "watts_busy": rng.choice([0.5, 5.0, 10.0, 100.0]),
        "watts_idle": rng.choice([0.0, 1.0, 5.0]),
        "price_per_hour": rng.choice([0.0, 1.0, 2.0, 10.0]),
    }
    return {
        "bw_Mbps": rng.choice([0, 1, 1, 10, 10, 100, 100, 1000]),
        "mem_MB": rng.choice([8, 15, 25, 40, 100, 100]),
        "model_profiles": {"m": profiles},
    } | (drawn if spent else {})


def _links(rng: random.Random, devices: dict[str, list[str]]) -> dict[str, Any] | None:
    """No file, one of links between hosts and types, or a map of neighbours."""
    form = rng.random()
    hosts = [host for names in devices.values() for host in names]
    if form < 0.4:
        return None
    speeds = [0, 1, 1, 10, 10, 1000] if rng.random() < 0.5 else [1, 10]
    if form < 0.7:
        near = {a: [b for b in hosts if b != a and rng.random() < 0.9] for a in hosts if rng.random() < 0.95}
        table = {a: {b: {"bw_Mbps": rng.choice(speeds)} for b in others} or None for a, others in near.items()}
        return table or {hosts[0]: None}
    ways: dict[tuple[str, str], dict[str, Any]] = {}
    for _ in range(rng.randint(0, 5)):
        a, b = rng.choice([*hosts, *devices]), rng.choice([*hosts, *devices])
        link: dict[str, Any] = {"from": a, "to": b, "latency_s": rng.choice([0.0, 0.01, 0.2])}
        if rng.random() < 0.8:
            link["bw_Mbps"] = rng.choice(speeds)
        if rng.random() < 0.5 and a != b:
            link["one_way"] = True
        if (a not in hosts or a != b) and (a, b) not in ways and (b, a) not in ways:
            ways[a, b] = link
    return {"links": list(ways.values())} | ({"latency_s": 0.05} if rng.random() < 0.5 or not ways else {})


def _limit(case: Case, rng: random.Random) -> None:
    """Caps and floors where plans are: at one of them, or a little aside."""
    every = sorted(Oracle(case).every)
    if not every:
        return
    one, aside = rng.choice(every), rng.choice([1.0, 1.0, 0.95, 1.1])
    floor = one.batch_size / one.bottleneck_s / aside if one.bottleneck_s else 1.0
    for key, value in (("latency_cap_s", one.latency_s * aside), ("throughput_floor_items_s", floor)):
        if value > 0 and rng.random() < 0.3:
            case.limits[key] = value
