"""Shares of many unlike jobs are found by prices: they are as good as those of the program over all classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from dovetail.cluster.optimise import price_search, share_lp, unlike
from dovetail.cluster.optimise.classes import apart
from dovetail.cluster.optimise.nash_without import WithoutOne
from dovetail.cluster.optimise.price_search import NoPricesError, PriceSearch
from dovetail.cluster.optimise.prices import PricedShares
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import proportional_rate
from dovetail.cluster.policies import elastic_throughput, make, strategy_proof
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.testing.cluster.problems import random_problem

Ways = Callable[[str, Problem, dict[str, Any]], tuple[Allocation, Allocation]]
LEAST = ("finish_time_fairness_perf", "min_total_duration_perf")


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """An allocation by prices, and one by the program."""

    def allocate(name: str, problem: Problem, options: dict[str, Any]) -> tuple[Allocation, Allocation]:
        monkeypatch.setattr(unlike, "MANY", -1)
        by_prices = make(name, options).allocate(problem)
        monkeypatch.setattr(unlike, "MANY", 10**9)
        return by_prices, make(name, options).allocate(problem)

    return allocate


def drawn(seed: int, **more: Any) -> Problem:
    """Up to 100 jobs on up to five types: ties in every third, alike jobs in every fourth, weights unlike in some."""
    generator = np.random.default_rng(seed)
    types, jobs = int(generator.integers(1, 6)), int(generator.integers(1, 100))
    counts = generator.integers(0, max(jobs // types, 2) * int(generator.integers(1, 4)), types)
    counts[-1] = max(counts[-1], 1)
    problem = random_problem(
        generator,
        jobs=jobs,
        kinds=jobs if seed % 4 else max(jobs // 3, 1),
        counts=tuple(counts.tolist()),
        widths=(1, 1, 2, 4),
        weights=(1.0, 1.0, 5.0) if seed % 5 else (1.0, 1000.0, 1e-3),
        unfit=0.15,
        **more,
    )
    if seed % 3 == 0:
        problem.rates[:] = np.ceil(problem.rates / 25) * 25 * (problem.rates > 0)
    return problem


def part(problem: Problem, jobs: Ints) -> Problem:
    """The same problem with these jobs only."""
    names = ("ids", "kind", "width", "weight", "steps_left", "age_s", "deadline_s")
    return replace(problem, **{name: getattr(problem, name)[jobs] for name in names})


def levels(problem: Problem, allocation: Allocation) -> Floats:
    rates = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed)
    normal = proportional_rate(rates, problem.counts)
    return allocation.throughput(problem) / np.where(normal > 0, normal, 1.0)


def check_limits(problem: Problem, share: Floats) -> None:
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert (problem.width @ share <= problem.counts + 1e-9).all()
    assert not share[np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed) == 0].any()


@pytest.mark.parametrize(
    "name",
    [
        "max_min_fairness_perf",
        "max_sum_throughput_perf",
        "max_sum_throughput_normalized_by_cost_perf",
        "finish_time_fairness_perf",
        "min_total_duration_perf",
    ],
)
def test_both_objectives_are_those_of_the_program(name: str, both: Ways) -> None:
    for seed in range(40):
        problem = drawn(seed)
        found, expected = both(name, problem, {})
        check_limits(problem, found.share)
        if expected.value is None:
            assert found.value is None
            continue
        # The program may hold demands with a slack of 1e-7, and small shares are rounded: prices are never worse.
        assert found.value is not None
        better = found.value - expected.value
        assert (-better if name in LEAST else better) >= -2e-8 * abs(expected.value), seed
        assert found.value == pytest.approx(expected.value, rel=1e-5), seed
        assert levels(problem, found).sum() == pytest.approx(levels(problem, expected).sum(), rel=5e-6), seed


def test_nash_welfare_cannot_grow_in_any_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """What percent rates gain, summed by weight, over all shares there are: at the largest product none gain more."""
    monkeypatch.setattr(unlike, "MANY", -1)
    for seed in range(25):
        problem = drawn(seed)
        found = make("nash_welfare").allocate(problem)
        check_limits(problem, found.share)
        rates = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed)
        runs = rates.max(axis=1) > 0
        if not runs.any():
            continue
        got = found.throughput(problem)
        assert (got[runs] > 0).all(), seed
        gain = np.where(runs, problem.weight / np.where(runs, got, 1.0), 0.0)[:, None] * rates
        types, jobs = len(problem.counts), problem.jobs
        use = np.kron(problem.width.astype(float), np.eye(types))
        time = np.kron(np.eye(jobs), np.ones(types))
        limits = np.concatenate([problem.counts, np.ones(jobs)])
        best = linprog(-gain.ravel() / gain.max(), A_ub=np.vstack([use, time]), b_ub=limits)
        assert -best.fun * gain.max() <= problem.weight[runs].sum() * (1 + 1e-5), seed
        assert found.value == pytest.approx(problem.weight[runs] @ np.log(levels(problem, found)[runs]), rel=1e-4)


def test_deadlines_are_kept_for_as_much_as_the_program_keeps_them(both: Ways) -> None:
    name, kept = "max_sum_throughput_normalized_by_cost_perf_SLOs", 0
    for seed in range(30):
        problem = drawn(seed, deadlines=0.3)
        problem.deadline_s *= 30.0
        found, expected = both(name, problem, {})
        check_limits(problem, found.share)
        assert found.value == pytest.approx(expected.value, rel=1e-7), seed
        assert found.why == expected.why
        due = np.flatnonzero(np.isfinite(problem.deadline_s) & (problem.deadline_s > 0))
        need = (problem.steps_left[due] / problem.deadline_s[due]) * (1 - 1e-7)
        met = found.throughput(problem)[due] >= need
        if "cannot be kept" not in found.why:
            assert met.all(), seed
        kept += int(met.sum())
    assert kept > 50


@pytest.mark.parametrize("inner", ["", "fairness", "fifo", "entity1=fifo"])
def test_water_filling_has_the_levels_of_the_program(inner: str, both: Ways) -> None:
    for seed in [1, 2, 3, 4, 6, 8, 9, 11, 12, 14, 16, 17, 18, 19, 21]:
        problem = drawn(seed, **({"entities": 3} if inner else {}))
        found, expected = both("max_min_fairness_water_filling_perf", problem, {"inner": inner} if inner else {})
        check_limits(problem, found.share)
        # Some sixty steps of the program add up what each is off.
        assert levels(problem, found) == pytest.approx(levels(problem, expected), rel=2e-4, abs=2e-5), seed
        assert found.value == pytest.approx(expected.value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "max_min_fairness_perf",
        "max_sum_throughput_perf",
        "max_min_fairness_water_filling_perf",
        "min_total_duration_perf",
    ],
)
def test_prices_of_the_last_call_change_nothing_but_the_time(name: str) -> None:
    """Jobs come and go, and others' rates are learned: the values are those of a policy that sees them first."""
    generator = np.random.default_rng(3)
    problem = random_problem(
        generator, jobs=1200, kinds=1200, counts=(240, 160, 280), widths=(1, 2), weights=(1.0, 5.0)
    )
    problem = replace(problem, kind=np.arange(1200), width=np.ones(1200, dtype=np.int64))
    warm = make(name)
    for _ in range(5):
        found, expected = warm.allocate(problem), make(name).allocate(problem)
        check_limits(problem, found.share)
        assert found.value == pytest.approx(expected.value, rel=1e-9)
        assert levels(problem, found).sum() == pytest.approx(levels(problem, expected).sum(), rel=1e-4)
        again = make(name).allocate(problem)
        assert (again.share == expected.share).all()
        assert again.why == expected.why
        change = generator.integers(0, 1200, 5)
        rates = problem.rates.copy()
        rates[change] *= generator.uniform(0.5, 2.0, (5, 3))
        problem = replace(problem, rates=rates, ids=np.append(problem.ids[3:], problem.ids[-1] + [1, 2, 3]))


