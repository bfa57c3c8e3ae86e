"""The demonstration of each level: its work, the rule that people use today, and Dovetail's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dovetail.core.rates import Rate, RateTable
from dovetail.report.data.collect import collect
from dovetail.report.gains import Gain
from dovetail.report.look import number, percent

if TYPE_CHECKING:
    from dovetail.core.results.run import Run
    from dovetail.pipeline import Plan

_WIDTH, _SIZE, _REPEATS = 64, 4096, 9
_CARDS = {"card-a": 3.0, "card-b": 2.0}  # assumed beside the processor, and so many times as fast
_CALL_S = 2e-4  # that a call of a card costs
_PROCESSOR, _LAYER, _MODEL, _CHAIN = "processor", "layer", "encoder", "chain"
_BATCH, _LAYERS = 256, 12
_NODE_S = 2.0  # of that model in a workflow, whatever number of items that is here
_SEED, _GPUS, _REQUESTS, _PER_MINUTE = 5, 8, 120, 12.0


class Machine(NamedTuple):
    """What was measured here: items/s of a layer on one core, and the time that two cores take of what one takes (1
    where there is only one)."""

    items_s: float
    two_cores: float


class MeasuredChain(NamedTuple):
    """What the pipeline level hands on: items/s of the model over all devices, and on the fastest alone."""

    items_s: float
    alone_items_s: float


def measure() -> Machine:
    """Time a layer on this processor, and how well two of its cores go together: by CPU time, since others may be at
    work here too."""
    each_s = max(min(_layer_s() for _ in range(_REPEATS)), 1e-9)  # a coarse clock makes no batch free
    return Machine(_SIZE / each_s, _two_cores())


def _layer_s(calls: int = 8) -> float:
    """The CPU time of a call: every item's numbers, scaled and squashed, in this thread alone."""
    batch, made = np.ones((_SIZE, _WIDTH), np.float32), np.empty((_SIZE, _WIDTH), np.float32)
    begin = time.thread_time()
    for _ in range(calls):
        np.tanh(np.multiply(batch, np.float32(0.5), out=made), out=made)
    return (time.thread_time() - begin) / calls


