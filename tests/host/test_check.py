"""The level's rules: a clean run passes, and every fault planted in one is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Asked, Measured
from dovetail.host.check import CODES, check_journal
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.policies import MachineView
from dovetail.host.policies.fcfs import FirstComeFirstServed
from dovetail.host.policies.strict import Strict
from dovetail.host.program import Program, program_graph
from dovetail.host.scheduler import Policies
from dovetail.host.simulate import record
from dovetail.testing.host import verify

Lines = list[dict[str, Any]]


def journal(path: Path, options: HostOptions) -> Lines:
    """Two programs share eight cores, a third waits for the first; the second is paused for a while."""
    arrivals: list[tuple[float, Arrived | Asked]] = [
        (0.0, Arrived("a", "p", (80.0,), facts={"cores": 4, "memory_mib": 300})),
        (0.0, Arrived("b", "p", (80.0,), facts={"cores": 4, "memory_mib": 300})),
        (1.0, Arrived("c", "p", (80.0,), facts={"cores": 4, "least": 2, "after": ["a"]})),
        (2.0, Asked("b", "pause")),
        (5.0, Asked("b", "resume")),
    ]
    record(Workload(8, tuple(arrivals), {"p": program_graph("p", 8)}), options, path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def found(path: Path, lines: Lines) -> set[str]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return set(check_journal(path).faults_by_code)


def first(lines: Lines, kind: str, work: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("k") == kind and line.get("job") == work)


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


def too_long(lines: Lines) -> None:
    first(lines, "arrived", "a")["facts"]["limit_s"] = 1.0


def one_try_too_many(lines: Lines) -> None:
    """It fails in the middle of its last step, and is started again."""
    at = next(i for i, line in enumerate(lines) if line.get("k") == "finished" and line["job"] == "a")
    when = {key: lines[at][key] for key in ("n", "t")}
    failed = when | {"k": "failed", "job": "a", "task": "run", "why": "exit code 1"}
    lines[at:at] = [failed, first(lines, "started", "a") | when]


def changed_although_rigid(lines: Lines) -> None:
    first(lines, "arrived", "a")["facts"]["malleable"] = False


def more_work_than_time(lines: Lines) -> None:
    first(lines, "arrived", "a")["sizes"] = [800.0]


def wrong_expectation(lines: Lines) -> None:
    """It ends when it should; only what was expected is another thing."""
    first(lines, "started", "b")["run_s"] *= 1.5


def unreadable(lines: Lines) -> None:
    first(lines, "arrived", "b")["facts"]["curve"] = "up"


def other_figures(lines: Lines) -> None:
    lines[-1]["summary"]["core_use"] = 0.5


def a_gpu_that_is_not_there(lines: Lines) -> None:
    first(lines, "arrived", "a")["facts"]["gpus"] = 1
    first(lines, "started", "a")["gpus"] = [0]


def before_its_time(lines: Lines) -> None:
    first(lines, "arrived", "c")["facts"]["begin_s"] = 100.0


def too_many_of_a_group(lines: Lines) -> None:
    for name in "ab":
        first(lines, "arrived", name)["facts"] |= {"group": "g", "parallel": 1}


def edited_into_nonsense(lines: Lines) -> None:
    pause = next(line for line in lines if line.get("k") == "asked" and line["what"] == "pause")
    pause |= {"job": "c", "what": "edit", "facts": {"cores": "many"}}


PLANTED: list[tuple[str, Callable[[Lines], None]]] = [
    ("cores", too_few),
    ("cores", too_many),
    ("idle", unused),
    ("memory", too_much_memory),
    ("held", not_resumed),
    ("held", too_early),
    ("limit", too_long),
    ("tries", one_try_too_many),
    ("cores", changed_although_rigid),
    ("bound", more_work_than_time),
    ("run_s", wrong_expectation),
    ("ask", unreadable),
    ("ask", edited_into_nonsense),
    ("begin", before_its_time),
    ("group", too_many_of_a_group),
    ("summary", other_figures),
    ("gpus", a_gpu_that_is_not_there),
]


@pytest.mark.parametrize("assign", ["max_prop", "always_attend", "efficient", "strict"])
def test_a_clean_run_passes(tmp_path: Path, assign: str) -> None:
    path = tmp_path / "run.jsonl"
    assert found(path, journal(path, HostOptions(assign=assign))) == set()


def test_the_least_that_is_possible_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    journal(path, HostOptions())
    assert main(["check", str(path)]) == 0
    assert "makespan 40.00 s (no less than 30.00 s is possible)" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_fault_is_found(tmp_path: Path, code: str, plant: Callable[[Lines], None]) -> None:
    path = tmp_path / "run.jsonl"
    lines = journal(path, HostOptions(assign="max_prop"))
    plant(lines)
    assert code in found(path, lines)


def test_every_rule_has_a_planted_fault() -> None:
    assert set(CODES) - {"overtaken"} <= {code for code, _ in PLANTED}  # that one has a test of its own


def test_a_waiting_program_and_idle_cores_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arrivals = (
        (0.0, Arrived("a", "p", (80.0,), facts={"cores": 4})),
        (1.0, Arrived("b", "p", (80.0,), facts={"cores": 6})),
        (2.0, Arrived("c", "p", (80.0,), facts={"cores": 2})),
    )
    record(Workload(8, arrivals, {"p": program_graph("p", 8)}), HostOptions(), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert found(path, lines) == set()
    lines[0]["options"]["overtaking"] = "first-fit"
    assert found(path, lines) == {"idle"}


def test_nobody_passes_one_that_has_waited_too_long(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    asked = {"a": 6, "wide": 8, "b": 2, "c": 2}
    arrivals = tuple((10.0 * i, Arrived(x, "p", (400.0,), facts={"cores": asked[x]})) for i, x in enumerate(asked))
    record(Workload(8, arrivals, {"p": program_graph("p", 8)}), HostOptions(overtaking="first-fit"), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["options"]["age_step_s"] = 100.0
    assert "overtaken" not in found(path, lines)
    lines[0]["options"]["age_step_s"] = 1.0
    assert "overtaken" in found(path, lines)


def test_the_first_in_line_must_start_if_it_can(tmp_path: Path) -> None:
    """Of b, which does not fit, and c, which does: whose turn it is depends on the planning."""
    path = tmp_path / "run.jsonl"
    asked = {"a": 4, "b": 6, "c": 2}
    arrivals = tuple((0.0, Arrived(name, "p", (80.0,), facts={"cores": n})) for name, n in asked.items())
    record(Workload(8, arrivals, {"p": program_graph("p", 8)}), HostOptions(plan="priority"), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert found(path, lines) == set()
    first(lines, "arrived", "b")["facts"]["priority"] = 3
    assert found(path, lines) == {"idle"}


@pytest.mark.parametrize("assign", ["strict", "efficient"])
def test_nobody_may_wait_for_an_idle_machine(tmp_path: Path, assign: str) -> None:
    path = tmp_path / "run.jsonl"
    arrivals = ((0.0, Arrived("a", "p", (80.0,), facts={"cores": 4})),)
    record(Workload(8, arrivals, {"p": program_graph("p", 8)}), HostOptions(assign=assign), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    never = lines[1] | {"k": "rejected", "job": "a", "why": "nothing lets it start"}
    assert "idle" in found(path, [*lines[:2], never | {"n": 2, "t": 1.0}])


class _KeepsAll(Strict):
    """Who was lent cores has them to its end."""

    def keeps(self, program: Program, view: MachineView) -> int:
        return self.most(program, view)


class _LendsNothing(Strict):
    def spread(self, view: MachineView) -> dict[str, int]:
        return view.widths


@pytest.mark.parametrize("assign", [_KeepsAll, _LendsNothing])
def test_strict_gives_lent_cores_back_and_leaves_none_idle_that_can_be_lent(
    tmp_path: Path, assign: type[Strict]
) -> None:
    arrivals = (
        (0.0, Arrived("a", "p", (80.0,), facts={"cores": 2, "most": 8})),
        (1.0, Arrived("b", "p", (80.0,), facts={"cores": 6})),
    )
    workload = Workload(8, arrivals, {"p": program_graph("p", 8)})
    for chosen, code in ((Strict, set[str]()), (assign, {"idle"})):
        path = tmp_path / f"{chosen.__name__}.jsonl"
        record(workload, HostOptions(), path, Policies(FirstComeFirstServed(), chosen()))
        assert set(check_journal(path).faults_by_code) == code


def test_a_live_run_may_still_be_under_way(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = journal(path, HostOptions())
    assert found(path, lines[:-1]) == {"end"}
    part = [line for line in lines[:-1] if line.get("t", 0.0) < 5.0]
    assert found(path, part) == {"end"}
    lines[0]["mode"] = "live"
    assert found(path, part) == set()
    assert any("the run had not ended" in note for note in check_journal(path).notes)
    path.write_text(path.read_text()[:-5])
    assert "end" in check_journal(path).faults_by_code  # a torn line is another thing


def test_a_header_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = journal(path, HostOptions())
    lines[0]["options"]["colour"] = "red"
    with pytest.raises(InputError, match=r"run\.jsonl:1: not a usable header"):
        found(path, lines)


def test_cores_beyond_a_learned_sweet_spot_may_be_idle(tmp_path: Path) -> None:
    arrivals: list[tuple[float, Any]] = [(0.0, Arrived("a", "p", (80.0,), facts={"cores": 4}))]
    arrivals += [(1.0, Measured("a", "run", 8, 3.0)), (1.0, Measured("a", "run", 1, 3.0))]
    path = tmp_path / "run.jsonl"
    record(Workload(8, tuple(arrivals), {"p": program_graph("p", 8)}), HostOptions(assign="efficient"), path)
    report = check_journal(path)
    assert report.faults_by_code == {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(line["devices"]) for line in lines if line.get("k") == "resized"] == [1]
    kept = [line for line in lines if (line.get("k"), line.get("width")) != ("measured", 1)]
    assert "idle" in found(path, kept)


def test_who_is_rejected_at_once_sets_the_limit_of_its_group_all_the_same() -> None:
    ask = {"cores": 1, "group": "g"}
    arrivals = [
        (0.0, Arrived("lost", "p", (1.0,), facts=ask | {"parallel": 1, "after": ["nobody"]})),
        *((1.0, Arrived(name, "p", (1.0,), facts=ask)) for name in "ab"),
    ]
    outcome, faults = verify(Workload(2, tuple(arrivals), {"p": program_graph("p", 2)}), HostOptions())
    assert not faults
    assert [row.ended_s for row in outcome.rows] == [None, 2.0, 3.0]
