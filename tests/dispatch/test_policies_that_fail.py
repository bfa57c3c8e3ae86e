"""A policy of one's own that fails, exits or answers no number is stopped by its name, in simulation and for real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dovetail import dispatch
from dovetail.core.errors import PolicyError
from dovetail.dispatch import Dispatcher

CURVES = {"devices": {"fast": {"latency_s": 0.004, "rate": 2e5}, "slow": {"latency_s": 0.001, "rate": 3e4}}}


def fail(*_: Any) -> Any:
    raise ValueError("boom")


def leave(*_: Any) -> Any:
    sys.exit()


BAD: list[tuple[Callable[..., Any], str]] = [
    (fail, "failed: ValueError: boom"),
    (leave, "failed: SystemExit"),
    (lambda *_: "all", "gave 'all', expected"),
    (lambda *_: None, "gave None, expected"),
    (lambda *_: float("nan"), "gave nan, expected"),
    (lambda *_: [1], r"gave \[1\], expected"),
]


@pytest.mark.parametrize(("answer", "told"), BAD)
def test_a_policy_that_fails_or_gives_no_number_is_named(answer: Callable[..., Any], told: str) -> None:
    policy = type("Cheat", (), {"next": answer})
    with pytest.raises(PolicyError, match=rf"\.Cheat\.next {told}"):
        dispatch.simulate(CURVES, items=100, policy=policy)
    with (
        Dispatcher(torch.sin, "cpu", policy(), cache=False) as dispatcher,
        pytest.raises(PolicyError, match=rf"\.Cheat\.next {told}"),
    ):
        dispatcher.run(torch.rand(100))


@pytest.mark.parametrize("answer", [-5, 0, 10**9, True])
def test_any_number_of_items_is_an_answer(answer: int) -> None:
    run = dispatch.simulate(CURVES, items=100, policy=type("Cheat", (), {"next": lambda *_: answer}))
    assert run.check().valid


def test_a_policy_that_cannot_be_made_is_named() -> None:
    with pytest.raises(PolicyError, match="policy Cheat failed: SystemExit"):
        dispatch.simulate(CURVES, items=100, policy=type("Cheat", (), {"__init__": leave}))