@pytest.mark.parametrize("jobs", [300, 10_000])
def test_nash_welfare_of_one_type_is_what_weights_pay_for(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its weight over one price, all of its time at most: found by prices, whatever rounding adds up to."""

    def none(self: ShareProgram, *given: Any) -> None:
        raise AssertionError("the program is not needed")

    monkeypatch.setattr(ShareProgram, "load", none)
    generator = np.random.default_rng(2)
    problem = random_problem(
        generator, jobs=jobs, kinds=jobs, counts=(3 * jobs // 4,), widths=(1, 1, 2), weights=(1.0, 1.0, 5.0)
    )
    share = make("nash_welfare").allocate(problem).share[:, 0]
    low, high = 0.0, 1e3
    for _ in range(200):
        price = (low + high) / 2
        used = problem.width @ np.minimum(problem.weight / (price * problem.width), 1.0)
        low, high = (price, high) if used > problem.counts[0] else (low, price)
    assert share == pytest.approx(np.minimum(problem.weight / (price * problem.width), 1.0), abs=1e-6)


@pytest.mark.parametrize("name", ["finish_time_fairness", "min_total_duration", "max_sum_throughput_perf"])
def test_of_one_type_few_jobs_are_undecided_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that tell no types apart are all but equally good, and a few that were here before count a little more."""
    generator, asked = np.random.default_rng(0), []
    step = PriceSearch._step

    def counted(self: PriceSearch, price: Floats, undecided: int, normal: bool) -> Any:
        asked.append(min(undecided, self.blocks))
        return step(self, price, undecided, normal)

    monkeypatch.setattr(PriceSearch, "_step", counted)
    problem = random_problem(generator, jobs=2000, kinds=2000, counts=(1500,), widths=(1, 2))
    problem = replace(problem, kind=np.arange(2000), width=np.ones(2000, dtype=np.int64))
    warm = make(name)
    for _ in range(3):
        found = warm.allocate(problem)
        check_limits(problem, found.share)
        assert problem.width @ found.share == pytest.approx(problem.counts)
        problem = replace(problem, ids=np.append(problem.ids[3:], problem.ids[-1] + [1, 2, 3]))
    assert max(asked) <= 400


def test_prices_of_the_last_time_that_lead_to_none_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from which no prices are found is forgotten, and the search begins anew; without one it ends."""
    calls: list[bool] = []
    shares = unlike.UnlikeShares()

    def by_prices() -> Allocation:
        calls.append(bool(shares._start))
        if shares._start or len(calls) > 2:
            raise NoPricesError("there are none")
        return Allocation(share=np.zeros((1, 1)))

    shares._start = {"level 1": np.ones(2)}
    assert shares.anew(by_prices).share.shape == (1, 1)
    assert calls == [True, False]
    with pytest.raises(NoPricesError):
        shares.anew(by_prices)
    assert calls == [True, False, False]


def test_a_search_for_prices_of_the_next_order_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight types, and jobs that came and went: searches within searches are counted, and not without end."""
    generator = np.random.default_rng(0)
    problem = random_problem(generator, jobs=600, kinds=600, counts=(56,) * 8, widths=(1, 1, 2))
    problem = replace(problem, kind=np.arange(600), width=np.ones(600, dtype=np.int64))
    nested = []
    among = PriceSearch._among_free

    def counted(self: PriceSearch, price: Floats) -> Any:
        nested.append(self.tries[0])
        return among(self, price)

    monkeypatch.setattr(PriceSearch, "_among_free", counted)
    warm = make("min_total_duration_perf")
    for _ in range(3):
        found, expected = warm.allocate(problem), make("min_total_duration_perf").allocate(problem)
        check_limits(problem, found.share)
        assert found.value == pytest.approx(expected.value, rel=1e-8)
        rates = problem.rates.copy()
        rates[:3] *= generator.uniform(0.5, 2.0, (3, 8))
        problem = replace(problem, rates=rates, ids=np.append(problem.ids[3:], problem.ids[-1] + [1, 2, 3]))
    assert all(0 <= left <= price_search.TRIES for left in nested)


def test_few_divide_their_time_between_choices() -> None:
    """Of a thousand unlike jobs all but as many as there are types have one choice: a type, or two to reach a level."""
    generator = np.random.default_rng(0)
    level = np.vstack([np.zeros(1000), generator.uniform(0.2, 2.0, (3, 1000))])
    shares = PricedShares(level, np.ones(1000), np.array([100.0, 200.0, 150.0]))
    shares.demand(np.zeros(1000))
    shares.best(level)
    time = shares.settle(level)
    assert time.sum(axis=1) == pytest.approx([100.0, 200.0, 150.0])
    assert np.count_nonzero((time > 1e-9).sum(axis=0) > 1) + np.count_nonzero(abs(time.sum(axis=0) - 0.5) < 0.499) <= 3


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        (1144, "max_min_fairness_water_filling_perf"),
        (1117, "finish_time_fairness_perf"),
        (1165, "max_sum_throughput_perf"),
    ],
)
def test_where_the_program_has_no_answer_prices_have(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's rates may differ by 1e11, which is more than the solver bears."""
    generator = np.random.default_rng(seed)
    jobs, types = int(generator.integers(3, 60)), int(generator.integers(2, 4))
    counts = tuple(generator.integers(1, 60, types).tolist())
    shape: dict[str, Any] = {"jobs": jobs, "kinds": jobs, "counts": counts, "widths": (1, 1, 2), "unfit": 0.1}
    problem = random_problem(generator, **shape)
    problem.rates[:] *= 10.0 ** generator.integers(-6, 7, problem.rates.shape)
    found = make(name).allocate(problem)
    check_limits(problem, found.share)
    monkeypatch.setattr(unlike, "MANY", -1)
    assert found.value == pytest.approx(make(name).allocate(problem).value, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "max_min_fairness_packed",
        "min_total_duration_packed",
        "finish_time_fairness_packed",
        "max_min_fairness_water_filling_packed",
    ],
)
def test_pairs_that_pay_are_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call after call, jobs leave and rates are learned: the objectives are those of a program with all pairs."""
    for seed in range(12):
        problem, generator = drawn(seed, pairs=True), np.random.default_rng(seed)
        priced, every = make(name), make(name)
        for _ in range(3):
            monkeypatch.setattr(share_lp, "FEW_PAIRED", 0)
            found = priced.allocate(problem)
            monkeypatch.setattr(share_lp, "FEW_PAIRED", 10**9)
            expected = every.allocate(problem)
            assert not found.fault(problem)
            assert found.value == pytest.approx(expected.value, rel=1e-5, abs=1e-9), seed
            assert levels(problem, found).sum() == pytest.approx(levels(problem, expected).sum(), rel=1e-6), seed
            rates = problem.rates.copy()
            rates[generator.integers(0, len(rates))] *= generator.uniform(0.5, 2.0, rates.shape[1])
            problem = replace(part(problem, np.sort(generator.permutation(problem.jobs)[2:])), rates=rates)
            if not problem.jobs:
                break


def test_pairs_that_pay_are_enough_where_there_are_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some can all be kept, some only with pairs that did not pay before, and of some not even all pairs keep all."""
    name, missed = "max_sum_throughput_normalized_by_cost_packed_SLOs", 0
    for seed in range(16):
        problem, generator = drawn(seed, pairs=True, deadlines=0.3), np.random.default_rng(seed)
        problem.deadline_s *= (30.0, 10.0, 3.0)[seed % 3]
        priced, every = make(name), make(name)
        for _ in range(2):
            monkeypatch.setattr(share_lp, "FEW_PAIRED", 0)
            found = priced.allocate(problem)
            monkeypatch.setattr(share_lp, "FEW_PAIRED", 10**9)
            expected = every.allocate(problem)
            assert not found.fault(problem)
            assert found.value == pytest.approx(expected.value, rel=1e-6), seed
            assert found.why == expected.why
            assert levels(problem, found).sum() == pytest.approx(levels(problem, expected).sum(), rel=1e-6), seed
            missed += "cannot be kept" in found.why
            problem = part(problem, np.sort(generator.permutation(problem.jobs)[2:]))
            if not problem.jobs:
                break
    assert 0 < missed < 25


