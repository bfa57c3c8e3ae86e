"""The auction and the rules of thumb: what they promise, and that the exact planner is never worse."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.pool import by_host
from dovetail.pipeline.inputs.problem import DeviceClass
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Infeasible, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.policies.auction import auction, bids
from dovetail.pipeline.policies.proportional import by_memory, by_speed, equal
from dovetail.testing.pipeline import evaluate, every_plan, random_pipeline


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
    """Input and output of the others travel over their links to it, and count."""
    paid = 0
    cases = [(p, host) for p in map(random_pipeline, range(60)) for c in p.classes for host in c.hosts]
    for pipeline, host in cases:
        one = by_host(pipeline)
        found = auction(pipeline, data_host=host)
        if not isinstance(found, Plan):
            continue
        assert all(stage.host != host for stage in found.stages[1:])
        d = next(k for k, c in enumerate(one.classes) if c.name == host)
        k = next(k for k, c in enumerate(one.classes) if c.name == found.stages[-1].host)
        expected = 0.0 if k == d else float(Tables(one).transfers[k, d, one.layers])
        assert found.stages[-1].send_s == expected
        assert found.enter_s == 0.0 or found.stages[0].host != host
        assert found.value == found.bottleneck_s
        paid += expected > 0
    assert paid > 5
    for wrong in ({"order": ["nobody"]}, {"data_host": "nobody"}):
        with pytest.raises(InputError, match="'nobody' is not an available host"):
            auction(random_pipeline(0), **wrong)


@pytest.mark.parametrize("strict", list(product([False, True], repeat=3)))
def test_a_strict_order_leaves_out_nothing_where_it_says_so(strict: tuple[bool, bool, bool]) -> None:
    """Against every plan whose devices are such a part of the order."""
    order, first, last = strict
    found_some = 0
    for seed in range(60):
        one = by_host(random_pipeline(seed, links=seed % 2 == 0))
        tables, end = Tables(one), len(one.classes) - 1

        def allowed(ranks: list[int], end: int = end) -> bool:
            together = not order or all(b == a + 1 for a, b in pairwise(ranks))
            ends = (not first or ranks[0] == 0) and (not last or ranks[-1] == end)
            return ranks == sorted(ranks) and together and ends

        every = [evaluate(tables, parts) for parts in every_plan(tables) if allowed([k for k, *_ in parts])]
        best = min((f.bottleneck_s for f in every), default=inf)
        found = auction(one, strict_order=order, strict_first=first, strict_last=last)
        assert (found.bottleneck_s if isinstance(found, Plan) else inf) == best, seed
        found_some += best < inf
    assert found_some >= 10


def test_only_the_largest_bids_and_only_so_many_devices() -> None:
    fitting = 0
    for seed in range(60):
        pipeline = random_pipeline(seed)
        tables = Tables(by_host(pipeline))
        largest = auction(pipeline, largest=True)
        few = auction(pipeline, devices=1)
        if isinstance(few, Plan):
            assert [stage.host for stage in few.stages] == [pipeline.classes[0].hosts[0]]
        if isinstance(largest, Plan):
            fitting += 1
            hosts = [c.hosts[0] for c in by_host(pipeline).classes]
            for stage in largest.stages:
                row = tables.compute[hosts.index(stage.host), stage.layers[0] - 1]
                assert stage.layers[1] == max(j for j, s in enumerate(row) if s < inf)
    assert fitting > 5
    with pytest.raises(InputError, match="devices: expected 1 or more, found 0"):
        auction(random_pipeline(0), devices=0)


def test_rules_that_look_at_no_link_say_so_of_a_dead_one() -> None:
    device = DeviceClass("a", "a", ["a0", "a1"], 0.0, 2.5, [1.0, 1.0])
    pipeline = random_pipeline(0)
    pipeline.classes, pipeline.layers = [device], 2
    pipeline.mem_mib, pipeline.cut_bytes = [2.0, 2.0], [0, 0, 0]
    for found in (auction(pipeline, mode="greedy"), equal(pipeline)):
        assert isinstance(found, Infeasible)
        assert "would use the link from a0 to a1 (after layer 1), whose bandwidth is 0" in found.reasons[0]
