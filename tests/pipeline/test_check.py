"""The level's checker: simulations pass, and every planted fault is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Start
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph, TaskGraphRecord
from dovetail.pipeline.check import CODES, check_journal
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.supervisor import Patience
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan
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


@pytest.mark.parametrize("make", [chain, played])
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
