"""The auction and the rules of thumb: what they promise, and that the exact planner is never worse."""

from __future__ import annotations

from math import inf

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.brute import evaluate, every_plan, random_pipeline
from dovetail.pipeline.plan import Infeasible, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.policies.auction import auction, bids, by_host
from dovetail.pipeline.policies.proportional import by_memory, by_speed, equal
from dovetail.pipeline.tables import Tables


def test_the_auction_is_optimal_for_its_order() -> None:
    """Every plan whose devices follow the order, brute force."""
    found_some = 0
    for seed in range(80):
        one = by_host(random_pipeline(seed, links=seed % 2 == 0))
        tables = Tables(one)
        allowed = [parts for parts in every_plan(tables) if [k for k, *_ in parts] == sorted(k for k, *_ in parts)]
        figures = [evaluate(tables, parts) for parts in allowed]
        figures = [f for f in figures if f.bottleneck_s < inf]
        fast, near = auction(one), auction(one, mode="latency")
        if not figures:
            assert isinstance(fast, Infeasible)
            continue
        found_some += 1
        assert isinstance(fast, Plan)
        assert isinstance(near, Plan)
        assert fast.bottleneck_s == min(f.bottleneck_s for f in figures)
        assert near.latency_s == pytest.approx(min(f.latency_s for f in figures))
        assert fast.throughput_items_s == pytest.approx(one.batch_size / fast.bottleneck_s if fast.bottleneck_s else 0)
    assert found_some > 20


def test_no_rule_of_thumb_beats_the_planner() -> None:
    for seed in range(80):
        pipeline = random_pipeline(seed)
        best = plan(pipeline)
        for rule in (equal, by_speed, by_memory, lambda p: auction(p, mode="greedy"), lambda p: auction(p, seed=1)):
            found = rule(pipeline)
            if isinstance(found, Plan) and found.bottleneck_s < inf:
                assert isinstance(best, Plan)
                assert best.bottleneck_s <= found.bottleneck_s


def test_bids_are_what_fits() -> None:
    pipeline = random_pipeline(5)
    host = pipeline.classes[0].hosts[0]
    tables = Tables(by_host(pipeline))
    expected = int((tables.compute[0] < inf).sum())
    assert len(bids(pipeline, host)) == expected
    assert all(bid.first % 2 == 1 for bid in bids(pipeline, host, chunk=2))
    with pytest.raises(InputError, match="'nobody' is not an available host"):
        bids(pipeline, "nobody")


def test_the_data_host_comes_first_and_pays_nothing() -> None:
    pipeline = random_pipeline(12)
    host = pipeline.classes[-1].hosts[-1]
    found = auction(pipeline, data_host=host)
    if isinstance(found, Plan) and any(stage.host == host for stage in found.stages):
        assert found.stages[0].host == host
    with pytest.raises(InputError, match="'nobody' is not an available host"):
        auction(pipeline, order=["nobody"])
