"""Policies of others, written as the documentation says: they run, and the checker holds them to what they promise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dovetail.core import registry
from dovetail.core.events import Arrived
from dovetail.host.check import check_journal
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.program import program_graph
from dovetail.host.simulate import record
from dovetail.testing.host import random_options, random_workload, verify

DOCS = Path(__file__).parents[2] / "docs" / "host.md"
PAIRS = [("youngest", "half"), ("youngest", "strict"), ("fcfs", "half"), ("rr", "half"), ("priority", "half")]


@pytest.fixture
def documented() -> Iterator[None]:
    """The policies of docs/host.md, as a package would bring them."""
    for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S):
        if "@policy" in block:
            exec(compile(block, str(DOCS), "exec"), {"__name__": "third_party"})
    yield
    for name in ("youngest", "half"):
        del registry._policies["host", name]


def a_run(path: Path, cores: int = 8, **options: Any) -> list[dict[str, Any]]:
    arrivals = tuple((5.0 * i, Arrived(f"p{i}", "p", (60.0,), facts={"cores": cores})) for i in range(6))
    record(Workload(8, arrivals, {"p": program_graph("p", 8)}), HostOptions(**options), path)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("plan", "assign"), PAIRS)
def test_a_run_of_theirs_is_valid(tmp_path: Path, documented: None, plan: str, assign: str) -> None:
    path = tmp_path / "run.jsonl"
    lines = a_run(path, plan=plan, assign=assign)
    widths = {len(line["devices"]) for line in lines if line.get("k") == "started"}
    assert widths == {4 if assign == "half" else 8}
    report = check_journal(path)
    assert (report.valid, report.notes) == (True, [])


@pytest.mark.parametrize(("plan", "assign"), PAIRS)
def test_random_runs_of_theirs_keep_every_rule(documented: None, plan: str, assign: str) -> None:
    for seed in range(40):
        rng = Random(f"{plan} {assign} {seed}")
        workload, options = random_workload(rng), random_options(rng, plan, assign)
        assert verify(workload, options)[1] == []


def later(lines: list[dict[str, Any]], job: str, by_s: float) -> None:
    """Let a program start later than it did; its end follows."""
    for line in lines:
        if line.get("job") == job and line["k"] in ("started", "finished", "completed"):
            line["t"] += by_s
            line["n"] += 1000


def test_a_planted_delay_is_found(tmp_path: Path, documented: None) -> None:
    path = tmp_path / "run.jsonl"
    lines = a_run(path, plan="youngest", assign="half")
    later(lines, "p1", 1.0)
    header, *rest, end = lines
    rest.sort(key=lambda line: (line["t"], line["n"]))
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *rest, end)))
    report = check_journal(path)
    assert "idle" in report.faults_by_code
    assert any("p1" in fault.where and "could start" in fault.message for fault in report.faults)


def test_more_cores_than_promised_are_found(tmp_path: Path, documented: None) -> None:
    path = tmp_path / "run.jsonl"
    lines = a_run(path, plan="fcfs", assign="strict")
    lines[0]["options"]["assign"] = "half"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = check_journal(path)
    assert "the most that half gives" in next(fault.message for fault in report.faults if fault.code == "cores")


def test_a_policy_that_is_not_installed_is_noted_and_the_rest_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = a_run(path, plan="rr", assign="strict")
    lines[0]["options"] |= {"plan": "youngest", "assign": "half"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = check_journal(path)
    assert report.valid
    assert [note.partition(":")[0] for note in report.notes] == [
        "what youngest promises is not checked",
        "what half promises is not checked",
    ]
    next(line for line in lines if line.get("k") == "started")["run_s"] += 1.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "run_s" in check_journal(path).faults_by_code


def test_a_policy_that_cannot_answer_is_noted(tmp_path: Path) -> None:
    from dovetail.core.registry import policy
    from dovetail.host.policies import MachineView, Planning, Program

    @policy("fragile", level="host")
    class Fragile(Planning):
        """In the order of their arrivals, and only for the scheduler that it knows."""

        def order(self, view: MachineView) -> list[Program]:
            if any(type(program) is not Program for program in view.waiting):
                raise RuntimeError("who are you?")
            return view.waiting

    try:
        path = tmp_path / "run.jsonl"
        a_run(path, cores=5, plan="fragile", assign="strict")
        report = check_journal(path)
        assert report.valid
        assert [note for note in report.notes if "who are you?" in note]
    finally:
        del registry._policies["host", "fragile"]
