"""Plans run for real, on processes of this machine: what comes out, and what happens when stages die or slow down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from dovetail import InputError, check_journal, pipeline
from dovetail.cli import main
from dovetail.core.events import Decided, Observed
from dovetail.core.journal import Reader
from dovetail.core.rates import RateTable
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live import LiveResult, Patience, RunOptions, run_plan
from dovetail.pipeline.live.coordinator import Coordinator, PipelineStoppedError
from dovetail.pipeline.live.local import LocalEngine
from dovetail.pipeline.live.stage import StageSettings
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan as make_plan
from dovetail.pipeline.scheduler import scheduler_for

torch = pytest.importorskip("torch")

from tests.e2e.slowable import LAYERS, SLEEP_S  # noqa: E402
from tests.processes import children_of  # noqa: E402
from tests.waiting import PATIENCE_S, until  # noqa: E402

CPU = {"all": "cpu"}
# A busy machine must not look like a slow stage, or a dead one: a killed process is known by its connection.
CALM = Patience(slow_factor=0, heartbeat_limit_s=60.0)
QUICK = RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=0, heartbeat_limit_s=30.0))


def _same(outcome: LiveResult, expected: list[Any]) -> bool:
    pairs = zip(outcome.outputs, expected, strict=True)
    return all(torch.equal(found, wanted) for found, wanted in pairs)


def _check(journal: Path) -> None:
    """The journal is sound, and what the supervisor decided follows from what it was told."""
    report = check_journal(journal)
    assert report.valid, report.faults
    reader = Reader(journal)
    supervisor = scheduler_for(reader)
    for n, t, events in reader.rows():
        decided = supervisor.handle([event for event in events if isinstance(event, Observed)], t)
        assert decided == [event for event in events if isinstance(event, Decided)], n


@pytest.mark.parametrize("constraints", [{}, {"replicas": 2}], ids=["chain", "replicas"])
def test_output_is_that_of_the_whole_model(small: Any, tmp_path: Path, constraints: dict[str, int]) -> None:
    plan = small.plan("a", "b", "c", "d", transfer_s=0.0001, **constraints)
    numbers: list[int] = []
    outcome = run_plan(
        plan,
        small.spec,
        on=CPU,
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
        on=CPU,
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
        on=CPU,
        microbatches=40,
        engine=engine,
        deliver=saboteur,
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=0, heartbeat_limit_s=6.0), shape_links=True),
    )
    assert _same(outcome, small.expected(40))
    assert [change.why for change in outcome.changes] == [f"{saboteur.hit[0]}: no heartbeat for 6 s"]
    _check(tmp_path / "run.jsonl")


def test_slow_stage_gets_fewer_layers(tmp_path: Path) -> None:
    """Two stages of two layers; when a few microbatches are through, one process takes ten times as long."""
    engine, flag, total = LocalEngine(), tmp_path / "slow", 50
    device = DeviceClass("t", "t", ["a", "b"], 1000.0, 100.0, [SLEEP_S] * LAYERS)
    problem = Pipeline(
        model="sleeper",
        layers=LAYERS,
        mem_mib=[1.0] * LAYERS,
        cut_bytes=[16] * (LAYERS + 1),
        classes=[device],
        batch_size=1,
        dtype="torch.float32",
    )
    plan = make_plan(problem)
    assert isinstance(plan, Plan)
    slowed = plan.stages[1].host

    def slow_down(number: int, _: Any) -> None:
        if number == 15:  # written whole: a stage must not read a part of it
            (tmp_path / "pid").write_text(str(engine.pids[slowed]))
            (tmp_path / "pid").rename(flag)

    outcome = run_plan(
        plan,
        ModelSpec(source=f"{Path(__file__).parent / 'slowable.py'}:model", arguments={"flag": str(flag)}),
        on=CPU,
        inputs=[torch.full((1, 4), float(n)) for n in range(total)],
        engine=engine,
        deliver=slow_down,
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=3.0, heartbeat_limit_s=60.0)),
    )
    assert _same(outcome, [torch.full((1, 4), float(n + LAYERS)) for n in range(total)])
    assert any(change.why.startswith(f"{slowed} takes") for change in outcome.changes), outcome.changes
    _check(tmp_path / "run.jsonl")


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
            on=CPU,
            microbatches=50,
            engine=engine,
            deliver=deliver,
            journal=tmp_path / "run.jsonl",
            options=msgspec.structs.replace(QUICK, shape_links=True),
        )
    assert came == list(range(len(came)))
    report = check_journal(tmp_path / "run.jsonl")
    assert report.valid, report.faults
    assert report.counted["completed"] == len(came)
    assert "no plan is left" in report.notes[-1]


def test_layers_that_cannot_run_end_the_run(small: Any) -> None:
    misshapen = [torch.zeros(2, 16, 7)] * 3
    with pytest.raises(PipelineStoppedError, match=r"layers 1 to 3.*RuntimeError"):
        run_plan(small.plan("a", "b", transfer_s=0.0001), small.spec, on=CPU, inputs=misshapen)


def test_quantised_links_lose_little(small: Any) -> None:
    plan = small.plan("a", "b", transfer_s=0.0001)
    expected = small.expected(10)
    errors = []
    for bits in (16, 8, 4):
        options = RunOptions(link_bits=bits, patience=CALM)
        outcome = run_plan(plan, small.spec, on=CPU, microbatches=10, keep_outputs=True, options=options)
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
    outcome = run_plan(plan, small.spec, on=CPU, microbatches=60, options=options)
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
    words = [
        "pipeline",
        "run",
        str(plan),
        *small.words(),
        "--on",
        "all=cpu",
        "--hosts",
        str(tmp_path / "hosts.yml"),
        *files,
    ]
    assert main([*words, "--slow-factor", "0", "--journal", str(tmp_path / "run.jsonl"), "--format", "json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert (shown["completed"], shown["items"]) == (5, 9)
    whole = load(small.spec).part(1, small.layers)
    expected = torch.cat([whole(part) for part in items.split(2)])
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected.numpy())
    assert main(["check", str(tmp_path / "run.jsonl")]) == 0
    assert main(["report", str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "report.html")]) == 0


def test_arrays_go_in_and_come_out(small: Any, tmp_path: Path) -> None:
    """The same from Python: a plan as it is saved, an array in, a tensor out, and a run that can be asked."""
    path = small.plan("a", "b", transfer_s=0.0001).save(tmp_path / "plan.json")
    items = torch.randn(9, 16, 32)
    told: list[str] = []
    run = pipeline.run(
        path, small.spec, input=items.numpy(), on=CPU, slow_factor=0, heartbeat_limit_s=60.0, notice=told.append
    )
    whole = load(small.spec).part(1, small.layers)
    assert torch.equal(run.outputs, torch.cat([whole(part) for part in items.split(2)]))
    assert (run.metrics["completed"], run.metrics["items"]) == (5, 9)
    assert [note.split(" ran on cpu ")[0] for note in run.notes] == run.plan.hosts
    assert told == [f"plan 1 runs on {', '.join(run.plan.hosts)}"]
    assert run.check().valid
    assert run.plot().svg.startswith("<svg")
    assert {link.sender for link in run.rates.links.values()} == {"data host", "a", "b"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"on": {"a": 3}}, r"on\[\.\.\.\]|on\..*: expected str, found int"),
        ({"input": "nowhere.npy"}, "nowhere.npy: no such file"),
        ({"input": ["text"]}, "input: expected a file, or arrays of numbers"),
        ({"buffers": "2"}, "buffers: expected int, found str"),
        ({"heartbeat_s": 0}, "heartbeat-s 0: expected a positive number"),
        ({"slow_factor": 0.5}, "slow-factor 0.5: expected more than 1, or 0 for never"),
        ({"engine": "mpi"}, "engine: expected local or ray, found 'mpi'"),
        ({"microbatches": 2.5}, r"microbatches: expected int \| null, found float"),
        ({"hosts": {"z": {}}}, "hosts: z: is not a host of the plan"),
        ({"input_dtype": "zz"}, "unknown dtype 'zz'"),
    ],
)
def test_what_cannot_be_run_is_told(small: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline.run(small.plan("a", "b"), **({"model": small.spec.source, "on": CPU} | asked))


@pytest.mark.parametrize("moment", ["before it joins", "while it loads"])
def test_a_process_that_is_stopped_while_loading_is_replaced(small: Any, tmp_path: Path, moment: str) -> None:
    """Its machine is asked: a process that loads may be too busy for a heartbeat, but a stopped one is none."""

    class Stopping(LocalEngine):
        def start(self, settings: StageSettings, share: float | None) -> None:
            super().start(settings, share)
            if settings.host == "b" and moment == "before it joins":
                os.kill(self.pids["b"], signal.SIGSTOP)

    engine, assign = Stopping(), Coordinator._assign

    def assigned(self: Coordinator, action: Any) -> None:
        if "b" in action.plan.hosts:
            os.kill(engine.pids["b"], signal.SIGSTOP)
        assign(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "_assign", assigned)
        outcome = run_plan(
            small.plan("a", "b", "c", seconds=0.01, transfer_s=0.0001),
            small.spec,
            on=CPU,
            microbatches=1,  # whoever is fed must speak for itself, which a busy machine may keep it from
            engine=engine,
            keep_outputs=True,
            journal=tmp_path / "run.jsonl",
            options=RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=0)),
        )
    assert outcome.changes[0].why == "b: it was stopped for 5 s"
    assert _same(outcome, small.expected(1))
    _check(tmp_path / "run.jsonl")


class Command(NamedTuple):
    """A command that runs, and the processes of its stages."""

    process: subprocess.Popen[str]
    stages: list[int]


@pytest.fixture
def start(small: Any, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts the command, and ends it with all its stages, whatever becomes of the test."""
    started: list[Command] = []

    def run(*words: str) -> Command:
        plan = _write_plan(small.plan("a", "b", "c", seconds=0.004, transfer_s=0.004), tmp_path / "plan.json")
        program = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())"]
        command = [*program, "pipeline", "run", str(plan), *small.words(), "--shape-links", "--slow-factor", "0"]
        process = subprocess.Popen([*command, "--microbatches", "100000", *words], stderr=subprocess.PIPE, text=True)
        started.append(Command(process, []))
        assert process.stderr is not None
        assert any(line.startswith("plan 1 runs on") for line in process.stderr), "it did not start"
        started[-1].stages.extend(children_of(process.pid))
        assert len(started[-1].stages) == 3
        return started[-1]

    yield run
    for process, stages in started:
        process.kill()
        process.communicate()
        for pid in stages:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _completed(journal: Path) -> int:
    return journal.read_text().count('"k":"completed"') if journal.exists() else 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_came_out(
    start: Callable[..., Command], small: Any, tmp_path: Path, signum: signal.Signals
) -> None:
    journal, output = tmp_path / "run.jsonl", tmp_path / "out.npy"
    process, stages = start("--journal", str(journal), "--output", str(output))
    until(lambda: _completed(journal) > 5)
    process.send_signal(signum)
    assert process.wait(timeout=PATIENCE_S) == 130
    until(lambda: _gone(stages))
    report = check_journal(journal)
    completed = report.counted["completed"]
    (finding,) = report.faults
    assert finding.message.startswith("did not end: ")
    assert completed > 5
    assert len(np.load(output)) == completed * small.batch_size


