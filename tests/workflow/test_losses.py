"""The prices of waiting, by hand and against a queue that is simulated."""

from __future__ import annotations

import random

import pytest

from dovetail.workflow.policies.arrival_rates import ArrivalRate
from dovetail.workflow.policies.losses import away_loss, copy_gain, elsewhere_loss, mmc_wait_s


def erlang_c_wait_s(servers: int, load: float, size_s: float) -> float:
    """The mean wait in an M/M/c queue, exactly."""
    term = total = 1.0
    for k in range(1, servers):
        term *= load / k
        total += term
    last = term * load / servers * servers / (servers - load)
    return last / (total + last) * size_s / (servers - load)


@pytest.mark.parametrize("servers", [1, 2, 4, 16])
@pytest.mark.parametrize("busy", [0.3, 0.6, 0.9])
def test_the_wait_in_a_calm_queue_is_near_the_exact_one(servers: int, busy: float) -> None:
    exact = erlang_c_wait_s(servers, busy * servers, 10.0)
    assert mmc_wait_s(servers, busy * servers, 10.0) == pytest.approx(exact, rel=0.35, abs=0.15)


def simulated_loss(load: float, away_s: float, seed: int) -> float:
    """Request-seconds that an outage adds to a queue of one server with tasks of 1 s, with the same arrivals."""
    rng = random.Random(seed)
    arrivals, t = [], 0.0
    while t < 2000:
        t += rng.expovariate(load)
        arrivals.append(t)

    def waits(free_s: float) -> float:
        total = 0.0
        for at_s in arrivals:
            begin_s = max(at_s, free_s)
            total += begin_s - at_s
            free_s = begin_s + 1.0
        return total

    return waits(away_s) - waits(0.0)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_the_loss_of_the_only_window_is_what_a_simulated_queue_loses(load: float) -> None:
    found = sum(simulated_loss(load, 25.0, seed) for seed in range(200)) / 200
    fluid = away_loss(0, load, 1.0, load, 1.0, 0.0, 25.0)
    assert fluid == pytest.approx(found, rel=0.25)


def test_who_can_spare_a_window_loses_little() -> None:
    spare = away_loss(0, 0.05, 10.0, 0.5, 4.0, 3.0, 30.0)
    only = away_loss(0, 0.05, 10.0, 0.5, 1.0, 0.0, 30.0)
    assert 0 <= spare < 0.5 < 10 < only
    assert away_loss(3, 0.05, 10.0, 0.5, 4.0, 3.0, 30.0) <= spare + 3 * 30.0


def test_a_model_that_nobody_asks_for_loses_nothing() -> None:
    assert away_loss(0, 0.0, 10.0, 0.0, 1.0, 0.0, 30.0) == 0
    assert elsewhere_loss(0, 0.0, 10.0, 0.0, 1.0, 12.0, 100.0) == 0


def test_who_can_go_elsewhere_loses_a_set_up_if_it_is_asked_for() -> None:
    busy = elsewhere_loss(0, 0.1, 1.0, 0.1, 1.0, 12.0, 1000.0)
    assert busy == pytest.approx(12 + 1.2 * 12 / 2 + 1.2**2 / (2 * 0.9))
    assert elsewhere_loss(2, 0.1, 1.0, 0.1, 1.0, 12.0, 1000.0) == pytest.approx(busy + 2 * 12)
    assert elsewhere_loss(0, 0.001, 1.0, 0.001, 1.0, 12.0, 10.0) < 0.02 * 12


def test_a_copy_is_worth_more_the_longer_the_queue_and_costs_what_it_comes_later_than_its_end() -> None:
    gains = [copy_gain(n, 10.0, 0.5, 1.0, 5.0, 12.0, 1.0) for n in (1, 2, 5, 20)]
    assert gains[0] < gains[1] < gains[2] < gains[3]
    assert copy_gain(2, 1.0, 0.0, 1.0, 1.0, 12.0, 1.0) == (1.0 + 2 * 1.0) - 12.0, "its queue is gone after 3 s"
    just_gone, just_not = (copy_gain(2, 1.0, 0.0, 1.0, 1.0, 3.0 + by, 1.0) for by in (1e-9, -1e-9))
    assert just_gone == pytest.approx(just_not, abs=1e-6)


def test_rates_follow_arrivals_and_silence() -> None:
    rate = ArrivalRate()
    rate.add(0.0, 5.0)
    assert rate.per_s(10.0) == 0.0, "one arrival is no rate"
    for i in range(1, 400):
        rate.add(2.0 * i, 5.0)
    assert rate.per_s(800.0) == pytest.approx(0.5, rel=0.05)
    assert rate.windows(800.0) == pytest.approx(2.5, rel=0.05)
    assert rate.per_s(1800.0) < 0.1
    assert rate.doubt == pytest.approx((1 / 100 + 1 / 400) ** 0.5)
