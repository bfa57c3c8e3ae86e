"""`dovetail pipeline plan-generation` as a user meets it, on the files of the examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipeline"
POOL = ["-T", str(EXAMPLES / "gpu_types.yml"), "-D", str(EXAMPLES / "gpus.yml")]
LLAMA = str(EXAMPLES / "llama-3-8b.json")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", "plan-generation", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_it_tells_tokens_per_second_and_the_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, LLAMA, *POOL, "--links", str(EXAMPLES / "gpu_links.yml"), "--tensor-parallel", "1", "2"
    )
    assert (code, err) == (0, "")
    assert "h100-0 + h100-1" in out
    assert "tokens/s of 1 requests in 1 groups of up to 1" in out
    assert "tokens: optimal" in out


def test_a_plan_as_json_is_read_by_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, LLAMA, *POOL, "--concurrency", "4", "--groups", "2", "--format", "json")
    assert code == 0
    told = json.loads(out)["generation"]
    assert told["groups"] == 2
    assert told["tokens_s"] == pytest.approx(4 / told["step_s"])
    (tmp_path / "plan.json").write_text(out)
    assert main(["pipeline", "simulate", str(tmp_path / "plan.json"), "--format", "json"]) == 0


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3-70b", "mixtral-8x7b"])
def test_the_longest_context_is_an_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(EXAMPLES / f"{model}.json"), *POOL, "--concurrency", "8", "--max-context", "--groups", "1"]
    code, out, _ = run(capsys, *words, "--format", "json")
    assert code == 0
    assert json.loads(out)["generation"]["context"] == (32768 if model.startswith("mixtral") else 8192)


def test_no_plan_is_exit_code_3_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, LLAMA, *POOL, "--ttft-cap-s", "0.001", "--format", "json")
    assert code == 3
    assert json.loads(out)["feasible"] is False
    assert "no plan: --ttft-cap-s 0.001: the least time to first token is" in err


def test_wrong_input_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "config.json"
    place.write_text('{"model_type": "whisper"}')
    code, _, err = run(capsys, str(place), *POOL)
    assert code == 2
    assert "config.json:1: model_type: 'whisper' is not a language model known here" in err
