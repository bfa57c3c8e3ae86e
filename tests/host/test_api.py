"""The level from Python: what goes in in the place of a file or a name, what comes out, and what is refused."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import host
from dovetail.core.errors import InputError
from dovetail.host import Assignment, HostRun, MachineView, Planning, Program, Workload
from dovetail.host.inputs.requests import Request, read_requests

DOCS = Path(__file__).parents[2] / "docs" / "host.md"
EXAMPLES = Path(__file__).parents[2] / "examples" / "host"
LINES = "execution,a,net,4,0,1,120\nexecution,b,net,2,30,0,60\nupdate,a,net,2,5\n"
ROWS: list[dict[str, Any]] = [
    {"id": "a", "image": "net", "threads": 4, "priority": 1, "work": 120},
    {"id": "b", "image": "net", "threads": 2, "delay": 30, "work": 60},
    {"type": "update", "id": "a", "image": "net", "threads": 2, "delay": 5},
]


class Youngest(Planning):
    """The youngest goes first."""

    def order(self, view: MachineView) -> list[Program]:
        return sorted(view.waiting, key=lambda program: -program.seq)


class Half(Assignment):
    """A program gets half of the cores that it asks for, or waits."""

    def most(self, program: Program, view: MachineView) -> int:
        return max(program.asked // 2, program.least)

    def take(self, program: Program, view: MachineView) -> int:
        cores = self.most(program, view)
        return cores if cores <= view.free else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return self.most(program, view) - view.free


def queue(count: int = 4, **row: Any) -> Workload:
    """Programs that take a machine of eight cores each, one after the other."""
    return host.load([{"threads": 8, "work": 80} | row for _ in range(count)], cores=8)


# --- what goes in -------------------------------------------------------------------------------------------------


def frame(library: str) -> Callable[[], Any]:
    return lambda: pytest.importorskip(library).DataFrame(ROWS)


@pytest.mark.parametrize("given", [lambda: ROWS, lambda: tuple(ROWS), frame("pandas"), frame("polars")])
def test_rows_are_as_good_as_a_file(tmp_path: Path, given: Callable[[], Any]) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(LINES)
    expected = host.load(path, cores=8)
    assert host.load(str(path), cores=8).arrivals == expected.arrivals
    assert host.load(given(), cores=8).arrivals == expected.arrivals
    assert host.load(read_requests(path), cores=8).arrivals == expected.arrivals


def test_times_may_be_given_in_any_order() -> None:
    rows = [{"threads": 1, "at_s": 20.0, "id": 0}, {"threads": 2, "at_s": 5, "id": "early"}, {"threads": 1, "at_s": 5}]
    found = [(request.id, request.at_s) for request in read_requests(rows)]
    assert found == [("early", 5.0), ("2", 5.0), ("0", 20.0)]


def test_parameters_may_be_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn: dict[str, Any] = {"get_requests": "create", "number_containers": 3, "policy": "prio", "time_gap": [5, 0]}
    workload = host.load(
        parameters=drawn | {"assignment_policy": "max prop", "max_resources_per_container": 3}, cores=8
    )
    run = host.simulate(workload)
    assert (run.policy, run.header.options["max_cores"], len(run.programs)) == ("priority+max_prop", 3, 3)
    assert list(tmp_path.iterdir()) == []  # nothing is written where nothing was read


def test_curves_are_for_all_or_by_image() -> None:
    for curves in ("amdahl:0.5", ["other@linear", "amdahl:0.5"], {"": "amdahl:0.5"}):
        run = host.simulate(host.load([{"threads": 2, "work": 100}], cores=2, curves=curves))
        assert run.metrics["makespan_s"] == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("requests", "words", "message"),
    [
        ([{"threads": 0}], {}, r"requests: 0\.threads: "),
        ([{"threads": 1}, {"threads": "two"}], {}, r"requests: 1\.threads: expected int"),
        ([{"threads": 1, "thread": 2}], {}, "unknown key 'thread'; did you mean 'threads'"),
        ([{"threads": 1, "id": "a"}, {"threads": 1, "id": "a"}], {}, r"requests\[1\]: id: a is started twice"),
        ([{"threads": 1, "type": "update", "id": "x"}], {}, r"requests\[0\]: id: update of x"),
        ([], {}, "requests: is empty"),
        ({"threads": 1}, {}, "requests: expected a list of requests"),
        (7, {}, "requests: expected a path, dicts, lists or a frame, found 7"),
        ("none.txt", {}, "none.txt: no such file"),
        (ROWS, {"cores": -1}, "cores: expected int >= 1, found -1"),
        (ROWS, {"cores": 2.5}, "cores: expected int, found float"),
        (ROWS, {"work": "much"}, "work: expected core-seconds, found 'much'"),
        ({"jobs": [{"name": "a", "command": "x"}]}, {"work": -3.0}, "work: expected core-seconds, found -3.0"),
        (ROWS, {"curves": 7}, "curves: expected linear, amdahl:FRACTION"),
        (ROWS, {"delays": "never"}, "delays: expected before or after, found 'never'"),
        (ROWS, {"seed": None}, "seed: expected int, found null"),
        (ROWS, {"parameters": {"policy": "fcsf"}}, "parameters: policy: found 'fcsf'; did you mean 'fcfs'"),
    ],
)
def test_what_cannot_be_loaded_is_told(requests: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        host.load(requests, **words)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_run_can_be_asked_everything(tmp_path: Path) -> None:
    run = host.simulate(host.load(EXAMPLES / "requests_file.txt"), "rr", "max_prop", quantum=20)
    assert run.header.options["quantum_s"] == 20
    assert run.metrics["completed"] == len(run.programs) == len(run.frame()["job"])
    assert [row["program"] for row in run.metrics["programs"]] == [program.program for program in run.programs]
    assert run.bound is not None
    assert run.gap is not None
    assert run.metrics["makespan_s"] == pytest.approx(run.bound * (1 + run.gap))
    assert run.check().valid
    assert run.replay().difference is None
    first = run.programs[0].program
    assert first in str(run.explain(first))
    assert run.plot("jobs").svg.count("<text") > len(run.programs)
    assert run.plot().save(tmp_path / "run.svg").read_text().startswith("<svg")
    assert HostRun.read(run.save(tmp_path / "kept.jsonl")).programs == run.programs


def test_the_older_files_are_written_from_a_journal_as_from_a_run(tmp_path: Path) -> None:
    run = host.simulate(queue(), "rr", journal=tmp_path / "run.jsonl")
    written = run.export(tmp_path / "one", "net")
    assert {path.name for path in written} >= {"gantt_events.txt", "scheduler_events.txt", "programs.csv"}
    assert host.check_journal(str(tmp_path / "run.jsonl")).valid
    again = HostRun.read(tmp_path / "run.jsonl").export(tmp_path / "two", "net")
    assert [path.read_text() for path in again] == [path.read_text() for path in written]


def test_a_run_without_a_journal_has_its_figures() -> None:
    run = host.simulate(queue(), journal=False)
    assert (run.policy, run.metrics["makespan_s"], len(run.programs)) == ("fcfs+strict", 40.0, 4)
    with pytest.raises(InputError, match="this run was not recorded"):
        run.check()


def test_a_journal_is_not_written_over_the_requests(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(LINES)
    with pytest.raises(InputError, match="is the same file as the input"):
        host.simulate(host.load(path), journal=path)
    assert path.read_text() == LINES


@pytest.mark.parametrize("plan", [Youngest, Youngest(), lambda: Youngest()])
def test_policies_of_ones_own_decide_and_are_held_to_what_they_promise(plan: Any) -> None:
    run = host.simulate(queue(), plan, Half)
    assert [program.started_s for program in run.programs] == [20.0, 20.0, 0.0, 0.0]  # two at a time
    assert (run.check().valid, run.check().notes, run.replay().difference) == (True, [], None)
    assert run.policy.endswith("+Half")


def test_a_promise_that_is_broken_is_found() -> None:
    class Lazy(Half):
        def take(self, program: Program, view: MachineView) -> int:
            return 0 if view.now < 5 else super().take(program, view)

        def must_start(self, program: Program, view: MachineView) -> bool:
            return self.most(program, view) <= view.free

    run = host.simulate(host.load([{"threads": 2}, {"threads": 2, "at_s": 9}], cores=8), "fcfs", Lazy())
    assert run.check().faults_by_code == {"idle": 1}


def test_a_policy_in_a_file_is_found_again_by_checker_and_replay(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dovetail.host import Planning\n"
        "class Youngest(Planning):\n"
        "    def order(self, view): return sorted(view.waiting, key=lambda program: -program.seq)\n"
    )
    run = host.simulate(queue(), f"{tmp_path}/mine.py:Youngest", journal=tmp_path / "run.jsonl")
    assert run.policy == f"{tmp_path}/mine.py:Youngest+strict"
    read = HostRun.read(tmp_path / "run.jsonl")
    assert (read.check().valid, read.check().notes, read.replay().difference) == (True, [], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"plan": "fcsf"}, "no host policy is called 'fcsf'; did you mean 'fcfs'"),
        ({"plan": "strict"}, "'strict' is no planning policy; planning policies: fcfs, priority, rr"),
        ({"plan": 7}, "expected a host policy: a name, file.py:name, or one of your own; found 7"),
        ({"assign": Youngest()}, "'Youngest' is no assignment policy"),
        ({"quantum": 0}, "quantum_s: expected a positive number, found 0"),
        ({"min_cores": 2.5}, "min_cores: expected int, found float"),
        ({"victim": "all"}, "victim: "),
        ({"journal": 7}, "journal: expected a path, found 7"),
        ({"profile": "legacy", "assign": Half}, "the legacy profile knows fcfs and priority with .*found fcfs.Half"),
    ],
)
def test_what_cannot_be_simulated_is_told(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        host.simulate(queue(1), **words)


def test_what_is_no_workload_or_no_option_is_refused() -> None:
    with pytest.raises(InputError, match="workload: expected what load gives, found 'requests'"):
        host.simulate("requests")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'quantums'"):
        host.simulate(queue(1), quantums=3)  # type: ignore[call-arg]


# --- comparisons --------------------------------------------------------------------------------------------------


def test_an_experiment_compares_ones_own_with_ours(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = host.experiment(
        2,
        3,
        plans=["fcfs", Youngest],
        assigns=["strict", Half()],
        repeats=2,
        cores=8,
        parameters={"resources_per_container": [4, 0]},
        out=tmp_path,
        progress=lambda done, of: told.append((done, of)),
    )
    assert told[-1] == (16, 16)
    rows = [(row["containers"], row["plan"], row["assign"]) for row in found]
    assert rows == [(n, plan, assign) for n in (3, 6) for plan in ("fcfs", "Youngest") for assign in ("strict", "Half")]
    assert found.best("makespan_s")["containers"] == 3
    assert list(found.frame()["runs"]) == [2] * 8
    with (tmp_path / "comparison_ci95.csv").open() as file:
        assert [row["assign"] for row in csv.DictReader(file)] == [row["assign"] for row in found]


def test_by_default_all_policies_are_compared() -> None:
    assert {(row["plan"], row["assign"]) for row in host.experiment(1, 2)} == {
        (plan["name"], assign["name"])
        for plan in host.policies()
        for assign in host.policies()
        if (plan["kind"], assign["kind"]) == ("planning", "assignment")
    }
    older = {(row["plan"], row["assign"]) for row in host.experiment(1, 2, profile="legacy")}
    assert older == {(p, a) for p in ("fcfs", "priority") for a in ("strict", "max_prop", "always_attend")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"runs": 0}, "runs: expected int >= 1"),
        ({"runs": 1.5}, "runs: expected int, found float"),
        ({"repeats": None}, "repeats: expected int, found null"),
        ({"plans": "rr"}, "plans: expected a list of policies, found 'rr'"),
        ({"assigns": []}, r"assigns: expected a list of policies, found \[\]"),
        ({"out": 7}, "out: expected a path, found 7"),
        ({"plans": ["rr"], "profile": "legacy"}, "the legacy profile knows fcfs and priority"),
    ],
)
def test_what_cannot_be_compared_is_told(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        host.experiment(**{"runs": 1, "containers": 2} | words)


def test_requests_are_shown_as_what_they_are() -> None:
    assert repr(queue(3)) == "<Workload of 3 programs on 8 cores>"
    assert repr(host.simulate(queue())) == (
        "<HostRun fcfs+strict, 4 of 4 completed, makespan 40 s (0.0 % above the bound)>"
    )
    assert isinstance(read_requests([{"threads": 1}])[0], Request)


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"## From Python\n\n```python\n(.*?)```", DOCS.read_text(), re.S)
    exec(compile(block, str(DOCS), "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "run.svg"}
