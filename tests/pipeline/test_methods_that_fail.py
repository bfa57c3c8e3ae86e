"""A planning method of one's own that fails, exits or gives no plan is told by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail import pipeline
from dovetail.core.errors import DovetailError, InputError, PolicyError

FAST = pipeline.DeviceClass("fast", "fast", ["a", "b"], bw_mbps=1000.0, mem_mib=99.0, time_s=[0.1, 0.2, 0.3])
PROBLEM = pipeline.Pipeline(
    model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[FAST], batch_size=1, dtype="torch.float32"
)


def fail(problem: Any) -> Any:
    raise RuntimeError("boom")


def leave(problem: Any) -> Any:
    sys.exit()


@pytest.mark.parametrize(("method", "told"), [(fail, "fail failed: RuntimeError: boom"), (leave, "leave failed: Sys")])
def test_a_method_that_fails_is_named(method: Callable[..., Any], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        pipeline.plan(PROBLEM, method=method)


@pytest.mark.parametrize("body", ["raise TypeError('boom')", "raise ValueError('boom')", "raise SystemExit(0)"])
def test_a_method_in_a_file_that_fails_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(problem):\n    {body}\n")
    with pytest.raises(DovetailError, match=r"policy .*mine\.py:mine"):
        pipeline.plan(PROBLEM, method=f"{tmp_path / 'mine.py'}:mine")


BAD: list[Any] = [
    "a plan",
    None,
    -5,
    10**9,
    float("nan"),
    ["abc"],
    [("a", "1", "3")],
    [("a", 1, "3")],
    [("a", 1, 2.5)],
    [("a", float("nan"), 3)],
    [(None, 1, 3)],
    [("a", 1, 3, 4)],
    {"a": (1, 3)},
]


@pytest.mark.parametrize("answer", BAD, ids=repr)
def test_stages_that_are_none_are_told(answer: Any) -> None:
    with pytest.raises(InputError, match="method <lambda>: "):
        pipeline.plan(PROBLEM, method=lambda problem: answer)


@pytest.mark.parametrize(
    "changes", [{"stages": "a"}, {"stages": ["a"]}, {"bottleneck_s": "soon"}, {"batch_size": None}]
)
def test_a_plan_with_text_in_it_is_told(changes: dict[str, Any]) -> None:
    bad = replace(pipeline.plan(PROBLEM), **changes)
    with pytest.raises(InputError, match="method <lambda>: the plan that it gives is none: Expected"):
        pipeline.plan(PROBLEM, method=lambda problem: bad)
