"""Random offline cases that are small enough for the exact optimum: what plans and policies are held against."""

from __future__ import annotations

from typing import Any

from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.problem import WorkflowProblem, load

POOLS = ("2", "3", "4", "fast:1,gpu:2", "gpu:2,slow:2")


def small_case(seed: int, least: int = 5, most: int = 9) -> WorkflowProblem:
    """Two to four models, loads of 4 to 30 s, graphs of up to five nodes of 1 to 20 s, on two to four GPUs of one or
    two speeds: whole requests, until there are as many nodes as a number drawn between `least` and `most`.

    >>> small_case(3)
    <WorkflowProblem 2 requests for 3 workflows on 4 GPUs, offline>
    """
    rng = SeededRandom(seed)
    models = {
        f"m{i}": {
            "memory_gb": rng.choice((8, 16, 24, 40)),
            "gpus_required": rng.choice((1, 1, 1, 2)),
            "load_time_seconds": rng.choice((4, 8, 15, 30)),
        }
        for i in range(rng.between(2, 4))
    }
    workflows: dict[str, Any] = {}
    for number in range(rng.between(1, 3)):
        nodes = [{"id": f"n{i}", "model": rng.choice(sorted(models))} for i in range(rng.between(1, 5))]
        pairs = [(f"n{a}", f"n{b}") for b in range(len(nodes)) for a in range(b)]
        edges = [{"from": a, "to": b} for a, b in pairs if rng.random() < 0.5]
        workflows[f"w{number}"] = {"nodes": nodes, "edges": edges}
    rows: list[dict[str, Any]] = []
    left = rng.between(least, most)
    while left > 0:
        of = rng.choice(sorted(workflows))
        times = {node["id"]: float(rng.between(1, 20)) for node in workflows[of]["nodes"]}
        rows.append({"request_id": f"r{len(rows)}", "workflow_id": of, "node_execution_times": times})
        left -= len(times)
    types = {"fast": {"speed": 2.0}, "slow": {"speed": 0.5}}
    return load({"models": models, "workflows": workflows, "gpu_types": types}, rows, gpus=rng.choice(POOLS))
