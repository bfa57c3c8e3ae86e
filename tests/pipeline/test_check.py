"""The level's checker: simulations pass, and every planted fault is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Start
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord
from dovetail.pipeline.check import CODES, check_journal
from dovetail.pipeline.check.plan import plan_faults
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.supervisor import Patience
from dovetail.pipeline.plan import Constraints, InfeasibleError, Objective, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.policies.base import plan as plan_with
from dovetail.pipeline.simulate import simulate
from dovetail.testing.damage import damaged
from dovetail.testing.pipeline import random_pipeline
from dovetail.testing.pipeline_live import PlayedRun, even_plan


def simulated(path: Path, seed: int, buffers: int = 1) -> Path | None:
    constraints = Constraints(replicas=1 + seed % 3, data_mbps=(None, 50.0)[seed % 2])
    made = plan(random_pipeline(seed, links=seed % 2 == 0), constraints=constraints)
    if not isinstance(made, Plan):
        return None
    simulate(made, 7, buffers, path)
    return path


def test_simulations_pass(tmp_path: Path) -> None:
    checked = 0
    for seed in range(60):
        journal = simulated(tmp_path / "run.jsonl", seed, 1 + seed % 2)
        if journal is not None:
            report = check_journal(journal)
            assert report.faults == [], seed
            assert report.valid
            assert report.counted["bound_makespan_s"] <= report.counted["makespan_s"] * (1 + 1e-9)
            checked += 1
    assert checked > 20


Lines = list[dict[str, Any]]


def chain(path: Path, change: Callable[[Lines], None] = lambda lines: None) -> Path:
    """A small run by hand, changed before it is written: two stages and the link between them, three microbatches."""
    pool = Pool(tuple(Device(i, kind) for i, kind in enumerate(("s", "link", "s"))), {"s": DeviceType("s")})
    names = ["a", "a to b", "b"]
    graph = TaskGraph("microbatch", [Task(name, name) for name in names], [("a", "a to b"), ("a to b", "b")])
    header = Header(
        level="pipeline",
        policy="exact",
        options={"buffers": 1, "microbatches": 3},
        pool=Pool(pool.devices, {"s": DeviceType("s"), "link": DeviceType("link")}),
        graphs=(TaskGraphRecord.of(graph),),
        facts={"model": "m", "devices": names, "lanes": {name: [i] for i, name in enumerate(names)}},
    )
    with Writer(path, header) as writer:
        at: dict[float, list[Any]] = {}
        for n in range(3):
            facts = {"number": n + 1}
            at.setdefault(0.0, []).append(Arrived(f"microbatch {n + 1}", "microbatch", (1.0, 1.0, 1.0), facts=facts))
        for n in range(3):
            for i, name in enumerate(names):
                job, t = f"microbatch {n + 1}", float(n + i)
                at.setdefault(t + 1, []).insert(0, Finished(job, name))
                at.setdefault(t, []).append(Start(job, name, name, (i,), t if i else 0.0, 1.0, "fifo"))
                if i == 2:
                    at[t + 1].append(Complete(job))
        for step, t in enumerate(sorted(at), start=1):
            writer.step(step, t, at[t])
        writer.end(len(at) + 1, max(at), {})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def find(lines: Lines, kind: str, number: int, task: str | None = None) -> dict[str, Any]:
    return next(
        line
        for line in lines
        if line.get("k") == kind and line["job"] == f"microbatch {number}" and task in (None, line.get("task"))
    )


def overtake(lines: Lines) -> None:
    """The second and the third change places on stage a, and nowhere else."""
    for line in lines:
        if line.get("task") == "a" and line["job"] in ("microbatch 2", "microbatch 3"):
            line["job"] = "microbatch 5" if line["job"] == "microbatch 2" else "microbatch 2"
    for line in lines:
        if line.get("job") == "microbatch 5":
            line["job"] = "microbatch 3"


def renumber(lines: Lines, was: int, now: object) -> None:
    find(lines, "arrived", was)["facts"]["number"] = now


def late_out(lines: Lines) -> None:
    renumber(lines, 2, 0)
    renumber(lines, 3, 2)
    renumber(lines, 2, 3)


def drop(lines: Lines, number: int = 2) -> None:
    """A whole microbatch is missing, and the summary is silent about it."""
    lines[:] = [line for line in lines if line.get("job") != f"microbatch {number}"]


def reject(lines: Lines) -> None:
    line = find(lines, "completed", 3)
    line["k"], line["why"] = "rejected", "its host died"


FAULTS: dict[str, tuple[str, Callable[[Lines], None]]] = {
    "overtaken": ("fifo", overtake),
    "no microbatch": ("microbatch", lambda lines: renumber(lines, 3, "three")),
    "one too many": ("microbatch", lambda lines: renumber(lines, 3, 4)),
    "came out twice": ("delivery", lambda lines: renumber(lines, 3, 2)),
    "came out late": ("delivery", late_out),
    "lost": ("lost", reject),
    "a whole microbatch dropped": ("lost", drop),
    "the last microbatch dropped": ("lost", lambda lines: drop(lines, 3)),
    "another time": ("seconds", lambda lines: find(lines, "started", 2, "b").update(run_s=2.0)),
    "not its turn": ("turn", lambda lines: lines[0]["facts"]["lanes"].update({"b": [0]})),
    "on the wrong device": ("turn", lambda lines: find(lines, "started", 2, "b").update(devices=[0])),
    "two at once": ("overlap", lambda lines: find(lines, "started", 1, "b").update(devices=[0])),
    "wrong duration": ("duration", lambda lines: find(lines, "started", 2, "b").update(run_s=2.0)),
    "claims that less is possible than is": ("bound", lambda lines: lines[0]["facts"].update(bound_makespan_s=1.0)),
    "better than it claims to be possible": ("bound", lambda lines: lines[0]["facts"].update(bound_makespan_s=5.5)),
    "a stage left out": ("missing", lambda lines: lines.remove(find(lines, "finished", 2, "b"))),
}


def test_the_run_by_hand_is_sound(tmp_path: Path) -> None:
    assert check_journal(chain(tmp_path / "run.jsonl")).faults == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    code, plant = FAULTS[name]
    report = check_journal(chain(tmp_path / "run.jsonl", plant))
    assert code in report.faults_by_code
    assert set(report.faults_by_code) <= set(CODES)


def test_devices_of_a_simulation_are_called_as_the_plan_says(tmp_path: Path) -> None:
    checked = 0
    for seed in range(40):
        journal = simulated(tmp_path / "run.jsonl", seed)
        if journal is not None:
            header, _, rest = journal.read_text().partition("\n")
            changed = json.loads(header)
            Random(seed).shuffle(changed["facts"]["devices"])
            if changed != json.loads(header):
                journal.write_text(json.dumps(changed) + "\n" + rest)
                assert set(check_journal(journal).faults_by_code) == {"name"}
                checked += 1
    assert checked > 5


def rescale(value: Any, by: float) -> Any:
    """Every number of seconds `by` times as long, wherever it stands."""
    if isinstance(value, dict):
        return {
            key: [each * by for each in inner]
            if key == "sizes"
            else inner * by
            if isinstance(inner, float) and (key == "t" or key.endswith("_s"))
            else rescale(inner, by)
            for key, inner in value.items()
        }
    return [rescale(each, by) for each in value] if isinstance(value, list) else value


def half_the_plan(lines: Lines) -> None:
    """A plan of half the times, consistent in itself but for what throughput is."""
    plan = lines[0]["facts"]["plan"] = rescale(lines[0]["facts"]["plan"], 0.5)
    plan["throughput_items_s"] *= 2
    plan["value"] *= 0.5


def half_the_run(lines: Lines) -> None:
    header = lines[0]["facts"]
    lines[1:] = rescale(lines[1:], 0.5)
    header["bound_makespan_s"] *= 0.5


def bare(lines: Lines) -> None:
    """A plan that does not hold the problem it was made for."""
    lines[0]["facts"]["plan"]["problem"] = None


def both(*changes: Callable[[Lines], None]) -> Callable[[Lines], None]:
    def plant(lines: Lines) -> None:
        for change in changes:
            change(lines)

    return plant


def in_plan(key: str, change: Callable[[Any], Any]) -> Callable[[Lines], None]:
    """One place of the header's plan, by its keys."""

    def plant(lines: Lines) -> None:
        at: Any = lines[0]["facts"]["plan"]
        *way, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        for part in way:
            at = at[part]
        assert at[last] != change(at[last])
        at[last] = change(at[last])

    return plant


