"""Journals of live runs: whatever was noted, lost or late, the journal is one that the engine allows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from dovetail.cli.check import examine
from dovetail.core.events import Complete, Reject
from dovetail.core.journal import Reader
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live.jobs import RunOptions, hosts_at
from dovetail.pipeline.live.journal import record, way
from dovetail.pipeline.live.recorder import DATA_HOST, Recorder
from dovetail.pipeline.live.wire import StageSpan
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan


def _plan(hosts: int, replicas: int = 1) -> Plan:
    names = [f"h{i}" for i in range(hosts)]
    device = DeviceClass(name="t", type="t", hosts=names, bw_mbps=1.0, mem_mib=100.0, time_s=[1.0] * 6)
    problem = Pipeline(
        model="m",
        layers=6,
        mem_mib=[1.0] * 6,
        cut_bytes=[80_000] * 7,
        classes=[device],
        batch_size=1,
        dtype="torch.float32",
    )
    found = plan(problem, "throughput", Constraints(replicas=replicas))
    assert isinstance(found, Plan)
    return found


class World:
    """Plays runs into a recorder, with clocks that are off and notes that get lost."""

    def __init__(self, rng: random.Random, lost: float = 0.0, skew_s: float = 0.0) -> None:
        self.rng, self.lost, self.skew_s = rng, lost, skew_s
        self.recorder = Recorder()
        self.recorder.start(100.0)
        self.now_s = 100.0
        self.generation = 0

    def layout(self, made: Plan, numbers: range, delivered: int, why: str = "") -> None:
        """Microbatches go through; only the first of them come out before the layout ends."""
        self.generation += 1
        self.recorder.begin(self.generation, made)
        free: dict[str, float] = {}
        skews = {host: self.rng.uniform(-self.skew_s, self.skew_s) for s in made.stages for host in hosts_at(s)}
        begun_s, halt_s, out_s = self.now_s, 0.0, 0.0
        notes: list[tuple[str, StageSpan]] = []
        for number in numbers:
            t = begun_s
            for spot in way(made):
                start_s = max(t, free.get(spot.device(number), 0.0))
                t = start_s + self.rng.uniform(0.001, 0.3)
                if spot.receivers == [DATA_HOST]:  # it takes them in order
                    t = out_s = max(t, out_s + 1e-4)
                free[spot.device(number)] = t
                sender = spot.senders[number % len(spot.senders)]
                kind = "s" if spot.receivers else "c"
                notes.append((sender, StageSpan(self.generation, number, kind, start_s, t)))
                if spot.receivers:
                    receiver = spot.receivers[number % len(spot.receivers)]
                    notes.append((receiver, StageSpan(self.generation, number, "r", t, t)))
            if number < numbers.start + delivered:
                halt_s = t + 1e-4
        halt_s = halt_s or begun_s + 1.0
        for host, span in notes:
            # The data host's own notes are never lost, and what it saw come out is what was delivered.
            if host == DATA_HOST:
                arrived_late = span.what == "r" and span.number >= numbers.start + delivered
                if not arrived_late and span.start_s < halt_s:
                    self.recorder.note(host, [span])
            elif span.end_s < halt_s + 0.1 and self.rng.random() >= self.lost:
                self.recorder.note(host, [span], skews[host])
        self.now_s = halt_s + self.rng.uniform(0.0, 1.0)
        self.recorder.end(halt_s, why)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lost=st.sampled_from([0.0, 0.3, 1.0]),
    skew_s=st.sampled_from([0.0, 0.2]),
    replicas=st.sampled_from([1, 2]),
    cuts=st.lists(st.integers(0, 6), max_size=3),
)
def test_any_run_gives_a_valid_journal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lost: float, skew_s: float, replicas: int, cuts: list[int]
) -> None:
    world, total, done = World(random.Random(seed), lost, skew_s), 12, 0
    for i, delivered in enumerate(cuts):
        delivered = min(delivered, total - done - 1)
        world.layout(_plan(4 - i, replicas), range(done, total), delivered, f"h{i}: killed")
        done += delivered
    world.layout(_plan(1, replicas), range(done, total), total - done)
    path = tmp_path_factory.mktemp("live") / "run.jsonl"
    _, figures = record(world.recorder, RunOptions(), path, {"model": "m"})
    report = examine(path)
    assert report.valid, report.faults
    assert figures.completed == total
    assert figures.rejected == report.counted["rejected"]


def test_interrupted_microbatches_come_again(tmp_path: Path) -> None:
    world = World(random.Random(1))
    world.layout(_plan(2), range(3), 1, "h0: killed")
    world.layout(_plan(1), range(1, 3), 2)
    record(world.recorder, RunOptions(), tmp_path / "run.jsonl", {})
    reader = Reader(tmp_path / "run.jsonl")
    assert reader.header.mode == "live"
    assert [shape.name for shape in reader.header.graphs] == ["microbatch", "microbatch (plan 2)"]
    events = [entry.event for entry in reader]
    assert [event.job for event in events if isinstance(event, Complete)] == [
        "microbatch 1",
        "microbatch 2 (plan 2)",
        "microbatch 3 (plan 2)",
    ]
    assert {(event.job, event.why) for event in events if isinstance(event, Reject)} == {
        ("microbatch 2", "h0: killed"),
        ("microbatch 3", "h0: killed"),
    }


def test_a_run_that_never_began_has_a_journal(tmp_path: Path) -> None:
    _, figures = record(Recorder(), RunOptions(), tmp_path / "run.jsonl", {})
    assert figures.arrived == 0
    assert examine(tmp_path / "run.jsonl").valid


def test_exact_notes_are_kept_as_they_are(tmp_path: Path) -> None:
    """Without skew and loss nothing is moved: busy time is what was noted."""
    world = World(random.Random(3))
    world.layout(_plan(3), range(20), 20)
    history, figures = record(world.recorder, RunOptions(), None, {})
    column = world.recorder.column(1, "h0", "c")
    noted = sum(end - start for start, end in zip(column.starts_s, column.ends_s, strict=True))
    assert figures.devices[history.devices.index("h0")].busy_s == pytest.approx(noted, abs=1e-6)
