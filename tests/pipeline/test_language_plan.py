"""Plans for generation: against every partition there is, and what limits and memory leave."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil, inf
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.check.plan import plan_faults
from dovetail.pipeline.explain import what_if
from dovetail.pipeline.inputs.problem import BYTES_PER_S, MIB, Pipeline
from dovetail.pipeline.language import plan as plan_module
from dovetail.pipeline.language.plan import _Limits, max_context, plan_generation
from dovetail.pipeline.language.problem import GenerationProblem, load_generation
from dovetail.pipeline.optimise.verify import WrongPlanError
from dovetail.pipeline.plan import InfeasibleError, Plan, read_plan
from dovetail.pipeline.planner import again
from dovetail.pipeline.simulate import simulate
from tests.pipeline.test_language_shape import LLAMA3_8B, small


class Partition(NamedTuple):
    step_s: float
    ttft_s: float
    devices: int


def send_s(p: Pipeline, u: int, v: int, cut: int) -> float:
    mbps = min(p.classes[u].bw_mbps, p.classes[v].bw_mbps) if p.link_mbps is None else p.link_mbps[u][v]
    wait = p.link_s[u][v] if p.link_s else 0.0
    return p.cut_bytes[cut] / (mbps * BYTES_PER_S) + wait if mbps else inf


def fits(p: Pipeline, k: int, i: int, j: int) -> bool:
    need = sum(p.mem_mib[i:j]) + (p.cut_bytes[i] + p.cut_bytes[j]) / MIB
    need -= sum(tied.mib for tied in p.tied if i == 0 and j == p.layers)  # the embedding and the head in one stage
    return need < p.classes[k].mem_mib


def partitions(problem: GenerationProblem, groups: int) -> Iterator[Partition]:
    """Every chain of stages that devices and memory allow, with what it gives."""
    prefill, decode = problem.prefill(), problem.decode(ceil(problem.load.concurrency / groups))
    counts = [len(c.hosts) for c in problem.pool.classes]

    def grow(at: int, used: list[int], chain: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
        if at == decode.layers:
            yield chain
            return
        for o, (k, width) in enumerate(problem.options):
            if used[k] + width > counts[k]:
                continue
            for end in range(at + 1, decode.layers + 1):
                if (
                    (end == decode.layers or end in problem.cuts)
                    and fits(prefill, o, at, end)
                    and fits(decode, o, at, end)
                ):
                    more = [n + width * (x == k) for x, n in enumerate(used)]
                    yield from grow(end, more, [*chain, (o, at, end)])

    for chain in grow(0, [0] * len(counts), []):
        parts: dict[str, list[float]] = {}
        for name, p in (("prefill", prefill), ("decode", decode)):
            parts[name] = [sum(p.classes[o].time_s[i:j]) for o, i, j in chain]
            parts[name] += [send_s(p, u, v, j) for (u, _, j), (v, _, _) in pairwise(chain)]
        step_s = max(sum(parts["decode"]), groups * max(parts["decode"]))
        if step_s < inf:
            yield Partition(step_s, sum(parts["prefill"]), sum(problem.options[o][1] for o, _, _ in chain))


def random_problem(seed: int) -> tuple[GenerationProblem, dict[str, Any]]:
    rng = Random(seed)
    config = small(
        "mixtral" if rng.random() < 0.3 else "llama", num_hidden_layers=rng.randint(2, 4), num_local_experts=4
    )
    config["tie_word_embeddings"] = rng.random() < 0.4
    types: dict[str, Any] = {}
    hosts, links = {}, []
    for name in ("x", "y")[: rng.randint(1, 2)]:
        rates = {"tflops": rng.choice([0.001, 0.003, 0.02]), "memory_gbps": rng.choice([0.5, 2.0, 3.0])}
        rates |= {"layer_s": rng.choice([0.0, 1e-5])}
        types[name] = {"bw_Mbps": rng.choice([10.0, 100.0, 4000.0]), "mem_MB": rng.choice([0.15, 0.3, 2.0])}
        types[name]["roofline"] = rates
        hosts[name] = [f"{name}{i}" for i in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            links.append({"from": name, "to": name, "bw_Mbps": rng.choice([0.0, 50.0, 1e5]), "latency_s": 1e-6})
    problem = load_generation(
        config,
        types,
        hosts,
        prompt=rng.choice([8, 64]),
        context=rng.choice([65, 128]),
        concurrency=rng.choice([1, 2, 5]),
        tensor_parallel=(1, 2) if rng.random() < 0.6 else (1,),
        split_ends=rng.random() < 0.3,
        links={"links": links, "latency_s": rng.choice([0.0, 1e-4])} if links or rng.random() < 0.5 else None,
    )
    limits: dict[str, Any] = {}
    every = [p for m in range(1, problem.load.concurrency + 1) for p in partitions(problem, m)]
    if every and rng.random() < 0.6:
        limits["ttft_cap_s"] = rng.choice(every).ttft_s * rng.choice([0.9, 1.0, 1.3])
    if every and rng.random() < 0.4:
        limits["tokens_floor_s"] = problem.load.concurrency / rng.choice(every).step_s * rng.choice([0.8, 1.0, 1.05])
    if rng.random() < 0.3:
        limits["max_devices"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        limits["groups"] = rng.randint(1, problem.load.concurrency)
    return problem, limits


def check_against_every_partition(seed: int) -> None:
    problem, limits = random_problem(seed)
    requests = problem.load.concurrency
    counts = [limits["groups"]] if "groups" in limits else range(1, requests + 1)
    near = 1 + 1e-9
    allowed = [
        found
        for groups in counts
        for found in partitions(problem, groups)
        if found.ttft_s <= limits.get("ttft_cap_s", inf) * near
        and requests / found.step_s >= limits.get("tokens_floor_s", 0.0) / near
        and found.devices <= limits.get("max_devices", 99)
    ]
    for objective in ("tokens", "ttft"):
        if not allowed:
            with pytest.raises(InfeasibleError):
                plan_generation(problem, objective=objective, **limits)
            continue
        made = plan_generation(problem, objective=objective, **limits)
        assert plan_faults(made) == []
        told = made.generation
        assert told is not None
        assert made.optimal, (seed, objective)
        best = min(p.step_s if objective == "tokens" else p.ttft_s for p in allowed)
        assert made.value == pytest.approx(best, rel=1e-8), (seed, objective)
        given = [
            p
            for p in partitions(problem, told.groups)
            if p.step_s == pytest.approx(told.step_s) and p.ttft_s == pytest.approx(told.ttft_s)
        ]
        assert given, (seed, objective)
        assert told.tokens_s == pytest.approx(requests / told.step_s)
        assert told.step_s == pytest.approx(max(made.latency_s, told.groups * made.bottleneck_s))
        assert told.ttft_s <= limits.get("ttft_cap_s", inf) * near
        used = [host for stage in made.stages for host in stage.host.split(" + ")]
        assert len(set(used)) == len(used) <= limits.get("max_devices", 99)
        assert set(used) <= set(problem.pool.hosts)


@pytest.mark.parametrize("seed", range(60))
def test_the_best_of_every_partition_is_found(seed: int) -> None:
    check_against_every_partition(seed)


TYPES: dict[str, Any] = {"a100": {"bw_Mbps": 1e5, "mem_MB": 81920.0}, "l4": {"bw_Mbps": 1e4, "mem_MB": 24576.0}}


def llama(hosts: dict[str, list[str]], **more: Any) -> GenerationProblem:
    return load_generation(LLAMA3_8B, TYPES, hosts, **more)


def test_one_request_is_faster_on_the_fastest_device_and_many_on_all() -> None:
    one = plan_generation(llama({"a100": ["a"], "l4": ["b"]}))
    assert [stage.host for stage in one.stages] == ["a"]
    many = plan_generation(llama({"a100": ["a", "b"]}, concurrency=32))
    assert many.generation is not None
    assert [stage.host for stage in many.stages] == ["a", "b"]
    assert many.generation.groups == 2


def test_the_longest_context_is_what_memory_holds_by_hand() -> None:
    problem = llama({"l4": ["a"]}, prompt=16, context=32, concurrency=20, memory_use=1.0)
    found = max_context(problem, time_limit_s=600)
    weights = 2 * problem.model.weights / MIB
    passed = 4 * 20 * 4096 * 2 / MIB  # of every request, two copies in and two out
    room = 24576 - weights - 20 * 128256 * 4 / MIB - passed
    assert found == pytest.approx(room / (20 * 32 * 4096 / MIB), abs=2)
    longest = llama({"l4": ["a"]}, prompt=16, context=found, concurrency=20, memory_use=1.0)
    assert plan_generation(longest).stages
    with pytest.raises(InfeasibleError):
        plan_generation(llama({"l4": ["a"]}, prompt=16, context=found + 1, concurrency=20, memory_use=1.0))
    assert max_context(llama({"a100": ["a"]}), time_limit_s=600) == 8192  # as long as the model was made for


def test_the_longest_context_known_when_time_is_over_is_told_as_such() -> None:
    problem = llama({"l4": ["a"]}, prompt=16, context=32, concurrency=20, memory_use=1.0)
    told: list[str] = []
    found = max_context(problem, time_limit_s=1e-9, notice=told.append)
    assert 17 <= found < max_context(problem, time_limit_s=600)
    assert told == [f"context {found}: that none is longer is not proven in 1e-09 s (--time-limit-s)"]


def test_tied_weights_are_there_once_in_a_stage_that_holds_both_ends() -> None:
    def memory(tied: bool, hosts: list[str]) -> list[float]:
        types = {"t": {"bw_Mbps": 1e4, "mem_MB": 1.0, "roofline": {"tflops": 1.0, "memory_gbps": 1.0}}}
        config = small("llama", tie_word_embeddings=tied)
        problem = load_generation(config, types, {"t": hosts}, prompt=4, context=8, concurrency=4)
        return [stage.mem_mib for stage in plan_generation(problem, groups=len(hosts)).stages]

    (once,), (twice,) = memory(True, ["a"]), memory(False, ["a"])
    assert twice - once == pytest.approx(101 * 48 * 2 / MIB)
    apart = memory(True, ["a", "b"])
    assert len(apart) == 2
    assert apart == memory(False, ["a", "b"])


def test_the_longest_context_keeps_the_limits() -> None:
    problem = llama({"a100": ["a"]}, concurrency=4)
    fast = plan_generation(problem).generation
    assert fast is not None
    found = max_context(problem, tokens_floor_s=fast.tokens_s, time_limit_s=600)
    assert found == pytest.approx(4096, abs=1)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"ttft_cap_s": 0.001}, "--ttft-cap-s 0.001: the least time to first token is "),
        ({"tokens_floor_s": 1e6}, "--tokens-floor-s 1e[+]06: the most is "),
    ],
)
def test_why_there_is_no_plan(limits: dict[str, Any], reason: str) -> None:
    with pytest.raises(InfeasibleError, match=reason):
        plan_generation(llama({"a100": ["a"]}), **limits)


def test_memory_that_is_short_is_told() -> None:
    with pytest.raises(InfeasibleError, match="memory"):
        plan_generation(llama({"l4": ["a"]}, concurrency=64), time_limit_s=600)
    with pytest.raises(InfeasibleError, match="--max-devices 1 leaves no plan"):
        plan_generation(llama({"l4": ["a", "b"]}, concurrency=16), max_devices=1, time_limit_s=600)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"objective": "speed"}, "objective: expected one of tokens, ttft, found 'speed'"),
        ({"ttft_cap_s": 0}, "--ttft-cap-s: expected a positive number, found 0"),
        ({"groups": 2}, "--groups 2: expected 1 to as many as requests at once, 1"),
        ({"groups": 0}, "--groups 0: expected 1 to"),
        ({"groups": -1}, "--groups -1: expected 1 to"),
        ({"time_limit_s": 0}, "--time-limit-s: expected a positive number, found 0"),
    ],
)
def test_what_is_asked_is_checked(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_generation(llama({"a100": ["a"]}), **asked)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ({"ttft_cap_s": 1e-6}, "its first token takes .* s: --ttft-cap-s is 1e-06"),
        ({"tokens_floor_s": 1e6}, r"it gives .* tokens/s: --tokens-floor-s is 1e\+06"),
        ({"max_devices": 1}, "it uses 2 devices: --max-devices is 1"),
    ],
)
def test_a_plan_that_breaks_a_limit_is_not_shown(
    limit: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the search gives: here it knows nothing of the limit."""
    problem, best_of = llama({"l4": ["a", "b"]}, concurrency=16), plan_module._best_of
    monkeypatch.setattr(plan_module, "_best_of", lambda p, o, limits, *rest: best_of(p, o, _Limits(), *rest))
    with pytest.raises(WrongPlanError, match=told):
        plan_generation(problem, **limit)


