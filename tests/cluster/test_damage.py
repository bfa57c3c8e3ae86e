"""Damaged cluster journals: every reader names what is wrong, or the line; none breaks down. And readers agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random

import pytest

from dovetail.cli import main
from dovetail.cluster.check import check_journal
from dovetail.cluster.explain import explain
from dovetail.cluster.policies import make
from dovetail.cluster.simulate import run
from dovetail.core.check import check_journal as check_events
from dovetail.core.errors import InputError
from dovetail.core.findings import Findings
from dovetail.core.journal import Reader
from dovetail.testing.cluster.fuzz import policies_for, random_case
from dovetail.testing.damage import breaks_down, damaged

RUNS = {
    "wide": "--jobs 10 -c 2:2:2 -m",
    "packed": "-p max_min_fairness_packed --jobs 10 -c 1:1:1",
    "elastic": "-p elastic_throughput --jobs 6 -c 4:4:4",
    "window": "-s 3 -e 8 --jobs-per-hour 0.5 --entities 2 --assign-SLOs",
    "summary": "--jobs 10 --journal-mode summary",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("runs")
    for name, words in RUNS.items():
        assert main(["cluster", "simulate", *words.split(), "--journal", str(folder / name)]) in (0, 3)
    return {name: (folder / name).read_bytes() for name in RUNS}


def _error(read: Callable[[], object]) -> str:
    """The message about bad input, if that is how it ends."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", RUNS)
def test_no_damage_breaks_a_reader(name: str, texts: dict[str, bytes], tmp_path: Path) -> None:
    """Hundreds of journals with one thing wrong; what the checker cannot read, nobody can."""
    path, found = tmp_path / "run.jsonl", Counter[str]()
    commands: list[list[str | Path]] = [["check", path], ["cluster", "explain", "1", "--journal", path]]
    for seed in range(120):
        path.write_bytes(damaged(texts[name], Random(f"{name} {seed}")))
        checked = _error(lambda: found.update({"valid" if check_journal(path).valid else "invalid": 1}))
        assert not checked or checked.startswith(str(path))
        found["unreadable"] += bool(checked)
        explained = _error(lambda: explain(Reader(path), "1"))
        assert not (checked and not explained), checked
        if seed % 12 == 0:
            assert breaks_down(*commands, ["report", path, "--out", tmp_path / "run.html"]) == []
    assert found["invalid"] > 15
    assert found["unreadable"] > 15


def test_both_kinds_of_readers_agree(tmp_path: Path) -> None:
    """The columns read at once, and the same told as single events to what all levels share."""
    path, seen = tmp_path / "run.jsonl", 0
    for seed in range(12):
        case = random_case(seed)
        for policy in policies_for(case)[seed % 3 :: 3]:
            run(case.setup, make(policy), case.rules, name=policy, journal=path)
            report, faults = check_journal(path), Findings()
            figures = check_events(Reader(path), faults)
            assert report.faults_by_code == {}
            first, end = case.setup.window or (0, inf)  # others need not end: only the level knows that
            unmeasured = [each for each in faults.first if not first <= int(each.where.removeprefix("job ")) < end]
            assert {each.code for each in unmeasured} <= {"unclosed"}
            assert sum(faults.counts.values()) == len(unmeasured)
            counted = report.counted
            for key in ("arrived", "completed", "rejected", "makespan_s"):
                assert counted[key] == getattr(figures, key), key
            assert counted["leases"] == figures.tasks + figures.failures
            assert counted["utilization"] == pytest.approx(figures.utilisation)
            if case.setup.window is None:
                assert counted["avg_jct_s"] == pytest.approx(figures.response_s.mean)
            seen += figures.tasks
    assert seen > 1000
