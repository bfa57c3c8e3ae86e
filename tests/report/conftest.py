"""Small journals for the report's tests, written as a run would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Clock, Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.words import Words
from dovetail.workflow.words import WORDS

Step = tuple[float, Sequence[Any]]
Write = Callable[..., Path]

# Two requests on three GPUs; b/x spans two of them, fails, runs again; c is refused.
STEPS: list[Step] = [
    (0.0, [Arrived("a", "chain"), Start("a", "x", "llm", (0,), 0.0, 4.0, "it is free", 2.0)]),
    (1.0, [Arrived("b", "wide"), Start("b", "x", "sd", (1, 2), 1.0, 3.0, "both are free", 1.0)]),
    (3.0, [Arrived("c", "nope"), Reject("c", "no such <workflow>")]),
    (4.0, [Failed("b", "x", "out of memory")]),
    (6.0, [Finished("a", "x"), Start("b", "x", "sd", (1, 2), 4.0, 3.0, "tried again")]),
    (7.0, [Start("a", "y", "sd", (0,), 6.0, 1.0, "sd replaces llm", 1.0, "llm")]),
    (9.0, [Finished("b", "x"), Finished("a", "y"), Complete("b"), Complete("a")]),
]
SUMMARY = {"policy": "fifo", "bound_makespan_s": 6.0, "bound_mean_s": 5.0, "bound_p99_s": "unknown"}


@pytest.fixture
def steps() -> list[Step]:
    """The steps that `write` writes when it is given none."""
    return STEPS


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a journal; without a summary it is one that was interrupted."""

    def make(
        name: str = "run",
        steps: Sequence[Step] = STEPS,
        summary: dict[str, Any] | None = SUMMARY,
        policy: str = "fifo",
        devices: int = 3,
        options: dict[str, Any] | None = None,
        clock: Clock | None = None,
        words: Words = WORDS,
        level: str = "workflow",
        **facts: Any,
    ) -> Path:
        path = tmp_path / f"{name}.jsonl"
        kinds = {"a100": DeviceType("a100"), "l4": DeviceType("l4", speed=0.5)}
        pool = Pool(tuple(Device(i, "l4" if i == 2 else "a100", i // 2) for i in range(devices)), kinds)
        of: dict[str, Any] = {"level": level, "policy": policy, "mode": "simulated", "options": options or {}}
        header = Header(**of, clock=clock or Clock(), pool=pool, facts=facts, words=words)
        with Writer(path, header) as writer:
            for n, (t, events) in enumerate(steps, start=1):
                writer.step(n, t, events)
            if summary is not None:
                writer.end(len(steps) + 1, steps[-1][0] if steps else 0.0, summary)
        return path

    return make
