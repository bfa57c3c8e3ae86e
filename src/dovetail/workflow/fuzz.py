"""Random workloads that try everything at once, each run under every policy and handed to the checker.

A case is small and depends on its number alone, so that a fault found in ten thousand of them can be looked at again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.core import registry
from dovetail.core.errors import DovetailError
from dovetail.workflow.check import check_journal
from dovetail.workflow.dice import Dice
from dovetail.workflow.inputs import OnError
from dovetail.workflow.recording import record
from dovetail.workflow.requests import Mode
from dovetail.workflow.simulation import Problem
from dovetail.workflow.synthetic import Config, synthetic_system, thrash_system

MOST_GPUS = 9
_USUAL: dict[str, dict[str, Any]] = {"optimise": {"schedules": 12}}
_HARSH: dict[str, dict[str, Any]] = {  # bring out what is rare otherwise
    "deadline": {"admit": True},
    "dovetail": {"starvation": 0.05, "patience": 0.0},
    "online": {"lookahead": 0},
    "optimise": {"schedules": 12, "objective": "mean"},
    "srpt": {"ageing": 0.0, "hysteresis": 0.0},
    "static": {"hysteresis": 0.0},
}


class Case(NamedTuple):
    """A workload: a configuration, requests, a pool, and what may happen to them."""

    config: Config
    rows: list[dict[str, Any]]
    gpus: str
    mode: Mode
    costs: dict[str, Any]
    rates: dict[str, Any]
    on_error: OnError
    failure_rate: float
    retries: int


def random_case(seed: int) -> Case:
    """The case of this number: widths from 0 to the whole pool, one or two types of GPU, ties, and every cost rule.

    >>> random_case(7) == random_case(7)
    True
    """
    dice = Dice(seed)
    config = _system(dice, seed)
    pool = dice.between(1, MOST_GPUS)
    for model in config["models"].values():
        model["gpus_required"] = _width(dice, pool)
        if dice.random() < 0.5:
            model["batch_curve"] = [1.0, 1.3, 1.5, 2.0][: dice.between(1, 4)]
    gpus = _gpus(dice, config, pool)
    costs = _costs(dice, ":" in gpus and "memory_gb" in config["gpu_types"]["big"])
    rates = _rates(dice, config) if dice.random() < 0.15 else {}
    rough = dice.random() < 0.25
    return Case(
        config=config,
        rows=[_row(dice, config, i, rough) for i in range(dice.between(1, 14))],
        gpus=gpus,
        mode=dice.choice(("offline", "online")),
        costs=costs,
        rates=rates,
        on_error=dice.choice(("reject", "skip")),
        failure_rate=dice.choice((0.1, 0.5)) if rough else 0.0,
        retries=dice.between(0, 2),
    )


def _system(dice: Dice, seed: int) -> Config:
    if dice.random() < 0.15:
        return thrash_system(dice.between(2, 8))
    sizes = {"models": dice.between(1, 6), "workflows": dice.between(1, 4), "max_nodes": dice.between(1, 7)}
    return synthetic_system(seed, **sizes)


def _width(dice: Dice, pool: int) -> int:
    """Mostly narrow, sometimes odd, rarely no GPU at all or more than there are."""
    luck = dice.random()
    if luck < 0.45:
        return 1
    if luck < 0.55:
        return 0
    if luck < 0.6:
        return pool + 1
    return dice.between(1, pool)


def _gpus(dice: Dice, config: Config, pool: int) -> str:
    """One type of GPU, or two that differ in speed and, as often as not, in memory; the large ones hold any model."""
    if dice.random() < 0.6:
        return str(pool)
    big = dice.between(0, pool)
    types: Config = {"big": {"speed": dice.choice((1.0, 2.0))}, "small": {"speed": dice.choice((1.0, 0.5))}}
    if dice.random() < 0.7:
        largest = max(model["memory_gb"] for model in config["models"].values())
        types["big"]["memory_gb"] = largest + dice.between(0, 20)
        types["small"]["memory_gb"] = largest * dice.random() + 1
    config["gpu_types"] = types
    return f"big:{big},small:{pool - big}" if dice.random() < 0.5 else f"small:{pool - big},big:{big}"


def _costs(dice: Dice, memory_known: bool) -> dict[str, Any]:
    """Each rule on its own or with others, the plain prices half the time."""
    rules: dict[str, Any] = {
        "window": "primary",
        "overlap": dice.choice((0.3, 1.0)),
        "dram_gb": float(dice.between(10, 200)),
        "batching": True,
        "noise": 0.4,
        "overhead_s": 0.0,
    }
    if memory_known:
        rules["resident"] = "memory"
    if dice.random() < 0.5:
        return {}
    return {name: value for name, value in rules.items() if dice.random() < 0.3}


def _rates(dice: Dice, config: Config) -> dict[str, Any]:
    model = dice.choice(list(config["models"]))
    device = dice.choice([*config.get("gpu_types", ()), "gpu"])
    rate = {"kind": model, "device": device, "rate": dice.choice((0.5, 3.0)), "width": dice.between(1, 3)}
    return {"rates": [rate], "switches": [{"to": model, "seconds": float(dice.between(0, 3)), "device": device}]}


def _row(dice: Dice, config: Config, i: int, rough: bool) -> dict[str, Any]:
    """A request; whole seconds make ties, and a rough case has requests with faults, deadlines and missing times."""
    of = dice.choice(list(config["workflows"]))
    whole = dice.random() < 0.5
    times = {}
    for node in config["workflows"][of]["nodes"]:
        if not rough or dice.random() < 0.9:
            times[node["id"]] = float(dice.between(1, 20)) if whole else 0.01 + round(dice.exponential(10.0), 6)
    row: dict[str, Any] = {
        "request_id": f"r{i}",
        "workflow_id": of,
        "timestamp": float(dice.between(0, 60)) if whole else round(60 * dice.random(), 6),
        "node_execution_times": times,
    }
    if dice.random() < 0.3:
        row |= {"deadline_seconds": float(dice.between(1, 200)), "priority": float(dice.between(1, 4))}
    if rough and dice.random() < 0.1:
        row["workflow_id"] = "nothing"
    return row


def read_case(case: Case, folder: Path) -> Problem:
    """Write the case's files and read them as a user's."""
    config, requests, rates = (folder / name for name in ("config.json", "requests.json", "rates.json"))
    config.write_bytes(msgspec.json.encode(case.config))
    requests.write_bytes(msgspec.json.encode({"requests": case.rows}))
    if case.rates:
        rates.write_bytes(msgspec.json.encode(case.rates))
    return Problem.read(
        config,
        requests,
        gpus=case.gpus,
        mode=case.mode,
        on_error=case.on_error,
        costs=case.costs,
        rates=rates if case.rates else None,
    )


def policies_for(case: Case) -> list[str]:
    """All that are registered, but in online mode those that plan ahead."""
    names = registry.names("workflow")
    return [name for name in names if case.mode == "offline" or not registry.create("workflow", name).plans_ahead]


def options_of(policy: str, seed: int) -> dict[str, Any]:
    """The options that a policy has in a case: its own, or ones that strain it."""
    return (_HARSH if seed % 2 else _USUAL).get(policy, {})


def run_case(problem: Problem, case: Case, policy: str, seed: int, journal: Path) -> None:
    """Run a policy on a case and write its journal."""
    options = options_of(policy, seed)
    record(problem, policy, options, journal, seed=seed, failure_rate=case.failure_rate, retries=case.retries)


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
        report = check_journal(journal, problem.config, problem.requests.path)
        found += [f"case {seed}, {policy}: {fault.code}: {fault.where}: {fault.message}" for fault in report.faults]
    return found