def test_deadlines_that_take_other_pairs_than_money_does_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is worth next to nothing is in no pair that pays, and keeps its deadline only beside others."""
    monkeypatch.setattr(share_lp, "FEW_PAIRED", 0)
    generator = np.random.default_rng(1)
    problem = random_problem(generator, jobs=40, kinds=40, counts=(8, 8), pairs=True)
    problem = replace(problem, kind=np.arange(40), deadline_s=np.full(40, np.inf))
    assert problem.pair_rates is not None
    problem.rates[:20] *= 1e-3
    problem.pair_rates[:20] *= 1e-3
    problem.deadline_s[:20] = problem.steps_left[:20] / problem.speed[:20].max(axis=1) / 0.5
    found = make("max_sum_throughput_normalized_by_cost_packed_SLOs").allocate(problem)
    assert "cannot be kept" not in found.why
    need = problem.steps_left[:20] / problem.deadline_s[:20]
    assert (found.throughput(problem)[:20] >= need * (1 - 1e-6)).all()


def test_elastic_widths_by_prices_are_worth_as_much_as_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call after call, of models at three widths each: what is not proven to be the best says how far it may be."""
    for seed in range(20):
        generator = np.random.default_rng(seed)
        models, types = int(generator.integers(1, 40)), int(generator.integers(1, 4))
        counts, weights = tuple(generator.integers(0, 30, types).tolist()), (1.0, 1.0, 5.0)
        problem = random_problem(generator, jobs=60, kinds=3 * models, counts=counts, weights=weights, unfit=0.2)
        widths, scaled = np.tile([1, 2, 4], models), np.repeat(np.arange(3 * models).reshape(-1, 3), 3, axis=0)
        problem = replace(problem, scaled=scaled, kind_width=widths, width=widths[problem.kind])
        priced, counted = make("elastic_throughput"), make("elastic_throughput")
        for _ in range(3):
            monkeypatch.setattr(elastic_throughput, "FEW", -1)
            found = priced.allocate(problem)
            monkeypatch.setattr(elastic_throughput, "FEW", 10**9)
            expected = counted.allocate(problem)
            assert not found.fault(problem)
            assert found.kind is not None
            assert (widths[found.kind] @ found.share <= problem.counts).all()
            if expected.value is None:
                assert found.value is None
                continue
            assert found.value is not None
            lack = expected.value - found.value
            assert lack <= 1e-5 * expected.value or f"at most {lack:.2g} less" in found.why
            runs = found.share.max(axis=1) > 0
            got = found.throughput(problem)[runs]
            may = problem.rates[scaled[problem.kind[runs]]] * (widths[scaled[problem.kind[runs]]][:, :, None] <= counts)
            least = np.where(may > 0, may, np.inf).min(axis=(1, 2))
            assert problem.weight[runs] @ np.sqrt(got / least) == pytest.approx(found.value)
            monkeypatch.setattr(elastic_throughput, "FEW", -1)
            again = priced.allocate(problem)
            assert (again.share == found.share).all()  # nobody is moved for nothing
            problem = part(problem, np.sort(generator.permutation(problem.jobs)[5:]))


