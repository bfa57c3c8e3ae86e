"""Requests made up for a system: seeded, streamed, the same bytes on every run.

How long a node takes (`draw_s`): an LLM whose tokens are known needs a whole number of tokens, drawn from
N(token_mean, token_std), at tokens_per_second; any other model, whatever its type, N(inference_time_mean,
inference_time_std); else tokens, 1000 on average; else 10 s. A spread that is not given is 20 % of the mean; no time is
ever zero or negative. A model with an input_token_mean and the rates of reading and writing gets tokens in the place of
seconds.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Source, as_path
from dovetail.core.files.plain import scalar
from dovetail.workflow.choices import ArrivalPattern, FileFormat, check_choice, check_count
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.inputs.system import DEFAULT_NODE_S, Model, System
from dovetail.workflow.inputs.tenants import OTHERS, Tenancy
from dovetail.workflow.inputs.write import file_format as format_of
from dovetail.workflow.inputs.write import write_requests

RawRequest = dict[str, Any]  # as it stands in a file

DEFAULT_TOKENS = 1000.0
SPREAD = 0.2  # a spread that is not given, as a share of the mean
LEAST_S = 1e-6  # times are whole microseconds
BURST = 8  # mean requests of a burst
BURST_GAP = 0.1  # mean gap within a burst, as a share of the mean gap

_PROMPTS = (
    "Summarise the minutes of the last meeting",
    "Draw a lighthouse in a storm, in watercolour",
    "Which of these two contracts is the better one, and why?",
    "Translate the attached recipe and check its quantities",
    "Write the release notes for these twelve changes",
    "Find the customers who asked for the same feature",
    "Turn this recording into a list of decisions",
    "Plan a week of meals for four from what is in season",
)


def draw_s(model: Model, rng: SeededRandom) -> float:
    """How long a node of this model takes, by the rule at the head of this module.

    >>> sizes = {"memory_gb": 14, "gpus_required": 1, "load_time_seconds": 30}
    >>> draw_s(Model(**sizes, tokens_per_second=50, token_mean=100, token_std=0), SeededRandom(1))
    2.0
    """
    rate = model.tokens_per_second or 0.0
    tokens, seconds = model.token_mean or 0.0, model.inference_time_mean or 0.0
    if rate > 0 and (seconds <= 0 or (tokens > 0 and model.type == "llm")):
        tokens = tokens if tokens > 0 else DEFAULT_TOKENS
        drawn = max(1, int(rng.normal(tokens, _std(model.token_std, tokens)))) / rate
    elif seconds > 0:
        drawn = max(seconds / 100, rng.normal(seconds, _std(model.inference_time_std, seconds)))
    else:
        drawn = max(DEFAULT_NODE_S / 100, rng.normal(DEFAULT_NODE_S, SPREAD * DEFAULT_NODE_S))
    return max(LEAST_S, round(drawn, 6))


def draw_tokens(model: Model, rng: SeededRandom) -> dict[str, int] | None:
    """How many tokens a node of this model reads and writes, if that is what it should say."""
    reads, writes = model.input_token_mean, model.token_mean or DEFAULT_TOKENS
    if not reads or not model.prefill_tokens_per_second or not model.tokens_per_second:
        return None
    drawn = rng.normal(reads, _std(model.input_token_std, reads)), rng.normal(writes, _std(model.token_std, writes))
    return {"input": max(1, int(drawn[0])), "output": max(1, int(drawn[1]))}


def _std(given: float | None, mean: float) -> float:
    return SPREAD * mean if given is None else given


class GeneratedRequests:
    """Requests made up for a configuration, in the order in which they arrive: the same whenever they are gone through.
    A million need no more memory than one."""

    def __init__(self, system: System, asked: Mapping[str, Any], rows: Callable[[], Iterator[RawRequest]]) -> None:
        self._system = system
        self._asked = asked
        self._rows = rows

    def __len__(self) -> int:
        return int(self._asked["requests"])

    def __iter__(self) -> Iterator[RawRequest]:
        return self._rows()

    def __repr__(self) -> str:
        return f"<GeneratedRequests {len(self):,} requests, seed {self._asked['seed']}>"

    def statistics(self) -> Statistics:
        """What they ask for, all together."""
        counted = Statistics()
        deque(counted.count(self._system, self), maxlen=0)
        return counted

    def write(self, path: str | os.PathLike[str], file_format: FileFormat | None = None) -> Statistics:
        """Write them as a file of requests, whose format its suffix tells if nothing else does."""
        counted, place = Statistics(), as_path(path, "path")
        chosen = file_format or format_of(place)
        write_requests(counted.count(self._system, self), place, chosen, self._asked)
        return counted


def generate(
    config: Source | System,
    *,
    requests: int = 500,
    duration: float | None = None,
    rate: float | None = None,
    arrivals: ArrivalPattern = "poisson",
    workflows: Mapping[str, float] | None = None,
    tenants: Mapping[str, float] | None = None,
    seed: int = 0,
    start: str = "2024-01-01T00:00:00",
) -> GeneratedRequests:
    """Make up requests for a configuration; a seed gives the same ones every time.

    The mean gap is `duration / requests`, or `1 / rate`, in minutes: give one of them, or neither for 20 minutes. Gaps
    are exponential (`poisson`, so the last request may come a little before or after the duration), all equal
    (`uniform`), or short within bursts of 8 on average and long between them (`bursty`). `workflows` weighs the
    workflows; without it all are as likely. `tenants` says how much of the requests is whose; without it, those that
    the configuration names send as much each, of what their quotas allow.

    >>> from dovetail.workflow.inputs.synthetic import thrash_system
    >>> for row in generate(thrash_system(), requests=2, rate=6, seed=1):
    ...     row["request_id"], row["timestamp"], row["workflow_id"], row["node_execution_times"]
    ('req_0001', '2024-01-01T00:00:01.442911', 'pair_11', {'step_1': 1.69316, 'step_2': 1.746661})
    ('req_0002', '2024-01-01T00:00:16.988780', 'pair_2', {'step_1': 1.30653, 'step_2': 2.677976})
    """
    requests, duration, rate, seed = scalar(requests), scalar(duration), scalar(rate), scalar(seed)
    check_count("--requests", requests)
    check_count("--seed", seed, -(1 << 63))
    check_choice("--arrivals", arrivals, ArrivalPattern)
    system = config if isinstance(config, System) else read_system(config)
    duration = 20.0 if duration is None and rate is None else duration
    gap_s = _mean_gap_s(requests, duration, rate)
    try:
        first = datetime.fromisoformat(start)
    except (TypeError, ValueError):
        raise InputError(f"--start {start}: not a time; expected 2024-01-01T00:00:00") from None
    names, bounds = _weights(system, workflows, needed=requests > 0)
    asked = {
        "requests": requests,
        "duration_min": duration,
        "rate_per_min": rate,
        "seed": seed,
        "start": start,
        "workflows": workflows,
        "arrivals": arrivals,
    }
    senders = _senders(system, names, tenants)
    if tenants is not None:
        asked["tenants"] = tenants

    def rows() -> Iterator[RawRequest]:
        made = _rows(system, requests, SeededRandom(seed), first, names, bounds, gap_s, arrivals)
        return _sent(made, senders, SeededRandom(~seed)) if senders else made  # whose they are changes nothing else

    return GeneratedRequests(system, asked, rows)


def _mean_gap_s(requests: int, duration: float | None, rate: float | None) -> float:
    if duration is not None and rate is not None:
        raise InputError("give either the duration or the rate of the requests")
    for option, value in (("--duration", duration), ("--rate", rate)):
        if value is not None and not (isinstance(value, int | float) and value > 0 and math.isfinite(value)):
            raise InputError(f"{option} {value}: expected a positive number")
    return 60.0 / rate if rate else 60.0 * (duration or 0.0) / max(requests, 1)


def _weights(system: System, given: Mapping[str, float] | None, needed: bool) -> tuple[list[str], list[float]]:
    """The workflows that may be drawn, and their cumulated weights, from 0 to 1."""
    usable = [name for name in system.workflows if name not in system.faults]
    weights = dict.fromkeys(usable, 1.0) if given is None else given
    if not isinstance(weights, Mapping):
        raise InputError(f"--workflow {weights!r}: expected names of workflows and their weights")
    for name, weight in weights.items():
        if name in system.faults:
            raise InputError(f"--workflow {name}: cannot run: {system.faults[name]}")
        if name not in system.workflows:
            raise InputError(f"--workflow {name}: not a workflow{did_you_mean(name, usable)}")
        if not (isinstance(weight, int | float) and weight >= 0 and math.isfinite(weight)):
            raise InputError(f"--workflow {name}: expected a weight >= 0, found {weight}")
    names = [name for name in usable if weights.get(name, 0.0) > 0]
    if needed and not names:
        raise InputError("no workflow to request: the configuration has none that can run, or all weights are 0")
    total = math.fsum(weights[name] for name in names)
    return names, [cumulated / total for cumulated in accumulate(weights[name] for name in names)]


def _senders(
    system: System, workflows: list[str], given: Mapping[str, float] | None
) -> dict[str, tuple[list[str], list[float]]]:
    """For each workflow the tenants that may ask for it, and their cumulated weights, from 0 to 1; nothing if no tenant
    is known."""
    tenancy = system.tenancy or Tenancy()
    weights = {name: 1.0 for name in tenancy.tenants if name != OTHERS} if given is None else given
    if not isinstance(weights, Mapping):
        raise InputError(f"--tenant {weights!r}: expected names of tenants and how much each sends")
    for name, weight in weights.items():
        if (why := tenancy.why_not(name)) is not None:
            raise InputError(f"--tenant {name}: {why}")
        if not (isinstance(weight, int | float) and weight >= 0 and math.isfinite(weight)):
            raise InputError(f"--tenant {name}: expected a weight >= 0, found {weight}")
    found, models = {}, system.model_costs
    for workflow in workflows if weights else ():
        graph = system.graph(workflow)
        names = [name for name, weight in weights.items() if weight and not tenancy.why_not(name, graph, models)]
        if not names:
            raise InputError(f"--tenant {', '.join(weights)}: none has a quota that is wide enough for {workflow!r}")
        total = math.fsum(weights[name] for name in names)
        found[workflow] = names, [cumulated / total for cumulated in accumulate(weights[name] for name in names)]
    return found


def _sent(
    rows: Iterator[RawRequest], senders: Mapping[str, tuple[list[str], list[float]]], rng: SeededRandom
) -> Iterator[RawRequest]:
    for row in rows:
        names, bounds = senders[row["workflow_id"]]
        yield row | {"tenant": names[min(bisect_right(bounds, rng.random()), len(names) - 1)]}


def _rows(
    system: System,
    requests: int,
    rng: SeededRandom,
    first: datetime,
    names: list[str],
    bounds: list[float],
    gap_s: float,
    arrivals: ArrivalPattern,
) -> Iterator[RawRequest]:
    digits = max(4, len(str(requests)))
    steps = {name: _steps(system, name) for name in names}
    at_us = 0  # whole microseconds, so that a long sum neither drifts nor differs between machines
    for i in range(requests):
        at_us = round(i * gap_s * 1e6) if arrivals == "uniform" else at_us + round(_gap_s(rng, gap_s, arrivals) * 1e6)
        name = names[min(bisect_right(bounds, rng.random()), len(names) - 1)]
        try:
            time = first + timedelta(microseconds=at_us)
        except OverflowError:
            raise InputError(f"request {i + 1} would arrive after the year 9999; expected a shorter duration") from None
        prompt = rng.choice(_PROMPTS)
        configs = {
            node: {option: rng.choice(choices) for option, choices in options.items()}
            for node, _, options in steps[name]
            if options
        }
        tokens = {node: drawn for node, model, _ in steps[name] if (drawn := draw_tokens(model, rng)) is not None}
        yield {
            "request_id": f"req_{i + 1:0{digits}d}",
            "timestamp": time.isoformat(timespec="microseconds"),
            "workflow_id": name,
            "input_data": {"user_prompt": prompt},
            "node_configs": configs,
            "node_execution_times": {node: draw_s(model, rng) for node, model, _ in steps[name] if node not in tokens},
            **({"node_tokens": tokens} if tokens else {}),
        }


def _gap_s(rng: SeededRandom, mean_s: float, arrivals: ArrivalPattern) -> float:
    if arrivals == "poisson":
        return rng.exponential(mean_s)
    if rng.random() * BURST >= 1:
        return rng.exponential(mean_s * BURST_GAP)
    return rng.exponential(mean_s * (BURST - (BURST - 1) * BURST_GAP))  # makes the mean over all gaps mean_s


def _steps(system: System, workflow: str) -> list[tuple[str, Model, dict[str, list[Any]]]]:
    """A workflow's nodes, each with its model and the choices for its options."""
    steps = []
    for node in system.workflows[workflow].nodes:
        model = system.models[node.model]
        given = {option: model.config[option] for option in node.config_options if option in model.config}
        choices = {option: value if isinstance(value, list) else [value] for option, value in given.items()}
        steps.append((node.id, model, {option: values for option, values in choices.items() if values}))
    return steps


