"""Language models that generate over the stages of a plan: the tokens are those of the plain model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import InputError, check_journal, pipeline
from dovetail.cli import main
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live import Patience, RunOptions, run_plan
from dovetail.pipeline.live.local import LocalEngine
from dovetail.pipeline.live.prompts import Prompts
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan as make_plan
from tests.processes import children_of
from tests.waiting import PATIENCE_S, until

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

BLOCKS, LAYERS, VOCABULARY = 4, 6, 97
CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "pad_token_id": None,
}
PROMPTS = [[(7 * i + j) % VOCABULARY for j in range(length)] for i, length in enumerate((5, 1, 17, 9, 3, 12))]
# Nobody is taken for dead because the machine is busy: a killed process is known by its connection.
WHERE = ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
QUICK = RunOptions(heartbeat_s=0.1, patience=Patience(heartbeat_limit_s=60.0))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other in every small operation come to nothing beside other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class LanguageModel:
    def __init__(self, folder: Path, **changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps(CONFIGURATION | changes))
        self.spec = ModelSpec(source=f"hf:{folder}", seed=3)

    def plan(self, *hosts: str, batch_size: int = 2, **constraints: Any) -> Plan:
        """Equal hosts, so a stage has as many of the layers as another."""
        device = DeviceClass("t", "t", list(hosts), 1e6, 1000.0, [0.01] * LAYERS)
        problem = Pipeline(
            model="small",
            layers=LAYERS,
            mem_mib=[1.0] * LAYERS,
            cut_bytes=[8] * (LAYERS + 1),
            classes=[device],
            batch_size=batch_size,
            dtype="torch.float32",
        )
        found = make_plan(problem, "throughput", Constraints(**constraints))
        assert isinstance(found, Plan), found
        return found

    def expected(
        self, prompts: list[list[int]], tokens: int, seed: int = 0, where: str = "cpu", **how: Any
    ) -> list[list[int]]:
        """What the plain model's `generate` gives, for each prompt alone; drawn, if there is a temperature."""
        whole = load(self.spec).decoder(1, LAYERS).model.to(where)
        how |= {"max_new_tokens": tokens, "do_sample": "temperature" in how}
        found = []
        for number, prompt in enumerate(prompts):
            torch.manual_seed(seed + number)
            ids = torch.tensor([prompt], device=where)
            made = whole.generate(ids, attention_mask=torch.ones_like(ids), **how)
            found.append(made[0, len(prompt) :].tolist())
        return found

    def run(self, plan: Plan, prompts: list[list[int]], tokens: int, **more: Any) -> Any:
        given: dict[str, Any] = {"on": {"all": "cpu"}, "options": QUICK} | more
        return run_plan(plan, self.spec, prompts=Prompts(prompts, self.spec), max_new_tokens=tokens, **given)


@pytest.mark.parametrize("where", WHERE)
def test_a_killed_stage_changes_no_token(tmp_path: Path, where: str) -> None:
    """Caches are gone with a stage, and are made again from the prompts and the tokens so far."""
    model, engine, journal = LanguageModel(tmp_path), LocalEngine(), tmp_path / "run.jsonl"
    plan = model.plan("a", "b", "c")
    told: list[tuple[int, int]] = []

    def take(number: int, token: int) -> None:
        told.append((number, token))
        if len(told) == 20:
            os.kill(engine.pids[plan.stages[1].host], signal.SIGKILL)

    outcome = model.run(plan, PROMPTS, 11, engine=engine, journal=journal, take_token=take, on={"all": where})
    expected = model.expected(PROMPTS, 11, where=where)
    assert outcome.plans == 2
    assert outcome.outputs == expected
    found = outcome.generation
    assert (found.sequences, found.completed, found.tokens, outcome.items) == (6, 6, 66, 66)
    assert outcome.completed < 66  # steps: a lane gives several tokens with one
    assert [[token for of, token in told if of == number] for number in range(6)] == expected  # none twice
    assert check_journal(journal).valid


