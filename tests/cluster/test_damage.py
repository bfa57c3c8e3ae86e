"""Damaged cluster journals: every reader names what is wrong, or the line; none breaks down. And readers agree."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from dovetail.cli import main
from dovetail.cluster.check import check_journal
from dovetail.cluster.explain import explain
from dovetail.cluster.policies import make
from dovetail.cluster.simulate import run
from dovetail.cluster.sweeps.entity_shares import entity_shares
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


INDEXES = ("id", "kind", "on", "devices", "device", "jobs", "beside", "why", "entity", "phases")


def _indexes(column: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The places of whole numbers in a column."""
    if isinstance(column, list):
        for i, value in enumerate(column):
            yield from _indexes(value, (*place, i))
    elif type(column) is int:
        yield place


def _misled(lines: list[dict[str, Any]], rng: Random) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Journals in which one number of a row refers to what is not there, for every column of every kind of row."""
    spots: dict[str, list[tuple[int, str, tuple[int, ...]]]] = defaultdict(list)
    for i, line in enumerate(lines[1:], start=1):
        for name, column in line.get("columns", {}).items():
            if name in INDEXES:
                spots[f"{line['of']}.{name}"] += ((i, name, place) for place in _indexes(column))
    facts = lines[0]["facts"]
    counts = {"kind": len(facts["kinds"]), "on": len(facts["types"]), "entity": len(facts["entities"])}
    for what, each in spots.items():
        for i, name, place in rng.sample(each, min(2, len(each))):
            for number in (-2, counts.get(name, 64), 1000, 2**31 - 1):
                changed = json.loads(json.dumps(lines[i]))
                column = changed["columns"][name]
                for at in place[:-1]:
                    column = column[at]
                column[place[-1]] = number
                yield what, [*lines[:i], changed, *lines[i + 1 :]]


def test_a_number_that_refers_to_nothing_is_found(tmp_path: Path) -> None:
    """By the checker, or as input that is told by its line; who looks things up tells it too, or has no need of it."""
    path, found, policy = tmp_path / "run.jsonl", Counter[str](), "max_min_fairness_packed"
    for seed in (103, 163, 169):
        case = random_case(seed)
        rules = msgspec.structs.replace(case.rules, decide_at=0.8, spares=True, inside=True)
        run(case.setup, make(policy), rules, name=policy, journal=path)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for what, changed in _misled(lines, Random(seed)):
            path.write_text("".join(json.dumps(line) + "\n" for line in changed))
            error = _error(lambda: found.update(valid=check_journal(path).valid))
            assert not error or error.startswith(f"{path}:"), what
            assert not found["valid"], what
            for error in (_error(lambda: explain(Reader(path), "1")), _error(lambda: entity_shares(Reader(path), 4))):
                assert not error or error.startswith(f"{path}:"), what
            found[what] += 1
    assert found.keys() >= {"arrived.entity", "started.devices", "started.beside", "failed.jobs", "planned.on"}


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