def test_a_price_that_is_noise_bounds_no_level() -> None:
    """The poorest leaves, and of its price only noise is left on others: the level is that of a policy without past."""
    for seed in (25, 85):
        problem, warm = drawn(seed, pairs=True), make("max_min_fairness_packed")
        while problem.jobs:
            found, afresh = warm.allocate(problem), make("max_min_fairness_packed").allocate(problem)
            assert found.value == (None if afresh.value is None else pytest.approx(afresh.value, rel=1e-7)), seed
            level = levels(problem, found) * problem.width / problem.weight
            problem = part(problem, np.delete(np.arange(problem.jobs), level.argmin()))


def test_a_start_is_left_as_it_was_where_no_prices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn(3)
    shares = unlike.UnlikeShares()
    shares.load(problem, apart(problem.jobs))
    ones = np.ones(len(problem.types))
    shares.most(1e6 * ones)
    before = shares._start["best"].copy()

    def none(self: PricedShares, gain: Floats) -> float:
        raise NoPricesError("there are none")

    monkeypatch.setattr(PricedShares, "best", none)
    with pytest.raises(NoPricesError):
        shares.most(1e6 * ones)
    assert shares._start["best"] == pytest.approx(before)


def test_a_strategy_proof_part_by_prices_is_hardly_less_than_the_part_kept(both: Ways) -> None:
    """Without one of n jobs prices would be lower by some part of 1/n, which is not counted."""
    for seed in range(2):
        generator = np.random.default_rng(seed)
        problem = random_problem(generator, jobs=30, kinds=30, counts=(6, 5, 8), widths=(1, 2), unfit=0.1)
        problem = replace(problem, kind=np.arange(30), width=np.ones(30, dtype=np.int64))
        found, exact = both("max_min_fairness_strategy_proof_perf", problem, {})
        check_limits(problem, found.share)
        runs = exact.throughput(problem) > 0
        part_of = found.throughput(problem)[runs] / exact.throughput(problem)[runs]
        assert part_of.max() <= 1 + 1e-3
        assert part_of.min() >= 1 - 3 / 30
        assert found.value == pytest.approx(exact.value, rel=3 / 30)