class Statistics(Struct):
    """What a sequence of requests asks for. `gpu_hours` is by model: GPUs times hours of running, without loading.
    Nodes that are added by chance count as often as they are in the mean."""

    requests: int = 0
    nodes: float = 0
    span_s: float = 0.0
    workflows: dict[str, int] = field(default_factory=dict)
    gpu_hours: dict[str, float] = field(default_factory=dict)

    def count(self, system: System, rows: Iterable[RawRequest]) -> Iterator[RawRequest]:
        """Pass rows on while counting them, so that a stream is counted on its way into a file."""
        first = last = None
        often = {name: rules.expected_of(system.graph(name)) for name, rules in system.growth.items()}
        for row in rows:
            time = datetime.fromisoformat(row["timestamp"])
            first, last = min(first or time, time), max(last or time, time)
            self.requests += 1
            self.span_s = (last - first).total_seconds()
            name = row["workflow_id"]
            self.workflows[name] = self.workflows.get(name, 0) + 1
            times, tokens = row["node_execution_times"], row.get("node_tokens", {})
            for node in system.workflows[name].nodes:
                model = system.models[node.model]
                seconds = times.get(node.id, model.estimate_s()[0])
                if node.id in tokens:
                    read_s, write_s = system.token_s(node.model)
                    seconds = tokens[node.id]["input"] * (read_s or 0) + tokens[node.id]["output"] * (write_s or 0)
                times_run = often[name].get(node.id, 0.0) if name in often else 1
                hours = times_run * model.gpus_required * seconds / 3600
                self.gpu_hours[node.model] = self.gpu_hours.get(node.model, 0.0) + hours
                self.nodes += times_run
            yield row
