"""Random workloads that try everything at once, each run under every policy and handed to the checker.

A case is small and depends on its number alone, so that a fault found in ten thousand of them can be looked at again.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.core import registry
from dovetail.core.errors import DovetailError
from dovetail.testing.workflow.random_growth import let_grow, stop_growth
from dovetail.workflow.check import check_journal
from dovetail.workflow.choices import Mode, OnError
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.inputs.synthetic import RawSystem, synthetic_system, thrash_system
from dovetail.workflow.problem import WorkflowProblem, load
from dovetail.workflow.simulate import run

MOST_GPUS = 9
_USUAL: dict[str, dict[str, Any]] = {"optimise": {"schedules": 12}}
_HARSH: dict[str, dict[str, Any]] = {  # bring out what is rare otherwise
    "deadline": {"admit": True},
    "dovetail": {"objective": "makespan", "preload": True},
    "online": {"lookahead": 0},
    "optimise": {"schedules": 12, "objective": "mean"},
    "srpt": {"ageing": 0.0, "hysteresis": 0.0},
    "static": {"hysteresis": 0.0},
}


class RandomWorkload(NamedTuple):
    """A workload: a configuration, requests, a pool, and what may happen to them."""

    config: RawSystem
    rows: list[dict[str, Any]]
    gpus: str
    mode: Mode
    costs: dict[str, Any]
    rates: dict[str, Any]
    on_error: OnError
    failure_rate: float
    retries: int
    gpus_over_time: dict[str, Any] | None = None

    @property
    def grows(self) -> bool:
        """Whether requests may be given nodes while they run."""
        return any("then" in node for workflow in self.config["workflows"].values() for node in workflow["nodes"])

    def plain(self) -> RandomWorkload:
        """The same case, all of whose nodes and GPUs are there from the start, and nobody shares: it can be planned."""
        config, rows = deepcopy(self.config), deepcopy(self.rows)
        stop_growth(config, rows)
        for key in ("tenants", "sharing"):
            config.pop(key, None)
        for row in rows:
            row.pop("tenant", None)
        for model in config["models"].values():
            for key in ("max_concurrency", "concurrency_curve"):
                model.pop(key, None)
        return self._replace(config=config, rows=rows, gpus_over_time=None)


def random_case(seed: int) -> RandomWorkload:
    """The case of this number: widths from 0 to the whole pool, one or two types of GPU, ties, and every cost rule.

    >>> random_case(7) == random_case(7)
    True
    """
    rng = SeededRandom(seed)
    config = _system(rng, seed)
    pool = rng.between(1, MOST_GPUS)
    for model in config["models"].values():
        model["gpus_required"] = _width(rng, pool)
        if rng.random() < 0.5:
            model["batch_curve"] = [1.0, 1.3, 1.5, 2.0][: rng.between(1, 4)]
    extra = SeededRandom(-seed - 1)
    _make_adapters(extra, config)
    serving = SeededRandom(seed + (1 << 40))
    _make_slots(serving, config)
    gpus = _gpus(rng, config, pool)
    costs = _costs(rng, ":" in gpus and "memory_gb" in config["gpu_types"]["big"])
    rates = _rates(rng, config) if rng.random() < 0.15 else {}
    _measure_at_once(serving, config, rates)
    if extra.random() < 0.3 and any("adapter_of" in model for model in config["models"].values()):
        costs["adapter_slots"] = extra.between(2, 3)
    rough = rng.random() < 0.25
    rows = [_row(rng, config, i, rough, rates) for i in range(rng.between(1, 14))]
    _count_tokens(serving, config, rows)
    _give_prefixes(extra, config, rows)
    case = RandomWorkload(
        config=config,
        rows=rows,
        gpus=gpus,
        mode=rng.choice(("offline", "online")),
        costs=costs,
        rates=rates,
        on_error=rng.choice(("reject", "skip")),
        failure_rate=rng.choice((0.1, 0.5)) if rough else 0.0,
        retries=rng.between(0, 2),
        gpus_over_time=_over_time(SeededRandom(seed + 10**9), pool),
    )
    if rng.random() < 0.3:
        _share(rng, case, pool)
    growth = SeededRandom(-seed - 1_000_000)
    if growth.random() < 0.3:
        let_grow(growth, config, case.rows)
    return case


def _share(rng: SeededRandom, case: RandomWorkload, pool: int) -> None:
    """Requests belong to tenants: of unlike weights, some with quotas, some with short queues; not all are known."""
    names = ["ann", "bob", "cy"][: rng.between(1, 3)]
    tenants: dict[str, dict[str, Any]] = {}
    for name in [*names, "*"]:
        tenants[name] = {"weight": rng.choice((1.0, 1.0, 2.5))}
        if rng.random() < 0.4:
            tenants[name]["quota_gpus"] = rng.between(1, pool)
        if rng.random() < 0.2:
            tenants[name]["max_queue"] = rng.between(1, 3)
    if rng.random() < 0.2:
        del tenants["*"]
    if rng.random() < 0.9:
        case.config["tenants"] = tenants
    case.config["sharing"] = {"tolerance_s": rng.choice((0.0, 0.0, 5.0, 60.0))}
    if rng.random() < 0.2:
        case.config["sharing"]["max_queue"] = rng.between(1, 9)
    for row in case.rows:
        if rng.random() < 0.9:
            row["tenant"] = rng.choice([*names, *names, "dee"])


def _over_time(rng: SeededRandom, pool: int) -> dict[str, Any] | None:
    """A fifth of the cases: GPUs come and go, at times that requests arrive at or between them."""
    if rng.random() >= 0.2:
        return None
    times = sorted({0.0, *(float(rng.between(1, 80)) if rng.random() < 0.5 else 80 * rng.random() for _ in range(5))})
    counts = [rng.between(max(1, pool // 2), pool) for _ in times]
    return {
        "steps": [list(step) for step in zip(times, counts, strict=True)],
        "scale_up_s": rng.choice((0.0, 5.0, 30.0)),
    }


def _system(rng: SeededRandom, seed: int) -> RawSystem:
    if rng.random() < 0.15:
        return thrash_system(rng.between(2, 8))
    sizes = {"models": rng.between(1, 6), "workflows": rng.between(1, 4), "max_nodes": rng.between(1, 7)}
    return synthetic_system(seed, **sizes)


def _width(rng: SeededRandom, pool: int) -> int:
    """Mostly narrow, sometimes odd, rarely no GPU at all or more than there are."""
    drawn = rng.random()
    if drawn < 0.45:
        return 1
    if drawn < 0.55:
        return 0
    if drawn < 0.6:
        return pool + 1
    return rng.between(1, pool)


def _make_adapters(rng: SeededRandom, config: RawSystem) -> None:
    """A quarter of the cases: some models become adapters of one that is not."""
    if rng.random() >= 0.25:
        return
    base, *others = sorted(config["models"], key=lambda _: rng.random())
    for name in others[: rng.between(1, 4)]:
        model = config["models"][name]
        model |= {"adapter_of": base, "gpus_required": config["models"][base]["gpus_required"]}
        model |= {"memory_gb": rng.choice((0.0, 0.5, 2.0)), "load_time_seconds": rng.choice((0.0, 0.25, 3.0))}


def _give_prefixes(rng: SeededRandom, config: RawSystem, rows: list[dict[str, Any]]) -> None:
    """A quarter of the cases: caches of few blocks, and nodes that begin alike, some of them with tokens."""
    if rng.random() >= 0.25:
        return
    for model in config["models"].values():
        if rng.random() < 0.8:
            model |= {"prefix_cache_tokens": 16 * rng.between(1, 8) + 5, "prefix_block_tokens": 16}
            model["prefix_saves"] = rng.choice((0.0, 0.6, 0.9))
            if rng.random() < 0.5:
                model |= {"prefill_tokens_per_second": 8.0, "tokens_per_second": 5.0}
    for row in rows:
        for node in config["workflows"].get(row["workflow_id"], {}).get("nodes", ()):
            name, model = node["id"], config["models"][node["model"]]
            if rng.random() < 0.8:
                blocks = [rng.between(0, 2), "same", rng.between(0, 3), rng.between(0, 9)][: rng.between(1, 4)]
                row.setdefault("node_prefix", {})[name] = rng.choice(("talk", blocks, blocks))
            if "prefill_tokens_per_second" in model and name in row["node_execution_times"] and rng.random() < 0.6:
                del row["node_execution_times"][name]
                tokens = {"input": rng.between(1, 70), "output": rng.between(0, 20)}
                row.setdefault("node_tokens", {})[name] = tokens


def _make_slots(rng: SeededRandom, config: RawSystem) -> None:
    """In a third of the cases several nodes of some models run at once, and in a third tokens are counted."""
    shared, counted = rng.random() < 0.35, rng.random() < 0.35
    for model in config["models"].values():
        if shared and model["gpus_required"] and rng.random() < 0.6:
            model.pop("batch_curve", None)
            model["max_concurrency"] = rng.between(2, 5)
            model["concurrency_curve"] = rng.choice(([], [1.0, 0.8], {"1": 1.0, "3": 0.5}, [1.0, 1.0, 1.0]))
        if counted and rng.random() < 0.7:
            model |= {"tokens_per_second": rng.choice((10, 50)), "prefill_tokens_per_second": rng.choice((100, 1000))}


def _measure_at_once(rng: SeededRandom, config: RawSystem, rates: dict[str, Any]) -> None:
    """The rates of models with slots may be known at some number at once, too."""
    for rate in list(rates.get("rates", ())):
        if "max_concurrency" in config["models"][rate["kind"]]:
            rates["rates"].append(rate | {"rate": rate["rate"] * rng.choice((0.3, 0.8, 1.0)), "concurrency": 3})


def _count_tokens(rng: SeededRandom, config: RawSystem, rows: list[dict[str, Any]]) -> None:
    """Some nodes of models whose rates are known say how many tokens they have in the place of their times."""
    for row in rows:
        for node in config["workflows"].get(row["workflow_id"], {}).get("nodes", ()):
            counts = "prefill_tokens_per_second" in config["models"][node["model"]] and rng.random() < 0.7
            if counts and row["node_execution_times"].pop(node["id"], None) is not None:
                tokens = {"input": rng.choice((0, 10, 700)), "output": rng.choice((0, 1, 200))}
                row.setdefault("node_tokens", {})[node["id"]] = tokens


def _gpus(rng: SeededRandom, config: RawSystem, pool: int) -> str:
    """One type of GPU, or two that differ in speed and, as often as not, in memory; the large ones hold any model."""
    if rng.random() < 0.6:
        return str(pool)
    big = rng.between(0, pool)
    types: RawSystem = {"big": {"speed": rng.choice((1.0, 2.0))}, "small": {"speed": rng.choice((1.0, 0.5))}}
    if rng.random() < 0.7:
        largest = max(model["memory_gb"] for model in config["models"].values())
        types["big"]["memory_gb"] = largest + rng.between(0, 20)
        types["small"]["memory_gb"] = largest * rng.random() + 1
    config["gpu_types"] = types
    return f"big:{big},small:{pool - big}" if rng.random() < 0.5 else f"small:{pool - big},big:{big}"


def _costs(rng: SeededRandom, memory_known: bool) -> dict[str, Any]:
    """Each rule on its own or with others, the plain prices half the time."""
    rules: dict[str, Any] = {
        "window": "primary",
        "overlap": rng.choice((0.3, 1.0)),
        "dram_gb": float(rng.between(10, 200)),
        "batching": True,
        "noise": 0.4,
        "overhead_s": 0.0,
    }
    if memory_known:
        rules["resident"] = "memory"
    if rng.random() < 0.5:
        return {}
    return {name: value for name, value in rules.items() if rng.random() < 0.3}


def _rates(rng: SeededRandom, config: RawSystem) -> dict[str, Any]:
    model = rng.choice(list(config["models"]))
    device = rng.choice([*config.get("gpu_types", ()), "gpu"])
    rate = {"kind": model, "device": device, "rate": rng.choice((0.5, 3.0)), "width": rng.between(1, 3)}
    if rng.random() < 0.5:
        rate |= {"unit": "items/s", "width": 1}
    switch = {"to": model, "seconds": float(rng.between(0, 3)), "device": device}
    if base := config["models"][model].get("adapter_of"):
        switch["from"] = base
    return {"rates": [rate], "switches": [switch]}


def _row(rng: SeededRandom, config: RawSystem, i: int, rough: bool, rates: dict[str, Any]) -> dict[str, Any]:
    """A request; whole seconds make ties, and a rough case has requests with faults, deadlines and missing times.

    Where items per second of a model are known, its nodes may have items; not all of them on GPUs of this pool.
    """
    counted = {rate["kind"] for rate in rates.get("rates", ()) if "unit" in rate}
    of = rng.choice(list(config["workflows"]))
    whole = rng.random() < 0.5
    times, items = {}, {}
    for node in config["workflows"][of]["nodes"]:
        if node["model"] in counted and rng.random() < 0.7:
            items[node["id"]] = float(rng.between(1, 9))
        elif not rough or rng.random() < 0.9:
            times[node["id"]] = float(rng.between(1, 20)) if whole else 0.01 + round(rng.exponential(10.0), 6)
    row: dict[str, Any] = {
        "request_id": f"r{i}",
        "workflow_id": of,
        "timestamp": float(rng.between(0, 60)) if whole else round(60 * rng.random(), 6),
        "node_execution_times": times,
    }
    if items:
        row["node_items"] = items
    if rng.random() < 0.3:
        row |= {"deadline_seconds": float(rng.between(1, 200)), "priority": float(rng.between(1, 4))}
    if rough and rng.random() < 0.1:
        row["workflow_id"] = "nothing"
    return row


def read_case(case: RandomWorkload, folder: Path) -> WorkflowProblem:
    """Write the case's files and read them as a user's."""
    config, requests, rates = (folder / name for name in ("config.json", "requests.json", "rates.json"))
    config.write_bytes(msgspec.json.encode(case.config))
    requests.write_bytes(msgspec.json.encode({"requests": case.rows}))
    if case.rates:
        rates.write_bytes(msgspec.json.encode(case.rates))
    return load(
        config,
        requests,
        gpus=case.gpus,
        mode=case.mode,
        on_error=case.on_error,
        costs=case.costs,
        rates=rates if case.rates else None,
        gpus_over_time=case.gpus_over_time,
    )


def policies_for(case: RandomWorkload) -> list[str]:
    """All that are registered; those that plan ahead only offline, where all nodes and GPUs are known and nobody
    shares them."""
    planned = case.mode == "offline" and not case.grows and not case.config.get("tenants")
    planned = planned and case.gpus_over_time is None
    planned = planned and not any("max_concurrency" in model for model in case.config["models"].values())
    names = registry.names("workflow")
    return [name for name in names if planned or not registry.create("workflow", name).plans_ahead]


def options_of(policy: str, seed: int) -> dict[str, Any]:
    """The options that a policy has in a case: its own, or ones that strain it."""
    return (_HARSH if seed % 2 else _USUAL).get(policy, {})


def run_case(problem: WorkflowProblem, case: RandomWorkload, policy: str, seed: int, journal: Path) -> None:
    """Run a policy on a case and write its journal."""
    options = options_of(policy, seed)
    failures: dict[str, Any] = {"failure_rate": case.failure_rate, "retries": case.retries}
    run(problem, policy, options=options, journal=journal, seed=seed, **failures)


def check_case(seed: int, folder: Path) -> list[str]:
    """What is wrong with a case's schedules, under every registered policy; nothing if all is well."""
    case = random_case(seed)
    problem = read_case(case, folder)
    found = []
    for policy in policies_for(case):
        journal = folder / f"{policy}.jsonl"
        try:
            run_case(problem, case, policy, seed, journal)
        except DovetailError as error:
            found.append(f"case {seed}, {policy}: {error}")
            continue
        report = check_journal(journal, problem.source.config, problem.requests.path)
        found += [f"case {seed}, {policy}: {fault.code}: {fault.where}: {fault.message}" for fault in report.faults]
    return found
