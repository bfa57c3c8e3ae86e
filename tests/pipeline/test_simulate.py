"""Plans in virtual time: the formula, order, buffers, and a journal that the checker passes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli import main
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Complete, Start
from dovetail.core.journal import Reader
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise.verify import faults
from dovetail.pipeline.plan import Constraints, Plan, read_plan
from dovetail.pipeline.planner import again, plan
from dovetail.pipeline.route import Route
from dovetail.pipeline.simulate import run, simulate
from dovetail.testing.pipeline import random_pipeline


def plans(count: int) -> list[Plan]:
    """Plans of all kinds: links with latencies, replicas, a data host."""
    found = [
        plan(
            random_pipeline(seed, links=seed % 2 == 0),
            constraints=Constraints(replicas=1 + seed % 4, data_mbps=(None, 50.0)[seed % 3 == 0]),
        )
        for seed in range(count)
    ]
    return [p for p in found if isinstance(p, Plan)]


def test_the_formula_holds() -> None:
    """Whatever the buffers, and with replicas too."""
    every = plans(150)
    assert sum(any(stage.replicas for stage in one.stages) for one in every) > 10
    assert sum(one.enter_s > 0 for one in every) > 10
    for one in every:
        for microbatches in (1, 2, 7, 12):
            for buffers in (1, 3):
                outcome = run(one, microbatches, buffers)
                assert outcome.makespan_s == pytest.approx(outcome.predicted_s, rel=1e-9, abs=1e-12)


def test_one_alone_takes_the_latency_and_many_keep_the_pace() -> None:
    for one in plans(100):
        assert run(one, 1).makespan_s == pytest.approx(one.latency_s, rel=1e-9, abs=1e-12)
        many = 120  # whole rounds of 1 to 4 replicas
        pace_s = (run(one, 2 * many).makespan_s - run(one, many).makespan_s) / many
        assert pace_s == pytest.approx(one.bottleneck_s, rel=1e-9, abs=1e-12)


def in_simpy(one: Plan, microbatches: int, buffers: int) -> float:
    """The makespan by another model: a process per device, which takes every so-manieth microbatch, and the buffers of
    each replica as a resource that is asked for before a microbatch starts and given back when the next place takes it.
    """
    world = simpy.Environment()
    places: list[tuple[float, int, bool]] = []  # seconds, devices, whether it is a stage
    if one.enter_s:
        places.append((one.enter_s, 1, False))
    replicas = [1 + len(stage.replicas) for stage in one.stages]
    for x, stage in enumerate(one.stages):
        lanes = min(replicas[x : x + 2]) if x + 1 < len(replicas) else 1
        places += [(stage.compute_s * replicas[x], replicas[x], True), (stage.send_s * lanes, lanes, False)]
    count = len(places)
    arrived = [[world.event() for _ in range(microbatches)] for _ in range(count + 1)]
    for event in arrived[0]:
        event.succeed()
    owners = [places[i] if places[i][2] else places[i - 1] for i in range(1, count)]
    rooms = [[simpy.Resource(world, buffers) for _ in range(owner[1])] for owner in owners]
    asked: dict[tuple[int, int], Any] = {}

    def device(i: int, lane: int) -> Any:
        for n in range(lane, microbatches, places[i][1]):
            yield arrived[i][n]
            if i + 1 < count:
                room = rooms[i][n % len(rooms[i])]
                asked[i, n] = room.request()
                yield asked[i, n]
            if i:
                rooms[i - 1][n % len(rooms[i - 1])].release(asked.pop((i - 1, n)))
            yield world.timeout(places[i][0])
            arrived[i + 1][n].succeed()

    for i, (_, devices, _) in enumerate(places):
        for lane in range(devices):
            world.process(device(i, lane))
    world.run()
    assert all(event.processed for event in arrived[count])
    return float(world.now)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 3000), microbatches=st.integers(1, 15), buffers=st.integers(1, 3), replicas=st.integers(1, 4)
)
def test_another_simulator_gives_the_same(seed: int, microbatches: int, buffers: int, replicas: int) -> None:
    constraints = Constraints(replicas=replicas, data_mbps=(None, 50.0)[seed % 3 == 0])
    one = plan(random_pipeline(seed, links=seed % 2 == 0), ("throughput", "devices", "latency")[seed % 3], constraints)
    if isinstance(one, Plan):
        found = run(one, microbatches, buffers).makespan_s
        assert found == pytest.approx(in_simpy(one, microbatches, buffers), rel=1e-9, abs=1e-12)


def test_replicas_take_turns_and_order_is_kept(tmp_path: Path) -> None:
    one = max(plans(100), key=lambda p: (max(len(stage.replicas) for stage in p.stages), len(p.stages)))
    route = Route.planned(one)
    journal = tmp_path / "run.jsonl"
    simulate(one, 9, 1, journal)
    starts: dict[str, list[tuple[str, int]]] = {}
    finished: list[str] = []
    for _, _, event in Reader(journal):
        if isinstance(event, Start):
            starts.setdefault(event.task, []).append((event.job, event.devices[0]))
        elif isinstance(event, Complete):
            finished.append(event.job)
    expected = [f"microbatch {n}" for n in range(1, 10)]
    assert finished == expected
    assert list(starts) == [station.name for station in route.stations]
    for lanes, seen in zip(route.lanes, starts.values(), strict=True):
        assert seen == [(work, lanes[n % len(lanes)]) for n, work in enumerate(expected)]
    assert max(map(len, route.lanes)) > 1


def test_the_command_reads_a_printed_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden / "pipeline/seed")
    assert main(["pipeline", "plan", "--format", "json", "--what-if"]) == 0
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    assert len(read_plan(file).stages) == 8
    words = ["pipeline", "simulate", str(file), "--microbatches", "8", "--journal", str(tmp_path / "run.jsonl")]
    assert main([*words, "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["makespan_s"] == pytest.approx(figures["predicted_s"])
    assert main(["report", str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "run.html")]) == 0
    assert (tmp_path / "run.html").stat().st_size > 10_000
    file.write_text("{}")
    assert main(words) == 2
    assert "missing key" in capsys.readouterr().err
    file.write_text('{"feasible": false, "reasons": []}')
    assert main(words) == 2
    assert "holds no plan" in capsys.readouterr().err


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "gap": (
        lambda p: p["stages"][1].update(layers=[3, 3]),
        r"stages\.1\.layers: expected layers from 2 on, found 3 to 3",
    ),
    "backwards": (lambda p: p["stages"][0].update(layers=[1, 0]), r"stages\.0\.layers: expected layers from 1 on"),
    "host twice": (lambda p: p["stages"][1].update(host="a"), r"stages\.1: expected hosts that no other stage has"),
    "replica twice": (lambda p: p["stages"][0].update(replicas=["a"]), r"stages\.0: expected hosts"),
    "no host": (lambda p: p["stages"][0].update(host=""), r"stages\.0: expected hosts"),
    "batch": (lambda p: p.update(batch_size=0), "batch_size: expected 1 or more, found 0"),
    "entering": (lambda p: p.update(enter_s=-1), "enter_s: expected a number from 0"),
    "computing": (lambda p: p["stages"][0].update(compute_s=-1), r"stages\.0\.compute_s: expected a number from 0"),
    "other layers": (
        lambda p: p["problem"].update(layers=7),
        r"problem\.layers: expected 2, as in the stages, found 7",
    ),
    "times": (
        lambda p: p["problem"]["classes"][0].update(time_s=[1]),
        r"classes\.0\.time_s: expected 2 values, found 1",
    ),
    "cuts": (lambda p: p["problem"].update(cut_bytes=[]), r"problem\.cut_bytes: expected 3 values, found 0"),
    "links": (
        lambda p: p["problem"].update(link_mbps=[[1.0], [1.0]]),
        r"problem\.link_mbps: expected 1 rows, found 2",
    ),
    "one link": (lambda p: p["problem"].update(link_s=[[]]), r"problem\.link_s\.0: expected 1 values, found 0"),
    "dtype": (lambda p: p["problem"].update(dtype="x"), r"problem\.dtype: expected one of torch\.float32, .*found 'x'"),
    "no items": (lambda p: p["problem"].update(batch_size=0), r"problem\.batch_size: expected 1 or more, found 0"),
    "one host for two": (
        lambda p: p["problem"]["classes"][0].update(hosts=["a", "a"]),
        r"problem\.classes\.0\.hosts\.1: expected a host of its own, found 'a'",
    ),
    "memory": (
        lambda p: p["problem"]["classes"][0].update(mem_mib=-1),
        r"problem\.classes\.0\.mem_mib: expected a number from 0 to 1e\+15, found -1",
    ),
    "stages at most": (
        lambda p: p["constraints"].update(max_stages=-1),
        r"constraints\.max_stages: expected a positive number, found -1",
    ),
    "widths": (lambda p: p["constraints"].update(link_bits=[]), r"constraints\.link_bits: expected 2 to 16, or 32"),
    "front": (lambda p: p.update(points=[], complete=True), "points: holds a Pareto front; expected one plan"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_plan_is_named(tmp_path: Path, name: str) -> None:
    device = DeviceClass("t", "t", ["a", "b"], 100.0, 100.0, [1.0, 1.0])
    problem = Pipeline(
        model="m",
        layers=2,
        mem_mib=[1.0, 1.0],
        cut_bytes=[8, 8, 8],
        classes=[device],
        batch_size=1,
        dtype="torch.float32",
    )
    content = msgspec.to_builtins(plan(problem))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    assert len(read_plan(file).stages) == 2
    change, message = BROKEN[name]
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_plan(file)


JUNK: list[Any] = [None, -1, 0, 1e300, "x", [], {}, [1]]


def test_whatever_a_plan_holds_the_answer_is_a_sentence() -> None:
    """One value after another of a plan is replaced by junk: it is taken, or refused with a sentence of ours."""
    classes = [DeviceClass(name, name, [f"{name}0", f"{name}1"], 9.0, 9.0, [1.0, 2.0]) for name in "ab"]
    problem = Pipeline(
        model="m",
        layers=2,
        mem_mib=[5.0, 5.0],
        cut_bytes=[8, 8, 8],
        classes=classes,
        batch_size=1,
        dtype="torch.float32",
        link_mbps=[[9.0, 9.0], [9.0, 9.0]],
        link_s=[[0.0, 0.0], [0.1, 0.0]],
    )
    asked = Constraints(replicas=2, link_bits=(8, 32), data_mbps=9.0, max_stages=4, throughput_floor_items_s=0.1)
    content = msgspec.to_builtins(plan(problem, "latency", asked))
    refused, wrong = 0, []
    for place in places(content):
        for junk in JUNK:
            damaged = copy.deepcopy(content)
            holder = damaged
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = junk
            try:
                read = read_plan(damaged)
                again(read)
                list(faults(read))
            except DovetailError:
                refused += 1
            except Exception as error:
                wrong.append(f"{place} = {junk!r}: {type(error).__name__}: {error}")
    assert wrong == []
    assert refused > 500


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything that a document holds."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [*([at] if at else []), *(place for key, value in inner for place in places(value, (*at, key)))]


@pytest.mark.parametrize("bw_mbps", [1.0, 1e-20, 1e-250])
def test_a_plan_of_the_largest_numbers_is_read_back(tmp_path: Path, bw_mbps: float) -> None:
    device = DeviceClass("a", "a", ["a0", "a1"], bw_mbps, 1e15, [1e15] * 3)
    problem = Pipeline(
        model="m",
        layers=3,
        mem_mib=[4e14] * 3,
        cut_bytes=[4 * 10**15] * 4,
        classes=[device],
        batch_size=1,
        dtype="torch.float64",
        buffers_in=0,
        buffers_out=0,
    )
    made = plan(problem, constraints=Constraints(data_mbps=1.0))
    assert isinstance(made, Plan), made
    assert made.bottleneck_s > max(1e15, 1e10 / bw_mbps)
    assert simulate(made.save(tmp_path / "plan.json"), 3).check().valid
