"""Families of workloads by which policies are judged: a few numbers describe one, a seed draws from it."""

from __future__ import annotations

from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.workflow.choices import Mode
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.problem import WorkflowProblem, load

_ROUNDS = 8  # how often a graph runs again at most
_GRAPHS = 24  # unlike chains of one family


class WorkloadFamily(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is drawn: models, graphs, and requests that ask for the share `load` of the pool's speed (without switches).

    `widths` are given to models in turn; `popularity` falls as 1 / rank to this power and, with `drift_s`, moves on by
    one model in that time; `chain` is the least and most nodes of a graph, `fan` how many stand side by side between
    its first and last; sizes are lognormal with mean `mean_s` and shape `spread`; `rare` requests in a thousand ask for
    a model of their own; `due` is a deadline in longest paths, with `due_s` added; a share `heavy` of the requests
    weighs `weight`; `large` models fit only on the type of GPU with the most memory. A graph runs `again` with this
    chance when it has ended, and again, up to 8 times: nobody knows before.
    """

    name: str
    gpus: str
    load: float
    requests: int
    models: int
    memory_gb: tuple[float, float] = (10.0, 20.0)
    load_s: tuple[float, float] = (10.0, 20.0)
    widths: tuple[int, ...] = (1,)
    popularity: float = 0.0
    drift_s: float = 0.0
    chain: tuple[int, int] = (1, 1)
    fan: int = 0
    mean_s: float = 10.0
    spread: float = 0.8
    bursts: int = 0
    rare: int = 0
    due: float = 0.0
    due_s: float = 0.0
    heavy: float = 0.0
    weight: float = 10.0
    mode: Mode = "online"
    gpu_types: dict[str, dict[str, float]] = {}
    large: int = 0
    again: float = 0.0
    costs: dict[str, Any] = {}


class FamilyFile(Struct, frozen=True, forbid_unknown_fields=True):
    family: list[WorkloadFamily]


def read_families(path: Path) -> list[WorkloadFamily]:
    """All families of a file."""
    return msgspec.toml.decode(path.read_bytes(), type=FamilyFile).family


def draw(family: WorkloadFamily, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A configuration and its requests, as they stand in files: the same for the same seed.

    >>> family = WorkloadFamily(name="two", gpus="2", load=0.5, requests=3, models=2)
    >>> config, rows = draw(family, 1)
    >>> list(config["models"]), [row["request_id"] for row in rows]
    (['m0', 'm1'], ['r0', 'r1', 'r2'])
    >>> draw(family, 1) == (config, rows)
    True
    """
    rng = SeededRandom(seed)
    models = {f"m{i}": _model(rng, family, i) for i in range(family.models)}
    graphs = _graphs(rng, family)
    if family.rare:
        models["rare"] = _model(rng, family, 0)
        graphs["rare"] = ["rare"]
    config: dict[str, Any] = {
        "models": models,
        "workflows": {name: _workflow(nodes, family) for name, nodes in graphs.items()},
        "costs": family.costs,
    }
    if family.gpu_types:
        config["gpu_types"] = family.gpu_types
    return config, _rows(rng, family, config)


def _model(rng: SeededRandom, family: WorkloadFamily, i: int) -> dict[str, Any]:
    (least, most), (quick, slow) = family.memory_gb, family.load_s
    memory = least + (most - least) * rng.random()
    big = max((t.get("memory_gb", 0.0) for t in family.gpu_types.values()), default=0.0)
    return {
        "memory_gb": round(big if i < family.large else memory, 1),
        "load_time_seconds": round(quick + (slow - quick) * rng.random(), 1),
        "gpus_required": family.widths[i % len(family.widths)],
    }


def _graphs(rng: SeededRandom, family: WorkloadFamily) -> dict[str, list[str]]:
    """Graph by name: the models of its nodes. Graph i begins with model i, so that popularity is that of graphs."""
    least, most = family.chain
    graphs = family.models if most == 1 and not family.fan else max(family.models, _GRAPHS)
    found = {}
    for i in range(graphs):
        nodes = family.fan + 2 if family.fan else rng.between(least, most)
        found[f"g{i}"] = [f"m{i % family.models}", *(f"m{rng.between(0, family.models - 1)}" for _ in range(nodes - 1))]
    return found


def _workflow(models: list[str], family: WorkloadFamily) -> dict[str, Any]:
    names = [f"n{i}" for i in range(len(models))]
    edges = list(pairwise(names))
    if family.fan and len(names) > 2:
        edges = [(names[0], n) for n in names[1:-1]] + [(n, names[-1]) for n in names[1:-1]]
    nodes: list[dict[str, Any]] = [{"id": name, "model": model} for name, model in zip(names, models, strict=True)]
    if family.again:
        nodes[-1]["then"] = {names[0]: {"chance": family.again, "at_most": _ROUNDS}}
    return {"nodes": nodes, "edges": [{"from": before, "to": after} for before, after in edges]}


def _rows(rng: SeededRandom, family: WorkloadFamily, config: dict[str, Any]) -> list[dict[str, Any]]:
    names = [name for name in config["workflows"] if name != "rare"]
    bounds = list(accumulate((i + 1) ** -family.popularity for i in range(len(names))))
    graphs, widths = config["workflows"], {m: model["gpus_required"] for m, model in config["models"].items()}
    asked = [sum(widths[node["model"]] for node in graphs[name]["nodes"]) * family.mean_s for name in names]
    shares = [high - low for low, high in zip([0.0, *bounds], bounds, strict=False)]
    if family.drift_s:  # everyone is popular in turn
        shares = [1.0] * len(names)
    rounds = sum(family.again**i for i in range(_ROUNDS + 1))
    mean_gpu_s = rounds * sum(map(mul, asked, shares)) / sum(shares)
    gap_s = mean_gpu_s / (family.load * _speed(family))
    rows, t = [], 0.0
    for i in range(family.requests):
        if not family.bursts or i % family.bursts == 0:
            t += rng.exponential(gap_s * max(family.bursts, 1))
        if family.rare and rng.random() * 1000 < family.rare:
            name = "rare"
        else:
            drawn = rng.random() * bounds[-1]
            at = next(k for k, bound in enumerate(bounds) if drawn <= bound)
            name = names[(at + (int(t / family.drift_s) if family.drift_s else 0)) % len(names)]
        rows.append(_row(rng, family, f"r{i}", name, round(t, 6), [n["id"] for n in graphs[name]["nodes"]]))
    return rows


def _row(rng: SeededRandom, family: WorkloadFamily, id: str, name: str, t: float, nodes: list[str]) -> dict[str, Any]:
    shift = family.spread**2 / 2  # makes the mean of the lognormal 1
    sizes = [max(0.01, family.mean_s * 2.718281828459045 ** (rng.normal(0.0, family.spread) - shift)) for _ in nodes]
    row: dict[str, Any] = {
        "request_id": id,
        "timestamp": t if family.mode == "online" else 0.0,
        "workflow_id": name,
        "node_execution_times": dict(zip(nodes, [round(size, 6) for size in sizes], strict=True)),
    }
    if family.due:
        path = sizes[0] + max(sizes[1:-1]) + sizes[-1] if family.fan and len(sizes) > 2 else sum(sizes)
        row["deadline_seconds"] = round(family.due * path + family.due_s, 6)
    if family.heavy and rng.random() < family.heavy:
        row["priority"] = family.weight
    return row


def _speed(family: WorkloadFamily) -> float:
    """Of all GPUs together."""
    parts = [part.rpartition(":") for part in family.gpus.split(",")]
    return sum(int(count) * family.gpu_types.get(name, {}).get("speed", 1.0) for name, _, count in parts)


def load_family(family: WorkloadFamily, seed: int) -> WorkflowProblem:
    """A draw as a problem that can be run."""
    config, rows = draw(family, seed)
    return load(config, rows, gpus=family.gpus, mode=family.mode)