def test_a_killed_run_leaves_a_journal_and_no_process(start: Callable[..., Command], tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    process, stages = start("--journal", str(journal))
    until(lambda: _completed(journal) > 5)
    process.kill()
    process.wait()
    until(lambda: _gone(stages))
    report = check_journal(journal)
    assert report.counted["completed"] > 5
    assert report.faults_by_code == {"end": 1}


def test_the_journal_is_there_before_anything_is_started(small: Any, tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"

    class Interrupted(LocalEngine):
        def start(self, settings: StageSettings, share: float | None) -> None:
            assert Reader(journal).header.options["microbatches"] == 7
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(small.plan("a", "b"), small.spec, on=CPU, microbatches=7, engine=Interrupted(), journal=journal)
    assert [fault.message for fault in check_journal(journal).faults] == ["did not end: 7 microbatches unfinished"]


def test_a_run_is_refused_on_other_hardware_than_planned(
    small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _write_plan(small.plan("a", "b", transfer_s=0.0001), tmp_path / "plan.json")
    journal = tmp_path / "run.jsonl"
    words = ["pipeline", "run", str(plan), *small.words()[:-2], "--microbatches", "4", "--journal", str(journal)]
    assert main(words) == 2
    assert "nothing here is a (t), b (t)" in capsys.readouterr().err
    assert not journal.exists()
    assert main([*words, "--emulate", "--rates-out", str(tmp_path / "rates.json")]) == 0
    out = capsys.readouterr().out
    assert "predicted 2" not in out
    assert "Ran on emulated on cpu" in out.splitlines()[-1]
    assert "not on what the plan was made for" in out.splitlines()[-1]
    header = Reader(journal).header
    assert header.hardware["t, emulated on cpu"].startswith("emulated on cpu")
    table = RateTable.read(tmp_path / "rates.json")
    assert {link.sender for link in table.links.values()} == {"data host", "a", "b"}
    assert [switch.to for switch in table.switches.values()] == ["small"]
    assert main(["report", str(journal), "--out", str(tmp_path / "report.html")]) == 0
    assert "emulated on cpu" in (tmp_path / "report.html").read_text()


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