def _two_cores() -> float:
    """What two cores take of the time of one: half, and more where each is slower while the other works beside it."""
    from concurrent.futures import ThreadPoolExecutor

    def together(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            return min(max(pool.map(lambda _: _layer_s(), range(threads))) for _ in range(_REPEATS))

    alone_s = together(1)
    return min(max(together(2) / alone_s / 2, 0.5), 1.0) if alone_s and cores_here() > 1 else 1.0


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_rates(machine: Machine, path: Path) -> RateTable:
    """The table in which the levels meet: the processor's rate as measured, those of the cards as assumed."""
    rates = [Rate(_LAYER, _PROCESSOR, machine.items_s, source="measured", unit="items/s")]
    rates += [Rate(_LAYER, card, times * machine.items_s, unit="items/s") for card, times in _CARDS.items()]
    table = RateTable(rates)
    table.write(path)
    return table


def dispatch(machine: Machine, out: Path) -> Gain:
    """One batch over the processor and two cards, in equal parts and in chunks that finish together.

    Each device has the one rate that is told of it, whatever the size of a chunk: what is gained is gained by sharing.
    """
    from dovetail import dispatch

    devices: dict[str, Any] = {_PROCESSOR: {"latency_s": 0.0, "rate": machine.items_s}}
    devices |= {card: {"latency_s": _CALL_S, "rate": times * machine.items_s} for card, times in _CARDS.items()}
    sum_items_s = sum(curve["rate"] for curve in devices.values())
    items = round(machine.items_s * 0.15)
    equal = {name: curve | {"size": -(-items // len(devices))} for name, curve in devices.items()}
    rule = dispatch.simulate(
        {"devices": equal}, items=items, policy="fixed", backup=False, journal=out / "dispatch_rule_journal.jsonl"
    )
    ours = dispatch.simulate({"devices": devices}, items=items, journal=out / "dispatch_journal.jsonl")
    sentence = (
        f"This processor does {_short(machine.items_s)} items/s of a step of a layer (measured); two cards, assumed, "
        f"are 3 and 2 times as fast. In equal parts everybody waits for the processor; in chunks that finish together "
        f"the three reach {percent(items / ours.metrics['makespan_s'] / sum_items_s)} of {_short(sum_items_s)} "
        f"items/s, the sum of their rates, all of which would take half the time of equal parts."
    )
    gain = _gain("Dispatch: a batch over the devices of a node", sentence, "makespan", "makespan_s", rule, ours)
    return gain._replace(rule_name="equal parts")


def pipeline(rates: RateTable, out: Path) -> tuple[Gain, MeasuredChain]:
    """Twelve unlike layers over the same three devices, cut evenly and at the best places."""
    from dovetail.pipeline import DeviceClass, Pipeline, plan, simulate

    speeds = {rate.device: rate.rate for rate in rates.rates.values()}
    weights = [20.0 + 10.0 * (i % 3) for i in range(_LAYERS)]  # in steps of what was timed
    problem = Pipeline(
        model=_MODEL,
        layers=_LAYERS,
        mem_mib=[40.0] * _LAYERS,
        cut_bytes=[4 * _BATCH * _WIDTH] * (_LAYERS + 1),
        classes=[
            DeviceClass(name, name, [name], 4096.0, 20_000.0, [_BATCH * weight / speed for weight in weights])
            for name, speed in speeds.items()
        ],
        batch_size=_BATCH,
        dtype="torch.float32",
    )
    even, best = plan(problem, method="equal"), plan(problem)
    rule = simulate(even, 48, journal=out / "pipeline_rule_journal.jsonl")
    ours = simulate(best, 48, journal=out / "pipeline_journal.jsonl")
    alone = max(speeds.values()) / sum(weights)
    sentence = (
        f"The same rates, layer by layer: cut evenly, the slowest device holds up the rest; the exact cut gives it "
        f"{_layers_of(best, _PROCESSOR)} of {_LAYERS} layers, and the chain does {_short(best.throughput_items_s)} "
        f"items/s, {best.throughput_items_s / alone:.1f} times what the fastest device does alone."
    )
    gain = _gain("Pipeline: a model's layers over unlike devices", sentence, "makespan", "makespan_s", rule, ours)
    return gain._replace(rule_name="equal split"), MeasuredChain(best.throughput_items_s, alone)


def _layers_of(found: Plan, host: str) -> int:
    return sum(stage.layers[1] - stage.layers[0] + 1 for stage in found.stages if stage.host == host)


def workflow(machine: Machine, chain: MeasuredChain, out: Path) -> Gain:
    """Requests for five workflows on eight GPUs; the model that was cut is a node in three of them."""
    from dovetail.workflow import generate, load, run, write_config

    def model(gpus: int, memory_gb: float, load_s: float, run_s: float) -> dict[str, Any]:
        times = {"load_time_seconds": load_s, "inference_time_mean": run_s, "inference_time_std": run_s / 4}
        return {"type": "other", "memory_gb": memory_gb, "gpus_required": gpus, **times}

    def path(*models: str) -> dict[str, Any]:
        nodes = [{"id": name, "model": name, "inputs": [], "outputs": []} for name in models]
        return {"nodes": nodes, "edges": [{"from": a, "to": b} for a, b in pairwise(models)]}

    system = {
        "models": {
            _MODEL: model(1, 8, 4, _NODE_S),
            "chat": model(1, 40, 18, 6),
            "chat_large": model(4, 140, 60, 12),
            "painter": model(1, 16, 9, 5),
            "speech": model(1, 6, 4, 3),
            "ranker": model(1, 4, 3, 1),
        },
        "workflows": {
            "search": path(_MODEL, "ranker"),
            "assistant": path(_MODEL, "chat"),
            "story": path("chat", "painter"),
            "dictation": path("speech", "chat"),
            "report": path(_MODEL, "chat_large"),
        },
    }
    config, requests = out / "system_config.yaml", out / "workflow_requests.jsonl"
    write_config(config, system)
    generate(config, requests=_REQUESTS, rate=_PER_MINUTE, seed=_SEED).write(requests)
    problem = load(config, requests, gpus=_GPUS, mode="online")
    rule = run(problem, "baseline", journal=out / "workflow_rule_journal.jsonl")
    ours = run(problem, journal=out / "workflow_journal.jsonl")
    sentence = (
        f"{_short(_NODE_S * chain.items_s)} items through that chain take 2 s: the encoder's node. First come, "
        f"first served switches models {rule.metrics['switches']} times for {_seconds(rule, 'switch_time_s')}; "
        f"weighing each switch against the waiting that it saves takes "
        f"{ours.metrics['switches']} for {_seconds(ours, 'switch_time_s')}."
    )
    key = "avg_request_s"
    return _gain(
        "Workflow: requests that run several models, on a pool of GPUs", sentence, "mean response", key, rule, ours
    )


def cluster(machine: Machine, chain: MeasuredChain, out: Path) -> Gain:
    """Training jobs on chains and on single cards, of which the model that was cut is one type."""
    from dovetail.cluster import DEFAULT, load, simulate

    ratio = chain.alone_items_s / chain.items_s
    steps_s = {
        _MODEL: (chain.items_s / _BATCH, ratio),
        "vision": (40.0, 0.8),
        "speech": (25.0, 0.25),
        "ranking": (90.0, 0.95),
    }
    rates = RateTable(
        Rate(kind, device, rate * share, unit="steps/s", source="estimated" if kind == _MODEL else "given")
        for kind, (rate, slower) in steps_s.items()
        for device, share in ((_CHAIN, 1.0), ("card-a", slower))
    )
    durations = np.random.default_rng(_SEED).choice([1800.0, 3600.0, 7200.0, 14400.0], 40).tolist()
    kinds = list(steps_s)
    trace = [
        {"arrival_s": 600.0 * i, "model": kinds[i % len(kinds)], "duration_s": duration_s, "width": 1}
        for i, duration_s in enumerate(durations)
    ]
    scenario = load(cluster={_CHAIN: 4, "card-a": 4}, trace=trace, rates=rates)
    rule = simulate(scenario, "fifo", journal=out / "cluster_rule_journal.jsonl")
    ours = simulate(scenario, DEFAULT, journal=out / "cluster_journal.jsonl")
    sentence = (
        f"Training the encoder does {_short(chain.items_s / _BATCH)} steps/s on such a chain and {percent(ratio)} of "
        f"that on one card, while ranking hardly minds. First in, first out gives the next job whatever is free; "
        f"shares of time by what each job gains from each type keep the chains for those that need them."
    )
    return _gain(
        "Cluster: training jobs on accelerators of several types", sentence, "mean completion", "avg_jct_s", rule, ours
    )


def host(machine: Machine, chain: MeasuredChain, out: Path) -> Gain:
    """Programs on this machine's own cores, which go together as was measured."""
    from dovetail.host import load, simulate

    cores = max(cores_here(), 2)
    programs = [
        {"threads": cores if i % 3 else cores // 2, "work": (10.0 + 7.5 * (i % 4)) * cores, "at_s": 2.0 * i}
        for i in range(16)
    ]
    workload = load(programs, cores=cores, curves=f"fit:1=1,2={machine.two_cores:.3f}")
    rule = simulate(workload, plan="fcfs", assign="strict", journal=out / "host_rule_journal.jsonl")
    ours = simulate(workload, plan="fcfs", assign="efficient", journal=out / "host_journal.jsonl")
    sentence = (
        f"On this machine a second core takes {percent(1 - machine.two_cores)} off the time (measured). On {cores} "
        f"cores programs that get all they ask for leave cores idle that are too few for the next, and the next waits; "
        f"cores that go where they gain most let more run at once."
    )
    key = "mean_turnaround_s"
    return _gain("Host: programs on the cores of this machine", sentence, "mean turnaround", key, rule, ours)


def _gain(title: str, sentence: str, figure: str, key: str, rule: Run, ours: Run) -> Gain:
    """Both runs as they are told of, each by its policy's name and its value of the figure."""
    stories = [collect(run.journal) for run in (rule, ours)]
    values: list[Mapping[str, Any]] = [rule.metrics, ours.metrics]
    names = [story.header.policy for story in stories]
    return Gain(title, sentence, figure, stories[0], names[0], values[0][key], stories[1], names[1], values[1][key])


def _seconds(run: Run, key: str) -> str:
    return f"{run.metrics[key]:,.0f} s"


def _short(value: float) -> str:
    """
    >>> _short(1_234_567.0), _short(812.3), _short(1e4)
    ('1.23 million', '812', '10,000')
    """
    return f"{number(value / 1e6, 3)} million" if value >= 1e6 else number(value, 3)
