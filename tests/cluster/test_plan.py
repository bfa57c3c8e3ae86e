"""The cheapest and fewest accelerators: against all plans there are, with bounds, offers, seeds, and odd policies."""

from __future__ import annotations

import json
import re
from itertools import product, takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dovetail import cli, cluster
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.failures import RandomFailures
from dovetail.cluster.sweeps.late_jobs import LateJob, late_sentences
from dovetail.core.errors import InputError
from tests.cluster.test_profiles import write as write_profiles

RATES = [
    {"model": model, "type": kind, "width": width, "steps_per_s": rate}
    for model, kind, width, rate in (
        ("A", "fast", 1, 4.0),
        ("A", "slow", 1, 1.0), ("B", "fast", 1, 2.0), ("B", "slow", 1, 2.0), ("A", "fast", 2, 7.0),
    )
]  # fmt: skip


def _jobs(rng: Random, count: int, at_s: float = 0.0) -> list[dict[str, Any]]:
    rows = []
    for _ in range(count):
        model, width = rng.choice([("A", 1), ("B", 1), ("A", 2)])
        rows.append(
            {"arrival_s": at_s, "model": model, "width": width, "steps": rng.uniform(400, 20_000)}
            | ({"due_s": rng.uniform(2_000, 20_000)} if rng.random() < 0.6 else {})
        )
        at_s += rng.choice([0.0, 300.0, 1_800.0])
    return rows


def _figure(target: str, rows: list[dict[str, Any]], done: dict[int, float]) -> float:
    took = np.array([done[i] for i in range(len(rows))])
    if target == "mean":
        return float(took.mean())
    if target == "makespan":
        return float((took + [row["arrival_s"] for row in rows]).max() - rows[0]["arrival_s"])
    if target == "deadlines":
        due = [took[i] > row["due_s"] for i, row in enumerate(rows) if "due_s" in row]
        return float(np.mean(due))
    return float(np.quantile(took, float(target[1:]) / 100))


def _every_plan(rows: list[dict[str, Any]], offers: dict[str, Any], policy: Any, target: str) -> dict[Any, Any]:
    """Cost and figure of every plan on which all jobs can run, each from files of its own."""
    found = {}
    for counts in product(*(range(offer["count"] + 1) for offer in offers.values())):
        chosen = {name: offers[name] | {"count": n} for name, n in zip(offers, counts, strict=True) if n}
        if not any(offer.get("type", name) == "fast" and offer["count"] > 1 for name, offer in chosen.items()):
            continue  # nothing is wide enough
        loaded = cluster.load(cluster={"types": chosen}, trace=rows, throughputs=RATES)
        run = cluster.simulate(loaded, policy, journal=False)
        paid = 0.0
        for name, offer in chosen.items():
            all_day = offer["price_per_hour"] * offer["count"] * run.figures.makespan_s / 3600
            paid += run.outcome.cost_by_type[name] if offer.get("paid") == "held" else all_day
        found[counts] = (paid, _figure(target, rows, run.completion_s))
    return found