def in_header(key: str, value: object) -> Callable[[Lines], None]:
    def plant(lines: Lines) -> None:
        assert lines[0]["facts"][key] != value
        lines[0]["facts"][key] = value

    return plant


def twice(value: float) -> float:
    return 2 * value + 0.001


PLAN_FAULTS: dict[str, tuple[str, Callable[[Lines], None]]] = {
    "a plan of half the times": ("seconds", half_the_plan),
    "a run of half the times": ("seconds", half_the_run),
    "a plan of half the times without its problem": ("seconds", both(half_the_plan, bare)),
    "a plan of half the times with its problem": ("plan", half_the_plan),
    "a layer left out": ("plan", in_plan("stages.1.layers", lambda layers: [layers[0] + 1, layers[1]])),
    "the last layer left out": ("plan", in_plan("stages.2.layers", lambda layers: [layers[0], layers[1] - 1])),
    "a layer moved": (
        "plan",
        both(
            in_plan("stages.0.layers", lambda layers: [layers[0], layers[1] + 1]),
            in_plan("stages.1.layers", lambda layers: [layers[0] + 1, layers[1]]),
        ),
    ),
    "a host that there is not": ("plan", in_plan("stages.0.host", lambda host: "another")),
    "a stage on the host of another": ("plan", in_plan("stages.0.host", lambda host: "h1")),
    "a problem of other times": ("plan", in_plan("problem.classes.0.time_s.0", twice)),
    "a problem of other links": ("plan", in_plan("problem.classes.0.bw_mbps", twice)),
    "a problem of fewer layers": ("plan", in_plan("problem.layers", lambda layers: layers - 1)),
    "another batch size": ("plan", in_plan("batch_size", lambda size: size + 1)),
    "a cut that was not allowed": ("plan", in_plan("constraints.allowed_cuts", lambda cuts: [1])),
    "fewer devices allowed": ("plan", in_plan("constraints.max_stages", lambda most: 1)),
    "another binding": ("plan", in_plan("binding", lambda binding: "the transfer of the input")),
    "a gap": ("plan", in_plan("gap", lambda gap: -0.5)),
    "no gap": ("plan", in_plan("gap", lambda gap: None)),
    "a bound above the value": ("plan", in_plan("bound_s", twice)),
    "a bound below the optimum": ("plan", in_plan("bound_s", lambda bound: bound / 2)),
    "another objective": ("plan", in_plan("objective", lambda objective: "latency")),
    "an energy that nobody knows": ("plan", in_plan("energy_j_per_item", lambda joules: 1.0)),
    "another method": ("route", in_plan("method", lambda method: "auction")),
    "another model": ("route", in_header("model", "another")),
    "more asked for": ("route", in_header("asked", 9)),
    "another type": ("route", lambda lines: lines[0]["pool"]["devices"][0].update(type="link")),
    "another graph": ("route", lambda lines: lines[0]["graphs"][0]["edges"].pop()),
    **{
        f"another {key}": ("plan", in_plan(key, twice))
        for key in ("bottleneck_s", "latency_s", "throughput_items_s", "value", "enter_s")
    },
    **{
        f"another {key} of a stage": ("plan", in_plan(f"stages.1.{key}", twice))
        for key in ("compute_s", "send_s", "mem_mib", "mem_limit_mib", "utilisation", "slack_s", "send_slack_s")
    },
    "another memory left": ("plan", in_plan("stages.1.mem_slack_mib", twice)),
    "another type of a stage": ("plan", in_plan("stages.1.type", lambda kind: "another")),
    "another width of a link": ("plan", in_plan("stages.0.send_bits", lambda bits: 8)),
}


