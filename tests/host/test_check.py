"""The level's rules: a clean run passes, and every fault planted in one is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Asked
from dovetail.host.check import CODES, check_journal
from dovetail.host.options import Options
from dovetail.host.program import shape
from dovetail.host.simulation import Workload, record

Lines = list[dict[str, Any]]


def journal(path: Path, options: Options) -> Lines:
    """Two programs share eight cores, a third waits for the first; the second is paused for a while."""
    arrivals: list[tuple[float, Arrived | Asked]] = [
        (0.0, Arrived("a", "p", (80.0,), facts={"cores": 4, "memory_mib": 300})),
        (0.0, Arrived("b", "p", (80.0,), facts={"cores": 4, "memory_mib": 300})),
        (1.0, Arrived("c", "p", (80.0,), facts={"cores": 4, "least": 2, "after": ["a"]})),
        (2.0, Asked("b", "pause")),
        (5.0, Asked("b", "resume")),
    ]
    record(Workload(8, tuple(arrivals), {"p": shape("p", 8)}), options, path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def found(path: Path, lines: Lines) -> set[str]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return set(check_journal(path).faults_by_code)


def first(lines: Lines, kind: str, work: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("k") == kind and line.get("work") == work)


def too_few(lines: Lines) -> None:
    start = first(lines, "started", "c")
    start["devices"] = start["devices"][:1]


def too_many(lines: Lines) -> None:
    lines[0]["options"]["max_cores"] = 3


def unused(lines: Lines) -> None:
    line = first(lines, "started", "b")
    line["devices"] = line["devices"][:2]


def too_much_memory(lines: Lines) -> None:
    lines[0]["options"]["memory_mib"] = 500


def not_resumed(lines: Lines) -> None:
    lines.remove(next(line for line in lines if line.get("k") == "asked" and line["what"] == "resume"))


def too_early(lines: Lines) -> None:
    first(lines, "arrived", "c")["facts"]["after"] = ["b"]


def more_work_than_time(lines: Lines) -> None:
    first(lines, "arrived", "a")["sizes"] = [800.0]


def other_figures(lines: Lines) -> None:
    lines[-1]["summary"]["core_use"] = 0.5


PLANTED: list[tuple[str, Callable[[Lines], None]]] = [
    ("cores", too_few),
    ("cores", too_many),
    ("idle", unused),
    ("memory", too_much_memory),
    ("held", not_resumed),
    ("held", too_early),
    ("bound", more_work_than_time),
    ("summary", other_figures),
]


@pytest.mark.parametrize("assign", ["max_prop", "always_attend", "efficient", "strict"])
def test_a_clean_run_passes(tmp_path: Path, assign: str) -> None:
    path = tmp_path / "run.jsonl"
    assert found(path, journal(path, Options(assign=assign))) == set()


@pytest.mark.parametrize(("code", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_fault_is_found(tmp_path: Path, code: str, plant: Callable[[Lines], None]) -> None:
    path = tmp_path / "run.jsonl"
    lines = journal(path, Options(assign="max_prop"))
    plant(lines)
    assert code in found(path, lines)


def test_every_rule_has_a_planted_fault() -> None:
    assert set(CODES) <= {code for code, _ in PLANTED}


def test_a_waiting_program_and_idle_cores_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arrivals = (
        (0.0, Arrived("a", "p", (80.0,), facts={"cores": 4})),
        (1.0, Arrived("b", "p", (80.0,), facts={"cores": 6})),
        (2.0, Arrived("c", "p", (80.0,), facts={"cores": 2})),
    )
    record(Workload(8, arrivals, {"p": shape("p", 8)}), Options(), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert found(path, lines) == set()
    lines[0]["options"]["overtaking"] = "first-fit"
    assert found(path, lines) == {"idle"}


def test_a_header_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = journal(path, Options())
    lines[0]["options"]["colour"] = "red"
    with pytest.raises(InputError, match=r"run\.jsonl:1: not a usable header"):
        found(path, lines)
