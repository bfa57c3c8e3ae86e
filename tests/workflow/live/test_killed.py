"""A service that is killed at any moment loses nothing, and does nothing twice that was done."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from dovetail.core.events import Complete, Finished, Reject
from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.journals import check_journal
from tests.killed import killed_often, serve
from tests.workflow.live.killed import EXPECTED

MODULE = "tests.workflow.live.killed"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_that_is_killed_goes_on_where_it_was(tmp_path: Path, seed: int) -> None:
    found = msgspec.json.decode(
        killed_often(MODULE, tmp_path, seed, times=5), type=dict[str, tuple[str, str, dict[str, str]]]
    )
    assert {key: (state, answer) for key, (_, state, answer) in found.items()} == {
        key: ("completed", {"text": text}) for key, text in EXPECTED.items()
    }
    closed, finished = Counter[str](), Counter[tuple[str, str]]()
    for journal in sorted((tmp_path / "journals").glob("*.jsonl")):
        report = check_journal(journal)
        assert report.valid, (journal.name, report.faults)
        assert replay_journal(journal).difference is None
        for _, _, event in Reader(journal):
            if isinstance(event, Complete | Reject):
                closed[event.job] += 1
            elif isinstance(event, Finished):
                finished[event.job, event.task] += 1
    assert max(closed.values()) == max(finished.values()) == 1
    assert set(closed) <= {run for run, _, _ in found.values()}


def test_every_moment_of_the_first_steps(tmp_path: Path) -> None:
    """One kill at each of the first moments, one after the other: the past grows, and is gone through again."""
    for moment in range(1, 9):
        assert serve(MODULE, tmp_path / "state", moment).returncode in (0, -signal.SIGKILL)
    ended = serve(MODULE, tmp_path / "state", 0)
    found = msgspec.json.decode(ended.stdout, type=dict[str, tuple[str, str, dict[str, str]]])
    assert {key: answer["text"] for key, (_, _, answer) in found.items()} == EXPECTED
