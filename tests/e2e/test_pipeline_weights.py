"""A stage's process reads its own weights from a checkpoint, and never holds those of other stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dovetail import pipeline
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live import Patience, RunOptions, run_plan
from dovetail.pipeline.live.local import LocalEngine
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

LAYERS = 8
FACTORY = """
from torch import nn


def wide(width):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(%d)))
    model.input_shapes = ((width,),)
    return model
"""
MIB = 2**20


def most_mib(pid: int) -> float:
    """The most that a process ever had in memory, mapped files included (VmHWM)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def run(folder: Path, width: int) -> tuple[list[float], float]:
    """What the processes of four stages held at most, and how large the model is."""
    from safetensors.torch import save_file

    (folder / "wide.py").write_text(FACTORY % LAYERS)
    spec = ModelSpec(source=f"{folder / 'wide.py'}:wide", arguments={"width": width}, seed=5)
    chain = load(spec)
    state = {f"{i}.{key}": t for i, layer in enumerate(chain.layers) for key, t in layer.state_dict().items()}  # type: ignore[attr-defined]
    file = folder / f"{width}.safetensors"
    save_file(state, file)
    whole_mib = file.stat().st_size / MIB
    each_mib = whole_mib / LAYERS
    device = DeviceClass("d", "d", ["a", "b", "c", "d"], 1000.0, 2.5 * each_mib + 1, [0.01] * LAYERS)
    problem = Pipeline(
        model="wide",
        layers=LAYERS,
        mem_mib=[each_mib] * LAYERS,
        cut_bytes=[4 * width] * (LAYERS + 1),
        classes=[device, DeviceClass("full", "full", ["e"], 1000.0, 0.0, [0.001] * LAYERS)],
        batch_size=1,
        dtype="torch.float32",
    )
    made = pipeline.plan(problem)  # larger than any device; the fastest has no memory left
    assert [stage.layers for stage in made.stages] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert "e" not in made.hosts
    engine = LocalEngine()
    held: list[float] = []

    def look(number: int, _: Any) -> None:
        if number == 0:  # every stage has computed, and none ends before the last comes out
            held.extend(most_mib(pid) for pid in engine.pids.values())

    outcome = run_plan(
        made,
        ModelSpec(source=spec.source, arguments=spec.arguments, seed=6, weights=str(file)),
        on={"all": "cpu"},
        microbatches=4,
        engine=engine,
        deliver=look,
        keep_outputs=True,
        options=RunOptions(patience=Patience(slow_factor=0, heartbeat_limit_s=60.0)),
    )
    for number, value in enumerate(outcome.outputs):
        given = chain.inputs(1, "torch.float32", seed=number)
        assert torch.equal(value, chain.part(1, LAYERS)(given))
    return held, whole_mib


def test_a_stage_never_holds_the_whole_model(tmp_path: Path) -> None:
    small, _ = run(tmp_path, 8)
    large, whole_mib = run(tmp_path, 2048)
    assert whole_mib > 128
    assert len(small) == len(large) == 4
    # What a process needs anyway is in the first run too. A quarter of the model is its own.
    print(f"held at most: {small} and {large} MiB, of {whole_mib:.0f}")
    assert max(large) - min(small) < 0.7 * whole_mib, (small, large)
