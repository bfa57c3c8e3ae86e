"""What the policy `sia` makes of what jobs have seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.cluster.goodput.application import Application, TypeProfile
from dovetail.cluster.goodput.batch import best_batch
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import AdaptiveJobs, Allocation, Problem
from dovetail.core.errors import InputError

NUMBERS = np.array([0.1, 0.01, 0.05, 0.002, 0.02, 0.001, 1.5])
PROFILE = TypeProfile(least_local=4, most_local=64, one_gpu=100.0)
FAST = TypeProfile(least_local=4, most_local=64, one_gpu=300.0)
MODEL = Application(
    name="model",
    initial=32,
    most=1024,
    progress=[1000.0],
    batches=[32],
    grad_sqr=[[1.0]],
    grad_var=[[8.0]],
    types={"t4": PROFILE, "a100": FAST},
)
WIDTHS = np.arange(1, 17)


def problem(jobs: int, *, adaptive: int | None = None, **changes: Any) -> Problem:
    """Jobs on 8 T4 in servers of four and 4 A100 in one; `changes` to what is known of them, by column."""
    adaptive = jobs if adaptive is None else adaptive
    known: dict[str, Any] = {
        "applications": (MODEL,),
        "application": np.where(np.arange(jobs) < adaptive, 0, -1),
        "batch": np.full(jobs, 512),
        "per_server": np.array([4, 4]),
        "points": [{} for _ in range(jobs)],
        "numbers": np.full((jobs, 2, 7), np.nan),
        "grad_sqr": np.full(jobs, 1.0),
        "grad_var": np.full(jobs, 8.0),
        "on": np.full(jobs, -1),
        "local": np.zeros(jobs, dtype=np.int64),
        "steps": np.zeros(jobs, dtype=np.int64),
        "epoch": np.zeros(jobs, dtype=np.int64),
        "widest": np.zeros((jobs, 2), dtype=np.int64),
        "restarts": np.zeros(jobs, dtype=np.int64),
        "pause_s": np.zeros(jobs),
    }
    width = changes.pop("width", np.ones(jobs, dtype=np.int64))
    age_s = changes.pop("age_s", np.full(jobs, 600.0))
    known |= {name: np.asarray(value) for name, value in changes.items()}
    return Problem(
        now_s=1000.0,
        types=("t4", "a100"),
        counts=np.array([8, 4]),
        prices=np.zeros(2),
        ids=np.arange(jobs),
        kind=width - 1,
        rates=np.stack([WIDTHS * 1.0, WIDTHS * 3.0], axis=1),
        width=width,
        weight=np.ones(jobs),
        steps_left=np.full(jobs, 500.0),
        age_s=age_s,
        deadline_s=np.full(jobs, np.inf),
        scaled=np.tile(np.arange(16), (16, 1)),
        kind_width=WIDTHS,
        adaptive=AdaptiveJobs(**known),
    )


def given(found: Allocation) -> list[tuple[int, int]]:
    """Type and width by job, (-1, 0) for who waits."""
    assert found.kind is not None
    runs = found.share.max(axis=1) > 0
    return [
        (int(row.argmax()), int(WIDTHS[kind])) if run else (-1, 0)
        for row, kind, run in zip(found.share, found.kind, runs, strict=True)
    ]


def fitted(jobs: int, *types: int) -> Any:
    numbers = np.full((jobs, 2, 7), np.nan)
    numbers[:, list(types)] = NUMBERS
    return numbers


def test_new_jobs_have_one_accelerator_each() -> None:
    found = make("sia").allocate(problem(5))
    assert [width for _, width in given(found)] == [1] * 5
    crowd = make("sia").allocate(problem(20))
    assert sum(width for _, width in given(crowd)) == 12


def test_as_many_configurations_as_before_may_be_others() -> None:
    policy = make("sia")
    for counts in ([8, 4], [4, 8]):
        asked = replace(problem(2), counts=np.array(counts))
        (_, table), (_, anew) = policy.table(asked), make("sia").table(asked)  # type: ignore[attr-defined]
        assert table.tolist() == anew.tolist()


@pytest.mark.parametrize("name", ["sia", "goodput_lookahead", "pollux"])
def test_all_wait_where_no_accelerator_is_left(name: str) -> None:
    asked = replace(problem(3, adaptive=2, numbers=fitted(3, 0), on=[0, -1, -1]), counts=np.zeros(2, dtype=np.int64))
    assert given(make(name).allocate(asked)) == [(-1, 0)] * 3


def test_a_job_at_most_doubles() -> None:
    for widest, most in ((1, 2), (2, 4), (4, 8)):
        asked = problem(1, numbers=fitted(1, 0), widest=[[widest, 0]], on=[0], width=np.array([widest]))
        assert max(width for _, width in given(make("sia", {"rounds": "false"}).allocate(asked))) <= most


def test_another_type_is_judged_by_the_speed_of_one_accelerator() -> None:
    asked = problem(1, numbers=fitted(1, 0), widest=[[1, 0]], on=[0])
    policy = make("sia")
    ways, table = policy.table(asked)  # type: ignore[attr-defined]
    narrow = [int(np.flatnonzero((ways.on == on) & (ways.width == 1))[0]) for on in (0, 1)]
    assert table[0, narrow].tolist() == pytest.approx([1.0, 3.0])
    assert given(policy.allocate(asked)) == [(1, 2)]


def test_a_type_whose_least_batch_is_large_is_not_had_wide() -> None:
    large = msgspec.structs.replace(MODEL, types={"t4": msgspec.structs.replace(PROFILE, least_local=64), "a100": FAST})
    small = msgspec.structs.replace(large, most=256)
    asked = problem(1, numbers=fitted(1, 0, 1), widest=[[4, 0]])
    assert asked.adaptive is not None
    asked.adaptive.applications = (small,)
    ways, table = make("sia").table(asked)  # type: ignore[attr-defined]
    assert ways.width[(ways.on == 0) & (table[0] > 0)].tolist() == [1, 2, 4]


def test_values_are_goodput_over_the_least() -> None:
    asked = problem(1, numbers=fitted(1, 0, 1), widest=[[4, 0]])
    ways, table = make("sia").table(asked)  # type: ignore[attr-defined]
    limits = {"initial": 32, "most": 512, "least_local": 4, "most_local": 64}
    goodput = best_batch(NUMBERS, 1.0, 8.0, ways.nodes, ways.width, **limits).goodput
    allowed = ways.width <= 8
    assert table[0, allowed] == pytest.approx(goodput[allowed] / goodput[allowed].min())
    assert (table[0, ~allowed] == 0).all()


def test_who_is_restarting_keeps_what_it_has() -> None:
    changes: dict[str, Any] = {"numbers": fitted(2, 0), "widest": [[4, 0], [4, 0]], "on": [0, -1]}
    moved = make("sia").allocate(problem(2, width=np.array([2, 1]), **changes))
    assert given(moved)[0] != (0, 2)
    kept = make("sia").allocate(problem(2, width=np.array([2, 1]), pause_s=[20.0, 0.0], **changes))
    assert given(kept)[0] == (0, 2)


def test_restarts_make_a_job_stay() -> None:
    changes: dict[str, Any] = {"numbers": fitted(1, 0), "widest": [[4, 0]], "on": [0], "width": np.array([4])}
    assert given(make("sia").allocate(problem(1, **changes))) != [(0, 4)]
    assert given(make("sia").allocate(problem(1, restarts=[19], **changes))) == [(0, 4)]


def test_rigid_jobs_have_their_width_or_nothing() -> None:
    found = given(make("sia").allocate(problem(3, adaptive=1, width=np.array([1, 3, 6]))))
    assert found[1:] == [(1, 3), (0, 6)]
    crowd = given(make("sia").allocate(problem(3, adaptive=0, width=np.array([6, 6, 6]))))
    assert sorted(crowd) == [(-1, 0), (-1, 0), (0, 6)]
    assert given(make("sia").allocate(problem(1, adaptive=0, width=np.array([9])))) == [(0, 8)]


def test_the_answer_does_not_depend_on_what_is_remembered() -> None:
    policy = make("sia")
    for widest in (1, 2, 2, 4):
        asked = problem(4, numbers=fitted(4, 0), widest=np.tile([widest, 0], (4, 1)))
        assert policy.allocate(asked).value == make("sia").allocate(asked).value


@pytest.mark.parametrize("power", [-2.0, -0.5, 0.5, 1.0, 3.0])
def test_who_waits_costs_whatever_the_power(power: float) -> None:
    """Where there is room for all, nobody waits, though some have no more than the least of their configurations."""
    found = given(make("sia", {"power": power}).allocate(problem(10, adaptive=0)))
    assert sorted(found) == [(0, 1)] * 6 + [(1, 1)] * 4


@pytest.mark.parametrize(("option", "value"), [("power", 0.0), ("power", 11.0), ("wait", 0.0)])
def test_bad_options(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{option} is {value:g}, expected"):
        make("sia", {option: value})


def test_the_old_name_says_what_it_is_called_now() -> None:
    with pytest.raises(InputError, match="'goodput'; did you mean 'elastic_throughput'"):
        make("goodput")
