"""What tasks waited for: against the definition, second by second, and in sum."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.report.data.collect import collect
from dovetail.report.data.waiting import Waits
from dovetail.report.waiting_card import said
from dovetail.testing.workflow.random_workloads import policies_for, random_case, read_case, run_case
from dovetail.workflow.words import WORDS

TICK = 0.25


def stretches(rng: random.Random, devices: int) -> list[list[tuple[float, float, float]]]:
    """For each device some use: begin, end of the set-up, end, on a grid so that ticks can count it."""
    found = []
    for _ in range(devices):
        t, uses = 0.0, []
        for _ in range(rng.randrange(6)):
            start = t + TICK * rng.randrange(8)
            ready = start + TICK * rng.randrange(5)
            t = ready + TICK * rng.randrange(9)
            uses.append((start, ready, t))
        found.append(uses)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_every_second_is_charged_to_what_the_devices_did(seed: int) -> None:
    rng = random.Random(seed)
    devices = rng.randrange(1, 5)
    uses = stretches(rng, devices)
    waits = Waits()
    for device, each in enumerate(uses):
        for start, ready, end in each:
            waits.used((device,), start, ready, end)
    got = tuple(sorted(rng.sample(range(devices), rng.randrange(1, devices + 1))))
    t = max((use[2] for d in got for use in uses[d]), default=0.0) + TICK * rng.randrange(4)
    ready_s = max(t - TICK * rng.randrange(60), 0.0)
    waits.start("llm", got, ready_s, t)
    (waited,) = waits.kinds
    ran = set_up = 0
    for tick in range(round((t - ready_s) / TICK)):
        now = ready_s + (tick + 0.5) * TICK
        for device in got:
            ran += any(ready < now < end for _, ready, end in uses[device])
            set_up += any(start < now < ready for start, ready, _ in uses[device])
    assert waited.running_s == pytest.approx(ran * TICK / len(got))
    assert waited.setup_s == pytest.approx(set_up * TICK / len(got))
    assert waited.total_s == pytest.approx(t - ready_s)


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_sum_to_the_waiting_of_a_run(tmp_path: Path, seed: int) -> None:
    """Also where GPUs come and go, calls share them, models are loaded ahead and nodes fail."""
    case = random_case(seed)
    problem, path = read_case(case, tmp_path), tmp_path / "run.jsonl"
    for policy in policies_for(case)[:3]:
        run_case(problem, case, policy, seed, path)
        story = collect(path)
        waited = {kind.kind: kind.wait_s for kind in story.kinds if kind.starts}
        assert {kind.kind: kind.total_s for kind in story.waits} == pytest.approx(waited)
        assert all(min(kind.running_s, kind.setup_s, kind.idle_s) >= 0 for kind in story.waits)
        figures = story.figures
        if not figures.preloads:  # those are of no task
            assert sum(kind.setups for kind in story.kinds) == figures.switches + figures.loads


def test_words(write: Any) -> None:
    story = collect(write())
    text = said(story.waits, WORDS)
    assert text == (
        "Waiting came to 3 s over 4 nodes, 100 % of it for sd's 2 GPUs. Meanwhile the GPUs that they then got ran "
        "other work for 0 %, were in switches for 0 % and idle for 100 %."
    )


def test_nobody_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run_journal.jsonl"
    words = [
        "dispatch",
        "simulate",
        "--model",
        "radret",
        "--items",
        "1000",
        "--policy",
        "fixed",
        "--journal",
        str(path),
    ]
    assert main(words) == 0
    story = collect(path)
    assert said(story.waits, story.words) == ""
