"""A service of training jobs that is killed at any moment loses none, and finds again what it knew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.journals import check_journal
from tests.cluster.live.killed_cluster import JOBS
from tests.killed import killed_often

MODULE = "tests.cluster.live.killed_cluster"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_that_is_killed_goes_on_where_it_was(tmp_path: Path, seed: int) -> None:
    found, log = msgspec.json.decode(
        killed_often(MODULE, tmp_path, seed, times=6), type=tuple[dict[str, tuple[int, str, float]], str]
    )
    assert {key: (state, done) for key, (_, state, done) in found.items()} == {
        key: ("completed", float(job["steps"])) for key, job in JOBS.items()
    }
    assert "new journal" not in log  # what was recorded was decided again as it was
    completed, arrived = Counter[int](), Counter[int]()
    for journal in sorted((tmp_path / "journals").iterdir()):  # one that ended in order is followed by another
        for _, _, rows in Reader(journal).rows():
            for each in rows:
                if isinstance(each, Rows) and each.of in ("completed", "arrived"):
                    (completed if each.of == "completed" else arrived).update(each.columns["id"])
        report = check_journal(journal)
        assert report.valid, report.faults
        assert replay_journal(journal).difference is None
    assert completed == arrived == Counter(job for job, _, _ in found.values())