def simulated_lines(path: Path, change: Callable[[Lines], None] = lambda lines: None) -> Path:
    """A simulation of three stages, changed afterwards."""
    simulate(even_plan(3), 4, journal=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", PLAN_FAULTS)
def test_a_fault_planted_in_the_plan_of_the_header_is_found(tmp_path: Path, name: str) -> None:
    code, plant = PLAN_FAULTS[name]
    report = check_journal(simulated_lines(tmp_path / "run.jsonl", plant))
    assert code in report.faults_by_code, report.faults
    assert set(report.faults_by_code) <= set(CODES)


def test_a_plan_without_its_problem_is_held_to_its_stages(tmp_path: Path) -> None:
    assert check_journal(simulated_lines(tmp_path / "run.jsonl", bare)).faults == []
    changed = both(bare, in_plan("stages.1.compute_s", twice))
    assert check_journal(simulated_lines(tmp_path / "run.jsonl", changed)).faults_by_code.keys() == {"plan", "seconds"}


@pytest.mark.parametrize("objective", get_args(Objective))
def test_plans_for_every_objective_and_method_are_held(tmp_path: Path, objective: Objective) -> None:
    limits = Constraints(replicas=2, link_bits=(8, 32), data_mbps=20.0)
    held = 0
    for seed in range(12):
        problem = random_pipeline(seed, links=seed % 2 == 0)
        made = plan(problem, objective, limits if seed % 3 else None)
        if isinstance(made, Plan):
            assert plan_faults(made) == [], seed
            held += 1
    assert held > 4


def test_plans_of_other_methods_are_held() -> None:
    held = 0
    for seed in range(12):
        with suppress(InfeasibleError):
            assert plan_faults(plan_with(random_pipeline(seed), method="auction")) == [], seed
            held += 1
    assert held > 4


def test_times_below_a_nanosecond_are_told_apart(tmp_path: Path) -> None:
    made = msgspec.structs.replace(even_plan(3), problem=None, constraints=None)
    tiny = msgspec.convert(rescale(msgspec.to_builtins(made), 1e-10), Plan)
    tiny.throughput_items_s, tiny.value = tiny.batch_size / tiny.bottleneck_s, tiny.bottleneck_s
    path = tmp_path / "run.jsonl"
    simulate(tiny, 4, journal=path)
    assert check_journal(path).faults == []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    half_the_run(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "seconds" in check_journal(path).faults_by_code


def test_a_makespan_below_what_is_possible_is_found(tmp_path: Path) -> None:
    """Three microbatches through three places of one second each, in half the time."""

    def hurry(lines: Lines) -> None:
        for line in lines:
            if line.get("t"):
                line["t"] /= 2

    report = check_journal(chain(tmp_path / "run.jsonl", hurry))
    assert "bound" in report.faults_by_code
    assert "at least 5.0" in str([fault for fault in report.faults if fault.code == "bound"])


def test_more_waiting_than_there_are_buffers_is_found(tmp_path: Path) -> None:
    """Runs with three buffers, in journals that claim one."""
    found = 0
    for seed in range(60):
        journal = simulated(tmp_path / "run.jsonl", seed, buffers=3)
        if journal is not None:
            journal.write_text(journal.read_text().replace('"buffers":3', '"buffers":1', 1))
            faults = check_journal(journal).faults_by_code
            assert set(faults) <= {"buffer"}
            found += bool(faults)
    assert found > 5


PATIENT = RunOptions(patience=Patience(heartbeat_limit_s=1000.0))


def played(path: Path, change: Callable[[Lines], None] = lambda lines: None) -> Path:
    """A live run of six microbatches whose second host dies on the way, changed afterwards."""
    PlayedRun(path, even_plan(3), 6, deaths={3: "h1"}, options=PATIENT)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def resent(lines: Lines, kind: str, number: int, task: str | None = None) -> dict[str, Any]:
    """A line about a microbatch that came again under the second plan."""
    job = f"microbatch {number} (plan 2)"
    return next(e for e in lines if e.get("k") == kind and e["job"] == job and task in (None, e.get("task")))


def overlap(lines: Lines) -> None:
    second = find(lines, "started", 2, "h0")
    second["t"] = find(lines, "started", 1, "h0")["t"] + 0.1


def backwards(lines: Lines) -> None:
    """Stage h2 begins before h1 has ended."""
    find(lines, "started", 1, "h2")["t"] = find(lines, "started", 1, "h1")["t"] + 0.1


def vanish(lines: Lines) -> None:
    """Microbatch 5 is in no record, under no plan, and the summary says nothing of it."""
    lines[:] = [line for line in lines if not str(line.get("job", "")).startswith("microbatch 5")]
    lines[-1]["summary"] = {}


LIVE_FAULTS: dict[str, tuple[str, Callable[[Lines], None]]] = {
    "two at once on a stage": ("overlap", overlap),
    "order of stages": ("order", backwards),
    "dropped": ("lost", vanish),
    "came out twice": ("delivery", lambda lines: resent(lines, "arrived", 6)["facts"].update(number=5)),
    "on another host": ("turn", lambda lines: find(lines, "started", 2, "h0").update(devices=[5])),
    "on another host after the change of plan": (
        "turn",
        lambda lines: resent(lines, "started", 5, "h2").update(devices=[1]),
    ),
    "hardware that the header does not name": (
        "hardware",
        lambda lines: next(e for e in lines if e.get("what") == "device")["facts"].update(device="a GPU"),
    ),
    "a device by another name": ("name", lambda lines: lines[0]["facts"]["devices"].__setitem__(1, "h7")),
    "a link by another name": ("name", lambda lines: lines[0]["facts"]["devices"].__setitem__(2, "h0 to h7")),
    "a device without a name": ("name", lambda lines: lines[0]["facts"]["devices"].pop()),
    "a device of another plan by another name": (
        "name",
        lambda lines: next(e for e in lines if e.get("what") == "devices")["facts"]["devices"].__setitem__(0, "h7"),
    ),
    "a plan of half the times": ("seconds", half_the_plan),
    "a plan of other figures": ("plan", in_plan("latency_s", twice)),
    "a stage that was to take less": ("seconds", lambda lines: find(lines, "started", 2, "h0").update(run_s=0.1)),
    "called by the planned type": ("hardware", lambda lines: lines[0]["pool"]["devices"][1].update(type="link")),
}


def test_a_live_run_is_sound(tmp_path: Path) -> None:
    report = check_journal(played(tmp_path / "run.jsonl"))
    assert report.faults == []
    assert report.notes == [
        "times were measured: they were not compared with the plan",
        *(f"h{i} ran on cpu a processor, planned as t" for i in range(3)),
    ]


@pytest.mark.parametrize("name", LIVE_FAULTS)
def test_a_fault_planted_in_a_live_run_is_found(tmp_path: Path, name: str) -> None:
    code, plant = LIVE_FAULTS[name]
    report = check_journal(played(tmp_path / "run.jsonl", plant))
    assert code in report.faults_by_code, report.faults
    assert set(report.faults_by_code) <= set(CODES)


def test_a_run_that_ended_early_says_why(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    PlayedRun(path, even_plan(2), 9, deaths={2: "h0", 4: "h1"}, options=PATIENT)
    report = check_journal(path)
    assert report.faults == []
    why = "h1: its process was ended by SIGKILL; no plan is left: all hosts are dead"
    assert report.notes[-1] == f"the run ended early: {why}"


def test_an_interrupted_run_is_one_finding(tmp_path: Path) -> None:
    path = played(tmp_path / "run.jsonl", lambda lines: lines.__delitem__(slice(len(lines) // 2, None)))
    report = check_journal(path)
    assert report.faults_by_code == {"end": 1}
    assert report.faults[0].message.startswith("did not end: ")


@pytest.mark.parametrize("make", [chain, played, simulated_lines])
def test_a_damaged_journal_is_a_finding_or_a_located_error(
    tmp_path: Path, make: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is changed, the commands end with 0, 1 or 2, and never with an internal error."""
    whole = make(tmp_path / "run.jsonl").read_bytes()
    seen: set[int] = set()
    for seed in range(150):
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(damaged(whole, Random(seed), places=1 + seed % 3))
        code = main(["check", str(path)])
        err = capsys.readouterr().err
        assert "internal error" not in err, (seed, err)
        assert code in (0, 1, 2), seed
        seen.add(code)
    assert seen >= {1, 2}


def test_the_command_knows_the_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(chain(tmp_path / "run.jsonl"))]) == 0
    assert "not known" not in capsys.readouterr().out
    assert main(["check", str(chain(tmp_path / "run.jsonl", overtake))]) == 1
    assert "a microbatch that overtook another" in capsys.readouterr().out


def test_facts_that_make_no_sense_are_named(tmp_path: Path) -> None:
    journal = chain(tmp_path / "run.jsonl", lambda lines: lines[0]["facts"].update(lanes={"a": ["x"]}))
    with pytest.raises(InputError, match=r"run\.jsonl:1: facts\.lanes"):
        check_journal(journal)
