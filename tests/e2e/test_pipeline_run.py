"""Plans run for real, on processes of this machine: what comes out, and what happens when stages die or slow down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.cli import main
from dovetail.cli.check import examine
from dovetail.core.journal import Reader
from dovetail.pipeline.live import HostSettings, Patience, RunOptions, RunResult, run_plan
from dovetail.pipeline.live.coordinator import PipelineStoppedError
from dovetail.pipeline.live.local import LocalEngine
from dovetail.pipeline.plan import Plan

torch = pytest.importorskip("torch")

CALM = Patience(slow_factor=0)  # a busy machine must not look like a slow stage
QUICK = RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=0, heartbeat_limit_s=2.0))


def _same(outcome: RunResult, expected: list[Any]) -> bool:
    pairs = zip(outcome.outputs, expected, strict=True)
    return all(torch.equal(found, wanted) for found, wanted in pairs)


def _check(journal: Path) -> None:
    report = examine(journal)
    assert report.valid, report.faults


@pytest.mark.parametrize("constraints", [{}, {"replicas": 2}], ids=["chain", "replicas"])
def test_output_is_that_of_the_whole_model(small: Any, tmp_path: Path, constraints: dict[str, int]) -> None:
    plan = small.plan("a", "b", "c", "d", transfer_s=0.0001, **constraints)
    numbers: list[int] = []
    outcome = run_plan(
        plan,
        small.spec,
        microbatches=30,
        keep_outputs=True,
        deliver=lambda number, _: numbers.append(number),
        journal=tmp_path / "run.jsonl",
        options=RunOptions(patience=CALM),
    )
    assert numbers == list(range(30))
    assert _same(outcome, small.expected(30))
    assert (outcome.completed, outcome.items, outcome.plans) == (30, 60, 1)
    assert [stage.layers for stage in outcome.stages] == [stage.layers for stage in plan.stages]
    assert all(stage.compute_s and stage.send_s for stage in outcome.stages)
    _check(tmp_path / "run.jsonl")
    header = Reader(tmp_path / "run.jsonl").header
    assert (header.level, header.mode) == ("pipeline", "live")
    assert [chart["title"] for chart in header.facts["charts"]] == [
        "Throughput by number of devices",
        "Throughput by speed of the links",
    ]


class Saboteur:
    """Signals a stage's process when certain microbatches come out."""

    def __init__(self, engine: LocalEngine, at: list[int], signum: signal.Signals, rng: random.Random) -> None:
        self.engine, self.at, self.signum, self.rng = engine, at, signum, rng
        self.hit: list[str] = []

    def __call__(self, number: int, _: Any) -> None:
        if number in self.at:
            gone = self.engine.ended()
            host = self.rng.choice([host for host in self.engine.pids if host not in gone])
            self.hit.append(host)
            os.kill(self.engine.pids[host], self.signum)


@pytest.mark.parametrize(("seed", "hosts", "replicas"), [(1, 4, 1), (2, 4, 1), (3, 5, 2)])
def test_killed_stages_lose_and_double_nothing(
    small: Any, tmp_path: Path, seed: int, hosts: int, replicas: int
) -> None:
    rng, count = random.Random(seed), 60
    engine = LocalEngine()
    saboteur = Saboteur(engine, sorted(rng.sample(range(count - 20), 3)), signal.SIGKILL, rng)
    outcome = run_plan(
        small.plan(*"abcde"[:hosts], seconds=0.004, transfer_s=0.004, replicas=replicas),
        small.spec,
        microbatches=count,
        engine=engine,
        deliver=saboteur,
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=msgspec.structs.replace(QUICK, shape_links=True),
    )
    assert len(saboteur.hit) == 3
    assert _same(outcome, small.expected(count))
    assert 1 < outcome.plans <= 4
    assert all("SIGKILL" in change.why or "connection" in change.why for change in outcome.changes)
    _check(tmp_path / "run.jsonl")


