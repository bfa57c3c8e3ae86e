"""The reference partitions: equal to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

from dovetail.pipeline.compat.sched_pipeline import main
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan


def folder_of(golden: Path, name: str) -> Path:
    return golden / "pipeline" / ("seed" if name.startswith("google/") else f"cases/{name}")


def test_every_optimum_is_the_reference_to_the_last_bit(golden: Path) -> None:
    expected = json.loads((golden / "pipeline/expected.json").read_text())
    checked = 0
    for name, row in (expected["seed"] | expected["cases"]).items():
        folder = folder_of(golden, name)
        if not folder.exists():
            continue
        model = name if name.startswith("google/") else "synth"
        files = [folder / file for file in ("models.yml", "device_types.yml", "devices.yml")]
        found = plan(load(*files, model=model))
        assert isinstance(found, Plan)
        assert found.bottleneck_s == row["bottleneck_s"], name
        assert all(stage.mem_mib < stage.mem_limit_mib for stage in found.stages)
        checked += 1
    assert checked == 25


def test_the_drop_in_command_reads_the_seed_and_writes_its_list(golden: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(golden / "pipeline/seed")
    assert main([]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("- ")
    assert lines[0].endswith("]")
    assert "Warning: Device type DummyDeviceType doesn't support model: type will be skipped" in printed.err
    assert main(["-m", "DummyModel"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["-b", "3"]) == 3
    assert capsys.readouterr().out == "[]\n"
    assert main(["-m", "google/vit-bse"]) == 2
    assert "model not found: google/vit-bse; did you mean" in capsys.readouterr().err
