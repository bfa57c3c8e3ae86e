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
    code, out, _ = run(capsys, *words, "--time-limit-s", "600", "--format", "json")
    assert code == 0
    assert json.loads(out)["generation"]["context"] == (32768 if model.startswith("mixtral") else 8192)


def test_no_plan_is_exit_code_1_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, LLAMA, *POOL, "--ttft-cap-s", "0.001", "--format", "json")
    assert code == 1
    assert json.loads(out)["feasible"] is False
    assert "no plan: --ttft-cap-s 0.001: the least time to first token is" in err


def test_wrong_input_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "config.json"
    place.write_text('{"model_type": "whisper"}')
    code, _, err = run(capsys, str(place), *POOL)
    assert code == 2
    assert "config.json:1: model_type: 'whisper' is not a language model known here" in err


SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def test_from_a_model_to_a_plan_of_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure into a file that has another type, plan with it, and measure what is there only when it is asked for."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"_name_or_path": "tiny"}))
    types, hosts = tmp_path / "device_types.yml", tmp_path / "devices.yml"
    types.write_text("h100: {bw_Mbps: 1000, mem_MB: 8}\n")
    hosts.write_text("mine: [a, b]\n")
    words = ["pipeline", "profile-generation", f"hf:{tmp_path}", "--to", str(types), "--device-type", "mine"]
    words += ["--prompt", "8", "16", "--context", "32", "--sequences", "1", "4"]
    words += ["--warmup", "0", "--repeats", "2", "--seconds", "0.001", "--calm-s", "0"]
    assert main(words) == 2
    assert "mine is a new device type: give its mem_MB and bw_Mbps" in capsys.readouterr().err
    assert main([*words, "-dtm", "64", "-dtb", "1000", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["phase"], each["tokens"], each["batch_size"]) for each in found] == [
        ("prefill", 8, 1),
        ("prefill", 16, 1),
        ("decode", 32, 1),
        ("decode", 32, 4),
    ]
    assert {each["dtype"] for each in found} == {"torch.bfloat16"}  # as the configuration says
    asked = ["-T", str(types), "-D", str(hosts), "--prompt", "12", "--context", "32", "--concurrency", "4"]
    code, out, err = run(capsys, str(tmp_path / "config.json"), *asked, "--format", "json")
    assert code == 0, err
    assert json.loads(out)["generation"]["source"] == "measured"
    assert main(words) == 2
    assert (
        "with torch.bfloat16 and batch size 1, prefill of 8 tokens already; -f replaces it" in capsys.readouterr().err
    )
    assert main([*words, "-f"]) == 0
    assert "decode" in capsys.readouterr().out
    assert run(capsys, str(tmp_path / "config.json"), *asked)[0] == 0


def test_the_help_speaks_of_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(["pipeline", "plan-generation", "--help"])
    told = capsys.readouterr().out
    assert "--max-context" in told
    assert "--longest" not in told
