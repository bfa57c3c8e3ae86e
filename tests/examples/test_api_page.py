"""What the page about Python shows is run as it stands, and typed for users who are strict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "examples")
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, names)
    told = [line.split("# ")[1] for block in BLOCKS for line in block.splitlines() if line.strip().startswith("print(")]
    assert capsys.readouterr().out.splitlines() == told
    run = names["run"]
    assert isinstance(run, dovetail.Run)
    assert f"{run.metrics['makespan_s']:.1f} s, {100 * (run.gap or 0):.1f} %" in PAGE


def test_the_readme_gives_the_figures_that_come_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```python\n(import dovetail\n.*?)```", text, re.DOTALL)
    assert block is not None
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block.group(1), names)
    run = names["run"]
    assert isinstance(run, dovetail.Run)
    assert f"{run.metrics['makespan_s']:.1f} s, {100 * (run.gap or 0):.1f} % above the bound, valid" in block.group(1)
    assert run.check().valid
    assert (tmp_path / "page.html").is_file()


def test_a_comparison_has_the_figures_that_it_names() -> None:
    problem = dovetail.workflow.load(
        ROOT / "examples/system_config.yaml", ROOT / "examples/workflow_requests.yaml", gpus=4
    )
    found = dovetail.workflow.compare(problem, gpus=[4, 8], jobs=1)
    for key in re.findall(r'`\.best\("(\w+)"\)`', PAGE):
        assert key in found.best(key)
    for x, y, by in re.findall(r'`\.plot\("(\w+)", "(\w+)", by="(\w+)"\)`', PAGE):
        assert "<svg" in found.plot(x, y, by=by).svg


def test_the_functions_that_it_names_are_there() -> None:
    for level, names in re.findall(r"\[`dovetail\.(\w+)`\]\([^)]*\) \| ([^|]*) \|", PAGE):
        public = getattr(dovetail, level).__all__
        assert {name.strip("` ") for name in names.split(",")} <= set(public), level


USER = """
from pathlib import Path

import dovetail
from dovetail import cluster, host, pipeline, workflow

problem = workflow.load("config.yaml", Path("requests.yaml"), gpus=4)
run = workflow.run(problem, "dovetail")
makespan_s: float = run.metrics["makespan_s"]
gap: float | None = run.gap
page: Path = run.report("page.html")
valid: bool = dovetail.read_journal("run.jsonl").check().valid
plan = pipeline.plan(pipeline.load("models.yml", "types.yml", "devices.yml", model="m"))
pace: float = plan.throughput_items_s
bound: float | None = pipeline.simulate(plan, 8).bound
jct: float = cluster.simulate(cluster.load(jobs=5)).metrics["avg_jct_s"]
turn: float = host.simulate(host.load("requests.txt", cores=4)).metrics["mean_turnaround_s"]
"""


def test_a_strict_user_finds_everything_typed(tmp_path: Path) -> None:
    """With the cache that `make lint` has just filled. What is wrong on purpose must be found."""
    (tmp_path / "user.py").write_text(USER + "wrong: int = run.report('page.html')\n")
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, "user.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    found, _ = done.stdout.splitlines()
    assert found.startswith(f"user.py:{len(USER.splitlines()) + 1}: error: Incompatible types in assignment")
    assert 'expression has type "Path", variable has type "int"' in found
