"""The level's checker: simulations pass, and every planted fault is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Header, TaskGraphRecord, Writer
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.pipeline.check import CODES, check_journal
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.simulate import record
from dovetail.testing.pipeline import random_pipeline


def simulated(path: Path, seed: int, buffers: int = 1) -> Path | None:
    constraints = Constraints(replicas=1 + seed % 3, data_mbps=(None, 50.0)[seed % 2])
    made = plan(random_pipeline(seed, links=seed % 2 == 0), constraints=constraints)
    if not isinstance(made, Plan):
        return None
    record(made, 7, buffers, path)
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
    shape = TaskGraph("microbatch", [Task(name, name) for name in names], [("a", "a to b"), ("a to b", "b")])
    header = Header(
        level="pipeline",
        policy="exact",
        options={"buffers": 1},
        pool=Pool(pool.devices, {"s": DeviceType("s"), "link": DeviceType("link")}),
        graphs=(TaskGraphRecord.of(shape),),
        facts={"model": "m", "devices": names, "lanes": {name: [i] for i, name in enumerate(names)}},
    )
    with Writer(path, header) as writer:
        at: dict[float, list[Any]] = {}
        for n in range(3):
            at.setdefault(0.0, []).append(Arrived(f"microbatch {n + 1}", "microbatch", (1.0, 1.0, 1.0)))
        for n in range(3):
            for i, name in enumerate(names):
                work, t = f"microbatch {n + 1}", float(n + i)
                at.setdefault(t + 1, []).insert(0, Finished(work, name))
                at.setdefault(t, []).append(Start(work, name, name, (i,), t if i else 0.0, 1.0, "fifo"))
                if i == 2:
                    at[t + 1].append(Complete(work))
        for step, t in enumerate(sorted(at), start=1):
            writer.step(step, t, at[t])
        writer.end(len(at) + 1, max(at), {})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def find(lines: Lines, kind: str, number: int, part: str | None = None) -> dict[str, Any]:
    return next(
        line
        for line in lines
        if line.get("k") == kind and line["job"] == f"microbatch {number}" and part in (None, line.get("task"))
    )


def overtake(lines: Lines) -> None:
    """The second and the third change places on stage a, and nowhere else."""
    for line in lines:
        if line.get("task") == "a" and line["job"] in ("microbatch 2", "microbatch 3"):
            line["job"] = "microbatch 5" if line["job"] == "microbatch 2" else "microbatch 2"
    for line in lines:
        if line.get("job") == "microbatch 5":
            line["job"] = "microbatch 3"


def rename(lines: Lines) -> None:
    for line in lines:
        if line.get("job") == "microbatch 3":
            line["job"] = "batch 3"


def double(lines: Lines) -> None:
    for line in lines:
        if line.get("job") == "microbatch 3":
            line["job"] = "microbatch 2 (plan 2)"


def late_out(lines: Lines) -> None:
    for line in lines:
        swapped = {"microbatch 2": "microbatch 3", "microbatch 3": "microbatch 2"}
        if line.get("job") in swapped:
            line["job"] = swapped[line["job"]]


def reject(lines: Lines) -> None:
    line = find(lines, "completed", 3)
    line["k"], line["why"] = "rejected", "its host died"


FAULTS: dict[str, tuple[str, Callable[[Lines], None]]] = {
    "overtaken": ("fifo", overtake),
    "no microbatch": ("microbatch", rename),
    "came out twice": ("delivery", double),
    "came out late": ("delivery", late_out),
    "lost": ("lost", reject),
    "another time": ("seconds", lambda lines: find(lines, "started", 2, "b").update(run_s=2.0)),
    "not its turn": ("turn", lambda lines: lines[0]["facts"]["lanes"].update({"b": [0]})),
    "wrong duration": ("duration", lambda lines: find(lines, "started", 2, "b").update(run_s=2.0)),
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


def live(path: Path, again: bool = True, number: int = 2, ended: str = "") -> Path:
    """A real run whose host b dies while it computes microbatch 2, which is sent again under another plan."""
    hosts = ["a", "a to b", "b", "c"]
    pool = Pool(tuple(Device(i, "cpu") for i in range(4)), {"cpu": DeviceType("cpu")})
    first = TaskGraph("plan 1", [Task(name, name) for name in hosts[:3]], [("a", "a to b"), ("a to b", "b")])
    second = TaskGraph("plan 2", [Task("c", "c")], [])
    header = Header(
        level="pipeline",
        policy="exact",
        mode="live",
        options={"buffers": 1},
        pool=pool,
        graphs=(TaskGraphRecord.of(first), TaskGraphRecord.of(second)),
        facts={"model": "m", "devices": hosts, "ended": ended},
    )
    one, two, resent = "microbatch 1", "microbatch 2", f"microbatch {number} (plan 2)"
    steps: list[tuple[float, list[Any]]] = [
        (0.0, [Arrived(one, "plan 1", (1.0, 0.5, 1.0)), Start(one, "a", "a", (0,), 0.0, 1.0, "")]),
        (1.1, [Finished(one, "a"), Start(one, "a to b", "a to b", (1,), 1.1, 0.5, "")]),
        (1.2, [Arrived(two, "plan 1", (1.0, 0.5, 1.0)), Start(two, "a", "a", (0,), 1.2, 1.0, "")]),
        (1.8, [Finished(one, "a to b"), Start(one, "b", "b", (2,), 1.8, 1.0, "")]),
        (2.5, [Finished(two, "a"), Start(two, "a to b", "a to b", (1,), 2.5, 0.5, "")]),
        (2.9, [Finished(one, "b"), Complete(one)]),
        (3.0, [Finished(two, "a to b"), Start(two, "b", "b", (2,), 3.0, 1.0, "")]),
        (3.5, [Failed(two, "b", "b died"), Reject(two, "b died")]),
    ]
    if again:
        steps += [
            (4.0, [Arrived(resent, "plan 2", (3.0,)), Start(resent, "c", "c", (3,), 4.0, 3.0, "")]),
            (6.5, [Finished(resent, "c"), Complete(resent)]),
        ]
    with Writer(path, header) as writer:
        for n, (t, events) in enumerate(steps, start=1):
            writer.step(n, t, events)
        writer.end(len(steps) + 1, steps[-1][0], {})
    return path


def test_a_real_run_may_send_again_what_was_lost(tmp_path: Path) -> None:
    report = check_journal(live(tmp_path / "run.jsonl"))
    assert report.faults == []
    assert report.notes == ["times were measured: they were not compared with the plan"]
    assert check_journal(live(tmp_path / "run.jsonl", again=False)).faults_by_code == {"lost": 1}
    assert check_journal(live(tmp_path / "run.jsonl", number=1)).faults_by_code == {"delivery": 1, "lost": 1}


def test_what_a_real_run_gave_up_when_it_ended_early_is_a_note(tmp_path: Path) -> None:
    ended = "interrupted: 1 of 9 microbatches came out"
    report = check_journal(live(tmp_path / "run.jsonl", again=False, ended=ended))
    assert report.faults == []
    assert report.notes[1:] == [f"the run ended early: {ended}"]
    # What was sent again and is still on its way was not given up.
    journal = live(tmp_path / "run.jsonl", ended=ended)
    lines = journal.read_text().splitlines()
    kept = [line for line in lines if '"t":6.5' not in line or '"k":"ended"' in line]
    assert len(kept) < len(lines)
    journal.write_text("\n".join(kept) + "\n")
    assert "lost" in check_journal(journal).faults_by_code


def test_the_command_knows_the_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(chain(tmp_path / "run.jsonl"))]) == 0
    assert "not known" not in capsys.readouterr().out
    assert main(["check", str(chain(tmp_path / "run.jsonl", overtake))]) == 1
    assert "a microbatch that overtook another" in capsys.readouterr().out


def test_facts_that_make_no_sense_are_named(tmp_path: Path) -> None:
    journal = chain(tmp_path / "run.jsonl", lambda lines: lines[0]["facts"].update(lanes={"a": ["x"]}))
    with pytest.raises(InputError, match=r"run\.jsonl:1: facts\.lanes"):
        check_journal(journal)
