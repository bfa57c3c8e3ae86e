"""How many copies at once: what is run where, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli import main
from dovetail.host import Measurement, Recommendation, recommend
from dovetail.host.live import measure as measuring
from dovetail.host.live import recommend as recommending
from dovetail.host.live.recommend import CoRuns

Places = Sequence[Sequence[int]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Places]:
    """Eight processors; a program takes 8 s on one core, half of it in parallel, and 1 s more for each neighbour."""
    ran: list[Places] = []

    def run(command: Sequence[str], places: Places, env: Any) -> float:
        ran.append(places)
        return 4 + 4 / len(places[0]) + len(places) - 1

    for module in (measuring, recommending):
        monkeypatch.setattr(module, "run_together_s", run)
        monkeypatch.setattr(module, "processors", lambda: list(range(8)))
    return ran


def test_the_machine_is_filled_with_copies_that_share_no_processor(machine: list[Places]) -> None:
    found = recommend("train", cores=[1, 3, 8])
    assert [(row.cores, row.at_once) for row in found.rows] == [(1, 8), (3, 2), (8, 1)]
    assert [len(places) for places in machine] == [1, 1, 1, 8, 2]
    for places in machine:
        used = [cpu for cpus in places for cpu in cpus]
        assert len(used) == len(set(used))
    assert [row.together_s for row in found.rows] == [15.0, 4 + 4 / 3 + 1, 4.5]
    assert found.best.cores == 1


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 1e3)), min_size=1, max_size=6))
def test_the_best_is_nearly_the_most_per_hour_and_the_widest_such(rows: list[tuple[int, float]]) -> None:
    all_ = [CoRuns(cores, 64 // cores, took_s, took_s) for cores, took_s in rows]
    best = Recommendation(Measurement("p", []), all_).best
    most = max(row.at_once / row.together_s for row in all_)
    assert best.at_once / best.together_s >= 0.97 * most * (1 - 1e-9)
    assert not any(row.cores > best.cores and row.at_once / row.together_s >= 0.98 * most for row in all_)


def test_the_command_says_what_to_submit(machine: list[Places], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "recommend", "--cores", "1", "4", "--", "python", "train.py", "--lr", "1 2"]) == 0
    shown = capsys.readouterr().out
    assert "8 at once, 1 core each: 1920 per hour" in shown
    assert "dovetail host submit --cores 1 --curve table:1=8,4=5 -- python train.py --lr '1 2'" in shown
    assert main(["host", "recommend", "--cores", "8", "--format", "json", "--", "train"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == {"cores": 8, "at_once": 1}
    assert main(["host", "recommend", "--cores", "9", "--", "train"]) == 2
    assert main(["host", "recommend"]) == 2
