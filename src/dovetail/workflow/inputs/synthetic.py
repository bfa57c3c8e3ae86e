"""Made-up systems: random but plausible ones for property tests and benchmarks, one that thrashes, one of agents."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.inputs.seeded_random import SeededRandom

RawSystem = dict[str, Any]

_LLM = {"max_length": [128, 256, 512], "temperature": [0.2, 0.7, 1.0]}
_IMAGE = {"steps": [20, 30, 50], "guidance_scale": [5.0, 7.5]}
_LLMS = ((3, 1), (8, 1), (14, 1), (32, 2), (70, 4), (110, 8), (180, 8))  # billions of parameters, GPUs
_OTHERS = ("image", "embedding", "audio")
_FORMS = ("chain", "fork", "diamond", "random")


def synthetic_system(
    seed: int, *, models: int = 6, workflows: int = 4, max_width: int = 4, max_nodes: int = 8
) -> RawSystem:
    """A configuration in the format of `read_system`: LLMs of several sizes beside image, embedding and audio models.

    No model spans more than `max_width` GPUs, and `gpus` is a pool that holds two of the widest. Workflows are chains,
    forks, diamonds and random graphs of 1 to `max_nodes` nodes.

    >>> config = synthetic_system(1, models=3, workflows=2)
    >>> sorted(config), len(config["models"]), len(config["workflows"])
    (['gpus', 'models', 'workflows'], 3, 2)
    """
    rng = SeededRandom(seed)
    made: RawSystem = {}
    for i in range(models):
        kind = "llm" if i == 0 else rng.choice(("llm", *_OTHERS))
        name, model = _llm(rng, max_width) if kind == "llm" else _other(rng, kind)
        made[f"{name}_{i + 1}"] = model
    graphs = {f"workflow_{i + 1}": _workflow(rng, made, max_nodes) for i in range(workflows)}
    return {"models": made, "workflows": graphs, "gpus": 2 * max_width}


def thrash_system(models: int = 12, gpus: int = 2, run_s: float = 2.0) -> RawSystem:
    """Many equal models, few GPUs, and short nodes: a policy that switches on every node spends most time loading.

    Workflow k asks model k, then its neighbour; a switch costs 4.5 s at the default prices, a run 2 s.

    >>> config = thrash_system()
    >>> len(config["models"]), config["gpus"]
    (12, 2)
    """
    made = {f"expert_{i + 1}": _model(f"Expert {i + 1}", 20.0, 1, "expert", run_s) for i in range(models)}
    names = list(made)
    graphs = {
        f"pair_{i + 1}": _graph("Pair", [name, names[(i + 1) % models]], [(0, 1)], made) for i, name in enumerate(names)
    }
    return {"models": made, "workflows": graphs, "gpus": gpus}


def agents_system() -> RawSystem:
    """Agents whose steps nobody knows before: one thinks, uses a tool or not, and thinks again; one looks in several
    places at once; beside them plain chats.

    >>> sorted(agents_system()["workflows"])
    ['agent', 'chat', 'research']
    """
    tokens = {"tokens_per_second": 50.0, "token_mean": 150.0, "token_std": 60.0}
    models = {
        "thinker": _model("LLM 14B", 28.0, 1, "llm") | tokens,
        "coder": _model("LLM 8B for code", 16.0, 1, "llm") | tokens | {"token_mean": 250.0, "token_std": 100.0},
        "reader": _model("LLM 3B", 6.0, 1, "llm") | tokens | {"tokens_per_second": 120.0},
        "retriever": _model("Embedding", 2.0, 1, "embedding", 0.5),
    }
    act = {"look_up": 0.5, "write_code": 0.25}
    agent = [
        {"id": "think", "model": "thinker", "then": act},
        {"id": "judge", "model": "thinker", "then": {"think": {"chance": 0.6, "at_most": 8}}},
        {"id": "answer", "model": "thinker"},
        {"id": "look_up", "model": "retriever"},
        {"id": "read", "model": "reader"},
        {"id": "write_code", "model": "coder", "then": {"write_code": {"chance": 0.3, "at_most": 3}}},
    ]
    research = [
        {"id": "plan", "model": "thinker", "then": {"look_up": {"copies": [2, 6]}}},
        {"id": "report", "model": "thinker"},
        {"id": "look_up", "model": "retriever"},
        {"id": "read", "model": "reader"},
    ]
    edges = [("think", "judge"), ("judge", "answer"), ("look_up", "read")], [("plan", "report"), ("look_up", "read")]
    agent_edges, research_edges = ([{"from": source, "to": to} for source, to in each] for each in edges)
    workflows = {
        "agent": {"nodes": agent, "edges": agent_edges},
        "research": {"nodes": research, "edges": research_edges},
        "chat": {"nodes": [{"id": "answer", "model": "thinker"}], "edges": []},
    }
    return {"models": models, "workflows": workflows, "gpus": 4}


def _model(name: str, memory_gb: float, gpus: int, kind: str, run_s: float | None = None) -> RawSystem:
    """A first load reads the weights from disk, at the default prices."""
    costs = CostRules()
    model: RawSystem = {
        "name": name,
        "type": kind,
        "memory_gb": memory_gb,
        "gpus_required": gpus,
        "load_time_seconds": round(memory_gb / costs.ssd_gb_s + costs.overhead_s, 1),
    }
    if run_s is not None:
        model |= {"inference_time_mean": run_s, "inference_time_std": round(0.2 * run_s, 3)}
    return model


def _llm(rng: SeededRandom, max_width: int) -> tuple[str, RawSystem]:
    size, gpus = rng.choice([llm for llm in _LLMS if llm[1] <= max(max_width, 1)])
    tokens = 50 * rng.between(2, 12)
    rate = round(400 * gpus / size * (0.8 + 0.4 * rng.random()), 1)
    tokens_of = {"tokens_per_second": rate, "token_mean": tokens, "token_std": tokens // 5, "config": deepcopy(_LLM)}
    return f"llm_{size}b", _model(f"LLM {size}B", 2.0 * size, gpus, "llm") | tokens_of


def _other(rng: SeededRandom, kind: str) -> tuple[str, RawSystem]:
    if kind == "image":
        memory_gb, run_s = float(rng.between(6, 24)), float(rng.between(3, 15))
        return "image", _model("Image", memory_gb, 1, "image_generation", run_s) | {"config": deepcopy(_IMAGE)}
    if kind == "embedding":
        return "embedding", _model("Embedding", float(rng.between(1, 4)), 1, "embedding", rng.between(2, 10) / 10)
    return "audio", _model("Speech to text", float(rng.between(2, 10)), 1, "audio", float(rng.between(2, 8)))


def _workflow(rng: SeededRandom, models: RawSystem, max_nodes: int) -> RawSystem:
    form = rng.choice(_FORMS)
    count = rng.between(1, max_nodes)
    last = count - 1
    if form == "chain":
        edges = [(i, i + 1) for i in range(last)]
    elif form == "fork":
        edges = [(0, i) for i in range(1, count)]
    elif form == "diamond":
        edges = [edge for i in range(1, last) for edge in ((0, i), (i, last))] or [(i, i + 1) for i in range(last)]
    else:
        edges = [(i, j) for j in range(count) for i in range(j) if rng.random() < 0.35]
    names = list(models)
    return _graph(form.capitalize(), [rng.choice(names) for _ in range(count)], edges, models)


def _graph(name: str, models: list[str], edges: list[tuple[int, int]], known: RawSystem) -> RawSystem:
    nodes = []
    for i, model in enumerate(models):
        inputs = [f"output_{s + 1}" for s, t in edges if t == i] or ["user_prompt"]
        node: RawSystem = {"id": f"step_{i + 1}", "model": model, "inputs": inputs, "outputs": [f"output_{i + 1}"]}
        if "config" in known[model]:
            node["config_options"] = list(known[model]["config"])
        nodes.append(node)
    lines = [{"from": f"step_{s + 1}", "to": f"step_{t + 1}"} for s, t in edges]
    return {"name": name, "nodes": nodes, "edges": lines}