def test_a_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = LanguageModel(tmp_path)
    drawn: dict[str, Any] = {"temperature": 0.8, "top_k": 30, "top_p": 0.9}
    plan, expected = model.plan("a", "b", batch_size=1), model.expected(PROMPTS[:3], 6, seed=5, **drawn)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    (tmp_path / "prompts.json").write_text(json.dumps(PROMPTS[:3]))
    words = ["--model", model.spec.source, "--seed", "3", "--on", "all=cpu", "--max-new-tokens", "6"]
    words += ["--temperature", "0.8", "--top-k", "30", "--top-p", "0.9", "--sample-seed", "5"]
    files = ["--generate", str(tmp_path / "prompts.json"), "--output", str(tmp_path / "out.json")]
    assert main(["pipeline", "run", str(tmp_path / "plan.json"), *words, *files]) == 0
    assert "18 tokens of 3 sequences" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written == [{"prompt": p, "tokens": t} for p, t in zip(PROMPTS, expected, strict=False)]


def test_an_interrupt_keeps_the_tokens_that_came(tmp_path: Path) -> None:
    model = LanguageModel(tmp_path, max_position_embeddings=60_000)
    plan, prompts, journal, output = (tmp_path / name for name in ("plan.json", "in.json", "run.jsonl", "out.json"))
    plan.write_bytes(msgspec.json.encode(model.plan("a", "b", batch_size=1)))
    prompts.write_text(json.dumps(PROMPTS[:2]))
    words = ["--model", model.spec.source, "--seed", "3", "--on", "all=cpu", "--max-new-tokens", "50000"]
    files = ["--generate", str(prompts), "--output", str(output), "--journal", str(journal)]
    program = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())", "pipeline", "run"]
    with subprocess.Popen([*program, str(plan), *words, *files], stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: journal.exists() and journal.read_text().count('"k":"completed"') > 5)
            stages = children_of(process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE_S) == 130
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in stages))
    written = [row["tokens"] for row in json.loads(output.read_text())]
    counts = [len(row) for row in written]
    assert sum(counts) >= check_journal(journal).counted["completed"] > 5
    assert written == [row[:n] for row, n in zip(model.expected(PROMPTS[:2], max(counts)), counts, strict=True)]


@pytest.mark.parametrize(
    ("output", "told"),
    [("prompts.json", "prompts.json: is the same file as the input"), ("out.json", "prompt 1: token 999999: expected")],
)
def test_what_is_refused_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, told: str
) -> None:
    model = LanguageModel(tmp_path)
    plan, prompts, kept = tmp_path / "plan.json", tmp_path / "prompts.json", tmp_path / output
    plan.write_bytes(msgspec.json.encode(model.plan("a", "b")))
    kept.write_text("[]")
    prompts.write_text("[[999999]]")
    before = kept.read_bytes()
    words = ["pipeline", "run", str(plan), "--model", model.spec.source, "--on", "all=cpu"]
    assert main([*words, "--generate", str(prompts), "--output", str(kept)]) == 2
    assert told in capsys.readouterr().err
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"generate": [[1]], "max_new_tokens": 0}, "--max-new-tokens 0: expected at least 1"),
        ({"generate": [[1]], "top_k": 5}, "--top-k and --top-p: tokens are drawn only with a --temperature"),
        ({"temperature": 1.0}, "--temperature: tokens are drawn only with --generate"),
        ({"generate": [[1]], "in_flight": 0}, "--in-flight 0: expected at least 1"),
        ({"generate": [[1]], "microbatches": 3}, "a prompt is the input; leave --input and --microbatches out"),
    ],
)
def test_what_cannot_be_generated_is_told(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    model = LanguageModel(tmp_path)
    with pytest.raises(InputError, match=message):
        pipeline.run(model.plan("a", "b"), model.spec, on={"all": "cpu"}, **asked)


def test_replicas_and_other_models_are_refused(tmp_path: Path, small: Any) -> None:
    model = LanguageModel(tmp_path)
    plan = model.plan("a", "b", "c", "d", replicas=2)
    assert any(stage.replicas for stage in plan.stages)
    with pytest.raises(InputError, match="the plan has replicas of a stage"):
        model.run(plan, PROMPTS[:1], 1)
    with pytest.raises(InputError, match=r"only a language model of transformers \(hf:\) generates tokens"):
        run_plan(small.plan("a", "b"), small.spec, on={"all": "cpu"}, prompts=Prompts([[1]], small.spec))