def test_the_plan_is_an_ordinary_one(tmp_path: Any) -> None:
    made = plan_generation(llama({"l4": ["a", "b", "c"]}, concurrency=16))
    assert plan_faults(made) == []
    assert made.generation is not None
    for key in ("step_s", "tokens_s", "ttft_s"):
        other = replace(made.generation, **{key: getattr(made.generation, key) / 4})
        assert plan_faults(replace(made, generation=other)) != []
    kept: Plan = read_plan(made.save(tmp_path / "plan.json"))
    assert kept.generation == made.generation
    run = simulate(kept, microbatches=1)
    assert run.metrics["makespan_s"] == pytest.approx(made.latency_s)
    with pytest.raises(InputError, match="it is one for generation"):
        what_if(kept)
    fewer = again(kept)
    assert isinstance(fewer, Plan)
    assert [stage.layers for stage in fewer.stages]


def test_a_group_is_named_by_its_devices_and_has_the_memory_of_all() -> None:
    links = {"links": [{"from": "a100", "to": "a100", "bw_Mbps": 2.4e6}]}
    made = plan_generation(llama({"a100": ["a", "b", "c"]}, tensor_parallel=(2,), links=links))
    assert made.generation is not None
    assert made.stages[0].host == "a + b"
    assert made.generation.widths == [2]
    assert made.stages[0].mem_limit_mib == pytest.approx(2 * 0.9 * 81920, rel=1e-3)
