"""GPUs as a resource: who has which, alone or with others, through pauses and failures; and what the checker finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli import main
from dovetail.core.events import Arrived, Asked, Failed, Finished, Pause, Reject, Resume, Start
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.resources import is_type
from dovetail.host import load, simulate
from dovetail.host.check import check_journal
from dovetail.host.gpus import GpuDevice
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions, Overtaking
from dovetail.host.program import program_graph
from dovetail.host.simulate import record, run
from dovetail.testing.host import ASSIGNS, PLANS, random_options, random_workload

A100, L4 = GpuDevice("NVIDIA A100-SXM4-80GB", 80), GpuDevice("NVIDIA L4", 24)
Arrivals = Sequence[tuple[float, Arrived | Asked]]


class Recount:
    """From the records alone: who is on which GPU at the end of every step, and what is wrong with that."""

    def __init__(self, gpus: Sequence[GpuDevice]) -> None:
        self.gpus, self.wrong = gpus, list[str]()
        self.asks: dict[str, dict[str, Any]] = {}
        self.on: dict[str, tuple[int, ...]] = {}
        self.away: set[str] = set()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            edited = isinstance(event, Asked) and event.what == "edit" and event.job not in self.on
            if isinstance(event, Arrived) or edited:
                self.asks[event.job] = event.facts
            elif isinstance(event, Start):
                self.on[event.job] = event.gpus
                self._check(event.job)
            elif isinstance(event, Finished | Failed):
                del self.on[event.job]
                self.away.discard(event.job)
            elif isinstance(event, Pause) and self.asks[event.job].get("gpu_pause") == "release":
                self.away.add(event.job)
            elif isinstance(event, Resume):
                self.away.discard(event.job)
        for i, gpu in enumerate(self.gpus):
            needs = [
                self.asks[job].get("gpu_mem_mib") for job, on in self.on.items() if i in on and job not in self.away
            ]
            if (None in needs and len(needs) > 1) or sum(mib or 0 for mib in needs) > gpu.memory_mib:
                self.wrong.append(f"GPU {i} at {t}: {needs}")

    def _check(self, job: str) -> None:
        ask, on = self.asks[job], self.on[job]
        if len(set(on)) != ask.get("gpus", 0) or len(on) != ask.get("gpus", 0):
            self.wrong.append(f"{job}: {on}")
        if not all(not ask.get("gpu_type") or is_type(self.gpus[i].type, ask["gpu_type"]) for i in on):
            self.wrong.append(f"{job} of {ask['gpu_type']}: {on}")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(PLANS), st.sampled_from(ASSIGNS))
def test_no_gpu_is_ever_given_twice(seed: int, plan: str, assign: str) -> None:
    rng = Random(seed)
    options = random_options(rng, plan, assign)
    counted = Recount(options.gpus)
    outcome = run(random_workload(rng), options, [counted])
    assert counted.wrong == []
    stuck = [row.why for row in outcome.programs.rows.values() if row.why == "nothing lets it start any more"]
    assert stuck == []


def arrived(name: str, cores: int = 1, size: float = 10.0, **ask: Any) -> Arrived:
    return Arrived(name, "p", (size * cores,), facts={"cores": cores, **ask})


def simulated(path: Path, arrivals: Arrivals, gpus: Sequence[GpuDevice], **options: Any) -> list[dict[str, Any]]:
    workload = Workload(8, tuple(arrivals), {"p": program_graph("p", 8)})
    record(workload, HostOptions(gpus=tuple(gpus), **options), path)
    assert check_journal(path).faults_by_code == {}
    return [json.loads(line) for line in path.read_text().splitlines()]


def starts(lines: list[dict[str, Any]]) -> dict[str, tuple[float, list[int]]]:
    return {line["job"]: (line["t"], line.get("gpus", [])) for line in lines if line.get("k") == "started"}


def test_programs_that_declare_memory_share_a_gpu(tmp_path: Path) -> None:
    asks = {"a": 40, "b": 40, "c": 30, "alone": None}
    arrivals = [(0.0, arrived(name, gpus=1, gpu_mem_mib=mib)) for name, mib in asks.items()]
    lines = simulated(tmp_path / "run.jsonl", arrivals, [A100])
    assert starts(lines) == {"a": (0.0, [0]), "b": (0.0, [0]), "c": (10.0, [0]), "alone": (20.0, [0])}
    why = next(line["why"] for line in lines if line.get("k") == "deferred" and line["job"] == "c")
    assert why == "needs 1 GPU with 30 MiB, none free"


def test_the_least_used_gpus_come_first_and_types_are_kept(tmp_path: Path) -> None:
    arrivals = [
        (0.0, arrived("a", gpus=1, gpu_mem_mib=20)),
        (0.0, arrived("b", gpus=1, gpu_mem_mib=20)),
        (0.0, arrived("c", gpus=1, gpu_type="l4")),
        (0.0, arrived("d", gpus=2, gpu_mem_mib=30, gpu_type="a100")),
    ]
    lines = simulated(tmp_path / "run.jsonl", arrivals, [A100, L4, A100])
    assert starts(lines) == {"a": (0.0, [0]), "b": (0.0, [2]), "c": (0.0, [1]), "d": (0.0, [0, 2])}


@pytest.mark.parametrize(("pause", "at_s"), [("hold", 13.0), ("release", 2.0)])
def test_a_pause_holds_or_releases_the_gpu(tmp_path: Path, pause: str, at_s: float) -> None:
    """Its user pauses a; b wants the same GPU. Released, a goes on only when b is through with it."""
    arrivals: Arrivals = [
        (0.0, arrived("a", gpus=1, gpu_pause=pause)),
        (1.0, arrived("b", gpus=1)),
        (2.0, Asked("a", "pause")),
        (5.0, Asked("a", "resume")),
    ]
    lines = simulated(tmp_path / "run.jsonl", arrivals, [A100])
    assert starts(lines)["b"] == (at_s, [0])
    resumed = next(line["t"] for line in lines if line.get("k") == "resumed")
    assert resumed == (5.0 if pause == "hold" else 12.0)


@pytest.mark.parametrize("pause", ["hold", "release"])
def test_the_more_urgent_take_gpus_that_are_given_up(tmp_path: Path, pause: str) -> None:
    low, other = arrived("low", gpus=1, gpu_pause=pause, priority=3), arrived("other", priority=4)
    arrivals = [(0.0, low), (0.0, other), (1.0, arrived("high", gpus=1))]
    lines = simulated(tmp_path / "run.jsonl", arrivals, [A100], plan="priority", preemptive=True)
    assert starts(lines)["high"][0] == (1.0 if pause == "release" else 10.0)
    assert [line["job"] for line in lines if line.get("k") == "paused"] == (["low"] if pause == "release" else [])


def test_turns_do_not_wait_for_gpus_that_paused_programs_hold(tmp_path: Path) -> None:
    arrivals = [(0.0, arrived(name, cores=8, size=40.0, gpus=1)) for name in "ab"]
    lines = simulated(tmp_path / "run.jsonl", arrivals, [A100], plan="rr", quantum_s=5.0)
    assert starts(lines) == {"a": (0.0, [0]), "b": (40.0, [0])}


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        ({"gpus": 2}, "needs 2 GPUs, the machine has 1"),
        ({"gpus": 1, "gpu_type": "l4"}, "needs 1 GPU of type l4, the machine has none"),
        ({"gpus": 1, "gpu_mem_mib": 81}, "needs 1 GPU with 81 MiB, the machine has none"),
        ({"gpus": -1}, "expected 0 or more gpus"),
        ({"gpus": 1, "gpu_pause": "keep"}, "gpu_pause"),
    ],
)
@pytest.mark.parametrize("profile", ["clean", "legacy"])
def test_what_no_gpu_fits_is_rejected(ask: dict[str, Any], why: str, profile: str) -> None:
    class Rejections:
        found = ""

        def step(self, n: int, t: float, events: Sequence[Any]) -> None:
            self.found += "".join(event.why for event in events if isinstance(event, Reject))

    if profile == "legacy":
        ask, why = {"gpus": 1}, "needs 1 GPU, the machine has none"
    told, gpus = Rejections(), (A100,) if profile == "clean" else ()
    workload = Workload(8, ((0.0, arrived("a", **ask)),), {"p": program_graph("p", 8)})
    run(workload, HostOptions(gpus=gpus, profile=profile), [told], SimExecutor())  # type: ignore[arg-type]
    assert why in told.found


def test_planted_faults_are_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arrivals = [(0.0, arrived(name, gpus=1, gpu_mem_mib=40)) for name in "ab"]

    def found(change: Any) -> list[str]:
        lines = simulated(path, arrivals, [A100, L4])
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [fault.message for fault in check_journal(path).faults if fault.code == "gpus"]

    def of(lines: Any, kind: str, job: str) -> Any:
        return next(line for line in lines if line.get("k") == kind and line["job"] == job)

    assert found(lambda lines: lines[0]["options"]["gpus"][0].update(memory_mib=79)) == [
        "GPU 0: found 80 MiB in use, expected up to 79 MiB"
    ]
    assert "of which one has it alone" in found(lambda lines: of(lines, "arrived", "a")["facts"].pop("gpu_mem_mib"))[0]
    assert "found GPU 1, a NVIDIA L4" in found(lambda lines: of(lines, "started", "a").update(gpus=[1]))[0]
    assert "found GPU 7, which does not exist" in found(lambda lines: of(lines, "started", "a").update(gpus=[7]))[0]
    assert "found 0 GPUs" in found(lambda lines: of(lines, "started", "a").pop("gpus"))[0]


def test_gpus_from_python_and_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"threads": 1, "work": 10, "gpus": 1, "gpu_mem": "40g"} for _ in range(4)]
    made = simulate(load(rows, cores=8), gpus="a100:1:80g")
    assert made.metrics["makespan_s"] == 20.0
    assert made.check().valid
    assert made.replay().difference is None
    file = tmp_path / "requests.txt"
    file.write_text("".join(f"execution,{i},a,1,0,0,10,1,40g,a100\n" for i in range(4)))
    words = ["host", "simulate", "--requests", str(file), "--cores", "8", "--format", "json", "--gpus", "a100:1:80g"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["makespan_s"] == 20.0
    assert main([*words[:-1], "l4:1"]) == 2
    assert "found 'l4:1', expected a count (of 80 GiB each), or TYPE:COUNT:MEMORY" in capsys.readouterr().err
    assert main([*words[:-1], "a100:1:80x"]) == 2
    assert "gpus: found '80x', expected memory" in capsys.readouterr().err


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_backfill_delays_the_first_in_line_for_nothing_that_it_needs(seed: int) -> None:
    """Cores, memory and GPUs alike. Oracle: the same programs where nobody may overtake."""
    rng = Random(seed)
    gpus = tuple(rng.choice([A100, L4]) for _ in range(rng.randint(1, 3)))

    def ask() -> dict[str, Any]:
        found: dict[str, Any] = {"cores": rng.randint(1, 4), "memory_mib": rng.choice([0, rng.randint(1, 60)])}
        if rng.random() < 0.6:
            found |= {"gpus": rng.randint(1, len(gpus))}
            found |= {"gpu_mem_mib": rng.randint(1, 24)} if rng.random() < 0.5 else {}
            found |= {"gpu_type": gpus[0].type} if rng.random() < 0.2 and found["gpus"] == 1 else {}
        return found

    arrivals = [
        (float(min(i, 4)), Arrived(f"p{i}", "p", (float(rng.randint(1, 400)),), facts=ask()))
        for i in range(rng.randint(3, 12))
    ]
    workload = Workload(8, tuple(arrivals), {"p": program_graph("p", 8)})
    overtakings: list[Overtaking] = ["none", "backfill"]
    rows = [run(workload, HostOptions(gpus=gpus, memory_mib=100, overtaking=how)).rows for how in overtakings]
    started = [{row.program: -1.0 if row.started_s is None else row.started_s for row in each} for each in rows]
    first = next((name for at_s, work in arrivals if started[0][name := work.job] > at_s), arrivals[0][1].job)
    assert started[1][first] <= started[0][first] + 1e-9
