"""The service over a real Ray cluster of several nodes: more models than fit, values that stay in the store, and nodes
that die, come back and join meanwhile. Every request ends once, and the journal is valid."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import journals, workflow
from dovetail.core.errors import InputError
from dovetail.core.events import Added, Complete, Failed, Observed, Prepare, PrepareEnded, Reject, Start
from dovetail.core.journal import Reader
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.live.engines.choice import engine_for
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from tests.ray_nodes import RayNodes, ray_nodes
from tests.waiting import PATIENCE_S, until

pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
MODELS = Path(__file__).parent / "ray_models.py"
EAGER = f"{Path(__file__).parent / 'eager.py'}:Eager"
PIXELS = 2_000_000


def config() -> dict[str, Any]:
    plain: dict[str, Any] = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.05, "inference_time_mean": 0.05}
    words = {"emulated": {"load_s": 0.05, "call_s": 0.05, "answer": "so be it"}}
    models = {f"m{i}": plain | {"source": words} for i in range(6)}
    models |= {name: plain | {"source": f"{MODELS}:{name}"} for name in ("painter", "critic", "patient")}
    models["wide"] = plain | {"gpus_required": 2, "source": words}
    chains = {
        f"chain{i}": {
            "nodes": [{"id": "first", "model": f"m{i}"}, {"id": "second", "model": f"m{(i + 1) % 6}"}],
            "edges": [{"from": "first", "to": "second"}],
        }
        for i in range(6)
    }
    images = {
        "nodes": [{"id": "paint", "model": "painter"}, {"id": "judge", "model": "critic"}],
        "edges": [{"from": "paint", "to": "judge"}],
    }
    return {
        "models": models,
        "workflows": {**chains, "images": images},
        "gpu_types": {"a100": {"memory_gb": 80}, "l4": {"memory_gb": 24, "speed": 0.5}},
        "costs": {"overhead_s": 0.01},
    }


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch, ray_nodes() as made:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        made.add("left", "right", dovetail_gpu__a100=2)
        yield made


def test_the_command_serves_a_cluster(nodes: RayNodes, tmp_path: Path) -> None:
    """Its output is its own, whatever Ray has to say; it ends in good order."""
    file, state = tmp_path / "config.json", tmp_path / "state"
    file.write_text(json.dumps(config()))
    words = ["workflow", "serve", "--config", str(file), "--state", str(state), "--address", nodes.address]
    with (tmp_path / "err").open("w") as err:
        served = subprocess.Popen(
            [sys.executable, "-m", "dovetail", *words], stdout=subprocess.PIPE, stderr=err, text=True
        )
    assert served.stdout is not None
    with served.stdout:
        try:
            first = served.stdout.readline()
            assert "Serving 10 models and 7 workflows on 4 GPUs: " in first, (tmp_path / "err").read_text()
            line = workflow.connect(state)
            gate, waits = tmp_path / "gate", tmp_path / "waits"
            held = line.submit("patient", {"gate": str(gate), "waits": str(waits)})
            until(waits.exists)
            (gpu,) = line.status(held).nodes["patient"].gpus
            os.kill(line.about()["gpus"][gpu]["pid"], signal.SIGKILL)
            gate.touch()
            assert line.result(held).answer["text"] == "at last"
            image = line.submit("images", {"pixels": PIXELS})
            assert line.result(image).answer["score"] == 2 * PIXELS
            served.send_signal(signal.SIGTERM)
            assert served.wait() == 0
        finally:
            if served.poll() is None:
                served.kill()
                served.wait()
        assert served.stdout.read().startswith(f"The token is in {state / 'token'}\n")


def test_more_gpus_than_there_are(nodes: RayNodes) -> None:
    loaded = workflow.load(config(), [], gpus="a100:9", mode="online")
    with pytest.raises(InputError, match="9 GPUs of type 'a100' are wanted, and the nodes have 5 fewer"):
        engine_for(loaded, address=nodes.address)


def test_a_model_is_loaded_ahead_on_another_node(nodes: RayNodes, tmp_path: Path) -> None:
    """The second node of a chain finds its model loaded, or on its way; a node that dies takes its load with it."""
    chain, model = config()["workflows"]["chain0"], config()["models"]["m0"]
    slow = model | {"source": {"emulated": {"load_s": 0.2, "call_s": 0.2, "answer": "so be it"}}}
    given = {"models": {"m0": slow, "m1": slow}, "workflows": {"chain": chain}, "costs": {"overhead_s": 1000.0}}
    loaded = workflow.load(given | {"gpu_types": config()["gpu_types"]}, [], gpus="a100:1", mode="online")
    engine, problem = engine_for(loaded, address=nodes.address, silence_s=60.0)
    log = LogLines(io.StringIO())
    with WorkflowService.over(problem, engine, tmp_path / "state", LiveSettings(), EAGER, log=log) as service:
        until(lambda: sum(worker["state"] == "up" for worker in engine.status()) == 4)
        first = service.submit(RunRequest(workflow="chain", input={"prompt": "hello"}))
        assert service.wait(first, PATIENCE_S).state == "completed"
        assert "m1 was preloaded there" in str(service.explain(first, "second"))
        (gpu,) = service.status(first).nodes["second"].gpus
        os.kill(engine.status()[gpu]["pid"], signal.SIGKILL)
        until(lambda: engine.status()[gpu]["state"] == "up")
        runs = [service.submit(RunRequest(workflow="chain", input={"prompt": "again"})) for _ in range(4)]
        assert {service.wait(run, PATIENCE_S).state for run in runs} == {"completed"}
        journal = service.journal()
    events = [event for _, _, step in Reader(journal).steps() for event in step]
    begun = [event.id for event in events if isinstance(event, Prepare)]
    assert begun == list(range(1, len(begun) + 1))
    assert sorted(event.id for event in events if isinstance(event, PrepareEnded)) == begun
    assert journals.check_journal(journal).valid
    assert journals.read_journal(journal).replay().difference is None


def test_everything_ends_once_whatever_dies(nodes: RayNodes, tmp_path: Path) -> None:
    loaded = workflow.load(config(), [], gpus="a100:1", mode="online")
    settings = LiveSettings(limits=LiveLimits(silence_s=60.0))
    engine, problem = engine_for(loaded, address=nodes.address, silence_s=settings.limits.silence_s)
    assert [device.host for device in problem.pool.devices] == [0, 0, 1, 1]
    with WorkflowService.over(problem, engine, tmp_path / "state", settings, log=LogLines(io.StringIO())) as service:
        runs: list[str] = []

        def ask(count: int) -> None:
            for n in range(len(runs), len(runs) + count):
                kind = ("images", "wide", "m0")[n % 10 - 7] if n % 10 > 6 else f"chain{n % 6}"
                given = {"pixels": PIXELS} if kind == "images" else {"prompt": f"request {n}"}
                runs.append(service.submit(RunRequest(workflow=kind, input=given, stream=n % 2 == 0)))

        def pids() -> list[int]:
            return [worker["pid"] for worker in engine.status() if worker["state"] == "up"]

        def done() -> int:
            return sum(service.status(run).state == "completed" for run in runs)

        until(lambda: len(pids()) == 4)
        ask(40)
        gate, waits = tmp_path / "gate", tmp_path / "waits"
        held = service.submit(RunRequest(workflow="patient", input={"gate": str(gate), "waits": str(waits)}))
        until(waits.exists)
        (gpu,) = service.status(held).nodes["patient"].gpus
        os.kill(engine.status()[gpu]["pid"], signal.SIGKILL)
        gate.touch()
        until(lambda: done() > 10)
        nodes.kill("right")
        ask(20)
        nodes.add("fast", dovetail_gpu__l4=1)
        until(lambda: done() > 30)
        nodes.add("right", dovetail_gpu__a100=2)
        ask(20)
        assert service.wait(held, PATIENCE_S).nodes["patient"].attempts >= 2
        ends = [service.wait(run, PATIENCE_S) for run in runs]
        assert Counter((end.state, end.error) for end in ends) == {("completed", ""): 80}
        images = [run for run, end in zip(runs, ends, strict=True) if end.workflow == "images"]
        assert len(images) == 8
        for run in images:
            outputs = service.result(run).outputs
            assert outputs["judge"]["score"] == 2 * PIXELS
            assert outputs["paint"]["image"].sum() == 2 * PIXELS  # brought when it is looked at
        until(lambda: len(pids()) == 5)
        ask(10)
        assert {service.wait(run, PATIENCE_S).state for run in runs} == {"completed"}
        journal = service.journal()
    events = [event for _, _, step in Reader(journal).steps() for event in step]
    assert sorted(e.job for e in events if isinstance(e, Complete | Reject)) == sorted([held, *runs])
    assert any(e.lost for e in events if isinstance(e, Failed) and e.job == held)
    seen = Counter(e.what for e in events if isinstance(e, Observed))
    assert seen["gone"] >= 2
    assert seen["back"] >= 2
    (added,) = [e for e in events if isinstance(e, Added) and e.devices]
    assert [(device.id, device.type, device.host) for device in added.devices] == [(4, "l4", 2)]
    assert all(set(e.devices) in ({0, 1}, {2, 3}) for e in events if isinstance(e, Start) and len(e.devices) == 2)
    report = journals.check_journal(journal)
    assert report.valid, report
