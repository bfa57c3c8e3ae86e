"""A market that is solved by prices is worth what its whole program says, and keeps its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.cluster.optimise import market_prices
from dovetail.cluster.optimise.market import Around, Market, MarketOutcome
from dovetail.cluster.optimise.market_choices import Bidders
from dovetail.cluster.optimise.market_prices import MarketPrices
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import DovetailError
from dovetail.solve import NoAnswerError

CLOSE = 1e-7  # of what there is to gain


def drawn(
    seed: int, jobs: int, types: int, kinds: int, scarce: float, spread: float = 1.0, alike: bool = False
) -> Market:
    """Some do not run on a type, or on none, or are wider than any; some are done, and some promises cannot be kept."""
    generator = np.random.default_rng(seed)
    rates = generator.uniform(0.1, 1.0, (kinds, types)) * (generator.random((kinds, types)) > 0.2)
    if seed % 3 == 0:
        rates = np.ceil(rates * 4) / 4
    kind, one = np.arange(jobs) % kinds, np.ones(jobs)
    steps = one * 2.0 if alike else np.exp(generator.uniform(-3.0, 3.0, jobs))
    progress = 0.0 * one if alike else generator.choice([0.0, 0.001, 0.1, 0.3, 0.99, 1.0], jobs)
    gain = rates[kind] / steps[:, None]
    whole_s = 2400.0 * steps * (1.0 if alike else generator.uniform(0.5, 2.0, jobs))
    left_s = whole_s * (1 - progress) * spread + 20_000.0 * (1 - spread)
    left_s *= one if alike else generator.choice([1.0, 1.0, 0.0], jobs)
    width = generator.choice([1, 1, 2, 4, 64], kinds)[kind]
    return Market(
        width=width,
        counts=np.maximum(generator.poisson(scarce * jobs / types, types), int(seed % 5 > 0)),
        weight=one if alike else generator.choice([1.0, 5.0], jobs),
        progress=progress,
        gain=gain,
        left_s=left_s,
        saves_s=gain * whole_s[:, None],
        must_save_s=left_s * (0.3 if alike else generator.choice([0.0, 0.1, 0.5, 1.0], jobs)),
        late_costs=one / jobs * (1e-3 if alike else generator.choice([1e-5, 1e-3, 0.1], jobs)),
        longest_costs=float(generator.choice([1e-7, 1e-4, 0.02, 1.0, 1e6])),
    )


def race(seed: int, jobs: int, types: int, scarce: float) -> Market:
    """Many are as long as each other, about: what the longest has left is what most of them must keep up with."""
    generator = np.random.default_rng(seed)
    left_s, progress = generator.uniform(5000.0, 7000.0, jobs), generator.choice([0.0, 0.1, 0.9], jobs)
    gain = (1 - progress[:, None]) * generator.uniform(0.1, 1.5, (jobs, types))
    slower = generator.choice([1.0, 1.0, 1.5], jobs)
    whole_s = left_s / (1 - progress) / slower
    return Market(
        width=generator.choice([1, 2], jobs),
        counts=1 + generator.poisson(scarce * jobs / types, types),
        weight=generator.choice([1.0, 5.0], jobs),
        progress=progress,
        gain=gain,
        left_s=left_s,
        saves_s=gain * whole_s[:, None],
        must_save_s=left_s * generator.choice([0.0, 0.1], jobs),
        late_costs=np.full(jobs, 1e-3 / jobs),
        longest_costs=float(generator.choice([1e-4, 1e-3, 0.02])),
    )


def assert_as_good(found: tuple[Floats, float, Floats], market: Market) -> None:
    """As the whole program, where a sum of all that can be gained is the measure."""
    share, value, missing_s = found
    best = market.solve()[1]
    bidders = Bidders(market)
    saves_s = float(np.where(market.able, market.saves_s, 0.0).max(initial=1.0))
    assert value == pytest.approx(best, rel=1e-12, abs=CLOSE * (bidders.bids().sum() + market.longest_costs * saves_s))
    assert (market.width @ share <= market.counts + 1e-7).all()
    assert (share.sum(axis=1) <= 1 + 1e-7).all()
    assert (share >= -1e-9).all()
    assert (share[~market.able] == 0).all()
    assert (market.progress + (market.gain * share).sum(axis=1) <= 1 + 1e-7).all()
    saved_s = (market.saves_s * share).sum(axis=1)
    assert missing_s == pytest.approx(np.maximum(market.must_save_s - saved_s, 0.0), abs=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    jobs=st.integers(1, 60),
    types=st.sampled_from([1, 2, 3, 8]),
    kinds=st.sampled_from([1, 3, 26, 60]),
    scarce=st.sampled_from([0.03, 0.2, 0.8, 3.0]),
    spread=st.sampled_from([1.0, 0.01]),
    alike=st.booleans(),
)
@example(4263420, 23, 1, 1, 0.2, 0.01, True)  # primal simplex gives up
@example(1393, 25, 8, 3, 3.0, 1.0, True)  # whatever it is, unless numbers are scaled
def test_prices_are_worth_what_the_whole_program_is(
    seed: int, jobs: int, types: int, kinds: int, scarce: float, spread: float, alike: bool
) -> None:
    """Afresh, and from the prices of a market that was a little different."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FEW", 0), ("NEAREST", 1), ("SAMPLE", 4)):
            patch.setattr(market_prices, name, value)
        market, prices = drawn(seed, jobs, types, kinds, scarce, spread, alike), MarketPrices()
        assert_as_good(prices.solve(market), market)
        later = replace(market, left_s=market.left_s * 0.97, must_save_s=market.must_save_s * 0.97)
        assert_as_good(prices.solve(later), later)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    jobs=st.integers(10, 60),
    types=st.sampled_from([1, 2, 3, 8]),
    scarce=st.sampled_from([0.2, 0.5, 0.8]),
)
def test_many_long_jobs_keep_up_with_the_longest(seed: int, jobs: int, types: int, scarce: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FEW", 0), ("NEAREST", 1), ("SAMPLE", 4)):
            patch.setattr(market_prices, name, value)
        market, prices = race(seed, jobs, types, scarce), MarketPrices()
        assert_as_good(prices.solve(market), market)
        later = replace(market, left_s=market.left_s - 100.0)
        assert_as_good(prices.solve(later), later)


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs every program held."""
    solve, jobs = Market.solve_within, []

    def counted(market: Market, around: Around | None) -> tuple[Floats, float, Floats, MarketOutcome]:
        jobs.append(len(market.width))
        return solve(market, around)

    monkeypatch.setattr(Market, "solve_within", counted)
    return jobs


@pytest.mark.parametrize("kinds", [3000, 26])
@pytest.mark.parametrize("types", [1, 3])
@pytest.mark.parametrize("scarce", [0.02, 0.3, 1.5])
def test_most_of_many_jobs_are_in_no_program(kinds: int, types: int, scarce: float, undecided: list[int]) -> None:
    market, prices = drawn(1, 3000, types, kinds, scarce), MarketPrices()
    found = prices.solve(market)
    later = replace(market, left_s=market.left_s * 0.99, must_save_s=market.must_save_s * 0.99)
    begin = len(undecided)
    found_later = prices.solve(later)
    assert max(undecided) < 1500
    assert max(undecided[begin:]) < 600
    assert_as_good(found, market)
    assert_as_good(found_later, later)


def test_prices_of_another_cluster_do_no_harm() -> None:
    prices = MarketPrices()
    for seed, types, scarce in ((1, 3, 0.01), (2, 3, 3.0), (3, 3, 0.1), (4, 2, 0.1)):
        market = drawn(seed, 700, types, 700, scarce)
        assert_as_good(prices.solve(market), market)


def test_jobs_that_are_the_longest_together_run_as_fast_as_they_can() -> None:
    """Each can make all of its progress, and will take longer than that."""
    one = np.ones(600)
    market = replace(
        race(1, 600, 1, 3.0), width=one.astype(int), progress=one / 2, gain=one[:, None], left_s=3000 * one
    )
    market = replace(market, saves_s=2000 * one[:, None], must_save_s=0 * one, longest_costs=0.02)
    found = MarketPrices().solve(market)
    assert_as_good(found, market)
    assert found[0].sum() == pytest.approx(300)


def test_few_jobs_are_one_program() -> None:
    market = drawn(1, market_prices.FEW, 3, 26, 0.3)
    share, value, missing_s = market.solve()
    again = MarketPrices().solve(market)
    assert (again[0] == share).all()
    assert again[1] == value
    assert (again[2] == missing_s).all()


def test_without_prices_the_whole_program_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NoAnswerError("numbers of too different size")

    market = drawn(1, 600, 2, 600, 0.3)
    value = market.solve()[1]
    for run in (fails, lambda *_: np.ones(market.gain.shape)):  # the latter is more than there is
        monkeypatch.setattr(market_prices._Search, "run", run)
        monkeypatch.setattr(market_prices._Search, "guess", lambda _: None)
        assert MarketPrices().solve(market)[1] == value


def test_what_is_worth_no_number_is_left_to_the_whole_program() -> None:
    market = race(1, 600, 2, 0.3)
    market = replace(market, late_costs=np.where(np.arange(600) == 7, np.inf, market.late_costs))
    market = replace(market, must_save_s=market.left_s)
    with pytest.raises(DovetailError):
        MarketPrices().solve(market)


def test_without_the_whole_program_there_are_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Market) -> None:
        raise NoAnswerError("numbers of too different size")

    for jobs in (1, 40, 400):
        market = drawn(2, jobs, 3, jobs, 0.3)
        with monkeypatch.context() as patch:
            patch.setattr(Market, "solve", fails)
            found = MarketPrices().solve(market)
        assert_as_good(found, market)
