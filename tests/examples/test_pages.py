"""Every block of README and docs runs in the order of its page, but for those that are named here with the reason."""

from __future__ import annotations

import gc
import json
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dovetail.core import registry
from tests.examples.settings import SETTINGS, Setting
from tests.examples.terminal import ROOT, Block, Terminal, blocks, typed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [block for path in PAGES for block in blocks(path)]
_BENCH = "tests/bench/test_figures.py runs the script at a tiny size"
_SIA = "run below, with the published profiles"
_RAY = "needs a Ray cluster: tests/workflow/live/test_ray_service.py, tests/cluster/live and tests/dispatch/test_ray.py"
_GPU = "needs a GPU"
CANNOT: dict[str, dict[str, str]] = {
    "README.md": {
        "pip install .": "tests/cli/test_examples.py installs the wheel",
        "dovetail demo": "tests/cli/test_demo.py runs it",
        "pipeline run plan.json": "the same line of pipeline-run.md runs",
        "import dovetail": "tests/examples/test_api_page.py runs it, and compares its figures",
    },
    "api.md": {"": "tests/examples/test_api_page.py runs them, and compares what they print"},
    "cluster-goodput.md": {"--profiles profiles": _SIA, "python -m bench": _BENCH},
    "cluster-import.md": {"sacct -a": "needs Slurm"},
    "cluster-live.md": {"ray start": _RAY},
    "cluster-training.md": {
        "trainer_callback": "tests/cluster/live/test_scripts.py runs a whole script that has it",
        "lightning_callback": "tests/cluster/live/test_scripts.py runs a whole script that has it",
    },
    "cluster.md": {"--profiles profiles": _SIA},
    "dispatch-backends.md": {
        "devices_of_cluster": _RAY,
        "SimpleMPIScheduler": "needs MPI's ranks: tests/e2e/test_dispatch_mpi.py",
    },
    "dispatch-map.md": {"--engine ray": _RAY},
    "dispatch-values.md": {"": "tests/dispatch/test_values_page.py runs them, and compares what they print"},
    "host-live.md": {"--gpus": _GPU},
    "host-queue.md": {"host install": "it would change this user's systemd: tests/cli/test_host.py"},
    "host.md": {"@policy": "tests/host/test_third_party.py runs both under many workloads"},
    "journal.md": {"Reader": "tests/journals/test_every_level.py runs it on a journal of each level"},
    "workflow-backends.md": {
        "def make": "tests/workflow/live/test_factory_docs.py runs it",
        "class Counter": "tests/workflow/live/test_factory_docs.py runs it",
        "class Painter": _GPU,
    },
    "workflow-live-data.md": {"run_live": "tests/workflow/live/test_run_live.py runs it, and compares what it prints"},
    "workflow-optimal.md": {"python -m bench": _BENCH},
    "workflow-ray.md": {"ray start": _RAY, "--address 10.0.0.1": _RAY},
    "workflow-traces.md": {"python -m bench": _BENCH},
}
# Lines that end with another code than 0: there queues are full, and what is rejected is left undone.
CODES: dict[str, dict[str, int]] = {"workflow-tenants.md": {"tenants.yaml --requests requests.jsonl --mode": 3}}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    before = dict(registry._policies)
    made = Terminal(tmp_path, monkeypatch, capsys)
    try:
        yield made
    finally:
        made.close()
        for name in registry._policies.keys() - before.keys():
            if registry._policies[name].__module__ == "page":
                del registry._policies[name]


def is_left_out(block: Block, text: str) -> bool:
    return any(words in text for words in CANNOT.get(block.page, {}))


def parts(block: Block) -> list[str]:
    """What runs or is left out as one: a line of a shell, a whole program."""
    return typed(block.text) if block.language == "bash" else [block.text]


RUN = [path for path in PAGES if any(not is_left_out(b, p) for b in blocks(path) for p in parts(b) if b.runs)]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_a_page(path: Path, terminal: Terminal) -> None:
    page = blocks(path)
    setting = SETTINGS.get(path.name, Setting())
    names = {"__name__": "page"} | setting.prepare(terminal, page)
    terminal.codes = CODES.get(path.name, {})
    unused = set(setting.instead)
    for block in page:
        text = "\n".join(part for part in parts(block) if not is_left_out(block, part))
        for old, new in setting.instead.items():
            if old in text:
                unused.discard(old)
                text = text.replace(old, new(terminal) if callable(new) else new)
        if block.language == "bash" and text:
            terminal.type(text)
        elif block.language == "python" and text:
            os.chdir(terminal.folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other packages
                exec(compile(text, f"{path.name}:{block.line}", "exec"), names)
    names.clear()  # some of them have threads until they are gone
    gc.collect()
    assert not unused
    assert terminal.left_open == {*terminal.codes}


def test_goodput_with_the_published_profiles(terminal: Terminal, traces: Path) -> None:
    """The same two commands, with the first jobs of the workload."""
    Path("philly-tiny").mkdir()
    Path("profiles").symlink_to(traces / "sia" / "profiles")
    jobs = (traces / "sia/workloads/philly-tiny/workload-1.csv").read_text().splitlines(keepends=True)[:4]
    for name in ("philly-tiny/workload-1.csv", "workload-1.csv"):
        Path(name).write_text("".join(jobs))
    lines = [line for block in BLOCKS for line in parts(block) if block.runs and "--profiles profiles" in line]
    assert len(lines) == 2
    for line in lines:
        terminal.type(line)


def test_what_is_left_out_is_there_and_what_runs_it_instead_too() -> None:
    for page, why in CANNOT.items():
        for words, reason in why.items():
            assert any(words in part for block in BLOCKS if block.page == page and block.runs for part in parts(block))
            for test in (word.strip(",:") for word in reason.split() if word.startswith("tests/")):
                assert (ROOT / test).exists(), test
    assert sum(map(len, CANNOT.values())) < 30


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_is_of_a_known_language_and_can_be_read(block: Block) -> None:
    if block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    else:
        assert block.language in ("bash", "python", "csv", "text")
