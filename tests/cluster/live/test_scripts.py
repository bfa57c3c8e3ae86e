"""Training scripts that are preempted three times: they give the losses of a run that never was, bit by bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dovetail.cluster.compat.gavel_shim as shim
from dovetail.cluster.live.agent_env import environment
from dovetail.cluster.live.wire import Lease, NodeLease, TrainingCommand
from tests.cluster.live.agent_double import AgentDouble
from tests.ports import lasting_port

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "examples" / "cluster" / "training"
pytestmark = pytest.mark.xdist_group("scripts")  # one process imports for all
STEPS, STOPS = 26, (3, 10, 21)  # a pass over the images has 10 steps, over the text 24
Runner = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    """Runs scripts, each in a process of its own, all at once; gives the worst exit code."""
    modules = [name for name in ("transformers.trainer", "lightning") if find_spec(name.partition(".")[0])]
    command = [sys.executable, str(Path(__file__).with_name("zygote.py")), "torch", "torch._dynamo", *modules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
        assert zygote.stdin is not None
        assert zygote.stdout is not None

        def answer(*tasks: dict[str, Any]) -> int:
            assert zygote.stdin is not None
            assert zygote.stdout is not None
            zygote.stdin.write(json.dumps(tasks) + "\n")
            zygote.stdin.flush()
            return int(zygote.stdout.readline())

        yield answer
        zygote.stdin.close()


def losses(
    run: Runner,
    folder: Path,
    script: str,
    words: list[str],
    stops: tuple[int, ...],
    widths: tuple[int, ...] = (),
    leases: list[Lease] | None = None,
) -> list[str]:
    """Of all processes of a job that is preempted at `stops`, with as many ranks as `widths` says for each turn. Each
    rank has a file of its own: what two write to one is torn, where a line is written in pieces (PYTHONUNBUFFERED)."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    outputs = [folder / f"output-{rank}" for rank in range(max(widths, default=1))]
    done = 0
    for epoch, stop in enumerate([*stops, STEPS], start=1):
        lease = Lease(1e6, steps=stop, total_steps=STEPS, done=done, last=True)
        with AgentDouble(folder, leases or [lease]) as agent:
            task = {
                "script": str(SCRIPTS / script),
                "words": [word.format(checkpoint=checkpoint) for word in words],
            }
            width = widths[epoch - 1] if widths else 1
            common = agent.environment(checkpoint, epoch) | {
                "PYTHONPATH": str(Path(shim.__file__).parent),
                "GAVEL_ROUND_ID": str(epoch),
                "GAVEL_WORKER_ID": "0",
                "DOVETAIL_WORLD_SIZE": str(width),
                "WORLD_SIZE": str(width),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(lasting_port()),
            }
            code = run(
                *(
                    {
                        **task,
                        "output": str(outputs[rank]),
                        "environment": {**common, "RANK": str(rank), "DOVETAIL_RANK": str(rank)},
                    }
                    for rank in range(width)
                )
            )
        assert code == 0, [output.read_text() for output in outputs if output.exists()]
        assert agent.names()[-1] == ("complete" if stop == STEPS else "commit")
        done = stop
    return [line for output in outputs for line in output.read_text().splitlines() if line.startswith("loss ")]


GAVEL = ["--checkpoint_dir", "{checkpoint}", "--enable_gavel_iterator"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("image_classification.py", ["--num_steps", str(STEPS), *GAVEL]),
        ("language_model.py", ["--steps", str(STEPS), *GAVEL]),
        ("train.py", ["--steps", str(STEPS)]),
        ("hugging_face.py", ["--steps", str(STEPS)]),
        ("lightning_module.py", ["--steps", str(STEPS)]),
    ],
)
def test_preempted_runs_give_the_losses_of_a_whole_one(
    run: Runner, tmp_path: Path, script: str, words: list[str]
) -> None:
    pytest.importorskip({"hugging_face.py": "transformers", "lightning_module.py": "lightning"}.get(script, "torch"))
    whole = losses(run, tmp_path / "whole", script, words, ())
    parts = losses(run, tmp_path / "parts", script, words, STOPS)
    assert len(whole) == STEPS
    assert len(set(whole)) == STEPS
    assert parts == whole
    if "{checkpoint}" in words:
        assert_old_log(tmp_path / "parts")


def test_ranks_stop_together_and_others_go_on_in_another_number(run: Runner, tmp_path: Path) -> None:
    words = ["--steps", str(STEPS)]
    whole = losses(run, tmp_path / "whole", "distributed.py", words, (), (2,))
    again = losses(run, tmp_path / "again", "distributed.py", words, (10, 21), (2, 2, 2))
    other = losses(run, tmp_path / "other", "distributed.py", words, (10, 21), (2, 1, 2))
    assert again == whole
    assert len(whole) == STEPS
    numbers = [[float.fromhex(line.split()[1]) for line in lines] for lines in (whole, other)]
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-4)  # sums of other parts


def test_ranks_of_a_trainer_agree_when_to_save(run: Runner, tmp_path: Path) -> None:
    """Its way to save is one that all ranks have to go at once. The lease is extended after the first step."""
    pytest.importorskip("transformers")
    leases = [Lease(0.02), Lease(0.02), Lease(1000.0)]
    told = losses(run, tmp_path, "hugging_face.py", ["--steps", str(STEPS)], (), (2,), leases)
    assert len(told) == 2 * STEPS
    saved = {path.name for path in tmp_path.glob("checkpoint/checkpoint-*")}
    assert saved == {"checkpoint-10", f"checkpoint-{STEPS}"}


def test_old_scripts_find_their_iterator_whatever_path_a_job_sets(tmp_path: Path) -> None:
    command = TrainingCommand(("x",), str(tmp_path), env={"PYTHONPATH": "/mine"})
    lease = NodeLease(7, 2, (0, 1), (0, 1), (-1, -1), "a", 2, command)
    found = environment(lease, 1, tmp_path, tmp_path / "agent", {"PYTHONPATH": "/services"}, None)
    assert found["PYTHONPATH"].split(":") == [str(Path(shim.__file__).parent), "/mine"]
    assert (Path(shim.__file__).parent / "gavel_iterator.py").exists()
    assert [found[f"GAVEL_{name}_ID"] for name in ("JOB", "ROUND", "WORKER")] == ["7", "2", "1"]


def assert_old_log(folder: Path) -> None:
    """Of the second process, as the older system's worker would read it."""
    text = (folder / "checkpoint/.gavel/round=2/worker=0.log").read_text()
    lines = re.findall(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] \[([A-Z ]+)\] \[([A-Z]+)\] (.*)$", text, re.MULTILINE)
    assert len(lines) == len(text.splitlines())
    assert [" ".join(words) for *words, _ in lines] == [
        *("INIT REQUESTING", "INIT COMPLETE", "PROGRESS STEPS", "PROGRESS DURATION"),
        *("LOAD CHECKPOINT BEGIN", "LOAD CHECKPOINT END", "LEASE EXPIRED"),
        *("SAVE CHECKPOINT BEGIN", "SAVE CHECKPOINT END", "PROGRESS STEPS", "PROGRESS DURATION"),
    ]
    steps = STOPS[1] - STOPS[0]
    assert lines[1][2].startswith(f"Initial lease: max_steps {steps}, max_duration=")
    assert lines[6][2].startswith(f"{steps} / {steps} steps, ")
    assert [lines[place][2] for place in (2, 3, 9)] == ["0", "0.0", str(steps)]
    assert float(lines[10][2]) > 0