def test_what_strategy_proof_jobs_keep_is_the_same_by_prices_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All problems with one job less at once, each searched anew, and each by the program: the same parts."""
    together = 0
    for seed in range(4):
        generator = np.random.default_rng(seed)
        problem = random_problem(generator, jobs=40, kinds=9, counts=(6, 5, 8), widths=(1, 2), weights=(1.0, 5.0))
        found = make("max_min_fairness_strategy_proof_perf").allocate(problem)
        with monkeypatch.context() as patch:
            patch.setattr(strategy_proof, "either", lambda many, by_prices, by_program: by_program())
            program = make("max_min_fairness_strategy_proof_perf").allocate(problem)
        solve = WithoutOne._together

        def none(self: WithoutOne, solve: Any = solve) -> tuple[Floats, NDArray[np.bool_]]:
            nonlocal together
            levels, right = solve(self)
            together += int(np.count_nonzero(right))
            return levels, np.zeros_like(right)

        with monkeypatch.context() as patch:
            patch.setattr(WithoutOne, "_together", none)
            anew = make("max_min_fairness_strategy_proof_perf").allocate(problem)
        check_limits(problem, found.share)
        assert found.throughput(problem) == pytest.approx(anew.throughput(problem), rel=1e-7)
        assert found.throughput(problem) == pytest.approx(program.throughput(problem), rel=1e-4, abs=1e-4)
    assert together > 20