def test_silent_stage_is_dead(small: Any, tmp_path: Path) -> None:
    engine = LocalEngine()
    saboteur = Saboteur(engine, [10], signal.SIGSTOP, random.Random(3))
    outcome = run_plan(
        small.plan("a", "b", "c", seconds=0.004, transfer_s=0.004),
        small.spec,
        microbatches=40,
        engine=engine,
        deliver=saboteur,
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=msgspec.structs.replace(QUICK, shape_links=True),
    )
    assert _same(outcome, small.expected(40))
    assert [change.why for change in outcome.changes] == [f"{saboteur.hit[0]}: no heartbeat for 2 s"]
    _check(tmp_path / "run.jsonl")


class Brake(threading.Thread):
    """Stops and continues a process in turn, so that it gets only a part of the time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.on = pid, True

    def run(self) -> None:
        try:
            while self.on:
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.002)
        except ProcessLookupError:
            pass


def test_slow_stage_gets_fewer_layers(larger: Any) -> None:
    engine = LocalEngine()
    brakes: list[Brake] = []
    plan: Plan = larger.plan("a", "b", seconds=0.004, transfer_s=0.0001)
    braked = plan.stages[1].host

    def brake(number: int, _: Any) -> None:
        if number == 30:
            brakes.append(Brake(engine.pids[braked]))
            brakes[0].start()

    def release(text: str) -> None:
        if text.startswith(f"{braked} takes"):
            brakes[0].on = False

    patience = Patience(slow_factor=2.0, heartbeat_limit_s=30.0)
    try:
        outcome = run_plan(
            plan,
            larger.spec,
            microbatches=120,
            engine=engine,
            deliver=brake,
            notice=release,
            keep_outputs=True,
            hosts={"a": HostSettings(threads=1), "b": HostSettings(threads=1)},
            options=RunOptions(heartbeat_s=0.1, patience=patience),
        )
    finally:
        brakes[0].on = False
    assert _same(outcome, larger.expected(120))
    assert any(change.why.startswith(f"{braked} takes") for change in outcome.changes), outcome.changes


def test_no_plan_left_keeps_what_came_out(small: Any, tmp_path: Path) -> None:
    engine = LocalEngine()
    came: list[int] = []

    def deliver(number: int, _: Any) -> None:
        came.append(number)
        if number == 5:
            for pid in engine.pids.values():
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(PipelineStoppedError, match=r"no plan is left.*of 50 microbatches were completed"):
        run_plan(
            small.plan("a", "b", seconds=0.004, transfer_s=0.004),
            small.spec,
            microbatches=50,
            engine=engine,
            deliver=deliver,
            journal=tmp_path / "run.jsonl",
            options=msgspec.structs.replace(QUICK, shape_links=True),
        )
    assert came == list(range(len(came)))
    report = examine(tmp_path / "run.jsonl")
    assert report.counted["completed"] == len(came)
    assert set(report.faults_by_code) <= {"lost"}  # it says which microbatches never came out


def test_layers_that_cannot_run_end_the_run(small: Any) -> None:
    strange = [torch.zeros(2, 16, 7)] * 3
    with pytest.raises(PipelineStoppedError, match=r"layers 1 to 3.*RuntimeError"):
        run_plan(small.plan("a", "b", transfer_s=0.0001), small.spec, inputs=strange)


def test_quantised_links_lose_little(small: Any) -> None:
    plan = small.plan("a", "b", transfer_s=0.0001)
    expected = small.expected(10)
    errors = []
    for bits in (16, 8, 4):
        options = RunOptions(link_bits=bits, patience=CALM)
        outcome = run_plan(plan, small.spec, microbatches=10, keep_outputs=True, options=options)
        assert outcome.stages[0].send_bits == bits
        pairs = zip(outcome.outputs, expected, strict=True)
        errors.append(max(float((found - wanted).abs().max()) for found, wanted in pairs))
    assert 0 < errors[0] < errors[1] < errors[2]
    assert errors[0] < 0.001
    assert errors[1] < 0.1


def test_target_rate_narrows_slow_links(small: Any) -> None:
    """A link that carries 50 microbatches a second at 32 bits must be narrowed to carry twice as many."""
    plan = small.plan("a", "b", seconds=0.02, transfer_s=0.02)
    options = RunOptions(target_items_s=200.0, shape_links=True, patience=CALM)
    outcome = run_plan(plan, small.spec, microbatches=60, options=options)
    assert 2 <= outcome.stages[0].send_bits <= 16


def _write_plan(plan: Plan, path: Path) -> Path:
    path.write_bytes(msgspec.json.encode(plan))
    return path


def test_command_with_files(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _write_plan(small.plan("a", "b", transfer_s=0.0001), tmp_path / "plan.json")
    items = torch.randn(9, 16, 32)  # the last microbatch is smaller
    np.save(tmp_path / "in.npy", items.numpy())
    (tmp_path / "hosts.yml").write_text(f"a: {{cores: [{min(os.sched_getaffinity(0))}], threads: 1}}\n")
    files = ["--input", str(tmp_path / "in.npy"), "--output", str(tmp_path / "out.npy")]
    words = ["pipeline", "run", str(plan), *small.words(), "--hosts", str(tmp_path / "hosts.yml"), *files]
    assert main([*words, "--slow-factor", "0", "--journal", str(tmp_path / "run.jsonl"), "--format", "json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert (shown["completed"], shown["items"]) == (5, 9)
    from dovetail.pipeline.models.load import load

    whole = load(small.spec).part(1, small.layers)
    expected = torch.cat([whole(part) for part in items.split(2)])
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected.numpy())
    assert main(["check", str(tmp_path / "run.jsonl")]) == 0
    assert main(["report", str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "report.html")]) == 0


def _started(small: Any, tmp_path: Path, *words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The command, running, and the processes of its stages."""
    plan = _write_plan(small.plan("a", "b", "c", seconds=0.004, transfer_s=0.004), tmp_path / "plan.json")
    program = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())"]
    command = [*program, "pipeline", "run", str(plan), *small.words(), "--shape-links", "--slow-factor", "0"]
    process = subprocess.Popen([*command, "--microbatches", "100000", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("plan 1 runs on"):
            break
    else:
        pytest.fail("it did not start")
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    assert len(children) == 3
    return process, children


def _gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_came_out(small: Any, tmp_path: Path, signum: signal.Signals) -> None:
    journal, output = tmp_path / "run.jsonl", tmp_path / "out.npy"
    process, children = _started(small, tmp_path, "--journal", str(journal), "--output", str(output))
    with process:
        time.sleep(0.5)
        process.send_signal(signum)
        assert process.wait(timeout=60) == 130
    assert _gone(children)
    report = examine(journal)
    completed = report.counted["completed"]
    assert report.valid, report.faults
    assert f"the run ended early: interrupted: {completed} of 100000 microbatches came out" in report.notes
    assert completed > 0
    assert len(np.load(output)) == completed * small.batch_size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--journal", "/proc/1/run.jsonl"], "/proc/1/run.jsonl: cannot be written"),
        (["--output", "."], ".: is a folder; expected a file"),
        (["--input-dtype", "zz"], "unknown dtype 'zz'"),
        (["--input", "flat.npy"], "takes items of [(16, 32)], found [(3,)]"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: no Ray cluster can be reached there"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    small: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("flat.npy", np.zeros((4, 3), dtype=np.float32))
    plan = _write_plan(small.plan("a", "b"), tmp_path / "plan.json")
    assert main(["pipeline", "run", str(plan), *small.words(), *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "runs on" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"flat.npy", "plan.json"}


def test_stages_end_when_the_coordinator_is_killed(small: Any, tmp_path: Path) -> None:
    process, children = _started(small, tmp_path)
    with process:
        process.kill()
    assert _gone(children)
