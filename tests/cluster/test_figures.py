"""What is published by one call or command: each row is what single runs give, and differences are seed by seed."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dovetail import cluster, read_journal
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows

SMALL: dict[str, Any] = {"cluster": "v100=2,k80=3", "jobs": 10}
PLACED = ["max_min_fairness_water_filling_perf", "max_min_fairness_packed", "fifo", "elastic_throughput"]
TWO = ["max_min_fairness", "max_min_fairness_perf"]


def figure(name: str, policy: str, seed: int, scenario: dict[str, Any] = SMALL, **how: Any) -> float:
    run = cluster.simulate(cluster.load(**scenario | {"seed": seed}), policy, journal=False, **how)
    return float(run.metrics[name])


def test_a_comparison_over_seeds_is_that_of_single_runs() -> None:
    found = cluster.compare(cluster.load(**SMALL), TWO, seeds=[3, 5, 3])
    assert [(row["policy"], row["seeds"]) for row in found] == [(name, 2) for name in TWO]
    for key in ("avg_jct_s", "makespan_s", "total_cost"):
        blind, aware = ([figure(key, name, seed) for seed in (3, 5)] for name in TWO)
        assert found[1][key] == pytest.approx(sum(aware) / 2)
        apart = found[1]["paired"][key]
        differences = [b - a for a, b in zip(blind, aware, strict=True)]
        assert apart["difference"] == pytest.approx(sum(differences) / 2)
        assert apart["plus_minus"] == pytest.approx(12.706 * abs(differences[0] - differences[1]) / 2)
        assert (
            found[1]["ratios"][key]
            == apart["ratio"]
            == pytest.approx((aware[0] / blind[0] * aware[1] / blind[1]) ** 0.5)
        )
    assert found[0]["paired"]["avg_jct_s"]["difference"] == 0
    assert not any("these jobs only" in note for note in found.notes)
    with pytest.raises(InputError, match="seeds: expected at least one value"):
        cluster.compare(cluster.load(**SMALL), TWO, seeds=[])


def test_a_seed_that_is_given_twice_is_one() -> None:
    given = cluster.load(cluster="v100=2", trace=[{"arrival_s": 0, "model": "A3C", "width": 1, "steps": 100}])
    assert cluster.round_lengths(given, [360], ["fifo"], seeds=[0, 0]).notes == []
    assert cluster.round_lengths(given, [360], ["fifo"], seeds=[0, 1]).notes != []


def test_round_lengths_are_single_runs_beside_an_ideal_one() -> None:
    found = cluster.round_lengths(cluster.load(**SMALL), [360, 3600], TWO, seeds=[1, 2], restart_s=30)
    assert [(row["interval_s"], row["policy"]) for row in found] == list(product((0.0, 360.0, 3600.0), TWO))
    how: dict[float, dict[str, Any]] = {0.0: {"ideal": True}, 360.0: {"restart_s": 30}}
    how[3600.0] = how[360.0] | {"interval": 3600}
    for row in found:
        mean = sum(figure("avg_jct_s", row["policy"], seed, **how[row["interval_s"]]) for seed in (1, 2)) / 2
        assert row["avg_jct_s"] == pytest.approx(mean)
        ideal = next(r for r in found if r["interval_s"] == 0 and r["policy"] == row["policy"])
        assert row["over_ideal"] == pytest.approx(row["avg_jct_s"] / ideal["avg_jct_s"])
    for wrong in ({"interval": 60.0}, {"ideal": True}, {"compat": "gavel"}):
        with pytest.raises(InputError, match="expected intervals, without"):
            cluster.round_lengths(cluster.load(**SMALL), [360], **wrong)
    with pytest.raises(InputError, match="a restart of 10 s in rounds of 5 s"):
        cluster.round_lengths(cluster.load(**SMALL), [5])


@pytest.mark.parametrize("measured", [False, True])
def test_mixes_of_types_have_the_same_jobs_and_differ_only_where_types_do(measured: bool) -> None:
    given: dict[str, Any] = {"jobs": 10, "cluster": "v100=1,k80=1"}
    if measured:
        given["throughputs"] = [
            {"model": model, "type": name, "steps_per_s": rate}
            for model, rates in {"A3C": (9.0, 3.0), "CycleGAN": (1.0, 0.9)}.items()
            for name, rate in zip(("v100", "k80"), rates, strict=True)
        ]
        given["trace"] = [{"arrival_s": 0, "model": "A3C", "duration_s": 40000}] * 6
        given["trace"] += [{"arrival_s": 0, "model": "CycleGAN", "duration_s": 40000}] * 4
        del given["jobs"]
    found = cluster.type_mixes(cluster.load(**given), ("v100", "k80"), 4, [0.0, 0.5, 1.0], TWO, seeds=[0])
    makespan_s = {(row["share"], row["policy"]): row["makespan_s"] for row in found}
    assert {row["cluster"] for row in found} == {"v100=0,k80=4", "v100=2,k80=2", "v100=4,k80=0"}
    for share in (0.0, 1.0):  # one type: there is nothing to know
        assert makespan_s[share, TWO[0]] == pytest.approx(makespan_s[share, TWO[1]], rel=0.05)
    for name in TWO:
        assert makespan_s[1.0, name] < makespan_s[0.5, name] < makespan_s[0.0, name]
    assert found.notes == []  # of one seed nothing is sure
    if measured:
        again = cluster.compare(cluster.load(**given), TWO, seeds=[0, 1])
        assert any("these jobs only" in note for note in again.notes)
    scenario = given | {"cluster": "v100=2,k80=2"}
    assert makespan_s[0.5, TWO[1]] == pytest.approx(figure("makespan_s", TWO[1], 0, scenario))


def test_costs_are_relative_to_the_first_policy_seed_by_seed() -> None:
    policies = ["max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf"]
    found = cluster.relative_costs(cluster.load(**SMALL, deadlines=True), policies, seeds=[0, 1, 2])
    scenario = SMALL | {"deadlines": True}
    plain, cheap = ([figure("total_cost", name, seed, scenario) for seed in range(3)] for name in policies)
    ratio = 1.0
    for a, b in zip(plain, cheap, strict=True):
        ratio *= (b / a) ** (1 / 3)
    assert found[0]["relative_cost"] == 1.0
    assert found[1]["relative_cost"] == pytest.approx(ratio)
    assert found[1]["relative_cost_least"] <= ratio <= found[1]["relative_cost_most"]
    missed = [figure("slo_violations", policies[1], seed, scenario) for seed in range(3)]
    assert found[1]["slo_violations"] == pytest.approx(sum(missed) / 3)


def broken(problem: cluster.Problem) -> cluster.Allocation:
    raise ZeroDivisionError


def test_policy_times_ask_for_shares_of_as_many_jobs_as_they_say() -> None:
    seen: list[tuple[int, list[int], int]] = []

    def watching(problem: cluster.Problem) -> cluster.Allocation:
        seen.append((problem.jobs, problem.counts.tolist(), int(problem.ids[0])))
        return cluster.Allocation(share=problem.rates[problem.kind] * 0.0)

    found = cluster.policy_times(cluster.load(cluster="v100=9,k80=1"), [8, 20], [watching], trials=2)
    assert [(row["jobs"], row["policy"]) for row in found] == [(8, "watching"), (20, "watching")]
    assert [each[:2] for each in seen] == [(8, [2, 2])] * 22 + [(20, [5, 5])] * 22
    assert [first for _, _, first in seen[:11]] == list(range(11))  # one leaves, one comes
    assert all(0 <= row["warm_s"] <= row["largest_s"] for row in found)
    with pytest.raises(DovetailError, match=r"policy broken: allocate failed: ZeroDivisionError"):
        cluster.policy_times(cluster.load(), [8], [broken], trials=1)
    with pytest.raises(InputError, match="generated jobs that are all there at the start"):
        cluster.policy_times(cluster.load(jobs_per_hour=1), [8])


def held_by(journal: Path, entities: list[str], parts: int) -> dict[tuple[int, str], float]:
    """Accelerator seconds by part and entity, lease by lease."""
    run = read_journal(journal)
    whose: dict[int, str] = {}
    wide: dict[int, int] = {}
    leases: list[tuple[str, float, float, float]] = []
    end_s = 0.0
    for _, t, events in run._reader.rows():
        end_s = max(end_s, t)
        for rows in (event for event in events if isinstance(event, Rows)):
            columns = rows.columns
            if rows.of == "arrived":
                whose |= {job: entities[e] for job, e in zip(columns["id"], columns["entity"], strict=True)}
            elif rows.of == "started":
                wide |= {job: len(devices) for job, devices in zip(columns["id"], columns["devices"], strict=True)}
            elif rows.of == "stopped":
                for i, job in enumerate(columns["id"]):
                    half = 0.5 if columns["beside"][i] >= 0 else 1.0
                    leases.append((whose[job], wide[job] * half, columns["from_s"][i], columns["to_s"][i]))
    found: dict[tuple[int, str], float] = {}
    for entity, many, begin, end in leases:
        for part in range(parts):
            low, high = part * end_s / parts, (part + 1) * end_s / parts
            overlap = max(0.0, min(high, end) - max(low, begin))
            found[part, entity] = found.get((part, entity), 0.0) + many * overlap
    return found


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("policy", PLACED)
@pytest.mark.parametrize("arriving", [False, True])
def test_shares_of_entities_are_those_of_their_leases(policy: str, parts: int, arriving: bool, tmp_path: Path) -> None:
    weights = {"research": 3.0, "product": 1.0, "idle": 2.0}
    given: dict[str, Any] = {"cluster": "v100=2,k80=2", "entities": weights, "multi_gpu": True, "seed": 4, "jobs": 14}
    given |= {"jobs_per_hour": 1.0} if arriving else {}
    run = cluster.simulate(cluster.load(**given), policy, journal=tmp_path / "run.jsonl")
    found = cluster.entity_shares(run, parts)
    assert found.rows == cluster.entity_shares(tmp_path / "run.jsonl", parts).rows
    held = held_by(run.journal, list(weights), parts)
    for part in range(parts):
        rows = found.rows[3 * part : 3 * part + 3]
        total = sum(held.get((part, name), 0.0) for name in weights)
        assert [row["entity"] for row in rows] == list(weights)
        for row in rows:
            seconds = held.get((part, row["entity"]), 0.0)
            assert row["accelerators"] * (row["until_s"] - row["time_s"]) == pytest.approx(seconds, abs=1e-6)
            assert row["share"] == (pytest.approx(seconds / total) if total else None)
        if total:
            assert sum(row["share"] for row in rows) == pytest.approx(1.0)
            assert sum(row["progress_share"] for row in rows) == pytest.approx(1.0)
            assert sum(row["entitled"] or 0.0 for row in rows) in (0.0, pytest.approx(1.0))
    used = sum(row["accelerators"] * (row["until_s"] - row["time_s"]) for row in found)
    assert used == pytest.approx(run.figures.utilization * 4 * run.figures.makespan_s)


def test_water_filling_gives_entities_what_their_weights_say_while_all_have_work() -> None:
    weights = {"research": 2.0, "product": 1.0}
    jobs = cluster.load(cluster="v100=4", entities=weights, jobs=40, duration_s=36000.0, seed=1)
    run = cluster.simulate(jobs, "max_min_fairness_water_filling_perf")
    first = cluster.entity_shares(run, 4).rows[:2]
    assert [row["entitled"] for row in first] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert first[0]["progress_share"] == pytest.approx(2 / 3, abs=0.05)


def test_runs_without_entities_or_leases_are_refused(tmp_path: Path) -> None:
    plain = cluster.simulate(cluster.load(**SMALL), "isolated")
    with pytest.raises(InputError, match="expected jobs of entities"):
        cluster.entity_shares(plain)
    ideal = cluster.simulate(cluster.load(**SMALL, entities=2), "isolated", ideal=True)
    with pytest.raises(InputError, match="expected a journal with leases"):
        cluster.entity_shares(ideal)
    with pytest.raises(InputError, match="parts 0: expected 1 or more"):
        cluster.entity_shares(plain, 0)


def test_a_sweep_is_compared_policy_by_policy_seed_by_seed() -> None:
    base = cluster.Scenario(cluster="v100=2,k80=2")
    found = cluster.sweep(base, kind="static", loads=[6, 8], policies=TWO, seeds=[0, 1, 2])
    apart = found.paired(TWO[1], ["makespan_s", "avg_jct_s"])
    assert [(row["load"], row["policy"], row["figure"]) for row in apart] == [
        (load, TWO[0], key) for load in (6.0, 8.0) for key in ("makespan_s", "avg_jct_s")
    ]
    runs = {(run["policy"], run["num_total_jobs"], run["seed"]): run["makespan_s"] for run in found.runs}
    by_hand = [runs[TWO[0], 6, seed] - runs[TWO[1], 6, seed] for seed in range(3)]
    assert apart[0]["difference"] == pytest.approx(sum(by_hand) / 3)
    assert apart[0]["smaller_in"] == sum(value < 0 for value in by_hand)
    with pytest.raises(InputError, match=r"against 'max_min_fairnes'.*did you mean"):
        found.paired("max_min_fairnes")
    with pytest.raises(InputError, match=r"figures: expected .* found 'jct'"):
        found.paired(figures=["jct"])


def test_a_wrong_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("arivals,model\n0,A3C\n")
    scenario = cluster.Scenario(trace=tmp_path / "jobs.csv", cluster="v100=2,k80=3")
    for call in (cluster.round_lengths, cluster.type_mixes, cluster.relative_costs):
        with pytest.raises(InputError, match=r"jobs\.csv:1: not a trace that is known"):
            call(scenario)