@pytest.mark.parametrize("policy", ["fifo_perf", "max_min_fairness_packed", "elastic_throughput"])
def test_bounds_of_jobs_whose_batch_grows(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "jobs.trace"
    job = "LM (batch size 5)\trun\tfolder\t--steps\t1\t2000000\t1\tgns\t1\t-1\t1418\t{}\n"
    path.write_text("".join(job.format(10 * i) for i in range(3)))
    loaded = cluster.load(cluster="v100=2,k80=1", trace=path)
    run = cluster.simulate(loaded, policy, journal=False)
    makespan_s = run.figures.makespan_s
    found = cluster.plan(loaded, policy, makespan=makespan_s, minimise="accelerators")
    assert found.plan is not None
    assert run.metrics["bound_makespan_s"] * 0.5 < found.alone["makespan"] <= makespan_s


def _limited(target: str, limit: float) -> dict[str, Any]:
    if target in ("p95", "mean", "makespan", "deadlines"):
        return {target: limit}
    return {"percentile": {float(target[1:]): limit}}


@pytest.mark.parametrize(("seed", "begins_s"), [*((seed, 0.0) for seed in range(5)), (3, 1e5), (4, 1e5)])
def test_against_all_plans(seed: int, begins_s: float) -> None:
    rng = Random(seed)
    rows = _jobs(rng, 6, begins_s)
    offers: dict[str, Any] = {
        "fast": {"count": 3, "price_per_hour": rng.uniform(1, 4), "paid": rng.choice(["always", "held"])},
        "slow": {"count": 2, "price_per_hour": rng.uniform(0.2, 1), "paid": rng.choice(["always", "held"])},
    }
    if seed % 2:
        spot = {
            "type": "fast",
            "count": 1,
            "price_per_hour": 0.5,
            "paid": "held",
            "failure_s": 8_000.0,
            "repair_s": 900.0,
        }
        offers["spot"] = spot
    policy = rng.choice(["max_min_fairness_perf", "fifo", "shortest_remaining", "min_total_duration_perf"])
    target = ("p95", "p50", "mean", "makespan", "deadlines", "p95")[seed]
    every = _every_plan(rows, offers, policy, target)
    limit = float(np.quantile([figure for _, figure in every.values()], rng.choice([0.2, 0.5])))
    kept = {counts: cost for counts, (cost, figure) in every.items() if figure <= limit}
    for minimise in ("cost", "accelerators"):
        found = cluster.plan(
            cluster.load(cluster={"types": offers}, trace=rows, throughputs=RATES),
            policy,
            minimise=minimise,
            **_limited(target, limit),
        )
        assert found.plan is not None
        best = min((cost if minimise == "cost" else sum(counts)) for counts, cost in kept.items())
        assert found.value(found.plan) == pytest.approx(best)
        assert found.exact
        assert found.least <= best * (1 + 1e-9)  # no plan is below what none can be below
        assert found.plan.figures[target] == pytest.approx(every[tuple(found.plan.counts.values())][1])
        for less in found.smaller:
            counts = tuple(less.counts.values())
            assert less.keeps == (counts in kept)
            if less.by == "bound" and counts in every:
                assert less.figures[target] <= every[counts][1] * (1 + 1e-9)


class Odd:
    """Runs two jobs at a time, but only one if there are more than two accelerators."""

    agnostic, packs, strict = False, False, True

    def allocate(self, problem: cluster.Problem) -> cluster.Allocation:
        share = np.zeros((problem.jobs, len(problem.types)))
        share[: 1 if problem.counts.sum() > 2 else int(problem.counts.sum()), 0] = 1.0
        return cluster.Allocation(share=share)


def test_more_may_be_worse() -> None:
    rows = [{"arrival_s": 0, "model": "B", "steps": 7_200} for _ in range(4)]
    jobs = cluster.load(cluster={"fast": 8}, trace=rows, throughputs=RATES)
    found = cluster.plan(jobs, Odd, p95=8_000, minimise="accelerators")
    assert found.plan is not None
    assert (found.plan.counts, found.exact) == ({"fast": 2}, True)
    few = cluster.plan(jobs, Odd, p95=8_000, minimise="accelerators", max_runs=2)  # all eight are tried first, and fail
    assert few.plan == found.plan
    assert not few.monotone
    assert any("more accelerators are not always better" in note for note in few.notes)
    none = cluster.plan(jobs, Odd, p95=8_000, minimise="accelerators", max_runs=1)
    assert (none.plan, none.exact) == (None, False)
    assert any("1 plans were simulated; others that could be better" in note for note in none.notes)


def test_few_runs_are_enough_where_more_is_better() -> None:
    rows = [{"arrival_s": 60.0 * i, "model": "B", "steps": 7_200} for i in range(40)]
    jobs = cluster.load(cluster={"fast": 32, "slow": 32}, trace=rows, throughputs=RATES)
    found = cluster.plan(jobs, "fifo_perf", p95=5_000, minimise="accelerators", max_runs=16)
    assert found.plan is not None
    assert found.runs <= 16
    assert found.plan.accelerators == 38  # with fewer, the first to wait come too early before one is free
    assert all(not less.keeps for less in found.smaller)
    assert "less: " in found.reason


def test_what_is_paid_always_and_while_held() -> None:
    rows = [{"arrival_s": 0, "model": "B", "steps": 7_200}, {"arrival_s": 7_200, "model": "B", "steps": 7_200}]
    offers: dict[str, Any] = {"types": {"fast": {"count": 1, "price_per_hour": 2.0}}}
    always = cluster.plan(cluster.load(cluster=offers, trace=rows, throughputs=RATES), "fifo", mean=4_000)
    offers["types"]["fast"]["paid"] = "held"
    held = cluster.plan(cluster.load(cluster=offers, trace=rows, throughputs=RATES), "fifo", mean=4_000)
    assert always.plan is not None
    assert held.plan is not None
    assert always.plan.cost == pytest.approx(2 * (7_200 + 3_610) / 3600)  # until all is done
    assert held.plan.cost == pytest.approx(2 * 2 * 3_610 / 3600)


def test_prices_over_time_are_paid_as_they_are() -> None:
    rows = [{"arrival_s": 0, "model": "B", "steps": 14_400}]
    prices = [{"time_s": 0, "type": "fast", "price": 1.0}, {"time_s": 3_600, "type": "fast", "price": 5.0}]
    for paid in ("always", "held"):
        offers = {"types": {"fast": {"count": 1, "paid": paid}}}
        jobs = cluster.load(cluster=offers, trace=rows, throughputs=RATES, prices=prices)
        found = cluster.plan(jobs, "fifo", mean=8_000)
        assert found.plan is not None
        assert found.plan.cost == pytest.approx(1.0 + 5.0 * 3_610 / 3600)
        assert cluster.simulate(jobs, "fifo", journal=False).figures.total_cost == pytest.approx(found.plan.cost)


def test_several_seeds_must_keep_it_by_the_upper_end() -> None:
    jobs = cluster.load(cluster="v100=3", jobs=8, jobs_per_hour=4)
    one = cluster.plan(jobs, p95=900_000, minimise="accelerators")
    several = cluster.plan(jobs, p95=900_000, minimise="accelerators", seeds=[0, 1, 2])
    assert several.seeds == [0, 1, 2]
    for each in several.tried:
        if np.isfinite(each.figures["p95"]):
            assert each.keeps == (each.figures["p95"] + each.plus_minus["p95"] <= 900_000)
    assert one.plan is not None
    assert one.plan.plus_minus == {}


def test_more_servers_do_not_change_the_failures_of_others() -> None:
    few, many = (
        {"types": {"a100": {"count": n, "failure_s": 9e5}, "l4": {"count": 2, "failure_s": 9e5}}} for n in (2, 5)
    )
    drawn = (takewhile(lambda each: each.at_s < 6e7, RandomFailures(parse_cluster(one), seed=3)) for one in (few, many))
    first, second = map(list, drawn)
    moved = [(each.at_s, each.until_s, tuple(d + 3 if d > 1 else d for d in each.devices)) for each in first]
    assert {(each.at_s, each.until_s, each.devices) for each in second} >= set(moved)


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({}, "give a limit: p95, p99, mean or makespan in seconds, percentile, or deadlines"),
        ({"p95": 0}, "p95 0: expected seconds, more than 0"),
        ({"deadlines": 2}, "deadlines 2: expected a share, 0 or more, at most 1"),
        ({"deadlines": 0.1}, "deadlines: no job has one"),
        ({"percentile": {120: 5}}, "percentile 120: expected 0 to 100"),
        ({"p95": 5, "max_runs": 0}, "max_runs 0: expected 1 or more"),
        ({"p95": 5, "minimise": "money"}, "minimise 'money': expected cost or accelerators"),
    ],
)
def test_what_cannot_be_asked(how: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        cluster.plan(cluster.load(cluster="v100=2", jobs=3), **how)


def test_offers_that_are_wrong() -> None:
    rows = [{"arrival_s": 0, "model": "B", "steps": 10}]
    with pytest.raises(InputError, match=r"types.fast.paid: .*'later'"):
        cluster.load(cluster={"types": {"fast": {"count": 1, "paid": "later"}}}, trace=rows, throughputs=RATES)
    with pytest.raises(InputError, match="no throughputs for the type 'fats'; did you mean 'fast'"):
        cluster.load(cluster={"types": {"spot": {"count": 1, "type": "fats"}}}, trace=rows, throughputs=RATES)
    many = {name: {"count": 200, "type": "fast"} for name in "abc"}
    loaded = cluster.load(cluster={"types": many}, trace=rows, throughputs=RATES)
    with pytest.raises(InputError, match="plans are too many to look through, expected at most 2,000,000"):
        cluster.plan(loaded, p95=5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, offers = tmp_path / "cluster.yaml", tmp_path / "offers.yaml"
    offers.write_text("types:\n  v100: {count: 2, paid: held}\n  cheap: {type: k80, count: 2, price_per_hour: 0.1}\n")
    words = ["cluster", "plan", "-c", str(offers), "--jobs", "10", "--p95", "400000", "--out", str(out)]
    assert cli.main([*words, "--percentile", "50=300000"]) == 0
    text = capsys.readouterr().out
    assert "the plan" in text
    assert "No plan can cost less than" in text
    assert "`held` offers while held (simulate's: all while held)" in text
    assert f"Written to {out}" in text
    assert cli.main([*words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["exact"]
    assert cli.main(["cluster", "simulate", "-c", str(out), "--jobs", "10", "--format", "json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["p95_jct_s"] == pytest.approx(told["plan"]["figures"]["p95"])
    assert run["cluster"] == {name: count for name, count in told["plan"]["counts"].items() if count}
    assert cli.main(["cluster", "plan", "-c", str(offers), "--jobs", "10", "--p95", "1"]) == 1
    assert "no plan (all there may be: no schedule has p95 below" in capsys.readouterr().out
    assert cli.main(["cluster", "plan", "-c", "v100=2", "--p95", "9", "--percentile", "x=1"]) == 2
    assert "--percentile x=1: expected numbers, as 90=3600" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["l4=4,a100=4", "a100=4,l4=4"])
@pytest.mark.parametrize("more", [[], ["--durations-on", "h100"]])
def test_a_plan_that_leaves_a_type_out_meets_the_same_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str, more: list[str]
) -> None:
    jobs, out = tmp_path / "jobs.csv", tmp_path / "cluster.yaml"
    model = "ResNet-50 (batch size 64)"
    jobs.write_text(f"arrival_s,model,duration_s\n0,{model},9000\n0,{model},7000\n0,{model},8000\n")
    words = ["-t", str(jobs), *more, "--format", "json"]
    plan = ["cluster", "plan", "-c", order, "--p95", "20000", "--minimise", "accelerators", "--out", str(out)]
    assert cli.main([*plan, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 in told["plan"]["counts"].values()
    assert any(f"durations are on {more[-1] if more else 'v100'}" in note for note in told["notes"])
    assert cli.main(["cluster", "simulate", "-c", str(out), *words]) == 0
    assert json.loads(capsys.readouterr().out)["p95_jct_s"] == pytest.approx(told["plan"]["figures"]["p95"])


def test_no_more_plans_are_simulated_than_asked_for() -> None:
    rows = [{"arrival_s": 60.0 * i, "model": "B", "steps": 7_200} for i in range(40)]
    jobs = cluster.load(cluster={"fast": 32, "slow": 32}, trace=rows, throughputs=RATES)
    for most in (1, 2, 3, 7):
        assert cluster.plan(jobs, "fifo_perf", p95=5_000, max_runs=most).runs <= most
    none = cluster.plan(jobs, "fifo_perf", p95=3_700, minimise="accelerators", max_runs=1)
    assert none.runs == 1


@pytest.mark.parametrize("seed", range(6))
def test_which_deadlines_are_missed_and_which_nothing_keeps(seed: int) -> None:
    rng = Random(seed)
    rows = [row | {"name": f"n{i}"} for i, row in enumerate(_jobs(rng, 8))]
    policy = rng.choice(["fifo_perf", "max_min_fairness_perf", "max_sum_throughput_normalized_by_cost_perf_SLOs"])
    loaded = cluster.load(cluster={"fast": 2, "slow": 1}, trace=rows, throughputs=RATES)
    share = rng.choice([0.0, 0.5, 1.0])
    found = cluster.plan(loaded, policy, deadlines=share, minimise="accelerators")
    rate = {("A", 1): 4.0, ("B", 1): 2.0, ("A", 2): 7.0}
    never = {
        i for i, row in enumerate(rows) if row["steps"] / rate[row["model"], row["width"]] > row.get("due_s", np.inf)
    }
    assert {each.job for each in found.late if each.impossible} == never
    assert all((each.least_s > each.due_s) == each.impossible for each in found.late)
    assert all(each.name == f"n{each.job}" for each in found.late)
    if found.plan is not None:
        counts = {name: count for name, count in found.plan.counts.items() if count}
        run = cluster.simulate(cluster.load(cluster=counts, trace=rows, throughputs=RATES), policy, journal=False)
        took = {each.job: each.took_s for each in found.late}
        assert took == {i: s for i, s in run.completion_s.items() if s > rows[i].get("due_s", np.inf)}
    told = cluster.simulate(loaded, policy, journal=False).notes
    assert any("cannot be kept by any schedule" in note for note in told) == bool(never)


def test_deadlines_that_nothing_keeps_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "jobs.csv"
    model, steps = "ResNet-18 (batch size 16)", 10_000_000
    trace.write_text(
        f"name,arrival_s,model,width,steps,due_s\nhopeless,0,{model},1,{steps},60\nlucky,0,{model},1,{steps},1e9\n"
    )
    words = ["cluster", "plan", "-c", "v100=2", "-t", str(trace), "--deadlines"]
    assert cli.main([*words, "0"]) == 1
    text = capsys.readouterr().out
    assert "no plan (all there may be: no schedule misses less than 50.0 %)" in text
    assert "1 deadline cannot be kept by any schedule: job 0 'hopeless' (due after 60 s, takes" in text
    assert "lucky" not in text
    assert cli.main([*words, "0.5", "--format", "json"]) == 0
    late = json.loads(capsys.readouterr().out)["late"]
    assert [(each["job"], each["impossible"]) for each in late] == [(0, True)]
    assert late[0]["took_s"] >= late[0]["least_s"] > late[0]["due_s"]
    assert cli.main(["cluster", "simulate", "-c", "v100=2", "-t", str(trace)]) == 0
    assert "note: 1 deadline cannot be kept by any schedule: job 0" in capsys.readouterr().out
    trace.write_text(trace.read_text().replace(f"{model},1,{steps},60", f"{model},4,{steps},60"))
    assert cli.main([*words, "0"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("missed <= 0.0 %: no plan")  # nothing was tried, and no head of a table says so
    assert "(due after 60 s, needs 4 accelerators of a type, of which there are at most 2)" in told


@pytest.mark.parametrize("by_s", [1000.0, 1.0, 0.25, 1e-3, 1e-6])
def test_what_a_deadline_is_missed_by_can_be_seen(by_s: float) -> None:
    late = LateJob(job=0, seed=0, due_s=7210.0 - by_s, least_s=7200.0, took_s=7210.0)
    (sentence,) = late_sentences([late])
    due, took = re.findall(r"(?:after|took) ([\d,.]+) s", sentence)
    assert due != took


def test_an_elastic_policy_needs_one_accelerator_for_a_wide_job() -> None:
    rows = [{"arrival_s": 0, "model": "A", "width": 2, "steps": 4_000}]
    jobs = cluster.load(cluster={"fast": 2, "slow": 2}, trace=rows, throughputs=RATES)
    found = cluster.plan(jobs, "elastic_throughput", p95=2_000, minimise="accelerators")
    assert found.plan is not None
    assert (found.plan.counts, found.least) == ({"fast": 1, "slow": 0}, 1.0)


def test_a_plan_for_jobs_with_profiles_can_be_simulated(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    rows = [{"arrival_s": 0, "model": "app (batch size 16)", "width": 2, "steps": 20.0}]
    how: dict[str, Any] = {"profiles": tmp_path, "trace": rows}
    found = cluster.plan(cluster.load(cluster="t=2", **how), "sia", p95=1e6, minimise="accelerators")
    assert found.plan is not None
    assert found.plan.counts == {"t": 1}
    run = cluster.simulate(cluster.load(cluster={"types": found.types}, **how), "sia", journal=False)
    assert run.metrics["p95_jct_s"] == pytest.approx(found.plan.figures["p95"])


def test_by_the_older_rules_it_does_not_matter_where_accelerators_are() -> None:
    """A wide job over servers with one accelerator each runs as in one server: no bound may say otherwise."""
    rates = [*RATES[:-1], RATES[-1] | {"spread": 1.0}]
    rows = [{"arrival_s": 0, "model": "A", "width": 2, "steps": 7_000}]
    jobs = cluster.load(cluster={"fast": 2}, trace=rows, throughputs=rates)
    found = cluster.plan(jobs, "fifo_perf", makespan=2_000, minimise="accelerators", compat="gavel")
    assert found.plan is not None
    assert found.plan.counts == {"fast": 2}


@pytest.mark.parametrize("how", [{}, {"ideal": True}, {"compat": "gavel"}])
def test_a_plan_on_which_a_job_can_never_run_fails(how: dict[str, Any]) -> None:
    rows = [{"arrival_s": 0, "model": "A", "width": width, "steps": 400} for width in (1, 1, 1, 2)]
    jobs = cluster.load(cluster={"fast": 2, "slow": 2}, trace=rows, throughputs=RATES)
    found = cluster.plan(jobs, "max_min_fairness_perf", percentile={50: 4_000}, minimise="accelerators", **how)
    assert found.plan is not None
    assert found.plan.counts == {"fast": 2, "slow": 0}
    (less,) = found.smaller
    assert (less.keeps, less.why, less.figures["p50"], less.cost) == (False, "some jobs can never run", np.inf, np.inf)


def test_a_plan_whose_servers_fail_too_often_fails_and_others_do_not() -> None:
    rows = [{"arrival_s": 0, "model": "B", "steps": 7_200}]
    spot = {"type": "fast", "count": 1, "price_per_hour": 0.1, "paid": "held", "failure_s": 9.0, "repair_s": 1.0}
    offers = {"types": {"fast": {"count": 1, "price_per_hour": 2.0}, "spot": spot}}
    jobs = cluster.load(cluster=offers, trace=rows, throughputs=RATES)
    found = cluster.plan(jobs, "fifo_perf", p95=4_000)
    assert found.plan is not None
    assert found.plan.counts == {"fast": 1, "spot": 0}
    assert "servers failed 100,001 times" in next(each.why for each in found.tried if not each.counts["fast"])


def test_prices_of_what_a_plan_leaves_out_change_nothing_in_it() -> None:
    """As for who then simulates the plan's own file."""
    rows = [{"arrival_s": 100.0 * i, "model": model, "steps": 2_000} for i, model in enumerate("ABA")]
    prices = [
        {"time_s": 0, "type": "fast", "price": 3.0},
        {"time_s": 0, "type": "slow", "price": 1.0},
        {"time_s": 1_000, "type": "slow", "price": 2.0},
    ]
    both = cluster.load(cluster={"fast": 1, "slow": 1}, trace=rows, throughputs=RATES, prices=prices)
    found = cluster.plan(both, "min_total_duration", mean=1e6, minimise="accelerators")
    alone = cluster.load(cluster={"fast": 1}, trace=rows, throughputs=RATES, prices=prices)
    run = cluster.simulate(alone, "min_total_duration", journal=False)
    tried = next(each for each in found.tried if each.counts == {"fast": 1, "slow": 0})
    assert tried.figures["mean"] == pytest.approx(run.metrics["avg_jct_s"])
    assert tried.cost == pytest.approx(3.0 * run.metrics["makespan_s"] / 3600)
