"""Random workflows whose nodes add others: branches, loops and fan-outs, within one another."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.inputs.synthetic import RawSystem

_PART = "part_"


def let_grow(rng: SeededRandom, config: RawSystem, rows: list[dict[str, Any]]) -> None:
    """Give most workflows loops, and parts that are not there at the start; and requests times for these, for single
    instances, and outcomes."""
    models = list(config["models"])
    for workflow in config["workflows"].values():
        if rng.random() < 0.8:
            _grow(rng, workflow, models)
    for row in rows:
        workflow = config["workflows"].get(row["workflow_id"], {"nodes": []})
        if not any("then" in node for node in workflow["nodes"]):
            continue
        times = row["node_execution_times"]
        for node in workflow["nodes"]:
            if node["id"].startswith(_PART) and rng.random() < 0.7:
                times[node["id"]] = float(rng.between(1, 20))
                if "node_prefix" in row and rng.random() < 0.5:
                    row["node_prefix"][node["id"]] = [rng.between(0, 2), "same", 1]
            if rng.random() < 0.1 and node["id"] not in row.get("node_tokens", ()):
                times[node["id"] + "#2"] = float(rng.between(1, 9))
        fixed = _outcomes(rng, workflow)
        if fixed and rng.random() < 0.3:
            row["outcomes"] = fixed


def stop_growth(config: RawSystem, rows: list[dict[str, Any]]) -> None:
    """Take all of that away again."""
    for workflow in config["workflows"].values():
        workflow["nodes"] = [node for node in workflow["nodes"] if not node["id"].startswith(_PART)]
        workflow["edges"] = [edge for edge in workflow["edges"] if not edge["to"].startswith(_PART)]
        for node in workflow["nodes"]:
            node.pop("then", None)
    for row in rows:
        row.pop("outcomes", None)
        for name in [name for name in row.get("node_prefix", ()) if name.startswith(_PART)]:
            del row["node_prefix"][name]
        times = row["node_execution_times"]
        row["node_execution_times"] = {k: v for k, v in times.items() if "#" not in k and not k.startswith(_PART)}


def _grow(rng: SeededRandom, workflow: dict[str, Any], models: list[str]) -> None:
    nodes, edges = workflow["nodes"], workflow["edges"]
    left = {node["id"]: 1.0 for node in nodes}  # of each node's chances
    hosts = [node["id"] for node in nodes]
    by_name = {node["id"]: node for node in nodes}
    for part in range(rng.between(0, 2)):
        own = [f"{_PART}{part + 1}_{i + 1}" for i in range(rng.between(1, 3))]
        for name in own:
            by_name[name] = {"id": name, "model": rng.choice(models)}
            nodes.append(by_name[name])
        forked = rng.random() < 0.3
        edges += [{"from": own[0] if forked else one, "to": two} for one, two in pairwise(own)]
        for host in sorted({rng.choice(hosts) for _ in range(rng.between(1, 2))}):
            chance = _share(rng, left, host)
            if chance:
                entry: Any = {"chance": chance, **_copies(rng)}
                by_name[host].setdefault("then", {})[own[0]] = entry if len(entry) > 1 else chance
        left |= dict.fromkeys(own, 1.0)
        if not any(own[0] in node.get("then", ()) for node in nodes):
            by_name[hosts[0]].setdefault("then", {})[own[0]] = 0.01  # so that it is there in no case at the start
            for other in by_name[hosts[0]]["then"]:
                if other != own[0]:
                    _scale(by_name[hosts[0]]["then"], other, 0.9)
        hosts += own
    for name in hosts:
        if rng.random() < 0.25 and (chance := _share(rng, left, name)):
            earlier = _earlier(name, edges)
            target = rng.choice(sorted(earlier))
            by_name[name].setdefault("then", {})[target] = {"chance": chance, "at_most": rng.between(1, 4)}


def _share(rng: SeededRandom, left: dict[str, float], name: str) -> float:
    """Some of what is left of a node's chances; sometimes all."""
    given = left[name] if rng.random() < 0.2 else round(left[name] * rng.random(), 3)
    left[name] = round(left[name] - given, 3)
    return given


def _scale(then: dict[str, Any], name: str, factor: float) -> None:
    if isinstance(then[name], dict):
        then[name]["chance"] *= factor
    else:
        then[name] *= factor


def _copies(rng: SeededRandom) -> dict[str, Any]:
    drawn = rng.random()
    if drawn < 0.5:
        return {}
    if drawn < 0.7:
        return {"copies": rng.between(1, 3)}
    if drawn < 0.85:
        return {"copies": [rng.between(0, 1), rng.between(1, 4)]}
    return {"copies": {"1": 0.5, "3": 0.3}}


def _earlier(name: str, edges: list[dict[str, str]]) -> set[str]:
    found, left = {name}, [name]
    while left:
        new = {edge["from"] for edge in edges if edge["to"] == left[-1]} - found
        left.pop()
        found |= new
        left += sorted(new)
    return found


def _outcomes(rng: SeededRandom, workflow: dict[str, Any]) -> dict[str, Any]:
    """Outcomes that a request fixes, of some of the nodes that have any."""
    found: dict[str, Any] = {}
    for node in workflow["nodes"]:
        then = node.get("then", {})
        if then and rng.random() < 0.5:
            names = [*then, None]
            found[node["id"]] = [rng.choice(names) for _ in range(rng.between(0, 4))]
    return found
