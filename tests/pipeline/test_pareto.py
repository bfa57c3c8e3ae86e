"""The Pareto front against the plans that no other beats, out of every plan there is."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise import cheapest
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.pareto import Front, front
from dovetail.pipeline.plan import Constraints, InfeasibleError, Plan
from dovetail.pipeline.planner import plan
from dovetail.testing.pipeline import evaluate, every_plan, random_pipeline
from dovetail.testing.pipeline.cases import random_case

Point = tuple[float, float, float]
ROUNDING = 1e-9

LONG_S = 600.0  # more than any machine needs


def beats(one: Point, two: Point) -> bool:
    """At least as good in all three, but for rounding."""
    return all(a <= b * (1 + ROUNDING) + 1e-12 for a, b in zip(one, two, strict=True))


def undominated(pipeline: Pipeline, constraints: Constraints) -> list[Point]:
    tables = Tables(pipeline)
    cap_s = constraints.latency_cap_s if constraints.latency_cap_s is not None else inf
    points: list[Point] = []
    for parts in every_plan(tables, constraints.replicas):
        figures = evaluate(tables, parts, constraints.data_mbps)
        if figures.bottleneck_s < inf and figures.latency_s <= cap_s:
            points.append((figures.bottleneck_s, figures.latency_s, figures.devices))
    kept: list[Point] = []
    for point in sorted(set(points)):
        if not any(beats(other, point) for other in kept):
            kept.append(point)
    return kept


def test_the_front_is_what_no_plan_beats() -> None:
    sizes = []
    for seed in range(150):
        pipeline = random_pipeline(seed, links=seed % 3 == 0)
        limits: dict[str, Any] = {
            "replicas": 1 + (seed % 5 == 0),
            "data_mbps": (None, None, 100.0)[seed % 3],
            "latency_cap_s": 2.0 if seed % 7 == 0 else None,
        }
        expected = undominated(pipeline, Constraints(**limits))
        if not expected:
            with pytest.raises(InfeasibleError):
                front(pipeline, **limits)
            continue
        found = front(pipeline, points=None, time_limit_s=LONG_S, **limits)
        assert found.complete
        assert [len(p.hosts) for p in found.points] == [devices for _, _, devices in expected], seed
        for made, (bottleneck_s, latency_s, _) in zip(found.points, expected, strict=True):
            assert made.bottleneck_s == pytest.approx(bottleneck_s, rel=1e-9), seed
            assert made.latency_s == pytest.approx(latency_s, rel=1e-9), seed
        sizes.append(len(expected))
    assert len(sizes) > 60
    assert max(sizes) >= 4


def rich() -> tuple[Pipeline, Front]:
    """A problem whose front has many points."""
    plans = ((p, plan(p)) for p in map(random_pipeline, range(40)))
    every = [(p, front(p, points=None, time_limit_s=LONG_S)) for p, made in plans if isinstance(made, Plan)]
    return max(every, key=lambda pair: pair[1].found)


def test_few_points_are_spread_from_end_to_end() -> None:
    pipeline, every = rich()
    assert every.found == len(every.points) > 3
    few = front(pipeline, points=3)
    assert (few.found, len(few.points)) == (every.found, 3)
    assert [few.points[0], few.points[-1]] == [every.points[0], every.points[-1]]
    with pytest.raises(InputError, match="points: expected 2 or more, found 1"):
        front(pipeline, points=1)


def test_every_point_can_be_planned_for() -> None:
    pipeline, every = rich()
    for point in every.points:
        limits = Constraints(max_stages=len(point.hosts), latency_cap_s=point.latency_s)
        made = plan(pipeline, constraints=limits)
        assert isinstance(made, Plan)
        assert made.bottleneck_s == point.bottleneck_s


def large() -> Pipeline:
    return Pipeline(
        model="big",
        layers=24,
        mem_mib=[1.0] * 24,
        cut_bytes=[1000 * i for i in range(25)],
        classes=[
            DeviceClass(f"c{k}", f"c{k}", [f"h{k}{i}" for i in range(2)], 10.0 + k, 99.0, times)
            for k, times in enumerate(
                [[0.1 + 0.013 * (i * 7 % 11) for i in range(24)], [0.2 + 0.01 * i for i in range(24)]]
            )
        ],
        batch_size=1,
        dtype="torch.float32",
    )


def test_a_box_of_one_number_of_devices_is_not_split_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest plan has fewer devices than any in the box, and is faster than all: what is open is the latency."""
    monkeypatch.setattr(cheapest, "_SMALL", -1.0)
    case = random_case(20_319)
    problem = load(case.models, case.device_types, case.devices, batch_size=1, dtype=case.dtype, links=case.links)
    found = front(problem, points=None, time_limit_s=LONG_S, progress=stop_after(200), **case.limits)
    assert found.complete


def test_a_front_that_was_cut_short_says_how_near_all_others_are() -> None:
    every = front(large(), points=None, time_limit_s=LONG_S)
    assert (every.complete, every.factor) == (True, 0.0)
    assert every.proof() == "No other plan is missing."
    factors = []
    for steps in (2, 5, 12, 30):
        short = front(large(), points=None, time_limit_s=LONG_S, progress=stop_after(steps))
        assert short.points
        assert not short.complete
        factor = inf if short.factor is None else short.factor
        assert factor > 0
        assert f"within {100 * factor:.2g} % of one of the {short.found} found" in short.proof() or short.factor is None
        for missed in every.points:
            pace_s, latency_s, devices = point(missed)
            most = 1 + factor
            assert any(beats(point(p), (pace_s * most, latency_s * most, devices * most)) for p in short.points), steps
        factors.append(factor)
    assert factors[-1] < min(factors[0], 1.0)


def stop_after(steps: int) -> Callable[[float], bool]:
    left = iter(range(steps))
    return lambda share: next(left, None) is None


def point(made: Plan) -> Point:
    return made.bottleneck_s, made.latency_s, len(made.hosts)


def test_a_front_without_time_tells_what_it_has() -> None:
    short = front(large(), time_limit_s=1e-6)
    assert short.points
    assert not short.complete
    with pytest.raises(InputError, match="--time-limit-s 0: expected a positive number of seconds"):
        front(large(), time_limit_s=0)


def test_progress_only_grows_and_ends_with_all_done() -> None:
    pipeline, _ = rich()
    shares: list[float] = []
    front(pipeline, progress=shares.append)
    assert shares == sorted(shares)
    assert len(set(shares)) > 2
    assert shares[-1] == 1.0
